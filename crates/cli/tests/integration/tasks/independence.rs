//! Nobody is two parties of one decision: an administrator who creates or resets accounts cannot approve through them, nor
//! override with them.

use std::time::Duration;

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_domain::permission::Scope;
use ade_testkit::deployment::text_field;
use ade_testkit::session::{SessionClient, accept_invitation};
use ade_testkit::wait::until;
use ade_testkit::{AdminClient, Deployment, TestUser};
use serde_json::{Value, json};

const ALL_ROLES: [&str; 3] = [AUTHOR, REVIEWER, ADMIN];
/// Only a hang reaches it, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
const PASSWORD: &str = "correct horse battery staple";

/// The operator creates ann, boss, pam and rex; everybody else is created in the tests.
struct Fixture {
    _deployment: Deployment,
    org: AdminClient,
    ann: TestUser,
    boss: TestUser,
    pam: TestUser,
    rex: TestUser,
}

impl Fixture {
    async fn new() -> Self {
        let deployment = Deployment::embedded(env!("CARGO_BIN_EXE_ade"));
        let org = deployment.admin().await;
        Self {
            ann: org.create_user("ann", &[AUTHOR]).await,
            boss: org.create_user("boss", &ALL_ROLES).await,
            pam: org.create_user("pam", &[ADMIN]).await,
            rex: org.create_user("rex", &[REVIEWER]).await,
            _deployment: deployment,
            org,
        }
    }

    /// A user whom `by` creates, with a token that decides.
    async fn created(&self, by: &TestUser, id: &str, roles: &[&str]) -> TestUser {
        let _ = by.post("/users", &json!({ "user_id": id, "roles": roles })).await.expect_status(201);
        self.org.issue_token(id, &Scope::ALL).await
    }

    /// A policy for a task type of its name, which asks these reviewers.
    async fn policy(&self, name: &str, min_approvers: u32, reviewers: &[&str]) {
        let policy = json!({ "name": name, "task_types": [name], "min_approvers": min_approvers, "reviewers": reviewers });
        self.org.create_policy(policy).await;
    }

    async fn refuse_submission(&self, author: &TestUser, task_type: &str, why: &str) {
        let draft = author.create_draft(json!({ "type": task_type })).await;
        let refused = author.post(&format!("/tasks/{draft}/submit"), &json!({})).await;
        let refused = refused.expect_problem(422, "NO_QUORUM");
        assert!(text_field(&refused, "detail").contains(why), "{why} is missing in {refused}");
        assert!(text_field(&refused, "detail").contains("ade user confirm"), "{refused}");
    }

    async fn override_task(&self, by: &TestUser, task: &str) {
        let body = json!({ "reason": "fire", "incident_ticket": "INC-1" });
        let _ = by.post(&format!("/tasks/{task}/override"), &body).await.expect_status(200);
    }
}

#[track_caller]
fn assert_dependent(problem: &Value, with: &str, is_for_ever: bool) {
    assert_eq!(problem["with"], with, "{problem}");
    assert_eq!(problem["until"].is_null(), is_for_ever, "{problem}");
    assert!(problem["acts"].as_array().is_some_and(|acts| !acts.is_empty()), "{problem}");
}

