//! Repeated lock requests with one request id: they return the present state of the request, must have the same body, and must
//! not revive a request that has ended.

use std::time::Duration;

use ade_testkit::ApiClient;
use ade_testkit::wait::until;
use serde_json::{Value, json};

use crate::api::start_server;

fn body(agent: &str, id: &str) -> Value {
    json!({ "agent_id": agent, "request_id": id, "locks": [{ "lock": "resource:x:1" }], "ttl_seconds": 60 })
}

async fn acquire(api: &ApiClient, body: &Value) -> ade_testkit::api::ApiResponse {
    api.post("/locks/acquire", body).await
}

fn release_body(agent: &str, grant: &Value) -> Value {
    json!({ "agent_id": agent, "locks": [{ "lock": grant["lock"], "fencing_token": grant["fencing_token"] }] })
}

#[tokio::test]
async fn repeated_request_returns_present_state() {
    let (_ade, api) = start_server().await;
    let first = acquire(&api, &body("a", "1")).await.expect_status(200);
    let again = acquire(&api, &body("a", "1")).await.expect_status(200);
    assert_eq!(again, first, "the same grant, without a longer lease");
    let mut queued = body("b", "1");
    queued["queue"] = json!(true);
    let ticket = acquire(&api, &queued).await.expect_status(202);
    let again = acquire(&api, &queued).await.expect_status(202);
    for field in ["ticket", "position", "waiting_for"] {
        assert_eq!(again[field], ticket[field], "{field} of the waiting request");
    }
    assert_eq!(
        api.get("/locks/resource%3Ax%3A1").await.expect_status(200)["queue_length"],
        1,
        "it waits once"
    );
    let _ = api.delete("/locks/resource%3Ax%3A1?reason=test").await.expect_status(200);
    let lost = acquire(&api, &body("a", "1")).await.expect_problem(409, "LOCK_LOST");
    assert_eq!((&lost["reason"], &lost["lock"]), (&json!("broken"), &json!("resource:x:1")));
}

#[tokio::test]
async fn rejects_request_id_with_different_body() {
    let (_ade, api) = start_server().await;
    let mut first = body("a", "1");
    first["locks"] = json!([{ "lock": "resource:x:1" }, { "lock": "resource:x:2", "mode": "shared" }]);
    let granted = acquire(&api, &first).await.expect_status(200);
    let before = api.get("/locks").await.text();
    for (field, value) in [
        ("ttl_seconds", json!(61)),
        ("ttl_seconds", json!(null)),
        ("wait_seconds", json!(1)),
        ("queue", json!(true)),
        ("priority", json!(1)),
        ("purpose", json!("other")),
        ("locks", json!([{ "lock": "resource:x:1" }])),
        ("locks", json!([{ "lock": "resource:x:1" }, { "lock": "resource:x:2" }])),
        ("locks", json!([{ "lock": "resource:x:1" }, { "lock": "resource:x:3", "mode": "shared" }])),
        (
            "locks",
            json!([{ "lock": "resource:x:1" }, { "lock": "resource:x:2", "mode": "shared" }, { "lock": "resource:x:3" }]),
        ),
    ] {
        let mut other = first.clone();
        other[field] = value;
        let _ = acquire(&api, &other).await.expect_problem(422, "REQUEST_ID_REUSED");
        assert_eq!(api.get("/locks").await.text(), before, "{field}");
    }
    // An equivalent body is the same request.
    let mut same = first.clone();
    same["locks"] = json!([{ "lock": "resource:x:2", "mode": "shared" }, { "lock": "resource:x:1", "mode": "exclusive" }]);
    same["wait_seconds"] = json!(0);
    same["purpose"] = json!("");
    assert_eq!(acquire(&api, &same).await.expect_status(200), granted);
    // Request ids are scoped to the holder.
    for (agent, holder) in [("b", "b"), ("a", "other")] {
        let mut other = body(agent, "1");
        other["holder_id"] = json!(holder);
        other["locks"] = json!([{ "lock": format!("resource:y:{holder}") }]);
        let _ = acquire(&api, &other).await.expect_status(200);
    }
}

#[tokio::test]
async fn repetition_does_not_revive_ended_request() {
    let (_ade, api) = start_server().await;
    let granted = acquire(&api, &body("a", "1")).await.expect_status(200);
    let mut waiting = body("b", "1");
    waiting["queue"] = json!(true);
    let ticket =
        acquire(&api, &waiting).await.expect_status(202)["ticket"].as_str().expect("a ticket").to_owned();
    assert_eq!(api.delete(&format!("/locks/tickets/{ticket}")).await.status, 204);
    let _ = api.post("/locks/release", &release_body("a", &granted["grants"][0])).await.expect_status(200);
    for _ in 0..2 {
        let lost = acquire(&api, &body("a", "1")).await.expect_problem(409, "LOCK_LOST");
        assert_eq!(lost["reason"], "released");
        let _ = acquire(&api, &waiting).await.expect_problem(409, "CANCELLED");
        let _ = api.get(&format!("/locks/tickets/{ticket}")).await.expect_problem(409, "CANCELLED");
        let _ = api
            .post(&format!("/locks/tickets/{ticket}/claim"), &json!({}))
            .await
            .expect_problem(409, "CANCELLED");
    }
    assert_eq!(api.get("/locks").await.expect_status(200)["items"], json!([]));
    let _ = acquire(&api, &body("a", "2")).await.expect_status(200);
    let twice = api.post("/locks/release", &release_body("a", &granted["grants"][0])).await;
    let _ = twice.expect_problem(409, "LOCK_LOST");
    assert_eq!(
        api.get("/locks").await.expect_status(200)["items"].as_array().map(Vec::len),
        Some(1),
        "the newer grant is not released"
    );
}

