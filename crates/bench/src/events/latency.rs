//! Events on their way to followers and to a stream, and the speed of a rebuild.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ade_client::EventTransport;
use ade_client::wire::{TaskRequest, UserRequest};
use ade_domain::{Clock, Moment};
use ade_store::SystemClock;
use ade_store::redis::projections::{EventTopic, RedisProjections};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use super::{Args, Measurement};
use crate::approvals::{Distributed, with_token_of};
use crate::cpu::ONE_THREAD;
use crate::error::{BenchError, ErrorKind};
use crate::http_client::{self, Target};
use crate::lifecycle::{Environment, Workload, author};
use crate::report::{Figure, Row};
use crate::samples::Samples;

/// The aim of the ninety-ninth percentile from commit to client.
const MAX_P99_MS: f64 = 250.0;
/// The server limits the connections of one user.
const FOLLOWERS_PER_USER: usize = 80;
/// Connections that create drafts.
const WRITERS: usize = 8;
/// How long events may take after the last one was created.
const DRAIN: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// One read of a stream.
const STREAM_WAIT: Duration = Duration::from_millis(200);

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn failed(error: impl ToString) -> BenchError {
    BenchError::new(ErrorKind::Unavailable, error.to_string())
}

pub(super) async fn rows(
    args: &Args,
    parent: &Path,
    distributed: Option<&Distributed>,
    is_selected: impl Fn(Measurement) -> bool,
) -> Result<Vec<Row>, BenchError> {
    let mut rows = Vec::new();
    let environment =
        Environment::create(&args.program, parent, distributed, 0, Workload::Noop, &args.sizes(true)).await?;
    if is_selected(Measurement::Followers) {
        rows.push(followers(args, &environment).await?);
    }
    if let Some(distributed) = distributed {
        let projections = RedisProjections::open(&distributed.redis.url).await.map_err(failed)?;
        if is_selected(Measurement::Stream) {
            rows.push(stream(args, &environment, &projections).await?);
        }
        if is_selected(Measurement::Projections) {
            rows.push(rebuild(args, &environment, &projections).await?);
        }
    }
    environment.remove().await?;
    Ok(rows)
}

/// Creates drafts at a constant rate for some time. Returns how many.
async fn create_drafts(args: &Args, environment: &Environment) -> Result<usize, BenchError> {
    let target = &environment.server.target;
    let target = with_token_of(&mut target.connect().await?, target, &author(0), false).await?;
    let end = Instant::now() + Duration::from_secs_f64(args.seconds());
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let (target, rate) = (target.clone(), f64::from(args.rate));
        writers.spawn(async move { write(&target, rate, end).await });
    }
    let mut created = 0;
    while let Some(count) = writers.join_next().await {
        created += count??;
    }
    Ok(created)
}

/// Events per second that were really written.
#[expect(clippy::cast_precision_loss, reason = "a small number")]
fn rate(created: usize, args: &Args) -> f64 {
    created as f64 / args.seconds()
}

async fn write(target: &Target, rate: f64, end: Instant) -> Result<usize, BenchError> {
    let mut connection = target.connect().await?;
    let body = TaskRequest {
        task_type: Some("measured".to_owned()),
        description: Some("an event".to_owned()),
        executor: Some("noop".to_owned()),
        ..TaskRequest::default()
    };
    let body = http_client::to_json(&body)?;
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let mut turns = interval(Duration::from_secs_f64(WRITERS as f64 / rate));
    // Later ones make up for a delay: the rate does not depend on the server.
    turns.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut created = 0;
    while Instant::now() < end {
        turns.tick().await;
        connection.post("/api/v1/tasks", body.clone()).await?.expect(201)?;
        created += 1;
    }
    Ok(created)
}

fn elapsed(clock: &SystemClock, since: Moment) -> Duration {
    Duration::from_micros(clock.now().micros().saturating_sub(since.micros()))
}

