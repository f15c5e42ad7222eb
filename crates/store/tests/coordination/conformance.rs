//! Every backend does what every backend must do: in this process, on Redis, behind Sentinel, on a cluster.

use std::sync::Arc;
use std::time::Duration;

use ade_domain::Moment;
use ade_store::{Coordination, EmbeddedCoordination, RedisCoordination, embedded, redis};
use ade_testkit::conformance::{self, Opener, Setting, Stage, Task};
use ade_testkit::{ManualClock, Redis, RedisCluster, RedisSentinel};
use tempfile::TempDir;

struct InProcess {
    backend: Arc<EmbeddedCoordination>,
    clock: ManualClock,
    _folder: TempDir,
}

impl InProcess {
    fn open(Setting { rules, max_named_agents }: Setting) -> Self {
        let clock = ManualClock::new(Moment::from_micros(1_794_744_000_000_000).timestamp());
        let folder = tempfile::tempdir().expect("folder");
        // Small, so that scenarios also run while snapshots are written.
        let options = embedded::Options { rules, max_named_agents, snapshot_after_bytes: 2_048 };
        let backend =
            EmbeddedCoordination::open(folder.path(), options, Arc::new(clock.clone())).expect("opened");
        Self { backend: Arc::new(backend), clock, _folder: folder }
    }
}

impl Stage for InProcess {
    fn coordination(&self) -> Arc<dyn Coordination> {
        self.backend.clone()
    }

    fn pass(&self, ms: u64) -> Task<'_, ()> {
        self.clock.advance(Duration::from_millis(ms));
        Box::pin(async {})
    }

    fn passes_at_once(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn in_process() {
    let opener: Opener =
        Arc::new(|setting| Box::pin(async move { Arc::new(InProcess::open(setting)) as Arc<dyn Stage> }));
    conformance::run_all(&[opener]).await;
}

struct Remote {
    backend: RedisCoordination,
}

impl Stage for Remote {
    fn coordination(&self) -> Arc<dyn Coordination> {
        Arc::new(self.backend.clone())
    }

    /// A real clock cannot be moved: it passes.
    fn pass(&self, ms: u64) -> Task<'_, ()> {
        Box::pin(tokio::time::sleep(Duration::from_millis(ms)))
    }
}

/// A server of that address, which is empty at the beginning of each scenario.
fn on(url: String, clear: impl Fn() + Send + Sync + 'static) -> Opener {
    let clear = Arc::new(clear);
    Arc::new(move |Setting { rules, max_named_agents }: Setting| {
        let (url, clear) = (url.clone(), Arc::clone(&clear));
        Box::pin(async move {
            clear();
            // Every scenario connects anew; waiting out the differences of clocks has tests of its own.
            let max_clock_skew = Duration::ZERO;
            let options =
                redis::Options { rules, max_named_agents, max_clock_skew, ..redis::Options::default() };
            let url = url.parse().expect("a URL");
            let backend = RedisCoordination::open(&url, options).await.expect("connects");
            Arc::new(Remote { backend }) as Arc<dyn Stage>
        })
    })
}

fn flush(server: &Redis) {
    let mut link = server.connect().expect("connects");
    ::redis::cmd("FLUSHALL").exec(&mut link).expect("flushed");
}

#[tokio::test(flavor = "multi_thread")]
async fn on_redis() {
    let opener = || {
        let server = Redis::start().expect("starts");
        on(server.url(), move || flush(&server))
    };
    conformance::run_all(&[opener(), opener()]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_sentinel() {
    let opener = || {
        // All of it lives as long as the opener, not only what is flushed.
        let sentinel = Arc::new(RedisSentinel::start().expect("starts"));
        on(sentinel.url(), move || flush(&sentinel.servers[0]))
    };
    conformance::run_all(&[opener(), opener()]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_cluster() {
    let opener = || {
        let cluster = Arc::new(RedisCluster::start().expect("starts"));
        on(cluster.url(), move || cluster.nodes.iter().take(3).for_each(flush))
    };
    conformance::run_all(&[opener(), opener()]).await;
}
