//! Whose tasks an agent claims and sees: a capability counts for tasks of the sponsor and the sponsor's team, one granted by an
//! administrator also for those whom the agent accepts. An agent grants itself nothing.

use std::time::Duration;

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_testkit::api::ApiResponse;
use ade_testkit::deployment::text_field;
use ade_testkit::wait::until;
use ade_testkit::{AdminClient, Deployment, TestUser};
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(60);

struct Fixture {
    office: AdminClient,
    /// An author of the team blue.
    ann: TestUser,
    /// An author of the team red, and of agents that want the work of others.
    mal: TestUser,
    ada: TestUser,
    rev: TestUser,
}

impl Fixture {
    async fn new(house: &Deployment) -> Self {
        let office = house.admin().await;
        let author = async |id: &str, team: Option<&str>| {
            office.create_user_from(json!({ "user_id": id, "roles": [AUTHOR], "team": team })).await
        };
        let (ann, mal) = (author("ann", Some("blue")).await, author("mal", Some("red")).await);
        let rev = office.create_user("rev", &[REVIEWER]).await;
        Self { ada: office.create_user("ada", &[ADMIN]).await, ann, mal, rev, office }
    }

    /// An approved task with these parameters.
    async fn approved_task(&self, author: &TestUser, parameters: Value) -> String {
        let task = author.create_submitted(json!({ "executor": "agent", "parameters": parameters })).await;
        let request = self.office.approval_id(&task, "rev").await;
        let _ = self.rev.decide(&request, "approve").await.expect_status(200);
        task
    }

    /// An approved task that asks for the capability `paint`.
    async fn paint_task(&self, author: &TestUser) -> String {
        self.approved_task(author, json!({ "capability": "paint" })).await
    }

    async fn agent(&self, id: &str, sponsor: &TestUser, capabilities: &[&str]) -> TestUser {
        let agent = self.office.create_agent(id, sponsor).await;
        let change = json!({ "capabilities": capabilities });
        let _ = sponsor.patch(&format!("/agents/{id}"), &change).await.expect_status(200);
        agent
    }

    async fn finish(&self, agent: &TestUser, task: &str) {
        let report = json!({ "attempt": 1, "result": "success" });
        let _ = agent.post(&format!("/tasks/{task}/complete"), &report).await.expect_status(200);
    }
}

async fn claim(agent: &TestUser) -> ApiResponse {
    agent.post("/tasks/claim", &json!({})).await
}

/// Claims the task, and nothing else.
#[track_caller]
fn assert_claimed(response: &ApiResponse, task: &str) {
    assert_eq!(text_field(&response.expect_status(200)["task"], "task_id"), task);
}

#[track_caller]
fn assert_nothing(response: &ApiResponse) {
    assert_eq!(response.status, 204, "{}", response.text());
}

#[tokio::test]
async fn agent_claims_only_what_was_granted_to_it() {
    let house = Deployment::embedded(env!("CARGO_BIN_EXE_ade"));
    claims_follow_grants(&Fixture::new(&house).await).await;
}

#[tokio::test]
async fn agent_claims_only_what_was_granted_to_it_on_postgres() {
    let house = Deployment::distributed(env!("CARGO_BIN_EXE_ade"), 1);
    claims_follow_grants(&Fixture::new(&house).await).await;
}

