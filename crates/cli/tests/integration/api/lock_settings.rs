//! Settings of locks that all servers share, and notices about locks for operators and agents.

use std::time::Duration;

use ade_domain::people::{ADMIN, AUTHOR};
use ade_testkit::api::ApiResponse;
use ade_testkit::server::ServerBuilder;
use ade_testkit::wait::until;
use ade_testkit::{AdminClient, ApiClient, Postgres, Redis};
use serde_json::{Value, json};

use crate::api::start_server;

const TIMEOUT: Duration = Duration::from_secs(30);
/// Refusals of a full queue for which the operators are notified once.
const REFUSALS: usize = 5;

async fn acquire(api: &ApiClient, agent: &str, lock: &str, more: Value) -> ApiResponse {
    let mut body = json!({ "agent_id": agent, "locks": [{ "lock": lock }] });
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    api.post("/locks/acquire", &body).await
}

async fn set(api: &ApiClient, name: &str, value: u64) -> ApiResponse {
    api.put(&format!("/config/{name}"), &json!({ "value": value })).await
}

/// The lease of a new grant in seconds, and when it wants a heartbeat.
async fn lease(api: &ApiClient, lock: &str) -> (i64, f64) {
    let granted = acquire(api, "a", lock, json!({})).await.expect_status(200);
    let grant = &granted["grants"][0];
    let time = |field: &str| {
        let text = grant[field].as_str().expect("a time");
        text.parse::<jiff::Timestamp>().expect("RFC 3339").as_second()
    };
    (time("expires_at") - time("acquired_at"), grant["heartbeat_seconds"].as_f64().expect("a number"))
}

#[tokio::test]
async fn lock_settings_apply_at_once_and_are_consistent() {
    let (ade, api) = start_server().await;
    assert_eq!(lease(&api, "resource:x:1").await, (30, 10.0));
    let listed = api.get("/config").await.expect_status(200);
    let names: Vec<&str> =
        listed["items"].as_array().expect("a list").iter().filter_map(|item| item["name"].as_str()).collect();
    for name in ["lock:default_ttl", "lock:heartbeat_interval", "lock:max_ttl"] {
        assert!(names.contains(&name), "{names:?}");
    }
    let _ = set(&api, "lock:heartbeat_interval", 4).await.expect_status(200);
    let _ = set(&api, "lock:default_ttl", 60).await.expect_status(200);
    assert_eq!(lease(&api, "resource:x:2").await, (60, 4.0));
    // A short lease wants its heartbeat earlier.
    let short = acquire(&api, "a", "resource:x:3", json!({ "ttl_seconds": 6 })).await.expect_status(200);
    assert_eq!(short["grants"][0]["heartbeat_seconds"], json!(2.0));
    let _ = set(&api, "lock:max_ttl", 60).await.expect_status(200);
    let too_long = acquire(&api, "a", "resource:x:4", json!({ "ttl_seconds": 61 })).await;
    assert_eq!((too_long.status, too_long.error_pointers()), (422, vec!["/ttl_seconds".to_owned()]));
    // Values that contradict each other are refused, whichever of the two is set.
    for (name, value) in [
        ("lock:default_ttl", 61),
        ("lock:max_ttl", 59),
        ("lock:max_ttl", 3_601),
        ("lock:heartbeat_interval", 61),
        ("lock:default_ttl", 3),
        ("approval:default_timeout", 7 * 86_400 + 1),
        ("approval:max_timeout", 48 * 3_600 - 1),
    ] {
        let refused = set(&api, name, value).await;
        assert_eq!(
            (refused.status, refused.error_pointers()),
            (422, vec!["/value".to_owned()]),
            "{name} {value}"
        );
    }
    let _ = set(&api, "approval:default_timeout", 7 * 86_400).await.expect_status(200);
    ade.kill_and_restart().expect("starts again");
    assert_eq!(lease(&api, "resource:x:5").await, (60, 4.0), "also after a restart");
    // Heartbeats may carry the client's time in either form.
    let granted = acquire(&api, "a", "resource:x:6", json!({})).await.expect_status(200);
    let held = json!([{ "lock": "resource:x:6", "fencing_token": granted["grants"][0]["fencing_token"] }]);
    for timestamp in
        [json!(1_710_775_800_000_u64), json!(1_710_775_800_000.5), json!("2026-03-18T15:30:00Z"), json!(null)]
    {
        let body = json!({ "agent_id": "a", "locks": held, "timestamp": timestamp });
        let _ = api.post("/locks/heartbeat", &body).await.expect_status(200);
    }
    for timestamp in [json!("yesterday"), json!(true), json!({})] {
        let body = json!({ "agent_id": "a", "locks": held, "timestamp": timestamp });
        let _ = api.post("/locks/heartbeat", &body).await.expect_problem(422, "INVALID_REQUEST");
    }
}

