//! Dual control: a change of who decides, or by which rules, waits for a second administrator.

use std::time::Duration;

use ade_domain::people::{ADMIN, AUDITOR, AUTHOR, REVIEWER};
use ade_domain::permission::Scope;
use ade_testkit::api::{ApiClient, ApiResponse};
use ade_testkit::cli::Cli;
use ade_testkit::deployment::text_field;
use ade_testkit::session::sign_in;
use ade_testkit::wait::until;
use ade_testkit::{AdminClient, Deployment, TestUser};
use serde_json::{Value, json};

const CONFIG: &str = "[security]\nbootstrap_decides = true\ndual_control = true\n";
/// Only a hang reaches it, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
const PASSWORD: &str = "correct horse battery staple";

/// Two administrators, ann and the first one, `admin`: from then on everything waits.
struct Fixture {
    deployment: Deployment,
    org: AdminClient,
    ann: TestUser,
    admin: TestUser,
}

impl Fixture {
    async fn new(deployment: Deployment) -> Self {
        let org = deployment.admin().await;
        let _ = org.create_user("eve", &[AUTHOR]).await;
        let admin = org.issue_token("admin", &Scope::ALL).await;
        Self { ann: org.create_user("ann", &[ADMIN]).await, admin, org, deployment }
    }

    async fn confirm(&self, by: &ApiClient, change: &str) -> ApiResponse {
        by.post(&format!("/changes/{change}/confirm"), &json!({})).await
    }

    /// What waits, as an administrator sees it.
    async fn waiting(&self) -> Vec<Value> {
        let changes = self.ann.get("/changes").await.expect_status(200);
        changes["items"].as_array().expect("a list").clone()
    }

    /// Checks that a response says that the change waits, confirms it as `admin`, and returns its id.
    async fn confirmed(&self, response: &ApiResponse) -> String {
        let change = waits(response);
        let _ = self.confirm(&self.admin, &change).await.expect_status(200);
        change
    }
}

/// The last audit entry with this action, once it is numbered.
async fn last_entry(org: &AdminClient, action: &str) -> Value {
    let look = || async {
        let entries = org.audit_entries(&format!("action={action}")).await;
        entries.last().cloned().ok_or_else(|| "not yet".to_owned())
    };
    until(action, TIMEOUT, look).await.expect("audited")
}

#[track_caller]
fn waits(response: &ApiResponse) -> String {
    let problem = response.expect_problem(202, "AWAITS_CONFIRMATION");
    assert!(problem["expires_at"].is_string(), "{problem}");
    text_field(&problem, "change_id")
}

#[tokio::test]
async fn new_decision_makers_wait_for_a_second_administrator() {
    let fixture = Fixture::new(Deployment::embedded_with_config(env!("CARGO_BIN_EXE_ade"), CONFIG)).await;
    let Fixture { org, ann, admin, .. } = &fixture;
    // A new account does not wait, but it cannot decide from the start.
    let ways = [(&**ann, "/users"), (&**ann, "/users/invitations"), (&org.api, "/users")];
    for (number, (by, path)) in ways.into_iter().enumerate() {
        let role = |role: &str| json!({ "user_id": format!("new-{role}"), "roles": [role] });
        for privileged in [ADMIN, REVIEWER] {
            let refused = by.post(path, &role(privileged)).await.expect_problem(422, "INVALID_REQUEST");
            assert_eq!(refused["errors"][0]["pointer"], "/roles", "{refused}");
        }
        let _ = by
            .post(path, &json!({ "user_id": format!("{AUDITOR}-{number}"), "roles": [AUDITOR] }))
            .await
            .expect_status(201);
    }
    let grant = json!({ "roles": [AUTHOR, REVIEWER] });
    let change = waits(&ann.patch("/users/eve", &grant).await);
    let roles = async || org.api.get("/users/eve").await.expect_status(200)["roles"].clone();
    assert_eq!(roles().await, json!([AUTHOR]));
    let shown = ann.get(&format!("/changes/{change}")).await.expect_status(200);
    assert_eq!((&shown["action"], &shown["object_id"]), (&json!("user.update"), &json!("eve")));
    assert_eq!((&shown["proposed_by"], &shown["details"]["roles"]), (&json!("ann"), &grant["roles"]));
    // Neither who proposed it nor the operator confirms it.
    for by in [&**ann, &org.api] {
        let _ = fixture.confirm(by, &change).await.expect_problem(403, "FORBIDDEN");
    }
    let weak = org.issue_token("admin", &[Scope::Read, Scope::Admin]).await;
    let _ = fixture.confirm(&weak, &change).await.expect_problem(403, "SCOPE_MISSING");
    assert_eq!(roles().await, json!([AUTHOR]));
    let _ = fixture.confirm(admin, &change).await.expect_status(200);
    assert_eq!(roles().await, json!([AUTHOR, REVIEWER]));
    let _ = fixture.confirm(admin, &change).await.expect_problem(404, "CHANGE_NOT_FOUND");
    // The act counts for both, and the audit log names both.
    let user = org.api.get("/users/eve").await.expect_status(200);
    let by: Vec<&Value> = user["acts"].as_array().expect("acts").iter().map(|act| &act["by"]).collect();
    assert_eq!(by, [&json!("admin"), &json!("ann")], "{user}");
    let entry = last_entry(org, "user.update").await;
    assert_eq!(
        (&entry["who"]["user_id"], &entry["details"]["proposed_by"]),
        (&json!("admin"), &json!("ann")),
        "{entry}"
    );
}

