//! Locks over HTTP: every row of the table of acquisition, what holders and others do with a lock, and how it is seen.

use std::time::Duration;

use ade_testkit::wait::until;
use ade_testkit::{Ade, Api};
use serde_json::{Value, json};

const DB: &str = "resource:database:prod";
const LONG: Duration = Duration::from_secs(20);

async fn server(config: &str) -> (Ade, Api) {
    let ade = Ade::start_with(env!("CARGO_BIN_EXE_ade"), config).expect("starts");
    let api = Api::of(&ade).await;
    (ade, api)
}

fn ask(agent: &str, lock: &str, mode: &str) -> Value {
    json!({ "agent_id": agent, "locks": [{ "lock": lock, "mode": mode }] })
}

/// A request with something more in it.
fn with(mut body: Value, more: &Value) -> Value {
    let more = more.as_object().expect("an object").clone();
    body.as_object_mut().expect("an object").extend(more);
    body
}

async fn take(api: &Api, agent: &str, lock: &str, mode: &str) -> u64 {
    let grants = api.post("/locks/acquire", &ask(agent, lock, mode)).await.expect(200);
    token(&grants["grants"][0])
}

fn token(of: &Value) -> u64 {
    of["fencing_token"].as_u64().expect("a token")
}

fn held(agent: &str, lock: &str, token: u64) -> Value {
    json!({ "agent_id": agent, "locks": [{ "lock": lock, "fencing_token": token }] })
}

async fn show(api: &Api, lock: &str) -> Value {
    api.get(&format!("/locks/{}", ade_testkit::api::segment(lock))).await.expect(200)
}

async fn waiting(api: &Api, lock: &str, length: u64) -> Value {
    let look = || async {
        let now = show(api, lock).await;
        if now["queue_length"] == length { Ok(now) } else { Err(now.to_string()) }
    };
    until(&format!("{length} wait for {lock}"), LONG, look).await.expect("they do")
}

fn agents(people: &Value) -> Vec<String> {
    let all = people.as_array().expect("a list").iter();
    all.map(|one| one["agent_id"].as_str().expect("an id").to_owned()).collect()
}

/// Asks with the answer held open, in a task of its own.
fn open(api: &Api, body: Value) -> tokio::task::JoinHandle<ade_testkit::api::Answer> {
    let api = api.clone();
    tokio::spawn(async move { api.post("/locks/acquire", &with(body, &json!({ "wait_seconds": 60 }))).await })
}

#[tokio::test]
async fn a_free_lock_is_granted_with_a_token_and_times() {
    let (_ade, api) = server("").await;
    let body = with(
        ask("a", DB, "exclusive"),
        &json!({ "ttl_seconds": 7.5, "purpose": "migrate", "holder_id": "h" }),
    );
    let answer = api.post("/locks/acquire", &body).await.expect(200);
    let grant = &answer["grants"][0];
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
    // The caller itself, unless it names somebody.
    let own = api.post("/locks/acquire", &json!({ "locks": [{ "lock": "task:1" }] })).await.expect(200);
    assert_eq!(own["grants"][0]["mode"], "exclusive");
    assert_eq!(agents(&show(&api, "task:1").await["holders"]), ["admin"]);
}

#[tokio::test]
async fn a_lock_does_not_nest_and_holders_of_one_agent_exclude_each_other() {
    let (_ade, api) = server("").await;
    let first = take(&api, "a", DB, "exclusive").await;
    for mode in ["exclusive", "shared"] {
        assert_eq!(take(&api, "a", DB, mode).await, first, "the same grant");
    }
    assert_eq!(show(&api, DB).await["mode"], "exclusive");
    let other = with(ask("a", DB, "exclusive"), &json!({ "holder_id": "other" }));
    let refused = api.post("/locks/acquire", &other).await.problem(423, "LOCK_HELD");
    assert_eq!(agents(&refused["holders"]), ["a"]);
    let _ = api.post("/locks/release", &held("a", DB, first)).await.expect(200);
    assert_eq!(show(&api, DB).await["mode"], Value::Null, "one release frees it");
}

