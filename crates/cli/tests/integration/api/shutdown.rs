//! Graceful shutdown as clients see it: waiting requests are refused with a reason, and clients that send a request id keep
//! their place in the queue.

use std::time::Duration;

use ade_testkit::ApiClient;
use ade_testkit::wait::until;
use serde_json::{Value, json};

use crate::api::start_server;

const TIMEOUT: Duration = Duration::from_secs(20);

fn acquire_body(agent: &str, wait_seconds: u64, request_id: Option<&str>) -> Value {
    json!({ "agent_id": agent, "locks": [{ "lock": "task:1" }], "ttl_seconds": 300, "wait_seconds": wait_seconds,
        "request_id": request_id })
}

async fn queue(api: &ApiClient) -> Vec<Value> {
    api.get("/locks/task%3A1").await.expect_status(200)["queue"].as_array().expect("a queue").clone()
}

async fn wait_for_queue(api: &ApiClient, length: usize) -> Vec<Value> {
    let check = || async {
        let now = queue(api).await;
        if now.len() == length { Ok(now) } else { Err(format!("{now:?}")) }
    };
    until(&format!("a queue of {length}"), TIMEOUT, check).await.expect("in time")
}

#[tokio::test]
async fn shutdown_refuses_waiters_and_keeps_queue_order() {
    let (ade, api) = start_server().await;
    let granted = api.post("/locks/acquire", &acquire_body("a", 0, None)).await.expect_status(200);
    let mut waiting = Vec::new();
    for (agent, id) in [("b", Some("1")), ("c", None), ("d", Some("1"))] {
        let (caller, body) = (api.clone(), acquire_body(agent, 60, id));
        waiting.push(tokio::spawn(async move { caller.post("/locks/acquire", &body).await }));
        wait_for_queue(&api, waiting.len()).await;
    }
    let before = queue(&api).await;
    let started = tokio::time::Instant::now();
    // Stop in another thread, so that the responses can be read meanwhile.
    let stopped = tokio::task::spawn_blocking(move || ade.stop().map(|()| ade));
    for response in waiting {
        let response = response.await.expect("no panic");
        let problem = response.expect_problem(503, "STOPPING");
        assert_eq!((&problem["retry_after"], response.header("retry-after")), (&json!(1), "1"));
    }
    let ade = stopped.await.expect("runs").expect("stops");
    assert!(
        started.elapsed() < Duration::from_secs(8),
        "the shutdown took too long: {:?}",
        started.elapsed()
    );
    ade.start_again().expect("starts again");
    let now = queue(&api).await;
    let places = |queue: &[Value]| {
        let with_request_id = queue.iter().filter(|waiter| waiter["agent_id"] != "c");
        with_request_id
            .map(|waiter| (waiter["agent_id"].clone(), waiter["requested_at"].clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(places(&now), places(&before));
    // The clients repeat their requests and are granted in the original order.
    let mut repeated = Vec::new();
    for agent in ["d", "b"] {
        let last_heartbeat = async || {
            api.get(&format!("/agents/{agent}")).await.expect_status(200)["last_heartbeat"].to_string()
        };
        let last = last_heartbeat().await;
        let (caller, body) = (api.clone(), acquire_body(agent, 60, Some("1")));
        repeated.push(tokio::spawn(async move { caller.post("/locks/acquire", &body).await }));
        let check = || async { if last_heartbeat().await > last { Ok(()) } else { Err(last.clone()) } };
        until("the repeated request to arrive", TIMEOUT, check).await.expect("in time");
    }
    let held = json!({ "agent_id": "a", "locks": [{ "lock": "task:1", "fencing_token": granted["grants"][0]["fencing_token"] }] });
    let _ = api.post("/locks/release", &held).await.expect_status(200);
    let first = repeated.pop().expect("b").await.expect("no panic").expect_status(200);
    assert_eq!(places(&queue(&api).await).len(), 1, "d still waits");
    let held = json!({ "agent_id": "b", "locks": [{ "lock": "task:1", "fencing_token": first["grants"][0]["fencing_token"] }] });
    let _ = api.post("/locks/release", &held).await.expect_status(200);
    let _ = repeated.pop().expect("d").await.expect("no panic").expect_status(200);
}
