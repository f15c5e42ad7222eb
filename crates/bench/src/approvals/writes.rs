//! Create and submit by several at once, in turns with the least that keeping something can cost; then approve, by the clock.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ade_client::wire::{Approval, Page, TaskRequest};
use ade_store::database::Bare;
use indicatif::ProgressBar;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

use super::Sizes;
use super::history;
use super::people::{TYPES, author, reviewer, sign_in};
use super::place::{Filled, away};
use crate::error::{BenchError, ErrorKind};
use crate::link::{self, Link};
use crate::open_loop::{Job, offer};
use crate::samples::{Latencies, Samples};

/// Ours and the bare minimum take turns, so that a noisy neighbour disturbs both alike.
const ROUNDS: usize = 4;

/// How long something took, and how often it was done in a second.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) latencies: Latencies,
    pub(super) per_second: f64,
}

/// Something beside the bare minimum.
#[derive(Debug)]
pub(super) struct Beside {
    pub(super) own: Done,
    pub(super) bare: Done,
}

#[derive(Debug)]
pub(super) struct Written {
    pub(super) create: Beside,
    pub(super) submit: Beside,
    pub(super) approve: Done,
}

#[derive(Debug, Default)]
struct Sum {
    samples: Samples,
    took: Duration,
}

impl Sum {
    fn add(&mut self, samples: Samples, took: Duration) {
        self.samples.append(samples);
        self.took += took;
    }

    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn done(self) -> Done {
        let per_second = self.samples.len() as f64 / self.took.as_secs_f64().max(1e-9);
        Done { per_second, latencies: self.samples.latencies() }
    }
}

pub(super) async fn measure(
    filled: &Filled,
    sizes: &Sizes,
    bar: &ProgressBar,
) -> Result<Written, BenchError> {
    let target = &filled.subject.target;
    let mut admin = target.link().await?;
    let mut links = Vec::new();
    for number in 0..sizes.connections {
        links.push(sign_in(&mut admin, target, &author(number), false).await?.link().await?);
    }
    // A second of approvals is for warming up.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
    let many = (f64::from(sizes.rate) * (sizes.seconds + sizes.warm_seconds())).ceil() as usize;
    bar.set_length(2 * many as u64 + 1);
    let drafts: Vec<_> = (0..many).map(draft).collect::<Result<_, _>>()?;
    let (create, ids) = beside(&mut links, &filled.bare, drafts, 201, bar).await?;
    // Whoever made it submits it: the order of connections is the same.
    let submits = ids.iter().map(|id| (format!("/api/v1/tasks/{id}/submit"), "{}".to_owned())).collect();
    let (submit, _) = beside(&mut links, &filled.bare, submits, 202, bar).await?;
    let decides = sign_in(&mut admin, target, &reviewer(0), true).await?;
    let paths = waiting(&mut decides.link().await?, &ids.into_iter().collect()).await?;
    let mut links = decides.links(sizes.connections).await?;
    let warm = (paths.len() as f64 * sizes.warm_seconds() / (sizes.seconds + sizes.warm_seconds())) as usize;
    let (first, rest) = paths.split_at(warm.min(paths.len()));
    offer(&mut links, Job::Approve(first.into()), sizes.rate, sizes.warm_seconds()).await?;
    let outcome = offer(&mut links, Job::Approve(Arc::from(rest)), sizes.rate, sizes.seconds).await?;
    bar.inc(1);
    let mut approve = Sum::default();
    approve.add(outcome.samples, outcome.took);
    Ok(Written { create, submit, approve: approve.done() })
}

fn draft(number: usize) -> Result<(String, String), BenchError> {
    let task = TaskRequest {
        task_type: TYPES.first().map(|kind| (*kind).to_owned()),
        description: Some(format!("deploy number {number} of a measurement")),
        parameters: json!({ "version": format!("2.{number}"), "replicas": 3 }).as_object().cloned(),
        resources: Some(vec![history::resource(number % 50), history::resource(50 + number % 7)]),
        tags: Some(vec![history::tag(number % 10), "measured".to_owned()]),
        ..TaskRequest::default()
    };
    let body = String::from_utf8_lossy(&link::body(&task)?).into_owned();
    Ok(("/api/v1/tasks".to_owned(), body))
}