#[tokio::test]
async fn a_held_lock_is_refused_with_everybody_who_matters() {
    let (_ade, api) = server("").await;
    let first = take(&api, "a", DB, "shared").await;
    take(&api, "b", DB, "shared").await;
    let _ = api
        .post("/locks/acquire", &with(ask("c", DB, "exclusive"), &json!({ "queue": true })))
        .await
        .expect(202);
    for (mode, wait) in
        [("exclusive", json!({})), ("shared", json!({})), ("exclusive", json!({ "wait_seconds": 0 }))]
    {
        let refused =
            api.post("/locks/acquire", &with(ask("d", DB, mode), &wait)).await.problem(423, "LOCK_HELD");
        assert_eq!(refused["lock"], DB);
        assert_eq!(agents(&refused["holders"]), ["a", "b"], "a sharer does not pass an earlier waiter");
        assert_eq!(refused["queue_length"], 1);
        assert_eq!(token(&refused["holders"][0]), first);
    }
    // Who waited long enough learns the same.
    let patient = with(ask("d", DB, "exclusive"), &json!({ "wait_seconds": 0.05 }));
    let refused = api.post("/locks/acquire", &patient).await.problem(423, "LOCK_HELD");
    assert_eq!((agents(&refused["holders"]).len(), &refused["queue_length"]), (2, &json!(1)));
    assert_eq!(show(&api, DB).await["queue_length"], 1, "it has left the queue");
}

#[tokio::test]
async fn a_full_queue_turns_away_and_a_crowd_opens_the_circuit() {
    let (ade, api) = server("[lock]\nmax_queue = 1\n[log]\nformat = \"json\"\n").await;
    take(&api, "a", DB, "exclusive").await;
    let queue = |agent: &str| with(ask(agent, DB, "exclusive"), &json!({ "queue": true }));
    let _ = api.post("/locks/acquire", &queue("b")).await.expect(202);
    for n in 0..100 {
        let answer = api.post("/locks/acquire", &queue(&format!("c{}", n % 3))).await;
        let problem = answer.problem(503, "QUEUE_FULL");
        assert_eq!((&problem["queue_length"], &problem["lock"]), (&json!(1), &json!(DB)));
        assert_eq!((&problem["retry_after"], answer.header("retry-after")), (&json!(1), "1"));
    }
    ade.process().wait_for_lines("lock:queue_full", 1, LONG).expect("operators are told");
    let answer = api.post("/locks/acquire", &queue("c")).await;
    let problem = answer.problem(503, "CONTENTION");
    let seconds = problem["retry_after"].as_u64().expect("seconds");
    assert!((1..=5).contains(&seconds), "{problem}");
    assert_eq!((answer.header("retry-after"), &problem["lock"]), (seconds.to_string().as_str(), &json!(DB)));
    // Other locks, and those who hold this one, are not concerned.
    take(&api, "c", "task:1", "exclusive").await;
    take(&api, "a", DB, "exclusive").await;
}

#[tokio::test]
async fn an_agent_may_not_ask_too_often() {
    let (_ade, api) = server("[lock]\nacquisitions_per_minute = 3\n").await;
    for n in 0..3 {
        take(&api, "a", &format!("task:{n}"), "exclusive").await;
    }
    let before = api.get("/locks").await.text();
    let answer = api.post("/locks/acquire", &ask("a", "task:3", "exclusive")).await;
    let problem = answer.problem(429, "RATE_LIMITED");
    let seconds = problem["retry_after"].as_u64().expect("seconds");
    assert!((1..=60).contains(&seconds) && answer.header("retry-after") == seconds.to_string());
    assert_eq!(api.get("/locks").await.text(), before);
    take(&api, "b", "task:3", "exclusive").await;
}

