//! The measured servers: one of each kind, started here and stopped with this process.
//!
//! Invariant: a server that happens to run is never used.

use std::time::Duration;

use ade_testkit::{Postgres, Redis};

use crate::cpu_time;
use crate::error::BenchError;
use crate::etcd::Etcd;

const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerKind {
    Redis,
    Postgres,
    Etcd,
}

pub(crate) struct Servers {
    redis: Result<Redis, BenchError>,
    postgres: Result<(Postgres, usize), BenchError>,
    etcd: Result<Etcd, BenchError>,
}

impl Servers {
    /// Starts the required servers. The error of a failed start is returned when the server is used.
    pub(crate) fn start(required: &[ServerKind], clients: usize) -> Self {
        let check_required =
            |kind| if required.contains(&kind) { Ok(()) } else { Err(BenchError::new("not started")) };
        let connections = format!("max_connections={}", clients + 20);
        Self {
            redis: check_required(ServerKind::Redis)
                .and_then(|()| Redis::start().map_err(BenchError::context("start Redis (run `make deps`)"))),
            postgres: check_required(ServerKind::Postgres).and_then(|()| {
                let server = Postgres::start_with(&[&connections]);
                let server = server.map_err(BenchError::context("start PostgreSQL (run `make deps`)"))?;
                let processes = cpu_time::process_tree(server.process().pid()).len();
                Ok((server, processes))
            }),
            etcd: check_required(ServerKind::Etcd).and_then(|()| Etcd::start()),
        }
    }

    pub(crate) fn redis(&self) -> Result<&Redis, BenchError> {
        self.redis.as_ref().map_err(Clone::clone)
    }

    pub(crate) fn postgres(&self) -> Result<&Postgres, BenchError> {
        self.postgres.as_ref().map(|(server, _)| server).map_err(Clone::clone)
    }

    pub(crate) fn etcd(&self) -> Result<&Etcd, BenchError> {
        self.etcd.as_ref().map_err(Clone::clone)
    }

    /// CPU time of a server so far: reported by Redis itself, for the others by the kernel.
    pub(crate) fn cpu_time(&self, kind: ServerKind) -> Result<Duration, BenchError> {
        match kind {
            ServerKind::Redis => {
                let field = |name| self.info("cpu", name);
                Ok(Duration::from_secs_f64(field("used_cpu_user")? + field("used_cpu_sys")?))
            }
            ServerKind::Postgres => cpu_time::cpu_time(self.postgres()?.process().pid()),
            ServerKind::Etcd => cpu_time::cpu_time(self.etcd()?.pid()),
        }
    }

    /// Waits until the clients of the last slice have disconnected; flushes Redis.
    pub(crate) async fn wait_until_idle(&self, kind: ServerKind) -> Result<(), BenchError> {
        let observe = || async {
            let remaining = match kind {
                // Shared connections stay open, so only blocked clients count.
                ServerKind::Redis => self.info("clients", "blocked_clients"),
                ServerKind::Postgres => {
                    self.postgres.as_ref().map_err(Clone::clone).map(|(server, processes)| {
                        cpu_time::process_tree(server.process().pid()).len().saturating_sub(*processes + 1)
                            as f64
                    })
                }
                ServerKind::Etcd => Ok(0.0),
            };
            match remaining {
                Ok(0.0) => Ok(()),
                Ok(count) => Err(format!("{count} clients remain")),
                Err(error) => Err(error.to_string()),
            }
        };
        let idle =
            ade_testkit::wait::until("the last clients have disconnected", IDLE_TIMEOUT, observe).await;
        idle.map_err(BenchError::context("start the next slice"))?;
        if kind == ServerKind::Redis {
            let mut connection = self.redis()?.connect().map_err(BenchError::context("connect to Redis"))?;
            redis::cmd("FLUSHALL").exec(&mut connection).map_err(BenchError::context("flush Redis"))?;
        }
        Ok(())
    }

    pub(crate) async fn versions(&self) -> Vec<(String, String)> {
        let mut versions = Vec::new();
        if self.redis.is_ok() {
            let version = self.info_text("server", "redis_version").unwrap_or_default();
            versions.push(("redis".to_owned(), version));
        }
        if let Ok((server, _)) = &self.postgres {
            let version = server.psql("postgres", "SHOW server_version").unwrap_or_default();
            versions.push(("postgresql".to_owned(), version));
        }
        if let Ok(server) = &self.etcd {
            versions.push(("etcd".to_owned(), server.version().await.unwrap_or_default()));
        }
        versions
    }

    fn info(&self, section: &str, field: &str) -> Result<f64, BenchError> {
        self.info_text(section, field)?.parse().map_err(BenchError::context("parse INFO of Redis"))
    }

    fn info_text(&self, section: &str, field: &str) -> Result<String, BenchError> {
        let mut connection = self.redis()?.connect().map_err(BenchError::context("connect to Redis"))?;
        let reply = redis::cmd("INFO").arg(section).query(&mut connection);
        let text: String = reply.map_err(BenchError::context("run INFO on Redis"))?;
        let found = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        found.map(str::to_owned).ok_or_else(|| BenchError::new(format!("INFO of Redis has no field {field}")))
    }
}
