//! Several `ade serve` that share one Redis, standalone or a cluster, and agents who speak with any of them.
//!
//! Every server has the same configuration unless a test says otherwise; nothing here waits on time.

use std::time::Duration;

use ade_client::wire::{
    AcquireRequest, Grant, HeartbeatRequest, HeldLock, HoldRequest, HoldResults, Lock, LockAsk, Mode,
};
use ade_client::{Acquired, Client, Error};
use ade_testkit::ade::Setup;
use ade_testkit::wait::until;
use ade_testkit::{Ade, Redis, RedisCluster};
use tokio::task::JoinHandle;

/// Far beyond what anything here takes, also on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The Redis that they share.
#[derive(Debug)]
pub(crate) enum Store {
    Alone(Redis),
    Cluster(RedisCluster),
}

impl Store {
    pub(crate) fn alone() -> Self {
        Self::Alone(Redis::start().expect("starts"))
    }

    pub(crate) fn cluster() -> Self {
        Self::Cluster(RedisCluster::start().expect("starts"))
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Alone(redis) => redis.url(),
            Self::Cluster(cluster) => cluster.url(),
        }
    }

    /// Whoever has keys of their own.
    pub(crate) fn primaries(&self) -> &[Redis] {
        match self {
            Self::Alone(redis) => std::slice::from_ref(redis),
            Self::Cluster(cluster) => cluster.nodes.get(..3).expect("three primaries"),
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }
}

/// Servers on one Redis. They are dropped before it is.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) servers: Vec<Ade>,
    /// A client of each, in the same order.
    pub(crate) clients: Vec<Client>,
    pub(crate) store: Store,
}

pub(crate) fn setup(store: &Store, config: &str) -> Setup {
    Setup::new(env!("CARGO_BIN_EXE_ade")).config(config).argument("--redis").argument(&store.url())
}

impl Fleet {
    /// So many servers, each with this configuration.
    pub(crate) fn start(store: Store, servers: usize, config: &str) -> Self {
        let setups = (0..servers).map(|_| setup(&store, config)).collect();
        Self::of(store, setups)
    }

    /// Servers that differ.
    pub(crate) fn of(store: Store, setups: Vec<Setup>) -> Self {
        let servers: Vec<Ade> = setups.into_iter().map(|setup| setup.start().expect("starts")).collect();
        let clients = servers.iter().map(|server| server.client().expect("a client")).collect();
        Self { servers, clients, store }
    }

    /// The client of some server; they take turns.
    pub(crate) fn any(&self, number: usize) -> &Client {
        self.clients.get(number % self.clients.len()).expect("a server")
    }

    /// Log lines of any server that contain a text.
    pub(crate) fn lines_with(&self, text: &str) -> Vec<String> {
        self.servers.iter().flat_map(|server| server.process().lines_with(text)).collect()
    }
}

/// A request of an agent for one lock; its holder is the agent.
pub(crate) fn ask(agent: &str, lock: &str, mode: Mode, wait: f64) -> AcquireRequest {
    AcquireRequest {
        locks: vec![LockAsk { lock: lock.to_owned(), mode: Some(mode) }],
        agent_id: Some(agent.to_owned()),
        ttl_seconds: Some(300.0),
        wait_seconds: Some(wait),
        ..AcquireRequest::default()
    }
}

pub(crate) async fn acquire(client: &Client, request: &AcquireRequest) -> Result<Grant, Error> {
    match client.acquire(request).await? {
        Acquired::Granted(grants) => Ok(grants.grants.into_iter().next().expect("a grant")),
        Acquired::Ticket(ticket) => panic!("{ticket:?} was not asked for"),
    }
}

/// Takes a lock that is free.
pub(crate) async fn take(client: &Client, agent: &str, lock: &str, mode: Mode) -> Grant {
    acquire(client, &ask(agent, lock, mode, 0.0)).await.expect("free")
}

/// Waits for a lock in a task of its own.
pub(crate) fn wait_for(
    client: &Client,
    agent: &str,
    lock: &str,
    mode: Mode,
) -> JoinHandle<Result<Grant, Error>> {
    let (client, request) = (client.clone(), ask(agent, lock, mode, 120.0));
    tokio::spawn(async move { acquire(&client, &request).await })
}

pub(crate) fn held(grant: &Grant) -> Vec<HeldLock> {
    vec![HeldLock { lock: grant.lock.clone(), fencing_token: grant.fencing_token }]
}

pub(crate) fn hold(agent: &str, grant: &Grant) -> HoldRequest {
    HoldRequest { agent_id: Some(agent.to_owned()), holder_id: None, locks: held(grant) }
}

pub(crate) async fn release(client: &Client, agent: &str, grant: &Grant) {
    client.release(&hold(agent, grant)).await.expect("released");
}

pub(crate) async fn heartbeat(client: &Client, agent: &str, grant: &Grant) -> Result<HoldResults, Error> {
    let agent_id = Some(agent.to_owned());
    let request = HeartbeatRequest { agent_id, locks: held(grant), ..HeartbeatRequest::default() };
    client.heartbeat(&request).await
}

/// Waits until a lock looks as it should.
pub(crate) async fn lock_that(
    client: &Client,
    lock: &str,
    what: &str,
    within: Duration,
    fits: impl Fn(&Lock) -> bool,
) -> Lock {
    let look = || async {
        let now = client.lock(lock).await.map_err(|error| error.to_string())?;
        if fits(&now) { Ok(now) } else { Err(format!("{} wait for {:?}", now.queue_length, now.holders)) }
    };
    until(&format!("{lock}: {what}"), within, look).await.expect("in time")
}

/// Waits until exactly these agents wait for a lock, in this order.
pub(crate) async fn queued(client: &Client, lock: &str, agents: &[&str]) {
    let fits =
        |now: &Lock| now.queue.iter().map(|waiter| waiter.agent_id.as_str()).eq(agents.iter().copied());
    lock_that(client, lock, &format!("{agents:?} wait"), LONG, fits).await;
}
