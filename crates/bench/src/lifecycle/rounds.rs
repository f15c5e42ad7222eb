//! Runs lifecycles and the baseline alternately, so that noise affects both alike.
//!
//! Only the middle of each round is measured: before it the clients warm up, after it they wait for their remaining tasks.

use std::sync::Arc;
use std::time::Duration;

use indicatif::ProgressBar;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::client::{Client, Lifecycle, Workload};
use super::environment::Environment;
use super::{Sizes, baseline};
use crate::error::{BenchError, ErrorKind};
use crate::http_client::Connection;
use crate::samples::{Latencies, Samples};

const MAX_WARM_UP: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct LifecycleResults {
    pub(super) per_minute: f64,
    pub(super) from_create: Latencies,
    pub(super) from_approve: Latencies,
    pub(super) baseline_per_minute: f64,
    pub(super) baseline: Latencies,
    /// CPU time per lifecycle in microseconds, like `redis_us`.
    pub(super) server_us: f64,
    pub(super) redis_us: f64,
}

fn no_usage() -> BenchError {
    BenchError::new(ErrorKind::Unavailable, "the resource usage of the server is unknown")
}

#[derive(Debug, Default)]
struct Totals {
    from_create: Samples,
    from_approve: Samples,
    baseline: Samples,
    baseline_elapsed: Duration,
    server_seconds: f64,
    redis_seconds: f64,
}

/// Returns the results, and the clients with the tasks that they created.
pub(super) async fn measure(
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
        let began = Instant::now();
        let samples =
            baseline::run(&environment.baseline_table, sizes.clients, &body, began + duration).await?;
        totals.baseline.append(samples);
        totals.baseline_elapsed += began.elapsed();
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
    let usage = async {
        sleep_until(start).await;
        let before = environment.server.usage().await?.ok_or_else(no_usage)?;
        sleep_until(end).await;
        let after = environment.server.usage().await?.ok_or_else(no_usage)?;
        Ok::<_, BenchError>((
            after.cpu_seconds - before.cpu_seconds,
            after.redis_cpu_seconds - before.redis_cpu_seconds,
        ))
    };
    let all = async {
        let mut all = Vec::new();
        while let Some(finished) = running.join_next().await {
            all.push(finished??);
        }
        Ok::<_, BenchError>(all)
    };
    let ((server, redis), all) = tokio::try_join!(usage, all)?;
    totals.server_seconds += server;
    totals.redis_seconds += redis;
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
        let count = self.from_create.len() as f64;
        let us_per_lifecycle = |seconds: f64| seconds * 1e6 / count.max(1.0);
        let minutes = |elapsed: Duration| (elapsed.as_secs_f64() / 60.0).max(1e-9);
        LifecycleResults {
            per_minute: count / minutes(elapsed),
            baseline_per_minute: self.baseline.len() as f64 / minutes(self.baseline_elapsed),
            server_us: us_per_lifecycle(self.server_seconds),
            redis_us: us_per_lifecycle(self.redis_seconds),
            from_create: self.from_create.latencies(),
            from_approve: self.from_approve.latencies(),
            baseline: self.baseline.latencies(),
        }
    }
}
