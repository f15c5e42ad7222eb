//! The watchdog process itself.
//!
//! At a terminal its group is in the foreground, so that the command can read from the terminal and gets Ctrl-C. Only a member of
//! the foreground group may hand it over, so the watchdog returns it. Ctrl-Z would suspend the command while it holds its locks, at
//! a terminal that appears dead, so the watchdog resumes the command at once.

use std::fs::File;
use std::io::{self, Write as _};
use std::time::Duration;

use rustix::process::{Pid, Signal, getpgrp, getpid};
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{Sender, channel};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};

use super::protocol::{Message, READY, WatchdogConfig};
use super::{WatchedCommand, signal_all, signal_group};

/// A program may suspend itself a little after Ctrl-Z, and must then be resumed again.
const RESUME_DELAY: Duration = Duration::from_millis(300);
/// Prevents an overflow of the clock.
const MAX_GRACE: Duration = Duration::from_secs(365 * 86_400);

/// Runs the watchdog until it is dismissed or kills its group.
pub async fn run() -> io::Result<()> {
    if getpgrp() != getpid() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // Signals to the group are meant for the command and must not end the watchdog.
    for kind in [
        SignalKind::alarm(),
        SignalKind::hangup(),
        SignalKind::interrupt(),
        SignalKind::quit(),
        SignalKind::terminate(),
        SignalKind::user_defined1(),
        SignalKind::user_defined2(),
    ] {
        // The handler stays installed without the stream.
        drop(signal(kind)?);
    }
    let mut suspended = signal(SignalKind::from_raw(Signal::TSTP.as_raw()))?;
    let config =
        spawn_blocking(|| WatchdogConfig::read(&mut io::stdin())).await.map_err(io::Error::other)??;
    let (mut deadline, mut resume_at, mut command) = (config.deadline, None, None);
    let (sender, mut messages) = channel(1);
    let reader = spawn_blocking(move || read_messages(&sender));
    let mut stdout = io::stdout();
    stdout.write_all(&READY)?;
    stdout.flush()?;
    let last_message = loop {
        tokio::select! {
            message = messages.recv() => match message {
                Some(Message::ExtendDeadline(until)) => deadline = Some(until),
                Some(Message::Watch(pid)) => command = WatchedCommand::new(pid),
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
        signal_all(command.as_ref(), getpgrp(), Signal::TERM);
        let grace_end = Instant::now() + config.grace.min(MAX_GRACE);
        let limit = deadline.filter(|_| config.grace_within_deadline);
        sleep_until(limit.map_or(grace_end, |limit| limit.min(grace_end))).await;
    }
    return_terminal(config.return_terminal_to);
    if last_message != Some(Message::Done) {
        signal_all(command.as_ref(), getpgrp(), Signal::KILL);
    }
    Ok(())
}

async fn elapsed(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}

fn read_messages(sender: &Sender<Message>) {
    while let Ok(message) = Message::read(&mut io::stdin())
        && sender.blocking_send(message).is_ok()
    {}
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
