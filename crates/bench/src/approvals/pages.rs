//! Pages of the dashboard with many stored tasks: how long the server takes for each, and how large it is.

use std::time::Duration;

use indicatif::ProgressBar;
use tokio::time::Instant;

use super::environment::Environment;
use super::organisation::{self, with_token_of};
use crate::cpu::{CpuCost, ONE_THREAD};
use crate::error::BenchError;
use crate::http_client::Connection;
use crate::samples::{Latencies, Samples};

/// The pages that everybody opens from the navigation, and those of one object.
const PAGES: [&str; 17] = [
    "/inbox?view=others",
    "/inbox?view=decided",
    "/tasks",
    "/tasks?state=REVIEWING",
    "/locks",
    "/agents",
    "/agents?view=grid",
    "/policies",
    "/delegations",
    "/activity",
    "/activity?view=charts",
    "/audit",
    "/keyspace",
    "/settings/users",
    "/settings/webhooks",
    "/settings/configuration",
    "/settings/jobs",
];

/// One page with its samples.
#[derive(Debug)]
pub(super) struct PageLatencies {
    pub(super) path: String,
    pub(super) bytes: usize,
    pub(super) latencies: Latencies,
}

#[derive(Debug)]
pub(super) struct PageResults {
    pub(super) pages: Vec<PageLatencies>,
    /// Per page.
    pub(super) cpu: CpuCost,
}

struct PageQuery {
    path: String,
    /// Opened by a reviewer, not by an administrator.
    by_reviewer: bool,
    bytes: usize,
    samples: Samples,
}

/// Opens every page so many times, one request at a time.
pub(super) async fn measure(
    environment: &Environment,
    rounds: usize,
    bar: &ProgressBar,
) -> Result<PageResults, BenchError> {
    let target = &environment.server.target;
    let mut admin = target.connect().await?;
    let reviewer = organisation::reviewer(0);
    let mut reviewer = with_token_of(&mut admin, target, &reviewer, false).await?.connect().await?;
    let query = |path: &str, by_reviewer| PageQuery {
        path: path.to_owned(),
        by_reviewer,
        bytes: 0,
        samples: Samples::default(),
    };
    let task = format!("/tasks/{}", environment.middle_task);
    let mut queries = vec![query("/inbox", true), query("/settings/tokens", true), query(&task, false)];
    queries.extend(PAGES.iter().map(|path| query(path, false)));
    let meter = environment.cpu_meter();
    bar.set_length(rounds as u64);
    // The first round fills caches.
    open_all(&mut queries, &mut admin, &mut reviewer).await?;
    queries.iter_mut().for_each(|query| query.samples = Samples::default());
    let before = meter.read().await?;
    for _ in 0..rounds {
        open_all(&mut queries, &mut admin, &mut reviewer).await?;
        bar.inc(1);
    }
    let cpu = meter.read().await?.since(&before).per("page".to_owned(), rounds * queries.len(), ONE_THREAD);
    let pages = queries.into_iter().map(|PageQuery { path, bytes, samples, .. }| PageLatencies {
        path: path.replace(&environment.middle_task, "ID"),
        bytes,
        latencies: samples.latencies(),
    });
    Ok(PageResults { pages: pages.collect(), cpu })
}

async fn open_all(
    queries: &mut [PageQuery],
    admin: &mut Connection,
    reviewer: &mut Connection,
) -> Result<(), BenchError> {
    for query in queries {
        let connection = if query.by_reviewer { &mut *reviewer } else { &mut *admin };
        let began = Instant::now();
        let response = connection.get(&query.path).await?.expect(200)?;
        let took: Duration = began.elapsed();
        query.samples.add(took);
        query.bytes = response.body.len();
    }
    Ok(())
}
