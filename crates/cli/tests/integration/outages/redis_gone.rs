//! Redis is gone: tasks and reviews go on, lock requests with a ticket and releases are stored, and nobody overtakes them when it is
//! back.

use std::time::{Duration, Instant};

use ade_testkit::api::{ApiResponse, encode_segment};
use ade_testkit::deployment::text_field;
use ade_testkit::wait::until;
use ade_testkit::{AdminClient, ApiClient, Deployment};
use rustix::process::Signal;
use serde_json::{Value, json};

const ADE: &str = env!("CARGO_BIN_EXE_ade");
/// Generous: only a hang reaches it, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// From Redis being back to everything being served.
const RECOVERY: Duration = Duration::from_secs(5);
const LOCK: &str = "resource:database:prod";

/// Two servers on one PostgreSQL and one Redis.
struct Fixture {
    house: Deployment,
    apis: Vec<ApiClient>,
}

impl Fixture {
    async fn start() -> Self {
        let house = Deployment::distributed(ADE, 2);
        let apis = house.api_clients().await;
        Self { house, apis }
    }

    fn signal_redis(&self, signal: Signal) {
        self.house.redis.as_ref().expect("distributed").process().signal(signal).expect("sent");
    }

    /// Stops Redis and waits until both servers have noticed.
    async fn stop_redis(&self) {
        self.signal_redis(Signal::STOP);
        for api in &self.apis {
            let observe = || async {
                let metrics = api.send_raw("GET", "/metrics", &[], "").await.text();
                if metrics.contains("ade_lock_outage 1") { Ok(()) } else { Err(metrics) }
            };
            until("the server notices", TIMEOUT, observe).await.expect("in time");
            wait_for_status(api, "degraded").await;
        }
    }

    /// Lets Redis go on, waits until both servers are ready, and returns how long that took.
    async fn resume_redis(&self) -> Duration {
        #[expect(clippy::disallowed_methods, reason = "recovery time is measured")]
        let started = Instant::now();
        self.signal_redis(Signal::CONT);
        for api in &self.apis {
            wait_for_status(api, "ready").await;
        }
        started.elapsed()
    }
}

async fn readiness(api: &ApiClient) -> ApiResponse {
    api.send_raw("GET", "/readyz", &[], "").await
}

async fn wait_for_status(api: &ApiClient, status: &str) {
    let observe = || async {
        let ready = readiness(api).await.expect_status(200);
        if text_field(&ready, "status") == status { Ok(()) } else { Err(ready.to_string()) }
    };
    until(&format!("the server is {status}"), TIMEOUT, observe).await.expect("in time");
}

fn request(agent: &str, lock: &str, queue: bool) -> Value {
    json!({ "agent_id": agent, "locks": [{ "lock": lock }], "queue": queue, "request_id": format!("{agent}-{lock}") })
}

async fn acquire(api: &ApiClient, agent: &str, queue: bool) -> ApiResponse {
    api.post("/locks/acquire", &request(agent, LOCK, queue)).await
}

/// Acquires a lock that is free, for a long time, and returns its token.
async fn take(api: &ApiClient, agent: &str, lock: &str) -> u64 {
    let mut body = request(agent, lock, false);
    body["ttl_seconds"] = json!(300);
    let granted = api.post("/locks/acquire", &body).await.expect_status(200);
    granted["grants"][0]["fencing_token"].as_u64().expect("a token")
}

fn held(agent: &str, lock: &str, token: u64) -> Value {
    json!({ "agent_id": agent, "locks": [{ "lock": lock, "fencing_token": token }] })
}

fn assert_refused(response: &ApiResponse) {
    let _ = response.expect_problem(503, "UNAVAILABLE");
    assert!(response.header("retry-after").parse::<u64>().is_ok_and(|seconds| seconds > 0));
}

