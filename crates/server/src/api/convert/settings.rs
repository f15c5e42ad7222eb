//! Settings and flags as they go over the wire, with a sentence about each.

use ade_client::wire;
use ade_store::RecordError;
use ade_store::database::Thing;

pub(crate) fn setting(thing: &Thing) -> Result<wire::Setting, RecordError> {
    Ok(wire::Setting {
        name: thing.id.clone(),
        value: thing.body.clone(),
        about: ade_app::settings::about(&thing.id).to_owned(),
        is_default: thing.revision == 0,
        revision: thing.revision,
    })
}

pub(crate) fn feature(thing: &Thing) -> Result<wire::Feature, RecordError> {
    Ok(wire::Feature {
        flag: thing.id.clone(),
        enabled: thing.read()?,
        about: ade_app::settings::about(&thing.id).to_owned(),
        revision: thing.revision,
    })
}
