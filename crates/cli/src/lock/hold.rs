//! `ade lock hold LOCK… -- COMMAND`: the flock(1) of a fleet. The command runs while the locks are held, and is stopped
//! when they are lost, or when `ade` itself is killed ([`ade_executors::watchdog`]).

use std::ffi::OsStr;
use std::io::{self, IsTerminal as _};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use ade_client::{Client, LockGuard, LockRequest, Lost};
use ade_executors::watchdog::{Program, Terms, Watchdog};
use clap::Args as ClapArgs;
use rustix::process::{Pid, Signal, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal as Listener, SignalKind, signal};
use tokio::time::timeout;
use uuid::Uuid;

use super::telling::Telling;
use super::{Taking, agent};
use crate::failure::{Failure, Kind};
use crate::output;

/// Bytes of a purpose.
const MAX_PURPOSE: usize = 256;
/// Time to end for a command whose lock is lost.
const USUAL_GRACE: Duration = Duration::from_secs(1);
/// Time besides, at most, for being late.
const LONGEST_MARGIN: Duration = Duration::from_secs(1);
/// We notice by ourselves that we must stop the command, so much earlier than the watchdog, unless we cannot.
const SLACK: Duration = Duration::from_millis(50);
/// As good as for ever.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 86_400);

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    taking: Taking,
    /// Seconds to wait for them [default: for ever]
    #[arg(long, value_name = "SECONDS", value_parser = super::seconds)]
    wait: Option<Duration>,
    /// Seconds between asking a command to end and killing it, once a lock is lost (default: 1, or a quarter of --ttl)
    #[arg(long, value_name = "SECONDS", value_parser = super::seconds)]
    grace: Option<Duration>,
    /// Say nothing about waiting
    #[arg(long, short)]
    quiet: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(super) async fn run(client: &Client, args: Args) -> Result<ExitCode, Failure> {
    let ttl = args.taking.ttl;
    let grace = args.grace.unwrap_or_else(|| (ttl / 4).min(USUAL_GRACE));
    // On a busy machine it takes a while until whoever is to stop the command gets to run at all.
    let margin = (ttl / 10).clamp(SLACK * 2, LONGEST_MARGIN);
    let stop_within = (grace + margin).min(ttl / 2).max(grace + SLACK * 2);
    if stop_within > ttl / 2 {
        let failure = Failure::new(Kind::Input, "--grace must be shorter than half of --ttl");
        return Err(failure.hint("a command that is stopped must be gone before its lease ends"));
    }
    let holder_id = Uuid::new_v4().to_string();
    let request = LockRequest {
        agent_id: Some(agent(args.taking.agent.clone())),
        holder_id: Some(holder_id.clone()),
        locks: args.taking.locks.iter().map(|lock| (lock.clone(), args.taking.mode())).collect(),
        ttl: args.taking.ttl,
        wait: args.wait.unwrap_or(FOR_EVER),
        stop_within,
        purpose: purpose(&args),
        priority: args.taking.priority,
    };
    let guard = {
        let acquiring = LockGuard::acquire(client, &request);
        tokio::pin!(acquiring);
        let mut telling = Telling::new(args.quiet);
        loop {
            tokio::select! {
                guard = &mut acquiring => break guard?,
                () = telling.look(client, &args.taking.locks, &holder_id) => {}
            }
        }
    };
    let (program, arguments) =
        args.command.split_first().ok_or_else(|| Failure::new(Kind::Input, "a command is needed"))?;
    let mut signals = Signals::listen()?;
    let mut watchdog = match start_watchdog(grace, guard.trusted_left()).await {
        Ok(watchdog) => watchdog,
        Err(error) => {
            guard.release().await?;
            return Err(unavailable("start the watchdog of the command", &error));
        }
    };
    let tokens: Vec<String> = guard.grants().iter().map(|grant| grant.fencing_token.to_string()).collect();
    let started = Command::new(program)
        .args(arguments)
        .env("ADE_FENCING_TOKENS", tokens.join(" "))
        .process_group(Pid::as_raw(Some(watchdog.group())))
        .spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) => {
            watchdog.dismiss().await;
            guard.release().await?;
            let failure = Failure::new(Kind::Input, format!("cannot run {program}: {error}"));
            return Err(failure.hint("the command comes after --, with its arguments"));
        }
    };
    match attend(&guard, &mut child, &mut watchdog, &mut signals).await? {
        Ok(status) => {
            watchdog.dismiss().await;
            release(guard).await?;
            Ok(ExitCode::from(code(status)))
        }
        Err(lost) => {
            watchdog.pass_on(Signal::TERM);
            // However it ends, and if it does not: what is left of its group goes now.
            let _ = timeout(grace, child.wait()).await;
            watchdog.kill().await;
            // It may have left the group (setsid); and if it has ended there is nothing to kill.
            let _ = child.start_kill();
            child.wait().await.map_err(|error| unavailable("wait for the command", &error))?;
            let failure =
                Failure::new(Kind::Lost, format!("the lock was lost, so {program} was stopped: {lost}"));
            Err(failure.hint("ade lock show tells who holds it now"))
        }
    }
}

