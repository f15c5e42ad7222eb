//! No author of a task can decide on it, on any path: each attempt is refused and changes nothing.

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_domain::permission::Scope;
use ade_testkit::deployment::text_field;
use ade_testkit::{AdminClient, Deployment, TestUser};
use serde_json::{Value, json};

/// Roles that permit everything on tasks of others.
const ALL_ROLES: [&str; 3] = [AUTHOR, REVIEWER, ADMIN];

struct Fixture {
    _deployment: Deployment,
    org: AdminClient,
    rex: TestUser,
    ada: TestUser,
}

impl Fixture {
    async fn new() -> Self {
        let deployment = Deployment::embedded(env!("CARGO_BIN_EXE_ade"));
        let org = deployment.admin().await;
        org.create_policy(json!({ "name": "rex alone", "reviewers": ["rex"] })).await;
        let (rex, ada) = (org.create_user("rex", &[REVIEWER]).await, org.create_user("ada", &[ADMIN]).await);
        Self { _deployment: deployment, org, rex, ada }
    }

    async fn task_and_requests(&self, id: &str) -> (Value, Vec<Value>) {
        (self.org.task_request(id).await, self.org.approvals(id).await)
    }

    /// Attempts every decision as `caller`; all must be refused. `task` must be in review.
    async fn assert_cannot_decide(&self, caller: &TestUser, task: &str) {
        let request = self.org.approval_id(task, "rex").await;
        let before = self.task_and_requests(task).await;
        let digest = text_field(&before.0, "digest");
        let own = "OWN_TASK";
        for decision in ["approve", "reject", "request-changes"] {
            // Also as an administrator on behalf of the reviewer.
            let _ = caller.decide(&request, decision).await.expect_problem(403, own);
            let body = json!({ "reason": "because", "digest": digest });
            let _ = caller
                .post(&format!("/approvals/{request}/{decision}"), &body)
                .await
                .expect_problem(403, own);
        }
        for action in ["approve", "reject", "request_changes"] {
            for skip in [false, true] {
                let options = json!({ "skip_validation": skip, "apply_immediately": true });
                let item = json!({ "approval_id": request, "digest": digest });
                let body =
                    json!({ "items": [item], "action": action, "reason": "because", "options": options });
                let refused = caller.post("/approvals/batch", &body).await;
                // Only administrators can use these options.
                if refused.status == 403 {
                    continue;
                }
                let refused = refused.expect_problem(409, "BATCH_REFUSED");
                assert_eq!(refused["items"][0]["code"], own, "{}", caller.id);
            }
        }
        let to = |to: &str| json!({ "to": to });
        let _ =
            caller.post(&format!("/approvals/{request}/delegate"), &to("ada")).await.expect_problem(403, own);
        let refused = self.rex.post(&format!("/approvals/{request}/delegate"), &to(&caller.id)).await;
        let _ = refused.expect_problem(422, "INVALID_REVIEWER");
        let refused = self.ada.post(&format!("/approvals/{request}/delegate"), &to(&caller.id)).await;
        let _ = refused.expect_problem(422, "INVALID_REVIEWER");
        let override_body = json!({ "reason": "because", "incident_ticket": "INC-1" });
        let _ =
            caller.post(&format!("/tasks/{task}/override"), &override_body).await.expect_problem(403, own);
        let _ = caller
            .post(&format!("/tasks/{task}/override/confirm"), &json!({}))
            .await
            .expect_problem(403, own);
        assert_eq!(self.task_and_requests(task).await, before, "{}", caller.id);
        // Confirming another administrator's override.
        let requested =
            self.ada.post(&format!("/tasks/{task}/override"), &override_body).await.expect_status(200);
        let _ = caller
            .post(&format!("/tasks/{task}/override/confirm"), &json!({}))
            .await
            .expect_problem(403, own);
        assert_eq!(self.ada.get(&format!("/tasks/{task}")).await.expect_status(200), requested);
        // Force-applying and revoking after the approval.
        let _ = self.rex.decide(&request, "approve").await.expect_status(200);
        let approved = self.task_and_requests(task).await;
        assert_eq!(approved.0["state"], "APPROVED");
        let reason = json!({ "reason": "because" });
        for action in ["force-apply", "revoke"] {
            let _ = caller.post(&format!("/tasks/{task}/{action}"), &reason).await.expect_problem(403, own);
        }
        for decision in ["approve", "reject", "request-changes"] {
            let _ = caller.decide(&request, decision).await.expect_problem(403, own);
        }
        assert_eq!(self.task_and_requests(task).await, approved, "{}", caller.id);
    }
}

