//! Time to detect a deadlock in a large graph of waiting holders.
//!
//! The graph is a tree of two levels, made of shared locks, whose leaves wait in long queues. The closing request waits for
//! the root, and a search visits the only leaf that waits for the closer last. So a search from the closer visits every waiting
//! holder, while the cycle itself is short, as cycles in practice are.

use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use indicatif::ProgressBar;
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Sizes;
use crate::cpu::ONE_THREAD;
use crate::error::BenchError;
use crate::http_client::{Connection, Target};
use crate::report::{Figure, Row};
use crate::samples::Samples;
use crate::server::ServerUnderTest;

/// Connections that build the graph in parallel.
const BUILDERS: usize = 16;
/// Queues that the leaves wait in.
const QUEUES: usize = 50;
const DEADLOCK_INTERVAL: Duration = Duration::from_millis(50);
/// Leases outlast the whole run.
const LONG_LEASE: &str = r#""ttl_seconds":300"#;

const ACQUIRE: &str = "/api/v1/locks/acquire";

pub(super) async fn measure(
    server: &ServerUnderTest,
    sizes: &Sizes,
    bar: &ProgressBar,
) -> Result<Row, BenchError> {
    let (fan_out, deadlocks) = (sizes.fan_out, sizes.deadlocks);
    bar.set_length((fan_out + deadlocks) as u64);
    let mut connection = server.target.connect().await?;
    build(&server.target, fan_out, bar).await?;
    let mut pace = interval(DEADLOCK_INTERVAL);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut samples = Samples::default();
    let mut edges = 0;
    let meter = server.cpu_meter();
    let before = meter.read().await?;
    for closing in 0..deadlocks {
        pace.tick().await;
        // Offline agents would lose their positions: one agent sends a heartbeat per deadlock.
        let agent = format!("/api/v1/agents/{}/heartbeat", agent(closing % (fan_out + 1)));
        connection.post(&agent, Bytes::new()).await?.expect(200)?;
        let (elapsed, length) = close_cycle(&mut connection, fan_out, closing).await?;
        samples.add(elapsed);
        edges = length;
        bar.inc(1);
    }
    let cpu = meter.read().await?.since(&before);
    let found = samples.latencies();
    let waiting = fan_out * fan_out + fan_out;
    Ok(Row {
        row: "deadlock",
        what: format!(
            "deadlock detection with {waiting} waiting holders: from sending the closing request until the victim has its \
             response; a search from the closer visits all of them, the cycle has {edges} edges"
        ),
        figures: vec![
            Figure::plain("p50", found.p50_ms, "ms"),
            Figure::plain("p99", found.p99_ms, "ms"),
            Figure::below("max", found.max_ms, "ms", 20.0),
        ],
        cpu: vec![cpu.per("deadlock", deadlocks, ONE_THREAD)],
        details: json!({ "waiting_holders": waiting, "cycle_edges": edges, "found": found }),
    })
}

/// Names sort in the order in which the search visits them.
fn agent(number: usize) -> String {
    format!("bench-{number:03}")
}

/// Branches share the root lock and wait for a lock that their leaves share; leaves wait in queues.
async fn build(target: &Target, fan_out: usize, bar: &ProgressBar) -> Result<(), BenchError> {
    let mut connection = target.connect().await?;
    for queue in 0..QUEUES {
        let body = format!(
            r#"{{"agent_id":"{}","holder_id":"block-{queue}",{LONG_LEASE},"locks":[{{"lock":"resource:bench-queue:{queue}"}}]}}"#,
            agent(fan_out)
        );
        connection.post(ACQUIRE, body).await?.expect(200)?;
    }
    let mut builders = Vec::new();
    for builder in 0..BUILDERS {
        let (connection, bar) = (target.connect().await?, bar.clone());
        builders.push(tokio::spawn(async move {
            let mut connection = connection;
            for branch in (builder..fan_out).step_by(BUILDERS) {
                build_branch(&mut connection, fan_out, branch).await?;
                bar.inc(1);
            }
            Ok::<(), BenchError>(())
        }));
    }
    for builder in builders {
        builder.await??;
    }
    Ok(())
}

async fn build_branch(connection: &mut Connection, fan_out: usize, branch: usize) -> Result<(), BenchError> {
    let agent = agent(branch);
    for leaf in 0..fan_out {
        let holder = format!(r#""agent_id":"{agent}","holder_id":"leaf-{leaf:03}",{LONG_LEASE}"#);
        let share =
            format!(r#"{{{holder},"locks":[{{"lock":"resource:bench-branch:{branch}","mode":"shared"}}]}}"#);
        connection.post(ACQUIRE, share).await?.expect(200)?;
        let queue = (branch * fan_out + leaf) % QUEUES;
        let wait = format!(
            r#"{{{holder},"queue":true,"wait_seconds":3600,"locks":[{{"lock":"resource:bench-queue:{queue}"}}]}}"#
        );
        connection.post(ACQUIRE, wait).await?.expect(202)?;
    }
    let holder = format!(r#""agent_id":"{agent}","holder_id":"branch",{LONG_LEASE}"#);
    let share = format!(r#"{{{holder},"locks":[{{"lock":"resource:bench-root:root","mode":"shared"}}]}}"#);
    connection.post(ACQUIRE, share).await?.expect(200)?;
    let wait = format!(
        r#"{{{holder},"queue":true,"wait_seconds":3600,"locks":[{{"lock":"resource:bench-branch:{branch}"}}]}}"#
    );
    connection.post(ACQUIRE, wait).await?.expect(202)?;
    Ok(())
}

/// Closes a cycle. Returns the time until the closer, which is the youngest and so the victim, has its response, and the length
/// of the cycle.
async fn close_cycle(
    connection: &mut Connection,
    fan_out: usize,
    closing: usize,
) -> Result<(Duration, usize), BenchError> {
    let holder = format!(r#""agent_id":"{}","holder_id":"closer-{closing}",{LONG_LEASE}"#, agent(fan_out));
    let own = format!(r#"{{{holder},"locks":[{{"lock":"resource:bench-closer:own"}}]}}"#);
    connection.post(ACQUIRE, own).await?.expect(200)?;
    let leaf = format!(r#""agent_id":"{}","holder_id":"leaf-{:03}""#, agent(fan_out - 1), fan_out - 1);
    let wait = format!(
        r#"{{{leaf},{LONG_LEASE},"queue":true,"wait_seconds":60,"locks":[{{"lock":"resource:bench-closer:own"}}]}}"#
    );
    let waiting: Value = connection.post(ACQUIRE, wait).await?.expect(202)?.json()?;
    let closing_request =
        format!(r#"{{{holder},"wait_seconds":60,"locks":[{{"lock":"resource:bench-root:root"}}]}}"#);
    let sent = Instant::now();
    let response = connection.post(ACQUIRE, closing_request).await?;
    let elapsed = sent.elapsed();
    let problem: Value = response.expect(423)?.json()?;
    let edges = problem.get("cycle").and_then(Value::as_array).map_or(0, Vec::len);
    let ticket = waiting.get("ticket").and_then(Value::as_str).unwrap_or_default();
    connection
        .send(Method::DELETE, &format!("/api/v1/locks/tickets/{ticket}"), Bytes::new())
        .await?
        .expect(204)?;
    Ok((elapsed, edges))
}