async fn claims_follow_grants(fixture: &Fixture) {
    let Fixture { office, ann, mal, ada, .. } = fixture;
    // A stranger's agent declares the capability itself, or gets it from its sponsor: neither is enough.
    let spy = fixture.agent("spy", mal, &["paint"]).await;
    let task = fixture.paint_task(ann).await;
    assert_nothing(&claim(&spy).await);
    let own = json!({ "capabilities": ["paint", "sand"], "accepts": ["role:author"] });
    let _ = spy.patch("/agents/spy", &own).await.expect_problem(403, "FORBIDDEN");
    for field in [
        json!({ "accepts": ["user:ann"] }),
        json!({ "grants": [{ "capability": "paint", "scope": "accepted" }] }),
    ] {
        let _ = mal.patch("/agents/spy", &field).await.expect_problem(403, "FORBIDDEN");
    }
    assert_nothing(&claim(&spy).await);
    assert_eq!(spy.get(&format!("/tasks/{task}")).await.status, 404, "nor does it see the task");
    // An agent of the author, and one of the author's team, have it; a user without a team matches nobody's.
    let dab = fixture.agent("dab", ann, &["paint"]).await;
    let mate = office.create_user_from(json!({ "user_id": "mia", "roles": [AUTHOR], "team": "blue" })).await;
    let lone = office.create_user_from(json!({ "user_id": "lou", "roles": [AUTHOR] })).await;
    let team = fixture.agent("mias", &mate, &["paint"]).await;
    let loner = fixture.agent("lous", &lone, &["paint"]).await;
    let other_lone = office.create_user_from(json!({ "user_id": "leo", "roles": [AUTHOR] })).await;
    let of_leo = fixture.paint_task(&other_lone).await;
    assert_nothing(&claim(&loner).await);
    for agent in [&dab, &team] {
        let _ = agent.get(&format!("/tasks/{task}")).await.expect_status(200);
    }
    assert_claimed(&claim(&team).await, &task);
    let _ = team.get(&format!("/tasks/{task}")).await.expect_status(200);
    assert_eq!(dab.get(&format!("/tasks/{task}")).await.status, 200, "a task of its sponsor");
    let _ = spy
        .post(&format!("/tasks/{task}/complete"), &json!({ "attempt": 1, "result": "success" }))
        .await
        .expect_problem(404, "TASK_NOT_FOUND");
    fixture.finish(&team, &task).await;
    let _ = team.get(&format!("/tasks/{task}")).await.expect_status(200);
    // An administrator grants it for everybody whom the agent accepts.
    let pro = fixture.agent("pro", mal, &[]).await;
    let grant = json!({ "grants": [{ "capability": "paint" }], "accepts": ["user:leo", "team:green"] });
    let granted = ada.patch("/agents/pro", &grant).await.expect_status(200);
    let expected = json!({ "capability": "paint", "granted_by": "ada", "scope": "accepted", "granted_at": granted["grants"][0]["granted_at"] });
    assert_eq!((&granted["grants"], &granted["capabilities"]), (&json!([expected]), &json!(["paint"])));
    assert_eq!(granted["accepts"], json!(["user:leo", "team:green"]));
    let of_ann = fixture.paint_task(ann).await;
    assert_claimed(&claim(&pro).await, &of_leo);
    assert_nothing(&claim(&pro).await);
    // The sponsor keeps what the administrator granted, and can remove it, but not widen it.
    let _ = mal
        .patch("/agents/pro", &json!({ "capabilities": ["paint"], "accepts": ["user:leo"] }))
        .await
        .expect_status(200);
    let _ =
        mal.patch("/agents/pro", &json!({ "accepts": ["user:ann"] })).await.expect_problem(403, "FORBIDDEN");
    let _ = ada.patch("/agents/pro", &json!({ "accepts": ["role:author"] })).await.expect_status(200);
    assert_claimed(&claim(&pro).await, &of_ann);
    let of_ann = fixture.paint_task(ann).await;
    let revoked = mal.patch("/agents/pro", &json!({ "capabilities": [] })).await.expect_status(200);
    assert_eq!((&revoked["grants"], &revoked["capabilities"]), (&json!([]), &json!([])));
    assert_nothing(&claim(&pro).await);
    assert_claimed(&claim(&dab).await, &of_ann);
    queue_of_others_does_not_block(fixture, &dab).await;
    named_agents_serve_the_same_people(fixture).await;
    agent_changes_only_its_status(fixture).await;
    grants_are_audited(fixture).await;
}

/// Any number of tasks that an agent may not claim come before one that it may.
async fn queue_of_others_does_not_block(fixture: &Fixture, dab: &TestUser) {
    for _ in 0..70 {
        let _ = fixture.paint_task(&fixture.mal).await;
    }
    let task = fixture.paint_task(&fixture.ann).await;
    assert_claimed(&claim(dab).await, &task);
}

