//! What a use case made, as it is answered: now, and again when the request is repeated.

use ade_app::{Caller, Made};
use ade_domain::Moment;
use ade_store::RecordError;
use ade_store::database::{Thing, ThingKind};
use serde::Serialize;
use serde_json::{Value, json};

use super::convert::{execution, jobs, reviews as convert, settings};
use crate::problem::Problem;

/// Status and body of the answer to somebody at a time.
pub(crate) fn answer(status: u16, made: Made<'_>, reader: &Caller, now: Moment) -> (u16, Value) {
    let body = match made {
        Made::Task(task) => value(&convert::task(task, reader, now)),
        Made::Claim(task) => value(&execution::claim(task, reader, now)),
        Made::Approval(task, id) => {
            let found = task.approvals.iter().find(|one| one.approval_id == id);
            value(&found.map(|one| convert::approval(one, &task.task)))
        }
        Made::Batch(ids, tasks) => value(&convert::batch(ids, tasks)),
        Made::Restored(restored) => value(&jobs::restored(restored)),
        Made::Said => Value::Null,
        Made::Comment(comment) => value(&convert::comment(comment)),
        Made::User(user) => value(&convert::user(user)),
        Made::Token(token) => value(&convert::token(token, None)),
        Made::Thing(thing) => match of_thing(thing) {
            Ok(body) => body,
            Err(error) => return Problem::from(error).parts(),
        },
    };
    (status, body)
}

fn of_thing(thing: &Thing) -> Result<Value, RecordError> {
    Ok(match thing.kind {
        ThingKind::Policy => value(&convert::policy(thing)?),
        ThingKind::Delegation => value(&convert::delegation(thing)?),
        ThingKind::Resource => value(&convert::resource(thing)?),
        ThingKind::Setting => value(&settings::setting(thing)?),
        ThingKind::Feature => value(&settings::feature(thing)?),
    })
}

/// What we send is made of our own types, which always are JSON.
fn value(body: &impl Serialize) -> Value {
    serde_json::to_value(body).unwrap_or_else(|error| json!({ "error": error.to_string() }))
}
