//! Tickets over HTTP: their whole life, and several locks with one ticket.

use std::time::Duration;

use ade_testkit::wait::until;
use ade_testkit::{Ade, Api};
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(20);

async fn server() -> (Ade, Api) {
    let ade = Ade::start(env!("CARGO_BIN_EXE_ade")).expect("starts");
    let api = Api::of(&ade).await;
    (ade, api)
}

async fn take(api: &Api, agent: &str, lock: &str) -> Value {
    let body = json!({ "agent_id": agent, "locks": [{ "lock": lock }] });
    api.post("/locks/acquire", &body).await.expect(200)["grants"][0].clone()
}

async fn release(api: &Api, agent: &str, grant: &Value) {
    let body = json!({ "agent_id": agent, "locks": [{ "lock": grant["lock"], "fencing_token": grant["fencing_token"] }] });
    let _ = api.post("/locks/release", &body).await.expect(200);
}

async fn queue(api: &Api, agent: &str, locks: &[&str], wait_seconds: f64) -> Value {
    let locks: Vec<Value> = locks.iter().map(|lock| json!({ "lock": lock })).collect();
    let body = json!({ "agent_id": agent, "locks": locks, "queue": true, "wait_seconds": wait_seconds, "ttl_seconds": 100 });
    api.post("/locks/acquire", &body).await.expect(202)
}

fn path(ticket: &Value) -> String {
    format!("/locks/tickets/{}", ticket["ticket"].as_str().expect("a ticket"))
}

async fn poll(api: &Api, ticket: &Value) -> Value {
    api.get(&path(ticket)).await.expect(200)
}

async fn claim(api: &Api, ticket: &Value) -> ade_testkit::api::Answer {
    api.call("POST", &format!("{}/claim", path(ticket)), "").await
}

#[tokio::test]
async fn a_ticket_waits_gets_ready_and_is_claimed() {
    let (_ade, api) = server().await;
    let held = take(&api, "a", "task:1").await;
    let one = queue(&api, "b", &["task:1"], 60.0).await;
    let two = queue(&api, "c", &["task:1"], 60.0).await;
    for (ticket, position) in [(&one, 1), (&two, 2)] {
        assert_eq!((&ticket["status"], &ticket["position"]), (&json!("waiting"), &json!(position)));
        assert_eq!(ticket["waiting_for"], "task:1");
        assert_eq!(&poll(&api, ticket).await, ticket, "asking changes nothing");
    }
    let early = claim(&api, &one).await.expect(202);
    assert_eq!(early["status"], "waiting", "it still waits");
    release(&api, "a", &held).await;
    let ready = poll(&api, &one).await;
    assert_eq!((&ready["status"], ready.get("position")), (&json!("ready"), None));
    assert!(ready["claim_by"].is_string() && ready.get("grants").is_none());
    assert_eq!(poll(&api, &two).await["position"], 1);
    let claimed = claim(&api, &one).await.expect(200);
    assert_eq!((&claimed["status"], &claimed["grants"][0]["lock"]), (&json!("granted"), &json!("task:1")));
    assert!(
        claimed["grants"][0]["expires_at"].as_str() > ready["claim_by"].as_str(),
        "the lease starts at the claim"
    );
    assert_eq!(claim(&api, &one).await.expect(200), claimed, "claimed once");
    assert_eq!(poll(&api, &one).await, claimed);
    release(&api, "b", &claimed["grants"][0]).await;
    assert_eq!(poll(&api, &two).await["status"], "ready");
    let over = api.get(&path(&one)).await;
    let _ = over.problem(409, "LOCK_LOST");
    let _ = claim(&api, &one).await.problem(409, "LOCK_LOST");
}

