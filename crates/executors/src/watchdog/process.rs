//! The watchdog process itself.
//!
//! At a terminal its group is in the foreground, so that the command can read from the terminal and gets Ctrl-C. Only a member of
//! the foreground group may hand it over, so the watchdog returns it. Ctrl-Z would suspend the command while it holds its locks, at
//! a terminal that appears dead, so the watchdog resumes the command at once.

use std::fs::File;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, getpgrp, getpid};
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::channel;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until, timeout};

use super::protocol::{Message, READY};
use super::targets::{Targets, signal_group};
use crate::elapsed;

/// A program may suspend itself a little after Ctrl-Z, and must then be resumed again.
const RESUME_DELAY: Duration = Duration::from_millis(300);
/// A search takes some milliseconds, and longer on a busy machine with many processes.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(3);
/// Prevents an overflow of the clock.
const MAX_GRACE: Duration = Duration::from_secs(365 * 86_400);

/// Runs the watchdog until it is dismissed or kills the command.
pub async fn run() -> io::Result<()> {
    if getpgrp() != getpid() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // Signals to the group are meant for the command and must not end the watchdog.
    let handle = |kind: Signal| signal(SignalKind::from_raw(kind.as_raw()));
    let ignored =
        [Signal::ALARM, Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2];
    // The handler stays installed without the stream.
    ignored.into_iter().try_for_each(|kind| handle(kind).map(drop))?;
    let mut suspended = handle(Signal::TSTP)?;
    let (sender, mut messages) = channel(1);
    let reader = spawn_blocking(move || {
        Message::read_all(io::stdin()).try_for_each(|message| sender.blocking_send(message))
    });
    let Some(Message::Start { started_at, grace, deadline, grace_within_deadline, return_terminal_to }) =
        messages.recv().await
    else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let targets = Arc::new(Targets::new(getpgrp(), started_at));
    let (mut deadline, mut resume_at) = (deadline.map(Instant::from), None);
    let mut stdout = io::stdout();
    stdout.write_all(&READY)?;
    stdout.flush()?;
    let last_message = loop {
        tokio::select! {
            message = messages.recv() => match message {
                Some(Message::ExtendDeadline(until)) => deadline = Some(until.into()),
                Some(Message::Watch(pid)) => Pid::from_raw(pid).into_iter().for_each(|pid| targets.set_command(pid)),
                Some(Message::Signal(number)) => {
                    if let Some(signal) = Signal::from_named_raw(number) {
                        search(&targets, move |targets| targets.signal_others(signal)).await;
                    }
                }
                last => break last,
            },
            () = elapsed(deadline) => break None,
            _ = suspended.recv() => {
                signal_group(getpgrp(), Signal::CONT);
                resume_at = Some(Instant::now() + RESUME_DELAY);
            }
            () = elapsed(resume_at) => {
                signal_group(getpgrp(), Signal::CONT);
                resume_at = None;
            }
        }
    };
    // The reader may block forever; the process exits without it.
    reader.abort();
    if last_message.is_none() {
        let grace_end = Instant::now() + grace.min(MAX_GRACE);
        targets.signal_known(Signal::TERM);
        search(&targets, |targets| targets.signal_others(Signal::TERM)).await;
        let limit = deadline.filter(|_| grace_within_deadline);
        sleep_until(limit.map_or(grace_end, |limit| limit.min(grace_end))).await;
    }
    return_terminal(return_terminal_to.and_then(Pid::from_raw));
    if last_message != Some(Message::Done) {
        search(&targets, Targets::kill_marked).await;
        // The end of this process, too.
        targets.signal_known(Signal::KILL);
    }
    Ok(())
}

/// Searches all processes of the machine. This blocks if one of them hangs in the kernel.
async fn search(targets: &Arc<Targets>, found: impl FnOnce(&Targets) + Send + 'static) {
    let targets = Arc::clone(targets);
    let searching = spawn_blocking(move || found(&targets));
    // Whatever was not found in time, the rest must get its signal.
    let _ = timeout(SEARCH_TIMEOUT, searching).await;
}

fn return_terminal(group: Option<Pid>) {
    let Some(group) = group else { return };
    let Ok(terminal) = File::open("/dev/tty") else { return };
    // Another group in the foreground keeps the terminal. From the background, tcsetpgrp would suspend this process.
    if tcgetpgrp(&terminal) == Ok(getpgrp()) {
        // The terminal may have been closed meanwhile.
        let _ = tcsetpgrp(&terminal, group);
    }
}
