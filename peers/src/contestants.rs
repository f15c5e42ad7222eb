//! Who is measured: the bare minimum, then every peer.
//!
//! A name that ends with `-shared`, and ADE, are compared with the bare minimum that shares one connection, any other with
//! the one that has a connection for each client.
//!
//! Invariant: whoever cannot take part is in the list all the same, with the reason.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::ade::Ade;
use crate::advisory::Advisory;
use crate::bare::Bare;
use crate::crowd::Crowd;
use crate::failure::Failure;
use crate::peer::Peer;
use crate::python::Python;
use crate::redlock::Redlock;
use crate::servers::{Kind, Servers};

/// Pause of the bare minimum between two tries: it has none of its own.
const BARE_PAUSE: Duration = Duration::from_millis(10);

/// Every name, in the order of the report, with the server that it needs.
pub(crate) const NAMES: [(&str, Kind); 9] = [
    ("bare-shared", Kind::Redis),
    ("bare-own", Kind::Redis),
    ("ade", Kind::Redis),
    ("rslock-shared", Kind::Redis),
    ("rslock-own", Kind::Redis),
    ("redis-py", Kind::Redis),
    ("python-redis-lock", Kind::Redis),
    ("postgresql", Kind::Postgres),
    ("etcd", Kind::Etcd),
];

type Gathering<'a> = Pin<Box<dyn Future<Output = Result<Crowd, Failure>> + Send + 'a>>;
type Gather = Box<dyn Fn(usize) -> Gathering<'static>>;

/// What contestants are told about themselves.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Pause between two tries, for those that ask again; their own if there is none.
    pub(crate) pause: Option<Duration>,
    pub(crate) python: PathBuf,
    pub(crate) python_processes: usize,
}

/// One that is measured.
pub(crate) struct Contestant {
    pub(crate) name: &'static str,
    pub(crate) how: String,
    /// The bare minimum that is connected in the same way.
    pub(crate) beside: &'static str,
    pub(crate) server: Kind,
    gather: Result<Gather, Failure>,
}

impl Contestant {
    /// So many clients, connected.
    pub(crate) async fn crowd(&self, count: usize) -> Result<Crowd, Failure> {
        match &self.gather {
            Ok(gather) => gather(count).await,
            Err(failure) => Err(failure.clone()),
        }
    }

    pub(crate) async fn new(
        name: &'static str,
        server: Kind,
        servers: &Servers,
        settings: &Settings,
    ) -> Self {
        let beside = if name == "ade" || name.ends_with("-shared") { "bare-shared" } else { "bare-own" };
        let gather = gather(name, servers, settings).await;
        Self { name, how: how(name, settings), beside, server, gather }
    }
}

fn tasks<P: Peer>(peer: P) -> Gather {
    let peer = Arc::new(peer);
    Box::new(move |count| Box::pin(Crowd::of_tasks(Arc::clone(&peer), count)))
}

async fn gather(name: &'static str, servers: &Servers, settings: &Settings) -> Result<Gather, Failure> {
    let pause = settings.pause;
    let redis = || servers.redis().map(ade_testkit::Redis::url);
    Ok(match name {
        "bare-shared" => tasks(Bare::shared(&redis()?, pause.unwrap_or(BARE_PAUSE)).await?),
        "bare-own" => tasks(Bare::own(&redis()?, pause.unwrap_or(BARE_PAUSE))?),
        "ade" => tasks(Ade::open(&redis()?).await?),
        "rslock-shared" => tasks(Redlock::shared(&redis()?, pause)?),
        "rslock-own" => tasks(Redlock::own(&redis()?, pause)),
        "postgresql" => tasks(Advisory { url: servers.postgres()?.url("postgres") }),
        "etcd" => tasks(servers.etcd()?.peer()),
        peer => {
            let Settings { python, python_processes, .. } = settings.clone();
            let port = servers.redis()?.port();
            let crowd =
                Arc::new(Python { interpreter: python, peer, port, processes: python_processes, pause });
            Box::new(move |count| {
                let crowd = Arc::clone(&crowd);
                Box::pin(async move { crowd.crowd(count).await })
            })
        }
    })
}

/// For the report: what was done, where it could have been done differently.
fn how(name: &str, settings: &Settings) -> String {
    let every = |own: &str| {
        settings.pause.map_or_else(|| own.to_owned(), |pause| format!("every {} ms", pause.as_millis()))
    };
    let processes = settings.python_processes;
    match name {
        "bare-shared" => {
            format!("SET NX PX and a compare-and-delete script; one multiplexed connection; asks again {}", every("every 10 ms"))
        }
        "bare-own" => format!("the same with a connection for each client; asks again {}", every("every 10 ms")),
        "ade" => "the backend of ade serve --redis without HTTP: one connection, fair, fenced, with indexes and events; waits for a message, asks again every 1 s".to_owned(),
        "rslock-shared" => {
            format!("one lock manager, which has one multiplexed connection; asks again {}", every("within 200 ms, at random"))
        }
        "rslock-own" => {
            format!("a lock manager for each client; asks again {}", every("within 200 ms, at random"))
        }
        "redis-py" => format!(
            "redis.lock.Lock with hiredis; {processes} processes with a thread and a connection for each client; asks again {}",
            every("every 100 ms")
        ),
        "python-redis-lock" => format!(
            "redis_lock.Lock with hiredis; {processes} processes with a thread and a connection for each client; waits with BLPOP"
        ),
        "postgresql" => "session advisory locks, prepared statements, a connection for each client; nothing is written to disk".to_owned(),
        "etcd" => "v3 lock API over gRPC, one member, a connection and a lease for each client; every change is synced to disk".to_owned(),
        _ => String::new(),
    }
}
