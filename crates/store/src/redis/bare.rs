//! The least that a lock on Redis can cost: `SET NX PX`, then a script that deletes what is still one's own, over the same
//! link as the real one. `ade bench` measures beside it; nothing else uses it. It queues nobody, tells nobody, and fences
//! nothing.

use ade_keyspace::ade::{ids, job};
use redis::Value;

use super::link::{self, Link, Script};
use super::{RedisUrl, foreign, step};
use crate::coordination::CoordinationError;

const TTL_MS: u64 = 30_000;

/// Bare locks, and what a measurement wants to know of the server.
#[derive(Clone)]
pub struct Bare {
    link: Link,
    delete: Script,
}

impl Bare {
    /// Connects.
    pub async fn open(url: &RedisUrl) -> Result<Self, CoordinationError> {
        let link = Link::open(url, link::Options::default()).await?;
        let delete =
            "if redis.call('GET', KEYS[1]) == ARGV[2] then return redis.call('DEL', KEYS[1]) end return 0";
        Ok(Self { link, delete: Script::new(delete) })
    }

    /// Takes a lock and gives it back; whether both succeeded.
    pub async fn pair(&self, lock: &str, value: &str) -> Result<bool, CoordinationError> {
        let id = ids::JobId::new(lock).map_err(|error| CoordinationError(error.to_string()))?;
        let key = job::lock(&id).in_layout(self.link.layout());
        let mut take = redis::cmd("SET");
        take.arg(key.as_str()).arg(value).arg("NX").arg("PX").arg(TTL_MS);
        let taken = self.link.ask(&key, take).await? == Value::Okay;
        let deleted = self.link.call(&self.delete, &[key], &[value.as_bytes()]).await?;
        Ok(taken && deleted == Value::Int(1))
    }

    /// Processor time that the servers have used so far, in seconds.
    pub async fn cpu_seconds(&self) -> Result<f64, CoordinationError> {
        self.info("cpu", &["used_cpu_user", "used_cpu_sys"]).await
    }

    /// Memory that the servers use for data, in bytes.
    pub async fn memory_bytes(&self) -> Result<f64, CoordinationError> {
        self.info("memory", &["used_memory"]).await
    }

    /// Whether there is no key at all.
    pub async fn is_empty(&self) -> Result<bool, CoordinationError> {
        let sizes = self.link.each_primary(redis::cmd("DBSIZE")).await?;
        Ok(sizes.iter().all(|size| *size == Value::Int(0)))
    }

    /// Removes every key there is.
    pub async fn clear(&self) -> Result<(), CoordinationError> {
        self.link.each_primary(redis::cmd("FLUSHDB")).await.map(drop)
    }

    async fn info(&self, section: &str, fields: &[&str]) -> Result<f64, CoordinationError> {
        let mut info = redis::cmd("INFO");
        info.arg(section);
        let mut sum = 0.0;
        for answer in self.link.each_primary(info).await? {
            let answer = match &answer {
                Value::VerbatimString { text, .. } => text.as_str(),
                other => step::text(other).map_err(foreign)?,
            };
            let of_field = |line: &str| {
                let (name, value) = line.trim().split_once(':')?;
                fields.contains(&name).then(|| value.parse::<f64>().ok())?
            };
            sum += answer.lines().filter_map(of_field).sum::<f64>();
        }
        Ok(sum)
    }
}

impl std::fmt::Debug for Bare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bare").finish_non_exhaustive()
    }
}
