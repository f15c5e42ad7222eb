//! PostgreSQL is gone or hangs: known agents keep and acquire locks, everything that would write is refused, and nothing else is
//! trusted to memory.

use std::time::{Duration, Instant};

use ade_domain::people::{AUTHOR, REVIEWER};
use ade_testkit::api::ApiResponse;
use ade_testkit::deployment::{task, text_field};
use ade_testkit::server::{BOOTSTRAP_TOKEN, ServerBuilder};
use ade_testkit::wait::until;
use ade_testkit::{AdeServer, AdminClient, ApiClient, Cli, Postgres, PostgresProxy, Redis, TestUser};
use rustix::process::Signal;
use serde_json::{Value, json};

const ADE: &str = env!("CARGO_BIN_EXE_ade");
/// Generous: only a hang reaches it, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// From PostgreSQL being back to everything being served.
const RECOVERY: Duration = Duration::from_secs(5);
const LOCK: &str = "resource:database:prod";

/// A server whose connections to PostgreSQL can be cut or frozen.
struct Fixture {
    server: AdeServer,
    api: ApiClient,
    redis: Redis,
    proxy: PostgresProxy,
    _postgres: Postgres,
    author: TestUser,
    agent: TestUser,
}

impl Fixture {
    async fn start() -> Self {
        let (redis, postgres) = (Redis::start().expect("starts"), Postgres::start().expect("starts"));
        let proxy = PostgresProxy::start(&postgres.create_database("ade").expect("created")).await;
        let setup = ServerBuilder::new(ADE).env("ADE_WORKER_SLOTS", "0").arg("--redis").arg(&redis.url());
        let server = setup.arg("--postgres").arg(proxy.url()).start().expect("starts");
        let api = ApiClient::connect(&server).await;
        let office = AdminClient { api: api.clone() };
        let author = office.create_user("pat", &[AUTHOR, REVIEWER]).await;
        let agent = office.create_agent("builder", &author).await;
        Self { server, api, redis, proxy, _postgres: postgres, author, agent }
    }

    async fn status(&self) -> String {
        text_field(&self.api.send_raw("GET", "/readyz", &[], "").await.expect_status(200), "status")
    }

    async fn wait_for_status(&self, expected: &str) {
        let observe = || async {
            let status = self.status().await;
            if status == expected { Ok(()) } else { Err(status) }
        };
        until(&format!("the server is {expected}"), TIMEOUT, observe).await.expect("in time");
    }

    async fn task_count(&self) -> usize {
        let all = self.api.get("/tasks?limit=100").await.expect_status(200);
        all["items"].as_array().expect("a list").len()
    }
}

fn assert_refused(response: &ApiResponse) {
    let _ = response.expect_problem(503, "UNAVAILABLE");
    assert!(response.header("retry-after").parse::<u64>().is_ok_and(|seconds| seconds > 0));
}

fn acquire(lock: &str, agent: Option<&str>) -> Value {
    json!({ "agent_id": agent, "locks": [{ "lock": lock }], "ttl_seconds": 300 })
}

async fn take(caller: &TestUser, lock: &str, agent: Option<&str>) -> Value {
    let granted = caller.post("/locks/acquire", &acquire(lock, agent)).await.expect_status(200);
    let token = &granted["grants"][0]["fencing_token"];
    json!({ "agent_id": agent, "locks": [{ "lock": lock, "fencing_token": token }] })
}

