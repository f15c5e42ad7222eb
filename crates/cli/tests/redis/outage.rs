//! Redis is out of reach, or comes back empty: every route that needs it says so at once and with a time to try again,
//! the process stays healthy, and everything goes on when Redis is back; whoever lost something is told.

use std::collections::BTreeSet;

use crate::fleet::{Fleet, LONG, Store, acquire, ask, heartbeat, queued, release, take, wait_for};
use ade_client::wire::{AcquireRequest, Mode};
use ade_client::{Acquired, Client, Error};
use ade_testkit::ade::TOKEN;
use ade_testkit::api::{Answer, Api};
use ade_testkit::wait::until;
use rustix::process::Signal;
use serde_json::{Value, json};

const LOCK: &str = "resource:database:prod";
/// Nobody holds it.
const OTHER: &str = "resource:other:1";
/// Routes that answer whatever happens to Redis.
const SELF_SUFFICIENT: [&str; 2] = ["/healthz", "/metrics"];

/// A request to every route of the description that is about locks and agents; approvals do not need Redis. What it names is
/// touched by nothing else: it may be carried out late.
fn requests(description: &Value) -> Vec<(String, String, String)> {
    let held = json!([{ "lock": OTHER, "fencing_token": 1 }]);
    let body = |path: &str| match path.rsplit('/').next() {
        Some("acquire") => json!({ "agent_id": "other", "locks": [{ "lock": OTHER }] }),
        Some("verify") => json!({ "lock": OTHER, "fencing_token": 1 }),
        Some("heartbeat" | "release" | "downgrade") => json!({ "agent_id": "other", "locks": held }),
        Some("agents") => json!({ "agent_id": "other", "name": "other" }),
        _ => json!({ "name": "other" }),
    };
    let ticket = "0d6ffa4f1f0a4c1e9a55a3f0f6b8f1d2";
    let mut all = Vec::new();
    for (path, item) in description.get("paths").and_then(Value::as_object).expect("paths") {
        let about = ["/api/v1/locks", "/api/v1/agents"];
        if path.starts_with("/api/") && !about.iter().any(|prefix| path.starts_with(prefix)) {
            continue;
        }
        for (method, operation) in item.as_object().expect("operations") {
            let mut concrete = path
                .replace("{lock}", "resource%3Aother%3A1")
                .replace("{id}", "other")
                .replace("{ticket}", ticket);
            if method == "delete" && path.ends_with("{lock}") {
                concrete.push_str("?reason=to%20see");
            }
            let body = operation.get("requestBody").map_or(String::new(), |_| body(path).to_string());
            all.push((method.to_uppercase(), concrete, body));
        }
    }
    all
}

async fn send(api: &Api, (method, path, body): &(String, String, String)) -> Answer {
    let authorization = format!("Bearer {TOKEN}");
    let headers = [("authorization", authorization.as_str()), ("content-type", "application/json")];
    api.send(method, path, &headers, body.clone()).await
}

/// Asks everything at once of one server that has no Redis.
async fn all_refuse(api: &Api) {
    let requests = requests(api.description());
    assert!(requests.len() > 20, "all routes: {requests:?}");
    let mut asked = tokio::task::JoinSet::new();
    for request in requests {
        let api = api.clone();
        asked.spawn(async move {
            let answer = send(&api, &request).await;
            (request, answer)
        });
    }
    let mut served = BTreeSet::new();
    while let Some(done) = asked.join_next().await {
        let ((method, path, _), answer) = done.expect("runs");
        if answer.status != 503 {
            assert_eq!(answer.status, 200, "{method} {path}: {}", answer.text());
            served.insert(path);
            continue;
        }
        assert_eq!(answer.code(), "UNAVAILABLE", "{method} {path}");
        let retry = answer.header("retry-after").parse::<u64>();
        assert!(retry.is_ok_and(|seconds| (1..=60).contains(&seconds)), "{method} {path}");
        assert!(!answer.text().contains("127.0.0.1"), "{}", answer.text());
    }
    assert_eq!(served.iter().map(String::as_str).collect::<Vec<_>>(), SELF_SUFFICIENT);
}

async fn ready_again(api: &Api) {
    let look = || async {
        let answer = api.send("GET", "/readyz", &[], "").await;
        if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
    };
    until("it is ready again", LONG, look).await.expect("in time");
}

