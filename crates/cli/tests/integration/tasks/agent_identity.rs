//! What an agent writes is the agent's: tasks that it changes or submits, and comments. And what nobody gets by a side door: the
//! lock of a task that one cannot see, and a forced apply through a batch.

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
    bot: TestUser,
}

impl Fixture {
    async fn new() -> Self {
        let deployment = Deployment::embedded(env!("CARGO_BIN_EXE_ade"));
        let org = deployment.admin().await;
        let (pat, rex) = (org.create_user("pat", &[AUTHOR]).await, org.create_user("rex", &[REVIEWER]).await);
        let (ada, bot) = (org.create_user("ada", &[ADMIN]).await, org.create_agent("bot", &pat).await);
        Self { _deployment: deployment, org, pat, rex, ada, bot }
    }

    /// The agents that are on record with a task, and whether its author's roles count for automatic approval.
    async fn by_agent(&self, task: &str) -> Value {
        self.org.task_request(task).await["metadata"]["by_agent"].clone()
    }

    /// An item of a batch.
    async fn item(&self, task: &str) -> Value {
        self.org.batch_item(task, "rex").await
    }
}

#[tokio::test]
async fn what_an_agent_writes_is_shown_as_its_own() {
    let fixture = Fixture::new().await;
    let Fixture { org, pat, rex, bot, .. } = &fixture;
    // The roles of the author count for automatic approval only as long as no agent touched the task.
    org.create_policy(json!({
        "name": "trusted", "resource_patterns": ["docs:*"], "auto_approve_if": { "risk_below": 101, "author_has_role": [AUTHOR] },
    }))
    .await;
    let trusted = json!({ "resources": [{ "type": "docs", "id": "wiki" }] });
    let own = pat.create_draft(trusted.clone()).await;
    assert_eq!(fixture.by_agent(&own).await, json!([]));
    // It creates, modifies or submits the sponsor's draft; or submits again what was rejected.
    let created = bot.create_draft(trusted.clone()).await;
    let modified = pat.create_draft(trusted.clone()).await;
    let _ = bot
        .patch(&format!("/tasks/{modified}"), &json!({ "description": "better" }))
        .await
        .expect_status(200);
    let submitted = pat.create_draft(trusted.clone()).await;
    for (task, by) in [(&created, pat), (&modified, pat), (&submitted, bot)] {
        let answer = by.post(&format!("/tasks/{task}/submit"), &json!({})).await.expect_status(202);
        assert_eq!(
            (&answer["state"], &answer["metadata"]["by_agent"]),
            (&json!("REVIEWING"), &json!(["bot"]))
        );
        assert_eq!(answer["metadata"]["author_id"], "pat");
    }
    let request = org.approval_id(&submitted, "rex").await;
    let _ = rex.decide(&request, "reject").await.expect_status(200);
    for by in [pat, bot] {
        let copy = by.post(&format!("/tasks/{submitted}/resubmit"), &json!({})).await.expect_status(201);
        assert_eq!(copy["metadata"]["by_agent"], json!(["bot"]), "{}", by.id);
    }
    // A change during the review is on record too.
    let reviewed = pat.create_submitted(json!({})).await;
    assert_eq!(fixture.by_agent(&reviewed).await, json!([]));
    let _ =
        bot.patch(&format!("/tasks/{reviewed}"), &json!({ "description": "later" })).await.expect_status(200);
    assert_eq!(fixture.by_agent(&reviewed).await, json!(["bot"]));
    let comments = format!("/tasks/{reviewed}/comments");
    for (by, agent) in [(pat, json!(null)), (bot, json!("bot"))] {
        let comment = by.post(&comments, &json!({ "text": "look" })).await.expect_status(201);
        assert_eq!((&comment["author_id"], &comment["agent_id"]), (&json!("pat"), &agent));
    }
    let listed = rex.get(&comments).await.expect_status(200);
    assert_eq!(listed["items"][1]["agent_id"], "bot");
    // The untouched draft is still approved automatically.
    let answer = pat.post(&format!("/tasks/{own}/submit"), &json!({})).await.expect_status(202);
    assert_eq!(answer["state"], "APPROVED", "{answer}");
}

