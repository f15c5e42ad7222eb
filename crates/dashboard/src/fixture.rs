//! A task and its approval requests for tests, as the API answers them.

use ade_client::wire::{Approval, ApprovalStatus, Task};
use serde_json::json;

use crate::review::Review;
use crate::{Changes, RefusedDecision, Viewer};

/// A task of Ann's in review that changes one file.
pub(crate) fn task() -> Task {
    let task = json!({
        "task_id": "01a1f20a-812e-7130-be8f-e3ef28b740e4", "state": "REVIEWING", "revision": 8, "digest": "0c24", "scope_digest": "d01b",
        "config": {
            "type": "config", "version": "1", "description": "Give the app two more workers", "executor": "files", "parameters": {},
            "resources": [{ "type": "service", "id": "app", "mode": "exclusive" }], "rollback_strategy": "automatic",
            "timeout_seconds": 300, "priority": 50,
        },
        "scope": [{
            "binding": "files:playground", "targets": ["files:playground/app.conf"], "resources": [], "criticality": null,
            "lock": "exclusive",
        }],
        "metadata": {
            "author_id": "ann", "author_name": "Ann Author", "team": null, "ticket_ref": null, "tags": [], "by_agent": [],
            "lineage": { "agent_id": null, "parent_agent_id": null, "sponsor_id": null },
            "updated_at": "2026-11-19T04:22:17Z", "since": {},
        },
        "risk": null,
        "preview": {
            "status": "ready", "changes": [{ "kind": "update", "what": "app.conf", "diff": "-workers 2\n+workers 4\n" }],
            "warnings": [], "errors": [], "fingerprint": "15d1",
        },
        "lock_preview": [], "required_count": 1, "policies": [], "skipped_reviewers": [],
        "requirements": [{ "policy": "default", "status": "UNSATISFIED", "needed": 1, "approved_by": [], "why": "0 of 1 approved" }],
        "auto_approved": null, "not_automatic": [], "override_request": null, "forced": false,
        "allowed": ["approve", "reject", "comment"], "approve_needs": [], "execution": null, "predecessor": null,
    });
    serde_json::from_value(task).expect("a task")
}

pub(crate) fn approval(reviewer: &str, status: ApprovalStatus) -> Approval {
    let approval = json!({
        "approval_id": format!("request of {reviewer}"), "task_id": "01a1f20a-812e-7130-be8f-e3ef28b740e4",
        "task_description": "Give the app two more workers", "reviewer_id": reviewer, "reviewer_name": format!("Name of {reviewer}"),
        "status": status, "priority": "NORMAL", "score": 420, "delegated_to": null, "delegation_chain": [], "follows": null,
        "created_at": "2026-11-19T04:22:17Z", "due_at": "2026-11-21T04:22:17Z", "escalation_level": 0, "responded_at": null,
        "response_action": null, "response_reason": null, "reviewed_by": null, "digest": "0c24", "scope_digest": "d01b",
        "policies": ["default"], "why": [format!("policy default requires role reviewer, which {reviewer} has")], "revision": 1,
    });
    serde_json::from_value(approval).expect("an approval request")
}

/// The task as this user sees it, who is asked if there is a request.
pub(crate) fn review(viewer: &str, approvals: Vec<Approval>) -> Review {
    Review {
        task: task(),
        request: approvals.iter().find(|approval| approval.reviewer_id == viewer).cloned(),
        approvals,
        viewer: Viewer {
            user_id: viewer.to_owned(),
            name: viewer.to_owned(),
            roles: Vec::new(),
            must_reauthenticate: false,
        },
        decision: RefusedDecision::default(),
        back: "/inbox".to_owned(),
        is_whole: false,
        changes: Changes::default(),
    }
}
