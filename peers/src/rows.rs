//! What is measured: one slice of one row with one contestant. Slices of different contestants take turns (`rounds.rs`).
//!
//! Invariant: connecting, warming up and cleaning up are never part of a figure.

use std::time::Duration;

use clap::ValueEnum;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::clock::{now_ns, reach};
use crate::contestants::Contestant;
use crate::crowd::{Crowd, Event, Order, Run, Timed};
use crate::failure::Failure;
use crate::servers::Servers;

/// Clients of the rows pairs and contended.
pub(crate) const CLIENTS: usize = 50;
/// Waiters of the row handover: few, and many.
pub(crate) const WAITERS: [usize; 2] = [10, 1_000];
/// Locks that each client takes in turns in the row pairs.
const LOCKS: usize = 10;
/// Before a window opens: the first moments of a connection are not its life.
const WARM_UP: Duration = Duration::from_millis(300);
/// Between two handovers, in which the former holder queues again.
const PAUSE: Duration = Duration::from_millis(5);
/// Handovers before those that count: by then all waiters have asked at least once.
const UNCOUNTED: usize = 5;
/// What takes longer than this beyond its time will not come any more.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RowName {
    Pairs,
    Contended,
    Handover,
}

/// A row, with its size where it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Row {
    Pairs,
    Contended,
    Handover { waiters: usize },
}

/// A figure of one slice.
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

    pub(crate) fn what(self) -> String {
        match self {
            Self::Pairs => format!(
                "{CLIENTS} clients, each taking and giving back {LOCKS} locks of its own in turns; p50 and p99 of the \
                 pair; server: its processor time by pair"
            ),
            Self::Contended => format!(
                "{CLIENTS} clients want one lock all the time and give it back at once; most and least: grants of \
                 the most and of the least served client"
            ),
            Self::Handover { waiters } => format!(
                "release → next waiter holds: from beginning the release until one of {waiters} waiters has the lock"
            ),
        }
    }

    /// One slice.
    pub(crate) async fn slice(
        self,
        contestant: &Contestant,
        servers: &Servers,
        seconds: f64,
        round: usize,
    ) -> Result<Vec<Figure>, Failure> {
        let name = format!("bench:{}:{round}", contestant.name);
        match self {
            Self::Pairs => pairs(contestant, servers, seconds, &name).await,
            Self::Contended => contended(contestant, servers, seconds, &name).await,
            Self::Handover { waiters } => {
                handover(contestant, seconds, waiters, format!("{name}:{waiters}")).await
            }
        }
    }
}

async fn pairs(
    contestant: &Contestant,
    servers: &Servers,
    seconds: f64,
    name: &str,
) -> Result<Vec<Figure>, Failure> {
    let locks = |client| (0..LOCKS).map(|lock| format!("{name}:{client}:{lock}")).collect();
    let (runs, server) = run(contestant, servers, seconds, Timed::Pair, locks).await?;
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
    contestant: &Contestant,
    servers: &Servers,
    seconds: f64,
    name: &str,
) -> Result<Vec<Figure>, Failure> {
    let locks = |_| vec![format!("{name}:hot")];
    let (runs, server) = run(contestant, servers, seconds, Timed::Wait, locks).await?;
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

/// Everybody runs for so long; also the processor time that the server used meanwhile.
async fn run(
    contestant: &Contestant,
    servers: &Servers,
    seconds: f64,
    timed: Timed,
    locks: impl Fn(usize) -> Vec<String>,
) -> Result<(Vec<Run>, Duration), Failure> {
    let mut crowd = contestant.crowd(CLIENTS).await?;
    let from_ns = now_ns() + nanoseconds(WARM_UP);
    let until_ns = from_ns + nanoseconds(Duration::from_secs_f64(seconds));
    for client in 0..crowd.size() {
        crowd.order(client, Order::Run { locks: locks(client), timed, from_ns, until_ns })?;
    }
    reach(from_ns).await;
    let before = servers.cpu(contestant.server)?;
    reach(until_ns).await;
    let used = servers.cpu(contestant.server)?.saturating_sub(before);
    let runs = timeout(PATIENCE, crowd.runs()).await;
    Ok((runs.map_err(|_| Failure::new("some clients waited on without end"))??, used))
}

async fn handover(
    contestant: &Contestant,
    seconds: f64,
    waiters: usize,
    lock: String,
) -> Result<Vec<Figure>, Failure> {
    // One more than wait: somebody holds it.
    let mut crowd = contestant.crowd(waiters + 1).await?;
    for client in 0..crowd.size() {
        crowd.order(client, Order::Queue { lock: lock.clone() })?;
    }
    let (mut asking, mut holder) = (0, None);
    while asking < crowd.size() || holder.is_none() {
        match next(&mut crowd).await? {
            Event::Asks => asking += 1,
            Event::Granted { client, .. } => holder = Some(client),
            _ => {}
        }
    }
    let mut holder = holder.unwrap_or_default();
    let mut pace = interval(PAUSE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut samples = Vec::new();
    let mut ends = Instant::now();
    let mut done = 0;
    while done <= UNCOUNTED || Instant::now() < ends {
        pace.tick().await;
        if done == UNCOUNTED {
            ends = Instant::now() + Duration::from_secs_f64(seconds);
        }
        crowd.order(holder, Order::Release)?;
        let (mut released, mut granted) = (None, None);
        while released.is_none() || granted.is_none() {
            match next(&mut crowd).await? {
                Event::Released { at_ns } => released = Some(at_ns),
                Event::Granted { client, at_ns } => granted = Some((client, at_ns)),
                _ => {}
            }
        }
        let (Some(sent_ns), Some((client, granted_ns))) = (released, granted) else { break };
        crowd.order(holder, Order::Queue { lock: lock.clone() })?;
        holder = client;
        done += 1;
        if done > UNCOUNTED {
            samples.push(granted_ns.saturating_sub(sent_ns));
        }
    }
    let_everybody_through(&mut crowd, holder).await?;
    Ok(vec![
        figure("p50", quantile_ms(&mut samples, 50), "ms"),
        figure("p99", quantile_ms(&mut samples, 99), "ms"),
        figure("handovers", float(samples.len()), ""),
    ])
}

/// Nobody is left waiting: a thousand waiters that hang up at once are more than some servers take.
async fn let_everybody_through(crowd: &mut Crowd, holder: usize) -> Result<(), Failure> {
    crowd.order(holder, Order::Release)?;
    let mut released = 0;
    while released < crowd.size() {
        match next(crowd).await? {
            Event::Granted { client, .. } => crowd.order(client, Order::Release)?,
            Event::Released { .. } => released += 1,
            _ => {}
        }
    }
    Ok(())
}

async fn next(crowd: &mut Crowd) -> Result<Event, Failure> {
    let event = timeout(PATIENCE, crowd.next()).await;
    event.map_err(|_| Failure::new(format!("nothing happened for {} s", PATIENCE.as_secs())))?
}

/// What so many hundredths of the samples do not exceed.
fn quantile_ms(samples: &mut [u64], hundredths: usize) -> f64 {
    samples.sort_unstable();
    let rank = (samples.len() * hundredths).div_ceil(100).saturating_sub(1);
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
    fn quantiles_are_samples() {
        let mut samples: Vec<u64> = (1..=200).rev().map(|ms| ms * 1_000_000).collect();
        assert_eq!(quantile_ms(&mut samples, 50), 100.0);
        assert_eq!(quantile_ms(&mut samples, 99), 198.0);
        assert_eq!(quantile_ms(&mut [7_000_000], 99), 7.0);
        assert!(quantile_ms(&mut [], 50).is_nan());
    }
}