#[tokio::test]
async fn administrators_are_demoted_and_reset_by_two_others() {
    let fixture = Fixture::new(Deployment::embedded_with_config(env!("CARGO_BIN_EXE_ade"), CONFIG)).await;
    let Fixture { org, ann, admin, deployment } = &fixture;
    let change = waits(&ann.patch("/users/admin", &json!({ "active": false })).await);
    for decision in ["confirm", "reject"] {
        let refused = admin.post(&format!("/changes/{change}/{decision}"), &json!({})).await;
        let refused = refused.expect_problem(403, "FORBIDDEN");
        assert!(text_field(&refused, "detail").contains("your own account"), "{refused}");
    }
    // A third administrator, who depends on both who made it until the operator lifts that.
    fixture.confirmed(&ann.patch("/users/eve", &json!({ "roles": [ADMIN] })).await).await;
    let eve = org.issue_token("eve", &Scope::ALL).await;
    let _ = fixture.confirm(&eve, &change).await.expect_problem(403, "NOT_INDEPENDENT");
    let _ = org.api.post("/users/eve/confirm", &json!({})).await.expect_status(200);
    // The new password waits as a hash that nobody sees.
    let reset = waits(&ann.patch("/users/eve", &json!({ "password": PASSWORD })).await);
    let shown = ann.get("/changes").await.text();
    assert!(!shown.contains("argon2") && !shown.contains(PASSWORD), "{shown}");
    assert_eq!(sign_in(&org.api, "eve", PASSWORD).await.status, 401, "not before it is confirmed");
    let _ = fixture.confirm(admin, &reset).await.expect_status(200);
    assert_eq!(sign_in(&org.api, "eve", PASSWORD).await.status, 201);
    // It ended the token, and made eve depend on both again.
    let eve = org.issue_token("eve", &Scope::ALL).await;
    let _ = fixture.confirm(&eve, &change).await.expect_problem(403, "NOT_INDEPENDENT");
    let _ = org.api.post("/users/eve/confirm", &json!({})).await.expect_status(200);
    let _ = fixture.confirm(&eve, &change).await.expect_status(200);
    assert_eq!(org.api.get("/users/admin").await.expect_status(200)["active"], false);
    let _ = admin.get("/users").await.expect_problem(401, "UNAUTHENTICATED");
    // With one administrator left, the operator is not bound any more, and is the second party.
    let change = waits(&eve.patch("/users/eve", &json!({ "roles": [AUTHOR] })).await);
    let _ = fixture.confirm(ann, &change).await.expect_status(200);
    let change = waits(&ann.patch("/users/eve", &json!({ "roles": [REVIEWER] })).await);
    let _ = fixture.confirm(&org.api, &change).await.expect_status(200);
    let _ = org.api.patch("/users/eve", &json!({ "roles": [AUTHOR, ADMIN] })).await.expect_status(200);
    assert!(deployment.server().process().log_lines_with("ERROR").is_empty());
}