/// At a terminal its group, and so the command, is put in the foreground; not in a pipeline, whose other members would lose the
/// terminal.
async fn start_watchdog(grace: Duration, trust: Duration) -> io::Result<Watchdog> {
    let stdin = io::stdin();
    let alone = stdin.is_terminal() && io::stdout().is_terminal();
    let terminal_to = (alone && tcgetpgrp(&stdin) == Ok(getpgrp())).then(getpgrp);
    let terms = Terms { grace, trust: Some(trust + SLACK), within_trust: false, terminal_to };
    let watchdog = Watchdog::start(&Program::own(), terms).await?;
    if terminal_to.is_some() {
        tcsetpgrp(&stdin, watchdog.group())?;
    }
    Ok(watchdog)
}

/// Gives the locks up. That they were lost at the very end is a failure, because the command has done a part of its work
/// without them; that the server does not answer is not, because they end by themselves.
async fn release(guard: LockGuard) -> Result<(), Failure> {
    match guard.release().await {
        Ok(()) => Ok(()),
        Err(error) if error.code() == Some("LOCK_LOST") => {
            let message = format!("the command ended, but its lock was not held any more: {error}");
            Err(Failure::new(Kind::Lost, message))
        }
        Err(error) => {
            output::note(&format!("the locks could not be released and end with their lease: {error}"));
            Ok(())
        }
    }
}

/// Waits for the command and passes signals on, until the lock is lost.
async fn attend(
    guard: &LockGuard,
    child: &mut Child,
    watchdog: &mut Watchdog,
    signals: &mut Signals,
) -> Result<Result<ExitStatus, Lost>, Failure> {
    let mut trust = guard.trust();
    loop {
        tokio::select! {
            status = child.wait() => {
                let status = status.map_err(|error| unavailable("wait for the command", &error))?;
                // If we stood still beyond the lease, the watchdog has stopped it.
                return Ok(if guard.is_trusted() { Ok(status) } else { Err(Lost::Unreachable) });
            }
            lost = guard.lost() => return Ok(Err(lost)),
            left = trust.renewed() => watchdog.trust_on(left + SLACK).await,
            _ = signals.interrupt.recv() => watchdog.pass_on(Signal::INT),
            _ = signals.terminate.recv() => watchdog.pass_on(Signal::TERM),
            _ = signals.hangup.recv() => watchdog.pass_on(Signal::HUP),
        }
    }
}

/// What is for the command, although it comes to us.
struct Signals {
    interrupt: Listener,
    terminate: Listener,
    hangup: Listener,
    /// Not for the command: if we stopped, it would go on while its lock expires. So we do not.
    _stop: Listener,
}

impl Signals {
    fn listen() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|error| unavailable("listen to signals", &error));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
            _stop: listen(SignalKind::from_raw(Signal::TSTP.as_raw()))?,
        })
    }
}

fn unavailable(what: &str, error: &io::Error) -> Failure {
    Failure::new(Kind::Unavailable, format!("cannot {what}: {error}"))
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// What others see: what was said, or the name of the program. Its arguments may hold secrets.
fn purpose(args: &Args) -> String {
    let program = args.command.first().map(Path::new).and_then(Path::file_name).map(OsStr::to_string_lossy);
    match (args.taking.purpose.as_str(), program) {
        ("", Some(program)) if program.len() <= MAX_PURPOSE => program.into_owned(),
        (said, _) => said.to_owned(),
    }
}