#[tokio::test]
async fn authors_cannot_decide() {
    let fixture = Fixture::new().await;
    let org = &fixture.org;
    let author = org.create_user("author", &ALL_ROLES).await;
    let submitter = org.create_user("submitter", &ALL_ROLES).await;
    let token_creator = org.create_user("maker", &ALL_ROLES).await;
    let parent = org.create_user("parent", &ALL_ROLES).await;
    let boss = org.create_user("boss", &ALL_ROLES).await;
    // The author, and an administrator who submits the author's draft.
    let task = author.create_submitted(json!({ "lineage": { "sponsor_id": "author" } })).await;
    fixture.assert_cannot_decide(&author, &task).await;
    let task = author.create_draft(json!({})).await;
    let _ = submitter.post(&format!("/tasks/{task}/submit"), &json!({})).await.expect_status(202);
    fixture.assert_cannot_decide(&submitter, &task).await;
    // The creator of the token that was used.
    let body = json!({ "name": "for another", "scopes": ["read", "propose"] });
    let with_issued_token = org.user_with_token(
        "author",
        &token_creator.post("/users/author/tokens", &body).await.expect_status(201),
    );
    let task = with_issued_token.create_submitted(json!({})).await;
    fixture.assert_cannot_decide(&token_creator, &task).await;
    // The sponsor of an agent, the creator of the agent's token, and the sponsors of its parent agents.
    let bot = org.create_agent("bot", &boss).await;
    let _ = org.create_agent("elder", &parent).await;
    let with_parent = org.create_agent("child", &boss).await;
    let _ = org.api.patch("/agents/child", &json!({ "parent_agent_id": "elder" })).await.expect_status(200);
    let task = bot.create_submitted(json!({})).await;
    fixture.assert_cannot_decide(&boss, &task).await;
    let with_issued_token = org.user_with_token(
        "bot",
        &token_creator.post("/agents/bot/tokens", &json!({ "name": "t" })).await.expect_status(201),
    );
    let task = with_issued_token.create_submitted(json!({})).await;
    fixture.assert_cannot_decide(&token_creator, &task).await;
    for lineage in [json!({}), json!({ "parent_agent_id": "elder" })] {
        let task = with_parent.create_submitted(json!({ "lineage": lineage })).await;
        fixture.assert_cannot_decide(&parent, &task).await;
    }
    let task = boss.create_submitted(json!({ "lineage": { "agent_id": "bot" } })).await;
    fixture.assert_cannot_decide(&boss, &task).await;
    // Nobody can be made an author by naming: neither as sponsor, nor as the sponsor of an agent or of a parent.
    for (caller, lineage, field) in [
        (&author, json!({ "sponsor_id": "rex" }), "/lineage/sponsor_id"),
        (&author, json!({ "agent_id": "bot" }), "/lineage/agent_id"),
        (&author, json!({ "agent_id": "unknown" }), "/lineage/agent_id"),
        (&boss, json!({ "agent_id": "bot", "parent_agent_id": "elder" }), "/lineage/parent_agent_id"),
        (&boss, json!({ "parent_agent_id": "elder" }), "/lineage/parent_agent_id"),
        (&bot, json!({ "agent_id": "child" }), "/lineage/agent_id"),
        (&bot, json!({ "sponsor_id": "rex" }), "/lineage/sponsor_id"),
        (&bot, json!({ "parent_agent_id": "elder" }), "/lineage/parent_agent_id"),
    ] {
        let body = ade_testkit::deployment::task(json!({ "lineage": lineage }));
        let refused = caller.post("/tasks", &body).await;
        assert_eq!(
            (refused.status, refused.error_pointers()),
            (422, vec![field.to_owned()]),
            "{}",
            refused.text()
        );
        let simulated = caller.post("/simulations", &json!({ "task": body })).await;
        let _ = simulated.expect_problem(422, "INVALID_REQUEST");
        let draft = caller.create_draft(json!({})).await;
        let refused = caller.patch(&format!("/tasks/{draft}"), &json!({ "lineage": lineage })).await;
        let _ = refused.expect_problem(422, "INVALID_REQUEST");
    }
    // The agent itself: its tokens never have the decide scope.
    let task = author.create_submitted(json!({})).await;
    let request = org.approval_id(&task, "rex").await;
    let _ = bot.decide(&request, "approve").await.expect_problem(403, "SCOPE_MISSING");
}

