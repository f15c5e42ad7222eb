//! A scenario's view of the backend: short names for commands, and names of its own for everything.

#![expect(clippy::expect_used, clippy::panic, reason = "helpers of tests fail like tests")]

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ade_domain::Moment;
use ade_domain::lock::{
    Acquire, Answer, Cycle, Deadlock, End, Grant, Holder, LockCommand, LockLimits, LockName, LockRefusal,
    Mode, Outcome, RequestKey, Standing, Token, Wait,
};
use ade_store::Coordination;
use ade_store::coordination::{LockView, Subscription};
use tokio::time::timeout;

use super::{Opener, Setting, Stage};

/// What does not happen within this time does not happen.
const GUARD: Duration = Duration::from_secs(20);

/// Tells scenarios apart, also the same one played twice.
static PLAYED: AtomicU64 = AtomicU64::new(0);

/// A scenario on its stage.
pub struct Play {
    stage: Arc<dyn Stage>,
    /// The backend.
    pub port: Arc<dyn Coordination>,
    /// Part of every name of this play.
    pub tag: String,
}

impl std::fmt::Debug for Play {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Play").field("tag", &self.tag).finish_non_exhaustive()
    }
}

/// The usual settings with other rules.
pub(super) fn with(change: impl FnOnce(&mut LockLimits)) -> Setting {
    let mut setting = Setting::default();
    change(&mut setting.rules);
    setting
}

impl Play {
    /// Opens a stage with the usual settings.
    pub async fn usual(opener: &Opener) -> Self {
        Self::open(opener, Setting::default()).await
    }

    /// Opens a stage.
    pub async fn open(opener: &Opener, setting: Setting) -> Self {
        let stage = opener(setting).await;
        let tag = format!("play{}", PLAYED.fetch_add(1, Ordering::Relaxed));
        Self { port: stage.coordination(), stage, tag }
    }

    /// A resource lock of this play; its type is the tag.
    pub fn lock(&self, name: &str) -> LockName {
        format!("resource:{}:{name}", self.tag).parse().expect("valid")
    }

    /// The id of an agent of this play.
    pub fn agent(&self, name: &str) -> String {
        format!("{}-{name}", self.tag)
    }

    /// A holder of this play.
    pub fn holder(&self, name: &str) -> Holder {
        Holder::new(&self.agent(name), None).expect("valid")
    }

    /// The key of a holder's request.
    pub fn key(&self, who: &str, request: &str) -> RequestKey {
        RequestKey::of(&self.holder(who), request)
    }

    /// A wish for a lock, ready to wait a minute with the answer held open.
    pub fn wish(&self, who: &str, request: &str, mode: Mode) -> Acquire {
        Acquire {
            holder: self.holder(who),
            request: self.key(who, request),
            remember: true,
            mode,
            ttl_ms: 60_000,
            claimed: true,
            wait: Some(Wait { ms: 60_000, served_by: Some("server".into()) }),
            purpose: "".into(),
            priority: 0,
        }
    }

    /// A wish that does not wait.
    pub fn at_once(&self, who: &str, request: &str, mode: Mode) -> Acquire {
        Acquire { wait: None, ..self.wish(who, request, mode) }
    }

    /// A wish that waits at a server.
    pub fn served(&self, who: &str, request: &str, server: &str) -> Acquire {
        let wait = Some(Wait { ms: 60_000, served_by: Some(server.into()) });
        Acquire { wait, ..self.wish(who, request, Mode::Exclusive) }
    }

    /// A wish that waits with a ticket.
    pub fn ticket(&self, who: &str, request: &str, mode: Mode) -> Acquire {
        Acquire { wait: Some(Wait { ms: 60_000, served_by: None }), ..self.wish(who, request, mode) }
    }

    /// The clock of the store.
    pub fn now(&self) -> Moment {
        self.port.now()
    }

    /// Lets time pass.
    pub async fn pass(&self, ms: u64) {
        self.stage.pass(ms).await;
    }

    /// Whether time passes at once.
    pub fn passes_at_once(&self) -> bool {
        self.stage.passes_at_once()
    }

    /// Lets happen what is due.
    pub async fn sweep(&self) -> Vec<Deadlock> {
        self.port.sweep().await.expect("answers")
    }

    /// One command.
    pub async fn command(&self, lock: &LockName, command: LockCommand) -> Answer {
        let mut answers = self.port.commands(vec![(lock.clone(), command)]).await.expect("answers");
        assert_eq!(answers.len(), 1, "one answer to one command");
        answers.pop().expect("one")
    }

    /// One command to a lock of this play.
    pub async fn send(&self, name: &str, command: LockCommand) -> Outcome {
        self.command(&self.lock(name), command).await.outcome
    }

    /// Acquire, and the cycles that were ended by it.
    pub async fn acquire_all(&self, name: &str, wish: Acquire) -> (Standing, Vec<Deadlock>) {
        let answer = self.command(&self.lock(name), LockCommand::Acquire(wish)).await;
        match answer.outcome {
            Outcome::Standing(standing) => (standing, answer.deadlocks),
            other => panic!("not an answer to acquire: {other:?}"),
        }
    }

    /// Acquire.
    pub async fn acquire(&self, name: &str, wish: Acquire) -> Standing {
        self.acquire_all(name, wish).await.0
    }