#[tokio::test]
async fn command_line_shows_and_confirms_changes() {
    let fixture = Fixture::new(Deployment::embedded_with_config(env!("CARGO_BIN_EXE_ade"), CONFIG)).await;
    let Fixture { ann, admin, deployment, .. } = &fixture;
    let [ann, admin] =
        [ann, admin].map(|user| Cli::new(env!("CARGO_BIN_EXE_ade"), deployment.server(), user));
    let output = ann.run(&["user", "set", "eve", "--role", "author,reviewer"]).await;
    assert_eq!(output.exit_code, Some(7), "{}", output.stderr);
    assert!(output.stderr.contains("waits: this waits for a second administrator"), "{}", output.stderr);
    let changes = admin.json(&["change", "ls"]).await;
    let change = text_field(&changes[0], "change_id");
    let shown = admin.run_ok(&["change", "show", &change]).await;
    assert!(shown.contains("ann") && shown.contains("reviewer"), "{shown}");
    assert!(admin.run_ok(&["change", "confirm", &change]).await.contains("user.update eve is made"));
    let output = ann.run(&["config", "set", "approval:default_timeout", "7200"]).await;
    assert_eq!(output.exit_code, Some(7), "{}", output.stderr);
    let change = text_field(&admin.json(&["change", "ls"]).await[0], "change_id");
    assert!(admin.run_ok(&["change", "show", &change]).await.contains("→ 7200"));
    let rejected = admin.run_ok(&["change", "reject", &change, "--reason", "no"]).await;
    assert!(rejected.contains("is rejected"), "{rejected}");
}

#[tokio::test]
async fn nobody_outdates_a_change_of_the_own_account() {
    let fixture = Fixture::new(Deployment::embedded_with_config(env!("CARGO_BIN_EXE_ade"), CONFIG)).await;
    let Fixture { org, ann, admin, .. } = &fixture;
    fixture.confirmed(&ann.patch("/users/eve", &json!({ "roles": [ADMIN] })).await).await;
    let eve = org.issue_token("eve", &Scope::ALL).await;
    let demote = json!({ "roles": [AUTHOR] });
    let change = waits(&ann.patch("/users/eve", &demote).await);
    assert_eq!(waits(&ann.patch("/users/eve", &demote).await), change, "it waits already");
    let shown = ann.get(&format!("/changes/{change}")).await.expect_status(200);
    assert_eq!(shown["details"]["before"], json!({ "roles": [ADMIN] }), "{shown}");
    for own in [json!({ "name": "Eve" }), json!({ "roles": [ADMIN, "cook"] })] {
        let _ = eve.patch("/users/eve", &own).await.expect_status(200);
    }
    let _ = fixture.confirm(admin, &change).await.expect_status(200);
    assert_eq!(org.api.get("/users/eve").await.expect_status(200)["roles"], json!([AUTHOR, "cook"]));
    // What an administrator proposed before leaving stays undone.
    fixture.confirmed(&ann.patch("/users/eve", &json!({ "roles": [ADMIN] })).await).await;
    let _ = org.api.post("/users/eve/confirm", &json!({})).await.expect_status(200);
    let late = waits(&eve.put("/features/batch_approvals", &json!({ "enabled": false })).await);
    fixture.confirmed(&ann.patch("/users/eve", &demote).await).await;
    let refused = fixture.confirm(admin, &late).await.expect_problem(403, "FORBIDDEN");
    assert!(text_field(&refused, "detail").contains("no administrator any more"), "{refused}");
}

