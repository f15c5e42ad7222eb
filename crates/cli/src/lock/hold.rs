//! `ade lock hold LOCK… -- COMMAND`: the flock(1) of a fleet. The command runs while the locks are held, and is stopped
//! when they are lost.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use ade_client::wire::Lock;
use ade_client::{Client, LockGuard, LockRequest, Lost};
use clap::Args as ClapArgs;
use owo_colors::OwoColorize;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, interval_at, timeout};
use uuid::Uuid;

use super::Taking;
use super::see::{name, now, until};
use crate::failure::{Failure, Kind};
use crate::output::safe;

/// How long to wait before saying for whom one waits, and how often to look again.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// As good as for ever.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 86_400);

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    taking: Taking,
    /// Seconds to wait for them [default: for ever]
    #[arg(long, value_name = "SECONDS", value_parser = super::seconds)]
    wait: Option<Duration>,
    /// Seconds between asking a command to end and killing it, once a lock is lost
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = super::seconds)]
    grace: Duration,
    /// Say nothing about waiting
    #[arg(long, short)]
    quiet: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(super) async fn run(client: &Client, args: Args) -> Result<ExitCode, Failure> {
    let holder_id = Uuid::new_v4().to_string();
    let request = LockRequest {
        agent_id: Some(args.taking.agent()),
        holder_id: Some(holder_id.clone()),
        locks: args.taking.locks.iter().map(|lock| (lock.clone(), args.taking.mode())).collect(),
        ttl: args.taking.ttl,
        wait: args.wait.unwrap_or(FOR_EVER),
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
    let tokens: Vec<String> = guard.grants().iter().map(|grant| grant.fencing_token.to_string()).collect();
    let started = Command::new(program)
        .args(arguments)
        .env("ADE_FENCING_TOKENS", tokens.join(" "))
        .process_group(0)
        .spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) => {
            guard.release().await?;
            let failure = Failure::new(Kind::Input, format!("cannot run {program}: {error}"));
            return Err(failure.hint("the command comes after --, with its arguments"));
        }
    };
    match attend(&guard, &mut child, args.grace).await? {
        Ok(status) => {
            // If the lock was lost at the very end, the command has done its work without one.
            if let Err(error) = guard.release().await {
                return Err(Failure::new(
                    Kind::Lost,
                    format!("the command ended, but its lock was not held any more: {error}"),
                ));
            }
            Ok(ExitCode::from(code(status)))
        }
        Err(lost) => {
            let failure =
                Failure::new(Kind::Lost, format!("the lock was lost, so {program} was stopped: {lost}"));
            Err(failure.hint("ade lock show tells who holds it now"))
        }
    }
}

/// Waits for the command, passes signals on, and stops it when the lock is lost.
async fn attend(
    guard: &LockGuard,
    child: &mut Child,
    grace: Duration,
) -> Result<Result<ExitStatus, Lost>, Failure> {
    let unavailable = |what: &str, error| Failure::new(Kind::Unavailable, format!("cannot {what}: {error}"));
    let listen = |kind| signal(kind).map_err(|error| unavailable("listen to signals", error));
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    let mut hangup = listen(SignalKind::hangup())?;
    let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    let send = |signal| {
        // The group may be gone already, which is what was wanted.
        let _ = group.map(|group| kill_process_group(group, signal));
    };
    let lost = loop {
        tokio::select! {
            status = child.wait() => return status.map(Ok).map_err(|error| unavailable("wait for the command", error)),
            lost = guard.lost() => break lost,
            _ = interrupt.recv() => send(Signal::INT),
            _ = terminate.recv() => send(Signal::TERM),
            _ = hangup.recv() => send(Signal::HUP),
        }
    };
    send(Signal::TERM);
    if timeout(grace, child.wait()).await.is_err() {
        send(Signal::KILL);
        child.wait().await.map_err(|error| unavailable("wait for the command", error))?;
    }
    // What the command left behind in its group goes too.
    send(Signal::KILL);
    Ok(Err(lost))
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

fn purpose(args: &Args) -> String {
    let text =
        if args.taking.purpose.is_empty() { args.command.join(" ") } else { args.taking.purpose.clone() };
    let mut end = text.len().min(256);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().to_owned()
}

/// Says for whom one waits, and again when that changes.
struct Telling {
    quiet: bool,
    tick: tokio::time::Interval,
    said: Vec<String>,
}

impl Telling {
    fn new(quiet: bool) -> Self {
        Self { quiet, tick: interval_at(Instant::now() + LOOK_EVERY / 4, LOOK_EVERY), said: Vec::new() }
    }

    async fn look(&mut self, client: &Client, locks: &[String], holder_id: &str) {
        self.tick.tick().await;
        if self.quiet {
            return;
        }
        for lock in locks {
            // Not seeing it is no reason to stop waiting for it.
            let Ok(lock) = client.lock(lock).await else { continue };
            if let Some((key, text)) = tell(&lock, holder_id)
                && !self.said.contains(&key)
            {
                self.said.push(key);
                // If standard error is gone there is nobody to tell.
                let _ = writeln!(anstream::stderr().lock(), "{} {text}", "waiting:".yellow().bold());
            }
        }
    }
}

/// What to say about a lock that is waited for, and what would make it worth saying again.
fn tell(lock: &Lock, holder_id: &str) -> Option<(String, String)> {
    let own = lock.queue.iter().find(|waiter| waiter.holder_id == holder_id)?;
    let by = lock.holders.first()?;
    let who = name(&by.agent_id, &by.holder_id);
    let more = match lock.holders.len() {
        1 => String::new(),
        several => format!(" and {} more", several - 1),
    };
    let why = if by.purpose.is_empty() { String::new() } else { format!(" for \"{}\"", safe(&by.purpose)) };
    let expires = until(by.expires_at, now());
    let place =
        if own.position == 1 { "next in line".to_owned() } else { format!("{} in line", own.position) };
    let key = format!("{} {} {}", lock.lock, by.fencing_token, own.position);
    Some((
        key,
        format!(
            "{} is held by {who}{more}{why}, expires in {expires} unless renewed; {place}",
            safe(&lock.lock)
        ),
    ))
}
