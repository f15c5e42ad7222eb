//! Requests that are sent again: the live state of a request, another body under its id, and what is over and must not
//! come back.

use std::time::Duration;

use ade_testkit::wait::until;
use ade_testkit::{Ade, Api};
use serde_json::{Value, json};

async fn server() -> (Ade, Api) {
    let ade = Ade::start(env!("CARGO_BIN_EXE_ade")).expect("starts");
    let api = Api::of(&ade).await;
    (ade, api)
}

fn body(agent: &str, id: &str) -> Value {
    json!({ "agent_id": agent, "request_id": id, "locks": [{ "lock": "resource:x:1" }], "ttl_seconds": 60 })
}

async fn acquire(api: &Api, body: &Value) -> ade_testkit::api::Answer {
    api.post("/locks/acquire", body).await
}

fn held(agent: &str, grant: &Value) -> Value {
    json!({ "agent_id": agent, "locks": [{ "lock": grant["lock"], "fencing_token": grant["fencing_token"] }] })
}

#[tokio::test]
async fn a_repeated_request_learns_how_it_stands() {
    let (_ade, api) = server().await;
    let first = acquire(&api, &body("a", "1")).await.expect(200);
    let again = acquire(&api, &body("a", "1")).await.expect(200);
    assert_eq!(again, first, "held: the same grant, and not a longer lease");
    let mut queued = body("b", "1");
    queued["queue"] = json!(true);
    let ticket = acquire(&api, &queued).await.expect(202);
    let again = acquire(&api, &queued).await.expect(202);
    for field in ["ticket", "position", "waiting_for"] {
        assert_eq!(again[field], ticket[field], "waiting: {field}");
    }
    assert_eq!(api.get("/locks/resource%3Ax%3A1").await.expect(200)["queue_length"], 1, "it waits once");
    let _ = api.delete("/locks/resource%3Ax%3A1?reason=test").await.expect(200);
    let lost = acquire(&api, &body("a", "1")).await.problem(409, "LOCK_LOST");
    assert_eq!((&lost["why"], &lost["lock"]), (&json!("broken"), &json!("resource:x:1")));
}

#[tokio::test]
async fn the_same_id_with_another_body_is_refused() {
    let (_ade, api) = server().await;
    let mut first = body("a", "1");
    first["locks"] = json!([{ "lock": "resource:x:1" }, { "lock": "resource:x:2", "mode": "shared" }]);
    let granted = acquire(&api, &first).await.expect(200);
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
        let _ = acquire(&api, &other).await.problem(422, "REQUEST_ID_REUSED");
        assert_eq!(api.get("/locks").await.text(), before, "{field}");
    }
    // What means the same is the same.
    let mut same = first.clone();
    same["locks"] = json!([{ "lock": "resource:x:2", "mode": "shared" }, { "lock": "resource:x:1", "mode": "exclusive" }]);
    same["wait_seconds"] = json!(0);
    same["purpose"] = json!("");
    assert_eq!(acquire(&api, &same).await.expect(200), granted);
    // Ids belong to their holder.
    for (agent, holder) in [("b", "b"), ("a", "other")] {
        let mut other = body(agent, "1");
        other["holder_id"] = json!(holder);
        other["locks"] = json!([{ "lock": format!("resource:y:{holder}") }]);
        let _ = acquire(&api, &other).await.expect(200);
    }
}

#[tokio::test]
async fn a_released_or_cancelled_request_does_not_come_back() {
    let (_ade, api) = server().await;
    let granted = acquire(&api, &body("a", "1")).await.expect(200);
    let mut waiting = body("b", "1");
    waiting["queue"] = json!(true);
    let ticket = acquire(&api, &waiting).await.expect(202)["ticket"].as_str().expect("a ticket").to_owned();
    assert_eq!(api.delete(&format!("/locks/tickets/{ticket}")).await.status, 204);
    let _ = api.post("/locks/release", &held("a", &granted["grants"][0])).await.expect(200);
    for _ in 0..2 {
        let lost = acquire(&api, &body("a", "1")).await.problem(409, "LOCK_LOST");
        assert_eq!(lost["why"], "released");
        let _ = acquire(&api, &waiting).await.problem(409, "CANCELLED");
        let _ = api.get(&format!("/locks/tickets/{ticket}")).await.problem(409, "CANCELLED");
        let _ =
            api.post(&format!("/locks/tickets/{ticket}/claim"), &json!({})).await.problem(409, "CANCELLED");
    }
    assert_eq!(api.get("/locks").await.expect(200)["items"], json!([]));
    let _ = acquire(&api, &body("a", "2")).await.expect(200);
    let twice = api.post("/locks/release", &held("a", &granted["grants"][0])).await;
    let _ = twice.problem(409, "LOCK_LOST");
    assert_eq!(
        api.get("/locks").await.expect(200)["items"].as_array().map(Vec::len),
        Some(1),
        "the newer grant stays"
    );
}

