//! Runs every lock and agent command and checks the keys in Redis against the catalog: no undeclared key, every declared
//! key and field used, and nothing left behind that should have been removed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::redis::key_inspector::{ChannelSubscriber, KeyInspector};
use crate::redis::servers::{
    RedisBackend, ServerGroup, TIMEOUT, acquire, heartbeat, hold_request, release, request, wait_for_lock,
    wait_until_queued,
};
use ade_client::wire::{AcquireRequest, AgentRequest, Grant, LockMode, Ticket, VerifyTokenRequest};
use ade_client::{AcquireOutcome, Client, Error};
use ade_keyspace::{Layout, ade as keys};
use ade_testkit::AdminClient;
use ade_testkit::api::ApiClient;
use ade_testkit::effort;
use ade_testkit::wait::eventually;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::Instant;

const CONFIG: &str = "[lock]\nmax_queue = 3\nacquisitions_per_minute = 40\n";
/// Short, so that the keys of ended leases expire within the test.
const TTL: f64 = 8.0;
/// Keys that may remain without holders, waiters and agents. They expire by themselves; jobs keep running, and an
/// approved task that is not applied keeps its wake-up for the expiry of the approval.
const REMAINING: [&str; 13] = [
    "job.lock",
    "job.scheduled",
    "lock.task_fence",
    "lock.resource_fence",
    "lock.task_ended",
    "lock.resource_ended",
    "lock.request",
    "lock.token",
    "lock.ages",
    "lock.deadlock_check",
    "ratelimit.lock_acquire",
    "ratelimit.endpoint",
    "events.stream",
];

fn lease_request(agent: &str, lock: &str, mode: LockMode, wait: f64) -> AcquireRequest {
    AcquireRequest {
        ttl_seconds: Some(TTL),
        purpose: Some("to see".to_owned()),
        ..request(agent, lock, mode, wait)
    }
}

async fn take(client: &Client, agent: &str, lock: &str, mode: LockMode) -> Grant {
    acquire(client, &lease_request(agent, lock, mode, 0.0)).await.expect("free")
}

fn wait_for(client: &Client, agent: &str, lock: &str, mode: LockMode) -> JoinHandle<Result<Grant, Error>> {
    let (client, request) = (client.clone(), lease_request(agent, lock, mode, 30.0));
    tokio::spawn(async move { acquire(&client, &request).await })
}

async fn queue(client: &Client, agent: &str, lock: &str, mode: LockMode) -> Result<Ticket, Error> {
    let request_id = Some(format!("{agent} for {lock}"));
    match client
        .acquire_locks(&AcquireRequest { queue: true, request_id, ..lease_request(agent, lock, mode, 30.0) })
        .await?
    {
        AcquireOutcome::Queued(ticket) => Ok(ticket),
        AcquireOutcome::Granted(grants) => panic!("{grants:?}"),
    }
}

async fn claim(client: &Client, ticket: &Ticket) -> Grant {
    client.claim_ticket(&ticket.ticket).await.expect("claimed").grants.into_iter().next().expect("a grant")
}

/// One round of all commands, with agents and locks of its own. Its agents are deregistered at the end.
struct Round<'a> {
    group: &'a ServerGroup,
    inspector: &'a mut KeyInspector,
    number: usize,
}

