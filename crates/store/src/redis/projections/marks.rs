//! Marks on every server of Redis that it has all projections. A server that was emptied has none; one that restarted, or took over
//! from another one, has another run id than its mark says: it may lack the last writes.

use std::collections::BTreeMap;

use ade_keyspace::RedisKey;
use ade_keyspace::ade::{self as keys, ids};
use redis::InfoDict;

use super::{RedisProjections, Result};
use crate::coordination::CoordinationError;
use crate::redis::query::command;

/// Keys that are tried until every server has one.
const MAX_MARKERS: u32 = 1_000;

/// The servers of Redis at a time, each with the key of its mark and its run id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerRuns(Vec<(RedisKey, String)>);

impl RedisProjections {
    /// One key for each server.
    fn marks(&self) -> Result<Vec<RedisKey>> {
        let (count, mut marks) = (self.client.server_count(), BTreeMap::new());
        for number in 0..MAX_MARKERS {
            let marker = ids::Marker::new(&number.to_string())?;
            let key = keys::events::relay_mark(&marker).writable().in_layout(self.layout());
            if let Some(server) = self.client.server_of(&key) {
                marks.entry(server).or_insert(key);
            }
            if marks.len() >= count && count > 0 {
                return Ok(marks.into_values().collect());
            }
        }
        Err(CoordinationError("some server of Redis has no slots; repair the cluster".to_owned()))
    }

    async fn run_id(&self, mark: &RedisKey) -> Result<String> {
        let mut info = redis::cmd("INFO");
        info.arg("server");
        let info: InfoDict = redis::from_redis_value(self.client.query(mark, info).await?)?;
        info.get("run_id").ok_or_else(|| CoordinationError("Redis does not tell its run id".to_owned()))
    }

    /// The servers as they are now.
    pub async fn server_runs(&self) -> Result<ServerRuns> {
        let mut runs = Vec::new();
        for mark in self.marks()? {
            let run_id = self.run_id(&mark).await?;
            runs.push((mark, run_id));
        }
        Ok(ServerRuns(runs))
    }

    /// Whether every server has the mark of a part of the projections.
    pub async fn has_mark(&self, part: &str) -> Result<bool> {
        for (mark, run_id) in self.server_runs().await?.0 {
            let stored: Vec<Option<String>> = self.query_all(vec![command("HGET", &mark, part)]).await?;
            if stored.into_iter().flatten().next() != Some(run_id) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Marks the servers that have everything: those that were there before the first write. One that restarted since then, or took
    /// over, has another run id, and does not count as marked.
    pub async fn mark(&self, part: &str, before: &ServerRuns) -> Result<()> {
        let marks = before.0.iter().map(|(mark, run_id)| command("HSET", mark, (part, run_id)));
        self.run_all(marks.collect()).await
    }
}