#[tokio::test]
async fn a_free_lock_needs_no_ticket() {
    let (_ade, api) = server().await;
    let body =
        json!({ "agent_id": "a", "locks": [{ "lock": "task:1" }, { "lock": "task:2" }], "queue": true });
    let granted = api.post("/locks/acquire", &body).await.expect(200);
    assert_eq!(granted["grants"].as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn a_ticket_is_given_up() {
    let (_ade, api) = server().await;
    let held = take(&api, "a", "task:1").await;
    let (one, two) = (queue(&api, "b", &["task:1"], 60.0).await, queue(&api, "c", &["task:1"], 60.0).await);
    assert_eq!(api.delete(&path(&one)).await.status, 204);
    assert_eq!(api.delete(&path(&one)).await.status, 204, "again");
    let _ = api.get(&path(&one)).await.problem(409, "CANCELLED");
    assert_eq!(poll(&api, &two).await["position"], 1);
    release(&api, "a", &held).await;
    assert_eq!(poll(&api, &two).await["status"], "ready");
    let three = queue(&api, "d", &["task:1"], 60.0).await;
    assert_eq!(api.delete(&path(&two)).await.status, 204, "what it won goes on");
    assert_eq!(poll(&api, &three).await["status"], "ready");
    // A claimed one too.
    let _ = claim(&api, &three).await.expect(200);
    assert_eq!(api.delete(&path(&three)).await.status, 204);
    assert_eq!(api.get("/locks").await.expect(200)["items"], json!([]));
}

#[tokio::test]
async fn a_ticket_that_waited_long_enough_is_refused() {
    let (_ade, api) = server().await;
    take(&api, "a", "task:1").await;
    let ticket = queue(&api, "b", &["task:1"], 0.2).await;
    let look = || async {
        let answer = api.get(&path(&ticket)).await;
        if answer.status == 200 { Err(answer.text()) } else { Ok(answer) }
    };
    let over = until("it waited long enough", LONG, look).await.expect("it ends").problem(423, "LOCK_HELD");
    assert_eq!((&over["holders"][0]["agent_id"], &over["queue_length"]), (&json!("a"), &json!(0)));
    let _ = claim(&api, &ticket).await.problem(423, "LOCK_HELD");
}

#[tokio::test]
async fn a_ready_ticket_that_nobody_claims_goes_to_the_next() {
    let (_ade, api) = server().await;
    let held = take(&api, "a", "task:1").await;
    let (one, two) = (queue(&api, "b", &["task:1"], 60.0).await, queue(&api, "c", &["task:1"], 60.0).await);
    release(&api, "a", &held).await;
    assert_eq!(poll(&api, &one).await["status"], "ready");
    let look = || async {
        let ticket = poll(&api, &two).await;
        if ticket["status"] == "ready" { Ok(()) } else { Err(ticket.to_string()) }
    };
    until("the claim window of the first is over", LONG, look).await.expect("it is");
    let _ = claim(&api, &one).await.problem(409, "LOCK_LOST");
    let _ = api.get(&path(&one)).await.problem(409, "LOCK_LOST");
    let _ = claim(&api, &two).await.expect(200);
}

#[tokio::test]
async fn several_locks_have_one_ticket() {
    let (_ade, api) = server().await;
    let (first, last) = (take(&api, "a", "task:1").await, take(&api, "a", "resource:x:1").await);
    let ticket = queue(&api, "b", &["resource:x:1", "task:2", "task:1"], 60.0).await;
    assert_eq!(ticket["waiting_for"], "task:1");
    release(&api, "a", &first).await;
    let next = poll(&api, &ticket).await;
    assert_eq!((&next["status"], &next["waiting_for"]), (&json!("waiting"), &json!("resource:x:1")));
    let held = api.get("/agents/b/locks").await.expect(200);
    assert_eq!(held["items"].as_array().map(Vec::len), Some(3), "two held, one waited for: {held}");
    release(&api, "a", &last).await;
    assert_eq!(poll(&api, &ticket).await["status"], "ready");
    let claimed = claim(&api, &ticket).await.expect(200);
    let names: Vec<&Value> =
        claimed["grants"].as_array().expect("all").iter().map(|one| &one["lock"]).collect();
    assert_eq!(names, ["task:1", "task:2", "resource:x:1"]);
    for grant in claimed["grants"].as_array().expect("all") {
        let body = json!({ "lock": grant["lock"], "fencing_token": grant["fencing_token"] });
        let _ = api.post("/locks/verify", &body).await.expect(200);
    }
    // All of it is given back when the ticket is given up.
    let more = queue(&api, "c", &["task:3", "task:1"], 60.0).await;
    assert_eq!(api.delete(&path(&more)).await.status, 204);
    let now = api.get("/locks?agent=c").await.expect(200);
    assert_eq!(now["items"], json!([]));
}
