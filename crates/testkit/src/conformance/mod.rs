//! What every backend of the coordination port must do, as scenarios that see nothing but the port.
//!
//! A backend supplies a [`Stage`]: itself with the settings a scenario wants, and a way to let time pass. Times that pass
//! are short, because a real server lets them pass by waiting; leases that must not end meanwhile are long. Names belong
//! to one scenario alone, so that a server may be used for all of them.

/// A list of scenarios under the names of their functions.
macro_rules! scenarios {
    ($($name:ident),+ $(,)?) => {
        /// The scenarios of this file.
        pub(super) const ALL: &[super::Scenario] = &[
            $(super::Scenario { name: stringify!($name), act: |opener| Box::pin($name(opener)) }),+
        ];
    };
}

mod agents;
mod capacity;
mod deadlocks;
mod grants;
mod jobs;
mod limits;
mod liveness;
mod modes;
mod play;
mod refusals;
mod repeats;
mod requests;
mod sight;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ade_domain::lock::LockLimits;
use ade_store::Coordination;
use futures_util::future::join_all;
use tokio::time::timeout;

pub use play::Play;

/// Something that takes a while.
pub type Task<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A scenario that is not over by then never will be.
const GUARD: Duration = Duration::from_secs(120);

/// What a scenario wants of the backend it runs on.
#[derive(Debug, Clone)]
pub struct Setting {
    /// What locks go by.
    pub rules: LockLimits,
    /// Agents that may be known by their name only.
    pub max_named_agents: usize,
}

/// The windows are wide, so that a slow server does not end what a scenario does not want to end.
impl Default for Setting {
    fn default() -> Self {
        let rules = LockLimits {
            ticket_claim_ms: 30_000,
            served_claim_ms: 30_000,
            server_silence_ms: 60_000,
            ..LockLimits::default()
        };
        Self { rules, max_named_agents: 10_000 }
    }
}

/// A backend with the settings of a scenario.
pub trait Stage: Send + Sync {
    /// The backend.
    fn coordination(&self) -> Arc<dyn Coordination>;

    /// Lets time pass by the clock of the store, at least so much.
    fn pass(&self, ms: u64) -> Task<'_, ()>;

    /// Whether time passes at once: then a scenario may let as much pass as it likes.
    fn passes_at_once(&self) -> bool {
        false
    }
}

/// Makes stages.
pub type Opener = Arc<dyn Fn(Setting) -> Task<'static, Arc<dyn Stage>> + Send + Sync>;

/// One thing that a backend must do.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// Its name says what.
    pub name: &'static str,
    act: fn(Opener) -> Task<'static, ()>,
}

impl Scenario {
    /// Plays it on a stage of its own. Panics if the backend does something else.
    pub fn play(&self, opener: Opener) -> Task<'static, ()> {
        (self.act)(opener)
    }
}

impl std::fmt::Debug for Scenario {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Scenario").field(&self.name).finish()
    }
}

/// Every scenario.
#[must_use]
pub fn scenarios() -> Vec<Scenario> {
    let all = [
        grants::ALL,
        modes::ALL,
        refusals::ALL,
        repeats::ALL,
        deadlocks::ALL,
        liveness::ALL,
        sight::ALL,
        requests::ALL,
        agents::ALL,
        capacity::ALL,
        limits::ALL,
        jobs::ALL,
    ];
    all.concat()
}

/// Plays every scenario on a stage of its own, one after the other; with several openers, as many at the same time. Most of
/// what a scenario does is to wait.
#[expect(clippy::panic, reason = "helpers of tests fail like tests")]
pub async fn run_all(openers: &[Opener]) {
    let all = Mutex::new(scenarios().into_iter());
    let each = openers.iter().map(|opener| async {
        let mut failures = Vec::new();
        loop {
            let next = all.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(scenario) = next else { return failures };
            failures.extend(play(scenario, opener).await);
        }
    });
    let failures = join_all(each).await.concat();
    if !failures.is_empty() {
        panic!("{} scenarios failed:\n  {}", failures.len(), failures.join("\n  "));
    }
}

/// What went wrong, if anything did.
async fn play(scenario: Scenario, opener: &Opener) -> Option<String> {
    // A task of its own, so that a panic ends this scenario and no other.
    let mut played = tokio::spawn(scenario.play(opener.clone()));
    match timeout(GUARD, &mut played).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(format!("{}: {}", scenario.name, reason(error))),
        Err(_) => {
            played.abort();
            Some(format!("{}: did not come to an end", scenario.name))
        }
    }
}

fn reason(error: tokio::task::JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "was cancelled".to_owned() };
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panicked").to_owned()
}
