//! Tickets over HTTP: their lifecycle, and several locks with one ticket.

use std::time::Duration;

use ade_testkit::ApiClient;
use ade_testkit::wait::until;
use serde_json::{Value, json};

use crate::api::start_server;

const TIMEOUT: Duration = Duration::from_secs(20);

async fn acquire(api: &ApiClient, agent: &str, lock: &str) -> Value {
    let body = json!({ "agent_id": agent, "locks": [{ "lock": lock }] });
    api.post("/locks/acquire", &body).await.expect_status(200)["grants"][0].clone()
}

async fn release(api: &ApiClient, agent: &str, grant: &Value) {
    let body = json!({ "agent_id": agent, "locks": [{ "lock": grant["lock"], "fencing_token": grant["fencing_token"] }] });
    let _ = api.post("/locks/release", &body).await.expect_status(200);
}

async fn enqueue(api: &ApiClient, agent: &str, locks: &[&str], wait_seconds: f64) -> Value {
    let locks: Vec<Value> = locks.iter().map(|lock| json!({ "lock": lock })).collect();
    let body = json!({ "agent_id": agent, "locks": locks, "queue": true, "wait_seconds": wait_seconds, "ttl_seconds": 100 });
    api.post("/locks/acquire", &body).await.expect_status(202)
}

fn path(ticket: &Value) -> String {
    format!("/locks/tickets/{}", ticket["ticket"].as_str().expect("a ticket"))
}

async fn poll(api: &ApiClient, ticket: &Value) -> Value {
    api.get(&path(ticket)).await.expect_status(200)
}

async fn claim(api: &ApiClient, ticket: &Value) -> ade_testkit::api::ApiResponse {
    api.request("POST", &format!("{}/claim", path(ticket)), "").await
}

#[tokio::test]
async fn ticket_waits_becomes_ready_and_is_claimed() {
    let (_ade, api) = start_server().await;
    let held = acquire(&api, "a", "task:1").await;
    let first = enqueue(&api, "b", &["task:1"], 60.0).await;
    let second = enqueue(&api, "c", &["task:1"], 60.0).await;
    for (ticket, position) in [(&first, 1), (&second, 2)] {
        assert_eq!((&ticket["status"], &ticket["position"]), (&json!("waiting"), &json!(position)));
        assert_eq!(ticket["waiting_for"], "task:1");
        assert_eq!(&poll(&api, ticket).await, ticket, "polling changes nothing");
    }
    let early = claim(&api, &first).await.expect_status(202);
    assert_eq!(early["status"], "waiting", "still waiting");
    release(&api, "a", &held).await;
    let ready = poll(&api, &first).await;
    assert_eq!((&ready["status"], ready.get("position")), (&json!("ready"), None));
    assert!(ready["claim_by"].is_string() && ready.get("grants").is_none());
    assert_eq!(poll(&api, &second).await["position"], 1);
    let claimed = claim(&api, &first).await.expect_status(200);
    assert_eq!((&claimed["status"], &claimed["grants"][0]["lock"]), (&json!("granted"), &json!("task:1")));
    assert!(
        claimed["grants"][0]["expires_at"].as_str() > ready["claim_by"].as_str(),
        "the lease starts at the claim"
    );
    assert_eq!(
        claim(&api, &first).await.expect_status(200),
        claimed,
        "claiming again returns the same grant"
    );
    assert_eq!(poll(&api, &first).await, claimed);
    release(&api, "b", &claimed["grants"][0]).await;
    assert_eq!(poll(&api, &second).await["status"], "ready");
    let response = api.get(&path(&first)).await;
    let _ = response.expect_problem(409, "LOCK_LOST");
    let _ = claim(&api, &first).await.expect_problem(409, "LOCK_LOST");
}

