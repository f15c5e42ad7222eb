//! The watchdog of `ade lock hold`: the command must not go on without its lock when `ade` itself is killed.
//!
//! It is this program again, as a hidden subcommand, and is ready before the command starts. It leads a process group
//! that the command joins before its first instruction: so it knows whom to stop without being told, and nobody else can
//! get the number of that group while it lives. Its standard input is a pipe whose other end only `ade lock hold` has.
//! A byte in it says that the lock may be believed in for longer, or that the command has ended. Its end, or silence for as
//! long as a lease is trusted, says that `ade` was killed or stands still: then the group is asked to end and, after the
//! grace, killed, with the watchdog in it.
//!
//! At a terminal the group is put in the foreground, so that the command can read from it and gets its Ctrl-C; not in a
//! pipeline, whose other members would lose the terminal. Only a member of the foreground group may hand it on, so the
//! watchdog gives it back. Ctrl-Z would keep the lock for as long as nobody comes back, at a terminal that seems dead: the
//! watchdog lets the command go on at once.
//!
//! What leaves the group by itself (setsid, the jobs of an interactive shell) is out of reach.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::Args as ClapArgs;
use rustix::process::{Pid, Signal, getpgrp, getpid, kill_process_group};
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{Sender, channel};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until};

use crate::connect::block_on;
use crate::failure::{Failure, Kind};

/// How the hidden subcommand is called.
pub(crate) const NAME: &str = "lock-watchdog";
/// The command has ended; what it left running may go on.
const DONE: u8 = b'd';
/// What is left of the group must go at once.
const KILL: u8 = b'k';
/// The lock may be believed in for longer.
const TRUSTED: u8 = b't';
/// `ade` notices by itself that it must stop the command, a little earlier, unless it cannot.
pub(super) const SLACK: Duration = Duration::from_millis(50);
/// A program may stop itself a little after Ctrl-Z, and then has to be woken again.
const AGAIN: Duration = Duration::from_millis(300);

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Seconds between asking the command to end and killing it
    #[arg(long, value_parser = super::seconds)]
    grace: Duration,
    /// Seconds for which the lock is believed in without a word
    #[arg(long, value_parser = super::seconds)]
    trust: Duration,
    /// The process group that gets the terminal back
    #[arg(long, value_name = "GROUP")]
    terminal_to: Option<i32>,
}

/// The watchdog's own work.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if getpgrp() != getpid() {
        return Err(Failure::new(Kind::Input, "this is a part of ade lock hold, not for use by hand"));
    }
    block_on(async {
        let unready = |error| Failure::new(Kind::Unavailable, format!("cannot listen to signals: {error}"));
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
            drop(signal(kind).map_err(unready)?);
        }
        let mut stopped = signal(SignalKind::from_raw(Signal::TSTP.as_raw())).map_err(unready)?;
        let (orders, mut order) = channel(1);
        let reader = spawn_blocking(move || read_orders(&orders));
        let mut out = io::stdout();
        out.write_all(b"\n")?;
        out.flush()?;
        let mut trusted_until = Instant::now() + args.trust + SLACK;
        let order = loop {
            tokio::select! {
                order = order.recv() => match order {
                    Some(Order::Trusted(left)) => trusted_until = Instant::now() + left + SLACK,
                    Some(Order::End(order)) => break Some(order),
                    None => break None,
                },
                () = sleep_until(trusted_until) => break None,
                _ = stopped.recv() => {
                    send(getpgrp(), Signal::CONT);
                    sleep(AGAIN).await;
                    send(getpgrp(), Signal::CONT);
                }
            }
        };
        // It may stand in a read that nobody ends; the process ends without it.
        reader.abort();
        if order.is_none() {
            send(getpgrp(), Signal::TERM);
            sleep(args.grace).await;
        }
        give_terminal_back(args.terminal_to);
        if order != Some(DONE) {
            send(getpgrp(), Signal::KILL);
        }
        Ok(())
    })
}

/// What comes through the pipe.
enum Order {
    /// The lock may be believed in for so long.
    Trusted(Duration),
    /// The end, in one way or the other.
    End(u8),
}