#[tokio::test]
async fn queues_are_fair_and_sharers_are_granted_together() {
    let (_ade, api) = server("").await;
    let first = take(&api, "w0", DB, "exclusive").await;
    let mut waiters = Vec::new();
    for (n, (agent, mode)) in
        [("r1", "shared"), ("r2", "shared"), ("w1", "exclusive"), ("r3", "shared")].into_iter().enumerate()
    {
        let priority = json!({ "priority": n * 10, "purpose": format!("for {agent}") });
        waiters.push(open(&api, with(ask(agent, DB, mode), &priority)));
        waiting(&api, DB, n as u64 + 1).await;
    }
    let now = show(&api, DB).await;
    assert_eq!(agents(&now["queue"]), ["r1", "r2", "w1", "r3"]);
    assert_eq!((&now["queue"][3]["position"], &now["queue"][3]["priority"]), (&json!(4), &json!(30)));
    assert_eq!(now["queue"][2]["purpose"], "for w1");
    let graph = api.get("/locks/graph").await.expect(200);
    let wait_of = |agent: &str| {
        let waits = graph["waits"].as_array().expect("waits");
        waits.iter().find(|wait| wait["agent_id"] == agent).expect("it waits").clone()
    };
    assert_eq!(wait_of("r1")["waits_for"], DB);
    assert_eq!(agents(&wait_of("r1")["holders"]), ["w0"]);
    assert_eq!(agents(&wait_of("r3")["ahead"]), ["w1"]);
    let _ = api.post("/locks/release", &held("w0", DB, first)).await.expect(200);
    let mut tokens = vec![first];
    let mut rest = waiters.split_off(2);
    for (agent, waiter) in ["r1", "r2"].into_iter().zip(waiters) {
        tokens.push(token(&waiter.await.expect("runs").expect(200)["grants"][0]));
        assert_eq!(agents(&show(&api, DB).await["queue"]), ["w1", "r3"], "{agent} shares");
    }
    let _ = api.post("/locks/release", &held("r1", DB, tokens[1])).await.expect(200);
    assert_eq!(show(&api, DB).await["queue_length"], 2, "one sharer is left");
    let _ = api.post("/locks/release", &held("r2", DB, tokens[2])).await.expect(200);
    let writer = rest.remove(0).await.expect("runs").expect(200);
    tokens.push(token(&writer["grants"][0]));
    // Downgrading lets the sharers behind it in, with the same token.
    let kept = api.post("/locks/downgrade", &held("w1", DB, tokens[3])).await.expect(200);
    assert_eq!((&kept["results"][0]["ok"], &kept["results"][0]["mode"]), (&json!(true), &json!("shared")));
    tokens.push(token(&rest.remove(0).await.expect("runs").expect(200)["grants"][0]));
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    assert_eq!(agents(&show(&api, DB).await["holders"]).len(), 2);
}

#[tokio::test]
async fn an_upgrade_is_a_new_grant_ahead_of_the_others() {
    let (_ade, api) = server("").await;
    let alone = take(&api, "a", "resource:x:1", "shared").await;
    assert!(take(&api, "a", "resource:x:1", "exclusive").await > alone, "the only holder, at once");
    let (first, other) = (take(&api, "a", DB, "shared").await, take(&api, "b", DB, "shared").await);
    let _behind = open(&api, ask("c", DB, "exclusive"));
    waiting(&api, DB, 1).await;
    let upgrade = open(&api, ask("a", DB, "exclusive"));
    assert_eq!(agents(&waiting(&api, DB, 2).await["queue"]), ["a", "c"]);
    let _ = api.post("/locks/release", &held("b", DB, other)).await.expect(200);
    let grant = upgrade.await.expect("runs").expect(200)["grants"][0].clone();
    assert!(token(&grant) > other && grant["mode"] == "exclusive");
    let _ = api.post("/locks/release", &held("a", DB, first)).await.problem(409, "LOCK_LOST");
    assert_eq!(agents(&show(&api, DB).await["holders"]), ["a"]);
}