/// Naming an agent gives its sponsor nothing: the name may be free, or may become so.
async fn named_agents_serve_the_same_people(fixture: &Fixture) {
    let task = fixture.approved_task(&fixture.ann, json!({ "agent": "ghost" })).await;
    // Acting under an unknown name registers it.
    assert_nothing(&fixture.mal.post("/tasks/claim", &json!({ "agent_id": "ghost" })).await);
    let _ = fixture.office.api.delete("/agents/ghost").await;
    let claimed = fixture.ann.post("/tasks/claim", &json!({ "agent_id": "ghost" })).await;
    assert_claimed(&claimed, &task);
    // A person who is named is meant, whatever team.
    let task = fixture.approved_task(&fixture.ann, json!({ "agent": "mal" })).await;
    assert_claimed(&claim(&fixture.mal).await, &task);
}

async fn agent_changes_only_its_status(fixture: &Fixture) {
    let bot = fixture.office.create_agent("bot", &fixture.ann).await;
    for change in [
        json!({ "name": "Boss" }),
        json!({ "model": "x" }),
        json!({ "config": { "a": 1 } }),
        json!({ "max_tasks": 100 }),
        json!({ "capabilities": [] }),
        json!({ "parent_agent_id": null }),
        json!({ "draining": true, "name": "Boss" }),
    ] {
        let _ = bot.patch("/agents/bot", &change).await.expect_problem(403, "FORBIDDEN");
    }
    assert_eq!(bot.delete("/agents/bot").await.expect_problem(403, "FORBIDDEN")["status"], 403);
    let _ = bot.request("POST", "/agents/bot/heartbeat", "").await.expect_status(200);
    let drained = bot.request("POST", "/agents/bot/drain", "").await.expect_status(200);
    assert_eq!((&drained["status"], &drained["name"]), (&json!("draining"), &json!("bot")));
    let active =
        bot.patch("/agents/bot", &json!({ "agent_id": "bot", "draining": false })).await.expect_status(200);
    assert_eq!(active["status"], "active");
    // The sponsor's roles do not extend to what the agent sees.
    fixture
        .office
        .create_policy(json!({ "name": "rex", "task_types": ["seen"], "reviewers": ["rex"] }))
        .await;
    let rex = fixture.office.create_user("rex", &[AUTHOR, REVIEWER]).await;
    let of_rex = fixture.office.create_agent("rexs", &rex).await;
    let task = fixture.ann.create_submitted(json!({ "type": "seen" })).await;
    let request = fixture.office.approval_id(&task, "rex").await;
    let _ = rex.get(&format!("/tasks/{task}")).await.expect_status(200);
    for path in [format!("/tasks/{task}"), format!("/tasks/{task}/audit"), format!("/approvals/{request}")] {
        assert_eq!(of_rex.get(&path).await.status, 404, "{path}");
    }
    let comment = of_rex.post(&format!("/tasks/{task}/comments"), &json!({ "text": "hm" })).await;
    let _ = comment.expect_problem(404, "TASK_NOT_FOUND");
    assert_eq!(of_rex.get("/tasks").await.expect_status(200)["items"], json!([]));
    assert_eq!(of_rex.get("/approvals?reviewer=me").await.expect_status(200)["items"], json!([]));
    assert_eq!(rex.get("/tasks").await.expect_status(200)["items"].as_array().map(Vec::len), Some(1));
}

async fn grants_are_audited(fixture: &Fixture) {
    let observe = || async {
        let entries = fixture.office.audit_entries("action=agent.update").await;
        let of_pro: Vec<&Value> = entries.iter().filter(|entry| entry["object_id"] == "pro").collect();
        let details: Vec<(Value, Value)> =
            of_pro.iter().map(|entry| (entry["who"]["user_id"].clone(), entry["details"].clone())).collect();
        let granted = json!([{ "capability": "paint", "scope": "accepted" }]);
        let expected = [
            (json!("ada"), json!({ "granted": granted, "accepts": ["user:leo", "team:green"] })),
            (json!("mal"), json!({ "accepts": ["user:leo"] })),
            (json!("ada"), json!({ "accepts": ["role:author"] })),
            (json!("mal"), json!({ "revoked": granted })),
        ];
        let found: Vec<_> = details.into_iter().filter(|(_, details)| *details != json!({})).collect();
        if found == expected { Ok(()) } else { Err(format!("{found:?}")) }
    };
    until("grants are in the audit log", TIMEOUT, observe).await.expect("in time");
}
