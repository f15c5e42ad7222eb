//! What a use case made, as it is answered: now, and again when the request is repeated.

use ade_app::{Caller, Outcome};
use ade_domain::Moment;
use ade_store::DatabaseError;
use ade_store::database::{DocumentKind, StoredDocument};
use serde::Serialize;
use serde_json::{Value, json};

use super::convert::{execution, jobs, reviews as convert, settings};
use crate::problem::Problem;

/// Status and body of the answer to somebody at a time.
pub(crate) fn answer(status: u16, made: Outcome<'_>, reader: &Caller, now: Moment) -> (u16, Value) {
    let body = match made {
        Outcome::Task(task) => value(&convert::task(task, reader, now)),
        Outcome::Claim(task) => value(&execution::claim(task, reader, now)),
        Outcome::Approval(task, id) => {
            let found = task.approvals.iter().find(|one| one.approval_id == id);
            value(&found.map(|one| convert::approval(one, &task.task)))
        }
        Outcome::Batch(ids, tasks) => value(&convert::batch(ids, tasks)),
        Outcome::Restored(restored) => value(&jobs::restored(restored)),
        Outcome::Said => Value::Null,
        Outcome::Comment(comment) => value(&convert::comment(comment)),
        Outcome::User(user) => value(&convert::user(user)),
        Outcome::Token(token) => value(&convert::token(token, None)),
        Outcome::Thing(thing) => match of_thing(thing) {
            Ok(body) => body,
            Err(error) => return Problem::from(error).parts(),
        },
    };
    (status, body)
}

fn of_thing(thing: &StoredDocument) -> Result<Value, DatabaseError> {
    Ok(match thing.kind {
        DocumentKind::Policy => value(&convert::policy(thing)?),
        DocumentKind::Delegation => value(&convert::delegation(thing)?),
        DocumentKind::Resource => value(&convert::resource(thing)?),
        DocumentKind::Setting => value(&settings::setting(thing)?),
        DocumentKind::Feature => value(&settings::feature(thing)?),
    })
}

/// What we send is made of our own types, which always are JSON.
fn value(body: &impl Serialize) -> Value {
    serde_json::to_value(body).unwrap_or_else(|error| json!({ "error": error.to_string() }))
}