#[tokio::test]
async fn batch_asks_for_more_by_risk_and_forces_only_for_administrators() {
    let fixture = Fixture::new().await;
    let Fixture { org, pat, rex, ada, .. } = &fixture;
    let _ = org
        .api
        .post("/resources", &json!({ "pattern": "db:*", "criticality": 100 }))
        .await
        .expect_status(201);
    let on_db =
        |executor: &str| json!({ "executor": executor, "resources": [{ "type": "db", "id": "prod" }] });
    let (high, medium) =
        (pat.create_submitted(on_db("agent")).await, pat.create_submitted(on_db("noop")).await);
    let low = pat.create_submitted(json!({})).await;
    for (task, level) in [(&high, "HIGH"), (&medium, "MEDIUM"), (&low, "LOW")] {
        assert_eq!(org.task_request(task).await["risk"]["level"], level);
    }
    let [high_item, medium_item, low_item] =
        [fixture.item(&high).await, fixture.item(&medium).await, fixture.item(&low).await];
    let ids = |items: &[&Value]| items.iter().map(|item| item["approval_id"].clone()).collect::<Vec<_>>();
    let batch = async |body: Value| rex.post("/approvals/batch", &body).await;
    let refused =
        batch(json!({ "approval_ids": ids(&[&medium_item, &low_item]), "action": "approve" })).await;
    let refused = refused.expect_problem(409, "BATCH_REFUSED");
    assert_eq!(
        (
            refused["items"].as_array().map(Vec::len),
            &refused["items"][0]["code"],
            &refused["items"][0]["needs"]
        ),
        (Some(1), &json!("FRICTION_REQUIRED"), &json!(["digest", "scope_digest"]))
    );
    // With everything, a task of level HIGH is still not one of many.
    let items = json!([high_item, medium_item, low_item]);
    let refused = batch(json!({ "items": items, "action": "approve", "reason": "outage" })).await;
    let refused = refused.expect_problem(409, "BATCH_REFUSED");
    assert_eq!(
        (
            refused["items"].as_array().map(Vec::len),
            &refused["items"][0]["code"],
            &refused["items"][0]["approval_id"]
        ),
        (Some(1), &json!("NOT_IN_BATCH"), &high_item["approval_id"])
    );
    for task in [&high, &medium, &low] {
        assert_eq!(org.task_request(task).await["state"], "REVIEWING");
    }
    let other = json!({ "approval_id": medium_item["approval_id"], "digest": low_item["digest"] });
    let refused =
        batch(json!({ "items": [other], "action": "approve" })).await.expect_problem(409, "BATCH_REFUSED");
    assert_eq!(refused["items"][0]["code"], "DIGEST_MISMATCH");
    for body in [
        json!({ "items": [low_item], "approval_ids": ids(&[&low_item]), "action": "approve" }),
        json!({ "items": [{ "approval_id": low_item["approval_id"] }], "action": "approve" }),
        json!({ "items": [{ "approval_id": low_item["approval_id"], "digest": "x" }], "action": "approve" }),
        json!({ "items": [], "action": "approve" }),
    ] {
        let _ = batch(body).await.expect_problem(422, "INVALID_REQUEST");
    }
    // Forcing is for administrators, with the scopes and the reason that a forced apply needs.
    let force = json!({ "apply_immediately": true });
    let body = json!({ "items": [medium_item, low_item], "action": "approve", "reason": "outage", "options": force });
    assert_eq!(batch(body.clone()).await.status, 403, "a reviewer");
    assert_eq!(org.task_request(&medium).await["state"], "REVIEWING");
    let without_reason = json!({ "items": [medium_item], "action": "approve", "options": force });
    let _ = ada.post("/approvals/batch", &without_reason).await.expect_problem(422, "INVALID_REQUEST");
    let _ = ada.post("/approvals/batch", &body).await.expect_status(200);
    for task in [&medium, &low] {
        let task = org.task_request(task).await;
        assert_eq!((&task["state"], &task["forced"]), (&json!("APPROVED"), &json!(true)));
    }
    // Low risk needs no digest.
    let low = pat.create_submitted(json!({})).await;
    let body = json!({ "approval_ids": [org.approval_id(&low, "rex").await], "action": "approve" });
    let _ = batch(body).await.expect_status(200);
    let task = org.task_request(&low).await;
    assert_eq!((&task["state"], &task["forced"]), (&json!("APPROVED"), &json!(false)));
}

