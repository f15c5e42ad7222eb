//! The body of the response to a use case. It is rendered from the outcome, which is stored for an idempotency key, so that
//! a repeated request gets the same response.

use ade_app::Outcome;
use ade_client::wire;
use ade_store::database::StoredUser;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    Convert, approval_view, change, comment, delegation, feature, policy, resource, restore_result, setting,
    task, task_claim, token, user,
};

pub(crate) fn outcome(outcome: Outcome) -> Value {
    match outcome {
        Outcome::Task(view) => json_value(&task(*view)),
        Outcome::Claim(view) => json_value(&task_claim(*view)),
        Outcome::Approval(view) => json_value(&view.as_ref().map(approval_view)),
        Outcome::Batch(views) => {
            json_value(&wire::BatchResponse { items: views.iter().map(approval_view).collect() })
        }
        Outcome::Restored(restored) => json_value(&restore_result(&restored)),
        Outcome::Done | Outcome::AwaitsConfirmation { .. } => Value::Null,
        Outcome::Comment(stored) => json_value(&comment(&stored)),
        Outcome::User { user: stored, revision } => {
            json_value(&user(&StoredUser { user: stored, revision, password: None, invitation: None }))
        }
        Outcome::Invitation { user: stored, revision, expires_at } => {
            let invited = user(&StoredUser { user: stored, revision, password: None, invitation: None });
            json_value(&wire::Invitation { user: invited, code: None, expires_at: expires_at.convert() })
        }
        Outcome::Token(stored) => json_value(&token(&stored, None)),
        Outcome::Policy(stored) => json_value(&policy(&stored)),
        Outcome::Delegation(stored) => json_value(&delegation(&stored)),
        Outcome::Resource(stored) => json_value(&resource(&stored)),
        Outcome::Setting(stored) => json_value(&setting(&stored)),
        Outcome::Feature(stored) => json_value(&feature(&stored)),
        Outcome::Change(stored) => json_value(&change(&stored)),
    }
}

/// Wire types always serialize; the error body is never expected.
fn json_value(body: &impl Serialize) -> Value {
    serde_json::to_value(body).unwrap_or_else(|error| json!({ "error": error.to_string() }))
}
