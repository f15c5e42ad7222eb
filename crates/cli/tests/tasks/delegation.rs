//! Who stands in for whom, through HTTP: chains, circles, who left, what has ended, who follows, and one request by hand. The
//! answer says who was passed by and why.

use ade_domain::people::{AUTHOR, REVIEWER};
use ade_testkit::people::text;
use ade_testkit::{House, Office, Person};
use serde_json::{Value, json};

struct Stage {
    _house: House,
    office: Office,
    pat: Person,
    alice: Person,
    bob: Person,
    carol: Person,
}

impl Stage {
    async fn new() -> Self {
        let house = House::embedded(env!("CARGO_BIN_EXE_ade"));
        let office = house.office().await;
        // So that a task has a risk of more than 50 if it touches one of these.
        let risky = json!({ "pattern": "server:*", "criticality": 100, "dependents": ["a:1", "a:2", "a:3", "a:4", "a:5"] });
        let _ = office.admin.post("/resources", &risky).await.expect(201);
        let pat = office.person("pat", &[AUTHOR]).await;
        let alice = office.made(json!({ "user_id": "alice", "name": "Alice", "roles": [REVIEWER] })).await;
        let bob = office.person("bob", &[]).await;
        let carol = office.person("carol", &[]).await;
        Self { _house: house, office, pat, alice, bob, carol }
    }

    /// As in the document: Alice hands what is risky about infrastructure to Bob, and Bob what is about production to Carol.
    async fn as_drawn(&self) -> (String, String) {
        let conditions = json!({ "task_types": ["infrastructure"], "risk_above": 50 });
        let first = json!({ "delegate_to": "bob", "conditions": conditions });
        let first = self.alice.post("/delegations", &first).await.expect(201);
        let second = json!({ "delegate_to": "carol", "conditions": { "resource_patterns": ["prod-*"] } });
        let second = self.bob.post("/delegations", &second).await.expect(201);
        (text(&first, "delegation_id"), text(&second, "delegation_id"))
    }

    /// Who is asked about a task, and why nobody else.
    async fn asked(&self, more: Value) -> (Vec<Value>, Value) {
        let id = self.pat.submitted(more).await;
        (self.office.requests(&id).await, self.office.task(&id).await)
    }

    async fn who(&self, more: Value) -> Vec<String> {
        self.asked(more).await.0.iter().map(|one| text(one, "reviewer_id")).collect()
    }

    async fn change(&self, by: &Person, id: &str, change: Value) {
        let _ = by.patch(&format!("/delegations/{id}"), &change).await.expect(200);
    }
}

/// About infrastructure in production, with a high risk.
fn risky() -> Value {
    let resources = json!([{ "type": "server", "id": "prod-1", "mode": "exclusive" }]);
    json!({ "type": "infrastructure", "executor": "agent", "resources": resources })
}

#[tokio::test]
async fn the_chain_as_drawn_leads_to_carol_alone() {
    let stage = Stage::new().await;
    let (first, second) = stage.as_drawn().await;
    let (asked, task) = stage.asked(risky()).await;
    assert!(task["risk"]["score"].as_u64().is_some_and(|score| score > 50), "{}", task["risk"]);
    let [request] = asked.as_slice() else { panic!("one is asked: {asked:?}") };
    assert_eq!(request["reviewer_id"], "carol");
    let chain = json!([
        { "from": "alice", "to": "bob", "delegation_id": first },
        { "from": "bob", "to": "carol", "delegation_id": second },
    ]);
    assert_eq!(request["delegation_chain"], chain);
    assert!(request["why"].to_string().contains("delegated to carol"), "{request}");
    // Her answer counts as Alice's.
    let id = text(request, "approval_id");
    for who in [&stage.alice, &stage.bob] {
        let _ = who.answers(&id, "approve").await.problem(404, "APPROVAL_NOT_FOUND");
    }
    let answered = stage.carol.answers(&id, "approve").await.expect(200);
    assert_eq!((&answered["task_state"], &answered["reviewed_by"]), (&json!("APPROVED"), &json!("carol")));
    // What is less risky, of another type, or elsewhere goes another way.
    let mut elsewhere = risky();
    elsewhere["resources"][0]["id"] = json!("test-1");
    assert_eq!(stage.who(elsewhere).await, ["bob"]);
    let mut other = risky();
    other["type"] = json!("note");
    assert_eq!(stage.who(other).await, ["alice"]);
    let mut harmless = risky();
    harmless["executor"] = json!("noop");
    harmless["resources"] = json!([]);
    assert_eq!(stage.who(harmless).await, ["alice"]);
}

