//! Latency of task lists by each filter, the inbox, and searches in the audit log: the first page and one from the middle.

use ade_client::wire::{AuditVerification, Overview, Page};
use ade_domain::Moment;
use indicatif::ProgressBar;
use serde_json::Value;
use tokio::time::Instant;

use super::environment::Environment;
use super::format_number;
use super::history::{self, HISTORY_MS, before};
use super::organisation::{self, AUDITOR, TASK_TYPES, author, with_token_of};
use crate::cpu::{CpuCost, CpuMeter, CpuTimes, ONE_THREAD};
use crate::error::{BenchError, ErrorKind};
use crate::http_client::{Connection, Target};
use crate::samples::{Latencies, Samples};

const DAY_MS: u64 = 86_400_000;
/// With more tasks, verifying the audit log takes too long.
const MAX_VERIFIED_TASKS: usize = 20_000;

#[derive(Debug)]
pub(super) struct ListLatencies {
    pub(super) name: &'static str,
    pub(super) page: &'static str,
    pub(super) items: usize,
    pub(super) latencies: Latencies,
}

/// Where the middle page starts. Some lists are short with few tasks: there the second page is used, with a smaller page size,
/// so that pages have equally many items with few and with many tasks.
enum MiddlePage {
    None,
    At(String),
    /// After the first page.
    Second,
}

struct ListSpec {
    name: &'static str,
    path: String,
    /// Sent by a reviewer, not by the auditor who sees everything.
    by_reviewer: bool,
    middle: MiddlePage,
}

fn list_specs(environment: &Environment, entries: u64) -> Vec<ListSpec> {
    let task = || MiddlePage::At(environment.middle_task.clone());
    let number = || MiddlePage::At((entries / 2).to_string());
    let all = |name, path: String, middle| ListSpec { name, path, by_reviewer: false, middle };
    let own = |name, path: &str, middle| ListSpec { name, path: path.to_owned(), by_reviewer: true, middle };
    let time = |moment: Moment| moment.timestamp().to_string();
    let from = before(environment.now, HISTORY_MS / 2);
    let span = format!("/audit?from={}&to={}", time(from), time(from.plus_ms(30 * DAY_MS)));
    vec![
        all("state=COMPLETED", "/tasks?state=COMPLETED".to_owned(), task()),
        all("state=REVIEWING", "/tasks?state=REVIEWING".to_owned(), MiddlePage::Second),
        all("author", format!("/tasks?author={}", author(0)), task()),
        all("resource", format!("/tasks?resource={}", history::resource(0).name()), task()),
        all("tag", format!("/tasks?tag={}", history::tag(0)), task()),
        all("type", format!("/tasks?type={}", TASK_TYPES.first().copied().unwrap_or_default()), task()),
        own("visible to me", "/tasks?limit=20", task()),
        own("visible to me, state", "/tasks?state=COMPLETED&limit=20", task()),
        own("inbox", "/approvals?reviewer=me&status=PENDING&limit=20", MiddlePage::Second),
        all("audit by task", format!("/audit?task={}", environment.middle_task), MiddlePage::None),
        all("audit by actor", format!("/audit?actor={}", author(0)), number()),
        all("audit by action", "/audit?action=task.submit".to_owned(), number()),
        all("audit by time", span.clone(), MiddlePage::Second),
        all("audit by actor, time", format!("{span}&actor={}&limit=10", author(0)), MiddlePage::Second),
    ]
}

async fn fetch_page(connection: &mut Connection, path: &str) -> Result<(usize, Option<String>), BenchError> {
    let page: Page<Value> = connection.get(path).await?.expect(200)?.json()?;
    Ok((page.items.len(), page.next_cursor))
}

async fn verify_audit_log(connection: &mut Connection) -> Result<(), BenchError> {
    let verdict: AuditVerification = connection.get("/api/v1/audit/verify").await?.expect(200)?.json()?;
    if verdict.valid && verdict.entries > 0 {
        return Ok(());
    }
    Err(BenchError::new(
        ErrorKind::Unavailable,
        format!("the loaded audit log is invalid: {:?}", verdict.first_bad),
    ))
}