#[tokio::test]
async fn refusals_are_not_remembered() {
    let (_ade, api) = server().await;
    let granted = acquire(&api, &body("a", "1")).await.expect(200);
    let mut patient = body("b", "2");
    patient["wait_seconds"] = json!(0.05);
    let _ = acquire(&api, &body("b", "1")).await.problem(423, "LOCK_HELD");
    let _ = acquire(&api, &patient).await.problem(423, "LOCK_HELD");
    let _ = api.post("/locks/release", &held("a", &granted["grants"][0])).await.expect(200);
    let first = acquire(&api, &body("b", "1")).await.expect(200);
    let second = acquire(&api, &patient).await.expect(200);
    assert_eq!(first["grants"][0]["fencing_token"], second["grants"][0]["fencing_token"]);
    // Not even the body of what was refused.
    let _ = acquire(&api, &body("c", "1")).await.problem(423, "LOCK_HELD");
    let mut other = body("c", "1");
    other["purpose"] = json!("another");
    let _ = acquire(&api, &other).await.problem(423, "LOCK_HELD");
}

#[tokio::test]
async fn a_newer_request_of_a_holder_takes_the_place_of_the_older() {
    let (_ade, api) = server().await;
    let _ = acquire(&api, &body("a", "1")).await.expect(200);
    let queued = |agent: &str, id: &str| {
        let mut body = body(agent, id);
        body["queue"] = json!(true);
        body
    };
    let older =
        acquire(&api, &queued("b", "1")).await.expect(202)["ticket"].as_str().expect("a ticket").to_owned();
    let _ = acquire(&api, &queued("c", "1")).await.expect(202);
    let newer = acquire(&api, &queued("b", "2")).await.expect(202);
    assert_eq!(newer["position"], 1);
    let over = api.get(&format!("/locks/tickets/{older}")).await.problem(409, "SUPERSEDED");
    assert_eq!(over["lock"], "resource:x:1");
    let _ = acquire(&api, &queued("b", "1")).await.problem(409, "SUPERSEDED");
    assert_eq!(api.get("/locks/resource%3Ax%3A1").await.expect(200)["queue_length"], 2);
}

#[tokio::test]
async fn a_repetition_goes_on_when_the_first_connection_breaks() {
    let (_ade, api) = server().await;
    let granted = acquire(&api, &body("a", "1")).await.expect(200);
    let open = |api: &Api| {
        let (api, mut body) = (api.clone(), body("b", "1"));
        body["wait_seconds"] = json!(30);
        tokio::spawn(async move { acquire(&api, &body).await })
    };
    let heard = async || {
        let agent = api.get("/agents/b").await.json();
        agent["last_heartbeat"].as_str().unwrap_or_default().to_owned()
    };
    let asks = async |since: &str| {
        let look = || async {
            let last = heard().await;
            if last.as_str() > since { Ok(()) } else { Err(last) }
        };
        until("it asks", Duration::from_secs(20), look).await.expect("in time");
    };
    let place = || async { api.get("/locks/resource%3Ax%3A1").await.expect(200)["queue"].clone() };
    let length = async |wanted: usize| {
        let look = || async {
            let queue = place().await;
            if queue.as_array().map(Vec::len) == Some(wanted) { Ok(queue) } else { Err(queue.to_string()) }
        };
        until("the queue is so long", Duration::from_secs(20), look).await.expect("in time")
    };
    let first = open(&api);
    let before = length(1).await;
    let since = heard().await;
    let second = open(&api);
    asks(&since).await;
    first.abort();
    // A later hang-up of somebody else is seen: then the first one's was seen as well.
    let other = tokio::spawn({
        let (api, mut body) = (api.clone(), body("c", "1"));
        body["wait_seconds"] = json!(30);
        async move { acquire(&api, &body).await }
    });
    length(2).await;
    other.abort();
    length(1).await;
    assert_eq!(place().await, before, "it kept its place");
    let _ = api.post("/locks/release", &held("a", &granted["grants"][0])).await.expect(200);
    let granted = second.await.expect("runs").expect(200);
    assert_eq!(granted["grants"][0]["lock"], "resource:x:1");
}
