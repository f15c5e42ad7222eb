//! From sending a release until the next waiter has its answer, with a short and with a long queue.

use std::time::Duration;

use ade_client::wire::{Lock, Page};
use indicatif::ProgressBar;
use serde_json::json;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Sizes;
use crate::error::{BenchError, ErrorKind};
use crate::link::{Link, Target};
use crate::report::{Figure, Row};
use crate::samples::{Latencies, Samples};
use crate::subject::Subject;

/// Time between two handovers, in which the former holder queues again.
const PAUSE: Duration = Duration::from_millis(5);
/// How much slower a long queue may be and still count as the same: two runs of one queue differ as much.
const SAME: f64 = 1.5;

/// A waiter got the lock.
struct Granted {
    waiter: usize,
    token: u64,
    at: Instant,
}

pub(super) async fn measure(subject: &Subject, sizes: &Sizes, bar: &ProgressBar) -> Result<Row, BenchError> {
    let Sizes { handovers, short_queue, long_queue, .. } = *sizes;
    bar.set_length(2 * handovers as u64);
    let short = handover(&subject.target, short_queue, handovers, bar).await?;
    let long = handover(&subject.target, long_queue, handovers, bar).await?;
    let (few, many) = (format!("{short_queue} waiters"), format!("{long_queue} waiters"));
    Ok(Row {
        row: "handover",
        what: format!(
            "release → next waiter holds: from sending the release until the next of {short_queue} or {long_queue} held-open requests has its answer"
        ),
        figures: vec![
            Figure::plain(format!("p50, {few}"), short.p50_ms, "ms"),
            Figure::aim(format!("p99, {few}"), short.p99_ms, "ms", 5.0),
            Figure::plain(format!("p50, {many}"), long.p50_ms, "ms").against(short.p50_ms, &few),
            Figure::aim(format!("p99, {many}"), long.p99_ms, "ms", 5.0).against(short.p99_ms, &few),
            Figure::aim("same (p50)", long.p50_ms / short.p50_ms, "×", SAME),
        ],
        details: json!({ "short_queue": short_queue, "short": short, "long_queue": long_queue, "long": long }),
    })
}

/// One lock that goes from hand to hand, with so many waiting at all times.
async fn handover(
    target: &Target,
    waiting: usize,
    count: usize,
    bar: &ProgressBar,
) -> Result<Latencies, BenchError> {
    let lock = format!("resource:bench-queue-{waiting}:hot");
    let (granted, mut grants) = unbounded_channel();
    let mut again = Vec::new();
    // Dropped at the end: all of them hang up, and the next queue begins with nobody of this one.
    let mut waiters = JoinSet::new();
    // One more than wait: somebody holds it.
    for (waiter, link) in target.links(waiting + 1).await?.into_iter().enumerate() {
        let (sender, receiver) = unbounded_channel();
        waiters.spawn(wait(waiter, link, lock.clone(), receiver, granted.clone()));
        queue(&sender)?;
        again.push(sender);
    }
    let mut control = target.link().await?;
    let mut pace = interval(PAUSE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut holds = next(&mut grants).await?;
    while queue_length(&mut control, waiting).await? < waiting {
        pace.tick().await;
        // Whoever does not wait any more would be waited for in vain.
        if let Ok(Err(failure)) = grants.try_recv() {
            return Err(failure);
        }
    }
    let mut samples = Samples::default();
    for _ in 0..count {
        pace.tick().await;
        let Granted { waiter, token, .. } = holds;
        let body = format!(
            r#"{{"agent_id":"bench","holder_id":"{lock}-{waiter}","locks":[{{"lock":"{lock}","fencing_token":{token}}}]}}"#
        );
        let sent = Instant::now();
        let (released, after) = tokio::join!(control.post("/api/v1/locks/release", body), next(&mut grants));
        released?.expect(200)?;
        holds = after?;
        samples.add(holds.at.duration_since(sent));
        if let Some(waiter) = again.get(waiter) {
            queue(waiter)?;
        }
        bar.inc(1);
    }
    Ok(samples.latencies())
}

/// One connection that waits with its answer held open, whenever it is told to.
async fn wait(
    waiter: usize,
    mut link: Link,
    lock: String,
    mut again: UnboundedReceiver<()>,
    granted: UnboundedSender<Result<Granted, BenchError>>,
) {
    while again.recv().await.is_some() {
        let body = format!(
            r#"{{"agent_id":"bench","holder_id":"{lock}-{waiter}","wait_seconds":600,"locks":[{{"lock":"{lock}"}}]}}"#
        );
        let answer = link.post("/api/v1/locks/acquire", body).await;
        let at = Instant::now();
        let token = answer.and_then(|answer| answer.expect(200)?.token());
        if granted.send(token.map(|token| Granted { waiter, token, at })).is_err() {
            return;
        }
    }
}

async fn queue_length(control: &mut Link, waiting: usize) -> Result<usize, BenchError> {
    let path = format!("/api/v1/locks?resource_type=bench-queue-{waiting}&limit=1");
    let page: Page<Lock> = control.get(&path).await?.expect(200)?.read()?;
    let length = page.items.first().map_or(0, |lock| lock.queue_length);
    Ok(usize::try_from(length).unwrap_or(usize::MAX))
}

async fn next(grants: &mut UnboundedReceiver<Result<Granted, BenchError>>) -> Result<Granted, BenchError> {
    let gone = || BenchError::new(ErrorKind::Unavailable, "the waiting connections are gone");
    grants.recv().await.unwrap_or_else(|| Err(gone()))
}

fn queue(waiter: &UnboundedSender<()>) -> Result<(), BenchError> {
    waiter.send(()).map_err(|_| BenchError::new(ErrorKind::Unavailable, "a waiting connection is gone"))
}
