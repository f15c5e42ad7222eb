//! CPU time per operation of every part of a measurement: server, Redis, PostgreSQL and client. All rows measure it in the same way,
//! with one snapshot before and one after the operations.
//!
//! This is what is compared from run to run: it depends less than rates and latencies on what else the machine does.

use std::ops::AddAssign;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::error::BenchError;
use crate::processes;
use crate::redis_baseline::RedisBaseline;
use crate::report::Figure;

/// Threads that run the clients of a row, unless the row has more.
pub(crate) const ONE_THREAD: usize = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Server,
    Redis,
    PostgreSql,
    Client,
}

impl Part {
    pub(crate) const ALL: [Self; 4] = [Self::Server, Self::Redis, Self::PostgreSql, Self::Client];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Redis => "Redis",
            Self::PostgreSql => "PostgreSQL",
            Self::Client => "client",
        }
    }
}

/// The parts of a measurement. A part that does not take part, or whose CPU time cannot be known, is `None`. The client is this
/// process.
#[derive(Debug, Clone, Default)]
pub(crate) struct CpuMeter {
    pub(crate) server: Option<u32>,
    pub(crate) redis: Option<RedisBaseline>,
    pub(crate) postmaster: Option<u32>,
}

/// CPU seconds of all parts up to a moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CpuSnapshot {
    /// Of the client, before and after the others were read: reading them is no part of a measurement.
    client_before: f64,
    client_after: f64,
    server: Option<f64>,
    redis: Option<RedisCpuTime>,
    postgres: Option<f64>,
}

/// CPU seconds of Redis, as it reports them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RedisCpuTime {
    pub(crate) all_threads: f64,
    pub(crate) main_thread: f64,
}

/// CPU seconds that all parts spent on a number of operations.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CpuTimes {
    pub(crate) server: Option<f64>,
    pub(crate) redis: Option<f64>,
    redis_main_thread: Option<f64>,
    postgres: Option<f64>,
    client: f64,
}

/// CPU time per operation.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CpuCost {
    pub operation: String,
    pub operations: usize,
    /// In microseconds, like all others. `None` for a part that is not used, or whose CPU time is unknown.
    pub server_us: Option<f64>,
    pub redis_us: Option<f64>,
    pub redis_main_thread_us: Option<f64>,
    pub postgresql_us: Option<f64>,
    pub client_us: f64,
    pub client_threads: usize,
}

impl CpuMeter {
    pub(crate) async fn read(&self) -> Result<CpuSnapshot, BenchError> {
        let client_before = client_seconds();
        let redis = match &self.redis {
            Some(redis) => Some(redis.cpu_time().await?),
            None => None,
        };
        let server = self.server.map(processes::cpu_seconds).transpose()?;
        let postgres = self.postmaster.map(processes::tree_cpu_seconds).transpose()?;
        Ok(CpuSnapshot { client_before, client_after: client_seconds(), server, redis, postgres })
    }
}

/// All threads of this process, including those that have ended.
#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn client_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

impl CpuSnapshot {
    pub(crate) fn since(&self, earlier: &Self) -> CpuTimes {
        let difference = |now: Option<f64>, before: Option<f64>| Some(now? - before?);
        let redis = |of: fn(RedisCpuTime) -> f64| difference(self.redis.map(of), earlier.redis.map(of));
        CpuTimes {
            server: difference(self.server, earlier.server),
            redis: redis(|time| time.all_threads),
            redis_main_thread: redis(|time| time.main_thread),
            postgres: difference(self.postgres, earlier.postgres),
            client: self.client_before - earlier.client_after,
        }
    }
}

impl AddAssign for CpuTimes {
    fn add_assign(&mut self, other: Self) {
        let sum = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a + b).or(a).or(b);
        *self = Self {
            server: sum(self.server, other.server),
            redis: sum(self.redis, other.redis),
            redis_main_thread: sum(self.redis_main_thread, other.redis_main_thread),
            postgres: sum(self.postgres, other.postgres),
            client: self.client + other.client,
        };
    }
}

impl CpuTimes {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    pub(crate) fn per(
        &self,
        operation: impl Into<String>,
        operations: usize,
        client_threads: usize,
    ) -> CpuCost {
        let us = |seconds: f64| seconds * 1e6 / operations.max(1) as f64;
        CpuCost {
            operation: operation.into(),
            operations,
            server_us: self.server.map(us),
            redis_us: self.redis.map(us),
            redis_main_thread_us: self.redis_main_thread.map(us),
            postgresql_us: self.postgres.map(us),
            client_us: us(self.client),
            client_threads,
        }
    }
}

impl CpuCost {
    fn us(&self, part: Part) -> Option<f64> {
        match part {
            Part::Server => self.server_us,
            Part::Redis => self.redis_us,
            Part::PostgreSql => self.postgresql_us,
            Part::Client => Some(self.client_us),
        }
    }

    /// Names and values of the parts that were measured.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (String, f64)> {
        Part::ALL.into_iter().filter_map(|part| Some((self.figure_name(part), self.us(part)?)))
    }

    /// A part with its aim, if it was measured.
    pub(crate) fn figure_below(&self, part: Part, aim_us: f64) -> Option<Figure> {
        Some(Figure::below(self.figure_name(part), self.us(part)?, "µs", aim_us))
    }

    fn figure_name(&self, part: Part) -> String {
        format!("{} per {}", part.name(), self.operation)
    }
}
