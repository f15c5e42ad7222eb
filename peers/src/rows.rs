//! The rows: each measures one slice with one peer. Slices of different peers alternate (`rounds.rs`).
//!
//! Invariant: connecting, warm-up and cleanup are never part of a figure.

use std::time::Duration;

use clap::ValueEnum;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::clients::{ClientCommand, ClientEvent, ClientGroup, MeasuredSpan, RunResult};
use crate::clock::{now_ns, sleep_until_ns};
use crate::error::BenchError;
use crate::registry::Peer;
use crate::servers::Servers;

/// In the rows pairs and contended.
pub(crate) const CLIENTS: usize = 50;
/// In the row handover.
pub(crate) const WAITERS: [usize; 2] = [10, 1_000];
/// In the row pairs.
const LOCKS_PER_CLIENT: usize = 10;
const WARM_UP: Duration = Duration::from_millis(300);
/// The previous holder queues again in the meantime.
const HANDOVER_INTERVAL: Duration = Duration::from_millis(5);
/// Handovers before the measurement, until every waiter has tried at least once.
const WARM_UP_HANDOVERS: usize = 5;
/// Without an event for this long, the slice fails.
const EVENT_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RowName {
    Pairs,
    Contended,
    Handover,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Row {
    Pairs,
    Contended,
    Handover { waiters: usize },
}

#[derive(Debug, Clone)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
}

fn figure(name: &'static str, value: f64, unit: &'static str) -> Figure {
    Figure { name, value, unit }
}

impl Row {
    pub(crate) fn all(name: RowName) -> Vec<Self> {
        match name {
            RowName::Pairs => vec![Self::Pairs],
            RowName::Contended => vec![Self::Contended],
            RowName::Handover => WAITERS.map(|waiters| Self::Handover { waiters }).to_vec(),
        }
    }

    pub(crate) fn name(self) -> String {
        match self {
            Self::Pairs => "pairs".to_owned(),
            Self::Contended => "contended".to_owned(),
            Self::Handover { waiters } => format!("handover, {waiters} waiters"),
        }
    }

    pub(crate) fn description(self) -> String {
        match self {
            Self::Pairs => format!(
                "{CLIENTS} clients, each acquires and releases {LOCKS_PER_CLIENT} locks of its own in turn; p50 and p99 of \
                 the pair; server: its CPU time per pair"
            ),
            Self::Contended => format!(
                "{CLIENTS} clients permanently acquire one lock and release it immediately; most and least: grants of \
                 the most and of the least served client"
            ),
            Self::Handover { waiters } => format!(
                "release → next waiter holds: from the start of the release until one of {waiters} waiters has the lock"
            ),
        }
    }

    pub(crate) async fn measure_slice(
        self,
        peer: &Peer,
        servers: &Servers,
        seconds: f64,
        round: usize,
    ) -> Result<Vec<Figure>, BenchError> {
        let name = format!("bench:{}:{round}", peer.name);
        match self {
            Self::Pairs => pairs(peer, servers, seconds, &name).await,
            Self::Contended => contended(peer, servers, seconds, &name).await,
            Self::Handover { waiters } => handover(peer, seconds, waiters, format!("{name}:{waiters}")).await,
        }
    }
}

async fn pairs(peer: &Peer, servers: &Servers, seconds: f64, name: &str) -> Result<Vec<Figure>, BenchError> {
    let locks = |client| (0..LOCKS_PER_CLIENT).map(|lock| format!("{name}:{client}:{lock}")).collect();
    let (runs, server) = run(peer, servers, seconds, MeasuredSpan::Pair, locks).await?;
    let mut samples: Vec<u64> = runs.into_iter().flat_map(|run| run.samples_ns).collect();
    let count = float(samples.len());
    Ok(vec![
        figure("pairs", count / seconds, "/s"),
        figure("p50", quantile_ms(&mut samples, 50), "ms"),
        figure("p99", quantile_ms(&mut samples, 99), "ms"),
        figure("server", server.as_secs_f64() * 1e6 / count.max(1.0), "µs"),
    ])
}

async fn contended(
    peer: &Peer,
    servers: &Servers,
    seconds: f64,
    name: &str,
) -> Result<Vec<Figure>, BenchError> {
    let locks = |_| vec![format!("{name}:hot")];
    let (runs, server) = run(peer, servers, seconds, MeasuredSpan::Wait, locks).await?;
    let served = || runs.iter().map(|run| run.samples_ns.len());
    let (most, least) = (float(served().max().unwrap_or(0)), float(served().min().unwrap_or(0)));
    let grants = float(served().sum());
    let longest = runs.iter().map(|run| run.longest_ns).max().unwrap_or(0);
    Ok(vec![
        figure("grants", grants / seconds, "/s"),
        figure("most", most, ""),
        figure("least", least, ""),
        figure("most / least", most / least, "×"),
        figure("longest wait", longest as f64 / 1e6, "ms"),
        figure("server", server.as_secs_f64() * 1e6 / grants.max(1.0), "µs"),
    ])
}