impl Round<'_> {
    fn name(&self, prefix: &str) -> String {
        format!("{prefix}-{}", self.number)
    }

    /// A task lock is held, renewed, waited for with and without a ticket, and expires; its channel publishes each step.
    async fn use_task_lock(&mut self) {
        let (client_a, client_b) = (self.group.client(0), self.group.client(1));
        let [ann, ben, cem] = ["ann", "ben", "cem"].map(|who| self.name(who));
        let lock = format!("task:{}", self.name("t"));
        let id = keys::ids::TaskId::new(&self.name("t")).expect("an id");
        let layout = if self.group.redis.is_cluster() { Layout::Cluster } else { Layout::Plain };
        let channel = ChannelSubscriber::subscribe(
            &self.group.redis,
            keys::lock::task_channel(&id).in_layout(layout).as_str(),
        );
        let grant = take(client_a, &ann, &lock, LockMode::Exclusive).await;
        self.inspector.check_all();
        heartbeat(client_b, &ann, &grant).await.expect("renewed");
        let token = VerifyTokenRequest { lock: lock.clone(), fencing_token: grant.fencing_token };
        assert!(client_a.verify_token(&token).await.expect("verified").valid);
        let ticket = queue(client_a, &ben, &lock, LockMode::Exclusive).await.expect("queued");
        let open = wait_for(client_b, &cem, &lock, LockMode::Exclusive);
        wait_until_queued(client_a, &lock, &[&ben, &cem]).await;
        let third = queue(client_b, &self.name("dee"), &lock, LockMode::Exclusive).await.expect("queued");
        let full = queue(client_a, &self.name("eve"), &lock, LockMode::Exclusive).await.expect_err("full");
        assert_eq!(full.code(), Some("QUEUE_FULL"), "{full}");
        self.inspector.check_all();
        client_a.cancel_ticket(&third.ticket).await.expect("cancelled");
        release(client_b, &ann, &grant).await;
        self.inspector.check_all();
        let claimed = claim(client_b, &ticket).await;
        self.inspector.check_all();
        release(client_a, &ben, &claimed).await;
        let last = open.await.expect("runs").expect("granted");
        self.inspector.check_all();
        release(client_a, &cem, &last).await;
        // This lease is not renewed.
        let brief =
            AcquireRequest { ttl_seconds: Some(1.0), ..lease_request(&ann, &lock, LockMode::Exclusive, 0.0) };
        acquire(client_b, &brief).await.expect("free");
        for message in [
            format!("acquired:{ann}"),
            format!("queued:{ben}"),
            format!("queued:{cem}"),
            format!("released:{ann}"),
            format!("promoted:{ben}"),
            format!("promoted:{cem}"),
            "expired".to_owned(),
        ] {
            channel.wait_for_message(&message);
        }
        self.inspector.check_all();
    }

    /// A resource lock is shared, upgraded with a ticket, downgraded and broken. Also a full queue, and an agent that
    /// exceeds its rate limit.
    async fn use_resource_lock(&mut self) {
        let (client_a, client_b) = (self.group.client(0), self.group.client(1));
        let [ann, ben, cem, greedy] = ["ann", "ben", "cem", "greedy"].map(|who| self.name(who));
        let lock = format!("resource:db:{}", self.name("r"));
        let grant_of_ann = take(client_a, &ann, &lock, LockMode::Shared).await;
        let grant_of_ben = take(client_b, &ben, &lock, LockMode::Shared).await;
        self.inspector.check_all();
        let upgrade = queue(client_b, &ben, &lock, LockMode::Exclusive).await.expect("queued");
        self.inspector.check_all();
        release(client_a, &ann, &grant_of_ann).await;
        // Promoted but not claimed yet: the shared grant still exists as well.
        self.inspector.check_all();
        let exclusive = claim(client_a, &upgrade).await;
        assert!(exclusive.fencing_token > grant_of_ben.fencing_token);
        self.inspector.check_all();
        client_b.downgrade_locks(&hold_request(&ben, &exclusive)).await.expect("downgraded");
        self.inspector.check_all();
        let mut tickets = Vec::new();
        for n in 0..3 {
            tickets.push(
                queue(client_a, &format!("{cem}-{n}"), &lock, LockMode::Exclusive).await.expect("queued"),
            );
        }
        let full = queue(client_a, &cem, &lock, LockMode::Exclusive).await.expect_err("full");
        assert_eq!(full.code(), Some("QUEUE_FULL"), "{full}");
        let open =
            acquire(client_b, &lease_request(&cem, &lock, LockMode::Exclusive, 1.0)).await.expect_err("full");
        assert_eq!(open.code(), Some("QUEUE_FULL"), "{open}");
        self.inspector.check_all();
        for ticket in tickets {
            client_b.cancel_ticket(&ticket.ticket).await.expect("cancelled");
        }
        let rejection = loop {
            let error = acquire(client_a, &lease_request(&greedy, &lock, LockMode::Exclusive, 0.0))
                .await
                .expect_err("held");
            if error.code() != Some("LOCK_HELD") {
                break error;
            }
        };
        assert_eq!(rejection.code(), Some("RATE_LIMITED"), "{rejection}");
        let open = wait_for(client_a, &cem, &lock, LockMode::Exclusive);
        wait_until_queued(client_b, &lock, &[&cem]).await;
        self.inspector.check_all();
        client_a.break_lock(&lock, "to see").await.expect("broken");
        release(client_b, &cem, &open.await.expect("runs").expect("granted")).await;
        // A long name is replaced by a digest in the key.
        let long = format!("resource:db:{}{}", "x".repeat(300), self.number);
        let grant = take(client_a, &ann, &long, LockMode::Exclusive).await;
        self.inspector.check_all();
        release(client_b, &ann, &grant).await;
    }

    /// A release starts the lease of a waiter of the same server.
    async fn hand_over_at_one_server(&mut self) {
        let (client, [ann, ben]) = (self.group.client(0), ["ann", "ben"].map(|who| self.name(who)));
        for lock in [format!("task:{}", self.name("h")), format!("resource:db:{}", self.name("h"))] {
            let grant = take(client, &ann, &lock, LockMode::Exclusive).await;
            let open = wait_for(client, &ben, &lock, LockMode::Exclusive);
            wait_until_queued(client, &lock, &[&ben]).await;
            release(client, &ann, &grant).await;
            let next = open.await.expect("runs").expect("granted");
            self.inspector.check_all();
            release(client, &ben, &next).await;
        }
    }

    /// A deadlock, and a chain of waits without a cycle that the periodic search visits.
    async fn cause_deadlock(&mut self) {
        let (client_a, client_b) = (self.group.client(0), self.group.client(1));
        let [ann, ben, cem] = ["ann", "ben", "cem"].map(|who| self.name(who));
        let (x, y) = (format!("task:{}", self.name("x")), format!("resource:db:{}", self.name("y")));
        let grant_of_ann = take(client_a, &ann, &x, LockMode::Exclusive).await;
        let grant_of_ben = take(client_b, &ben, &y, LockMode::Exclusive).await;
        let waiting = wait_for(client_a, &ann, &y, LockMode::Exclusive);
        wait_until_queued(client_b, &y, &[&ann]).await;
        // A waiter behind a waiter: the periodic search visits them.
        let open = wait_for(client_b, &cem, &x, LockMode::Exclusive);
        wait_until_queued(client_a, &x, &[&cem]).await;
        let started = Instant::now();
        let mut next_heartbeat = Duration::ZERO;
        while !self.inspector.check_all().contains("lock.deadlock_check") && started.elapsed() < TIMEOUT {
            if started.elapsed() > next_heartbeat {
                next_heartbeat += Duration::from_secs(1);
                heartbeat(client_a, &ann, &grant_of_ann).await.expect("renewed");
                heartbeat(client_b, &ben, &grant_of_ben).await.expect("renewed");
            }
        }
        self.inspector.wait_for_entry("lock.deadlock_check");
        let error = acquire(client_b, &lease_request(&ben, &x, LockMode::Exclusive, 30.0))
            .await
            .expect_err("a cycle");
        assert_eq!(error.code(), Some("DEADLOCK_DETECTED"), "{error}");
        self.inspector.check_all();
        let second_of_ann = waiting.await.expect("runs").expect("granted");
        release(client_b, &ann, &second_of_ann).await;
        release(client_b, &ann, &grant_of_ann).await;
        release(client_a, &cem, &open.await.expect("runs").expect("granted")).await;
        for lock in [&x, &y] {
            wait_for_lock(client_a, lock, "free", TIMEOUT, |now| {
                now.holders.is_empty() && now.queue.is_empty()
            })
            .await;
        }
    }

    /// An agent with capacity for one task takes one, and a second task waits.
    async fn use_agent_capacity(&mut self, api: &ApiClient) {
        let office = AdminClient::without_hold(api.clone()).await;
        let (sponsor, agent, task_type) = (self.name("pat"), self.name("bot"), self.name("type"));
        let pat = office.create_approved_author(&sponsor).await;
        let bot = office.create_agent(&agent, &pat).await;
        let _ = api.patch(&format!("/agents/{agent}"), &json!({ "max_tasks": 1 })).await.expect_status(200);
        for _ in 0..2 {
            pat.create_submitted(
                json!({ "type": task_type, "executor": "agent", "parameters": { "agent": agent } }),
            )
            .await;
        }
        let claimed = bot.post("/tasks/claim", &json!({})).await.expect_status(200);
        self.inspector.check_all();
        assert_eq!(bot.post("/tasks/claim", &json!({})).await.status, 204, "its capacity is used");
        self.inspector.check_all();
        let task = claimed.get("task").and_then(|task| task.get("task_id")).and_then(|id| id.as_str());
        let report = json!({ "attempt": 1, "result": "success" });
        let _ =
            bot.post(&format!("/tasks/{}/complete", task.expect("an id")), &report).await.expect_status(200);
    }

    async fn run(&mut self) {
        let api = ApiClient::connect(self.group.servers.first().expect("a server")).await;
        for who in ["ann", "ben"] {
            let (agent_id, name) = (Some(self.name(who)), Some(who.to_owned()));
            self.group
                .client(1)
                .register_agent(&AgentRequest { agent_id, name, ..AgentRequest::default() })
                .await
                .expect("new");
        }
        self.inspector.check_all();
        self.use_task_lock().await;
        self.use_resource_lock().await;
        self.hand_over_at_one_server().await;
        self.cause_deadlock().await;
        self.use_agent_capacity(&api).await;
        let drained =
            api.request("POST", &format!("/agents/{}/drain", self.name("ann")), "").await.expect_status(200);
        assert_eq!(drained.get("status").and_then(serde_json::Value::as_str), Some("draining"));
        self.inspector.check_all();
        let agents = self.group.client(0).agents(&[("limit", "100")]).await.expect("listed").items;
        let own_agents = agents.iter().filter(|agent| {
            let mut parts = agent.agent_id.split('-').skip(1);
            parts.next() == Some(self.number.to_string().as_str())
        });
        for agent in own_agents {
            assert_eq!(api.delete(&format!("/agents/{}", agent.agent_id)).await.status, 204, "{agent:?}");
        }
    }
}

