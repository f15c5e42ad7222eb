//! ADE's own locks on Redis, through the backend that `ade serve --redis` uses, without HTTP: what peers are compared with.
//! All clients share one backend, as all callers of a server do, and with it one connection.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ade_domain::lock::{
    Acquire, Command, Holder, LockName, Mode, Outcome, RequestKey, Standing, Text, Token, Wait,
};
use ade_store::coordination::Locks;
use ade_store::redis::{OnRedis, Options};
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::failure::Failure;
use crate::peer::{Client, Peer, TTL_MS};

/// Far beyond every wait of this benchmark.
const WAIT_MS: u64 = 600_000;
/// How often a waiter asks although nobody told it to: as a server does.
const POLL: Duration = Duration::from_secs(1);
/// How often a server sweeps, and renews its marks.
const SWEEP: Duration = Duration::from_millis(200);

static CLIENTS: AtomicU64 = AtomicU64::new(0);
static REQUESTS: AtomicU64 = AtomicU64::new(1);

/// The backend, and what a server does beside its requests.
pub(crate) struct Ade {
    backend: OnRedis,
    server: Text,
    waited_for: WaitedFor,
    _upkeep: Ended,
}

/// Locks that clients wait for, counted: a server renews its mark for them.
#[derive(Clone, Default)]
struct WaitedFor(Arc<Mutex<HashMap<LockName, usize>>>);

/// As long as this lives, somebody waits.
struct Waiting<'a> {
    lock: &'a LockName,
    among: WaitedFor,
}

impl WaitedFor {
    fn begin<'a>(&self, lock: &'a LockName) -> Waiting<'a> {
        *self.counts().entry(lock.clone()).or_default() += 1;
        Waiting { lock, among: self.clone() }
    }

    fn all(&self) -> Vec<LockName> {
        self.counts().keys().cloned().collect()
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<LockName, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut counts = self.among.counts();
        if let Some(count) = counts.get_mut(self.lock) {
            *count -= 1;
            if *count == 0 {
                counts.remove(self.lock);
            }
        }
    }
}

/// Ends a task when it is dropped.
struct Ended(AbortHandle);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(crate) struct AdeClient {
    backend: OnRedis,
    server: Text,
    holder: Holder,
    token: Token,
    waited_for: WaitedFor,
}

impl Ade {
    pub(crate) async fn open(url: &str) -> Result<Self, Failure> {
        let url = url.parse().map_err(Failure::of("read the URL of Redis"))?;
        let backend =
            OnRedis::open(&url, Options::default()).await.map_err(Failure::of("connect to Redis"))?;
        let server: Text = "peers".into();
        let waited_for = WaitedFor::default();
        let upkeep = tokio::spawn(upkeep(backend.clone(), server.clone(), waited_for.clone()));
        Ok(Self { backend, server, waited_for, _upkeep: Ended(upkeep.abort_handle()) })
    }
}

/// Marks for those who wait, then a sweep, as `ade serve` does it.
async fn upkeep(backend: OnRedis, server: Text, waited_for: WaitedFor) {
    let mut tick = interval(SWEEP);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for round in 0_u64.. {
        tick.tick().await;
        if round % 5 == 0 {
            let marks = waited_for
                .all()
                .into_iter()
                .map(|lock| (lock, Command::Mark { server: server.clone() }))
                .collect();
            // What fails here fails for the clients too, who say so.
            let _ = backend.commands(marks).await;
        }
        let _ = backend.sweep().await;
    }
}

impl Peer for Ade {
    type Client = AdeClient;

    async fn client(&self) -> Result<AdeClient, Failure> {
        let number = CLIENTS.fetch_add(1, Ordering::Relaxed);
        let holder = Holder::new(&format!("client-{number}"), None).map_err(Failure::of("name a client"))?;
        let (backend, server) = (self.backend.clone(), self.server.clone());
        let waited_for = self.waited_for.clone();
        Ok(AdeClient { backend, server, holder, token: Token::default(), waited_for })
    }
}

impl AdeClient {
    async fn send(&self, lock: &LockName, command: Command) -> Result<Outcome, Failure> {
        let answers =
            self.backend.commands(vec![(lock.clone(), command)]).await.map_err(Failure::of("ask ADE"))?;
        answers
            .into_iter()
            .next()
            .map(|answer| answer.outcome)
            .ok_or_else(|| Failure::new("ADE gave no answer"))
    }

    async fn wait(&mut self, name: &LockName, wish: Acquire) -> Result<Token, Failure> {
        let watch = self.backend.watch(wish.request);
        loop {
            match self.send(name, Command::Acquire(wish.clone())).await? {
                Outcome::Standing(Standing::Held(grant)) if grant.claimed => return Ok(grant.token),
                Outcome::Standing(Standing::Held(_)) => {
                    let claim =
                        Command::Claim { holder: self.holder.clone(), request: wish.request, ttl_ms: TTL_MS };
                    return match self.send(name, claim).await? {
                        Outcome::Kept(grant) => Ok(grant.token),
                        other => Err(Failure::new(format!("a claim was answered {other:?}"))),
                    };
                }
                // Whether told or not, the next question is the same.
                Outcome::Standing(Standing::Waiting { .. }) => drop(timeout(POLL, watch.changed()).await),
                other => return Err(Failure::new(format!("an acquisition was answered {other:?}"))),
            }
        }
    }
}

impl Client for AdeClient {
    async fn acquire(&mut self, lock: &str) -> Result<(), Failure> {
        let name: LockName = format!("resource:peers:{lock}").parse().map_err(Failure::of("name a lock"))?;
        let request = RequestKey::once(REQUESTS.fetch_add(1, Ordering::Relaxed).into());
        let wish = Acquire {
            holder: self.holder.clone(),
            request,
            remember: false,
            mode: Mode::Exclusive,
            ttl_ms: TTL_MS,
            claimed: true,
            wait: Some(Wait { ms: WAIT_MS, served_by: Some(self.server.clone()) }),
            purpose: "".into(),
            priority: 0,
        };
        let waiting = self.waited_for.begin(&name);
        let token = self.wait(&name, wish).await;
        drop(waiting);
        self.token = token?;
        Ok(())
    }

    async fn release(&mut self, lock: &str) -> Result<(), Failure> {
        let name: LockName = format!("resource:peers:{lock}").parse().map_err(Failure::of("name a lock"))?;
        let (holder, token) = (self.holder.clone(), self.token);
        match self.send(&name, Command::Release { holder, token }).await? {
            Outcome::Done => Ok(()),
            other => Err(Failure::new(format!("a release was answered {other:?}"))),
        }
    }
}