#[tokio::test]
async fn roles_of_policies_and_invited_reviewers_need_two() {
    let fixture = Fixture::new(Deployment::embedded_with_config(env!("CARGO_BIN_EXE_ade"), CONFIG)).await;
    let Fixture { org, ann, admin, .. } = &fixture;
    let policy = json!({ "name": "dba", "task_types": ["x"], "required_roles": ["dba"] });
    let grant = json!({ "roles": [AUTHOR, "dba"] });
    let _ = ann.patch("/users/eve", &grant).await.expect_status(200);
    let _ = ann.patch("/users/eve", &json!({ "roles": [AUTHOR] })).await.expect_status(200);
    let policy = text_field(&ann.post("/policies", &policy).await.expect_status(201), "policy_id");
    fixture.confirmed(&ann.post(&format!("/policies/{policy}/activate"), &json!({})).await).await;
    fixture.confirmed(&ann.patch("/users/eve", &grant).await).await;
    // A new code for an invited reviewer is for who invited it.
    let invite = json!({ "user_id": "rita" });
    let _ = ann.post("/users/invitations", &invite).await.expect_status(201);
    fixture.confirmed(&ann.patch("/users/rita", &json!({ "roles": [REVIEWER] })).await).await;
    let _ = admin.post("/users/invitations", &invite).await.expect_problem(403, "FORBIDDEN");
    let _ = ann.post("/users/invitations", &invite).await.expect_status(201);
    // A token that the operator made for an administrator makes no second person.
    let made = org.issue_token("ann", &[Scope::Read, Scope::Admin]).await;
    let change = waits(&made.put("/features/batch_approvals", &json!({ "enabled": false })).await);
    let _ = fixture.confirm(ann, &change).await.expect_problem(403, "FORBIDDEN");
    let _ = fixture.confirm(admin, &change).await.expect_status(200);
    // One administrator's changes do not keep others from proposing.
    for number in 0..50 {
        let entry = json!({ "pattern": format!("database:{number}"), "criticality": 1 });
        waits(&ann.post("/resources", &entry).await);
    }
    let entry = json!({ "pattern": "database:x", "criticality": 1 });
    let _ = ann.post("/resources", &entry).await.expect_problem(429, "TOO_MANY_CHANGES");
    waits(&admin.post("/resources", &entry).await);
}

/// Who confirms a change decides about the account as it was.
#[tokio::test]
async fn a_confirmed_change_does_what_it_shows() {
    let fixture = Fixture::new(Deployment::embedded_with_config(env!("CARGO_BIN_EXE_ade"), CONFIG)).await;
    let Fixture { org, ann, admin, .. } = &fixture;
    // What changes nothing now does not wait: it would be done later, and nobody would see it.
    let grant = json!({ "roles": [AUTHOR, REVIEWER], "active": true });
    let change = waits(&ann.patch("/users/eve", &grant).await);
    let shown = ann.get(&format!("/changes/{change}")).await.expect_status(200);
    assert_eq!(shown["details"]["active"], Value::Null, "{shown}");
    let _ = ann.patch("/users/eve", &json!({ "active": false })).await.expect_status(200);
    let _ = fixture.confirm(admin, &change).await.expect_problem(409, "CHANGE_OUTDATED");
    let user = org.api.get("/users/eve").await.expect_status(200);
    assert_eq!((&user["active"], &user["roles"]), (&json!(false), &json!([AUTHOR])), "{user}");
    let _ = ann.post(&format!("/changes/{change}/reject"), &json!({})).await.expect_status(200);
    // Nor does it count for an account that somebody took over meanwhile.
    let _ = ann.patch("/users/eve", &json!({ "active": true })).await.expect_status(200);
    let change = waits(&ann.patch("/users/eve", &json!({ "roles": [AUTHOR, ADMIN] })).await);
    let _ = ann.patch("/users/eve", &json!({ "password": PASSWORD })).await.expect_status(200);
    let _ = fixture.confirm(admin, &change).await.expect_problem(409, "CHANGE_OUTDATED");
    let _ = ann.post(&format!("/changes/{change}/reject"), &json!({})).await.expect_status(200);
    fixture.confirmed(&ann.patch("/users/eve", &json!({ "roles": [AUTHOR, REVIEWER] })).await).await;
    let entry = last_entry(org, "user.update").await;
    assert_eq!(entry["details"]["roles"], json!([AUTHOR, REVIEWER]), "{entry}");
}

