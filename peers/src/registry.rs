//! The list of what is measured: the baselines, ADE, and every peer.
//!
//! ADE and names that end with `-shared` are compared with the baseline that shares one connection, all others with the one that
//! has a connection per client.
//!
//! Invariant: a peer that cannot be measured is listed with the reason.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::ade::Ade;
use crate::bare::Bare;
use crate::clients::ClientGroup;
use crate::error::BenchError;
use crate::lock_service::LockService;
use crate::postgres::AdvisoryLocks;
use crate::python::PythonPeer;
use crate::redlock::Redlock;
use crate::servers::{ServerKind, Servers};

const DEFAULT_BARE_PAUSE: Duration = Duration::from_millis(10);

/// Names in the order of the report, with the required servers.
pub(crate) const NAMES: [(&str, ServerKind); 9] = [
    ("bare-shared", ServerKind::Redis),
    ("bare-own", ServerKind::Redis),
    ("ade", ServerKind::Redis),
    ("rslock-shared", ServerKind::Redis),
    ("rslock-own", ServerKind::Redis),
    ("redis-py", ServerKind::Redis),
    ("python-redis-lock", ServerKind::Redis),
    ("postgresql", ServerKind::Postgres),
    ("etcd", ServerKind::Etcd),
];

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Connector = Box<dyn Fn(usize) -> BoxFuture<Result<ClientGroup, BenchError>>>;

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Pause between two tries of peers that poll; None for their default.
    pub(crate) pause: Option<Duration>,
    pub(crate) python: PathBuf,
    pub(crate) python_processes: usize,
}

pub(crate) struct Peer {
    pub(crate) name: &'static str,
    pub(crate) method: String,
    /// The baseline that connects in the same way.
    pub(crate) baseline: &'static str,
    pub(crate) server: ServerKind,
    connector: Result<Connector, BenchError>,
}

impl Peer {
    pub(crate) async fn connect(&self, count: usize) -> Result<ClientGroup, BenchError> {
        match &self.connector {
            Ok(connector) => connector(count).await,
            Err(error) => Err(error.clone()),
        }
    }

    pub(crate) async fn new(
        name: &'static str,
        server: ServerKind,
        servers: &Servers,
        settings: &Settings,
    ) -> Self {
        let baseline = if name == "ade" || name.ends_with("-shared") { "bare-shared" } else { "bare-own" };
        let connector = connector(name, servers, settings).await;
        Self { name, method: method(name, settings), baseline, server, connector }
    }
}

fn tasks<S: LockService>(service: S) -> Connector {
    let service = Arc::new(service);
    Box::new(move |count| Box::pin(ClientGroup::of_tasks(Arc::clone(&service), count)))
}

async fn connector(
    name: &'static str,
    servers: &Servers,
    settings: &Settings,
) -> Result<Connector, BenchError> {
    let pause = settings.pause;
    let redis = || servers.redis().map(ade_testkit::Redis::url);
    Ok(match name {
        "bare-shared" => tasks(Bare::shared(&redis()?, pause.unwrap_or(DEFAULT_BARE_PAUSE)).await?),
        "bare-own" => tasks(Bare::own(&redis()?, pause.unwrap_or(DEFAULT_BARE_PAUSE))?),
        "ade" => tasks(Ade::open(&redis()?).await?),
        "rslock-shared" => tasks(Redlock::shared(&redis()?, pause)?),
        "rslock-own" => tasks(Redlock::own(&redis()?, pause)),
        "postgresql" => tasks(AdvisoryLocks { url: servers.postgres()?.url("postgres") }),
        "etcd" => tasks(servers.etcd()?.lock_service()),
        peer => {
            let Settings { python, python_processes, .. } = settings.clone();
            let port = servers.redis()?.port();
            let peer = Arc::new(PythonPeer {
                interpreter: python,
                name: peer,
                port,
                processes: python_processes,
                pause,
            });
            Box::new(move |count| {
                let peer = Arc::clone(&peer);
                Box::pin(async move { peer.connect(count).await })
            })
        }
    })
}

/// How the peer is used, for the report.
fn method(name: &str, settings: &Settings) -> String {
    let retries = |default: &str| {
        settings.pause.map_or_else(|| default.to_owned(), |pause| format!("every {} ms", pause.as_millis()))
    };
    let processes = settings.python_processes;
    match name {
        "bare-shared" => {
            format!("SET NX PX and a compare-and-delete script; one multiplexed connection; retries {}", retries("every 10 ms"))
        }
        "bare-own" => format!("the same with a connection per client; retries {}", retries("every 10 ms")),
        "ade" => "the backend of ade serve --redis without HTTP: one connection, fair, fenced, with indexes and events; waits for a notification, polls every 1 s".to_owned(),
        "rslock-shared" => {
            format!("one lock manager with one multiplexed connection; retries {}", retries("at random within 200 ms"))
        }
        "rslock-own" => {
            format!("a lock manager per client; retries {}", retries("at random within 200 ms"))
        }
        "redis-py" => format!(
            "redis.lock.Lock with hiredis; {processes} processes with a thread and a connection per client; retries {}",
            retries("every 100 ms")
        ),
        "python-redis-lock" => format!(
            "redis_lock.Lock with hiredis; {processes} processes with a thread and a connection per client; waits with BLPOP"
        ),
        "postgresql" => "session advisory locks, prepared statements, a connection per client; nothing is written to disk".to_owned(),
        "etcd" => "v3 lock API over gRPC, one member, a connection and a lease per client; every change is synced to disk".to_owned(),
        _ => String::new(),
    }
}
