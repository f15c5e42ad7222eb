//! Roles are checked when a decision is counted: a reviewer who lost the role does not count, and is not asked any more.

use std::time::Duration;

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_testkit::Deployment;
use ade_testkit::deployment::text_field;
use ade_testkit::wait::until;
use serde_json::{Value, json};

/// Only a hang reaches it, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn lost_role_moves_requests_and_lapses_uncounted_decisions() {
    let deployment = Deployment::embedded(env!("CARGO_BIN_EXE_ade"));
    let org = deployment.admin().await;
    let pat = org.create_user("pat", &[AUTHOR]).await;
    let rex = org.create_user("rex", &[REVIEWER, "dba"]).await;
    let sue = org.create_user("sue", &[REVIEWER]).await;
    let ada = org.create_user("ada", &[ADMIN]).await;
    org.create_policy(json!({ "name": "two", "task_types": ["two"], "min_approvers": 2 })).await;
    org.create_policy(json!({ "name": "dba", "task_types": ["dba"], "required_roles": ["dba"] })).await;
    let by_roles = async |user: &str, roles: &[&str]| {
        org.api.patch(&format!("/users/{user}"), &json!({ "roles": roles })).await.expect_status(200)
    };
    let open = async |task: &str| -> Vec<String> {
        let all = org.approvals(task).await;
        let pending = all.iter().filter(|request| request["status"] == "PENDING");
        pending.map(|request| text_field(request, "reviewer_id")).collect()
    };
    // One task waits for rex, one was decided by rex, one is approved with the decision of rex.
    let waiting = pat.create_submitted(json!({ "type": "two" })).await;
    let answered = pat.create_submitted(json!({ "type": "two" })).await;
    let approved = pat.create_submitted(json!({ "type": "two" })).await;
    for task in [&answered, &approved] {
        let _ = rex.decide(&org.approval_id(task, "rex").await, "approve").await.expect_status(200);
    }
    let _ = sue.decide(&org.approval_id(&approved, "sue").await, "approve").await.expect_status(200);
    let special = pat.create_submitted(json!({ "type": "dba" })).await;
    assert_eq!(open(&special).await, ["rex"]);

    // Losing a role that only one policy asks for.
    by_roles("rex", &[REVIEWER]).await;
    assert_eq!(open(&special).await, ["ada"], "as for a leaver");
    assert_eq!(open(&waiting).await, ["rex", "sue"], "rex is still a reviewer");
    let _ = rex
        .decide(&org.approval_id(&special, "rex").await, "approve")
        .await
        .expect_problem(409, "APPROVAL_CLOSED");

    by_roles("rex", &[AUTHOR]).await;
    assert_eq!(open(&waiting).await, ["sue", "ada"]);
    assert_eq!(open(&answered).await, ["sue", "ada"], "the decision of rex lapses");
    let state = |task: &Value| text_field(task, "state");
    let decided = sue.decide(&org.approval_id(&answered, "sue").await, "approve").await.expect_status(200);
    assert_eq!(decided["task_state"], "REVIEWING", "the approval of rex does not count");
    let decided = ada.decide(&org.approval_id(&answered, "ada").await, "approve").await.expect_status(200);
    assert_eq!(decided["task_state"], "APPROVED");
    let now = org.task_request(&approved).await;
    assert_eq!(state(&now), "APPROVED", "what was counted stays");
    let revoked =
        ada.post(&format!("/tasks/{approved}/revoke"), &json!({ "reason": "by a former reviewer" })).await;
    assert_eq!(state(&revoked.expect_status(200)), "REJECTED", "and can be revoked");
    let observe = || async {
        let entries = org.audit_entries(&format!("task={answered}")).await;
        let found = entries.iter().any(|entry| entry["action"] == "approval.lapse");
        if found { Ok(()) } else { Err(format!("{entries:?}")) }
    };
    until("the lapsed decision is in the audit log", TIMEOUT, observe).await.expect("in time");
    // An administrator who decided for a reviewer and is none any more.
    let zed = org.create_user("zed", &[ADMIN]).await;
    let _ = by_roles("rex", &[REVIEWER]).await;
    let task = pat.create_submitted(json!({ "type": "two" })).await;
    let _ = zed.decide(&org.approval_id(&task, "sue").await, "approve").await.expect_status(200);
    by_roles("zed", &[]).await;
    let decided = rex.decide(&org.approval_id(&task, "rex").await, "approve").await.expect_status(200);
    assert_eq!(decided["task_state"], "REVIEWING", "the decision of zed does not count");
    let sues = org.approval_id(&task, "sue").await;
    assert_eq!(org.api.get(&format!("/approvals/{sues}")).await.expect_status(200)["status"], "PENDING");
    assert_eq!(sue.decide(&sues, "approve").await.expect_status(200)["task_state"], "APPROVED");
}

#[tokio::test]
async fn delegates_are_reviewers() {
    let deployment = Deployment::embedded(env!("CARGO_BIN_EXE_ade"));
    let org = deployment.admin().await;
    let pat = org.create_user("pat", &[AUTHOR]).await;
    let rex = org.create_user("rex", &[REVIEWER]).await;
    let _ = org.create_user("lay", &[AUTHOR, "dba"]).await;
    let ada = org.create_user("ada", &[ADMIN]).await;
    let task = pat.create_submitted(json!({})).await;
    let request = org.approval_id(&task, "rex").await;
    for caller in [&rex, &ada] {
        let refused = caller.post(&format!("/approvals/{request}/delegate"), &json!({ "to": "lay" })).await;
        let refused = refused.expect_problem(422, "INVALID_REVIEWER");
        assert!(text_field(&refused, "detail").contains("neither the role reviewer nor admin"), "{refused}");
    }
    let to_lay = json!({ "delegate_to": "lay" });
    let refused = rex.post("/delegations", &to_lay).await.expect_problem(422, "INVALID_REQUEST");
    assert!(refused.to_string().contains("neither the role reviewer nor admin"), "{refused}");
    // A delegate who loses the role later is skipped.
    let _ = org.api.patch("/users/lay", &json!({ "roles": [REVIEWER, AUTHOR] })).await.expect_status(200);
    let delegation = rex.post("/delegations", &to_lay).await.expect_status(201);
    let task = pat.create_submitted(json!({})).await;
    assert!(org.approvals(&task).await.iter().all(|request| request["reviewer_id"] == "lay"));
    let _ = org.api.patch("/users/lay", &json!({ "roles": [AUTHOR] })).await.expect_status(200);
    let task = pat.create_submitted(json!({})).await;
    let reviewers: Vec<String> =
        org.approvals(&task).await.iter().map(|request| text_field(request, "reviewer_id")).collect();
    assert_eq!(reviewers, ["rex"]);
    let skipped = org.task_request(&task).await["skipped_reviewers"].to_string();
    assert!(skipped.contains("lay has neither the role reviewer nor admin"), "{skipped}");
    // Such a delegation can still be switched off.
    let path = format!("/delegations/{}", text_field(&delegation, "delegation_id"));
    let _ = rex.patch(&path, &json!({ "active": false })).await.expect_status(200);
}
