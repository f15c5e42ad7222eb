//! The minimum cost of a lock on Redis: `SET NX PX`, then a script that deletes the key if it is still one's own,
//! over the same connections as the real backend. Only `ade bench` uses it, for comparison. It has no queue, no
//! notifications and no fencing.

use ade_keyspace::ade::{ids, job};
use redis::{InfoDict, Value};

use super::RedisUrl;
use super::connection::{ConnectionOptions, RedisClient, Script};
use crate::coordination::CoordinationError;

const TTL_MS: u64 = 30_000;

/// Baseline locks, and server statistics for benchmarks.
#[derive(Clone)]
pub struct RedisBaseline {
    client: RedisClient,
    delete: Script,
}

impl RedisBaseline {
    pub async fn open(url: &RedisUrl) -> Result<Self, CoordinationError> {
        let client = RedisClient::open(url, ConnectionOptions::default()).await?;
        let delete = "redis.register_function(LIBRARY .. '_delete', function(keys, args)
            if redis.call('GET', keys[1]) == args[2] then return redis.call('DEL', keys[1]) end return 0 end)";
        let [delete] = Script::library(delete, ["delete"]);
        Ok(Self { client, delete })
    }

    /// Acquires and releases one lock. Returns whether both succeeded.
    pub async fn acquire_and_release(&self, lock: &str, value: &str) -> Result<bool, CoordinationError> {
        let id = ids::JobId::new(lock).map_err(|error| CoordinationError(error.to_string()))?;
        let key = job::lock(&id).in_layout(self.client.layout());
        let mut acquire = redis::cmd("SET");
        acquire.arg(key.as_str()).arg(value).arg("NX").arg("PX").arg(TTL_MS);
        let acquired = self.client.query(&key, acquire).await? == Value::Okay;
        let deleted = self.client.call(&self.delete, &[&key], &[value]).await?;
        Ok(acquired && deleted == Value::Int(1))
    }

    /// CPU time that all primaries have used so far.
    pub async fn cpu_seconds(&self) -> Result<f64, CoordinationError> {
        self.info("cpu", &["used_cpu_user", "used_cpu_sys"]).await
    }

    /// Memory that all primaries use for data.
    pub async fn memory_bytes(&self) -> Result<f64, CoordinationError> {
        self.info("memory", &["used_memory"]).await
    }

    /// Whether no primary has any key.
    pub async fn is_empty(&self) -> Result<bool, CoordinationError> {
        let sizes = self.client.query_primaries(redis::cmd("DBSIZE")).await?;
        Ok(sizes.iter().all(|size| *size == Value::Int(0)))
    }

    /// Deletes every key.
    pub async fn delete_all_keys(&self) -> Result<(), CoordinationError> {
        self.client.query_primaries(redis::cmd("FLUSHDB")).await.map(drop)
    }

    async fn info(&self, section: &str, fields: &[&str]) -> Result<f64, CoordinationError> {
        let mut info = redis::cmd("INFO");
        info.arg(section);
        let mut sum = 0.0;
        for section in self.client.query_primaries(info).await? {
            let section: InfoDict = redis::from_redis_value(section)?;
            sum += fields.iter().filter_map(|field| section.get::<f64>(field)).sum::<f64>();
        }
        Ok(sum)
    }
}

impl std::fmt::Debug for RedisBaseline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bare").finish_non_exhaustive()
    }
}