#[tokio::test]
async fn where_a_chain_cannot_go_on_the_last_one_on_it_is_asked() {
    let stage = Stage::new().await;
    let (first, second) = stage.as_drawn().await;
    let told = |task: &Value, part: &str| {
        let passed_by = task["passed_by"].to_string();
        assert!(passed_by.contains(part), "{part} in {passed_by}");
    };
    // In a circle.
    let back = stage.carol.post("/delegations", &json!({ "delegate_to": "alice" })).await.expect(201);
    let (asked, task) = stage.asked(risky()).await;
    assert_eq!((asked.len(), &asked[0]["reviewer_id"]), (1, &json!("carol")));
    told(&task, "the delegation from carol to alice is circular");
    assert_eq!(
        stage.carol.delete(&format!("/delegations/{}", text(&back, "delegation_id"))).await.status,
        204
    );
    // Not further than the first one wants.
    stage.change(&stage.alice, &first, json!({ "cascade": false })).await;
    let (asked, _) = stage.asked(risky()).await;
    assert_eq!((asked.len(), &asked[0]["reviewer_id"]), (1, &json!("bob")));
    assert_eq!(asked[0]["delegation_chain"].as_array().map(Vec::len), Some(1));
    stage.change(&stage.alice, &first, json!({ "cascade": true })).await;
    // Not before it begins, not after it ended, not when it is switched off.
    for (change, why) in [
        (json!({ "valid_until": "2020-01-01T00:00:00Z" }), "has expired"),
        (json!({ "valid_until": null, "valid_from": "2120-01-01T00:00:00Z" }), "is not valid yet"),
        (json!({ "valid_from": null, "active": false }), "is not active"),
    ] {
        stage.change(&stage.bob, &second, change).await;
        let (asked, task) = stage.asked(risky()).await;
        assert_eq!((asked.len(), &asked[0]["reviewer_id"]), (1, &json!("bob")), "{why}");
        told(&task, &format!("the delegation from bob to carol {why}"));
    }
    stage.change(&stage.bob, &second, json!({ "active": true })).await;
    assert_eq!(stage.who(risky()).await, ["carol"]);
    // Not to somebody who left; the simulation says the same.
    let _ = stage.office.admin.patch("/users/carol", &json!({ "active": false })).await.expect(200);
    let (asked, task) = stage.asked(risky()).await;
    assert_eq!((asked.len(), &asked[0]["reviewer_id"]), (1, &json!("bob")));
    told(&task, "carol is not active");
    let body = json!({ "task": ade_testkit::people::task(risky()) });
    let simulated = stage.pat.post("/simulations", &body).await.expect(200);
    assert_eq!(simulated["reviewers"][0]["reviewer_id"], "bob");
    assert_eq!(simulated["passed_by"], task["passed_by"]);
    assert_eq!(simulated["reviewers"][0]["delegation_chain"], asked[0]["delegation_chain"]);
}

#[tokio::test]
async fn delegations_are_made_by_their_owners_or_by_administrators() {
    let stage = Stage::new().await;
    let (first, _) = stage.as_drawn().await;
    let place = format!("/delegations/{first}");
    let _ = stage.carol.get(&place).await.problem(404, "DELEGATION_NOT_FOUND");
    let _ = stage.carol.patch(&place, &json!({ "active": false })).await.problem(404, "DELEGATION_NOT_FOUND");
    let _ = stage.bob.get(&place).await.expect(200);
    for change in [json!({ "active": false }), json!({ "owner_id": "bob" })] {
        let _ = stage.bob.patch(&place, &change).await.problem(403, "FORBIDDEN");
    }
    let _ = stage.alice.patch(&place, &json!({ "owner_id": "bob" })).await.problem(403, "FORBIDDEN");
    assert_eq!(stage.bob.delete(&place).await.status, 403);
    let _ = stage
        .bob
        .post("/delegations", &json!({ "owner_id": "alice", "delegate_to": "bob" }))
        .await
        .problem(403, "FORBIDDEN");
    let _ = stage
        .office
        .admin
        .post("/delegations", &json!({ "owner_id": "alice", "delegate_to": "carol" }))
        .await
        .expect(201);
    // An agent hands nothing on, and neither does a token that may not decide.
    let dan = stage.office.person("dan", &[AUTHOR, REVIEWER]).await;
    let bot = stage.office.agent("bot", &dan).await;
    let _ = bot.post("/delegations", &json!({ "delegate_to": "bob" })).await.problem(403, "FORBIDDEN");
    let weak = stage.office.with_scopes("dan", &[ade_domain::permission::Scope::Propose]).await;
    let _ = weak.post("/delegations", &json!({ "delegate_to": "bob" })).await.problem(403, "SCOPE_MISSING");
    for wrong in [json!({}), json!({ "delegate_to": "dan" }), json!({ "delegate_to": "nobody" })] {
        let _ = dan.post("/delegations", &wrong).await.problem(422, "INVALID_REQUEST");
    }
}

