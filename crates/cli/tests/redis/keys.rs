//! What is in Redis while every command runs: nothing but what the catalog declares, and all of that. Afterwards only what
//! the catalog lets live.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::fleet::{Fleet, LONG, Store, acquire, ask, heartbeat, hold, lock_that, queued, release};
use crate::observer::{Listener, Observer};
use ade_client::wire::{AcquireRequest, AgentRequest, Grant, Mode, Ticket, VerifyRequest};
use ade_client::{Acquired, Client, Error};
use ade_keyspace::{Layout, ade as keys};
use ade_testkit::Office;
use ade_testkit::api::Api;
use ade_testkit::effort;
use ade_testkit::wait::eventually;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::Instant;

const CONFIG: &str = "[lock]\nmax_queue = 3\nacquisitions_per_minute = 40\n";
/// Short, so that even the longest trace of a lease ends within the test.
const TTL: f64 = 8.0;
/// May be there when nobody holds, waits or is registered; each ends by itself. Jobs go on, and what is approved and not carried
/// out waits for the end of its approval.
const LASTING: [&str; 12] = [
    "job.lock",
    "job.scheduled",
    "lock.task_fence",
    "lock.resource_fence",
    "lock.task_ended",
    "lock.resource_ended",
    "lock.request",
    "lock.ages",
    "lock.deadlock_check",
    "ratelimit.lock_acquire",
    "ratelimit.endpoint",
    "events.stream",
];

fn wish(agent: &str, lock: &str, mode: Mode, wait: f64) -> AcquireRequest {
    AcquireRequest {
        ttl_seconds: Some(TTL),
        purpose: Some("to see".to_owned()),
        ..ask(agent, lock, mode, wait)
    }
}

async fn take(client: &Client, agent: &str, lock: &str, mode: Mode) -> Grant {
    acquire(client, &wish(agent, lock, mode, 0.0)).await.expect("free")
}

fn wait_for(client: &Client, agent: &str, lock: &str, mode: Mode) -> JoinHandle<Result<Grant, Error>> {
    let (client, request) = (client.clone(), wish(agent, lock, mode, 30.0));
    tokio::spawn(async move { acquire(&client, &request).await })
}

async fn queue(client: &Client, agent: &str, lock: &str, mode: Mode) -> Result<Ticket, Error> {
    let request_id = Some(format!("{agent} for {lock}"));
    match client.acquire(&AcquireRequest { queue: true, request_id, ..wish(agent, lock, mode, 30.0) }).await?
    {
        Acquired::Ticket(ticket) => Ok(ticket),
        Acquired::Granted(grants) => panic!("{grants:?}"),
    }
}

async fn claim(client: &Client, ticket: &Ticket) -> Grant {
    client.claim(&ticket.ticket).await.expect("claimed").grants.into_iter().next().expect("a grant")
}

/// One round of every command, by agents and on locks of its own. Whoever is named is deregistered at the end.
struct Round<'a> {
    fleet: &'a Fleet,
    observer: &'a mut Observer,
    number: usize,
}

