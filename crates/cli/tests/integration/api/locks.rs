//! Locks over HTTP: acquisition, queues, upgrades, leases, fencing tokens, breaking, and how locks are listed.

use std::time::Duration;

use ade_testkit::ApiClient;
use ade_testkit::wait::until;
use serde_json::{Value, json};

use crate::api::{start_server, start_server_with};

const DB: &str = "resource:database:prod";
const TIMEOUT: Duration = Duration::from_secs(20);

fn acquire_body(agent: &str, lock: &str, mode: &str) -> Value {
    json!({ "agent_id": agent, "locks": [{ "lock": lock, "mode": mode }] })
}

fn with_fields(mut body: Value, fields: &Value) -> Value {
    let fields = fields.as_object().expect("an object").clone();
    body.as_object_mut().expect("an object").extend(fields);
    body
}

async fn acquire(api: &ApiClient, agent: &str, lock: &str, mode: &str) -> u64 {
    let grants = api.post("/locks/acquire", &acquire_body(agent, lock, mode)).await.expect_status(200);
    token(&grants["grants"][0])
}

fn token(of: &Value) -> u64 {
    of["fencing_token"].as_u64().expect("a token")
}

fn held(agent: &str, lock: &str, token: u64) -> Value {
    json!({ "agent_id": agent, "locks": [{ "lock": lock, "fencing_token": token }] })
}

async fn show(api: &ApiClient, lock: &str) -> Value {
    api.get(&format!("/locks/{}", ade_testkit::api::encode_segment(lock))).await.expect_status(200)
}

async fn wait_for_queue(api: &ApiClient, lock: &str, length: u64) -> Value {
    let check = || async {
        let now = show(api, lock).await;
        if now["queue_length"] == length { Ok(now) } else { Err(now.to_string()) }
    };
    until(&format!("{length} waiters of {lock}"), TIMEOUT, check).await.expect("in time")
}

fn agents(list: &Value) -> Vec<String> {
    let all = list.as_array().expect("a list").iter();
    all.map(|item| item["agent_id"].as_str().expect("an id").to_owned()).collect()
}

/// Sends a request that waits, in a task of its own.
fn acquire_in_background(
    api: &ApiClient,
    body: Value,
) -> tokio::task::JoinHandle<ade_testkit::api::ApiResponse> {
    let api = api.clone();
    tokio::spawn(async move {
        api.post("/locks/acquire", &with_fields(body, &json!({ "wait_seconds": 60 }))).await
    })
}

#[tokio::test]
async fn grants_free_lock_with_token_and_times() {
    let (_ade, api) = start_server().await;
    let body = with_fields(
        acquire_body("a", DB, "exclusive"),
        &json!({ "ttl_seconds": 7.5, "purpose": "migrate", "holder_id": "h" }),
    );
    let response = api.post("/locks/acquire", &body).await.expect_status(200);
    let grant = &response["grants"][0];
    assert_eq!((&grant["lock"], &grant["mode"]), (&json!(DB), &json!("exclusive")));
    assert!(token(grant) > 0 && token(grant) < 1 << 53);
    let time = |name: &str| grant[name].as_str().expect("a time").to_owned();
    for text in [time("acquired_at"), time("expires_at")] {
        assert!(text.len() == "2026-01-01T00:00:00.000000Z".len() && text.ends_with('Z'), "{text}");
    }
    assert!(time("acquired_at") < time("expires_at"));
    let now = show(&api, DB).await;
    let holder = &now["holders"][0];
    assert_eq!((&now["mode"], &now["queue_length"]), (&json!("exclusive"), &json!(0)));
    assert_eq!((&holder["agent_id"], &holder["holder_id"]), (&json!("a"), &json!("h")));
    assert_eq!((&holder["purpose"], &holder["heartbeat_count"]), (&json!("migrate"), &json!(0)));
    assert_eq!((token(holder), &holder["expires_at"]), (token(grant), &grant["expires_at"]));
    // The default agent is the caller.
    let by_caller =
        api.post("/locks/acquire", &json!({ "locks": [{ "lock": "task:1" }] })).await.expect_status(200);
    assert_eq!(by_caller["grants"][0]["mode"], "exclusive");
    assert_eq!(agents(&show(&api, "task:1").await["holders"]), ["admin"]);
}