    /// Acquire what must be granted.
    pub async fn grant(&self, name: &str, wish: Acquire) -> Grant {
        match self.acquire(name, wish).await {
            Standing::Held(grant) => grant,
            other => panic!("not granted: {other:?}"),
        }
    }

    /// Acquire what must be queued; the place in the queue.
    pub async fn position(&self, name: &str, wish: Acquire) -> usize {
        match self.acquire(name, wish).await {
            Standing::Waiting { position, .. } => position,
            other => panic!("not waiting: {other:?}"),
        }
    }

    /// Acquire what must be refused.
    pub async fn refused(&self, name: &str, wish: Acquire) -> LockRefusal {
        match self.acquire(name, wish).await {
            Standing::Refused(refusal) => refusal,
            other => panic!("not refused: {other:?}"),
        }
    }

    /// Acquire for a request that must be over.
    pub async fn over(&self, name: &str, wish: Acquire) -> End {
        match self.acquire(name, wish).await {
            Standing::Over(end) => end,
            other => panic!("not over: {other:?}"),
        }
    }

    /// Acquire for a request that must give way in a deadlock.
    pub async fn gives_way(&self, name: &str, wish: Acquire) -> Arc<Cycle> {
        match self.over(name, wish).await {
            End::Deadlock(cycle) => cycle,
            other => panic!("not a deadlock: {other:?}"),
        }
    }

    /// Extend a lease.
    pub async fn extend(&self, name: &str, who: &str, token: Token, ms: u64) -> Outcome {
        self.send(name, LockCommand::Extend { holder: self.holder(who), token, ms }).await
    }

    /// Claim a grant.
    pub async fn claim(&self, name: &str, who: &str, request: &str, ttl_ms: u64) -> Outcome {
        let (holder, request) = (self.holder(who), self.key(who, request));
        self.send(name, LockCommand::Claim { holder, request, ttl_ms }).await
    }

    /// Cancel a request.
    pub async fn cancel(&self, name: &str, who: &str, request: &str, why: End) {
        let (holder, request) = (self.holder(who), self.key(who, request));
        assert_eq!(
            self.send(name, LockCommand::Cancel { holder, request, why, begun: false }).await,
            Outcome::Done
        );
    }

    /// Says that a server is alive.
    pub async fn mark(&self, name: &str, server: &str) {
        assert_eq!(self.send(name, LockCommand::Mark { server: server.into() }).await, Outcome::Done);
    }

    /// Release what somebody holds, with its own token.
    pub async fn release(&self, name: &str, who: &str) {
        let holder = self.holder(who);
        let token = self.token_of(name, who).await.unwrap_or_default();
        assert_eq!(
            self.send(name, LockCommand::Release { holder, token }).await,
            Outcome::Done,
            "{who} {name}"
        );
    }

    /// The token of a holder, if it is one.
    pub async fn token_of(&self, name: &str, who: &str) -> Option<Token> {
        let (view, holder) = (self.look(name).await, self.holder(who));
        view.holders.iter().find(|held| held.holder == holder).map(|held| held.grant.token)
    }

    /// A lock of this play.
    pub async fn look(&self, name: &str) -> LockView {
        self.port.look(self.lock(name)).await.expect("answers")
    }

    /// Who holds a lock, without the tag, by name.
    pub async fn holders(&self, name: &str) -> Vec<String> {
        let view = self.look(name).await;
        let mut names: Vec<String> = view.holders.iter().map(|held| self.short(&held.holder)).collect();
        names.sort();
        names
    }

    /// Who waits for a lock, without the tag, in order.
    pub async fn queue(&self, name: &str) -> Vec<String> {
        let view = self.look(name).await;
        assert_eq!(view.queue.len(), view.queue_length, "a look shows the whole queue");
        view.queue.iter().map(|waiter| self.short(&waiter.holder)).collect()
    }

    /// A holder without the tag.
    pub fn short(&self, holder: &Holder) -> String {
        let name = holder.to_string();
        name.strip_prefix(&format!("{}-", self.tag)).unwrap_or(&name).to_owned()
    }

    /// The agent is heard of.
    pub async fn heard(&self, name: &str) {
        assert!(self.port.heard(self.agent(name)).await.expect("answers"), "{name} may be named");
    }

    /// Takes agents off the stage, so that they do not count for other scenarios.
    pub async fn leave(&self, names: &[&str]) {
        for name in names {
            self.port.remove(self.agent(name)).await.expect("answers");
        }
    }
}

/// The grant of an outcome that keeps one.
pub(super) fn kept(outcome: Outcome) -> Grant {
    match outcome {
        Outcome::Kept(grant) => grant,
        other => panic!("not kept: {other:?}"),
    }
}

/// Waits for a hint that must come.
pub(super) async fn hint(watch: &Subscription) {
    timeout(GUARD, watch.changed()).await.expect("a hint");
}

/// What must come within a time that is never reached.
pub(super) async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(GUARD, what).await.expect("it comes")
}

/// The moments at which something may end that began during a call and lasts so long.
pub(super) fn ends(during: RangeInclusive<Moment>, ms: u64) -> RangeInclusive<Moment> {
    during.start().plus_ms(ms)..=during.end().plus_ms(ms)
}
