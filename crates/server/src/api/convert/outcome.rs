//! The body of the response to a use case. It is rendered from the outcome, which is stored for an idempotency key, so that
//! a repeated request gets the same response.

use ade_app::Outcome;
use ade_client::wire;
use ade_store::database::StoredUser;
use serde::Serialize;
use serde_json::json;

use super::{
    Convert, approval_view, change, comment, delegation, delivery, feature, hook, policy, resource,
    restore_result, setting, task, task_claim, token, user, webhook,
};

/// A response body, and the revision of the object that it shows.
#[derive(Debug, Default)]
pub(crate) struct RenderedOutcome {
    pub(crate) json: Vec<u8>,
    pub(crate) revision: Option<u64>,
}

pub(crate) fn outcome(outcome: Outcome) -> RenderedOutcome {
    match outcome {
        Outcome::Task(view) => {
            let task = task(*view);
            render(&task, Some(task.revision))
        }
        Outcome::Claim(view) => render(&task_claim(*view), None),
        Outcome::Approval(view) => {
            let approval = view.as_ref().map(approval_view);
            render(&approval, approval.as_ref().map(|approval| approval.revision))
        }
        Outcome::Batch(views) => {
            render(&wire::BatchResponse { items: views.iter().map(approval_view).collect() }, None)
        }
        Outcome::Restored(restored) => render(&restore_result(&restored), None),
        Outcome::Done | Outcome::AwaitsConfirmation { .. } => render(&(), None),
        Outcome::Comment(stored) => render(&comment(&stored), None),
        Outcome::User { user: stored, revision } => {
            let stored = StoredUser { user: stored, revision, password: None, invitation: None };
            render(&user(&stored), Some(revision))
        }
        Outcome::Invitation { user: stored, revision, expires_at } => {
            let invited = user(&StoredUser { user: stored, revision, password: None, invitation: None });
            let invitation = wire::Invitation { user: invited, code: None, expires_at: expires_at.convert() };
            render(&invitation, None)
        }
        Outcome::Token(stored) => render(&token(&stored, None), None),
        Outcome::Policy(stored) => render(&policy(&stored), Some(stored.revision)),
        Outcome::Delegation(stored) => render(&delegation(&stored), Some(stored.revision)),
        Outcome::Resource(stored) => render(&resource(&stored), Some(stored.revision)),
        Outcome::Setting(stored) => render(&setting(&stored), Some(stored.revision)),
        Outcome::Feature(stored) => render(&feature(&stored), Some(stored.revision)),
        Outcome::Webhook(view) => render(&webhook(&view, None), Some(view.revision)),
        Outcome::Delivery(stored) => render(&delivery(&stored), None),
        Outcome::InboundHook(view) => render(&hook(&view, None), Some(view.revision)),
        Outcome::Change(stored) => render(&change(&stored), None),
    }
}

/// Wire types always serialize; the error body is never expected.
fn render(body: &impl Serialize, revision: Option<u64>) -> RenderedOutcome {
    let json = serde_json::to_vec(body)
        .unwrap_or_else(|error| json!({ "error": error.to_string() }).to_string().into_bytes());
    RenderedOutcome { json, revision }
}