#[tokio::test]
async fn reacquiring_returns_same_grant_and_holders_exclude_each_other() {
    let (_ade, api) = start_server().await;
    let first = acquire(&api, "a", DB, "exclusive").await;
    for mode in ["exclusive", "shared"] {
        assert_eq!(acquire(&api, "a", DB, mode).await, first, "the same grant");
    }
    assert_eq!(show(&api, DB).await["mode"], "exclusive");
    let other = with_fields(acquire_body("a", DB, "exclusive"), &json!({ "holder_id": "other" }));
    let refused = api.post("/locks/acquire", &other).await.expect_problem(423, "LOCK_HELD");
    assert_eq!(agents(&refused["holders"]), ["a"]);
    let _ = api.post("/locks/release", &held("a", DB, first)).await.expect_status(200);
    assert_eq!(show(&api, DB).await["mode"], Value::Null, "one release frees it");
}

#[tokio::test]
async fn refusal_names_holders_and_queue_length() {
    let (_ade, api) = start_server().await;
    let first = acquire(&api, "a", DB, "shared").await;
    acquire(&api, "b", DB, "shared").await;
    let _ = api
        .post("/locks/acquire", &with_fields(acquire_body("c", DB, "exclusive"), &json!({ "queue": true })))
        .await
        .expect_status(202);
    for (mode, wait) in
        [("exclusive", json!({})), ("shared", json!({})), ("exclusive", json!({ "wait_seconds": 0 }))]
    {
        let refused = api
            .post("/locks/acquire", &with_fields(acquire_body("d", DB, mode), &wait))
            .await
            .expect_problem(423, "LOCK_HELD");
        assert_eq!(refused["lock"], DB);
        assert_eq!(
            agents(&refused["holders"]),
            ["a", "b"],
            "a shared request does not overtake an earlier waiter"
        );
        assert_eq!(refused["queue_length"], 1);
        assert_eq!(token(&refused["holders"][0]), first);
    }
    // A wait that times out is refused in the same way.
    let short_wait = with_fields(acquire_body("d", DB, "exclusive"), &json!({ "wait_seconds": 0.05 }));
    let refused = api.post("/locks/acquire", &short_wait).await.expect_problem(423, "LOCK_HELD");
    assert_eq!((agents(&refused["holders"]).len(), &refused["queue_length"]), (2, &json!(1)));
    assert_eq!(show(&api, DB).await["queue_length"], 1, "it has left the queue");
}

#[tokio::test]
async fn full_queue_refuses_and_contention_opens_circuit() {
    let (ade, api) = start_server_with("[lock]\nmax_queue = 1\n[log]\nformat = \"json\"\n").await;
    acquire(&api, "a", DB, "exclusive").await;
    let queue = |agent: &str| with_fields(acquire_body(agent, DB, "exclusive"), &json!({ "queue": true }));
    let _ = api.post("/locks/acquire", &queue("b")).await.expect_status(202);
    for n in 0..100 {
        let response = api.post("/locks/acquire", &queue(&format!("c{}", n % 3))).await;
        let problem = response.expect_problem(503, "QUEUE_FULL");
        assert_eq!((&problem["queue_length"], &problem["lock"]), (&json!(1), &json!(DB)));
        assert_eq!((&problem["retry_after"], response.header("retry-after")), (&json!(1), "1"));
    }
    ade.process().wait_for_log_lines("lock:queue_full", 1, TIMEOUT).expect("a log line");
    let response = api.post("/locks/acquire", &queue("c")).await;
    let problem = response.expect_problem(503, "CONTENTION");
    let seconds = problem["retry_after"].as_u64().expect("seconds");
    assert!((1..=5).contains(&seconds), "{problem}");
    assert_eq!(
        (response.header("retry-after"), &problem["lock"]),
        (seconds.to_string().as_str(), &json!(DB))
    );
    // Other locks and the present holder are not affected.
    acquire(&api, "c", "task:1", "exclusive").await;
    acquire(&api, "a", DB, "exclusive").await;
}

