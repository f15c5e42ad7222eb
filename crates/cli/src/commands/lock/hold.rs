//! `ade lock hold LOCK… -- COMMAND`: the flock(1) of a fleet. The command runs while the locks are held. It is stopped
//! when they are lost, or when `ade` itself is killed ([`ade_executors::watchdog`]).

use std::ffi::OsStr;
use std::io::{self, IsTerminal as _};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use ade_client::wire::Lock;
use ade_client::{Client, LockGuard, LockRequest, LostReason};
use ade_executors::watchdog::{Watchdog, WatchdogConfig, WatchdogProgram};
use clap::Args as ClapArgs;
use owo_colors::OwoColorize;
use rustix::process::{Signal, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use tokio::process::{Child, Command};
use tokio::time::{Instant, Interval, interval_at, timeout};
use uuid::Uuid;

use super::{LockArgs, holder_name, named};
use crate::failure::{Failure, FailureKind, Result};
use crate::output::time::{now, until};
use crate::output::{self, safe};
use crate::signals::Signals;

/// Longest purpose that a server accepts, in bytes.
const MAX_PURPOSE_LEN: usize = 256;
/// Default time between SIGTERM and SIGKILL for a command whose lock is lost.
const DEFAULT_GRACE: Duration = Duration::from_secs(1);
/// Largest reserve for scheduling delays, on top of the grace.
const MAX_MARGIN: Duration = Duration::from_secs(1);
/// The watchdog acts this much later than this process does, so that it acts only if this process cannot.
const WATCHDOG_DELAY: Duration = Duration::from_millis(50);
/// Without `--wait`: ten years.
const NO_TIMEOUT: Duration = Duration::from_secs(10 * 365 * 86_400);
/// How often the state of awaited locks is read while waiting.
const WAIT_NOTICE_INTERVAL: Duration = Duration::from_secs(1);
/// From then on, the user reads that the server does not answer.
const WAIT_NOTICE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    lock: LockArgs,
    /// Seconds to wait for them [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = super::parse_seconds)]
    wait: Option<Duration>,
    /// Seconds between SIGTERM and SIGKILL for the command, once a lock is lost (default: 1, or a quarter of --ttl)
    #[arg(long, value_name = "SECONDS", value_parser = super::parse_seconds)]
    grace: Option<Duration>,
    /// Print nothing while waiting
    #[arg(long, short)]
    quiet: bool,
    /// Command to run, with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(super) async fn run(client: &Client, args: Args) -> Result<ExitCode> {
    let ttl = args.lock.ttl;
    let grace = args.grace.unwrap_or_else(|| (ttl / 4).min(DEFAULT_GRACE));
    // On a busy machine this process may be scheduled late.
    let margin = (ttl / 10).clamp(WATCHDOG_DELAY * 2, MAX_MARGIN);
    let stop_within = (grace + margin).min(ttl / 2).max(grace + WATCHDOG_DELAY * 2);
    if stop_within > ttl / 2 {
        let hint =
            "the command must be stopped before the lease expires; use a longer --ttl or a shorter --grace";
        return Err(Failure::invalid("--grace must be shorter than half of --ttl").hint(hint));
    }
    let holder_id = Uuid::new_v4().to_string();
    let request = LockRequest {
        agent_id: named(args.lock.agent.clone()),
        holder_id: Some(holder_id.clone()),
        locks: args.lock.locks.iter().map(|lock| (lock.clone(), args.lock.mode())).collect(),
        ttl,
        wait: args.wait.unwrap_or(NO_TIMEOUT),
        stop_grace: stop_within,
        purpose: purpose(&args),
        priority: args.lock.priority,
    };
    let guard = {
        let acquiring = LockGuard::acquire(client, &request);
        tokio::pin!(acquiring);
        let mut notices = WaitNotices::new(args.quiet);
        loop {
            tokio::select! {
                guard = &mut acquiring => break guard?,
                () = notices.update(client, &args.lock.locks, &holder_id) => {}
            }
        }
    };
    let command = args.command.split_first();
    let (program, arguments) = command.ok_or_else(|| Failure::invalid("no command given"))?;
    let mut signals = Signals::listen(&[Signal::INT, Signal::TERM, Signal::HUP])?;
    // SIGTSTP is ignored: if this process were suspended, the command would run on while its lock expires.
    let _suspend = Signals::listen(&[Signal::TSTP])?;
    let mut watchdog = match start_watchdog(grace, guard.remaining_validity()).await {
        Ok(watchdog) => watchdog,
        Err(error) => {
            guard.release().await?;
            return Err(Failure::cannot("start the watchdog", error));
        }
    };
    let tokens: Vec<String> = guard.grants().iter().map(|grant| grant.fencing_token.to_string()).collect();
    let mut command = Command::new(program);
    command.args(arguments).env("ADE_FENCING_TOKENS", tokens.join(" "));
    watchdog.prepare(&mut command);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            watchdog.dismiss().await;
            guard.release().await?;
            return Err(Failure::invalid(format!("cannot run {program}: {error}"))
                .hint("write the command and its arguments after --"));
        }
    };
    watchdog.watch(&child).await;
    match supervise(&guard, &mut child, &mut watchdog, &mut signals).await? {
        Ok(status) => {
            watchdog.dismiss().await;
            release(guard).await?;
            Ok(ExitCode::from(exit_code(status)))
        }
        Err(lost) => {
            watchdog.send_signal(Signal::TERM).await;
            // Whatever is left of it afterwards is killed.
            let _ = timeout(grace, child.wait()).await;
            watchdog.kill().await;
            // An error means that it has ended already.
            let _ = child.start_kill();
            child.wait().await.map_err(|error| Failure::cannot("wait for the command", error))?;
            let message = format!("the lock was lost, so {program} was stopped: {lost}");
            Err(Failure::new(FailureKind::LockLost, message).hint("see who holds it now with ade lock show"))
        }
    }
}

