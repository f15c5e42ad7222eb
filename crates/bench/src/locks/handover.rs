//! Time from a release until the next waiter holds the lock, with a short and with a long queue.

use std::time::Duration;

use ade_client::wire::{Lock, Page};
use indicatif::ProgressBar;
use serde_json::json;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Sizes;
use crate::cpu::{CpuCost, ONE_THREAD};
use crate::error::{BenchError, ErrorKind};
use crate::http_client::Connection;
use crate::report::{Figure, Row};
use crate::samples::{Latencies, Samples};
use crate::server::ServerUnderTest;

/// The previous holder queues again in the meantime.
const HANDOVER_INTERVAL: Duration = Duration::from_millis(5);
/// A long queue may be slower by this factor: two runs with the same queue differ as much.
const MAX_SLOWDOWN: f64 = 1.5;

struct Granted {
    waiter: usize,
    token: u64,
    at: Instant,
}

pub(super) async fn measure(
    server: &ServerUnderTest,
    sizes: &Sizes,
    bar: &ProgressBar,
) -> Result<Row, BenchError> {
    let Sizes { handovers, short_queue, long_queue, .. } = *sizes;
    bar.set_length(2 * handovers as u64);
    let (short, short_cpu) = handover(server, short_queue, handovers, bar).await?;
    let (long, long_cpu) = handover(server, long_queue, handovers, bar).await?;
    let (short_name, long_name) = (format!("{short_queue} waiters"), format!("{long_queue} waiters"));
    Ok(Row {
        row: "handover",
        what: format!(
            "release → next waiter holds: from sending the release until the next of {short_queue} or {long_queue} long polls has its response"
        ),
        figures: vec![
            Figure::plain(format!("p50, {short_name}"), short.p50_ms, "ms"),
            Figure::below(format!("p99, {short_name}"), short.p99_ms, "ms", 5.0),
            Figure::plain(format!("p50, {long_name}"), long.p50_ms, "ms")
                .relative_to(short.p50_ms, &short_name),
            Figure::below(format!("p99, {long_name}"), long.p99_ms, "ms", 5.0)
                .relative_to(short.p99_ms, &short_name),
            Figure::below("same (p50)", long.p50_ms / short.p50_ms, "×", MAX_SLOWDOWN),
        ],
        cpu: vec![short_cpu, long_cpu],
        details: json!({ "short_queue": short_queue, "short": short, "long_queue": long_queue, "long": long }),
    })
}

/// Hands one lock over repeatedly, with a constant number of waiters.
async fn handover(
    server: &ServerUnderTest,
    waiting: usize,
    count: usize,
    bar: &ProgressBar,
) -> Result<(Latencies, CpuCost), BenchError> {
    let target = &server.target;
    let lock = format!("resource:bench-queue-{waiting}:hot");
    let (granted, mut grants) = unbounded_channel();
    let mut queue_senders = Vec::new();
    // Dropped at the end: all waiters disconnect, so that the next queue starts empty.
    let mut waiters = JoinSet::new();
    // One more than the waiters: the holder. Each sends its request before the next connects: a server closes connections that
    // keep others of the same address waiting before they are authenticated.
    for waiter in 0..=waiting {
        let (sender, receiver) = unbounded_channel();
        let connection = target.connect().await?;
        waiters.spawn(wait(waiter, connection, lock.clone(), receiver, granted.clone()));
        queue(&sender)?;
        queue_senders.push(sender);
    }
    let mut control = target.connect().await?;
    let mut pace = interval(HANDOVER_INTERVAL);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut current = next(&mut grants).await?;
    while queue_length(&mut control, waiting).await? < waiting {
        pace.tick().await;
        // After a failure the queue would never reach its length.
        if let Ok(Err(failure)) = grants.try_recv() {
            return Err(failure);
        }
    }
    let mut samples = Samples::default();
    let meter = server.cpu_meter();
    let before = meter.read().await?;
    for _ in 0..count {
        pace.tick().await;
        let Granted { waiter, token, .. } = current;
        let body = format!(
            r#"{{"agent_id":"bench","holder_id":"{lock}-{waiter}","locks":[{{"lock":"{lock}","fencing_token":{token}}}]}}"#
        );
        let sent = Instant::now();
        let (released, granted) =
            tokio::join!(control.post("/api/v1/locks/release", body), next(&mut grants));
        released?.expect(200)?;
        current = granted?;
        samples.add(current.at.duration_since(sent));
        if let Some(sender) = queue_senders.get(waiter) {
            queue(sender)?;
        }
        bar.inc(1);
    }
    let cpu = meter.read().await?.since(&before);
    Ok((samples.latencies(), cpu.per(format!("handover, {waiting} waiters"), count, ONE_THREAD)))
}

/// Waits for the lock in a long poll each time it gets a message.
async fn wait(
    waiter: usize,
    mut connection: Connection,
    lock: String,
    mut queue_requests: UnboundedReceiver<()>,
    granted: UnboundedSender<Result<Granted, BenchError>>,
) {
    while queue_requests.recv().await.is_some() {
        let body = format!(
            r#"{{"agent_id":"bench","holder_id":"{lock}-{waiter}","wait_seconds":600,"locks":[{{"lock":"{lock}"}}]}}"#
        );
        let response = connection.post("/api/v1/locks/acquire", body).await;
        let at = Instant::now();
        let token = response.and_then(|response| response.expect(200)?.find_fencing_token());
        if granted.send(token.map(|token| Granted { waiter, token, at })).is_err() {
            return;
        }
    }
}

async fn queue_length(control: &mut Connection, waiting: usize) -> Result<usize, BenchError> {
    let path = format!("/api/v1/locks?resource_type=bench-queue-{waiting}&limit=1");
    let page: Page<Lock> = control.get(&path).await?.expect(200)?.json()?;
    let length = page.items.first().map_or(0, |lock| lock.queue_length);
    Ok(usize::try_from(length).unwrap_or(usize::MAX))
}

async fn next(grants: &mut UnboundedReceiver<Result<Granted, BenchError>>) -> Result<Granted, BenchError> {
    let closed = || BenchError::new(ErrorKind::Unavailable, "all waiting connections are closed");
    grants.recv().await.unwrap_or_else(|| Err(closed()))
}

fn queue(sender: &UnboundedSender<()>) -> Result<(), BenchError> {
    sender.send(()).map_err(|_| BenchError::new(ErrorKind::Unavailable, "a waiting connection is closed"))
}
