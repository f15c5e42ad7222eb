//! The baseline of a lifecycle: five transactions of one row each, by as many clients, without HTTP and without a server.

use std::sync::Arc;

use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

use crate::database::BaselineTable;
use crate::error::BenchError;
use crate::samples::Samples;

/// Create, submit, approve, begin, complete.
pub(super) const TRANSACTIONS: usize = 5;
pub(super) const NAME: &str = "bare transactions";

/// Runs all clients until the deadline. `body` has the size of a task.
pub(super) async fn run(
    table: &BaselineTable,
    clients: usize,
    body: &Arc<str>,
    deadline: Instant,
) -> Result<Samples, BenchError> {
    let mut running = JoinSet::new();
    for _ in 0..clients {
        let (table, body) = (table.clone(), Arc::clone(body));
        running.spawn(async move {
            let mut samples = Samples::default();
            while Instant::now() < deadline {
                let began = Instant::now();
                for _ in 0..TRANSACTIONS {
                    table.insert(&Uuid::now_v7().to_string(), &body).await?;
                }
                samples.add(began.elapsed());
            }
            Ok::<_, BenchError>(samples)
        });
    }
    let mut all = Samples::default();
    while let Some(samples) = running.join_next().await {
        all.append(samples??);
    }
    Ok(all)
}