fn read_orders(orders: &Sender<Order>) {
    while let Some(order) = read_order()
        && orders.blocking_send(order).is_ok()
    {}
}

fn read_order() -> Option<Order> {
    let (mut order, mut millis) = ([0], [0; 4]);
    io::stdin().read_exact(&mut order).ok()?;
    if order != [TRUSTED] {
        return Some(Order::End(order[0]));
    }
    io::stdin().read_exact(&mut millis).ok()?;
    Some(Order::Trusted(Duration::from_millis(u32::from_le_bytes(millis).into())))
}

fn send(group: Pid, signal: Signal) {
    // The group may be gone already, which is what was wanted.
    let _ = kill_process_group(group, signal);
}

fn give_terminal_back(group: Option<i32>) {
    let Some(group) = group.and_then(Pid::from_raw) else { return };
    let Ok(terminal) = File::open("/dev/tty") else { return };
    // If somebody else has it by now it is not ours to give; in the background, trying would stop us.
    if tcgetpgrp(&terminal) == Ok(getpgrp()) {
        // The terminal may have gone away meanwhile.
        let _ = tcsetpgrp(&terminal, group);
    }
}

/// A watchdog, as `ade lock hold` sees it.
#[derive(Debug)]
pub(super) struct Watchdog {
    process: Child,
    group: Pid,
}

impl Watchdog {
    /// Starts one, and waits until it is ready. From then on its group is the place for the command.
    pub(super) async fn start(grace: Duration, trust: Duration) -> io::Result<Self> {
        spawn_blocking(move || Self::start_now(grace, trust)).await.map_err(io::Error::other)?
    }

    fn start_now(grace: Duration, trust: Duration) -> io::Result<Self> {
        let stdin = io::stdin();
        let alone = stdin.is_terminal() && io::stdout().is_terminal();
        let in_foreground = alone && tcgetpgrp(&stdin) == Ok(getpgrp());
        let mut command = Command::new(std::env::current_exe()?);
        command.args([NAME, "--grace", &grace.as_secs_f64().to_string()]);
        command.args(["--trust", &trust.as_secs_f64().to_string()]);
        if in_foreground {
            command.args(["--terminal-to", &getpgrp().as_raw_nonzero().to_string()]);
        }
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn()?;
        let group = Pid::from_raw(process.id().cast_signed()).ok_or(io::ErrorKind::InvalidData)?;
        if let Some(mut ready) = process.stdout.take() {
            ready.read_exact(&mut [0])?;
        }
        if in_foreground {
            tcsetpgrp(&stdin, group)?;
        }
        Ok(Self { process, group })
    }

    /// The group that the command has to join.
    pub(super) const fn group(&self) -> i32 {
        self.group.as_raw_nonzero().get()
    }

    /// Sends a signal to the command and all that it started.
    pub(super) fn pass_on(&self, signal: Signal) {
        send(self.group, signal);
    }

    /// The lock may be believed in for so long. If the watchdog is gone, this is not the place to notice.
    pub(super) fn trust_on(&mut self, left: Duration) {
        let millis = u32::try_from(left.as_millis()).unwrap_or(u32::MAX).to_le_bytes();
        let order: Vec<u8> = [TRUSTED].into_iter().chain(millis).collect();
        let _ = self.process.stdin.as_mut().map(|pipe| pipe.write_all(&order));
    }

    /// The command has ended, or has never begun.
    pub(super) async fn dismiss(self) {
        self.order(DONE).await;
    }

    /// Kills what is left of the group.
    pub(super) async fn kill(self) {
        self.order(KILL).await;
    }

    async fn order(mut self, order: u8) {
        let ordered = spawn_blocking(move || {
            let given = self.process.stdin.take().is_some_and(|mut pipe| pipe.write_all(&[order]).is_ok());
            if !given && order == KILL {
                // The watchdog was killed. Until it is waited for, its number, and so the group's, is still its own.
                send(self.group, Signal::KILL);
            }
            // How it ended does not matter.
            let _ = self.process.wait();
        });
        // It has no result; a panic in it has been reported.
        let _ = ordered.await;
    }
}
