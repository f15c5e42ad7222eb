//! An orderly stop as clients see it: open answers end with a reason, and who can repeat its request keeps its place.

use std::time::Duration;

use ade_testkit::wait::until;
use ade_testkit::{Ade, Api};
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(20);

fn ask(agent: &str, wait_seconds: u64, request_id: Option<&str>) -> Value {
    json!({ "agent_id": agent, "locks": [{ "lock": "task:1" }], "ttl_seconds": 300, "wait_seconds": wait_seconds,
        "request_id": request_id })
}

async fn queue(api: &Api) -> Vec<Value> {
    api.get("/locks/task%3A1").await.expect(200)["queue"].as_array().expect("a queue").clone()
}

async fn queue_of(api: &Api, length: usize) -> Vec<Value> {
    let look = || async {
        let now = queue(api).await;
        if now.len() == length { Ok(now) } else { Err(format!("{now:?}")) }
    };
    until(&format!("{length} wait"), LONG, look).await.expect("they do")
}

#[tokio::test]
async fn open_answers_are_told_and_places_are_kept() {
    let ade = Ade::start(env!("CARGO_BIN_EXE_ade")).expect("starts");
    let api = Api::of(&ade).await;
    let granted = api.post("/locks/acquire", &ask("a", 0, None)).await.expect(200);
    let mut open = Vec::new();
    for (agent, id) in [("b", Some("1")), ("c", None), ("d", Some("1"))] {
        let (caller, body) = (api.clone(), ask(agent, 60, id));
        open.push(tokio::spawn(async move { caller.post("/locks/acquire", &body).await }));
        queue_of(&api, open.len()).await;
    }
    let before = queue(&api).await;
    let began = tokio::time::Instant::now();
    // Waiting for its end must not keep the answers from being read.
    let stopped = tokio::task::spawn_blocking(move || ade.stop().map(|()| ade));
    for answer in open {
        let answer = answer.await.expect("answered");
        let problem = answer.problem(503, "STOPPING");
        assert_eq!((&problem["retry_after"], answer.header("retry-after")), (&json!(1), "1"));
    }
    let ade = stopped.await.expect("runs").expect("it stopped");
    assert!(began.elapsed() < Duration::from_secs(8), "nothing was left to wait for: {:?}", began.elapsed());
    ade.start_again().expect("starts again");
    let now = queue(&api).await;
    let places = |queue: &[Value]| {
        let kept = queue.iter().filter(|waiter| waiter["agent_id"] != "c");
        kept.map(|waiter| (waiter["agent_id"].clone(), waiter["requested_at"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(places(&now), places(&before));
    // They ask again, and are granted in their old order.
    let mut again = Vec::new();
    for agent in ["d", "b"] {
        let heard =
            async || api.get(&format!("/agents/{agent}")).await.expect(200)["last_heartbeat"].to_string();
        let last = heard().await;
        let (caller, body) = (api.clone(), ask(agent, 60, Some("1")));
        again.push(tokio::spawn(async move { caller.post("/locks/acquire", &body).await }));
        let look = || async { if heard().await > last { Ok(()) } else { Err(last.clone()) } };
        until("it asked again", LONG, look).await.expect("in time");
    }
    let held = json!({ "agent_id": "a", "locks": [{ "lock": "task:1", "fencing_token": granted["grants"][0]["fencing_token"] }] });
    let _ = api.post("/locks/release", &held).await.expect(200);
    let first = again.pop().expect("b").await.expect("answered").expect(200);
    assert_eq!(places(&queue(&api).await).len(), 1, "d still waits");
    let held = json!({ "agent_id": "b", "locks": [{ "lock": "task:1", "fencing_token": first["grants"][0]["fencing_token"] }] });
    let _ = api.post("/locks/release", &held).await.expect(200);
    let _ = again.pop().expect("d").await.expect("answered").expect(200);
}