impl Round<'_> {
    fn name(&self, who: &str) -> String {
        format!("{who}-{}", self.number)
    }

    /// A task lock: held, renewed, waited for with and without a ticket, expired; its channel tells of all of it.
    async fn task(&mut self) {
        let (one, two) = (self.fleet.any(0), self.fleet.any(1));
        let [ann, ben, cem] = ["ann", "ben", "cem"].map(|who| self.name(who));
        let lock = format!("task:{}", self.name("t"));
        let id = keys::ids::TaskId::new(&self.name("t")).expect("an id");
        let layout = if self.fleet.store.is_cluster() { Layout::Cluster } else { Layout::Plain };
        let channel =
            Listener::of(&self.fleet.store, keys::lock::task_channel(&id).in_layout(layout).as_str());
        let grant = take(one, &ann, &lock, Mode::Exclusive).await;
        self.observer.look();
        heartbeat(two, &ann, &grant).await.expect("kept");
        let token = VerifyRequest { lock: lock.clone(), fencing_token: grant.fencing_token };
        assert!(one.verify(&token).await.expect("verified").valid);
        let ticket = queue(one, &ben, &lock, Mode::Exclusive).await.expect("queued");
        let open = wait_for(two, &cem, &lock, Mode::Exclusive);
        queued(one, &lock, &[&ben, &cem]).await;
        let third = queue(two, &self.name("dee"), &lock, Mode::Exclusive).await.expect("queued");
        let full = queue(one, &self.name("eve"), &lock, Mode::Exclusive).await.expect_err("full");
        assert_eq!(full.code(), Some("QUEUE_FULL"), "{full}");
        self.observer.look();
        one.cancel(&third.ticket).await.expect("cancelled");
        release(two, &ann, &grant).await;
        self.observer.look();
        let claimed = claim(two, &ticket).await;
        self.observer.look();
        release(one, &ben, &claimed).await;
        let last = open.await.expect("runs").expect("granted");
        self.observer.look();
        release(one, &cem, &last).await;
        // Nobody renews this one.
        let brief = AcquireRequest { ttl_seconds: Some(1.0), ..wish(&ann, &lock, Mode::Exclusive, 0.0) };
        acquire(two, &brief).await.expect("free");
        for message in [
            format!("acquired:{ann}"),
            format!("queued:{ben}"),
            format!("queued:{cem}"),
            format!("released:{ann}"),
            format!("promoted:{ben}"),
            format!("promoted:{cem}"),
            "expired".to_owned(),
        ] {
            channel.hears(&message);
        }
        self.observer.look();
    }

    /// A lock on a resource: shared, upgraded with a ticket, downgraded, broken; a queue that is full; an agent that asks
    /// too often.
    async fn resource(&mut self) {
        let (one, two) = (self.fleet.any(0), self.fleet.any(1));
        let [ann, ben, cem, greedy] = ["ann", "ben", "cem", "greedy"].map(|who| self.name(who));
        let lock = format!("resource:db:{}", self.name("r"));
        let of_ann = take(one, &ann, &lock, Mode::Shared).await;
        let of_ben = take(two, &ben, &lock, Mode::Shared).await;
        self.observer.look();
        let upgrade = queue(two, &ben, &lock, Mode::Exclusive).await.expect("queued");
        self.observer.look();
        release(one, &ann, &of_ann).await;
        // Promoted, not claimed yet: the shared grant lies under it.
        self.observer.look();
        let exclusive = claim(one, &upgrade).await;
        assert!(exclusive.fencing_token > of_ben.fencing_token);
        self.observer.look();
        two.downgrade(&hold(&ben, &exclusive)).await.expect("downgraded");
        self.observer.look();
        let mut tickets = Vec::new();
        for n in 0..3 {
            tickets.push(queue(one, &format!("{cem}-{n}"), &lock, Mode::Exclusive).await.expect("queued"));
        }
        let full = queue(one, &cem, &lock, Mode::Exclusive).await.expect_err("full");
        assert_eq!(full.code(), Some("QUEUE_FULL"), "{full}");
        let open = acquire(two, &wish(&cem, &lock, Mode::Exclusive, 1.0)).await.expect_err("full");
        assert_eq!(open.code(), Some("QUEUE_FULL"), "{open}");
        self.observer.look();
        for ticket in tickets {
            two.cancel(&ticket.ticket).await.expect("cancelled");
        }
        let refusal = loop {
            let refused = acquire(one, &wish(&greedy, &lock, Mode::Exclusive, 0.0)).await.expect_err("held");
            if refused.code() != Some("LOCK_HELD") {
                break refused;
            }
        };
        assert_eq!(refusal.code(), Some("RATE_LIMITED"), "{refusal}");
        let open = wait_for(one, &cem, &lock, Mode::Exclusive);
        queued(two, &lock, &[&cem]).await;
        self.observer.look();
        one.break_lock(&lock, "to see").await.expect("broken");
        release(two, &cem, &open.await.expect("runs").expect("granted")).await;
        // Its key does not tell its name.
        let long = format!("resource:db:{}{}", "x".repeat(300), self.number);
        let grant = take(one, &ann, &long, Mode::Exclusive).await;
        self.observer.look();
        release(two, &ann, &grant).await;
    }

    /// A deadlock, and a wait that is none but is searched.
    async fn deadlock(&mut self) {
        let (one, two) = (self.fleet.any(0), self.fleet.any(1));
        let [ann, ben, cem] = ["ann", "ben", "cem"].map(|who| self.name(who));
        let (x, y) = (format!("task:{}", self.name("x")), format!("resource:db:{}", self.name("y")));
        let of_ann = take(one, &ann, &x, Mode::Exclusive).await;
        let of_ben = take(two, &ben, &y, Mode::Exclusive).await;
        let patient = wait_for(one, &ann, &y, Mode::Exclusive);
        queued(two, &y, &[&ann]).await;
        // It waits for one who waits: the search looks at them from time to time.
        let open = wait_for(two, &cem, &x, Mode::Exclusive);
        queued(one, &x, &[&cem]).await;
        let started = Instant::now();
        let mut beaten = Duration::ZERO;
        while !self.observer.look().contains("lock.deadlock_check") && started.elapsed() < LONG {
            if started.elapsed() > beaten {
                beaten += Duration::from_secs(1);
                heartbeat(one, &ann, &of_ann).await.expect("kept");
                heartbeat(two, &ben, &of_ben).await.expect("kept");
            }
        }
        self.observer.sees("lock.deadlock_check");
        let told = acquire(two, &wish(&ben, &x, Mode::Exclusive, 30.0)).await.expect_err("a ring");
        assert_eq!(told.code(), Some("DEADLOCK_DETECTED"), "{told}");
        self.observer.look();
        let of_both = patient.await.expect("runs").expect("granted");
        release(two, &ann, &of_both).await;
        release(two, &ann, &of_ann).await;
        release(one, &cem, &open.await.expect("runs").expect("granted")).await;
        // Nobody waits any more.
        for lock in [&x, &y] {
            lock_that(one, lock, "free", LONG, |now| now.holders.is_empty() && now.queue.is_empty()).await;
        }
    }

    /// An agent that may do one thing at a time does one, and another one waits for it.
    async fn capacity(&mut self, api: &Api) {
        let office = Office { admin: api.clone() };
        let (who, agent, of) = (self.name("pat"), self.name("bot"), self.name("of"));
        let pat = office.person(&who, &["author"]).await;
        let bot = office.agent(&agent, &pat).await;
        let _ = api.patch(&format!("/agents/{agent}"), &json!({ "max_tasks": 1 })).await.expect(200);
        let auto = json!({ "risk_below": 101 });
        office.policy(json!({ "name": of, "task_types": [of], "auto_approve_if": auto })).await;
        for _ in 0..2 {
            pat.submitted(json!({ "type": of, "executor": "agent", "parameters": { "agent": agent } })).await;
        }
        let claimed = bot.post("/tasks/claim", &json!({})).await.expect(200);
        self.observer.look();
        assert_eq!(bot.post("/tasks/claim", &json!({})).await.status, 204, "it does as much as it may");
        self.observer.look();
        let task = claimed.get("task").and_then(|task| task.get("task_id")).and_then(|id| id.as_str());
        let report = json!({ "attempt": 1, "result": "success" });
        let _ = bot.post(&format!("/tasks/{}/complete", task.expect("an id")), &report).await.expect(200);
    }

    async fn play(&mut self) {
        let api = Api::of(self.fleet.servers.first().expect("one")).await;
        for who in ["ann", "ben"] {
            let (agent_id, name) = (Some(self.name(who)), Some(who.to_owned()));
            self.fleet
                .any(1)
                .register(&AgentRequest { agent_id, name, ..AgentRequest::default() })
                .await
                .expect("new");
        }
        self.observer.look();
        self.task().await;
        self.resource().await;
        self.deadlock().await;
        self.capacity(&api).await;
        let drained = api.call("POST", &format!("/agents/{}/drain", self.name("ann")), "").await.expect(200);
        assert_eq!(drained.get("status").and_then(serde_json::Value::as_str), Some("draining"));
        self.observer.look();
        let agents = self.fleet.any(0).agents(&[("limit", "100")]).await.expect("listed").items;
        let of_round = agents.iter().filter(|agent| {
            let mut parts = agent.agent_id.split('-').skip(1);
            parts.next() == Some(self.number.to_string().as_str())
        });
        for agent in of_round {
            assert_eq!(api.delete(&format!("/agents/{}", agent.agent_id)).await.status, 204, "{agent:?}");
        }
    }
}

