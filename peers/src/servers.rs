//! The servers that are measured: one of each kind, started here and stopped with us.
//!
//! Invariant: a server that is found running is never used.

use std::time::Duration;

use ade_testkit::{Postgres, Redis};

use crate::etcd::Etcd;
use crate::failure::Failure;
use crate::usage;

/// How long what a crowd left behind may take to go away.
const QUIET_TIMEOUT: Duration = Duration::from_secs(60);

/// Which server a peer locks with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Redis,
    Postgres,
    Etcd,
}

pub(crate) struct Servers {
    redis: Result<Redis, Failure>,
    postgres: Result<(Postgres, usize), Failure>,
    etcd: Result<Etcd, Failure>,
}

impl Servers {
    /// Starts those that are wanted; what cannot be started is told when it is needed.
    pub(crate) fn start(wanted: &[Kind], clients: usize) -> Self {
        let unwanted = |kind| if wanted.contains(&kind) { Ok(()) } else { Err(Failure::new("not started")) };
        let connections = format!("max_connections={}", clients + 20);
        Self {
            redis: unwanted(Kind::Redis)
                .and_then(|()| Redis::start().map_err(Failure::of("start Redis (run `make deps`)"))),
            postgres: unwanted(Kind::Postgres).and_then(|()| {
                let server = Postgres::start_with(&[&connections]);
                let server = server.map_err(Failure::of("start PostgreSQL (run `make deps`)"))?;
                let processes = usage::tree(server.process().pid()).len();
                Ok((server, processes))
            }),
            etcd: unwanted(Kind::Etcd).and_then(|()| Etcd::start()),
        }
    }

    pub(crate) fn redis(&self) -> Result<&Redis, Failure> {
        self.redis.as_ref().map_err(Clone::clone)
    }

    pub(crate) fn postgres(&self) -> Result<&Postgres, Failure> {
        self.postgres.as_ref().map(|(server, _)| server).map_err(Clone::clone)
    }

    pub(crate) fn etcd(&self) -> Result<&Etcd, Failure> {
        self.etcd.as_ref().map_err(Clone::clone)
    }

    /// Processor time that a server has used so far. Redis says so itself; of the others the kernel does.
    pub(crate) fn cpu(&self, kind: Kind) -> Result<Duration, Failure> {
        match kind {
            Kind::Redis => {
                let field = |name| self.info("cpu", name);
                Ok(Duration::from_secs_f64(field("used_cpu_user")? + field("used_cpu_sys")?))
            }
            Kind::Postgres => usage::cpu(self.postgres()?.process().pid()),
            Kind::Etcd => usage::cpu(self.etcd()?.pid()),
        }
    }

    /// Returns when the clients of the last crowd are gone from the server, and with them their locks.
    pub(crate) async fn quiet(&self, kind: Kind) -> Result<(), Failure> {
        let look = || async {
            let left = match kind {
                // What all peers share is connected all the time; the last one is this question.
                Kind::Redis => self.info("clients", "blocked_clients"),
                Kind::Postgres => self.postgres.as_ref().map_err(Clone::clone).map(|(server, processes)| {
                    usage::tree(server.process().pid()).len().saturating_sub(*processes + 1) as f64
                }),
                Kind::Etcd => Ok(0.0),
            };
            match left {
                Ok(0.0) => Ok(()),
                Ok(left) => Err(format!("{left} left")),
                Err(failure) => Err(failure.to_string()),
            }
        };
        let quiet = ade_testkit::wait::until("the last clients are gone", QUIET_TIMEOUT, look).await;
        quiet.map_err(Failure::of("go on"))?;
        if kind == Kind::Redis {
            let mut connection = self.redis()?.connect().map_err(Failure::of("reach Redis"))?;
            redis::cmd("FLUSHALL").exec(&mut connection).map_err(Failure::of("empty Redis"))?;
        }
        Ok(())
    }

    /// Versions of the servers that run.
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

    fn info(&self, section: &str, field: &str) -> Result<f64, Failure> {
        self.info_text(section, field)?.parse().map_err(Failure::of("read INFO"))
    }

    fn info_text(&self, section: &str, field: &str) -> Result<String, Failure> {
        let mut connection = self.redis()?.connect().map_err(Failure::of("reach Redis"))?;
        let asked = redis::cmd("INFO").arg(section).query(&mut connection);
        let text: String = asked.map_err(Failure::of("ask Redis for INFO"))?;
        let found = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        found.map(str::to_owned).ok_or_else(|| Failure::new(format!("INFO of Redis has no {field}")))
    }
}