/// Sends requests over all links at once, in turns with bare transactions; the ids of the tasks in the same order.
async fn beside(
    links: &mut Vec<Link>,
    bare: &Bare,
    requests: Vec<(String, String)>,
    status: u16,
    bar: &ProgressBar,
) -> Result<(Beside, Vec<String>), BenchError> {
    let (mut own, mut least, mut ids) = (Sum::default(), Sum::default(), Vec::new());
    // Whole rows of connections: the next measurement finds each task with the connection that made it.
    let part = requests.len().div_ceil(ROUNDS).next_multiple_of(links.len().max(1));
    for some in requests.chunks(part.max(1)) {
        let began = Instant::now();
        let (samples, mut made, body) = post(links, some, status).await?;
        own.add(samples, began.elapsed());
        ids.append(&mut made);
        let began = Instant::now();
        let samples = insert(bare, links.len(), some.len(), body).await?;
        least.add(samples, began.elapsed());
        bar.inc(some.len() as u64);
    }
    Ok((Beside { own: own.done(), bare: least.done() }, ids))
}

fn lost(error: tokio::task::JoinError) -> BenchError {
    BenchError::from(std::io::Error::other(error))
}

async fn post(
    links: &mut Vec<Link>,
    requests: &[(String, String)],
    status: u16,
) -> Result<(Samples, Vec<String>, String), BenchError> {
    let (many, mut workers) = (links.len(), Vec::new());
    for (number, mut link) in std::mem::take(links).into_iter().enumerate() {
        let mine: Vec<_> = requests.iter().skip(number).step_by(many).cloned().collect();
        workers.push(tokio::spawn(async move {
            let (mut samples, mut ids, mut last) = (Samples::default(), Vec::new(), String::new());
            for (path, body) in mine {
                let began = Instant::now();
                let answer = link.post(&path, body).await?;
                samples.add(began.elapsed());
                let answer = answer.expect(status)?;
                ids.push(answer.text("task_id").unwrap_or_default().to_owned());
                last = String::from_utf8_lossy(&answer.body).into_owned();
            }
            Ok::<_, BenchError>((link, samples, ids, last))
        }));
    }
    let (mut all, mut columns, mut body) = (Samples::default(), Vec::new(), String::new());
    for worker in workers {
        let (link, samples, ids, last) = worker.await.map_err(lost)??;
        links.push(link);
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
            return Err(BenchError::new(ErrorKind::Unavailable, "some answers had no task"));
        }
    }
    Ok((all, ids, body))
}

/// As many transactions by as many clients, each with a row of the size of a task.
async fn insert(bare: &Bare, clients: usize, many: usize, body: String) -> Result<Samples, BenchError> {
    let (mut tasks, body) = (JoinSet::new(), Arc::<str>::from(body));
    for number in 0..clients {
        let (bare, body, mine) =
            (bare.clone(), body.clone(), many / clients + usize::from(number < many % clients));
        tasks.spawn(async move {
            let mut samples = Samples::default();
            for _ in 0..mine {
                let id = Uuid::now_v7().to_string();
                let began = Instant::now();
                bare.insert(&id, &body).await.map_err(away)?;
                samples.add(began.elapsed());
            }
            Ok::<_, BenchError>(samples)
        });
    }
    let mut all = Samples::default();
    while let Some(done) = tasks.join_next().await {
        all.append(done.map_err(lost)??);
    }
    Ok(all)
}

/// Where the reviewer approves each of these tasks.
async fn waiting(link: &mut Link, tasks: &BTreeSet<String>) -> Result<Vec<String>, BenchError> {
    let (mut paths, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let next = cursor.map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
        let path = format!("/api/v1/approvals?reviewer=me&status=PENDING&limit=200{next}");
        let page: Page<Approval> = link.get(&path).await?.expect(200)?.read()?;
        let own = page.items.iter().filter(|approval| tasks.contains(&approval.task_id));
        paths.extend(own.map(|approval| format!("/api/v1/approvals/{}/approve", approval.approval_id)));
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    if paths.len() == tasks.len() {
        return Ok(paths);
    }
    let message = format!("{} of {} tasks wait for their reviewer", paths.len(), tasks.len());
    Err(BenchError::new(ErrorKind::Unavailable, message))
}