async fn check_rules(deployment: Deployment) {
    let fixture = Fixture::new(deployment).await;
    let Fixture { org, ann, admin, .. } = &fixture;
    // A draft decides about nothing.
    let policy = json!({ "name": "two", "min_approvers": 2, "task_types": ["x"] });
    let policy = text_field(&ann.post("/policies", &policy).await.expect_status(201), "policy_id");
    let path = format!("/policies/{policy}");
    let active = async || org.api.get(&path).await.expect_status(200)["active"] == true;
    let change = waits(&ann.post(&format!("{path}/activate"), &json!({})).await);
    let body = json!({ "reason": "not this week" });
    let _ = admin.post(&format!("/changes/{change}/reject"), &body).await.expect_status(200);
    assert_eq!(last_entry(org, "change.reject").await["reason"], "not this week");
    assert!(!active().await && fixture.waiting().await.is_empty());
    fixture.confirmed(&ann.post(&format!("{path}/activate"), &json!({})).await).await;
    assert!(active().await);
    // A repeated request gets the same change. Two proposals of one revision: the second is outdated.
    let entry = json!({ "pattern": "database:prod-*", "criticality": 90 });
    let keyed = async || {
        let headers = [("Idempotency-Key", "one")];
        ann.request_with_headers("POST", "/resources", &headers, &entry.to_string()).await
    };
    let change = waits(&keyed().await);
    assert_eq!(waits(&keyed().await), change);
    let _ = fixture.confirm(admin, &change).await.expect_status(200);
    let resource = "/resources/database:prod-*";
    let lower = waits(&ann.patch(resource, &json!({ "criticality": 10 })).await);
    let raise = waits(&org.api.patch(resource, &json!({ "criticality": 95 })).await);
    let _ = fixture.confirm(ann, &raise).await.expect_status(200);
    let _ = fixture.confirm(admin, &lower).await.expect_problem(409, "CHANGE_OUTDATED");
    assert_eq!(org.api.get(resource).await.expect_status(200)["criticality"], 95);
    let _ = ann.post(&format!("/changes/{lower}/reject"), &json!({})).await.expect_status(200);
    // The settings of locks decide about no approval.
    let _ = ann.put("/config/lock:default_ttl", &json!({ "value": 20 })).await.expect_status(200);
    // Settings and feature flags; a deleted policy stays until then.
    fixture.confirmed(&ann.put("/config/approval:default_timeout", &json!({ "value": 7200 })).await).await;
    let setting = org.api.get("/config/approval:default_timeout").await.expect_status(200);
    assert_eq!(setting["value"], 7200);
    fixture.confirmed(&ann.put("/features/auto_approve_low_risk", &json!({ "enabled": true })).await).await;
    assert_eq!(org.api.get("/features/auto_approve_low_risk").await.expect_status(200)["enabled"], true);
    let change = waits(&ann.delete(&path).await);
    assert!(active().await);
    let _ = fixture.confirm(admin, &change).await.expect_status(200);
    let _ = org.api.get(&path).await.expect_problem(404, "POLICY_NOT_FOUND");
    // Capabilities for tasks of others.
    let agent = json!({ "agent_id": "bot", "capabilities": ["deploy"] });
    let _ = ann.post("/agents", &agent).await.expect_problem(422, "INVALID_REQUEST");
    let _ = ann.post("/agents", &json!({ "agent_id": "bot" })).await.expect_status(201);
    fixture.confirmed(&ann.patch("/agents/bot", &json!({ "capabilities": ["deploy"] })).await).await;
    let bot = org.api.get("/agents/bot").await.expect_status(200);
    assert_eq!(bot["capabilities"], json!(["deploy"]), "{bot}");
    // Taking a right away needs nobody else.
    let _ = ann.patch("/agents/bot", &json!({ "capabilities": [] })).await.expect_status(200);
    assert!(fixture.waiting().await.is_empty());
    assert_eq!(org.api.verify_audit().await["valid"], true);
}

#[tokio::test]
async fn rules_wait_for_a_second_administrator_embedded() {
    check_rules(Deployment::embedded_with_config(env!("CARGO_BIN_EXE_ade"), CONFIG)).await;
}

#[tokio::test]
async fn rules_wait_for_a_second_administrator_distributed() {
    check_rules(Deployment::distributed_with_config(env!("CARGO_BIN_EXE_ade"), 1, CONFIG)).await;
}
