//! Create and submit by parallel clients, alternating with a baseline of bare transactions; then approve at an offered rate.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ade_client::wire::{self, Approval, Page, TaskRequest};
use ade_domain::task::Resource;
use bytes::Bytes;
use indicatif::ProgressBar;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

use super::Sizes;
use super::environment::Environment;
use super::format_number;
use super::history;
use super::organisation::{TASK_TYPES, author, reviewer, with_token_of};
use crate::cpu::{CpuCost, CpuTimes, ONE_THREAD};
use crate::database::BaselineTable;
use crate::error::{BenchError, ErrorKind};
use crate::http_client::{self, Connection};
use crate::open_loop::{Operation, offer};
use crate::samples::{Latencies, Samples};

/// Benchmark and baseline alternate, so that noise affects both alike.
const ROUNDS: usize = 4;
pub(super) const BASELINE: &str = "bare transaction";

#[derive(Debug)]
pub(super) struct Throughput {
    pub(super) latencies: Latencies,
    pub(super) per_second: f64,
}

#[derive(Debug)]
pub(super) struct Comparison {
    pub(super) own: Throughput,
    pub(super) baseline: Throughput,
    /// Per request, and per transaction of the baseline.
    pub(super) cpu: [CpuCost; 2],
}

#[derive(Debug)]
pub(super) struct WriteResults {
    pub(super) create: Comparison,
    pub(super) submit: Comparison,
    pub(super) approve: Throughput,
    pub(super) approve_cpu: CpuCost,
}

#[derive(Debug, Default)]
struct Totals {
    samples: Samples,
    elapsed: Duration,
    cpu: CpuTimes,
}

impl Totals {
    fn add(&mut self, samples: Samples, elapsed: Duration, cpu: CpuTimes) {
        self.samples.append(samples);
        self.elapsed += elapsed;
        self.cpu += cpu;
    }

    fn cost(&self, operation: &str, environment: &Environment) -> CpuCost {
        let operation = format!("{operation}, {} tasks", format_number(environment.tasks));
        self.cpu.per(operation, self.samples.len(), ONE_THREAD)
    }

    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn throughput(self) -> Throughput {
        let per_second = self.samples.len() as f64 / self.elapsed.as_secs_f64().max(1e-9);
        Throughput { per_second, latencies: self.samples.latencies() }
    }
}

pub(super) async fn measure(
    environment: &Environment,
    sizes: &Sizes,
    bar: &ProgressBar,
) -> Result<WriteResults, BenchError> {
    let target = &environment.server.target;
    let mut admin = target.connect().await?;
    let mut connections = Vec::new();
    for number in 0..sizes.connections {
        connections.push(with_token_of(&mut admin, target, &author(number), false).await?.connect().await?);
    }
    // Includes the approvals of the warm-up.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
    let count = (f64::from(sizes.rate) * (sizes.seconds + sizes.warm_up_seconds())).ceil() as usize;
    bar.set_length(2 * count as u64 + 1);
    let drafts: Vec<_> = (0..count).map(draft).collect::<Result<_, _>>()?;
    let (create, ids) = compare(environment, &mut connections, "create", drafts, 201, bar).await?;
    // Tasks are distributed over the connections in the same order, so that each author submits its own.
    let submits = ids.iter().map(|id| (format!("/api/v1/tasks/{id}/submit"), "{}".to_owned())).collect();
    let (submit, _) = compare(environment, &mut connections, "submit", submits, 202, bar).await?;
    let target = with_token_of(&mut admin, target, &reviewer(0), true).await?;
    let requests = approval_requests(&mut target.connect().await?, &ids.into_iter().collect()).await?;
    let mut connections = target.connect_many(sizes.connections).await?;
    let warm_up = sizes.warm_up_seconds();
    let warm_up_count = (requests.len() as f64 * warm_up / (sizes.seconds + warm_up)) as usize;
    let (first, rest) = requests.split_at(warm_up_count.min(requests.len()));
    offer(&mut connections, Operation::Approve(first.into()), sizes.rate, warm_up).await?;
    let meter = environment.cpu_meter();
    let before = meter.read().await?;
    let result = offer(&mut connections, Operation::Approve(rest.into()), sizes.rate, sizes.seconds).await?;
    let cpu = meter.read().await?.since(&before);
    bar.inc(1);
    let mut approve = Totals::default();
    approve.add(result.samples, result.elapsed, cpu);
    let approve_cpu = approve.cost("approve", environment);
    Ok(WriteResults { create, submit, approve: approve.throughput(), approve_cpu })
}

fn resource(number: usize) -> wire::Resource {
    let Resource { resource_type, id, .. } = history::resource(number);
    wire::Resource { resource_type, id, mode: wire::LockMode::Exclusive }
}

fn draft(number: usize) -> Result<(String, String), BenchError> {
    let task = TaskRequest {
        task_type: TASK_TYPES.first().map(|name| (*name).to_owned()),
        description: Some(format!("deployment {number} of the benchmark")),
        parameters: json!({ "version": format!("2.{number}"), "replicas": 3 }).as_object().cloned(),
        resources: Some(vec![resource(number % 50), resource(50 + number % 7)]),
        tags: Some(vec![history::tag(number % 10), "measured".to_owned()]),
        ..TaskRequest::default()
    };
    let body = String::from_utf8_lossy(&http_client::to_json(&task)?).into_owned();
    Ok(("/api/v1/tasks".to_owned(), body))
}