#[tokio::test]
async fn settings_and_full_queues_are_shared_by_two_servers() {
    let (redis, postgres) = (Redis::start().expect("starts"), Postgres::start().expect("starts"));
    let database = postgres.create_database("ade").expect("created");
    let setup =
        ServerBuilder::new(env!("CARGO_BIN_EXE_ade")).config("[lock]\nmax_queue = 1\n[worker]\nslots = 0\n");
    let setup = setup.arg("--redis").arg(&redis.url()).arg("--postgres").arg(&database);
    let servers = setup.start_many(2).expect("start");
    let (first, second) = (ApiClient::connect(&servers[0]).await, ApiClient::connect(&servers[1]).await);
    let _ = set(&first, "lock:default_ttl", 77).await.expect_status(200);
    let mut round = 0;
    let observe = || {
        round += 1;
        let (api, lock) = (second.clone(), format!("resource:round:{round}"));
        async move {
            let (seconds, _) = lease(&api, &lock).await;
            if seconds == 77 { Ok(()) } else { Err(format!("{seconds} s")) }
        }
    };
    until("the other server uses the new lease", TIMEOUT, observe).await.expect("in time");
    deadlock_detection_follows_the_flag(&first, &second).await;
    full_queue_notifies_operators_once(&first, &second).await;
    // The capacity of an agent has a heartbeat from its registration on.
    let _ = second.post("/agents", &json!({ "agent_id": "fresh" })).await.expect_status(201);
    let fields: Vec<String> =
        redis.query(&["HMGET", "ade:lock:agent:fresh:capacity", "last_heartbeat", "status"]).expect("read");
    assert!(fields[0].parse::<jiff::Timestamp>().is_ok() && fields[1] == "active", "{fields:?}");
}

async fn deadlock_detection_follows_the_flag(first: &ApiClient, second: &ApiClient) {
    let flag = async |enabled: bool| {
        let set = first.put("/features/deadlock_detection", &json!({ "enabled": enabled })).await;
        assert_eq!(set.expect_status(200)["enabled"], json!(enabled));
    };
    flag(false).await;
    // A later setting that the other server uses: it has read the flag as well.
    let _ = set(first, "lock:heartbeat_interval", 7).await.expect_status(200);
    let mut round = 0;
    let observe = || {
        round += 1;
        let (api, lock) = (second.clone(), format!("resource:flag:{round}"));
        async move {
            let (_, interval) = lease(&api, &lock).await;
            if (interval - 7.0).abs() < 0.01 { Ok(()) } else { Err(format!("{interval} s")) }
        }
    };
    until("the other server has read the settings", TIMEOUT, observe).await.expect("in time");
    let _ = acquire(first, "one", "resource:cycle:1", json!({ "ttl_seconds": 60 })).await.expect_status(200);
    let _ = acquire(second, "two", "resource:cycle:2", json!({ "ttl_seconds": 60 })).await.expect_status(200);
    let queue = json!({ "queue": true, "wait_seconds": 60 });
    let _ = acquire(first, "one", "resource:cycle:2", queue.clone()).await.expect_status(202);
    let _ = acquire(first, "two", "resource:cycle:1", queue).await.expect_status(202);
    let graph = first.get("/locks/graph").await.expect_status(200);
    assert_eq!(graph["waits"].as_array().map(Vec::len), Some(2), "nobody is aborted: {graph}");
    // Turned on again, the servers find the cycle.
    flag(true).await;
    let observe = || async {
        let graph = second.get("/locks/graph").await.expect_status(200);
        if graph["waits"].as_array().is_some_and(Vec::is_empty) { Ok(()) } else { Err(graph.to_string()) }
    };
    until("the deadlock is resolved", TIMEOUT, observe).await.expect("in time");
    // The audit entry and the message name the lock that the victim waited for.
    let org = AdminClient { api: first.clone() };
    let observe = || async {
        let entries = org.audit_entries("action=lock.deadlock").await;
        entries.into_iter().next().ok_or_else(|| "no entry".to_owned())
    };
    let entry = until("the deadlock is audited", TIMEOUT, observe).await.expect("in time");
    let cycle = entry["details"]["cycle"].as_array().expect("a cycle");
    let own = cycle.iter().find(|edge| edge["holder"] == entry["details"]["victim"]).expect("the victim");
    assert_eq!(entry["object_id"], own["waits_for"], "{entry}");
}

async fn full_queue_notifies_operators_once(first: &ApiClient, second: &ApiClient) {
    let org = AdminClient { api: first.clone() };
    for (id, role) in [("ada", ADMIN), ("pat", AUTHOR)] {
        let _ = org.create_user(id, &[role]).await;
    }
    let lock = "resource:queue:full";
    let _ = acquire(first, "holder", lock, json!({ "ttl_seconds": 60 })).await.expect_status(200);
    let _ = acquire(first, "waiter", lock, json!({ "queue": true })).await.expect_status(202);
    for number in 0..REFUSALS {
        for (server, api) in [first, second].into_iter().enumerate() {
            let refused =
                acquire(api, &format!("late-{server}-{number}"), lock, json!({ "queue": true })).await;
            let _ = refused.expect_problem(503, "QUEUE_FULL");
        }
    }
    // A later entry: once it is numbered, so are all earlier ones.
    let observe = || async {
        let _ = set(first, "lock:heartbeat_interval", 9).await;
        let entries = org.audit_entries("action=lock.queue_full").await;
        if entries.is_empty() { Err("no entry".to_owned()) } else { Ok(entries) }
    };
    let entries = until("the full queue is audited", TIMEOUT, observe).await.expect("in time");
    assert_eq!(entries.len(), 1, "{entries:?}");
    assert_eq!(entries[0]["object_id"], lock);
    assert_eq!(entries[0]["details"]["notified"], json!(["ada", "admin"]), "{entries:?}");
}
