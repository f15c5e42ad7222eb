//! Many commands at once.
//!
//! Each answer stands where its question stood, whatever became of the others.

use std::collections::HashMap;
use std::sync::Arc;

use ade_keyspace::RedisKey;
use redis::{Cmd, Value};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::node::Node;
use super::run::{Manner, Work};
use super::{Servers, Shared};
use crate::coordination::CoordinationError;

/// Most commands that go out as one pipeline.
const BATCH: usize = 512;

impl Shared {
    /// Many commands: one pipeline per server, and once more by itself for each that was redirected.
    pub(super) async fn run_all(
        self: &Arc<Self>,
        questions: &[(RedisKey, Cmd)],
    ) -> Vec<Result<Value, CoordinationError>> {
        let deadline = Instant::now() + self.connector.options.answer_within;
        let mut answers: Vec<Result<Value, CoordinationError>> = Vec::with_capacity(questions.len());
        let mut groups: HashMap<String, (Arc<Node>, Vec<usize>)> = HashMap::new();
        for (number, (key, _)) in questions.iter().enumerate() {
            let slot = match &self.servers {
                Servers::One(_) => 0,
                Servers::Many(_) => key.slot(),
            };
            match self.route(slot, deadline).await {
                Ok((_, node)) => {
                    let group = groups.entry(node.id.clone()).or_insert_with(|| (node, Vec::new()));
                    group.1.push(number);
                    answers.push(Err(self.unavailable("no answer")));
                }
                Err(error) => answers.push(Err(error)),
            }
        }
        let mut sent = JoinSet::new();
        for (node, numbers) in groups.into_values() {
            for numbers in numbers.chunks(BATCH) {
                let mut pipeline = redis::Pipeline::with_capacity(numbers.len());
                for (_, command) in numbers.iter().filter_map(|number| questions.get(*number)) {
                    pipeline.add_command(command.clone());
                }
                let (shared, node, numbers) = (Arc::clone(self), Arc::clone(&node), numbers.to_vec());
                sent.spawn(async move { (numbers, shared.run_pipeline(&node, &pipeline, deadline).await) });
            }
        }
        while let Some(joined) = sent.join_next().await {
            let Ok((numbers, result)) = joined else { continue };
            let mut values = match result {
                Ok(values) => values.into_iter(),
                Err(error) => {
                    for number in numbers {
                        if let Some(answer) = answers.get_mut(number) {
                            *answer = Err(error.clone());
                        }
                    }
                    continue;
                }
            };
            for number in numbers {
                let (Some(answer), Some((key, command))) = (answers.get_mut(number), questions.get(number))
                else {
                    continue;
                };
                *answer = match values.next() {
                    // By itself it is redirected, repeated or refused with a reason.
                    Some(Value::ServerError(_)) => {
                        self.run(Work::Command { key, command }, Manner::Shared).await.map(|(value, _)| value)
                    }
                    Some(value) => Ok(value),
                    None => continue,
                };
            }
        }
        answers
    }

    async fn run_pipeline(
        &self,
        node: &Arc<Node>,
        pipeline: &redis::Pipeline,
        deadline: Instant,
    ) -> Result<Vec<Value>, CoordinationError> {
        let up = node.up(deadline).await.map_err(|reason| {
            self.doubt();
            self.unavailable(&reason)
        })?;
        let mut connection = up.connection.clone();
        let sent = connection.send_packed_commands(pipeline, 0, pipeline.len());
        self.answer(node, &up, deadline, sent).await
    }
}
