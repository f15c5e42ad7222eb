//! Delegation over HTTP: chains, cycles, inactive delegates, validity periods, followers, and delegation of a single request.
//! The response names the reviewers who were passed by and why.

use ade_domain::people::{AUTHOR, REVIEWER};
use ade_testkit::deployment::text_field;
use ade_testkit::{AdminClient, Deployment, TestUser};
use serde_json::{Value, json};

struct Fixture {
    _deployment: Deployment,
    org: AdminClient,
    pat: TestUser,
    alice: TestUser,
    bob: TestUser,
    carol: TestUser,
}

impl Fixture {
    async fn new() -> Self {
        let deployment = Deployment::embedded(env!("CARGO_BIN_EXE_ade"));
        let org = deployment.admin().await;
        // A task that touches one of these has a risk score above 50.
        let risky = json!({ "pattern": "server:*", "criticality": 100, "dependents": ["a:1", "a:2", "a:3", "a:4", "a:5"] });
        let _ = org.api.post("/resources", &risky).await.expect_status(201);
        let pat = org.create_user("pat", &[AUTHOR]).await;
        let alice =
            org.create_user_from(json!({ "user_id": "alice", "name": "Alice", "roles": [REVIEWER] })).await;
        let bob = org.create_user("bob", &[REVIEWER]).await;
        let carol = org.create_user("carol", &[REVIEWER]).await;
        // Only alice is asked by herself; the others are delegates.
        org.create_policy(json!({ "name": "default", "reviewers": ["alice"] })).await;
        Self { _deployment: deployment, org, pat, alice, bob, carol }
    }

    /// The example of the documentation: Alice delegates risky infrastructure tasks to Bob, and Bob production tasks to Carol.
    async fn create_chain(&self) -> (String, String) {
        let conditions = json!({ "task_types": ["infrastructure"], "risk_above": 50 });
        let first = json!({ "delegate_to": "bob", "conditions": conditions });
        let first = self.alice.post("/delegations", &first).await.expect_status(201);
        let second = json!({ "delegate_to": "carol", "conditions": { "resource_patterns": ["prod-*"] } });
        let second = self.bob.post("/delegations", &second).await.expect_status(201);
        (text_field(&first, "delegation_id"), text_field(&second, "delegation_id"))
    }

    /// Submits a task and returns its approval requests and the task.
    async fn submit(&self, fields: Value) -> (Vec<Value>, Value) {
        let id = self.pat.create_submitted(fields).await;
        (self.org.approvals(&id).await, self.org.task_request(&id).await)
    }

    async fn reviewers(&self, fields: Value) -> Vec<String> {
        self.submit(fields).await.0.iter().map(|request| text_field(request, "reviewer_id")).collect()
    }

    async fn change(&self, by: &TestUser, id: &str, change: Value) {
        let _ = by.patch(&format!("/delegations/{id}"), &change).await.expect_status(200);
    }
}

/// An infrastructure task in production with a high risk score.
fn risky_task() -> Value {
    let resources = json!([{ "type": "server", "id": "prod-1", "mode": "exclusive" }]);
    json!({ "type": "infrastructure", "executor": "agent", "resources": resources })
}

#[tokio::test]
async fn delegation_chain_ends_at_last_delegate() {
    let fixture = Fixture::new().await;
    let (first, second) = fixture.create_chain().await;
    let (requests, task) = fixture.submit(risky_task()).await;
    assert!(task["risk"]["score"].as_u64().is_some_and(|score| score > 50), "{}", task["risk"]);
    let [request] = requests.as_slice() else { panic!("expected one request: {requests:?}") };
    assert_eq!(request["reviewer_id"], "carol");
    let chain = json!([
        { "from": "alice", "to": "bob", "delegation_id": first },
        { "from": "bob", "to": "carol", "delegation_id": second },
    ]);
    assert_eq!(request["delegation_chain"], chain);
    assert!(request["why"].to_string().contains("delegated to carol"), "{request}");
    // Carol decides on behalf of Alice.
    let id = text_field(request, "approval_id");
    for caller in [&fixture.alice, &fixture.bob] {
        let _ = caller.decide(&id, "approve").await.expect_problem(404, "APPROVAL_NOT_FOUND");
    }
    let decided = fixture.carol.decide(&id, "approve").await.expect_status(200);
    assert_eq!((&decided["task_state"], &decided["reviewed_by"]), (&json!("APPROVED"), &json!("carol")));
    // Tasks that do not match the conditions are not delegated.
    let mut elsewhere = risky_task();
    elsewhere["resources"][0]["id"] = json!("test-1");
    assert_eq!(fixture.reviewers(elsewhere).await, ["bob"]);
    let mut other = risky_task();
    other["type"] = json!("note");
    assert_eq!(fixture.reviewers(other).await, ["alice"]);
    let mut harmless = risky_task();
    harmless["executor"] = json!("noop");
    harmless["resources"] = json!([]);
    assert_eq!(fixture.reviewers(harmless).await, ["alice"]);
}