/// Runs all clients. Returns their results and the CPU time that the server used.
async fn run(
    peer: &Peer,
    servers: &Servers,
    seconds: f64,
    span: MeasuredSpan,
    locks: impl Fn(usize) -> Vec<String>,
) -> Result<(Vec<RunResult>, Duration), BenchError> {
    let mut clients = peer.connect(CLIENTS).await?;
    let from_ns = now_ns() + nanoseconds(WARM_UP);
    let until_ns = from_ns + nanoseconds(Duration::from_secs_f64(seconds));
    for client in 0..clients.size() {
        clients.send(client, ClientCommand::Run { locks: locks(client), span, from_ns, until_ns })?;
    }
    sleep_until_ns(from_ns).await;
    let before = servers.cpu_time(peer.server)?;
    sleep_until_ns(until_ns).await;
    let used = servers.cpu_time(peer.server)?.saturating_sub(before);
    let results = timeout(EVENT_TIMEOUT, clients.run_results()).await;
    let timed_out =
        |_| BenchError::new(format!("some clients still wait after {} s", EVENT_TIMEOUT.as_secs()));
    Ok((results.map_err(timed_out)??, used))
}

async fn handover(
    peer: &Peer,
    seconds: f64,
    waiters: usize,
    lock: String,
) -> Result<Vec<Figure>, BenchError> {
    // One more than the waiters: the holder.
    let mut clients = peer.connect(waiters + 1).await?;
    for client in 0..clients.size() {
        clients.send(client, ClientCommand::Queue { lock: lock.clone() })?;
    }
    let (mut acquiring, mut holder) = (0, None);
    while acquiring < clients.size() || holder.is_none() {
        match next_event(&mut clients).await? {
            ClientEvent::Acquiring => acquiring += 1,
            ClientEvent::Granted { client, .. } => holder = Some(client),
            _ => {}
        }
    }
    let mut holder = holder.unwrap_or_default();
    let mut pace = interval(HANDOVER_INTERVAL);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut samples = Vec::new();
    let mut end = Instant::now();
    let mut done = 0;
    while done <= WARM_UP_HANDOVERS || Instant::now() < end {
        pace.tick().await;
        if done == WARM_UP_HANDOVERS {
            end = Instant::now() + Duration::from_secs_f64(seconds);
        }
        clients.send(holder, ClientCommand::Release)?;
        let (mut released, mut granted) = (None, None);
        while released.is_none() || granted.is_none() {
            match next_event(&mut clients).await? {
                ClientEvent::Released { at_ns } => released = Some(at_ns),
                ClientEvent::Granted { client, at_ns } => granted = Some((client, at_ns)),
                _ => {}
            }
        }
        let (Some(sent_ns), Some((client, granted_ns))) = (released, granted) else { break };
        clients.send(holder, ClientCommand::Queue { lock: lock.clone() })?;
        holder = client;
        done += 1;
        if done > WARM_UP_HANDOVERS {
            samples.push(granted_ns.saturating_sub(sent_ns));
        }
    }
    drain_waiters(&mut clients, holder).await?;
    Ok(vec![
        figure("p50", quantile_ms(&mut samples, 50), "ms"),
        figure("p99", quantile_ms(&mut samples, 99), "ms"),
        figure("handovers", float(samples.len()), ""),
    ])
}

/// Lets every waiter acquire the lock once: some servers cannot handle a thousand waiters that disconnect at the same time.
async fn drain_waiters(clients: &mut ClientGroup, holder: usize) -> Result<(), BenchError> {
    clients.send(holder, ClientCommand::Release)?;
    let mut released = 0;
    while released < clients.size() {
        match next_event(clients).await? {
            ClientEvent::Granted { client, .. } => clients.send(client, ClientCommand::Release)?,
            ClientEvent::Released { .. } => released += 1,
            _ => {}
        }
    }
    Ok(())
}

async fn next_event(clients: &mut ClientGroup) -> Result<ClientEvent, BenchError> {
    let event = timeout(EVENT_TIMEOUT, clients.next_event()).await;
    event.map_err(|_| BenchError::new(format!("no event for {} s", EVENT_TIMEOUT.as_secs())))?
}

/// The smallest sample that at least this percentage of the samples does not exceed.
fn quantile_ms(samples: &mut [u64], percent: usize) -> f64 {
    samples.sort_unstable();
    let rank = (samples.len() * percent).div_ceil(100).saturating_sub(1);
    samples.get(rank).map_or(f64::NAN, |ns| *ns as f64 / 1e6)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn float(number: usize) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::quantile_ms;

    #[test]
    fn quantiles_are_exact_samples() {
        let mut samples: Vec<u64> = (1..=200).rev().map(|ms| ms * 1_000_000).collect();
        assert_eq!(quantile_ms(&mut samples, 50), 100.0);
        assert_eq!(quantile_ms(&mut samples, 99), 198.0);
        assert_eq!(quantile_ms(&mut [7_000_000], 99), 7.0);
        assert!(quantile_ms(&mut [], 50).is_nan());
    }
}