async fn followers(args: &Args, environment: &Environment) -> Result<Row, BenchError> {
    let count = args.followers();
    let mut admin = environment.server.target.connect().await?;
    let mut clients = Vec::new();
    for user in 0..count.div_ceil(FOLLOWERS_PER_USER) {
        let user_id = format!("follower-{user:03}");
        let roles = Some(["auditor".to_owned()].into());
        let user = UserRequest { user_id: user_id.clone(), roles, ..UserRequest::default() };
        admin.post("/api/v1/users", http_client::to_json(&user)?).await?.expect(201)?;
        let target = with_token_of(&mut admin, &environment.server.target, &user_id, false).await?;
        clients.push(target.client()?);
    }
    let before = environment.server.memory().await?;
    let (connected, has_ended) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicBool::new(false)));
    let mut running = JoinSet::new();
    for number in 0..count {
        let Some(client) = clients.get(number / FOLLOWERS_PER_USER) else { continue };
        let mut follower = client.follow_events().topics(["task"]).transports([EventTransport::WebSocket]);
        let (connected, has_ended) = (Arc::clone(&connected), Arc::clone(&has_ended));
        running.spawn(async move {
            let (clock, mut samples) = (SystemClock::start(), Samples::default());
            follower.connect().await.map_err(failed)?;
            connected.add_permits(1);
            // Followers look at the flag from time to time.
            while !has_ended.load(Ordering::Relaxed) {
                if let Ok(event) = timeout(STREAM_WAIT, follower.next()).await {
                    samples.add(elapsed(&clock, event.map_err(failed)?.timestamp.0.into()));
                }
            }
            Ok::<_, BenchError>(samples)
        });
    }
    let permits = u32::try_from(count).unwrap_or(u32::MAX);
    tokio::select! {
        all = timeout(CONNECT_TIMEOUT, connected.acquire_many(permits)) => {
            let late = |_| failed(format!("the followers did not connect within {CONNECT_TIMEOUT:?}"));
            all.map_err(late)?.map_err(failed)?.forget();
        }
        // A follower ends only if it fails.
        Some(ended) = running.join_next() => return Err(ended?.err().unwrap_or_else(|| failed("a follower ended"))),
    }
    let after = environment.server.memory().await?;
    let meter = environment.cpu_meter();
    let cpu_before = meter.read().await?;
    let created = create_drafts(args, environment).await?;
    sleep_until(Instant::now() + DRAIN.min(Duration::from_secs_f64(args.seconds()))).await;
    let cpu = meter.read().await?.since(&cpu_before);
    has_ended.store(true, Ordering::Relaxed);
    let mut samples = Samples::default();
    while let Some(finished) = running.join_next().await {
        samples.append(finished??);
    }
    let expected = created * count;
    if samples.len() != expected {
        return Err(failed(format!("{} of {expected} events were received", samples.len())));
    }
    let latencies = samples.latencies();
    let memory = before.zip(after).map(|(before, after)| after.resident_bytes - before.resident_bytes);
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let memory = memory.map(|bytes| bytes / 1024.0 / count as f64);
    let mut figures = vec![
        Figure::plain("commit → client, p50", latencies.p50_ms, "ms"),
        Figure::below("commit → client, p99", latencies.p99_ms, "ms", MAX_P99_MS),
        Figure::plain("commit → client, longest", latencies.max_ms, "ms"),
    ];
    figures.extend(memory.map(|kib| Figure::plain("memory per client", kib, "KiB")));
    Ok(Row {
        row: "followers",
        what: format!(
            "{count} WebSocket clients follow {created} events at {:.0}/s; each received every event once",
            rate(created, args)
        ),
        figures,
        cpu: vec![cpu.per("event to all clients", created, ONE_THREAD)],
        details: json!({ "followers": count, "events": created, "latency": latencies }),
    })
}

async fn stream(
    args: &Args,
    environment: &Environment,
    projections: &RedisProjections,
) -> Result<Row, BenchError> {
    let has_ended = Arc::new(AtomicBool::new(false));
    let last = projections.last_entry(EventTopic::Task).await.map_err(failed)?;
    let reader = tokio::spawn({
        let (projections, has_ended) = (projections.clone(), Arc::clone(&has_ended));
        async move {
            let (clock, mut samples, mut last) = (SystemClock::start(), Samples::default(), last);
            loop {
                let is_last = has_ended.load(Ordering::Relaxed);
                let read = projections.entries(EventTopic::Task, &last, STREAM_WAIT);
                let (read_to, entries) = read.await.map_err(failed)?;
                last = read_to;
                let is_empty = entries.is_empty();
                entries.iter().for_each(|entry| samples.add(elapsed(&clock, entry.at)));
                if is_last && is_empty {
                    return Ok::<_, BenchError>(samples);
                }
            }
        }
    });
    let created = create_drafts(args, environment).await?;
    sleep_until(Instant::now() + Duration::from_secs(1)).await;
    has_ended.store(true, Ordering::Relaxed);
    let samples = reader.await??;
    if samples.len() != created {
        return Err(failed(format!("{} of {created} events are in the stream", samples.len())));
    }
    let latencies = samples.latencies();
    Ok(Row {
        row: "stream",
        what: format!(
            "{created} events at {:.0}/s until a client that blocks on ade:events:task has them",
            rate(created, args)
        ),
        figures: vec![
            Figure::plain("commit → stream, p50", latencies.p50_ms, "ms"),
            Figure::plain("commit → stream, p99", latencies.p99_ms, "ms"),
            Figure::plain("commit → stream, longest", latencies.max_ms, "ms"),
        ],
        cpu: Vec::new(),
        details: json!({ "events": created, "latency": latencies }),
    })
}

/// Lets `ade rebuild` write everything again.
async fn rebuild(
    args: &Args,
    environment: &Environment,
    projections: &RedisProjections,
) -> Result<Row, BenchError> {
    let objects = projections.stored_objects().await.map_err(failed)?.objects.len();
    let meter = environment.cpu_meter();
    let (before, began) = (meter.read().await?, Instant::now());
    environment.rebuild(&args.program).await?;
    let took = began.elapsed();
    let cpu = meter.read().await?.since(&before);
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let per_second = objects as f64 / took.as_secs_f64();
    Ok(Row {
        row: "projections",
        what: format!(
            "ade rebuild writes {objects} objects with their indexes and streams beside a running server"
        ),
        figures: vec![Figure::plain("objects", per_second, "/s")],
        cpu: vec![cpu.per("object, without the process of ade rebuild", objects, ONE_THREAD)],
        details: json!({ "objects": objects, "seconds": took.as_secs_f64() }),
    })
}
