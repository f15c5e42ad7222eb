//! Runs many commands concurrently.
//!
//! Every result is at the position of its command, whatever happens to the others.

use std::collections::HashMap;
use std::sync::Arc;

use ade_keyspace::RedisKey;
use redis::{Cmd, Value};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::ClientState;
use super::execute::{ConnectionUse, Operation};
use super::node::Node;
use crate::coordination::CoordinationError;

/// Commands per pipeline.
const BATCH: usize = 512;

impl ClientState {
    /// Sends one pipeline per server. Commands with an error reply are executed again one by one.
    pub(super) async fn execute_all(
        self: &Arc<Self>,
        commands: &[(RedisKey, Cmd)],
    ) -> Vec<Result<Value, CoordinationError>> {
        let deadline = Instant::now() + self.connector.options.response_timeout;
        let mut results: Vec<Result<Value, CoordinationError>> = Vec::with_capacity(commands.len());
        let mut groups: HashMap<String, (Arc<Node>, Vec<usize>)> = HashMap::new();
        for (index, (key, _)) in commands.iter().enumerate() {
            match self.route(Some(key), deadline).await {
                Ok((_, node)) => {
                    let group = groups.entry(node.id.clone()).or_insert_with(|| (node, Vec::new()));
                    group.1.push(index);
                    results.push(Err(self.unavailable("no reply")));
                }
                Err(error) => results.push(Err(error)),
            }
        }
        let mut pipelines = JoinSet::new();
        for (node, indexes) in groups.into_values() {
            for indexes in indexes.chunks(BATCH) {
                let mut pipeline = redis::Pipeline::with_capacity(indexes.len());
                for (_, command) in indexes.iter().filter_map(|index| commands.get(*index)) {
                    pipeline.add_command(command.clone());
                }
                let (state, node, indexes) = (Arc::clone(self), Arc::clone(&node), indexes.to_vec());
                pipelines
                    .spawn(async move { (indexes, state.send_pipeline(&node, &pipeline, deadline).await) });
            }
        }
        while let Some(joined) = pipelines.join_next().await {
            let Ok((indexes, replies)) = joined else { continue };
            let mut replies = match replies {
                Ok(replies) => replies.into_iter(),
                Err(error) => {
                    for index in indexes {
                        if let Some(result) = results.get_mut(index) {
                            *result = Err(error.clone());
                        }
                    }
                    continue;
                }
            };
            for index in indexes {
                let (Some(result), Some((key, command))) = (results.get_mut(index), commands.get(index))
                else {
                    continue;
                };
                *result = match replies.next() {
                    // Alone it is redirected, retried, or refused with a reason.
                    Some(Value::ServerError(_)) => self
                        .execute(Operation::Command { key, command }, ConnectionUse::Shared)
                        .await
                        .map(|(value, _)| value),
                    Some(value) => Ok(value),
                    None => continue,
                };
            }
        }
        results
    }

    async fn send_pipeline(
        &self,
        node: &Arc<Node>,
        pipeline: &redis::Pipeline,
        deadline: Instant,
    ) -> Result<Vec<Value>, CoordinationError> {
        let active = self.connect(node, deadline).await?;
        let mut connection = active.connection.clone();
        let sent = connection.send_packed_commands(pipeline, 0, pipeline.len());
        self.await_reply(node, &active, deadline, sent).await
    }
}
