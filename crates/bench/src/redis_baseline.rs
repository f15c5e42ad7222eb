//! The minimum cost of a lock on Redis: `SET NX PX`, then a script that deletes the key if it is still one's own, over the same kind
//! of connection as the real locks. It has no queue, no notifications and no fencing. Also reads statistics of the servers.

use ade_keyspace::ade::{ids, job};
use ade_store::redis::{ConnectionOptions, RedisClient, RedisUrl, Script};
use redis::{InfoDict, Value};

use crate::cpu::RedisCpuTime;
use crate::error::{BenchError, ErrorKind};

const TTL_MS: u64 = 30_000;
/// The first argument of a script is the id of a cluster node.
const DELETE_OWN: &str = "redis.register_function(LIBRARY .. '_delete', function(keys, args)
    if redis.call('GET', keys[1]) == args[2] then return redis.call('DEL', keys[1]) end
    return 0
end)";

/// Clones share the connections.
#[derive(Clone)]
pub(crate) struct RedisBaseline {
    client: RedisClient,
    delete: Script,
}

impl RedisBaseline {
    pub(crate) async fn open(url: &RedisUrl) -> Result<Self, BenchError> {
        let client = RedisClient::open(url, ConnectionOptions::default()).await?;
        let [delete] = Script::library(DELETE_OWN, ["delete"]);
        Ok(Self { client, delete })
    }

    /// Acquires and releases one lock. Returns whether both succeeded.
    pub(crate) async fn acquire_and_release(&self, lock: &str, value: &str) -> Result<bool, BenchError> {
        let id = ids::JobId::new(lock).map_err(|error| invalid(&error))?;
        let key = job::lock(&id).in_layout(self.client.layout());
        let mut acquire = redis::cmd("SET");
        acquire.arg(key.as_str()).arg(value).arg("NX").arg("PX").arg(TTL_MS);
        let acquired = self.client.query(&key, acquire).await? == Value::Okay;
        let deleted = self.client.call(&self.delete, &[&key], &[value]).await?;
        Ok(acquired && deleted == Value::Int(1))
    }

    /// CPU time that all primaries have used so far.
    pub(crate) async fn cpu_time(&self) -> Result<RedisCpuTime, BenchError> {
        let [user, system, main_user, main_system] = self
            .info(
                "cpu",
                ["used_cpu_user", "used_cpu_sys", "used_cpu_user_main_thread", "used_cpu_sys_main_thread"],
            )
            .await?;
        Ok(RedisCpuTime { all_threads: user + system, main_thread: main_user + main_system })
    }

    /// Memory that all primaries use for data.
    pub(crate) async fn memory_bytes(&self) -> Result<f64, BenchError> {
        let [bytes] = self.info("memory", ["used_memory"]).await?;
        Ok(bytes)
    }

    /// Whether no primary has any key.
    pub(crate) async fn is_empty(&self) -> Result<bool, BenchError> {
        let sizes = self.client.query_primaries(redis::cmd("DBSIZE")).await?;
        Ok(sizes.iter().all(|size| *size == Value::Int(0)))
    }

    /// Deletes every key.
    pub(crate) async fn delete_all_keys(&self) -> Result<(), BenchError> {
        self.client.query_primaries(redis::cmd("FLUSHDB")).await?;
        Ok(())
    }

    /// The sums of these fields over all primaries.
    async fn info<const N: usize>(&self, section: &str, fields: [&str; N]) -> Result<[f64; N], BenchError> {
        let mut info = redis::cmd("INFO");
        info.arg(section);
        let mut sums = [0.0; N];
        for section in self.client.query_primaries(info).await? {
            let section: InfoDict = redis::from_redis_value(section).map_err(|error| invalid(&error))?;
            for (sum, field) in sums.iter_mut().zip(fields) {
                *sum += section.get::<f64>(field).unwrap_or_default();
            }
        }
        Ok(sums)
    }
}

fn invalid(error: &impl ToString) -> BenchError {
    BenchError::new(ErrorKind::Unavailable, error.to_string())
}

impl std::fmt::Debug for RedisBaseline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisBaseline").finish_non_exhaustive()
    }
}