/// One page of a list with its samples.
struct PageQuery {
    name: &'static str,
    page: &'static str,
    path: String,
    by_reviewer: bool,
    items: usize,
    samples: Samples,
}

/// The queries of one server.
struct QueryRunner {
    auditor: Connection,
    reviewer: Connection,
    queries: Vec<PageQuery>,
    meter: CpuMeter,
    cpu: CpuTimes,
}

impl QueryRunner {
    async fn prepare(environment: &Environment) -> Result<Self, BenchError> {
        let target: &Target = &environment.server.target;
        let mut admin = target.connect().await?;
        let mut auditor = with_token_of(&mut admin, target, AUDITOR, false).await?.connect().await?;
        let mut reviewer =
            with_token_of(&mut admin, target, &organisation::reviewer(0), false).await?.connect().await?;
        if environment.tasks <= MAX_VERIFIED_TASKS {
            verify_audit_log(&mut auditor).await?;
        }
        let overview: Overview = auditor.get("/api/v1/stats/overview").await?.expect(200)?.json()?;
        let mut queries = Vec::new();
        for ListSpec { name, path, by_reviewer, middle } in list_specs(environment, overview.audit_entries) {
            let connection = if by_reviewer { &mut reviewer } else { &mut auditor };
            let path = format!("/api/v1{path}");
            let separator = if path.contains('?') { '&' } else { '?' };
            let cursor = match middle {
                MiddlePage::None => None,
                MiddlePage::At(cursor) => Some(cursor),
                MiddlePage::Second => fetch_page(connection, &path).await?.1,
            };
            let middle = cursor.map(|cursor| ("middle", format!("{path}{separator}cursor={cursor}")));
            for (page, path) in [("first", path)].into_iter().chain(middle) {
                let (items, _) = fetch_page(connection, &path).await?;
                let samples = Samples::default();
                queries.push(PageQuery { name, page, path, by_reviewer, items, samples });
            }
        }
        Ok(Self { auditor, reviewer, queries, meter: environment.cpu_meter(), cpu: CpuTimes::default() })
    }

    async fn run_round(&mut self, is_measured: bool) -> Result<(), BenchError> {
        let before = self.meter.read().await?;
        for query in &mut self.queries {
            let connection = if query.by_reviewer { &mut self.reviewer } else { &mut self.auditor };
            let began = Instant::now();
            let response = connection.get(&query.path).await?;
            if is_measured {
                query.samples.add(began.elapsed());
            }
            response.expect(200)?;
        }
        if is_measured {
            self.cpu += self.meter.read().await?.since(&before);
        }
        Ok(())
    }
}

/// The results of one server.
#[derive(Debug)]
pub(super) struct ListResults {
    pub(super) lists: Vec<ListLatencies>,
    /// Per page.
    pub(super) cpu: CpuCost,
}

/// Runs all queries on all servers alternately, so that noise affects all alike.
pub(super) async fn measure(
    environments: &[Environment],
    rounds: usize,
    bar: &ProgressBar,
) -> Result<Vec<ListResults>, BenchError> {
    let mut runners = Vec::new();
    for environment in environments {
        runners.push(QueryRunner::prepare(environment).await?);
    }
    bar.set_length(rounds as u64);
    let warm_up = rounds.div_ceil(10);
    for round in 0..warm_up + rounds {
        for runner in &mut runners {
            runner.run_round(round >= warm_up).await?;
        }
        bar.inc(u64::from(round >= warm_up));
    }
    let latencies_of = |PageQuery { name, page, items, samples, .. }| ListLatencies {
        name,
        page,
        items,
        latencies: samples.latencies(),
    };
    let results = environments.iter().zip(runners).map(|(environment, runner)| {
        let operation = format!("page, {} tasks", format_number(environment.tasks));
        let cpu = runner.cpu.per(operation, rounds * runner.queries.len(), ONE_THREAD);
        ListResults { lists: runner.queries.into_iter().map(latencies_of).collect(), cpu }
    });
    Ok(results.collect())
}
