//! Runs many commands concurrently.
//!
//! Every result is at the position of its command, whatever happens to the others.

use std::collections::HashMap;
use std::sync::Arc;

use ade_keyspace::RedisKey;
use futures_util::future::join_all;
use redis::{Cmd, Value};
use tokio::time::Instant;

use super::ClientState;
use super::execute::{ConnectionUse, Operation};
use super::node::Node;
use crate::coordination::Result;

/// Commands per pipeline.
const BATCH: usize = 512;

impl ClientState {
    /// Sends one pipeline per server. Commands with an error reply are executed again one by one.
    pub(super) async fn execute_all(&self, commands: &[(RedisKey, Cmd)]) -> Vec<Result<Value>> {
        let deadline = Instant::now() + self.connector.options.response_timeout;
        let mut results: Vec<Result<Value>> = Vec::with_capacity(commands.len());
        let mut groups: HashMap<String, (Arc<Node>, Vec<usize>)> = HashMap::new();
        for (index, (key, _)) in commands.iter().enumerate() {
            let routed = self.route(key.as_str(), deadline).await;
            results.push(routed.and_then(|(_, node)| {
                groups.entry(node.id.clone()).or_insert_with(|| (node, Vec::new())).1.push(index);
                Err(self.unavailable("no reply"))
            }));
        }
        let batches =
            groups.values().flat_map(|(node, indexes)| indexes.chunks(BATCH).map(move |batch| (node, batch)));
        let replies = join_all(batches.map(async |(node, batch)| {
            let mut pipeline = redis::Pipeline::with_capacity(batch.len());
            for (_, command) in batch.iter().filter_map(|index| commands.get(*index)) {
                pipeline.add_command(command.clone());
            }
            let replies = match self.send_pipeline(node, &pipeline, deadline).await {
                Ok(replies) => replies.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error); batch.len()],
            };
            batch.iter().zip(replies)
        }));
        for (index, reply) in replies.await.into_iter().flatten() {
            let (Some(result), Some((key, command))) = (results.get_mut(*index), commands.get(*index)) else {
                continue;
            };
            *result = match reply {
                // Alone it is redirected, retried, or refused with a reason.
                Ok(Value::ServerError(_)) => {
                    let operation = Operation::Command { key, command };
                    self.execute(operation, ConnectionUse::Shared).await.map(|(value, _)| value)
                }
                other => other,
            };
        }
        results
    }

    async fn send_pipeline(
        &self,
        node: &Arc<Node>,
        pipeline: &redis::Pipeline,
        deadline: Instant,
    ) -> Result<Vec<Value>> {
        let active = self.connect(node, deadline).await?;
        let mut connection = active.connection.clone();
        let sent = connection.send_packed_commands(pipeline, 0, pipeline.len());
        self.await_reply(node, &active, deadline, sent).await
    }
}