#[tokio::test]
async fn task_lock_is_for_those_who_see_the_task() {
    let fixture = Fixture::new().await;
    let Fixture { org, pat, bot, ada, .. } = &fixture;
    let (none, other) = (org.create_user("none", &[]).await, org.create_user("other", &[AUTHOR]).await);
    let task = pat.create_submitted(json!({})).await;
    let lock = format!("task:{task}");
    let acquire = |name: &str| json!({ "locks": [{ "lock": "resource:a:b" }, { "lock": name }] });
    for caller in [&none, &other, &org.create_agent("spy", &other).await] {
        for queue in [false, true] {
            let mut body = acquire(&lock);
            body["queue"] = json!(queue);
            let _ = caller.post("/locks/acquire", &body).await.expect_problem(404, "TASK_NOT_FOUND");
        }
        let _ = caller.get(&format!("/locks/{lock}")).await.expect_problem(404, "TASK_NOT_FOUND");
        let body = json!({ "lock": lock, "fencing_token": 1 });
        let _ = caller.post("/locks/verify", &body).await.expect_problem(404, "TASK_NOT_FOUND");
        // A name that is no task's is free for everybody.
        let _ = caller.get("/locks/task:mine").await.expect_status(200);
    }
    let free = ada.get("/locks/resource:a:b").await.expect_status(200);
    assert_eq!(free["holders"], json!([]), "nothing was acquired");
    for caller in [pat, bot, ada] {
        let granted = caller.post("/locks/acquire", &acquire(&lock)).await.expect_status(200);
        for (viewer, is_shown) in [(&none, false), (&other, false), (pat, true), (ada, true)] {
            let listed = viewer.get("/locks").await.expect_status(200);
            let names: Vec<&Value> =
                listed["items"].as_array().expect("locks").iter().map(|one| &one["lock"]).collect();
            assert_eq!(names.contains(&&json!(lock)), is_shown, "{listed}");
            assert!(names.contains(&&json!("resource:a:b")), "{listed}");
            let of_agent = viewer.get("/agents/pat/locks").await;
            assert!(is_shown || !of_agent.text().contains(&lock), "{}", of_agent.text());
        }
        let token = |grant: &Value| json!({ "lock": grant["lock"], "fencing_token": grant["fencing_token"] });
        let held: Vec<Value> = granted["grants"].as_array().expect("grants").iter().map(token).collect();
        let _ = caller.post("/locks/release", &json!({ "locks": held })).await.expect_status(200);
    }
    assert_eq!(text_field(&org.task_request(&task).await, "state"), "REVIEWING");
}

/// Locks and work belong to names, so a user never gets the name of an agent.
#[tokio::test]
async fn user_cannot_have_the_name_of_an_agent() {
    let deployment = Deployment::embedded(env!("CARGO_BIN_EXE_ade"));
    let org = deployment.admin().await;
    let abe = org.create_user("abe", &[AUTHOR]).await;
    let _ = org.create_agent("newhire", &abe).await;
    // Nor does an agent of somebody else get the name of one that was removed.
    let ben = org.create_user("ben", &[AUTHOR]).await;
    let _ = org.create_agent("bot1", &abe).await;
    let _ = abe.delete("/agents/bot1").await.expect_status(204);
    let register = json!({ "agent_id": "bot1" });
    let _ = ben.post("/agents", &register).await.expect_problem(403, "FORBIDDEN");
    let _ = abe.post("/agents", &register).await.expect_status(201);
    let body = json!({ "user_id": "newhire" });
    for path in ["/users", "/users/invitations"] {
        let refused = org.api.post(path, &body).await.expect_problem(422, "INVALID_REQUEST");
        assert_eq!(refused["errors"][0]["pointer"], "/user_id", "{refused}");
    }
}
