//! What the record keeps and shows of tasks, reviews and executions, and small rules of the review that people stumbled over.

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_testkit::deployment::text_field;
use ade_testkit::{AdminClient, Deployment, TestUser};
use serde_json::{Value, json};

struct Fixture {
    _deployment: Deployment,
    org: AdminClient,
    pat: TestUser,
    rex: TestUser,
    ada: TestUser,
}

impl Fixture {
    async fn new() -> Self {
        let deployment = Deployment::embedded(env!("CARGO_BIN_EXE_ade"));
        let org = deployment.admin().await;
        let (pat, rex) = (org.create_user("pat", &[AUTHOR]).await, org.create_user("rex", &[REVIEWER]).await);
        Self { ada: org.create_user("ada", &[ADMIN]).await, _deployment: deployment, org, pat, rex }
    }
}

#[tokio::test]
async fn record_shows_times_statistics_and_error_details() {
    let fixture = Fixture::new().await;
    let Fixture { org, pat, rex, .. } = &fixture;
    org.create_policy(json!({ "name": "two", "task_types": ["two"], "min_approvers": 2 })).await;
    let sue = org.create_user("sue", &[REVIEWER]).await;
    let task = pat.create_draft(json!({ "type": "two" })).await;
    let times =
        async || org.task_request(&task).await["metadata"]["updated_at"].as_str().expect("a time").to_owned();
    let created = times().await;
    let _ = pat.patch(&format!("/tasks/{task}"), &json!({ "description": "new" })).await.expect_status(200);
    let modified = times().await;
    let _ = pat.post(&format!("/tasks/{task}/submit"), &json!({})).await.expect_status(202);
    let submitted = times().await;
    let _ = pat.post(&format!("/tasks/{task}/comments"), &json!({ "text": "hi" })).await.expect_status(201);
    assert_eq!(times().await, submitted, "a comment changes nothing");
    assert!(created < modified && modified < submitted);
    // Statistics of the task and of its reviewers.
    let stats = async || {
        let stats = pat.get(&format!("/tasks/{task}/stats")).await.expect_status(200);
        ["required_count", "approved_count", "rejected_count", "pending_count", "quorum_reached"]
            .map(|field| stats[field].clone())
    };
    assert_eq!(stats().await, [json!(2), json!(0), json!(0), json!(2), json!(false)]);
    let _ = rex.decide(&org.approval_id(&task, "rex").await, "approve").await.expect_status(200);
    assert_eq!(stats().await, [json!(2), json!(1), json!(0), json!(1), json!(false)]);
    let other = pat.create_submitted(json!({})).await;
    let _ = rex.decide(&org.approval_id(&other, "rex").await, "reject").await.expect_status(200);
    let own = rex.get("/stats/users/me").await.expect_status(200);
    assert_eq!(
        (&own["pending_count"], &own["approved_today"], &own["rejected_today"]),
        (&json!(0), &json!(1), &json!(1)),
        "{own}"
    );
    let decided = org.approvals(&other).await;
    let last = decided.iter().find(|request| request["reviewer_id"] == "rex").expect("asked");
    assert_eq!(own["last_action_at"], last["responded_at"]);
    let idle = pat.get("/stats/users/me").await.expect_status(200);
    assert_eq!((&idle["approved_today"], &idle["last_action_at"]), (&json!(0), &Value::Null));
    let _ = sue.decide(&org.approval_id(&task, "sue").await, "approve").await.expect_status(200);
    assert_eq!(stats().await, [json!(2), json!(2), json!(0), json!(0), json!(true)]);
    // A delegation keeps its time of creation.
    let made = rex.post("/delegations", &json!({ "delegate_to": "sue" })).await.expect_status(201);
    let path = format!("/delegations/{}", text_field(&made, "delegation_id"));
    let changed = rex.patch(&path, &json!({ "active": false })).await.expect_status(200);
    assert!(
        !text_field(&made, "created_at").is_empty() && made["created_at"] == changed["created_at"],
        "{made}"
    );
    error_details_are_stored(&fixture).await;
}

