//! The watchdog's own work.
//!
//! At a terminal its group is in the foreground, so that the command can read from it and gets its Ctrl-C. Only a member of
//! the foreground group may hand it on, so the watchdog gives it back. Ctrl-Z would keep what the command holds for as long
//! as nobody comes back, at a terminal that seems dead: the watchdog lets the command go on at once.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::time::Duration;

use rustix::process::{Pid, Signal, getpgrp, getpid};
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{Sender, channel};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until};

use super::{DONE, TRUSTED, Terms, duration, send};

/// A program may stop itself a little after Ctrl-Z, and then has to be woken again.
const AGAIN: Duration = Duration::from_millis(300);

/// Watches, until it is told that there is nothing left to watch, or ends with its group.
///
/// # Errors
/// It does not lead a process group ([`io::ErrorKind::InvalidInput`]), or cannot hear what it needs.
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
    let terms = spawn_blocking(read_terms).await.map_err(io::Error::other)??;
    let mut trusted_until = terms.trust.map(|trust| Instant::now() + trust);
    let (orders, mut order) = channel(1);
    let reader = spawn_blocking(move || read_orders(&orders));
    let mut out = io::stdout();
    out.write_all(b"\n")?;
    out.flush()?;
    let is_done = loop {
        tokio::select! {
            order = order.recv() => match order {
                Some(Order::Trusted(left)) => trusted_until = left.map(|left| Instant::now() + left),
                Some(Order::Done) => break true,
                None => break false,
            },
            () = passed(trusted_until) => break false,
            _ = stopped.recv() => {
                send(getpgrp(), Signal::CONT);
                sleep(AGAIN).await;
                send(getpgrp(), Signal::CONT);
            }
        }
    };
    // It may stand in a read that nobody ends; the process ends without it.
    reader.abort();
    if !is_done {
        send(getpgrp(), Signal::TERM);
        let until = Instant::now() + terms.grace;
        sleep_until(trusted_until.filter(|_| terms.within_trust).map_or(until, |end| end.min(until))).await;
    }
    give_terminal_back(terms.terminal_to);
    if !is_done {
        send(getpgrp(), Signal::KILL);
    }
    Ok(())
}

async fn passed(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}

/// What comes through the pipe after the terms.
enum Order {
    /// The command may go on for so long.
    Trusted(Option<Duration>),
    /// There is nothing left to watch.
    Done,
}

fn read_terms() -> io::Result<Terms> {
    let mut terms = [0; Terms::LENGTH];
    io::stdin().read_exact(&mut terms)?;
    Ok(Terms::decoded(terms))
}

fn read_orders(orders: &Sender<Order>) {
    while let Some(order) = read_order()
        && orders.blocking_send(order).is_ok()
    {}
}

/// The end of the pipe, and what cannot be understood, are nothing.
fn read_order() -> Option<Order> {
    let (mut order, mut millis) = ([0], [0; 4]);
    io::stdin().read_exact(&mut order).ok()?;
    match order {
        [DONE] => Some(Order::Done),
        [TRUSTED] => {
            io::stdin().read_exact(&mut millis).ok()?;
            Some(Order::Trusted(duration(millis)))
        }
        _ => None,
    }
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