async fn check_all_keys(redis: RedisBackend) {
    let group = ServerGroup::start(redis, 2, CONFIG);
    let is_done = Arc::new(AtomicBool::new(false));
    // A second inspector checks continuously, at arbitrary moments.
    let background = std::thread::spawn({
        let (is_done, mut inspector) = (Arc::clone(&is_done), KeyInspector::connect(&group.redis));
        move || {
            let mut checks = 0_u64;
            let observe = || {
                inspector.check_all();
                checks += 1;
                if is_done.load(Ordering::SeqCst) { Ok(()) } else { Err(format!("{checks} checks")) }
            };
            eventually("the rounds are done", TIMEOUT * 10, observe).expect("in time");
            (checks, inspector)
        }
    });
    let mut inspector = KeyInspector::connect(&group.redis);
    let rounds = effort::rounds(1, 10) as usize;
    for number in 0..rounds {
        Round { group: &group, inspector: &mut inspector, number }.run().await;
    }
    assert!(inspector.missing().is_empty(), "declared but never seen: {:?}", inspector.missing());
    // The keys of former holders and waiters are removed.
    let mut remaining = BTreeSet::new();
    let observe = || {
        remaining = inspector.check_all();
        let unexpected: Vec<&String> =
            remaining.iter().filter(|entry| !REMAINING.contains(&entry.as_str())).collect();
        if unexpected.is_empty() { Ok(()) } else { Err(format!("{unexpected:?}")) }
    };
    let cleanup = Instant::now();
    eventually("only keys that may remain are left", TIMEOUT, observe).expect("in time");
    let cleanup = cleanup.elapsed();
    is_done.store(true, Ordering::SeqCst);
    let (checks, background) = background.join().expect("every check passed");
    println!(
        "{rounds} rounds, {checks} checks of {} entries, clean after {cleanup:?}: {remaining:?}",
        background.coverage.len()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_keys_match_catalog() {
    check_all_keys(RedisBackend::standalone()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_keys_match_catalog_on_cluster() {
    check_all_keys(RedisBackend::cluster()).await;
}
