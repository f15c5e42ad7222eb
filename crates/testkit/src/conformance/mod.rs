//! The conformance suite of the coordination port: scenarios that every backend must pass, through the port alone.
//!
//! A backend supplies a [`TestBackend`]: itself with the settings of a scenario, and a way to advance time. Scenarios advance by
//! short times, because a real server has to wait for them, and take long leases where none may expire meanwhile. Every
//! scenario uses names of its own, so that all of them can share a server.

/// Lists scenarios under the names of their functions.
macro_rules! scenarios {
    ($($name:ident),+ $(,)?) => {
        pub(super) const ALL: &[super::Scenario] = &[
            $(super::Scenario { name: stringify!($name), run: |factory| Box::pin($name(factory)) }),+
        ];
    };
}

mod agents;
mod capacity;
mod deadlocks;
mod fixture;
mod grants;
mod jobs;
mod listing;
mod liveness;
mod modes;
mod rate_limits;
mod refusals;
mod registrations;
mod repeated_requests;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ade_domain::lock::LockLimits;
use ade_store::Coordination;
use futures_util::future::join_all;
use tokio::time::timeout;

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A scenario that takes longer than this hangs.
const SCENARIO_TIMEOUT: Duration = Duration::from_secs(120);

/// How a scenario wants the backend to be configured.
#[derive(Debug, Clone)]
pub struct BackendSettings {
    pub limits: LockLimits,
    /// How many agents may exist that never registered.
    pub max_auto_registered_agents: usize,
}

/// The time limits are long, so that a slow server does not end what a scenario wants to keep.
impl Default for BackendSettings {
    fn default() -> Self {
        let rules = LockLimits {
            ticket_claim_ms: 30_000,
            long_poll_claim_ms: 30_000,
            server_timeout_ms: 60_000,
            ..LockLimits::default()
        };
        Self { limits: rules, max_auto_registered_agents: 10_000 }
    }
}

/// A backend under test.
pub trait TestBackend: Send + Sync {
    fn coordination(&self) -> Arc<dyn Coordination>;

    /// Advances the clock of the store by at least this much.
    fn advance(&self, ms: u64) -> BoxFuture<'_, ()>;

    /// Whether advancing takes no time: then a scenario may advance as far as it likes, and exactly.
    fn has_manual_clock(&self) -> bool {
        false
    }
}

pub type BackendFactory =
    Arc<dyn Fn(BackendSettings) -> BoxFuture<'static, Arc<dyn TestBackend>> + Send + Sync>;

/// One behaviour that every backend must show.
#[derive(Clone, Copy)]
struct Scenario {
    name: &'static str,
    run: fn(BackendFactory) -> BoxFuture<'static, ()>,
}

fn scenarios() -> Vec<Scenario> {
    let all = [
        grants::ALL,
        modes::ALL,
        refusals::ALL,
        repeated_requests::ALL,
        deadlocks::ALL,
        liveness::ALL,
        listing::ALL,
        registrations::ALL,
        agents::ALL,
        capacity::ALL,
        rate_limits::ALL,
        jobs::ALL,
    ];
    all.concat()
}

/// Runs every scenario on a new backend, one after the other for each factory. Several factories run in parallel, because
/// scenarios mostly wait.
#[expect(clippy::panic, reason = "helpers of tests fail like tests")]
pub async fn run_all(factories: &[BackendFactory]) {
    let queue = Mutex::new(scenarios().into_iter());
    let runners = factories.iter().map(|factory| async {
        let mut failures = Vec::new();
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(scenario) = next else { return failures };
            failures.extend(failure_of(scenario, factory).await);
        }
    });
    let failures = join_all(runners).await.concat();
    if !failures.is_empty() {
        panic!("{} scenarios failed:\n  {}", failures.len(), failures.join("\n  "));
    }
}

/// Runs a scenario; returns why it failed, if it did.
async fn failure_of(scenario: Scenario, factory: &BackendFactory) -> Option<String> {
    // A task of its own: a panic ends this scenario only.
    let mut running = tokio::spawn((scenario.run)(factory.clone()));
    match timeout(SCENARIO_TIMEOUT, &mut running).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(format!("{}: {}", scenario.name, panic_message(error))),
        Err(_) => {
            running.abort();
            Some(format!("{}: timed out after {SCENARIO_TIMEOUT:?}", scenario.name))
        }
    }
}

fn panic_message(error: tokio::task::JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "was cancelled".to_owned() };
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panicked").to_owned()
}