#[tokio::test]
async fn heartbeats_extend_and_never_shorten() {
    let (_ade, api) = server("").await;
    let (one, two) =
        (take(&api, "a", "task:1", "exclusive").await, take(&api, "a", "task:2", "exclusive").await);
    let beat = |seconds: f64| {
        json!({ "agent_id": "a", "ttl_extension": seconds, "timestamp": "2026-01-01T00:00:00Z",
            "locks": [{ "lock": "task:2", "fencing_token": two }, { "lock": "task:1", "fencing_token": one }] })
    };
    let before = show(&api, "task:1").await["holders"][0]["expires_at"].to_string();
    let longer = api.post("/locks/heartbeat", &beat(200.0)).await.expect(200);
    assert_eq!(
        (&longer["results"][0]["lock"], &longer["results"][1]["lock"]),
        (&json!("task:2"), &json!("task:1"))
    );
    let extended = longer["results"][1]["expires_at"].to_string();
    assert!(extended > before);
    let shorter = api.post("/locks/heartbeat", &beat(1.0)).await.expect(200);
    assert_eq!(shorter["results"][1]["expires_at"].to_string(), extended);
    let holder = show(&api, "task:1").await["holders"][0].clone();
    assert_eq!((holder["expires_at"].to_string(), &holder["heartbeat_count"]), (extended, &json!(2)));
}

#[tokio::test]
async fn a_lease_ends_by_itself_and_the_next_is_granted() {
    let (_ade, api) = server("").await;
    let body = with(ask("a", DB, "exclusive"), &json!({ "ttl_seconds": 0.3, "request_id": "1" }));
    let first = token(&api.post("/locks/acquire", &body).await.expect(200)["grants"][0]);
    let next = open(&api, ask("b", DB, "exclusive"));
    let second = token(&next.await.expect("runs").expect(200)["grants"][0]);
    assert!(second > first);
    for route in ["heartbeat", "release", "downgrade"] {
        let answer = api.post(&format!("/locks/{route}"), &held("a", DB, first)).await;
        let lost = answer.problem(409, "LOCK_LOST");
        assert_eq!(
            (&lost["results"][0]["ok"], &lost["results"][0]["code"]),
            (&json!(false), &json!("LOCK_LOST"))
        );
    }
    assert_eq!(api.post("/locks/acquire", &body).await.problem(409, "LOCK_LOST")["why"], "expired");
}

#[tokio::test]
async fn some_lost_locks_do_not_keep_the_others_from_being_handled() {
    let (_ade, api) = server("").await;
    let one = take(&api, "a", "resource:t:1", "exclusive").await;
    let two = take(&api, "b", "resource:t:2", "exclusive").await;
    let both = json!({ "agent_id": "a", "locks": [
        { "lock": "resource:t:2", "fencing_token": two }, { "lock": "resource:t:1", "fencing_token": one }, { "lock": "resource:t:3", "fencing_token": 1 }] });
    for (route, left) in [("heartbeat", 2), ("downgrade", 2), ("release", 1)] {
        let lost = api.post(&format!("/locks/{route}"), &both).await.problem(409, "LOCK_LOST");
        let oks: Vec<&Value> =
            lost["results"].as_array().expect("all").iter().map(|one| &one["ok"]).collect();
        assert_eq!(oks, [&json!(false), &json!(true), &json!(false)], "{route}");
        assert_eq!(
            api.get("/locks").await.expect(200)["items"].as_array().map(Vec::len),
            Some(left),
            "{route}"
        );
    }
    assert_eq!(agents(&show(&api, "resource:t:2").await["holders"]), ["b"], "a foreign token does nothing");
    take(&api, "c", "task:1", "exclusive").await;
    let task = json!({ "agent_id": "c", "locks": [{ "lock": "task:1", "fencing_token": 1 }] });
    let _ = api.post("/locks/downgrade", &task).await.problem(422, "INVALID_REQUEST");
}