#[tokio::test]
async fn refused_requests_can_be_repeated() {
    let (_ade, api) = start_server().await;
    let granted = acquire(&api, &body("a", "1")).await.expect_status(200);
    let mut patient = body("b", "2");
    patient["wait_seconds"] = json!(0.05);
    let _ = acquire(&api, &body("b", "1")).await.expect_problem(423, "LOCK_HELD");
    let _ = acquire(&api, &patient).await.expect_problem(423, "LOCK_HELD");
    let _ = api.post("/locks/release", &release_body("a", &granted["grants"][0])).await.expect_status(200);
    let first = acquire(&api, &body("b", "1")).await.expect_status(200);
    let second = acquire(&api, &patient).await.expect_status(200);
    assert_eq!(first["grants"][0]["fencing_token"], second["grants"][0]["fencing_token"]);
    // The body of a refused request is not stored either.
    let _ = acquire(&api, &body("c", "1")).await.expect_problem(423, "LOCK_HELD");
    let mut other = body("c", "1");
    other["purpose"] = json!("another");
    let _ = acquire(&api, &other).await.expect_problem(423, "LOCK_HELD");
}

#[tokio::test]
async fn newer_request_supersedes_waiting_one() {
    let (_ade, api) = start_server().await;
    let _ = acquire(&api, &body("a", "1")).await.expect_status(200);
    let queued = |agent: &str, id: &str| {
        let mut body = body(agent, id);
        body["queue"] = json!(true);
        body
    };
    let older = acquire(&api, &queued("b", "1")).await.expect_status(202)["ticket"]
        .as_str()
        .expect("a ticket")
        .to_owned();
    let _ = acquire(&api, &queued("c", "1")).await.expect_status(202);
    let newer = acquire(&api, &queued("b", "2")).await.expect_status(202);
    assert_eq!(newer["position"], 1);
    let over = api.get(&format!("/locks/tickets/{older}")).await.expect_problem(409, "SUPERSEDED");
    assert_eq!(over["lock"], "resource:x:1");
    let _ = acquire(&api, &queued("b", "1")).await.expect_problem(409, "SUPERSEDED");
    assert_eq!(api.get("/locks/resource%3Ax%3A1").await.expect_status(200)["queue_length"], 2);
}

#[tokio::test]
async fn repeated_request_survives_disconnect_of_first() {
    let (_ade, api) = start_server().await;
    let granted = acquire(&api, &body("a", "1")).await.expect_status(200);
    let open = |api: &ApiClient| {
        let (api, mut body) = (api.clone(), body("b", "1"));
        body["wait_seconds"] = json!(30);
        tokio::spawn(async move { acquire(&api, &body).await })
    };
    let last_heartbeat = async || {
        let agent = api.get("/agents/b").await.json();
        agent["last_heartbeat"].as_str().unwrap_or_default().to_owned()
    };
    let wait_for_request = async |since: &str| {
        let check = || async {
            let last = last_heartbeat().await;
            if last.as_str() > since { Ok(()) } else { Err(last) }
        };
        until("the request to arrive", Duration::from_secs(20), check).await.expect("in time");
    };
    let queue = || async { api.get("/locks/resource%3Ax%3A1").await.expect_status(200)["queue"].clone() };
    let wait_for_length = async |length: usize| {
        let check = || async {
            let queue = queue().await;
            if queue.as_array().map(Vec::len) == Some(length) { Ok(queue) } else { Err(queue.to_string()) }
        };
        until("the length of the queue", Duration::from_secs(20), check).await.expect("in time")
    };
    let first = open(&api);
    let before = wait_for_length(1).await;
    let since = last_heartbeat().await;
    let second = open(&api);
    wait_for_request(&since).await;
    first.abort();
    // The server notices a later disconnect, so it has noticed the first one as well.
    let other = tokio::spawn({
        let (api, mut body) = (api.clone(), body("c", "1"));
        body["wait_seconds"] = json!(30);
        async move { acquire(&api, &body).await }
    });
    wait_for_length(2).await;
    other.abort();
    wait_for_length(1).await;
    assert_eq!(queue().await, before, "the request keeps its place");
    let _ = api.post("/locks/release", &release_body("a", &granted["grants"][0])).await.expect_status(200);
    let granted = second.await.expect("runs").expect_status(200);
    assert_eq!(granted["grants"][0]["lock"], "resource:x:1");
}