#[tokio::test(flavor = "multi_thread")]
async fn known_agents_keep_and_acquire_locks_while_the_database_is_gone() {
    let fixture = Fixture::start().await;
    let office = AdminClient { api: fixture.api.clone() };
    let Fixture { author, agent, proxy, .. } = &fixture;
    let fresh = office.create_agent("stranger", author).await;
    let operator = office.user_with_token("operator", &json!({ "token": BOOTSTRAP_TOKEN }));
    let cut_off = [(PostgresProxy::disconnect as fn(&_), PostgresProxy::reconnect as fn(&_))];
    let frozen = [(PostgresProxy::freeze as fn(&_), PostgresProxy::thaw as fn(&_))];
    for (round, (cut, restore)) in cut_off.into_iter().chain(frozen).enumerate() {
        let (own, named) =
            (take(agent, LOCK, None).await, take(author, "resource:x:1", Some("helper")).await);
        let id = author.create_draft(json!({})).await;
        let tasks = fixture.task_count().await;
        cut(proxy);
        fixture.wait_for_status("degraded").await;
        // Locks go on.
        #[expect(clippy::disallowed_methods, reason = "heartbeats must be quick")]
        let started = Instant::now();
        for (caller, held) in [(agent, &own), (author, &named)] {
            let _ = caller.post("/locks/heartbeat", held).await.expect_status(200);
        }
        let more = take(agent, &format!("resource:more:{round}"), None).await;
        let ticket = json!({ "locks": [{ "lock": "resource:x:1" }], "queue": true });
        let ticket = agent.post("/locks/acquire", &ticket).await;
        let ticket = text_field(&ticket.expect_status(202), "ticket");
        let _ = author.post("/locks/release", &named).await.expect_status(200);
        let shown = agent.get(&format!("/locks/tickets/{ticket}")).await.expect_status(200);
        assert_eq!(shown["status"], "ready", "{shown}");
        let claimed = agent.post(&format!("/locks/tickets/{ticket}/claim"), &json!({})).await;
        let token = &claimed.expect_status(200)["grants"][0]["fencing_token"];
        let claimed = json!({ "locks": [{ "lock": "resource:x:1", "fencing_token": token }] });
        for held in [&own, &more, &claimed] {
            let _ = agent.post("/locks/release", held).await.expect_status(200);
        }
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
        // Everything else is refused: writes, decisions, administration, callers and agents that are not known.
        assert_refused(&author.post("/tasks", &task(json!({}))).await);
        assert_refused(&author.post("/locks/acquire", &acquire(LOCK, Some("unknown"))).await);
        assert_refused(&fresh.post("/locks/acquire", &acquire(LOCK, None)).await);
        assert_refused(&agent.get("/tasks").await);
        assert_refused(&author.post(&format!("/tasks/{id}/submit"), &json!({})).await);
        assert_refused(&author.post("/agents", &json!({ "agent_id": "new" })).await);
        // What cannot be checked does not keep the other checks from being shown.
        let checked = Cli::new(ADE, &fixture.server, &operator).run(&["doctor", "--json"]).await;
        let findings: Value = serde_json::from_str(&checked.stdout).expect("JSON");
        let is_unchecked = |finding: &&Value| text_field(finding, "detail").starts_with("not checked: ");
        let unchecked: Vec<String> = findings
            .as_array()
            .expect("a list")
            .iter()
            .filter(is_unchecked)
            .map(|one| text_field(one, "check"))
            .collect();
        assert_eq!(unchecked, ["dual control", "policies", "executors", "projections"], "{findings}");
        assert_eq!(findings[0]["result"], "problem", "{findings}");
        #[expect(clippy::disallowed_methods, reason = "recovery time is measured")]
        let back_at = Instant::now();
        restore(proxy);
        fixture.wait_for_status("ready").await;
        assert!(back_at.elapsed() < RECOVERY, "{:?}", back_at.elapsed());
        assert_eq!(fixture.task_count().await, tasks, "what was refused has not happened");
    }
    // A revocation that the server saw counts.
    let removed = author.delete("/agents/builder").await;
    assert_eq!(removed.status, 204, "{}", removed.text());
    proxy.disconnect();
    fixture.wait_for_status("degraded").await;
    assert_refused(&agent.post("/locks/acquire", &acquire(LOCK, None)).await);
    // Without both stores nothing can be served.
    fixture.redis.process().signal(Signal::STOP).expect("stopped");
    let observe = || async {
        let ready = fixture.api.send_raw("GET", "/readyz", &[], "").await;
        if ready.status == 503 { Ok(ready) } else { Err(ready.text()) }
    };
    let ready = until("nothing is served", TIMEOUT, observe).await.expect("in time");
    let _ = ready.expect_problem(503, "UNAVAILABLE");
    fixture.redis.process().signal(Signal::CONT).expect("resumed");
    proxy.reconnect();
    fixture.wait_for_status("ready").await;
    assert!(fixture.server.process().log_lines_with("panicked").is_empty());
}