#[tokio::test]
async fn rate_limits_acquisitions_per_agent() {
    let (_ade, api) = start_server_with("[lock]\nacquisitions_per_minute = 3\n").await;
    for n in 0..3 {
        acquire(&api, "a", &format!("task:{n}"), "exclusive").await;
    }
    let before = api.get("/locks").await.text();
    let response = api.post("/locks/acquire", &acquire_body("a", "task:3", "exclusive")).await;
    let problem = response.expect_problem(429, "RATE_LIMITED");
    let seconds = problem["retry_after"].as_u64().expect("seconds");
    assert!((1..=60).contains(&seconds) && response.header("retry-after") == seconds.to_string());
    assert_eq!(api.get("/locks").await.text(), before);
    acquire(&api, "b", "task:3", "exclusive").await;
}

#[tokio::test]
async fn lost_locks_do_not_affect_others_in_one_request() {
    let (_ade, api) = start_server().await;
    let own = acquire(&api, "a", "resource:t:1", "exclusive").await;
    let other = acquire(&api, "b", "resource:t:2", "exclusive").await;
    let locks = json!({ "agent_id": "a", "locks": [
        { "lock": "resource:t:2", "fencing_token": other }, { "lock": "resource:t:1", "fencing_token": own }, { "lock": "resource:t:3", "fencing_token": 1 }] });
    for (route, left) in [("heartbeat", 2), ("downgrade", 2), ("release", 1)] {
        let lost = api.post(&format!("/locks/{route}"), &locks).await.expect_problem(409, "LOCK_LOST");
        let oks: Vec<&Value> =
            lost["results"].as_array().expect("all").iter().map(|result| &result["ok"]).collect();
        assert_eq!(oks, [&json!(false), &json!(true), &json!(false)], "{route}");
        assert_eq!(
            api.get("/locks").await.expect_status(200)["items"].as_array().map(Vec::len),
            Some(left),
            "{route}"
        );
    }
    assert_eq!(
        agents(&show(&api, "resource:t:2").await["holders"]),
        ["b"],
        "a token of another holder does nothing"
    );
    acquire(&api, "c", "task:1", "exclusive").await;
    let task = json!({ "agent_id": "c", "locks": [{ "lock": "task:1", "fencing_token": 1 }] });
    let _ = api.post("/locks/downgrade", &task).await.expect_problem(422, "INVALID_REQUEST");
}