#[tokio::test]
async fn a_token_is_verified_and_a_lock_is_broken_with_a_reason() {
    let (ade, api) = server("[log]\nformat = \"json\"\n").await;
    let first = take(&api, "a", DB, "exclusive").await;
    let verify = |token: u64| json!({ "lock": DB, "fencing_token": token });
    let valid = api.post("/locks/verify", &verify(first)).await.expect(200);
    assert_eq!((&valid["valid"], &valid["holder"]["agent_id"]), (&json!(true), &json!("a")));
    for wrong in [0, first - 1, first + 1, u64::MAX] {
        let _ = api.post("/locks/verify", &verify(wrong)).await.problem(409, "LOCK_LOST");
    }
    let next = open(&api, ask("b", DB, "exclusive"));
    waiting(&api, DB, 1).await;
    let path = format!("/locks/{}", ade_testkit::api::segment(DB));
    for reason in ["", "?reason=", "?reason=%20", &format!("?reason={}", "x".repeat(1025))] {
        assert_eq!(
            api.delete(&format!("{path}{reason}")).await.problem(422, "INVALID_REQUEST")["errors"][0]["pointer"],
            "?reason"
        );
    }
    let _ = api.delete(&format!("{path}?reason=x&force=1")).await.problem(422, "INVALID_REQUEST");
    assert_eq!(agents(&show(&api, DB).await["holders"]), ["a"]);
    let broken = api.delete(&format!("{path}?reason=it%20hangs")).await.expect(200);
    assert_eq!((agents(&broken["holders"]), &broken["lock"]), (vec!["a".to_owned()], &json!(DB)));
    let second = token(&next.await.expect("runs").expect(200)["grants"][0]);
    assert!(second > first, "the queue goes on");
    let _ = api.post("/locks/verify", &verify(first)).await.problem(409, "LOCK_LOST");
    for line in [r#""kind":"audit","action":"lock.break","actor":"admin""#, r#""kind":"inbox","agent":"a""#] {
        ade.process().wait_for_lines(line, 1, LONG).expect("it is told");
    }
    let free = api.delete("/locks/task%3Afree?reason=why").await.expect(200);
    assert_eq!(free["holders"], json!([]), "a free lock is broken as well");
}

#[tokio::test]
async fn several_locks_are_taken_in_one_order_all_or_none() {
    let (_ade, api) = server("").await;
    take(&api, "b", "resource:m:1", "exclusive").await;
    let body = |agent: &str| {
        json!({ "agent_id": agent, "request_id": "1", "locks": [
            { "lock": "resource:z:1", "mode": "shared" }, { "lock": "resource:m:1" }, { "lock": "task:9" }] })
    };
    let before = api.get("/locks").await.text();
    let refused = api.post("/locks/acquire", &body("a")).await.problem(423, "LOCK_HELD");
    assert_eq!(
        (&refused["lock"], agents(&refused["holders"])),
        (&json!("resource:m:1"), vec!["b".to_owned()])
    );
    assert_eq!(api.get("/locks").await.text(), before, "nothing is left of it");
    let _ = api.delete("/locks/resource%3Am%3A1?reason=test").await.expect(200);
    let granted = api.post("/locks/acquire", &body("a")).await.expect(200);
    let names: Vec<&Value> =
        granted["grants"].as_array().expect("all").iter().map(|one| &one["lock"]).collect();
    assert_eq!(names, ["task:9", "resource:m:1", "resource:z:1"], "a refusal is not remembered");
    assert_eq!(granted["grants"][2]["mode"], "shared");
}

#[tokio::test]
async fn who_hangs_up_leaves_the_queue_and_gives_back_what_it_won() {
    let (_ade, api) = server("").await;
    let first = take(&api, "a", "task:2", "exclusive").await;
    let gone = open(&api, json!({ "agent_id": "b", "locks": [{ "lock": "task:1" }, { "lock": "task:2" }] }));
    waiting(&api, "task:2", 1).await;
    assert_eq!(agents(&show(&api, "task:1").await["holders"]), ["b"]);
    let behind = open(&api, ask("c", "task:2", "exclusive"));
    waiting(&api, "task:2", 2).await;
    gone.abort();
    assert_eq!(agents(&waiting(&api, "task:2", 1).await["queue"]), ["c"]);
    let free = || async {
        let now = show(&api, "task:1").await;
        if now["mode"].is_null() { Ok(()) } else { Err(now.to_string()) }
    };
    until("what it won is free", LONG, free).await.expect("it is");
    let _ = api.post("/locks/release", &held("a", "task:2", first)).await.expect(200);
    let _ = behind.await.expect("runs").expect(200);
}
