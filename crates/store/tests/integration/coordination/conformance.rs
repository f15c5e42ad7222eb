//! Runs the conformance suite on every backend: embedded, Redis, Redis behind Sentinel, Redis Cluster.

use std::sync::Arc;
use std::time::Duration;

use ade_domain::Moment;
use ade_store::{Coordination, EmbeddedCoordination, RedisCoordination, embedded, redis};
use ade_testkit::conformance::{self, BackendFactory, BackendSettings, BoxFuture, TestBackend};
use ade_testkit::{ManualClock, Redis, RedisCluster, RedisSentinel};
use tempfile::TempDir;

struct EmbeddedStage {
    backend: Arc<EmbeddedCoordination>,
    clock: ManualClock,
    _folder: TempDir,
}

impl EmbeddedStage {
    fn open(
        BackendSettings { limits: rules, max_auto_registered_agents: max_named_agents }: BackendSettings,
    ) -> Self {
        let clock = ManualClock::new(Moment::from_micros(1_794_744_000_000_000).timestamp());
        let folder = tempfile::tempdir().expect("temporary folder");
        // Small, so that snapshots are written during the scenarios.
        let options = embedded::EmbeddedOptions {
            limits: rules,
            max_auto_registered_agents: max_named_agents,
            snapshot_after_bytes: 2_048,
        };
        let backend =
            EmbeddedCoordination::open(folder.path(), options, Arc::new(clock.clone())).expect("opened");
        Self { backend: Arc::new(backend), clock, _folder: folder }
    }
}

impl TestBackend for EmbeddedStage {
    fn coordination(&self) -> Arc<dyn Coordination> {
        self.backend.clone()
    }

    fn advance(&self, ms: u64) -> BoxFuture<'_, ()> {
        self.clock.advance(Duration::from_millis(ms));
        Box::pin(async {})
    }

    fn has_manual_clock(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn embedded_backend_conforms() {
    let opener: BackendFactory = Arc::new(|setting| {
        Box::pin(async move { Arc::new(EmbeddedStage::open(setting)) as Arc<dyn TestBackend> })
    });
    conformance::run_all(&[opener]).await;
}

struct RedisStage {
    backend: RedisCoordination,
}

impl TestBackend for RedisStage {
    fn coordination(&self) -> Arc<dyn Coordination> {
        Arc::new(self.backend.clone())
    }

    /// The clock of a real server cannot be moved, so this waits.
    fn advance(&self, ms: u64) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(Duration::from_millis(ms)))
    }
}

/// Opens backends on the deployment at `url`, which `clear` empties before each scenario.
fn redis_opener(url: String, clear: impl Fn() + Send + Sync + 'static) -> BackendFactory {
    let clear = Arc::new(clear);
    Arc::new(move |BackendSettings { limits: rules, max_auto_registered_agents: max_named_agents }: BackendSettings| {
        let (url, clear) = (url.clone(), Arc::clone(&clear));
        Box::pin(async move {
            clear();
            // Every scenario opens new connections; the wait for clock skew has its own tests.
            let max_clock_skew = Duration::ZERO;
            let options =
                redis::RedisOptions { limits: rules, max_named_agents, max_clock_skew, ..redis::RedisOptions::default() };
            let url = url.parse().expect("valid URL");
            let backend = RedisCoordination::open(&url, options).await.expect("connected");
            Arc::new(RedisStage { backend }) as Arc<dyn TestBackend>
        })
    })
}

fn flush(server: &Redis) {
    let mut connection = server.connect().expect("connected");
    ::redis::cmd("FLUSHALL").exec(&mut connection).expect("flushed");
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_backend_conforms() {
    let opener = || {
        let server = Redis::start().expect("server starts");
        redis_opener(server.url(), move || flush(&server))
    };
    conformance::run_all(&[opener(), opener()]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinel_backend_conforms() {
    let opener = || {
        // The closure keeps the whole deployment alive, not only the server that is flushed.
        let sentinel = Arc::new(RedisSentinel::start().expect("server starts"));
        redis_opener(sentinel.url(), move || flush(&sentinel.servers[0]))
    };
    conformance::run_all(&[opener(), opener()]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_backend_conforms() {
    let opener = || {
        let cluster = Arc::new(RedisCluster::start().expect("server starts"));
        redis_opener(cluster.url(), move || cluster.nodes.iter().take(3).for_each(flush))
    };
    conformance::run_all(&[opener(), opener()]).await;
}