#[tokio::test]
async fn broken_chain_ends_at_last_valid_delegate() {
    let fixture = Fixture::new().await;
    let (first, second) = fixture.create_chain().await;
    let assert_skipped = |task: &Value, reason: &str| {
        let skipped_reviewers = task["skipped_reviewers"].to_string();
        assert!(skipped_reviewers.contains(reason), "{reason} in {skipped_reviewers}");
    };
    // A cycle.
    let back =
        fixture.carol.post("/delegations", &json!({ "delegate_to": "alice" })).await.expect_status(201);
    let (requests, task) = fixture.submit(risky_task()).await;
    assert_eq!((requests.len(), &requests[0]["reviewer_id"]), (1, &json!("carol")));
    assert_skipped(&task, "the delegation from carol to alice is circular");
    assert_eq!(
        fixture.carol.delete(&format!("/delegations/{}", text_field(&back, "delegation_id"))).await.status,
        204
    );
    // A delegation that does not cascade.
    fixture.change(&fixture.alice, &first, json!({ "cascade": false })).await;
    let (requests, _) = fixture.submit(risky_task()).await;
    assert_eq!((requests.len(), &requests[0]["reviewer_id"]), (1, &json!("bob")));
    assert_eq!(requests[0]["delegation_chain"].as_array().map(Vec::len), Some(1));
    fixture.change(&fixture.alice, &first, json!({ "cascade": true })).await;
    // Expired, not yet valid, inactive.
    for (change, why) in [
        (json!({ "valid_until": "2020-01-01T00:00:00Z" }), "has expired"),
        (json!({ "valid_until": null, "valid_from": "2120-01-01T00:00:00Z" }), "is not valid yet"),
        (json!({ "valid_from": null, "active": false }), "is not active"),
    ] {
        fixture.change(&fixture.bob, &second, change).await;
        let (requests, task) = fixture.submit(risky_task()).await;
        assert_eq!((requests.len(), &requests[0]["reviewer_id"]), (1, &json!("bob")), "{why}");
        assert_skipped(&task, &format!("the delegation from bob to carol {why}"));
    }
    fixture.change(&fixture.bob, &second, json!({ "active": true })).await;
    assert_eq!(fixture.reviewers(risky_task()).await, ["carol"]);
    // An inactive delegate. The simulation gives the same result.
    let _ = fixture.org.api.patch("/users/carol", &json!({ "active": false })).await.expect_status(200);
    let (requests, task) = fixture.submit(risky_task()).await;
    assert_eq!((requests.len(), &requests[0]["reviewer_id"]), (1, &json!("bob")));
    assert_skipped(&task, "carol is not active");
    let body = json!({ "task": ade_testkit::deployment::task(risky_task()) });
    let simulated = fixture.pat.post("/simulations", &body).await.expect_status(200);
    assert_eq!(simulated["reviewers"][0]["reviewer_id"], "bob");
    assert_eq!(simulated["skipped_reviewers"], task["skipped_reviewers"]);
    assert_eq!(simulated["reviewers"][0]["delegation_chain"], requests[0]["delegation_chain"]);
}

#[tokio::test]
async fn only_owner_or_admin_manages_delegations() {
    let fixture = Fixture::new().await;
    let (first, _) = fixture.create_chain().await;
    let path = format!("/delegations/{first}");
    let _ = fixture.carol.get(&path).await.expect_problem(404, "DELEGATION_NOT_FOUND");
    let _ = fixture
        .carol
        .patch(&path, &json!({ "active": false }))
        .await
        .expect_problem(404, "DELEGATION_NOT_FOUND");
    let _ = fixture.bob.get(&path).await.expect_status(200);
    for change in [json!({ "active": false }), json!({ "owner_id": "bob" })] {
        let _ = fixture.bob.patch(&path, &change).await.expect_problem(403, "FORBIDDEN");
    }
    let _ = fixture.alice.patch(&path, &json!({ "owner_id": "bob" })).await.expect_problem(403, "FORBIDDEN");
    assert_eq!(fixture.bob.delete(&path).await.status, 403);
    let _ = fixture
        .bob
        .post("/delegations", &json!({ "owner_id": "alice", "delegate_to": "bob" }))
        .await
        .expect_problem(403, "FORBIDDEN");
    let _ = fixture
        .org
        .api
        .post("/delegations", &json!({ "owner_id": "alice", "delegate_to": "carol" }))
        .await
        .expect_status(201);
    // Agents and tokens without the decide scope cannot delegate.
    let dan = fixture.org.create_user("dan", &[AUTHOR, REVIEWER]).await;
    let bot = fixture.org.create_agent("bot", &dan).await;
    let _ = bot.post("/delegations", &json!({ "delegate_to": "bob" })).await.expect_problem(403, "FORBIDDEN");
    let propose_only = fixture.org.issue_token("dan", &[ade_domain::permission::Scope::Propose]).await;
    let _ = propose_only
        .post("/delegations", &json!({ "delegate_to": "bob" }))
        .await
        .expect_problem(403, "SCOPE_MISSING");
    for invalid in [json!({}), json!({ "delegate_to": "dan" }), json!({ "delegate_to": "nobody" })] {
        let _ = dan.post("/delegations", &invalid).await.expect_problem(422, "INVALID_REQUEST");
    }
}