#[tokio::test]
async fn tokens_created_by_author_cannot_decide() {
    let fixture = Fixture::new().await;
    let org = &fixture.org;
    let author = org.create_user("author", &ALL_ROLES).await;
    // Tokens that can decide are created by their own user only.
    for scope in [Scope::Decide, Scope::Admin] {
        let body = json!({ "name": "sly", "scopes": [scope] });
        let _ = author.post("/users/ada/tokens", &body).await.expect_problem(403, "FORBIDDEN");
    }
    // Other tokens for the reviewer cannot decide.
    let body = json!({ "name": "sly", "scopes": ["read", "propose", "lock"] });
    let issued =
        org.user_with_token("rex", &author.post("/users/rex/tokens", &body).await.expect_status(201));
    let task = author.create_submitted(json!({})).await;
    let request = org.approval_id(&task, "rex").await;
    let _ = issued.decide(&request, "approve").await.expect_problem(403, "SCOPE_MISSING");
    // Such a token cannot create one with the decide scope.
    let body = json!({ "name": "slier", "scopes": ["decide"] });
    let _ = issued.post("/users/me/tokens", &body).await.expect_problem(403, "FORBIDDEN");
    assert_eq!(org.task_request(&task).await["state"], "REVIEWING");
}

#[tokio::test]
async fn delegations_never_lead_to_author() {
    let fixture = Fixture::new().await;
    let org = &fixture.org;
    let author = org.create_user("author", &ALL_ROLES).await;
    let pia = org.create_user("pia", &[REVIEWER]).await;
    org.create_policy(json!({ "name": "pia", "task_types": ["chain"], "reviewers": ["pia", "rex"] })).await;
    // pia -> quin -> author: the chain ends at an author, so no request is created for it.
    let quin = org.create_user("quin", &[REVIEWER]).await;
    for (owner, to) in [(&pia, "quin"), (&quin, "author")] {
        let _ = owner.post("/delegations", &json!({ "delegate_to": to })).await.expect_status(201);
    }
    let task = author.create_submitted(json!({ "type": "chain" })).await;
    let reviewers: Vec<String> =
        org.approvals(&task).await.iter().map(|request| text_field(request, "reviewer_id")).collect();
    assert_eq!(reviewers, ["rex"]);
    let skipped_reviewers = org.task_request(&task).await["skipped_reviewers"].to_string();
    assert!(
        skipped_reviewers.contains("author cannot decide on this task: author is its author"),
        "{skipped_reviewers}"
    );
    fixture.assert_cannot_decide(&author, &task).await;
    // Without another reviewer the submission is refused.
    org.create_policy(json!({ "name": "only", "task_types": ["only"], "reviewers": ["pia"] })).await;
    let draft = author.create_draft(json!({ "type": "only" })).await;
    let refused =
        author.post(&format!("/tasks/{draft}/submit"), &json!({})).await.expect_problem(422, "NO_QUORUM");
    assert_eq!(refused["policy"], "only");
    assert!(refused["skipped_reviewers"].to_string().contains("author cannot decide"), "{refused}");
    assert_eq!(org.task_request(&draft).await["state"], "DRAFT");
    // A delegation that follows the author is ignored.
    let _ = fixture
        .rex
        .post("/delegations", &json!({ "delegate_to": "author", "kind": "follow" }))
        .await
        .expect_status(201);
    let task = author.create_submitted(json!({})).await;
    let request = org.approvals(&task).await.remove(0);
    assert_eq!((&request["reviewer_id"], &request["follows"]), (&json!("rex"), &Value::Null));
    fixture.assert_cannot_decide(&author, &task).await;
    // A deactivated reviewer is not replaced by an author, not even by one who is their manager and an administrator.
    let leaver =
        org.create_user_from(json!({ "user_id": "gone", "roles": [REVIEWER], "manager_id": "author" })).await;
    org.create_policy(json!({ "name": "gone", "task_types": ["gone"], "reviewers": ["gone"] })).await;
    let task = author.create_submitted(json!({ "type": "gone" })).await;
    let _ =
        org.api.patch(&format!("/users/{}", leaver.id), &json!({ "active": false })).await.expect_status(200);
    let requests = org.approvals(&task).await;
    let reviewers: Vec<String> = requests.iter().map(|request| text_field(request, "reviewer_id")).collect();
    assert_eq!(reviewers, ["gone", "rex", "ada"], "replaced by an administrator who is not an author");
}

