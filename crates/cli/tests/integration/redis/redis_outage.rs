//! Redis hangs, is killed, or loses all data: every route that needs it fails fast with 503 and Retry-After, except that releases are
//! stored; the server stays healthy, service resumes when Redis is back, and holders learn that their locks are lost.

use std::collections::BTreeSet;

use crate::redis::servers::{
    RedisBackend, ServerGroup, TIMEOUT, acquire, heartbeat, release, request, take, wait_for, wait_for_lock,
    wait_until_queued,
};
use ade_client::wire::{AcquireRequest, LockMode};
use ade_client::{AcquireOutcome, Client, Error};
use ade_testkit::api::{ApiClient, ApiResponse};
use ade_testkit::server::BOOTSTRAP_TOKEN;
use ade_testkit::wait::until;
use rustix::process::Signal;
use serde_json::{Value, json};

const LOCK: &str = "resource:database:prod";
/// Never held.
const OTHER_LOCK: &str = "resource:other:1";
/// Routes that work without Redis.
const INDEPENDENT_ROUTES: [&str; 4] = ["/api/v1/locks/release", "/healthz", "/metrics", "/readyz"];

/// One request (method, path, body) for every lock and agent route of the OpenAPI description; approvals do not need
/// Redis. No other request uses the same names, because these may still take effect after Redis is back.
fn requests(openapi: &Value) -> Vec<(String, String, String)> {
    let held = json!([{ "lock": OTHER_LOCK, "fencing_token": 1 }]);
    let body = |path: &str| match path.rsplit('/').next() {
        Some("acquire") => json!({ "agent_id": "other", "locks": [{ "lock": OTHER_LOCK }] }),
        Some("verify") => json!({ "lock": OTHER_LOCK, "fencing_token": 1 }),
        Some("heartbeat" | "release" | "downgrade") => json!({ "agent_id": "other", "locks": held }),
        Some("agents") => json!({ "agent_id": "other", "name": "other" }),
        _ => json!({ "name": "other" }),
    };
    let ticket = "0d6ffa4f1f0a4c1e9a55a3f0f6b8f1d2";
    let mut all = Vec::new();
    for (path, item) in openapi.get("paths").and_then(Value::as_object).expect("paths") {
        let prefixes = ["/api/v1/locks", "/api/v1/agents"];
        if path.starts_with("/api/") && !prefixes.iter().any(|prefix| path.starts_with(prefix)) {
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

async fn send(api: &ApiClient, (method, path, body): &(String, String, String)) -> ApiResponse {
    let authorization = format!("Bearer {BOOTSTRAP_TOKEN}");
    let headers = [("authorization", authorization.as_str()), ("content-type", "application/json")];
    api.send_raw(method, path, &headers, body.clone()).await
}

/// Sends all requests concurrently to a server without Redis.
async fn check_all_unavailable(api: &ApiClient) {
    let requests = requests(api.openapi());
    assert!(requests.len() > 20, "the description lists all routes: {requests:?}");
    let mut sent = tokio::task::JoinSet::new();
    for request in requests {
        let api = api.clone();
        sent.spawn(async move {
            let response = send(&api, &request).await;
            (request, response)
        });
    }
    let mut served = BTreeSet::new();
    while let Some(done) = sent.join_next().await {
        let ((method, path, _), response) = done.expect("runs");
        if response.status != 503 {
            let expected = if path.ends_with("/release") { 202 } else { 200 };
            assert_eq!(response.status, expected, "{method} {path}: {}", response.text());
            served.insert(path);
            continue;
        }
        assert_eq!(response.code(), "UNAVAILABLE", "{method} {path}");
        let retry = response.header("retry-after").parse::<u64>();
        assert!(retry.is_ok_and(|seconds| (1..=60).contains(&seconds)), "{method} {path}");
        assert!(!response.text().contains("127.0.0.1"), "{}", response.text());
    }
    assert_eq!(served.iter().map(String::as_str).collect::<Vec<_>>(), INDEPENDENT_ROUTES);
}

async fn wait_until_ready(api: &ApiClient) {
    let observe = || async {
        let response = api.send_raw("GET", "/readyz?strict=true", &[], "").await;
        if response.status == 200 { Ok(()) } else { Err(response.text()) }
    };
    until("the server is ready", TIMEOUT, observe).await.expect("in time");
}

fn is_retryable(error: &Error) -> bool {
    error.code() == Some("UNAVAILABLE") && error.retry_after_seconds().is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fails_fast_while_redis_hangs_and_then_resumes() {
    let group = ServerGroup::start(RedisBackend::standalone(), 2, "");
    let redis = group.redis.primaries().first().expect("a primary");
    let grant = take(group.client(0), "ann", LOCK, LockMode::Exclusive).await;
    let waiter = wait_for(group.client(1), "ben", LOCK, LockMode::Exclusive);
    wait_until_queued(group.client(0), LOCK, &["ben"]).await;
    let apis = [
        ApiClient::connect(group.servers.first().expect("a server")).await,
        ApiClient::connect(group.servers.get(1).expect("a second server")).await,
    ];

    let (admin, limit) = (&apis[0], 4);
    let setting = json!({ "value": limit });
    let _ = admin.put("/config/ratelimit:token", &setting).await.expect_status(200);
    let _ = admin.post("/users", &json!({ "user_id": "pat" })).await.expect_status(201);
    let token = admin.post("/users/pat/tokens", &json!({ "name": "t" })).await.expect_status(201);
    let pat = admin.with_token(token["token"].as_str().expect("a token"));

    redis.process().signal(Signal::STOP).expect("stopped");
    // Without Redis, rate limits hold for each server.
    for number in 0..limit + 2 {
        let response = pat.get("/tasks").await;
        assert_eq!(response.status, if number < limit { 200 } else { 429 }, "{}", response.text());
    }
    tokio::join!(check_all_unavailable(&apis[0]), check_all_unavailable(&apis[1]));
    let error = waiter.await.expect("runs").expect_err("unavailable");
    assert!(is_retryable(&error), "{error}");

    redis.process().signal(Signal::CONT).expect("resumed");
    for api in &apis {
        wait_until_ready(api).await;
    }
    // Nothing is lost: the lease continues, and the waiter can retry.
    heartbeat(group.client(1), "ann", &grant).await.expect("still held");
    let waiter = wait_for(group.client(1), "ben", LOCK, LockMode::Exclusive);
    wait_until_queued(group.client(0), LOCK, &["ben"]).await;
    release(group.client(0), "ann", &grant).await;
    assert!(waiter.await.expect("runs").expect("granted").fencing_token > grant.fencing_token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_learn_of_loss_after_redis_restarts_empty() {
    let group = ServerGroup::start(RedisBackend::standalone(), 3, "");
    let redis = group.redis.primaries().first().expect("a primary");
    let grant = take(group.client(0), "ann", LOCK, LockMode::Exclusive).await;
    let mut waiters = Vec::new();
    for n in 0..3 {
        waiters.push((n, wait_for(group.client(n), &format!("waiter-{n}"), LOCK, LockMode::Exclusive)));
    }
    wait_for_lock(group.client(0), LOCK, "three wait", TIMEOUT, |lock| lock.queue_length == 3).await;
    redis.process().kill().expect("killed");
    for server in &group.servers {
        check_all_unavailable(&ApiClient::connect(server).await).await;
    }
    // Every waiter gets an error; none hangs.
    for (_, waiter) in waiters {
        let result = tokio::time::timeout(TIMEOUT, waiter).await.expect("in time").expect("runs");
        let error = result.expect_err("unavailable");
        assert!(is_retryable(&error), "{error}");
    }
    redis.process().spawn().expect("starts");
    for server in &group.servers {
        wait_until_ready(&ApiClient::connect(server).await).await;
    }
    let lost = heartbeat(group.client(1), "ann", &grant).await.expect_err("lost");
    assert_eq!(lost.code(), Some("LOCK_LOST"), "{lost}");
    let again = take(group.client(2), "ann", LOCK, LockMode::Exclusive).await;
    assert!(again.fencing_token > grant.fencing_token, "tokens increase across a complete loss of data");
}

/// Deletes all keys but keeps the connections: no server sees a connection error.
fn flush_all(group: &ServerGroup) {
    for redis in group.redis.primaries() {
        let mut connection = redis.connect().expect("connects");
        redis::cmd("FLUSHALL").exec(&mut connection).expect("flushed");
    }
}

async fn acquire_and_release(client: Client, agent: String) -> u64 {
    let grant = acquire(&client, &request(&agent, LOCK, LockMode::Exclusive, 60.0))
        .await
        .expect("granted eventually");
    release(&client, &agent, &grant).await;
    grant.fencing_token
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_requeue_after_flushall() {
    let group = ServerGroup::start(RedisBackend::cluster(), 3, "");
    let grant = take(group.client(0), "ann", LOCK, LockMode::Exclusive).await;
    let waiters: Vec<_> = (0..9)
        .map(|n| tokio::spawn(acquire_and_release(group.client(n).clone(), format!("waiter-{n}"))))
        .collect();
    wait_for_lock(group.client(0), LOCK, "nine wait", TIMEOUT, |lock| lock.queue_length == 9).await;
    let ticket = AcquireRequest { queue: true, ..request("cem", LOCK, LockMode::Exclusive, 60.0) };
    let AcquireOutcome::Queued(ticket) = group.client(1).acquire_locks(&ticket).await.expect("queued") else {
        panic!("not a ticket")
    };
    flush_all(&group);
    let lost = heartbeat(group.client(1), "ann", &grant).await.expect_err("lost");
    assert_eq!(lost.code(), Some("LOCK_LOST"), "{lost}");
    let mut tokens = BTreeSet::new();
    for waiter in waiters {
        let token = tokio::time::timeout(TIMEOUT, waiter).await.expect("in time").expect("granted");
        assert!(token > grant.fencing_token && tokens.insert(token), "tokens increase and never repeat");
    }
    let lost = group.client(2).ticket(&ticket.ticket).await.expect_err("the ticket is lost");
    assert_eq!(lost.code(), Some("TICKET_NOT_FOUND"), "{lost}");
    assert!(group.client(0).lock(LOCK).await.expect("shown").holders.is_empty());
}
