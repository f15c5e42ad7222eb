//! Fixture: several `ade serve` processes that share one Redis (standalone or cluster), and helpers for agents that use
//! any of them. Nothing here waits for a fixed time.

use std::time::Duration;

use ade_client::wire::{
    AcquireRequest, Grant, HeartbeatRequest, HeldLockResults, HeldLocksRequest, Lock, LockMode, LockSpec,
    LockToken,
};
use ade_client::{AcquireOutcome, Client, Error};
use ade_testkit::server::ServerBuilder;
use ade_testkit::wait::until;
use ade_testkit::{AdeServer, Redis, RedisCluster};
use tokio::task::JoinHandle;

/// Generous: only a hang reaches it, even on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) enum RedisBackend {
    Standalone(Redis),
    Cluster(RedisCluster),
}

impl RedisBackend {
    pub(crate) fn standalone() -> Self {
        Self::Standalone(Redis::start().expect("starts"))
    }

    pub(crate) fn cluster() -> Self {
        Self::Cluster(RedisCluster::start().expect("starts"))
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Standalone(redis) => redis.url(),
            Self::Cluster(cluster) => cluster.url(),
        }
    }

    /// The nodes that own keys.
    pub(crate) fn primaries(&self) -> &[Redis] {
        match self {
            Self::Standalone(redis) => std::slice::from_ref(redis),
            Self::Cluster(cluster) => cluster.nodes.get(..3).expect("three primaries"),
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }
}

/// Field order is drop order: servers stop before their Redis.
#[derive(Debug)]
pub(crate) struct ServerGroup {
    pub(crate) servers: Vec<AdeServer>,
    /// One client per server, in the same order.
    pub(crate) clients: Vec<Client>,
    pub(crate) redis: RedisBackend,
}

pub(crate) fn setup(redis: &RedisBackend, config: &str) -> ServerBuilder {
    ServerBuilder::new(env!("CARGO_BIN_EXE_ade")).config(config).arg("--redis").arg(&redis.url())
}

impl ServerGroup {
    pub(crate) fn start(redis: RedisBackend, servers: usize, config: &str) -> Self {
        let setups = (0..servers).map(|_| setup(&redis, config)).collect();
        Self::start_each(redis, setups)
    }

    /// Starts servers with different configurations.
    pub(crate) fn start_each(redis: RedisBackend, setups: Vec<ServerBuilder>) -> Self {
        let servers: Vec<AdeServer> =
            setups.into_iter().map(|setup| setup.start().expect("starts")).collect();
        let clients = servers.iter().map(|server| server.client().expect("a client")).collect();
        Self { servers, clients, redis }
    }

    /// The client of a server, round-robin by number.
    pub(crate) fn client(&self, number: usize) -> &Client {
        self.clients.get(number % self.clients.len()).expect("a server")
    }

    /// Log lines of all servers that contain `text`.
    pub(crate) fn lines_with(&self, text: &str) -> Vec<String> {
        self.servers.iter().flat_map(|server| server.process().log_lines_with(text)).collect()
    }
}

/// A request for one lock, without a holder id of its own.
pub(crate) fn request(agent: &str, lock: &str, mode: LockMode, wait: f64) -> AcquireRequest {
    AcquireRequest {
        locks: vec![LockSpec { lock: lock.to_owned(), mode: Some(mode) }],
        agent_id: Some(agent.to_owned()),
        ttl_seconds: Some(300.0),
        wait_seconds: Some(wait),
        ..AcquireRequest::default()
    }
}

pub(crate) async fn acquire(client: &Client, request: &AcquireRequest) -> Result<Grant, Error> {
    match client.acquire_locks(request).await? {
        AcquireOutcome::Granted(grants) => Ok(grants.grants.into_iter().next().expect("a grant")),
        AcquireOutcome::Queued(ticket) => panic!("unexpected ticket {ticket:?}"),
    }
}

/// Acquires a lock that must be free.
pub(crate) async fn take(client: &Client, agent: &str, lock: &str, mode: LockMode) -> Grant {
    acquire(client, &request(agent, lock, mode, 0.0)).await.expect("free")
}

/// Waits for a lock in a spawned task.
pub(crate) fn wait_for(
    client: &Client,
    agent: &str,
    lock: &str,
    mode: LockMode,
) -> JoinHandle<Result<Grant, Error>> {
    let (client, request) = (client.clone(), request(agent, lock, mode, 120.0));
    tokio::spawn(async move { acquire(&client, &request).await })
}

pub(crate) fn held_locks(grant: &Grant) -> Vec<LockToken> {
    vec![LockToken { lock: grant.lock.clone(), fencing_token: grant.fencing_token }]
}

pub(crate) fn hold_request(agent: &str, grant: &Grant) -> HeldLocksRequest {
    HeldLocksRequest { agent_id: Some(agent.to_owned()), holder_id: None, locks: held_locks(grant) }
}

pub(crate) async fn release(client: &Client, agent: &str, grant: &Grant) {
    client.release_locks(&hold_request(agent, grant)).await.expect("released");
}

pub(crate) async fn heartbeat(client: &Client, agent: &str, grant: &Grant) -> Result<HeldLockResults, Error> {
    let agent_id = Some(agent.to_owned());
    let request = HeartbeatRequest { agent_id, locks: held_locks(grant), ..HeartbeatRequest::default() };
    client.lock_heartbeat(&request).await
}

/// Waits until the state of a lock satisfies `matches`.
pub(crate) async fn wait_for_lock(
    client: &Client,
    lock: &str,
    what: &str,
    timeout: Duration,
    matches: impl Fn(&Lock) -> bool,
) -> Lock {
    let observe = || async {
        let now = client.lock(lock).await.map_err(|error| error.to_string())?;
        if matches(&now) {
            Ok(now)
        } else {
            Err(format!("{} waiters, holders {:?}", now.queue_length, now.holders))
        }
    };
    until(&format!("{lock}: {what}"), timeout, observe).await.expect("in time")
}

/// Waits until the queue of a lock is exactly `agents`, in this order.
pub(crate) async fn wait_until_queued(client: &Client, lock: &str, agents: &[&str]) {
    let matches =
        |now: &Lock| now.queue.iter().map(|waiter| waiter.agent_id.as_str()).eq(agents.iter().copied());
    wait_for_lock(client, lock, &format!("{agents:?} wait"), TIMEOUT, matches).await;
}
