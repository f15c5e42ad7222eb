//! The response to the outcome of a use case. It is rendered twice: for the caller, and to be stored for its idempotency
//! key.

use ade_app::{Caller, Outcome};
use ade_domain::Moment;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    approval, approval_batch, comment, delegation, feature, policy, resource, restore_result, setting, task,
    task_claim, token, user,
};

/// Status and body. What a task shows depends on the reader and the time.
pub(crate) fn outcome(status: u16, outcome: Outcome<'_>, reader: &Caller, now: Moment) -> (u16, Value) {
    let body = match outcome {
        Outcome::Task(stored) => json_value(&task(stored, reader, now)),
        Outcome::Claim(stored) => json_value(&task_claim(stored, reader, now)),
        Outcome::Approval(stored, id) => {
            let found = stored.approvals.iter().find(|approval| approval.approval_id == id);
            json_value(&found.map(|found| approval(found, &stored.task)))
        }
        Outcome::Batch(ids, tasks) => json_value(&approval_batch(ids, tasks)),
        Outcome::Restored(restored) => json_value(&restore_result(restored)),
        Outcome::LogAppended => Value::Null,
        Outcome::Comment(stored) => json_value(&comment(stored)),
        Outcome::User(stored) => json_value(&user(stored)),
        Outcome::Token(stored) => json_value(&token(stored, None)),
        Outcome::Policy(stored) => json_value(&policy(stored)),
        Outcome::Delegation(stored) => json_value(&delegation(stored)),
        Outcome::Resource(stored) => json_value(&resource(stored)),
        Outcome::Setting(stored) => json_value(&setting(stored)),
        Outcome::Feature(stored) => json_value(&feature(stored)),
    };
    (status, body)
}

/// Wire types always serialize; the error body is never expected.
fn json_value(body: &impl Serialize) -> Value {
    serde_json::to_value(body).unwrap_or_else(|error| json!({ "error": error.to_string() }))
}