/// Starts the watchdog. At a terminal its process group, which the command joins, becomes the foreground group; in a pipeline it
/// does not, because the other members would lose the terminal.
async fn start_watchdog(grace: Duration, trust: Duration) -> io::Result<Watchdog> {
    let stdin = io::stdin();
    let is_interactive = stdin.is_terminal() && io::stdout().is_terminal();
    let terminal_to = (is_interactive && tcgetpgrp(&stdin) == Ok(getpgrp())).then(getpgrp);
    let config = WatchdogConfig {
        grace,
        deadline: Some(Instant::now() + trust + WATCHDOG_DELAY),
        grace_within_deadline: false,
        return_terminal_to: terminal_to,
    };
    let watchdog = Watchdog::start(&WatchdogProgram::current_exe(), config).await?;
    if terminal_to.is_some() {
        tcsetpgrp(&stdin, watchdog.group())?;
    }
    Ok(watchdog)
}

/// Releases the locks. A lock that turns out to be lost is a failure: the command ran in part without it. An unavailable server
/// is not: the locks expire.
async fn release(guard: LockGuard) -> Result {
    match guard.release().await {
        Ok(()) => Ok(()),
        Err(error) if error.code() == Some("LOCK_LOST") => {
            let message = format!("the command ended, but its lock was lost before: {error}");
            Err(Failure::new(FailureKind::LockLost, message))
        }
        Err(error) => {
            output::note(&format!("cannot release the locks, they expire with their lease: {error}"));
            Ok(())
        }
    }
}

/// Waits for the command and forwards signals to it, until the lock is lost.
async fn supervise(
    guard: &LockGuard,
    child: &mut Child,
    watchdog: &mut Watchdog,
    signals: &mut Signals,
) -> Result<Result<ExitStatus, LostReason>> {
    let mut trust = guard.renewals();
    loop {
        tokio::select! {
            status = child.wait() => {
                let status = status.map_err(|error| Failure::cannot("wait for the command", error))?;
                // If this process was suspended beyond the lease, the watchdog has stopped the command.
                return Ok(if guard.is_valid() { Ok(status) } else { Err(LostReason::Unreachable) });
            }
            lost = guard.lost() => return Ok(Err(lost)),
            left = trust.renewed() => watchdog.extend_deadline(Instant::now() + left + WATCHDOG_DELAY).await,
            signal = signals.next() => watchdog.send_signal(signal).await,
        }
    }
}

/// The exit code that a shell reports: 128 plus the number of the signal that ended the command.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// The purpose that others see; by default the name of the program, without its arguments, which may hold secrets.
fn purpose(args: &Args) -> String {
    let program = args.command.first().map(Path::new).and_then(Path::file_name).map(OsStr::to_string_lossy);
    match (args.lock.purpose.as_str(), program) {
        ("", Some(program)) if program.len() <= MAX_PURPOSE_LEN => program.into_owned(),
        (purpose, _) => purpose.to_owned(),
    }
}

/// Prints who holds the awaited locks, and again when that changes.
struct WaitNotices {
    quiet: bool,
    interval: Interval,
    printed: Vec<NoticeKey>,
    is_unavailable: bool,
}

/// Lock, fencing token of its holder and own position: a notice is printed once for each combination.
type NoticeKey = (String, u64, u64);

impl WaitNotices {
    fn new(quiet: bool) -> Self {
        let interval = interval_at(Instant::now() + WAIT_NOTICE_INTERVAL / 4, WAIT_NOTICE_INTERVAL);
        Self { quiet, interval, printed: Vec::new(), is_unavailable: false }
    }

    async fn update(&mut self, client: &Client, locks: &[String], holder_id: &str) {
        self.interval.tick().await;
        if self.quiet {
            return;
        }
        for lock in locks {
            let Ok(read) = timeout(WAIT_NOTICE_TIMEOUT, client.lock(lock)).await else {
                self.note_trouble(&format!("{} does not answer", safe(client.url())));
                continue;
            };
            let lock = match read {
                Ok(lock) => lock,
                Err(error) => {
                    self.note_trouble(&safe(&error.to_string()));
                    continue;
                }
            };
            if std::mem::take(&mut self.is_unavailable) {
                // Earlier notices may be outdated.
                self.printed.clear();
            }
            if let Some((key, text)) = notice(&lock, holder_id)
                && !self.printed.contains(&key)
            {
                self.printed.push(key);
                print_notice(&text);
            }
        }
    }

    /// The wait goes on; the user is notified once.
    fn note_trouble(&mut self, what: &str) {
        if !std::mem::replace(&mut self.is_unavailable, true) {
            print_notice(&format!("{what}; retrying"));
        }
    }
}

fn print_notice(text: &str) {
    output::notice("waiting:".yellow().bold(), text);
}

fn notice(lock: &Lock, holder_id: &str) -> Option<(NoticeKey, String)> {
    let position = lock.queue.iter().find(|waiter| waiter.holder_id == holder_id)?.position;
    let holder = lock.holders.first()?;
    let name = holder_name(&holder.agent_id, &holder.holder_id);
    let more = match lock.holders.len() {
        1 => String::new(),
        holders => format!(" and {} more", holders - 1),
    };
    let purpose = match holder.purpose.as_str() {
        "" => String::new(),
        purpose => format!(" for \"{}\"", safe(purpose)),
    };
    let expires = until(holder.expires_at, now());
    let text = format!(
        "{} is held by {name}{more}{purpose}, expires in {expires} unless renewed; position {position} in the queue",
        safe(&lock.lock)
    );
    Some(((lock.lock.clone(), holder.fencing_token, position), text))
}
