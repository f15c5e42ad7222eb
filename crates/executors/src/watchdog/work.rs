//! The watchdog's own work.
//!
//! At a terminal its group is in the foreground, so that the command can read from it and gets its Ctrl-C. Only a member of
//! the foreground group may hand it on, so the watchdog gives it back. Ctrl-Z would keep what the command holds for as long
//! as nobody comes back, at a terminal that seems dead: the watchdog lets the command go on at once.

use std::fs::File;
use std::io::{self, Write as _};
use std::time::Duration;

use rustix::process::{Pid, Signal, getpgrp, getpid};
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{Sender, channel};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};

use super::words::{READY, Terms, Word};
use super::{Watched, send};

/// A program may stop itself a little after Ctrl-Z, and then has to be woken again.
const AGAIN: Duration = Duration::from_millis(300);
/// Longer than anybody waits, and not too long for a clock.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// Watches, until it is told that there is nothing left to watch, or ends with its group.
pub async fn run() -> io::Result<()> {
    if getpgrp() != getpid() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // What is sent to the group is meant for the command: all these must not end its watchdog.
    for kind in [
        SignalKind::alarm(),
        SignalKind::hangup(),
        SignalKind::interrupt(),
        SignalKind::quit(),
        SignalKind::terminate(),
        SignalKind::user_defined1(),
        SignalKind::user_defined2(),
    ] {
        // Nobody has to hear it: that there is a listener is enough.
        drop(signal(kind)?);
    }
    let mut stopped = signal(SignalKind::from_raw(Signal::TSTP.as_raw()))?;
    let terms = spawn_blocking(|| Terms::read(&mut io::stdin())).await.map_err(io::Error::other)??;
    let (mut trusted_until, mut wake_at, mut command) = (terms.trust_until, None, None);
    let (words, mut word) = channel(1);
    let reader = spawn_blocking(move || read_words(&words));
    let mut out = io::stdout();
    out.write_all(&READY)?;
    out.flush()?;
    let last = loop {
        tokio::select! {
            word = word.recv() => match word {
                Some(Word::Trusted(until)) => trusted_until = Some(until),
                Some(Word::Watch(pid)) => command = Watched::new(pid),
                last => break last,
            },
            () = passed(trusted_until) => break None,
            _ = stopped.recv() => {
                send(getpgrp(), Signal::CONT);
                wake_at = Some(Instant::now() + AGAIN);
            }
            () = passed(wake_at) => {
                send(getpgrp(), Signal::CONT);
                wake_at = None;
            }
        }
    };
    // It may stand in a read that nobody ends; the process ends without it.
    reader.abort();
    let end = |signal| {
        if let Some(command) = &command {
            command.send(getpgrp(), signal);
        }
        send(getpgrp(), signal);
    };
    if last.is_none() {
        end(Signal::TERM);
        let until = Instant::now() + terms.grace.min(LONGEST);
        sleep_until(trusted_until.filter(|_| terms.within_trust).map_or(until, |end| end.min(until))).await;
    }
    give_terminal_back(terms.terminal_to);
    if last != Some(Word::Done) {
        end(Signal::KILL);
    }
    Ok(())
}

async fn passed(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}

fn read_words(words: &Sender<Word>) {
    while let Ok(word) = Word::read(&mut io::stdin())
        && words.blocking_send(word).is_ok()
    {}
}

fn give_terminal_back(group: Option<Pid>) {
    let Some(group) = group else { return };
    let Ok(terminal) = File::open("/dev/tty") else { return };
    // If somebody else has it by now it is not ours to give; in the background, trying would stop us.
    if tcgetpgrp(&terminal) == Ok(getpgrp()) {
        // The terminal may have gone away meanwhile.
        let _ = tcsetpgrp(&terminal, group);
    }
}
