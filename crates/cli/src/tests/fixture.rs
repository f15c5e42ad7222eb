//! Test fixture: a task under review with its approval requests, as a server returns them.

use ade_client::wire::{Approval, Task};
use serde_json::json;

pub(crate) fn task() -> Task {
    let time = "2026-07-01T10:00:00.000000Z";
    let digest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    let task = json!({
        "task_id": "t-1", "state": "REVIEWING", "revision": 3, "digest": digest, "scope_digest": null, "not_automatic": [],
        "scope": [{ "binding": "agent:ci-bot", "targets": ["agent:ci-bot"], "resources": [], "criticality": null, "lock": null }],
        "config": {
            "type": "migration", "version": "2", "description": "Add an index on orders\nso that the report ends",
            "executor": "agent", "parameters": { "table": "orders" },
            "resources": [{ "type": "database", "id": "prod", "mode": "exclusive" }],
            "rollback_strategy": "automatic", "timeout_seconds": 600, "priority": 50,
        },
        "metadata": {
            "author_id": "ann", "author_name": "Ann", "team": "shop", "ticket_ref": "OPS-7", "tags": ["index"],
            "lineage": { "agent_id": "ci-bot", "parent_agent_id": null, "sponsor_id": "bob" },
            "by_agent": ["ci-bot"], "updated_at": time,
            "since": { "DRAFT": time, "SUBMITTED": time, "REVIEWING": time },
        },
        "risk": {
            "score": 62, "level": "HIGH", "auto_approvable": false, "assessed_at": time, "assessed_by": "ade-risk-1",
            "factors": [
                { "name": "resource_criticality", "value": 80.0, "weight": 0.4, "contribution": 32.0, "why": "database:prod is registered with 80" },
                { "name": "change_magnitude", "value": 100.0, "weight": 0.3, "contribution": 30.0, "why": "1 created, 1 deleted" },
            ],
        },
        "preview": {
            "status": "ready", "warnings": ["takes a while"], "errors": [], "fingerprint": digest, "unverifiable": true,
            "changes": [
                { "kind": "create", "what": "index orders_created_at", "diff": "@@ -1 +1 @@\n-no index\n+\tindex" },
                { "kind": "delete", "what": "index orders_old" },
            ],
        },
        "lock_preview": [{
            "lock": "resource:database:prod", "mode": "exclusive", "holders": ["nightly"], "queue_length": 1,
            "expected_wait_seconds": 90.0, "unavailable": false,
        }],
        "requirements": [{
            "policy": "databases", "status": "UNSATISFIED", "needed": 1, "approved_by": ["dan"], "why": "1 more approval required",
        }],
        "required_count": 2,
        "policies": [{ "policy": "databases", "applies": true, "why": "matches database:*" }],
        "skipped_reviewers": ["ann is the author"],
        "auto_approved": null, "override_request": null, "forced": false,
        "reopened": { "reason": "STALE_PREVIEW: the preview has changed", "at": time },
        "allowed": ["modify", "cancel", "comment"], "predecessor": "t-0",
    });
    serde_json::from_value(task).expect("a task")
}

pub(crate) fn approvals() -> Vec<Approval> {
    let digest = task().digest;
    let approval = |id: &str, who: &str, status: &str| {
        json!({
            "approval_id": id, "task_id": "t-1", "task_description": "Add an index on orders", "reviewer_id": who, "reviewer_name": who, "status": status,
            "priority": "NORMAL", "score": 720, "delegated_to": null, "delegation_chain": [], "follows": null,
            "created_at": "2026-07-01T10:00:00Z", "due_at": "2026-07-03T10:00:00Z", "escalation_level": 0,
            "responded_at": null, "response_action": null, "response_reason": null, "reviewed_by": null,
            "digest": digest, "policies": ["databases"], "why": ["has the role dba"], "revision": 1,
        })
    };
    let mut decided = approval("a-1", "dan", "APPROVED");
    decided["responded_at"] = json!("2026-07-01T11:00:00Z");
    decided["response_action"] = json!("approve");
    decided["response_reason"] = json!("looks fine");
    decided["reviewed_by"] = json!("dan");
    let mut pending = approval("a-2", "eve", "PENDING");
    pending["delegation_chain"] = json!([{ "from": "cleo", "to": "eve", "delegation_id": "d-1" }]);
    [decided, pending]
        .into_iter()
        .map(|approval| serde_json::from_value(approval).expect("an approval"))
        .collect()
}
