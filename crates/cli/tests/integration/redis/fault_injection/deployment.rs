//! Redis deployments and the faults that can be injected into them.
//!
//! After a fault all Redis servers run again. Before a fault that removes a primary, a replica is in sync.

use std::time::Duration;

use ade_keyspace::{Layout, ade as keys};
use ade_testkit::wait::eventually;
use ade_testkit::{Redis, RedisCluster, RedisSentinel, StartError};
use rustix::process::Signal;

/// Longer than a lease and than the failover timeout.
const STOP_DURATION: Duration = Duration::from_secs(3);
/// Generous: longer than a failover takes right after another one on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The primary is suspended for a while (SIGSTOP) and resumed.
    Stop,
    /// The primary is killed and restarted at once without data.
    RestartEmpty,
    /// All data is deleted.
    FlushAll,
    /// All scripts and functions are deleted.
    FlushScripts,
    /// All client connections are closed.
    Disconnect,
    /// The primary is killed, a replica is promoted, and the old primary returns as a replica.
    FailOver,
}

#[derive(Debug)]
pub(crate) enum Deployment {
    Standalone(Redis),
    Sentinel(RedisSentinel),
    /// The cluster and the slot of the lock.
    Cluster(RedisCluster, u16),
}

impl Deployment {
    pub(crate) fn standalone() -> Self {
        Self::Standalone(Redis::start().expect("starts"))
    }

    pub(crate) fn sentinel() -> Self {
        Self::Sentinel(RedisSentinel::start().expect("starts"))
    }

    /// A cluster, used with the lock of a task.
    pub(crate) fn cluster(task: &str) -> Self {
        let id = keys::ids::TaskId::new(task).expect("an id");
        let slot = keys::lock::task(&id).in_layout(Layout::Cluster).slot();
        Self::Cluster(RedisCluster::start().expect("starts"), slot)
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Standalone(redis) => redis.url(),
            Self::Sentinel(redis) => redis.url(),
            Self::Cluster(redis, _) => redis.url(),
        }
    }

    /// The faults of one round. Cheap ones occur twice.
    pub(crate) fn faults(&self) -> Vec<Fault> {
        use Fault::{Disconnect, FailOver, FlushAll, FlushScripts, RestartEmpty, Stop};
        let mut faults = vec![Stop, RestartEmpty];
        faults.extend([FlushAll, FlushScripts, Disconnect].repeat(2));
        if !matches!(self, Self::Standalone(_)) {
            faults.push(FailOver);
        }
        faults
    }

    fn servers(&self) -> Vec<&Redis> {
        match self {
            Self::Standalone(redis) => vec![redis],
            Self::Sentinel(redis) => redis.servers.iter().collect(),
            Self::Cluster(redis, _) => redis.nodes.iter().collect(),
        }
    }

    /// The primary that owns the lock.
    pub(crate) fn primary(&self) -> &Redis {
        let found = match self {
            Self::Standalone(redis) => Ok(redis),
            Self::Sentinel(redis) => redis.primary(),
            Self::Cluster(redis, slot) => redis.slot_owner(*slot, &[]),
        };
        found.expect("a primary")
    }

    /// Waits until the primary has a replica in sync. The primary may change meanwhile, because a failover caused by an
    /// earlier fault may come late.
    fn primary_with_replica(&self) -> &Redis {
        let found = eventually("the primary has a replica in sync", TIMEOUT, || {
            let primary = self.primary();
            if !matches!(self, Self::Standalone(_)) {
                check_replica(primary)?;
            }
            Ok(primary)
        });
        found.expect("replicates")
    }

    /// Returns when the fault is over.
    pub(crate) async fn inject(&self, fault: Fault) -> Result<(), StartError> {
        match fault {
            Fault::Stop => {
                let primary = self.primary_with_replica();
                primary.process().signal(Signal::STOP)?;
                tokio::time::sleep(STOP_DURATION).await;
                primary.process().signal(Signal::CONT)
            }
            Fault::RestartEmpty => self.primary_with_replica().kill_and_restart(),
            Fault::FlushAll => {
                self.servers().into_iter().filter(|redis| is_primary(redis)).try_for_each(flush)
            }
            Fault::FlushScripts => {
                self.servers().iter().try_for_each(|redis| redis.query(&["SCRIPT", "FLUSH"]))?;
                let primaries = self.servers().into_iter().filter(|redis| is_primary(redis));
                primaries.into_iter().try_for_each(|redis| redis.query(&["FUNCTION", "FLUSH"]))
            }
            Fault::Disconnect => self.servers().iter().try_for_each(|redis| {
                redis.query::<u64>(&["CLIENT", "KILL", "TYPE", "normal"])?;
                redis.query::<u64>(&["CLIENT", "KILL", "TYPE", "pubsub"]).map(|_| ())
            }),
            Fault::FailOver => self.fail_over(),
        }
    }

    fn fail_over(&self) -> Result<(), StartError> {
        let primary = self.primary_with_replica();
        primary.kill()?;
        match self {
            Self::Standalone(_) => primary.start_again(),
            Self::Sentinel(redis) => {
                let successor =
                    redis.primary().unwrap_or_else(|error| panic!("{error}\n{}", recent_logs(redis)));
                primary.start_again()?;
                // The sentinels would do the same, but about ten seconds later.
                primary.query::<()>(&["REPLICAOF", "127.0.0.1", &successor.port().to_string()])?;
                primary.query(&["CONFIG", "REWRITE"])
            }
            Self::Cluster(redis, slot) => {
                redis.slot_owner(*slot, &[primary.port()])?;
                primary.start_again()
            }
        }
    }
}

/// The last log lines of sentinels and servers.
fn recent_logs(redis: &RedisSentinel) -> String {
    let last = |lines: Vec<String>| {
        let skipped = lines.len().saturating_sub(40);
        lines.into_iter().skip(skipped).collect::<Vec<_>>().join("\n")
    };
    redis.processes().map(|process| last(process.log_lines_with(""))).collect::<Vec<_>>().join("\n---\n")
}

fn flush(redis: &Redis) -> Result<(), StartError> {
    redis.query(&["FLUSHALL"])
}

fn is_primary(redis: &Redis) -> bool {
    replication_info(redis).is_ok_and(|info| info.contains("role:master"))
}

fn check_replica(redis: &Redis) -> Result<(), String> {
    let info = replication_info(redis)?;
    if info.contains("role:master") && info.contains("state=online") { Ok(()) } else { Err(info) }
}

fn replication_info(redis: &Redis) -> Result<String, String> {
    redis.query(&["INFO", "replication"]).map_err(|error| error.to_string())
}
