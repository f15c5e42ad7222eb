//! Open-loop load: requests are scheduled at a fixed rate, whether earlier ones were answered or not, and latency counts from
//! the scheduled start. So a stall of the server counts for every request that it delays (no coordinated omission).
//!
//! The timers of the runtime have a resolution of milliseconds, so the schedule uses a timerfd.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::Instant;

use super::http_client::Connection;
use super::samples::Samples;
use crate::error::{BenchError, ErrorKind};

/// What a connection does at each scheduled start.
#[derive(Debug, Clone)]
pub(super) enum Operation {
    /// Acquire a free lock and release it.
    Lock,
    /// The same number of requests without locks.
    Health,
    /// Approve the requests at these paths, with these bodies, one per slot.
    Approve(Arc<[(String, Bytes)]>),
}

#[derive(Debug, Default)]
pub(super) struct LoadResult {
    pub(super) samples: Samples,
    pub(super) elapsed: Duration,
}

/// A slot of the schedule: its number and its start.
type Slot = (u64, Instant);

/// Offers `rate` operations per second for `seconds`, over all connections in turn.
pub(super) async fn offer(
    connections: &mut Vec<Connection>,
    operation: Operation,
    rate: u32,
    seconds: f64,
) -> Result<LoadResult, BenchError> {
    let count = u64::from(rate) * (seconds * 1_000.0) as u64 / 1_000;
    let (mut senders, mut workers) = (Vec::new(), Vec::new());
    for (number, connection) in std::mem::take(connections).into_iter().enumerate() {
        let (sender, receiver) = unbounded_channel();
        senders.push(sender);
        workers.push(tokio::spawn(work(number, connection, operation.clone(), receiver)));
    }
    let interval = Duration::from_secs(1) / rate.max(1);
    let mut ticker = Ticker::start(interval).map_err(|error| failed(&error))?;
    let began = Instant::now();
    let mut scheduled: u64 = 0;
    while scheduled < count {
        let due = (scheduled + ticker.next().await.map_err(|error| failed(&error))?).min(count);
        for slot in scheduled..due {
            let start = began + interval * u32::try_from(slot + 1).unwrap_or(u32::MAX);
            let worker = usize::try_from(slot).unwrap_or_default() % senders.len().max(1);
            if let Some(sender) = senders.get(worker) {
                // If the worker has failed, its error is returned below.
                let _ = sender.send((slot, start));
            }
        }
        scheduled = due;
    }
    drop(senders);
    let mut result = LoadResult::default();
    for worker in workers {
        let (connection, samples) = worker.await??;
        connections.push(connection);
        result.samples.append(samples);
    }
    result.elapsed = began.elapsed();
    Ok(result)
}

/// Serves one connection. The first request of a slot is measured, the second is only load.
async fn work(
    number: usize,
    mut connection: Connection,
    operation: Operation,
    mut slots: UnboundedReceiver<Slot>,
) -> Result<(Connection, Samples), BenchError> {
    let mut samples = Samples::default();
    while let Some((slot, start)) = slots.recv().await {
        match &operation {
            Operation::Lock => {
                let lock = format!("resource:bench:{}", slot % 10_000);
                let acquire = format!(r#"{{"agent_id":"bench-{number}","locks":[{{"lock":"{lock}"}}]}}"#);
                let granted = connection.post("/api/v1/locks/acquire", acquire).await?;
                samples.add(start.elapsed());
                let token = granted.expect(200)?.find_fencing_token()?;
                let release = format!(
                    r#"{{"agent_id":"bench-{number}","locks":[{{"lock":"{lock}","fencing_token":{token}}}]}}"#
                );
                connection.post("/api/v1/locks/release", release).await?.expect(200)?;
            }
            Operation::Health => {
                let response = connection.get("/healthz").await?;
                samples.add(start.elapsed());
                response.expect(200)?;
                connection.get("/healthz").await?.expect(200)?;
            }
            Operation::Approve(requests) => {
                let request = usize::try_from(slot).ok().and_then(|slot| requests.get(slot));
                let (path, body) = request.ok_or_else(|| failed(&"there are fewer approvals than slots"))?;
                let response = connection.post(path, body.clone()).await?;
                samples.add(start.elapsed());
                response.expect(200)?;
            }
        }
    }
    Ok((connection, samples))
}

/// A periodic timer that counts missed ticks.
struct Ticker(AsyncFd<OwnedFd>);

impl Ticker {
    fn start(interval: Duration) -> std::io::Result<Self> {
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        let interval = Timespec { tv_sec: 0, tv_nsec: interval.subsec_nanos().into() };
        let schedule = Itimerspec { it_interval: interval, it_value: interval };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &schedule)?;
        #[expect(deprecated, reason = "the replacement is unsafe; an OwnedFd fulfils its contract")]
        let timer = AsyncFd::new(timer)?;
        Ok(Self(timer))
    }

    /// Waits for the next tick; returns the number of ticks since the last call.
    async fn next(&mut self) -> std::io::Result<u64> {
        loop {
            let mut ready = self.0.readable().await?;
            let mut count = [0; 8];
            let read = ready.try_io(|timer| Ok(rustix::io::read(timer.get_ref(), &mut count)?));
            if let Ok(read) = read {
                read?;
                return Ok(u64::from_ne_bytes(count));
            }
        }
    }
}

fn failed(error: &dyn std::fmt::Display) -> BenchError {
    BenchError::new(ErrorKind::Unavailable, format!("cannot generate load: {error}"))
}