#[tokio::test]
async fn changing_task_adds_author_and_copies_inherit_authors() {
    let fixture = Fixture::new().await;
    let org = &fixture.org;
    let author = org.create_user("author", &ALL_ROLES).await;
    let token_creator = org.create_user("maker", &ALL_ROLES).await;
    let submitter = org.create_user("submitter", &ALL_ROLES).await;
    let second_creator = org.create_user("late", &ALL_ROLES).await;
    let issue = async |creator: &TestUser| {
        let body = json!({ "name": "t", "scopes": ["read", "propose"] });
        let issued = creator.post("/users/author/tokens", &body).await.expect_status(201);
        org.user_with_token("author", &issued)
    };
    let task = author.create_draft(json!({})).await;
    // The author changes the draft with a token that another user created; an administrator submits it.
    let path = format!("/tasks/{task}");
    let with_issued_token = issue(&token_creator).await;
    let _ = with_issued_token.patch(&path, &json!({ "description": "changed" })).await.expect_status(200);
    let _ = submitter.post(&format!("{path}/submit"), &json!({})).await.expect_status(202);
    let with_issued_token = issue(&second_creator).await;
    let _ = with_issued_token.patch(&path, &json!({ "description": "other" })).await.expect_status(200);
    let copy = |task: String| {
        let (org, author, rex) = (org.clone(), author.clone(), fixture.rex.clone());
        async move {
            let request = org.approval_id(&task, "rex").await;
            let _ = rex.decide(&request, "reject").await.expect_status(200);
            let copy = author.post(&format!("/tasks/{task}/resubmit"), &json!({})).await.expect_status(201);
            let copy = text_field(&copy, "task_id");
            let _ = author.post(&format!("/tasks/{copy}/submit"), &json!({})).await.expect_status(202);
            copy
        }
    };
    // An administrator who is not an author cannot change the task.
    let _ = fixture
        .ada
        .patch(&format!("/tasks/{task}"), &json!({ "description": "mine" }))
        .await
        .expect_problem(403, "FORBIDDEN");
    // All authors of all revisions, in a copy of a copy.
    let first = copy(task).await;
    let second = copy(first).await;
    let mut task = second;
    for caller in [&author, &submitter, &token_creator, &second_creator] {
        fixture.assert_cannot_decide(caller, &task).await;
        let _ = fixture
            .rex
            .post(&format!("/tasks/{task}/revoke"), &json!({ "reason": "again" }))
            .await
            .expect_status(200);
        let next = author.post(&format!("/tasks/{task}/resubmit"), &json!({})).await.expect_status(201);
        task = text_field(&next, "task_id");
        let _ = author.post(&format!("/tasks/{task}/submit"), &json!({})).await.expect_status(202);
    }
}
