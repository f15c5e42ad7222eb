//! Runs lifecycles and the baseline alternately, so that noise affects both alike.
//!
//! Only the middle of each round is measured: before it the clients warm up, after it they wait for their remaining tasks.

use std::sync::Arc;
use std::time::Duration;

use indicatif::ProgressBar;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::Sizes;
use super::baseline::{self, TRANSACTIONS};
use super::client::{Client, Lifecycle, Workload};
use super::environment::Environment;
use crate::cpu::{CpuCost, CpuTimes, ONE_THREAD};
use crate::error::{BenchError, ErrorKind};
use crate::http_client::Connection;
use crate::samples::{Latencies, Samples};

const MAX_WARM_UP: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct LifecycleResults {
    pub(crate) per_minute: f64,
    pub(crate) from_create: Latencies,
    pub(crate) from_approve: Latencies,
    pub(crate) baseline_per_minute: f64,
    pub(crate) baseline: Latencies,
    /// Per lifecycle.
    pub(crate) cpu: CpuCost,
    /// Per five transactions.
    pub(crate) baseline_cpu: CpuCost,
}

#[derive(Debug, Default)]
struct Totals {
    from_create: Samples,
    from_approve: Samples,
    baseline: Samples,
    baseline_elapsed: Duration,
    cpu: CpuTimes,
    baseline_cpu: CpuTimes,
}

/// Returns the results, and the clients with the tasks that they created.
pub(crate) async fn measure(
    environment: &Environment,
    workload: Workload,
    sizes: &Sizes,
    bar: &ProgressBar,
) -> Result<(LifecycleResults, Vec<Client>), BenchError> {
    let mut clients = Vec::new();
    for number in 0..sizes.clients {
        clients.push(Client::connect(environment, number, workload, sizes.window).await?);
    }
    let duration = Duration::from_secs_f64(sizes.seconds) / sizes.rounds;
    let mut totals = Totals::default();
    for _ in 0..sizes.rounds {
        clients = run_lifecycles(environment, clients, duration, &mut totals).await?;
        let body = sample_task(&mut environment.server.target.connect().await?, &clients).await?;
        let meter = environment.baseline_meter();
        let (before, began) = (meter.read().await?, Instant::now());
        let samples =
            baseline::run(&environment.baseline_table, sizes.clients, &body, began + duration).await?;
        totals.baseline_elapsed += began.elapsed();
        totals.baseline_cpu += meter.read().await?.since(&before);
        totals.baseline.append(samples);
        bar.inc(1);
    }
    Ok((totals.results(duration * sizes.rounds), clients))
}

async fn run_lifecycles(
    environment: &Environment,
    clients: Vec<Client>,
    duration: Duration,
    totals: &mut Totals,
) -> Result<Vec<Client>, BenchError> {
    let start = Instant::now() + MAX_WARM_UP.min(duration);
    let end = start + duration;
    let mut running = JoinSet::new();
    for client in clients {
        running.spawn(client.run(end));
    }
    let cpu = async {
        let meter = environment.cpu_meter();
        sleep_until(start).await;
        let before = meter.read().await?;
        sleep_until(end).await;
        Ok::<_, BenchError>(meter.read().await?.since(&before))
    };
    let all = async {
        let mut all = Vec::new();
        while let Some(finished) = running.join_next().await {
            all.push(finished??);
        }
        Ok::<_, BenchError>(all)
    };
    let (cpu, all) = tokio::try_join!(cpu, all)?;
    totals.cpu += cpu;
    let mut clients = Vec::new();
    for (client, lifecycles) in all {
        clients.push(client);
        for Lifecycle { created, approved, completed } in lifecycles {
            if (start..end).contains(&completed) {
                totals.from_create.add(completed - created);
                totals.from_approve.add(completed - approved);
            }
        }
    }
    clients.sort_by_key(|client| client.number);
    Ok(clients)
}

/// The JSON of a task: its size is the size of the rows of the baseline.
async fn sample_task(connection: &mut Connection, clients: &[Client]) -> Result<Arc<str>, BenchError> {
    let id = clients.iter().find_map(|client| client.created.last());
    let id = id.ok_or_else(|| BenchError::new(ErrorKind::Unavailable, "no client created a task"))?;
    let response = connection.get(&format!("/api/v1/tasks/{id}")).await?.expect(200)?;
    Ok(String::from_utf8_lossy(&response.body).into())
}

impl Totals {
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn results(self, elapsed: Duration) -> LifecycleResults {
        let (count, baseline_count) = (self.from_create.len(), self.baseline.len());
        let minutes = |elapsed: Duration| (elapsed.as_secs_f64() / 60.0).max(1e-9);
        LifecycleResults {
            per_minute: count as f64 / minutes(elapsed),
            baseline_per_minute: baseline_count as f64 / minutes(self.baseline_elapsed),
            cpu: self.cpu.per("lifecycle", count, ONE_THREAD),
            baseline_cpu: self.baseline_cpu.per(
                format!("{TRANSACTIONS} {}", baseline::NAME),
                baseline_count,
                ONE_THREAD,
            ),
            from_create: self.from_create.latencies(),
            from_approve: self.from_approve.latencies(),
            baseline: self.baseline.latencies(),
        }
    }
}
