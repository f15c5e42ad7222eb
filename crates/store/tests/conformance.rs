//! The backend in this process does what every backend must do.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::sync::Arc;
use std::time::Duration;

use ade_domain::Moment;
use ade_store::embedded::Options;
use ade_store::{Coordination, Embedded};
use ade_testkit::ManualClock;
use ade_testkit::conformance::{self, Setting, Stage, Task};
use tempfile::TempDir;

struct InProcess {
    backend: Arc<Embedded>,
    clock: ManualClock,
    _folder: TempDir,
}

impl InProcess {
    fn open(Setting { rules, max_named_agents }: Setting) -> Self {
        let clock = ManualClock::new(Moment::from_micros(1_794_744_000_000_000).timestamp());
        let folder = tempfile::tempdir().expect("folder");
        // Small, so that scenarios also run while snapshots are written.
        let options = Options { rules, max_named_agents, snapshot_after_bytes: 2_048 };
        let backend = Embedded::open(folder.path(), options, Arc::new(clock.clone())).expect("opened");
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
}

#[tokio::test]
async fn embedded() {
    conformance::run_all(Arc::new(|setting| {
        Box::pin(async move { Arc::new(InProcess::open(setting)) as Arc<dyn Stage> })
    }))
    .await;
}
