//! The least that a lifecycle can cost: five transactions of one row each, by as many clients, without HTTP and without a server.

use std::sync::Arc;

use ade_store::database::Bare;
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

use super::slice::lost;
use crate::approvals::away;
use crate::error::BenchError;
use crate::samples::Samples;

/// Create, submit, approve, begin, complete.
pub(super) const TRANSACTIONS: usize = 5;

/// Each of the clients does nothing else until then; the row has the size of a task.
pub(super) async fn run(
    bare: &Bare,
    clients: usize,
    body: &Arc<str>,
    until: Instant,
) -> Result<Samples, BenchError> {
    let mut running = JoinSet::new();
    for _ in 0..clients {
        let (bare, body) = (bare.clone(), Arc::clone(body));
        running.spawn(async move {
            let mut samples = Samples::default();
            while Instant::now() < until {
                let began = Instant::now();
                for _ in 0..TRANSACTIONS {
                    bare.insert(&Uuid::now_v7().to_string(), &body).await.map_err(away)?;
                }
                samples.add(began.elapsed());
            }
            Ok::<_, BenchError>(samples)
        });
    }
    let mut all = Samples::default();
    while let Some(done) = running.join_next().await {
        all.append(done.map_err(lost)??);
    }
    Ok(all)
}
