//! How long it takes to find a deadlock in a large graph of waiting holders.
//!
//! The graph is a tree two levels deep, made of locks that many share, whose leaves wait in long queues. The closing
//! request waits for the root; the one leaf that waits for the closer is looked at last. So a search that goes from the closer
//! to whom it waits for walks through every waiting holder, and the cycle itself is short, as cycles in practice are.

use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use indicatif::ProgressBar;
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Sizes;
use crate::error::BenchError;
use crate::link::{Link, Target};
use crate::report::{Figure, Row};
use crate::samples::Samples;
use crate::subject::Subject;

/// Connections that build the graph.
const BUILDERS: usize = 16;
/// Queues that the leaves stand in.
const QUEUES: usize = 50;
/// Time between two deadlocks.
const PAUSE: Duration = Duration::from_millis(50);
/// Leases and waits last for the whole measurement.
const LASTING: &str = r#""ttl_seconds":300"#;

const ACQUIRE: &str = "/api/v1/locks/acquire";

pub(super) async fn measure(subject: &Subject, sizes: &Sizes, bar: &ProgressBar) -> Result<Row, BenchError> {
    let (fan, closings) = (sizes.fan, sizes.closings);
    bar.set_length((fan + closings) as u64);
    let mut link = subject.target.link().await?;
    build(&subject.target, fan, bar).await?;
    let mut pace = interval(PAUSE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut samples = Samples::default();
    let mut edges = 0;
    for closing in 0..closings {
        pace.tick().await;
        // Agents that nobody hears of lose their place: one of them speaks at every turn.
        let agent = format!("/api/v1/agents/{}/heartbeat", agent(closing % (fan + 1)));
        link.post(&agent, Bytes::new()).await?.expect(200)?;
        let (took, length) = close(&mut link, fan, closing).await?;
        samples.add(took);
        edges = length;
        bar.inc(1);
    }
    let found = samples.latencies();
    let waiting = fan * fan + fan;
    Ok(Row {
        row: "deadlock",
        what: format!(
            "deadlock found with {waiting} waiting holders: from sending the closing request until the victim has its \
             answer; a search from the closer alone walks through all of them, the cycle has {edges} edges"
        ),
        figures: vec![
            Figure::plain("p50", found.p50_ms, "ms"),
            Figure::plain("p99", found.p99_ms, "ms"),
            Figure::aim("max", found.max_ms, "ms", 20.0),
        ],
        details: json!({ "waiting_holders": waiting, "cycle_edges": edges, "found": found }),
    })
}

/// Names sort in the order in which the search looks at them.
fn agent(number: usize) -> String {
    format!("bench-{number:03}")
}

/// Branches share the root and wait for their own lock, which leaves share; leaves wait in queues.
async fn build(target: &Target, fan: usize, bar: &ProgressBar) -> Result<(), BenchError> {
    let mut link = target.link().await?;
    for queue in 0..QUEUES {
        let body = format!(
            r#"{{"agent_id":"{}","holder_id":"block-{queue}",{LASTING},"locks":[{{"lock":"resource:bench-queue:{queue}"}}]}}"#,
            agent(fan)
        );
        link.post(ACQUIRE, body).await?.expect(200)?;
    }
    let mut builders = Vec::new();
    for builder in 0..BUILDERS {
        let (link, bar) = (target.link().await?, bar.clone());
        builders.push(tokio::spawn(async move {
            let mut link = link;
            for branch in (builder..fan).step_by(BUILDERS) {
                grow(&mut link, fan, branch).await?;
                bar.inc(1);
            }
            Ok::<(), BenchError>(())
        }));
    }
    for builder in builders {
        builder.await.map_err(|error| BenchError::from(std::io::Error::other(error)))??;
    }
    Ok(())
}

async fn grow(link: &mut Link, fan: usize, branch: usize) -> Result<(), BenchError> {
    let agent = agent(branch);
    for leaf in 0..fan {
        let who = format!(r#""agent_id":"{agent}","holder_id":"leaf-{leaf:03}",{LASTING}"#);
        let share =
            format!(r#"{{{who},"locks":[{{"lock":"resource:bench-branch:{branch}","mode":"shared"}}]}}"#);
        link.post(ACQUIRE, share).await?.expect(200)?;
        let queue = (branch * fan + leaf) % QUEUES;
        let wait = format!(
            r#"{{{who},"queue":true,"wait_seconds":3600,"locks":[{{"lock":"resource:bench-queue:{queue}"}}]}}"#
        );
        link.post(ACQUIRE, wait).await?.expect(202)?;
    }
    let who = format!(r#""agent_id":"{agent}","holder_id":"branch",{LASTING}"#);
    let share = format!(r#"{{{who},"locks":[{{"lock":"resource:bench-root:root","mode":"shared"}}]}}"#);
    link.post(ACQUIRE, share).await?.expect(200)?;
    let wait = format!(
        r#"{{{who},"queue":true,"wait_seconds":3600,"locks":[{{"lock":"resource:bench-branch:{branch}"}}]}}"#
    );
    link.post(ACQUIRE, wait).await?.expect(202)?;
    Ok(())
}

/// Closes a cycle and measures until the closer, which is the youngest and so gives way, is told; how long the cycle is.
async fn close(link: &mut Link, fan: usize, closing: usize) -> Result<(Duration, usize), BenchError> {
    let who = format!(r#""agent_id":"{}","holder_id":"closer-{closing}",{LASTING}"#, agent(fan));
    let own = format!(r#"{{{who},"locks":[{{"lock":"resource:bench-closer:own"}}]}}"#);
    link.post(ACQUIRE, own).await?.expect(200)?;
    let leaf = format!(r#""agent_id":"{}","holder_id":"leaf-{:03}""#, agent(fan - 1), fan - 1);
    let wait = format!(
        r#"{{{leaf},{LASTING},"queue":true,"wait_seconds":60,"locks":[{{"lock":"resource:bench-closer:own"}}]}}"#
    );
    let waiting: Value = link.post(ACQUIRE, wait).await?.expect(202)?.read()?;
    let closes = format!(r#"{{{who},"wait_seconds":60,"locks":[{{"lock":"resource:bench-root:root"}}]}}"#);
    let sent = Instant::now();
    let answer = link.post(ACQUIRE, closes).await?;
    let took = sent.elapsed();
    let told: Value = answer.expect(423)?.read()?;
    let edges = told.get("cycle").and_then(Value::as_array).map_or(0, Vec::len);
    let ticket = waiting.get("ticket").and_then(Value::as_str).unwrap_or_default();
    link.call(Method::DELETE, &format!("/api/v1/locks/tickets/{ticket}"), Bytes::new()).await?.expect(204)?;
    Ok((took, edges))
}