#[tokio::test]
async fn verifies_token_and_breaks_lock_with_reason() {
    let (ade, api) = start_server_with("[log]\nformat = \"json\"\n").await;
    let first = acquire(&api, "a", DB, "exclusive").await;
    let verify = |token: u64| json!({ "lock": DB, "fencing_token": token });
    let valid = api.post("/locks/verify", &verify(first)).await.expect_status(200);
    assert_eq!((&valid["valid"], &valid["holder"]["agent_id"]), (&json!(true), &json!("a")));
    for invalid in [0, first - 1, first + 1, u64::MAX] {
        let _ = api.post("/locks/verify", &verify(invalid)).await.expect_problem(409, "LOCK_LOST");
    }
    let next = acquire_in_background(&api, acquire_body("b", DB, "exclusive"));
    wait_for_queue(&api, DB, 1).await;
    let path = format!("/locks/{}", ade_testkit::api::encode_segment(DB));
    for reason in ["", "?reason=", "?reason=%20", &format!("?reason={}", "x".repeat(1025))] {
        assert_eq!(
            api.delete(&format!("{path}{reason}")).await.expect_problem(422, "INVALID_REQUEST")["errors"][0]
                ["pointer"],
            "?reason"
        );
    }
    let _ = api.delete(&format!("{path}?reason=x&force=1")).await.expect_problem(422, "INVALID_REQUEST");
    assert_eq!(agents(&show(&api, DB).await["holders"]), ["a"]);
    let broken = api.delete(&format!("{path}?reason=it%20hangs")).await.expect_status(200);
    assert_eq!((agents(&broken["holders"]), &broken["lock"]), (vec!["a".to_owned()], &json!(DB)));
    let second = token(&next.await.expect("runs").expect_status(200)["grants"][0]);
    assert!(second > first, "the next waiter is granted");
    let _ = api.post("/locks/verify", &verify(first)).await.expect_problem(409, "LOCK_LOST");
    for line in [r#""kind":"audit","action":"lock.break","actor":"admin""#, r#""kind":"inbox","agent":"a""#] {
        ade.process().wait_for_log_lines(line, 1, TIMEOUT).expect("a log line");
    }
    let free = api.delete("/locks/task%3Afree?reason=why").await.expect_status(200);
    assert_eq!(free["holders"], json!([]), "breaking a free lock succeeds");
}

#[tokio::test]
async fn acquires_several_locks_in_order_or_none() {
    let (_ade, api) = start_server().await;
    acquire(&api, "b", "resource:m:1", "exclusive").await;
    let body = |agent: &str| {
        json!({ "agent_id": agent, "request_id": "1", "locks": [
            { "lock": "resource:z:1", "mode": "shared" }, { "lock": "resource:m:1" }, { "lock": "task:9" }] })
    };
    let before = api.get("/locks").await.text();
    let refused = api.post("/locks/acquire", &body("a")).await.expect_problem(423, "LOCK_HELD");
    assert_eq!(
        (&refused["lock"], agents(&refused["holders"])),
        (&json!("resource:m:1"), vec!["b".to_owned()])
    );
    assert_eq!(api.get("/locks").await.text(), before, "a refused request leaves no locks");
    let _ = api.delete("/locks/resource%3Am%3A1?reason=test").await.expect_status(200);
    let granted = api.post("/locks/acquire", &body("a")).await.expect_status(200);
    let names: Vec<&Value> =
        granted["grants"].as_array().expect("all").iter().map(|grant| &grant["lock"]).collect();
    assert_eq!(names, ["task:9", "resource:m:1", "resource:z:1"], "the refused request can be repeated");
    assert_eq!(granted["grants"][2]["mode"], "shared");
}

#[tokio::test]
async fn disconnect_leaves_queue_and_releases_granted_locks() {
    let (_ade, api) = start_server().await;
    let first = acquire(&api, "a", "task:2", "exclusive").await;
    let disconnected = acquire_in_background(
        &api,
        json!({ "agent_id": "b", "locks": [{ "lock": "task:1" }, { "lock": "task:2" }] }),
    );
    wait_for_queue(&api, "task:2", 1).await;
    assert_eq!(agents(&show(&api, "task:1").await["holders"]), ["b"]);
    let behind = acquire_in_background(&api, acquire_body("c", "task:2", "exclusive"));
    wait_for_queue(&api, "task:2", 2).await;
    disconnected.abort();
    assert_eq!(agents(&wait_for_queue(&api, "task:2", 1).await["queue"]), ["c"]);
    let free = || async {
        let now = show(&api, "task:1").await;
        if now["mode"].is_null() { Ok(()) } else { Err(now.to_string()) }
    };
    until("the granted lock to be released", TIMEOUT, free).await.expect("in time");
    let _ = api.post("/locks/release", &held("a", "task:2", first)).await.expect_status(200);
    let _ = behind.await.expect("runs").expect_status(200);
}