async fn error_details_are_stored(fixture: &Fixture) {
    let Fixture { org, pat, rex, .. } = fixture;
    let bot = org.create_agent("bot", pat).await;
    let task = pat.create_submitted(json!({ "executor": "agent", "parameters": { "agent": "bot" } })).await;
    let _ = rex.decide(&org.approval_id(&task, "rex").await, "approve").await.expect_status(200);
    let _ = bot.post("/tasks/claim", &json!({})).await.expect_status(200);
    let complete = format!("/tasks/{task}/complete");
    let huge = json!({ "attempt": 1, "result": "failure", "error_details": { "log": "x".repeat(20_000) } });
    let _ = bot.post(&complete, &huge).await.expect_problem(422, "INVALID_REQUEST");
    let said = json!({ "exit_code": 3, "step": { "name": "migrate" } });
    let report = json!({ "attempt": 1, "result": "failure", "error": "no", "error_details": said });
    let _ = bot.post(&complete, &report).await.expect_status(200);
    let execution = pat.get(&format!("/tasks/{task}/execution")).await.expect_status(200);
    let details = &execution["error_details"];
    assert_eq!((&details["reported"], &details["code"]), (&said, &json!("EXECUTION_FAILED")), "{details}");
    assert_eq!(
        (&details["effects"], &details["worker"]),
        (&json!("irreversible"), &json!("bot")),
        "{details}"
    );
}

#[tokio::test]
async fn review_shows_what_blocks_it_and_override_keeps_both_reasons() {
    let fixture = Fixture::new().await;
    let Fixture { org, pat, rex, ada, .. } = &fixture;
    let sue = org.create_user("sue", &[REVIEWER]).await;
    let task = pat.create_submitted(json!({})).await;
    let _ = rex.decide(&org.approval_id(&task, "rex").await, "request-changes").await.expect_status(200);
    let _ = sue.decide(&org.approval_id(&task, "sue").await, "approve").await.expect_status(200);
    let shown = org.task_request(&task).await;
    let requirement = &shown["requirements"][0];
    assert_eq!((&shown["state"], &requirement["status"]), (&json!("REVIEWING"), &json!("UNSATISFIED")));
    assert!(text_field(requirement, "why").starts_with("changes requested by rex"), "{requirement}");
    let stats = pat.get(&format!("/tasks/{task}/stats")).await.expect_status(200);
    assert_eq!(stats["quorum_reached"], json!(false));
    // Both administrators give their reasons.
    let eve = org.create_user("eve", &[ADMIN]).await;
    let body = json!({ "reason": "outage", "incident_ticket": "INC-7" });
    let _ = ada.post(&format!("/tasks/{task}/override"), &body).await.expect_status(200);
    let confirm = format!("/tasks/{task}/override/confirm");
    let confirmed = eve.post(&confirm, &json!({ "reason": "I read the diff" })).await.expect_status(200);
    let why = text_field(&confirmed["requirements"][0], "why");
    assert!(why.contains("outage; eve confirmed: I read the diff"), "{why}");
    assert_eq!(
        (&confirmed["state"], &confirmed["requirements"][0]["status"]),
        (&json!("APPROVED"), &json!("OVERRIDDEN"))
    );
}

#[tokio::test]
async fn author_archives_a_cancelled_task() {
    let fixture = Fixture::new().await;
    let Fixture { org, pat, rex, ada, .. } = &fixture;
    let other = org.create_user("other", &[AUTHOR]).await;
    let task = pat.create_submitted(json!({})).await;
    let path = format!("/tasks/{task}/archive");
    let archive = async |by: &TestUser| by.request("POST", &path, "").await;
    let refused = archive(pat).await.expect_problem(409, "INVALID_TRANSITION");
    assert_eq!(refused["state"], "REVIEWING");
    let _ = pat.post(&format!("/tasks/{task}/cancel"), &json!({})).await.expect_status(200);
    let shown = pat.get(&format!("/tasks/{task}")).await.expect_status(200);
    assert_eq!(shown["allowed"], json!(["archive"]), "only the archive is left");
    let _ = archive(&other).await.expect_problem(404, "TASK_NOT_FOUND");
    let _ = archive(rex).await.expect_problem(403, "FORBIDDEN");
    assert_eq!(archive(pat).await.status, 204);
    let _ = archive(pat).await.expect_problem(404, "TASK_NOT_FOUND");
    let listed = ada.get("/archives").await.expect_status(200);
    let restored = format!("/archives/{}/restore", text_field(&listed["items"][0], "archive_id"));
    assert_eq!(ada.request("POST", &restored, "").await.expect_status(200)["restored"], json!(1));
    assert_eq!(org.task_request(&task).await["state"], "CANCELLED");
}