#[tokio::test]
async fn one_administrator_is_no_quorum_through_others() {
    let fixture = Fixture::new().await;
    let Fixture { org, ann, boss, pam, rex, .. } = &fixture;
    let one = fixture.created(boss, "one", &[REVIEWER]).await;
    let two = fixture.created(boss, "two", &[REVIEWER]).await;
    fixture.policy("pair", 2, &["one", "two"]).await;
    fixture
        .refuse_submission(ann, "pair", "one is not independent of two: boss created the account of one")
        .await;
    // With an independent reviewer there is a quorum, but not of the two.
    fixture.policy("three", 2, &["one", "two", "rex"]).await;
    let task = ann.create_submitted(json!({ "type": "three" })).await;
    let request = async |user: &str| org.approval_id(&task, user).await;
    let _ = one.decide(&request("one").await, "approve").await.expect_status(200);
    let refused = two.decide(&request("two").await, "approve").await.expect_problem(403, "NOT_INDEPENDENT");
    assert_dependent(&refused, "one", false);
    // Nor may the creator vote, for itself or in place of others.
    for request in [request("two").await, request("rex").await] {
        let refused = boss.decide(&request, "approve").await.expect_problem(403, "NOT_INDEPENDENT");
        assert_dependent(&refused, "one", false);
        let batch = json!({ "approval_ids": [request], "action": "approve" });
        let refused = boss.post("/approvals/batch", &batch).await.expect_problem(409, "BATCH_REFUSED");
        assert_eq!(refused["items"][0]["code"], "NOT_INDEPENDENT");
    }
    assert_eq!(org.task_request(&task).await["state"], "REVIEWING");
    assert_eq!(
        rex.decide(&request("rex").await, "approve").await.expect_status(200)["task_state"],
        "APPROVED"
    );
    // The author's own creation is not asked, also through another account in between.
    let deputy = fixture.created(boss, "deputy", &ALL_ROLES).await;
    let _ = fixture.created(&deputy, "third", &[REVIEWER]).await;
    fixture.policy("own", 1, &["one"]).await;
    fixture
        .refuse_submission(boss, "own", "one is not independent of boss: boss created the account of one")
        .await;
    fixture.policy("far", 1, &["third"]).await;
    fixture
        .refuse_submission(
            boss,
            "far",
            "third is not independent of boss: boss created the account of deputy",
        )
        .await;
    // A request cannot be delegated to somebody dependent either.
    fixture.policy("rex", 1, &["rex"]).await;
    let task = boss.create_submitted(json!({ "type": "rex" })).await;
    let request = org.approval_id(&task, "rex").await;
    let refused = rex.post(&format!("/approvals/{request}/delegate"), &json!({ "to": "one" })).await;
    assert_dependent(&refused.expect_problem(403, "NOT_INDEPENDENT"), "boss", false);
    // Only an independent administrator, or the operator, confirms that somebody else uses an account.
    for (caller, code) in [(boss, "NOT_INDEPENDENT"), (&deputy, "NOT_INDEPENDENT"), (rex, "FORBIDDEN")] {
        let _ = caller.post("/users/one/confirm", &json!({})).await.expect_problem(403, code);
    }
    let _ = deputy.post("/users/deputy/confirm", &json!({})).await.expect_problem(403, "FORBIDDEN");
    let confirmed = pam.post("/users/one/confirm", &json!({})).await.expect_status(200);
    assert_eq!(confirmed["acts"][0]["lifted_by"], "pam", "{confirmed}");
    let _ = org.api.post("/users/two/confirm", &json!({})).await.expect_status(200);
    let task = ann.create_submitted(json!({ "type": "pair" })).await;
    let _ = one.decide(&org.approval_id(&task, "one").await, "approve").await.expect_status(200);
    let decided = two.decide(&org.approval_id(&task, "two").await, "approve").await.expect_status(200);
    assert_eq!(decided["task_state"], "APPROVED");
    // A new act counts again.
    let _ = boss.patch("/users/one", &json!({ "password": PASSWORD })).await.expect_status(200);
    fixture.refuse_submission(boss, "own", "boss reset the password of one").await;
    // All administrators are notified of each act.
    for (action, object) in [("user.create", "one"), ("user.update", "one"), ("user.confirm", "two")] {
        // Entries are numbered with a short delay.
        let observe = || async {
            let entries = org.audit_entries(&format!("action={action}")).await;
            let found = entries.iter().rfind(|entry| entry["object_id"] == object).cloned();
            found.ok_or_else(|| format!("{entries:?}"))
        };
        let entry = until("the act is in the audit log", TIMEOUT, observe).await.expect("in time");
        let notified = entry["details"]["notified"].as_array().expect("administrators");
        for admin in ["admin", "boss", "pam"] {
            assert!(notified.contains(&json!(admin)), "{entry}");
        }
    }
}

#[tokio::test]
async fn password_of_another_stays_known_whatever_happens_to_it() {
    let fixture = Fixture::new().await;
    let Fixture { org, boss, pam, .. } = &fixture;
    fixture.policy("rex", 1, &["rex"]).await;
    let task = boss.create_submitted(json!({ "type": "rex" })).await;
    // Boss resets the password of the reviewer, changes it as the reviewer, and another administrator resets it again.
    let _ = boss.patch("/users/rex", &json!({ "password": PASSWORD })).await.expect_status(200);
    let rex = SessionClient::sign_in(&org.api, "rex", PASSWORD).await;
    let own = json!({ "password": "own password of rex", "current_password": PASSWORD });
    let _ = rex.patch("/users/me", &own).await.expect_status(200);
    let path = format!("/approvals/{}/approve", org.approval_id(&task, "rex").await);
    let refused = rex.post(&path, &json!({})).await.expect_problem(403, "NOT_INDEPENDENT");
    assert_dependent(&refused, "boss", false);
    let _ = pam.patch("/users/rex", &json!({ "password": PASSWORD })).await.expect_status(200);
    let rex = SessionClient::sign_in(&org.api, "rex", PASSWORD).await;
    let _ = rex.patch("/users/me", &own).await.expect_status(200);
    let refused = rex.post(&path, &json!({})).await.expect_problem(403, "NOT_INDEPENDENT");
    assert_dependent(&refused, "boss", false);
    assert_eq!(org.task_request(&task).await["state"], "REVIEWING");
    // A role that was granted counts as well.
    let _ = fixture.created(pam, "new", &[AUTHOR]).await;
    let _ = org.api.post("/users/new/confirm", &json!({})).await.expect_status(200);
    let _ = boss.patch("/users/new", &json!({ "roles": [REVIEWER] })).await.expect_status(200);
    fixture.policy("new", 1, &["new"]).await;
    fixture.refuse_submission(boss, "new", "boss granted new the role reviewer").await;
}

