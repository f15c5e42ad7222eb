//! Settings and flags as they go over the wire, with a sentence about each.

use ade_client::wire;
use ade_store::DatabaseError;
use ade_store::database::StoredDocument;

pub(crate) fn setting(thing: &StoredDocument) -> Result<wire::Setting, DatabaseError> {
    Ok(wire::Setting {
        name: thing.id.clone(),
        value: thing.body.clone(),
        about: ade_app::settings::about(&thing.id).to_owned(),
        is_default: thing.revision == 0,
        revision: thing.revision,
    })
}

pub(crate) fn feature(thing: &StoredDocument) -> Result<wire::Feature, DatabaseError> {
    Ok(wire::Feature {
        flag: thing.id.clone(),
        enabled: thing.read()?,
        about: ade_app::settings::about(&thing.id).to_owned(),
        revision: thing.revision,
    })
}
