//! Load by the clock: requests start when their time has come, whether earlier ones were answered or not, and their
//! latency counts from that time. A server that stalls is charged for everything that had to wait meanwhile.
//!
//! The timers of the runtime know whole milliseconds only, so the beat comes from a timer of the kernel.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::Instant;

use super::link::Link;
use super::samples::Samples;
use crate::error::{BenchError, ErrorKind};

/// What a connection does when its time has come.
#[derive(Debug, Clone)]
pub(super) enum Job {
    /// Acquire a lock that is free, and release it.
    Lock,
    /// The same number of requests, without a lock.
    Health,
    /// Approve the requests at these paths, one a turn.
    Approve(Arc<[String]>),
}

/// What came of a load.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) samples: Samples,
    pub(super) took: Duration,
}

/// A turn of a connection: its number, and when it should start.
type Turn = (u64, Instant);

/// Offers `rate` jobs a second for `seconds`, over all links in turn.
pub(super) async fn offer(
    links: &mut Vec<Link>,
    job: Job,
    rate: u32,
    seconds: f64,
) -> Result<Outcome, BenchError> {
    let count = u64::from(rate) * (seconds * 1_000.0) as u64 / 1_000;
    let (mut turns, mut workers) = (Vec::new(), Vec::new());
    for (number, link) in std::mem::take(links).into_iter().enumerate() {
        let (sender, receiver) = unbounded_channel();
        turns.push(sender);
        workers.push(tokio::spawn(work(number, link, job.clone(), receiver)));
    }
    let beat = Duration::from_secs(1) / rate.max(1);
    let mut beats = Beats::start(beat).map_err(|error| cannot(&error))?;
    let began = Instant::now();
    let mut done: u64 = 0;
    while done < count {
        let due = (done + beats.next().await.map_err(|error| cannot(&error))?).min(count);
        for turn in done..due {
            let start = began + beat * u32::try_from(turn + 1).unwrap_or(u32::MAX);
            let worker = usize::try_from(turn).unwrap_or_default() % turns.len().max(1);
            if let Some(worker) = turns.get(worker) {
                // A connection that ended early tells why below.
                let _ = worker.send((turn, start));
            }
        }
        done = due;
    }
    drop(turns);
    let mut outcome = Outcome::default();
    for worker in workers {
        let (link, samples) = worker.await.map_err(|error| cannot(&error))??;
        links.push(link);
        outcome.samples.append(samples);
    }
    outcome.took = began.elapsed();
    Ok(outcome)
}

/// One connection: the first request of a turn is measured, a second is part of the load.
async fn work(
    number: usize,
    mut link: Link,
    job: Job,
    mut turns: UnboundedReceiver<Turn>,
) -> Result<(Link, Samples), BenchError> {
    let mut samples = Samples::default();
    while let Some((turn, start)) = turns.recv().await {
        match &job {
            Job::Lock => {
                let lock = format!("resource:bench:{}", turn % 10_000);
                let ask = format!(r#"{{"agent_id":"bench-{number}","locks":[{{"lock":"{lock}"}}]}}"#);
                let granted = link.post("/api/v1/locks/acquire", ask).await?;
                samples.add(start.elapsed());
                let token = granted.expect(200)?.token()?;
                let back = format!(
                    r#"{{"agent_id":"bench-{number}","locks":[{{"lock":"{lock}","fencing_token":{token}}}]}}"#
                );
                link.post("/api/v1/locks/release", back).await?.expect(200)?;
            }
            Job::Health => {
                let answer = link.get("/healthz").await?;
                samples.add(start.elapsed());
                answer.expect(200)?;
                link.get("/healthz").await?.expect(200)?;
            }
            Job::Approve(paths) => {
                let path = usize::try_from(turn).ok().and_then(|turn| paths.get(turn));
                let path = path.ok_or_else(|| cannot(&"there are fewer requests than turns"))?;
                let answer = link.post(path, "{}").await?;
                samples.add(start.elapsed());
                answer.expect(200)?;
            }
        }
    }
    Ok((link, samples))
}

/// A timer that beats steadily, and tells how many beats were missed.
struct Beats(AsyncFd<OwnedFd>);

impl Beats {
    fn start(every: Duration) -> std::io::Result<Self> {
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        let every = Timespec { tv_sec: 0, tv_nsec: every.subsec_nanos().into() };
        let pace = Itimerspec { it_interval: every, it_value: every };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &pace)?;
        #[expect(deprecated, reason = "the other way is unsafe; an OwnedFd keeps what that one must promise")]
        let timer = AsyncFd::new(timer)?;
        Ok(Self(timer))
    }

    /// Waits for the next beat; how many there were since the last one.
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

fn cannot(error: &dyn std::fmt::Display) -> BenchError {
    BenchError::new(ErrorKind::Unavailable, format!("cannot make load: {error}"))
}