#[tokio::test]
async fn override_needs_two_administrators_who_never_depended_on_each_other() {
    let fixture = Fixture::new().await;
    let Fixture { org, ann, boss, pam, .. } = &fixture;
    let one = fixture.created(boss, "one", &[ADMIN]).await;
    let two = fixture.created(boss, "two", &[ADMIN]).await;
    let task = ann.create_submitted(json!({})).await;
    let confirm = format!("/tasks/{task}/override/confirm");
    for (first, second) in [(&one, &two), (boss, &one), (&two, boss)] {
        fixture.override_task(first, &task).await;
        let refused = second.post(&confirm, &json!({})).await.expect_problem(403, "NOT_INDEPENDENT");
        assert_dependent(&refused, &first.id, true);
    }
    assert_eq!(org.task_request(&task).await["state"], "REVIEWING");
    // Nor may the author's creator override.
    let _ = fixture.created(boss, "author", &[AUTHOR]).await;
    let author = org.issue_token("author", &Scope::ALL).await;
    let of_author = author.create_submitted(json!({})).await;
    let body = json!({ "reason": "fire", "incident_ticket": "INC-1" });
    let refused = boss.post(&format!("/tasks/{of_author}/override"), &body).await;
    assert_dependent(&refused.expect_problem(403, "NOT_INDEPENDENT"), "author", true);
    // An override by somebody who lost the role is not confirmed.
    fixture.override_task(&two, &task).await;
    let _ = org.api.patch("/users/two", &json!({ "roles": [AUTHOR] })).await.expect_status(200);
    let _ = pam.post(&confirm, &json!({})).await.expect_problem(409, "NO_OVERRIDE");
    fixture.override_task(&one, &task).await;
    assert_eq!(pam.post(&confirm, &json!({})).await.expect_status(200)["state"], "APPROVED");
}

#[tokio::test]
async fn invitations_of_the_only_administrator_do_not_count() {
    // The operator creates nobody else here, so admin is the only administrator there has ever been.
    let deployment = Deployment::embedded(env!("CARGO_BIN_EXE_ade"));
    let org = deployment.admin().await;
    let admin = org.issue_token("admin", &Scope::ALL).await;
    let invite = async |by: &TestUser, id: &str, role: &str| {
        let body = json!({ "user_id": id, "roles": [role] });
        let code = text_field(&by.post("/users/invitations", &body).await.expect_status(201), "code");
        let joined = accept_invitation(&org.api, &code, PASSWORD).await.expect_status(200);
        assert_eq!(joined["active"], true);
        joined
    };
    let ann = invite(&admin, "ann", AUTHOR).await;
    assert_eq!((&ann["acts"][0]["kind"], &ann["acts"][0]["exempt"]), (&json!("invited"), &json!(true)));
    invite(&admin, "rob", REVIEWER).await;
    let ann = SessionClient::sign_in(&org.api, "ann", PASSWORD).await;
    let rob = SessionClient::sign_in(&org.api, "rob", PASSWORD).await;
    let propose = async || {
        let task = ann.post("/tasks", &ade_testkit::deployment::task(json!({}))).await.expect_status(201);
        let task = text_field(&task, "task_id");
        let _ = ann.post(&format!("/tasks/{task}/submit"), &json!({})).await.expect_status(202);
        task
    };
    let task = propose().await;
    let path = format!("/approvals/{}/approve", org.approval_id(&task, "rob").await);
    assert_eq!(rob.post(&path, &json!({})).await.expect_status(200)["task_state"], "APPROVED");
    // The second administrator is also invited by the only one; from then on invitations count.
    invite(&admin, "eve", ADMIN).await;
    let eve = SessionClient::sign_in(&org.api, "eve", PASSWORD).await;
    let task = propose().await;
    let body = json!({ "reason": "fire", "incident_ticket": "INC-1" });
    let _ = admin.post(&format!("/tasks/{task}/override"), &body).await.expect_status(200);
    let confirmed = eve.post(&format!("/tasks/{task}/override/confirm"), &json!({})).await;
    assert_eq!(confirmed.expect_status(200)["state"], "APPROVED");
    let late = invite(&admin, "late", REVIEWER).await;
    assert_eq!(late["acts"][0]["exempt"], false);
    // Resets by the only administrator would have counted.
    let reset = admin.patch("/users/rob", &json!({ "password": PASSWORD })).await.expect_status(200);
    assert_eq!(reset["acts"][1]["kind"], "reset", "{reset}");
    assert_eq!(reset["acts"][1]["exempt"], false);
}