/// Told that locks cannot be served, and to try again.
fn is_told(error: &Error) -> bool {
    error.code() == Some("UNAVAILABLE") && error.retry_after_seconds().is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_redis_hangs_everything_says_so_and_then_goes_on() {
    let fleet = Fleet::start(Store::alone(), 2, "");
    let redis = fleet.store.primaries().first().expect("one");
    let grant = take(fleet.any(0), "ann", LOCK, Mode::Exclusive).await;
    let waiter = wait_for(fleet.any(1), "ben", LOCK, Mode::Exclusive);
    queued(fleet.any(0), LOCK, &["ben"]).await;
    let apis = [
        Api::of(fleet.servers.first().expect("one")).await,
        Api::of(fleet.servers.get(1).expect("two")).await,
    ];

    redis.process().signal(Signal::STOP).expect("stopped");
    tokio::join!(all_refuse(&apis[0]), all_refuse(&apis[1]));
    let told = waiter.await.expect("runs").expect_err("told");
    assert!(is_told(&told), "{told}");

    redis.process().signal(Signal::CONT).expect("goes on");
    for api in &apis {
        ready_again(api).await;
    }
    // Nothing was lost: the lease goes on, and who was told can come again.
    heartbeat(fleet.any(1), "ann", &grant).await.expect("still held");
    let waiter = wait_for(fleet.any(1), "ben", LOCK, Mode::Exclusive);
    queued(fleet.any(0), LOCK, &["ben"]).await;
    release(fleet.any(0), "ann", &grant).await;
    assert!(waiter.await.expect("runs").expect("granted").fencing_token > grant.fencing_token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_redis_was_killed_and_comes_back_empty_holders_learn_that_they_lost() {
    let fleet = Fleet::start(Store::alone(), 3, "");
    let redis = fleet.store.primaries().first().expect("one");
    let grant = take(fleet.any(0), "ann", LOCK, Mode::Exclusive).await;
    let mut waiters = Vec::new();
    for n in 0..3 {
        waiters.push((n, wait_for(fleet.any(n), &format!("waiter-{n}"), LOCK, Mode::Exclusive)));
    }
    crate::fleet::lock_that(fleet.any(0), LOCK, "three wait", LONG, |lock| lock.queue_length == 3).await;
    redis.process().kill().expect("killed");
    for server in &fleet.servers {
        all_refuse(&Api::of(server).await).await;
    }
    // Those who wait are told, sooner or later; nobody hangs.
    for (_, waiter) in waiters {
        let told =
            tokio::time::timeout(LONG, waiter).await.expect("in time").expect("runs").expect_err("told");
        assert!(is_told(&told), "{told}");
    }
    redis.process().begin().expect("starts");
    for server in &fleet.servers {
        ready_again(&Api::of(server).await).await;
    }
    let lost = heartbeat(fleet.any(1), "ann", &grant).await.expect_err("lost");
    assert_eq!(lost.code(), Some("LOCK_LOST"), "{lost}");
    let again = take(fleet.any(2), "ann", LOCK, Mode::Exclusive).await;
    assert!(again.fencing_token > grant.fencing_token, "tokens grow across a complete loss");
}

/// The keys are gone, the connections are not: nobody sees an error, and everything is as after a loss.
async fn flushed(fleet: &Fleet) {
    for redis in fleet.store.primaries() {
        let mut link = redis.connect().expect("connects");
        redis::cmd("FLUSHALL").exec(&mut link).expect("flushed");
    }
}

async fn wait_and_leave(client: Client, agent: String) -> u64 {
    let grant =
        acquire(&client, &ask(&agent, LOCK, Mode::Exclusive, 60.0)).await.expect("granted in the end");
    release(&client, &agent, &grant).await;
    grant.fencing_token
}

async fn flushall(store: Store) {
    let fleet = Fleet::start(store, 3, "");
    let grant = take(fleet.any(0), "ann", LOCK, Mode::Exclusive).await;
    let waiters: Vec<_> =
        (0..9).map(|n| tokio::spawn(wait_and_leave(fleet.any(n).clone(), format!("waiter-{n}")))).collect();
    crate::fleet::lock_that(fleet.any(0), LOCK, "nine wait", LONG, |lock| lock.queue_length == 9).await;
    let ticket = AcquireRequest { queue: true, ..ask("cem", LOCK, Mode::Exclusive, 60.0) };
    let Acquired::Ticket(ticket) = fleet.any(1).acquire(&ticket).await.expect("queued") else {
        panic!("not a ticket")
    };
    flushed(&fleet).await;
    let lost = heartbeat(fleet.any(1), "ann", &grant).await.expect_err("lost");
    assert_eq!(lost.code(), Some("LOCK_LOST"), "{lost}");
    let mut tokens = BTreeSet::new();
    for waiter in waiters {
        let token = tokio::time::timeout(LONG, waiter).await.expect("in time").expect("granted");
        assert!(token > grant.fencing_token && tokens.insert(token), "tokens grow and never repeat");
    }
    let told = fleet.any(2).ticket(&ticket.ticket).await.expect_err("a ticket is not known any more");
    assert_eq!(told.code(), Some("TICKET_NOT_FOUND"), "{told}");
    assert!(fleet.any(0).lock(LOCK).await.expect("shown").holders.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_flushall_those_who_wait_queue_again() {
    flushall(Store::alone()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_flushall_of_a_cluster_those_who_wait_queue_again() {
    flushall(Store::cluster()).await;
}
