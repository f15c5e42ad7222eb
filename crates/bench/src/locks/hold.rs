//! CPU time and memory that many held and renewed locks cost the server.

use std::time::Duration;

use ade_client::wire::{AcquireRequest, Grants, HeartbeatRequest, LockSpec, LockToken};
use bytes::Bytes;
use indicatif::ProgressBar;
use serde_json::json;
use tokio::time::{Instant, interval, sleep_until};

use super::Sizes;
use crate::cpu::{CpuTimes, ONE_THREAD};
use crate::error::{BenchError, ErrorKind};
use crate::http_client::{self, Connection};
use crate::report::{Figure, Row};
use crate::server::ServerUnderTest;

/// All renewed by one request.
pub(super) const LOCKS_PER_AGENT: usize = 1_000;
const LOCKS_PER_ACQUIRE: usize = 100;
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
const QUICK_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

pub(super) async fn measure(
    server: &ServerUnderTest,
    sizes: &Sizes,
    bar: &ProgressBar,
) -> Result<Row, BenchError> {
    let agents = sizes.locks.div_ceil(LOCKS_PER_AGENT);
    let locks = agents * LOCKS_PER_AGENT;
    let heartbeat_interval = if sizes.quick { QUICK_HEARTBEAT_INTERVAL } else { HEARTBEAT_INTERVAL };
    // At least two rounds of heartbeats, except in a quick run.
    let window =
        Duration::from_secs_f64(if sizes.quick { sizes.seconds } else { sizes.seconds.max(10.0) * 2.0 });
    let memory = async || {
        let no_memory = || {
            BenchError::new(ErrorKind::Input, "the row hold cannot be measured on an external server")
                .hint("omit --server, or choose other rows with --only")
        };
        server.memory().await?.ok_or_else(no_memory)
    };
    bar.set_length(agents as u64 + window.as_secs());
    let mut connection = server.target.connect().await?;
    let (meter, idle_began) = (server.cpu_meter(), Instant::now());
    let before = meter.read().await?;
    sleep_until(idle_began + window / 4).await;
    let idle = percent(meter.read().await?.since(&before), idle_began);
    let empty = memory().await?;
    let mut heartbeats = Vec::with_capacity(agents);
    for agent in 0..agents {
        heartbeats.push(acquire_all(&mut connection, agent, None).await?);
        bar.inc(1);
    }
    let mut pace = interval(heartbeat_interval / u32::try_from(agents).unwrap_or(u32::MAX));
    // Warm-up: one round, so that every lock has been renewed.
    let mut rounds = heartbeats.iter().cycle();
    let warm = if sizes.quick { 1 } else { agents };
    for body in rounds.by_ref().take(warm) {
        pace.tick().await;
        connection.post("/api/v1/locks/heartbeat", body.clone()).await?.expect(200)?;
    }
    let (before, start) = (meter.read().await?, Instant::now());
    let mut calls = 0;
    for body in rounds {
        pace.tick().await;
        connection.post("/api/v1/locks/heartbeat", body.clone()).await?.expect(200)?;
        calls += 1;
        bar.set_position(agents as u64 + start.elapsed().as_secs());
        if start.elapsed() >= window {
            break;
        }
    }
    let cpu = meter.read().await?.since(&before);
    let busy = percent(cpu, start);
    let full = memory().await?;
    let on_redis = server.redis.is_some();
    let bytes = if on_redis {
        full.redis_bytes - empty.redis_bytes
    } else {
        full.resident_bytes - empty.resident_bytes
    };
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let bytes_per_lock = bytes / locks as f64;
    Ok(Row {
        row: "hold",
        what: format!(
            "{locks} locks of {agents} agents held with heartbeats every {} s, {LOCKS_PER_AGENT} locks per request: CPU time \
             of the server{} above idle, {} memory above empty",
            heartbeat_interval.as_secs(),
            if on_redis { " and of Redis" } else { "" },
            if on_redis { "Redis'" } else { "resident" },
        ),
        figures: vec![
            Figure::below(
                "processor",
                // Ticks of CPU time are coarse in a short run.
                (busy.server - idle.server + busy.redis - idle.redis).max(0.0),
                "% of a core",
                30.0,
            ),
            Figure::below("memory per lock", bytes_per_lock, "bytes", if on_redis { 2048.0 } else { 1024.0 }),
        ],
        cpu: vec![cpu.per("renewed lock", calls * LOCKS_PER_AGENT, ONE_THREAD)],
        details: json!({
            "locks": locks,
            "agents": agents,
            "window_seconds": start.elapsed().as_secs_f64(),
            "heartbeat_calls": calls,
            "processor_percent": busy.server,
            "processor_percent_idle": idle.server,
            "redis_processor_percent": busy.redis,
            "redis_processor_percent_idle": idle.redis,
            "redis_bytes_before": empty.redis_bytes,
            "redis_bytes_after": full.redis_bytes,
            "resident_bytes_before": empty.resident_bytes,
            "resident_bytes_after": full.resident_bytes,
        }),
    })
}

/// CPU time since `start`, in percent of one core.
struct Percent {
    server: f64,
    redis: f64,
}

fn percent(cpu: CpuTimes, start: Instant) -> Percent {
    let of = |seconds: Option<f64>| 100.0 * seconds.unwrap_or_default() / start.elapsed().as_secs_f64();
    Percent { server: of(cpu.server), redis: of(cpu.redis) }
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
