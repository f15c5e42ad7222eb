//! Lifecycles and the bare minimum in turns, so that a noisy neighbour disturbs both alike.
//!
//! What is measured is the middle of each turn: before it the clients get under way, after it they wait for what is left.

use std::sync::Arc;
use std::time::Duration;

use indicatif::ProgressBar;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::client::{Client, Deed, Lifecycle};
use super::place::Place;
use super::{Sizes, least};
use crate::error::{BenchError, ErrorKind};
use crate::link::Link;
use crate::samples::{Latencies, Samples};

/// How long clients run before it counts.
const MOST_WARM: Duration = Duration::from_millis(500);

/// What was measured.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) per_minute: f64,
    pub(super) from_create: Latencies,
    pub(super) from_approve: Latencies,
    pub(super) bare_per_minute: f64,
    pub(super) bare: Latencies,
    /// Processor time by lifecycle, in microseconds: of the server, and of Redis if there is one.
    pub(super) server_us: f64,
    pub(super) redis_us: f64,
}

pub(super) fn lost(error: tokio::task::JoinError) -> BenchError {
    BenchError::from(std::io::Error::other(error))
}

fn unseen() -> BenchError {
    BenchError::new(ErrorKind::Unavailable, "cannot see what the server uses")
}

#[derive(Debug, Default)]
struct Sum {
    created: Samples,
    approved: Samples,
    bare: Samples,
    bare_took: Duration,
    server_seconds: f64,
    redis_seconds: f64,
}

/// Everything that was measured, and the clients with what they created.
pub(super) async fn measure(
    place: &Place,
    deed: Deed,
    sizes: &Sizes,
    bar: &ProgressBar,
) -> Result<(Done, Vec<Client>), BenchError> {
    let mut clients = Vec::new();
    for number in 0..sizes.clients {
        clients.push(Client::make(place, number, deed, sizes.window).await?);
    }
    let turn = Duration::from_secs_f64(sizes.seconds) / sizes.rounds;
    let mut sum = Sum::default();
    for _ in 0..sizes.rounds {
        clients = ours(place, clients, turn, &mut sum).await?;
        let body = a_task(&mut place.subject.target.link().await?, &clients).await?;
        let began = Instant::now();
        sum.bare.append(least::run(&place.bare, sizes.clients, &body, began + turn).await?);
        sum.bare_took += began.elapsed();
        bar.inc(1);
    }
    Ok((sum.done(turn * sizes.rounds), clients))
}

async fn ours(
    place: &Place,
    clients: Vec<Client>,
    turn: Duration,
    sum: &mut Sum,
) -> Result<Vec<Client>, BenchError> {
    let from = Instant::now() + MOST_WARM.min(turn);
    let to = from + turn;
    let mut running = JoinSet::new();
    for client in clients {
        running.spawn(client.run(to));
    }
    let used = async {
        sleep_until(from).await;
        let before = place.subject.usage().await?.ok_or_else(unseen)?;
        sleep_until(to).await;
        let after = place.subject.usage().await?.ok_or_else(unseen)?;
        Ok::<_, BenchError>((
            after.cpu_seconds - before.cpu_seconds,
            after.redis_cpu_seconds - before.redis_cpu_seconds,
        ))
    };
    let all = async {
        let mut all = Vec::new();
        while let Some(done) = running.join_next().await {
            all.push(done.map_err(lost)??);
        }
        Ok::<_, BenchError>(all)
    };
    let ((server, redis), all) = tokio::try_join!(used, all)?;
    sum.server_seconds += server;
    sum.redis_seconds += redis;
    let mut clients = Vec::new();
    for (client, seen) in all {
        clients.push(client);
        for Lifecycle { created, approved, seen } in seen {
            if (from..to).contains(&seen) {
                sum.created.add(seen - created);
                sum.approved.add(seen - approved);
            }
        }
    }
    clients.sort_by_key(|client| client.number);
    Ok(clients)
}

/// A task as the server tells it, for the size of a row.
async fn a_task(link: &mut Link, clients: &[Client]) -> Result<Arc<str>, BenchError> {
    let id = clients.iter().find_map(|client| client.created.last());
    let id = id.ok_or_else(|| BenchError::new(ErrorKind::Unavailable, "no client created anything"))?;
    let answer = link.get(&format!("/api/v1/tasks/{id}")).await?.expect(200)?;
    Ok(String::from_utf8_lossy(&answer.body).into())
}

impl Sum {
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn done(self, took: Duration) -> Done {
        let many = self.created.len() as f64;
        let each = |seconds: f64| seconds * 1e6 / many.max(1.0);
        let minutes = |took: Duration| (took.as_secs_f64() / 60.0).max(1e-9);
        Done {
            per_minute: many / minutes(took),
            bare_per_minute: self.bare.len() as f64 / minutes(self.bare_took),
            server_us: each(self.server_seconds),
            redis_us: each(self.redis_seconds),
            from_create: self.created.latencies(),
            from_approve: self.approved.latencies(),
            bare: self.bare.latencies(),
        }
    }
}
