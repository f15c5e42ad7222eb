//! CPU time and memory that many held and renewed locks cost the server.

use std::time::Duration;

use ade_client::wire::{AcquireRequest, Grants, HeartbeatRequest, LockSpec, LockToken};
use bytes::Bytes;
use indicatif::ProgressBar;
use serde_json::json;
use tokio::time::{Instant, interval, sleep_until};

use super::Sizes;
use crate::error::{BenchError, ErrorKind};
use crate::http_client::{self, Connection};
use crate::report::{Figure, Row};
use crate::server::ServerUnderTest;

/// All renewed by one request.
pub(super) const LOCKS_PER_AGENT: usize = 1_000;
const LOCKS_PER_ACQUIRE: usize = 100;
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);

pub(super) async fn measure(
    server: &ServerUnderTest,
    sizes: &Sizes,
    bar: &ProgressBar,
) -> Result<Row, BenchError> {
    let agents = sizes.locks.div_ceil(LOCKS_PER_AGENT);
    let locks = agents * LOCKS_PER_AGENT;
    // At least two rounds of heartbeats, except in a quick run.
    let window =
        Duration::from_secs_f64(if sizes.quick { sizes.seconds } else { sizes.seconds.max(10.0) * 2.0 });
    let usage = async || {
        let no_usage = || {
            BenchError::new(ErrorKind::Input, "the row hold cannot be measured on an external server")
                .hint("omit --server, or choose other rows with --only")
        };
        server.usage().await?.ok_or_else(no_usage)
    };
    bar.set_length(agents as u64 + window.as_secs());
    let mut connection = server.target.connect().await?;
    let idle_began = usage().await?;
    sleep_until(Instant::now() + window / 4).await;
    let before = usage().await?;
    let idle = before.cpu_percent_since(&idle_began);
    let mut heartbeats = Vec::with_capacity(agents);
    for agent in 0..agents {
        heartbeats.push(acquire_all(&mut connection, agent, None).await?);
        bar.inc(1);
    }
    let mut pace = interval(HEARTBEAT_INTERVAL / u32::try_from(agents).unwrap_or(u32::MAX));
    // Warm-up: one round, so that every lock has been renewed.
    let mut rounds = heartbeats.iter().cycle();
    let warm = if sizes.quick { 1 } else { agents };
    for body in rounds.by_ref().take(warm) {
        pace.tick().await;
        connection.post("/api/v1/locks/heartbeat", body.clone()).await?.expect(200)?;
    }
    let (began, start) = (usage().await?, Instant::now());
    let mut calls = 0;
    for body in rounds {
        pace.tick().await;
        if start.elapsed() >= window {
            break;
        }
        connection.post("/api/v1/locks/heartbeat", body.clone()).await?.expect(200)?;
        calls += 1;
        bar.set_position(agents as u64 + start.elapsed().as_secs());
    }
    let end = usage().await?;
    let busy = end.cpu_percent_since(&began);
    let (redis_busy, redis_idle) = (end.redis_percent_since(&began), before.redis_percent_since(&idle_began));
    let on_redis = server.redis.is_some();
    let bytes = if on_redis {
        end.redis_bytes - before.redis_bytes
    } else {
        end.resident_bytes - before.resident_bytes
    };
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let bytes_per_lock = bytes / locks as f64;
    Ok(Row {
        row: "hold",
        what: format!(
            "{locks} locks of {agents} agents held with heartbeats every {} s, {LOCKS_PER_AGENT} locks per request: CPU time \
             of the server{} above idle, {} memory above empty",
            HEARTBEAT_INTERVAL.as_secs(),
            if on_redis { " and of Redis" } else { "" },
            if on_redis { "Redis'" } else { "resident" },
        ),
        figures: vec![
            Figure::below("processor", busy - idle + redis_busy - redis_idle, "% of a core", 30.0),
            Figure::below("memory per lock", bytes_per_lock, "bytes", if on_redis { 2048.0 } else { 1024.0 }),
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

/// Acquires all locks of one agent. Returns the body of its heartbeat.
pub(super) async fn acquire_all(
    connection: &mut Connection,
    agent: usize,
    ttl_seconds: Option<f64>,
) -> Result<Bytes, BenchError> {
    let agent_id = Some(format!("bench-{agent}"));
    let mut held = Vec::with_capacity(LOCKS_PER_AGENT);
    for from in (0..LOCKS_PER_AGENT).step_by(LOCKS_PER_ACQUIRE) {
        let lock = |number| LockSpec { lock: format!("resource:bench-held:{agent}-{number}"), mode: None };
        let locks = (from..from + LOCKS_PER_ACQUIRE).map(lock).collect();
        let request =
            AcquireRequest { locks, agent_id: agent_id.clone(), ttl_seconds, ..AcquireRequest::default() };
        let response =
            connection.post("/api/v1/locks/acquire", http_client::to_json(&request)?).await?.expect(200)?;
        let granted: Grants = response.json()?;
        held.extend(
            granted
                .grants
                .into_iter()
                .map(|grant| LockToken { lock: grant.lock, fencing_token: grant.fencing_token }),
        );
    }
    http_client::to_json(&HeartbeatRequest {
        agent_id,
        holder_id: None,
        locks: held,
        ttl_extension: ttl_seconds,
        timestamp: None,
    })
}