/// Sends requests over all connections in parallel, alternating with the baseline. Returns the task ids in the order of requests.
async fn compare(
    environment: &Environment,
    connections: &mut Vec<Connection>,
    operation: &str,
    requests: Vec<(String, String)>,
    status: u16,
    bar: &ProgressBar,
) -> Result<(Comparison, Vec<String>), BenchError> {
    let (mut own, mut baseline, mut ids) = (Totals::default(), Totals::default(), Vec::new());
    let (meter, baseline_meter) = (environment.cpu_meter(), environment.baseline_meter());
    // A multiple of the connections: the next call sends requests about a task over the connection that created it.
    let chunk_size = requests.len().div_ceil(ROUNDS).next_multiple_of(connections.len().max(1));
    for chunk in requests.chunks(chunk_size.max(1)) {
        let (before, began) = (meter.read().await?, Instant::now());
        let (samples, mut chunk_ids, body) = post_all(connections, chunk, status).await?;
        let elapsed = began.elapsed();
        own.add(samples, elapsed, meter.read().await?.since(&before));
        ids.append(&mut chunk_ids);
        let (before, began) = (baseline_meter.read().await?, Instant::now());
        let table = &environment.baseline_table;
        let samples = insert_all(table, connections.len(), chunk.len(), body).await?;
        let elapsed = began.elapsed();
        baseline.add(samples, elapsed, baseline_meter.read().await?.since(&before));
        bar.inc(chunk.len() as u64);
    }
    let cpu = [own.cost(operation, environment), baseline.cost(BASELINE, environment)];
    Ok((Comparison { own: own.throughput(), baseline: baseline.throughput(), cpu }, ids))
}

/// Sends requests in parallel. Returns latencies, task ids in the order of requests, and the body of one response.
async fn post_all(
    connections: &mut Vec<Connection>,
    requests: &[(String, String)],
    status: u16,
) -> Result<(Samples, Vec<String>, String), BenchError> {
    let (count, mut workers) = (connections.len(), Vec::new());
    for (number, mut connection) in std::mem::take(connections).into_iter().enumerate() {
        let share: Vec<_> = requests.iter().skip(number).step_by(count).cloned().collect();
        workers.push(tokio::spawn(async move {
            let (mut samples, mut ids, mut last) = (Samples::default(), Vec::new(), String::new());
            for (path, body) in share {
                let began = Instant::now();
                let response = connection.post(&path, body).await?;
                samples.add(began.elapsed());
                let response = response.expect(status)?;
                ids.push(response.find_text("task_id").unwrap_or_default().to_owned());
                last = String::from_utf8_lossy(&response.body).into_owned();
            }
            Ok::<_, BenchError>((connection, samples, ids, last))
        }));
    }
    let (mut all, mut columns, mut body) = (Samples::default(), Vec::new(), String::new());
    for worker in workers {
        let (connection, samples, ids, last) = worker.await??;
        connections.push(connection);
        all.append(samples);
        columns.push(ids.into_iter());
        if body.is_empty() {
            body = last;
        }
    }
    let mut ids = Vec::with_capacity(requests.len());
    while ids.len() < requests.len() {
        let before = ids.len();
        ids.extend(columns.iter_mut().filter_map(Iterator::next));
        if ids.len() == before {
            return Err(BenchError::new(ErrorKind::Unavailable, "some responses have no task id"));
        }
    }
    Ok((all, ids, body))
}

/// The baseline: as many transactions by as many clients, each with one row of the size of a task.
async fn insert_all(
    table: &BaselineTable,
    clients: usize,
    count: usize,
    body: String,
) -> Result<Samples, BenchError> {
    let (mut tasks, body) = (JoinSet::new(), Arc::<str>::from(body));
    for number in 0..clients {
        let (table, body) = (table.clone(), body.clone());
        let share = count / clients + usize::from(number < count % clients);
        tasks.spawn(async move {
            let mut samples = Samples::default();
            for _ in 0..share {
                let id = Uuid::now_v7().to_string();
                let began = Instant::now();
                table.insert(&id, &body).await?;
                samples.add(began.elapsed());
            }
            Ok::<_, BenchError>(samples)
        });
    }
    let mut all = Samples::default();
    while let Some(done) = tasks.join_next().await {
        all.append(done??);
    }
    Ok(all)
}

/// The requests with which the reviewer approves these tasks: path and body.
async fn approval_requests(
    connection: &mut Connection,
    tasks: &BTreeSet<String>,
) -> Result<Vec<(String, Bytes)>, BenchError> {
    let (mut requests, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let next = cursor.map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
        let path = format!("/api/v1/approvals?reviewer=me&status=PENDING&limit=200{next}");
        let page: Page<Approval> = connection.get(&path).await?.expect(200)?.json()?;
        for approval in page.items.into_iter().filter(|approval| tasks.contains(&approval.task_id)) {
            let body = http_client::approval_body(approval.digest, approval.scope_digest)?;
            requests.push((format!("/api/v1/approvals/{}/approve", approval.approval_id), body));
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    if requests.len() == tasks.len() {
        return Ok(requests);
    }
    let message =
        format!("only {} of {} tasks are in the inbox of the reviewer", requests.len(), tasks.len());
    Err(BenchError::new(ErrorKind::Unavailable, message))
}