#[tokio::test]
async fn who_follows_adds_no_vote_and_stands_for_its_role() {
    let stage = Stage::new().await;
    let office = &stage.office;
    let _ = office.admin.patch("/users/bob", &json!({ "roles": ["dba"] })).await.expect(200);
    let _ = stage
        .bob
        .post("/delegations", &json!({ "delegate_to": "alice", "kind": "follow" }))
        .await
        .expect(201);
    let rules = json!({ "name": "both", "task_types": ["both"], "required_roles": ["dba", REVIEWER], "min_approvers": 2 });
    let policy = office.policy(rules).await;
    let id = stage.pat.submitted(json!({ "type": "both" })).await;
    let (alice, bob) = (office.request(&id, "alice").await, office.request(&id, "bob").await);
    let _ = stage.alice.answers(&alice, "approve").await.expect(200);
    let followed = office.admin.get(&format!("/approvals/{bob}")).await.expect(200);
    assert_eq!((&followed["status"], &followed["reviewed_by"]), (&json!("APPROVED"), &json!("alice")));
    assert_eq!(followed["response_reason"], "follows alice");
    let task = office.task(&id).await;
    assert_eq!(task["state"], "REVIEWING", "two people must agree, and one did");
    let requirement = &task["requirements"][0];
    assert_eq!((&requirement["needed"], &requirement["approved_by"]), (&json!(1), &json!(["alice"])));
    // Bob himself is the second one.
    let answered = stage.bob.answers(&bob, "approve").await.expect(200);
    assert_eq!(answered["task_state"], "APPROVED");
    // One is enough: the role of who follows is there.
    let place = format!("/policies/{}", text(&policy, "policy_id"));
    let _ = office.admin.patch(&place, &json!({ "min_approvers": 1, "active": true })).await.expect(200);
    let id = stage.pat.submitted(json!({ "type": "both" })).await;
    let alice = office.request(&id, "alice").await;
    assert_eq!(stage.alice.answers(&alice, "approve").await.expect(200)["task_state"], "APPROVED");
    // Nobody agrees by following who says no, and who changes its mind takes its followers along.
    let id = stage.pat.submitted(json!({ "type": "both" })).await;
    let _ = office.admin.patch(&place, &json!({ "min_approvers": 2, "active": true })).await.expect(200);
    let id2 = stage.pat.submitted(json!({ "type": "both" })).await;
    let _ = stage.alice.answers(&office.request(&id, "alice").await, "reject").await.expect(200);
    assert_eq!(office.task(&id).await["state"], "REJECTED");
    let alice = office.request(&id2, "alice").await;
    let _ = stage.alice.answers(&alice, "approve").await.expect(200);
    let _ = stage.alice.answers(&alice, "request-changes").await.expect(200);
    let bob =
        office.admin.get(&format!("/approvals/{}", office.request(&id2, "bob").await)).await.expect(200);
    assert_eq!((&bob["status"], &bob["reviewed_by"]), (&json!("PENDING"), &Value::Null));
}

#[tokio::test]
async fn one_request_is_handed_on_by_hand() {
    let stage = Stage::new().await;
    let office = &stage.office;
    let id = stage.pat.submitted(json!({})).await;
    let request = office.request(&id, "alice").await;
    let place = format!("/approvals/{request}/delegate");
    for (to, why) in
        [("alice", "already has a request"), ("nobody", "is not an active user"), ("pat", "is its author")]
    {
        let refused = stage.alice.post(&place, &json!({ "to": to })).await.problem(422, "CANNOT_BE_ASKED");
        assert!(text(&refused, "detail").contains(why), "{refused}");
    }
    let _ = stage.bob.post(&place, &json!({ "to": "bob" })).await.problem(404, "APPROVAL_NOT_FOUND");
    let handed = stage.alice.post(&place, &json!({ "to": "bob" })).await.expect(200);
    assert_eq!((&handed["status"], &handed["delegated_to"]), (&json!("DELEGATED"), &json!("bob")));
    let _ = stage.alice.answers(&request, "approve").await.problem(409, "NOT_ANSWERABLE");
    let _ = stage.alice.post(&place, &json!({ "to": "carol" })).await.problem(409, "NOT_ANSWERABLE");
    let own = stage.bob.get("/approvals?status=PENDING").await.expect(200);
    let request = text(&own["items"][0], "approval_id");
    assert!(own["items"][0]["why"].to_string().contains("on behalf of alice: alice delegated it"), "{own}");
    assert_eq!(stage.bob.answers(&request, "approve").await.expect(200)["task_state"], "APPROVED");
}