async fn every_key(store: Store) {
    let fleet = Fleet::start(store, 2, CONFIG);
    let over = Arc::new(AtomicBool::new(false));
    // Looks all the time, whatever happens meanwhile.
    let watching = std::thread::spawn({
        let (over, mut observer) = (Arc::clone(&over), Observer::of(&fleet.store));
        move || {
            let mut looks = 0_u64;
            let look = || {
                observer.look();
                looks += 1;
                if over.load(Ordering::SeqCst) { Ok(()) } else { Err(format!("{looks} looks")) }
            };
            eventually("the rounds are over", LONG * 10, look).expect("in time");
            (looks, observer)
        }
    });
    let mut observer = Observer::of(&fleet.store);
    let (started, long) = (Instant::now(), Duration::from_secs(effort::rounds(8, 120)));
    let mut rounds = 0;
    while rounds == 0 || started.elapsed() < long {
        Round { fleet: &fleet, observer: &mut observer, number: rounds }.play().await;
        rounds += 1;
    }
    assert!(observer.missing().is_empty(), "declared, but never seen: {:?}", observer.missing());
    // Whatever was only of use to those who held and waited goes.
    let mut remaining = BTreeSet::new();
    let look = || {
        remaining = observer.look();
        let wrong: Vec<&String> =
            remaining.iter().filter(|entry| !LASTING.contains(&entry.as_str())).collect();
        if wrong.is_empty() { Ok(()) } else { Err(format!("{wrong:?}")) }
    };
    let cleaned = Instant::now();
    eventually("only what may live on is left", LONG, look).expect("in time");
    let cleaning = cleaned.elapsed();
    over.store(true, Ordering::SeqCst);
    let (looks, watcher) = watching.join().expect("nothing was wrong at any look");
    println!(
        "{rounds} rounds, {looks} looks at {} entries, clean after {cleaning:?}: {remaining:?}",
        watcher.seen.len()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_is_as_the_catalog_says() {
    every_key(Store::alone()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_is_as_the_catalog_says_on_a_cluster() {
    every_key(Store::cluster()).await;
}
