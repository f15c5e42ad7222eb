//! Many locks that are held and renewed: what that costs the server in processor time and memory.

use std::time::Duration;

use ade_client::wire::{AcquireRequest, Grants, HeartbeatRequest, HeldLock, LockAsk};
use bytes::Bytes;
use indicatif::ProgressBar;
use serde_json::json;
use tokio::time::{Instant, interval, sleep_until};

use super::Sizes;
use crate::error::{BenchError, ErrorKind};
use crate::link::{self, Link};
use crate::report::{Figure, Row};
use crate::subject::Subject;

/// Locks of one agent, all renewed by one call.
const PER_AGENT: usize = 1_000;
/// Locks of one request.
const PER_REQUEST: usize = 100;
/// How often each lock is renewed.
const HEARTBEAT: Duration = Duration::from_secs(10);

pub(super) async fn measure(subject: &Subject, sizes: &Sizes, bar: &ProgressBar) -> Result<Row, BenchError> {
    let agents = sizes.locks.div_ceil(PER_AGENT);
    let locks = agents * PER_AGENT;
    // Two rounds of heartbeats at least, unless it has to be quick.
    let window =
        Duration::from_secs_f64(if sizes.quick { sizes.seconds } else { sizes.seconds.max(10.0) * 2.0 });
    let usage = async || {
        let unseen = || {
            BenchError::new(ErrorKind::Input, "a server that somebody else runs cannot be looked into")
                .hint("leave --server out, or choose other rows with --only")
        };
        subject.usage().await?.ok_or_else(unseen)
    };
    bar.set_length(agents as u64 + window.as_secs());
    let mut link = subject.target.link().await?;
    let idle_began = usage().await?;
    sleep_until(Instant::now() + window / 4).await;
    let before = usage().await?;
    let idle = before.cpu_percent_since(&idle_began);
    let mut heartbeats = Vec::with_capacity(agents);
    for agent in 0..agents {
        heartbeats.push(take(&mut link, agent).await?);
        bar.inc(1);
    }
    let mut beat = interval(HEARTBEAT / u32::try_from(agents).unwrap_or(u32::MAX));
    // One round unmeasured: then every lock has been renewed at least once.
    let mut rounds = heartbeats.iter().cycle();
    let warm = if sizes.quick { 1 } else { agents };
    for body in rounds.by_ref().take(warm) {
        beat.tick().await;
        link.post("/api/v1/locks/heartbeat", body.clone()).await?.expect(200)?;
    }
    let (began, start) = (usage().await?, Instant::now());
    let mut calls = 0;
    for body in rounds {
        beat.tick().await;
        if start.elapsed() >= window {
            break;
        }
        link.post("/api/v1/locks/heartbeat", body.clone()).await?.expect(200)?;
        calls += 1;
        bar.set_position(agents as u64 + start.elapsed().as_secs());
    }
    let end = usage().await?;
    let busy = end.cpu_percent_since(&began);
    let (redis_busy, redis_idle) = (end.redis_percent_since(&began), before.redis_percent_since(&idle_began));
    let on_redis = subject.redis.is_some();
    let bytes = if on_redis {
        end.redis_bytes - before.redis_bytes
    } else {
        end.resident_bytes - before.resident_bytes
    };
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let each = bytes / locks as f64;
    Ok(Row {
        row: "hold",
        what: format!(
            "{locks} locks of {agents} agents held with {} s heartbeats, {PER_AGENT} locks in a call: processor time \
             of the server{} beyond idle, {} memory beyond empty",
            HEARTBEAT.as_secs(),
            if on_redis { " and of Redis" } else { "" },
            if on_redis { "Redis'" } else { "resident" },
        ),
        figures: vec![
            Figure::aim("processor", busy - idle + redis_busy - redis_idle, "% of a core", 30.0),
            Figure::aim("memory per lock", each, "bytes", if on_redis { 2048.0 } else { 1024.0 }),
        ],
        details: json!({
            "locks": locks,
            "agents": agents,
            "window_seconds": start.elapsed().as_secs_f64(),
            "heartbeat_calls": calls,
            "processor_percent": busy,
            "processor_percent_idle": idle,
            "redis_processor_percent": redis_busy,
            "redis_processor_percent_idle": redis_idle,
            "redis_bytes_before": before.redis_bytes,
            "redis_bytes_after": end.redis_bytes,
            "resident_bytes_before": before.resident_bytes,
            "resident_bytes_after": end.resident_bytes,
        }),
    })
}

/// All locks of one agent; the body of its heartbeat.
async fn take(link: &mut Link, agent: usize) -> Result<Bytes, BenchError> {
    let agent_id = Some(format!("bench-{agent}"));
    let mut held = Vec::with_capacity(PER_AGENT);
    for from in (0..PER_AGENT).step_by(PER_REQUEST) {
        let ask = |number| LockAsk { lock: format!("resource:bench-held:{agent}-{number}"), mode: None };
        let locks = (from..from + PER_REQUEST).map(ask).collect();
        let request = AcquireRequest { locks, agent_id: agent_id.clone(), ..AcquireRequest::default() };
        let answer = link.post("/api/v1/locks/acquire", link::body(&request)?).await?.expect(200)?;
        let granted: Grants = answer.read()?;
        held.extend(
            granted
                .grants
                .into_iter()
                .map(|grant| HeldLock { lock: grant.lock, fencing_token: grant.fencing_token }),
        );
    }
    link::body(&HeartbeatRequest {
        agent_id,
        holder_id: None,
        locks: held,
        ttl_extension: None,
        timestamp: None,
    })
}
