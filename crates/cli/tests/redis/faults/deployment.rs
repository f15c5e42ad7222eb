//! Redis as it is deployed, and what happens to it.
//!
//! A fault that is over leaves as many servers as before; before the next one that takes a primary away, a replica is in
//! sync again.

use std::time::Duration;

use ade_keyspace::{Layout, ade as keys};
use ade_testkit::wait::eventually;
use ade_testkit::{Redis, RedisCluster, RedisSentinel, StartError};
use rustix::process::Signal;

/// How long a stopped server stays stopped: longer than a lease, and than what makes a failover.
const STOPPED_FOR: Duration = Duration::from_secs(3);
/// Far beyond what a failover takes, also right after another one and on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What happens to Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The primary is stopped for a while (SIGSTOP) and goes on.
    Stop,
    /// The primary is killed and comes back at once, empty.
    RestartEmpty,
    /// All data is deleted.
    FlushAll,
    /// All scripts and functions are forgotten.
    FlushScripts,
    /// All connections end.
    Disconnect,
    /// The primary is killed, a replica takes over, the old one comes back as a replica.
    FailOver,
}

/// A deployment of Redis.
#[derive(Debug)]
pub(crate) enum Deployment {
    Standalone(Redis),
    Sentinel(RedisSentinel),
    /// With the slot of the lock.
    Cluster(RedisCluster, u16),
}

impl Deployment {
    pub(crate) fn standalone() -> Self {
        Self::Standalone(Redis::start().expect("starts"))
    }

    pub(crate) fn sentinel() -> Self {
        Self::Sentinel(RedisSentinel::start().expect("starts"))
    }

    /// A cluster; the lock is that of a task.
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

    /// What happens to it in one round; what costs little, twice.
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

    /// The primary that has the lock.
    pub(crate) fn primary(&self) -> &Redis {
        let found = match self {
            Self::Standalone(redis) => Ok(redis),
            Self::Sentinel(redis) => redis.primary(),
            Self::Cluster(redis, slot) => redis.owner(*slot, &[]),
        };
        found.expect("there is one")
    }

    /// The same, once somebody could take its place. It may change meanwhile: a failover that an earlier fault caused may
    /// come late.
    fn replaceable_primary(&self) -> &Redis {
        let found = eventually("the primary has a replica in sync", PATIENCE, || {
            let primary = self.primary();
            if !matches!(self, Self::Standalone(_)) {
                has_replica(primary)?;
            }
            Ok(primary)
        });
        found.expect("replicates")
    }

    /// Lets it happen; returns when it is over.
    pub(crate) async fn suffer(&self, fault: Fault) -> Result<(), StartError> {
        match fault {
            Fault::Stop => {
                let primary = self.replaceable_primary();
                primary.process().signal(Signal::STOP)?;
                tokio::time::sleep(STOPPED_FOR).await;
                primary.process().signal(Signal::CONT)
            }
            Fault::RestartEmpty => self.replaceable_primary().kill_and_restart(),
            Fault::FlushAll => {
                self.servers().into_iter().filter(|redis| is_primary(redis)).try_for_each(flush)
            }
            Fault::FlushScripts => {
                self.servers().iter().try_for_each(|redis| redis.tell(&["SCRIPT", "FLUSH"]))?;
                let primaries = self.servers().into_iter().filter(|redis| is_primary(redis));
                primaries.into_iter().try_for_each(|redis| redis.tell(&["FUNCTION", "FLUSH"]))
            }
            Fault::Disconnect => self.servers().iter().try_for_each(|redis| {
                redis.tell::<u64>(&["CLIENT", "KILL", "TYPE", "normal"])?;
                redis.tell::<u64>(&["CLIENT", "KILL", "TYPE", "pubsub"]).map(|_| ())
            }),
            Fault::FailOver => self.fail_over(),
        }
    }

    fn fail_over(&self) -> Result<(), StartError> {
        let primary = self.replaceable_primary();
        primary.kill()?;
        match self {
            Self::Standalone(_) => primary.start_again(),
            Self::Sentinel(redis) => {
                let successor = redis.primary().unwrap_or_else(|error| panic!("{error}\n{}", logs(redis)));
                primary.start_again()?;
                // The sentinels would do the same, some ten seconds later.
                primary.tell::<()>(&["REPLICAOF", "127.0.0.1", &successor.port().to_string()])?;
                primary.tell(&["CONFIG", "REWRITE"])
            }
            Self::Cluster(redis, slot) => {
                redis.owner(*slot, &[primary.port()])?;
                primary.start_again()
            }
        }
    }
}

/// What sentinels and servers said last.
fn logs(redis: &RedisSentinel) -> String {
    let last = |lines: Vec<String>| {
        let old = lines.len().saturating_sub(40);
        lines.into_iter().skip(old).collect::<Vec<_>>().join("\n")
    };
    redis.processes().map(|process| last(process.lines_with(""))).collect::<Vec<_>>().join("\n---\n")
}

fn flush(redis: &Redis) -> Result<(), StartError> {
    redis.tell(&["FLUSHALL"])
}

fn is_primary(redis: &Redis) -> bool {
    replication(redis).is_ok_and(|info| info.contains("role:master"))
}

fn has_replica(redis: &Redis) -> Result<(), String> {
    let info = replication(redis)?;
    if info.contains("role:master") && info.contains("state=online") { Ok(()) } else { Err(info) }
}

fn replication(redis: &Redis) -> Result<String, String> {
    redis.tell(&["INFO", "replication"]).map_err(|error| error.to_string())
}