#[tokio::test]
async fn free_lock_is_granted_without_ticket() {
    let (_ade, api) = start_server().await;
    let body =
        json!({ "agent_id": "a", "locks": [{ "lock": "task:1" }, { "lock": "task:2" }], "queue": true });
    let granted = api.post("/locks/acquire", &body).await.expect_status(200);
    assert_eq!(granted["grants"].as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn deleted_ticket_leaves_queue() {
    let (_ade, api) = start_server().await;
    let held = acquire(&api, "a", "task:1").await;
    let (first, second) =
        (enqueue(&api, "b", &["task:1"], 60.0).await, enqueue(&api, "c", &["task:1"], 60.0).await);
    assert_eq!(api.delete(&path(&first)).await.status, 204);
    assert_eq!(api.delete(&path(&first)).await.status, 204, "deleting again");
    let _ = api.get(&path(&first)).await.expect_problem(409, "CANCELLED");
    assert_eq!(poll(&api, &second).await["position"], 1);
    release(&api, "a", &held).await;
    assert_eq!(poll(&api, &second).await["status"], "ready");
    let third = enqueue(&api, "d", &["task:1"], 60.0).await;
    assert_eq!(api.delete(&path(&second)).await.status, 204, "its grant passes to the next ticket");
    assert_eq!(poll(&api, &third).await["status"], "ready");
    // A claimed ticket can be deleted as well.
    let _ = claim(&api, &third).await.expect_status(200);
    assert_eq!(api.delete(&path(&third)).await.status, 204);
    assert_eq!(api.get("/locks").await.expect_status(200)["items"], json!([]));
}

#[tokio::test]
async fn ticket_times_out() {
    let (_ade, api) = start_server().await;
    acquire(&api, "a", "task:1").await;
    let ticket = enqueue(&api, "b", &["task:1"], 0.2).await;
    let check = || async {
        let response = api.get(&path(&ticket)).await;
        if response.status == 200 { Err(response.text()) } else { Ok(response) }
    };
    let response = until("the ticket to time out", TIMEOUT, check)
        .await
        .expect("in time")
        .expect_problem(423, "LOCK_HELD");
    assert_eq!((&response["holders"][0]["agent_id"], &response["queue_length"]), (&json!("a"), &json!(0)));
    let _ = claim(&api, &ticket).await.expect_problem(423, "LOCK_HELD");
}

#[tokio::test]
async fn one_ticket_for_several_locks() {
    let (_ade, api) = start_server().await;
    let (first_grant, last_grant) =
        (acquire(&api, "a", "task:1").await, acquire(&api, "a", "resource:x:1").await);
    let ticket = enqueue(&api, "b", &["resource:x:1", "task:2", "task:1"], 60.0).await;
    assert_eq!(ticket["waiting_for"], "task:1");
    release(&api, "a", &first_grant).await;
    let next = poll(&api, &ticket).await;
    assert_eq!((&next["status"], &next["waiting_for"]), (&json!("waiting"), &json!("resource:x:1")));
    let held = api.get("/agents/b/locks").await.expect_status(200);
    assert_eq!(held["items"].as_array().map(Vec::len), Some(3), "two held, one waited for: {held}");
    release(&api, "a", &last_grant).await;
    assert_eq!(poll(&api, &ticket).await["status"], "ready");
    let claimed = claim(&api, &ticket).await.expect_status(200);
    let names: Vec<&Value> =
        claimed["grants"].as_array().expect("all").iter().map(|grant| &grant["lock"]).collect();
    assert_eq!(names, ["task:1", "task:2", "resource:x:1"]);
    for grant in claimed["grants"].as_array().expect("all") {
        let body = json!({ "lock": grant["lock"], "fencing_token": grant["fencing_token"] });
        let _ = api.post("/locks/verify", &body).await.expect_status(200);
    }
    // Deleting the ticket releases all its locks.
    let other_ticket = enqueue(&api, "c", &["task:3", "task:1"], 60.0).await;
    assert_eq!(api.delete(&path(&other_ticket)).await.status, 204);
    let now = api.get("/locks?agent=c").await.expect_status(200);
    assert_eq!(now["items"], json!([]));
}