/// Waits until a ticket can be claimed, claims it, and returns its token.
async fn claim(api: &ApiClient, ticket: &str) -> u64 {
    let observe = || async {
        let shown = api.get(&format!("/locks/tickets/{ticket}")).await;
        let status = text_field(&shown.json(), "status");
        if shown.status == 200 && status == "ready" { Ok(()) } else { Err(shown.text()) }
    };
    until("the ticket is ready", TIMEOUT, observe).await.expect("in time");
    let claimed = api.post(&format!("/locks/tickets/{ticket}/claim"), &json!({})).await.expect_status(200);
    claimed["grants"][0]["fencing_token"].as_u64().expect("a token")
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_requests_while_redis_is_gone_and_executes_them_in_order() {
    let fixture = Fixture::start().await;
    let [one, two] = fixture.apis.as_slice() else { panic!("two servers") };
    let token = take(one, "ann", LOCK).await;
    let kept = take(two, "dan", "resource:database:test").await;
    fixture.stop_redis().await;

    // Only what a lock store decides is refused, and at once.
    #[expect(clippy::disallowed_methods, reason = "refusals must be quick")]
    let started = Instant::now();
    for api in [one, two] {
        assert_refused(&api.post("/locks/heartbeat", &held("ann", LOCK, token)).await);
        assert_refused(&acquire(api, "eve", false).await);
        let strict = api.send_raw("GET", "/readyz?strict=true", &[], "").await;
        assert!(strict.expect_problem(503, "DEGRADED")["reasons"][0].as_str().is_some());
    }
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());

    // In this order: ben, cem and gus wait, gus changes its mind, and the lock is released.
    let mut tickets = Vec::new();
    for (api, agent) in [(one, "ben"), (two, "cem"), (one, "gus")] {
        let stored = acquire(api, agent, true).await.expect_status(202);
        assert_eq!((&stored["stored"], &stored["status"]), (&json!(true), &json!("waiting")), "{stored}");
        let again = acquire(api, agent, true).await.expect_status(202);
        assert_eq!((&again["ticket"], &again["deadline"]), (&stored["ticket"], &stored["deadline"]));
        tickets.push(text_field(&stored, "ticket"));
    }
    let mut other = request("ben", LOCK, true);
    other["purpose"] = json!("something else");
    let _ = one.post("/locks/acquire", &other).await.expect_problem(422, "REQUEST_ID_REUSED");
    for ticket in &tickets {
        let shown = two.get(&format!("/locks/tickets/{ticket}")).await.expect_status(200);
        assert_eq!((&shown["stored"], &shown["status"]), (&json!(true), &json!("waiting")), "{shown}");
    }
    for api in [one, two] {
        let metrics = api.send_raw("GET", "/metrics", &[], "").await.text();
        assert!(metrics.contains("ade_lock_requests_stored 3"), "{metrics}");
    }
    assert_eq!(two.delete(&format!("/locks/tickets/{}", tickets[2])).await.status, 204);
    let mut short = request("ida", "resource:database:test", true);
    short["wait_seconds"] = json!(0.001);
    let short = text_field(&one.post("/locks/acquire", &short).await.expect_status(202), "ticket");
    let released = two.post("/locks/release", &held("ann", LOCK, token)).await.expect_status(202);
    assert_eq!((&released["stored"], &released["results"][0]["ok"]), (&json!(true), &json!(true)));
    // A release under a token that is not current must not free anything.
    let wrong = held("dan", "resource:database:test", kept - 1);
    let _ = one.post("/locks/release", &wrong).await.expect_status(202);

    let took = fixture.resume_redis().await;
    assert!(took < RECOVERY, "{took:?}");
    // Nobody overtakes them.
    let refused = acquire(one, "eve", false).await;
    assert!(matches!(refused.code().as_str(), "LOCK_HELD" | "UNAVAILABLE"), "{}", refused.text());
    let first = claim(two, &tickets[0]).await;
    assert!(first > token, "the stored release freed the lock");
    let _ = two.post("/locks/release", &held("ben", LOCK, first)).await.expect_status(200);
    let second = claim(one, &tickets[1]).await;
    assert!(second > first);
    let _ = one.get(&format!("/locks/tickets/{}", tickets[2])).await.expect_problem(409, "CANCELLED");
    let _ = one.get(&format!("/locks/tickets/{short}")).await.expect_problem(423, "LOCK_HELD");
    let _ =
        one.post("/locks/heartbeat", &held("dan", "resource:database:test", kept)).await.expect_status(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_and_reviews_go_on_without_redis() {
    let fixture = Fixture::start().await;
    let office = AdminClient { api: fixture.apis[0].clone() };
    let pat = office.create_approved_author("pat").await;
    fixture.stop_redis().await;
    let id = pat.create_submitted(json!({})).await;
    let approved = office.task_request(&id).await;
    assert_eq!(text_field(&approved, "state"), "APPROVED", "{approved}");
    assert_eq!(fixture.apis[1].verify_audit().await["status"], "valid");
    let metrics = fixture.apis[0].send_raw("GET", "/metrics", &[], "").await.text();
    for line in ["ade_lock_outage 1", "ade_coordination_up 0", "ade_database_up 1"] {
        assert!(metrics.contains(line), "{line}");
    }
    let took = fixture.resume_redis().await;
    assert!(took < RECOVERY, "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_executes_stored_requests_after_a_kill() {
    const LOCKS: usize = 10;
    const REQUESTS: usize = 200;
    let lock = |number: usize| format!("resource:item:{}", number % LOCKS);
    let fixture = Fixture::start().await;
    for number in 0..LOCKS {
        take(&fixture.apis[0], "holder", &lock(number)).await;
    }
    fixture.stop_redis().await;
    for number in 0..REQUESTS {
        let body = request(&format!("agent-{number}"), &lock(number), true);
        let _ = fixture.apis[number % 2].post("/locks/acquire", &body).await.expect_status(202);
    }
    fixture.signal_redis(Signal::CONT);
    // Either may be the one that executes them; each of them dies once.
    for server in &fixture.house.servers {
        server.kill_and_restart().expect("restarts");
    }
    for api in &fixture.apis {
        wait_for_status(api, "ready").await;
    }
    for first in 0..LOCKS {
        let path = format!("/locks/{}", encode_segment(&lock(first)));
        let shown = fixture.apis[0].get(&path).await.expect_status(200);
        let queue = shown["queue"].as_array().expect("a queue");
        let agents: Vec<String> = queue.iter().map(|waiter| text_field(waiter, "agent_id")).collect();
        let expected = (first..REQUESTS).step_by(LOCKS).map(|number| format!("agent-{number}"));
        assert_eq!(agents, expected.collect::<Vec<_>>(), "in the order of arrival, none lost");
    }
}