#[tokio::test]
async fn follower_adds_no_vote_but_satisfies_role() {
    let fixture = Fixture::new().await;
    let org = &fixture.org;
    let _ = org.api.patch("/users/bob", &json!({ "roles": ["dba"] })).await.expect_status(200);
    let _ = fixture
        .bob
        .post("/delegations", &json!({ "delegate_to": "alice", "kind": "follow" }))
        .await
        .expect_status(201);
    let rules = json!({ "name": "both", "task_types": ["both"], "required_roles": ["dba", REVIEWER], "min_approvers": 2 });
    let policy = org.create_policy(rules).await;
    let id = fixture.pat.create_submitted(json!({ "type": "both" })).await;
    let (alice, bob) = (org.approval_id(&id, "alice").await, org.approval_id(&id, "bob").await);
    let _ = fixture.alice.decide(&alice, "approve").await.expect_status(200);
    let followed = org.api.get(&format!("/approvals/{bob}")).await.expect_status(200);
    assert_eq!((&followed["status"], &followed["reviewed_by"]), (&json!("APPROVED"), &json!("alice")));
    assert_eq!(followed["response_reason"], "follows alice");
    let task = org.task_request(&id).await;
    assert_eq!(task["state"], "REVIEWING", "two approvals are required, and one is given");
    let requirement = &task["requirements"][0];
    assert_eq!((&requirement["needed"], &requirement["approved_by"]), (&json!(1), &json!(["alice"])));
    // Bob gives the second approval.
    let decided = fixture.bob.decide(&bob, "approve").await.expect_status(200);
    assert_eq!(decided["task_state"], "APPROVED");
    // With one approval required, the approval that Bob follows also satisfies the role requirement.
    let path = format!("/policies/{}", text_field(&policy, "policy_id"));
    let _ = org.api.patch(&path, &json!({ "min_approvers": 1, "active": true })).await.expect_status(200);
    let id = fixture.pat.create_submitted(json!({ "type": "both" })).await;
    let alice = org.approval_id(&id, "alice").await;
    assert_eq!(fixture.alice.decide(&alice, "approve").await.expect_status(200)["task_state"], "APPROVED");
    // Followers do not follow a rejection, and a changed decision applies to followers as well.
    let id = fixture.pat.create_submitted(json!({ "type": "both" })).await;
    let _ = org.api.patch(&path, &json!({ "min_approvers": 2, "active": true })).await.expect_status(200);
    let second_id = fixture.pat.create_submitted(json!({ "type": "both" })).await;
    let _ = fixture.alice.decide(&org.approval_id(&id, "alice").await, "reject").await.expect_status(200);
    assert_eq!(org.task_request(&id).await["state"], "REJECTED");
    let alice = org.approval_id(&second_id, "alice").await;
    let _ = fixture.alice.decide(&alice, "approve").await.expect_status(200);
    let _ = fixture.alice.decide(&alice, "request-changes").await.expect_status(200);
    let bob = org
        .api
        .get(&format!("/approvals/{}", org.approval_id(&second_id, "bob").await))
        .await
        .expect_status(200);
    assert_eq!((&bob["status"], &bob["reviewed_by"]), (&json!("PENDING"), &Value::Null));
}

#[tokio::test]
async fn delegates_single_request() {
    let fixture = Fixture::new().await;
    let org = &fixture.org;
    let id = fixture.pat.create_submitted(json!({})).await;
    let request = org.approval_id(&id, "alice").await;
    let path = format!("/approvals/{request}/delegate");
    for (to, why) in
        [("alice", "already has a request"), ("nobody", "is not an active user"), ("pat", "is its author")]
    {
        let refused =
            fixture.alice.post(&path, &json!({ "to": to })).await.expect_problem(422, "INVALID_REVIEWER");
        assert!(text_field(&refused, "detail").contains(why), "{refused}");
    }
    let _ = fixture.bob.post(&path, &json!({ "to": "bob" })).await.expect_problem(404, "APPROVAL_NOT_FOUND");
    let delegated = fixture.alice.post(&path, &json!({ "to": "bob" })).await.expect_status(200);
    assert_eq!((&delegated["status"], &delegated["delegated_to"]), (&json!("DELEGATED"), &json!("bob")));
    let _ = fixture.alice.decide(&request, "approve").await.expect_problem(409, "APPROVAL_CLOSED");
    let _ = fixture.alice.post(&path, &json!({ "to": "carol" })).await.expect_problem(409, "APPROVAL_CLOSED");
    let inbox = fixture.bob.get("/approvals?status=PENDING").await.expect_status(200);
    let request = text_field(&inbox["items"][0], "approval_id");
    assert!(
        inbox["items"][0]["why"].to_string().contains("on behalf of alice: alice delegated it"),
        "{inbox}"
    );
    assert_eq!(fixture.bob.decide(&request, "approve").await.expect_status(200)["task_state"], "APPROVED");
}
