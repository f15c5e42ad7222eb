//! Conversions of shared settings and feature flags.

use ade_client::wire;
use ade_store::DatabaseError;
use ade_store::database::StoredDocument;

pub(crate) fn setting(document: &StoredDocument) -> Result<wire::Setting, DatabaseError> {
    Ok(wire::Setting {
        name: document.id.clone(),
        value: document.body.clone(),
        about: ade_app::settings::description(&document.id).to_owned(),
        is_default: document.revision == 0,
        revision: document.revision,
    })
}

pub(crate) fn feature(document: &StoredDocument) -> Result<wire::Feature, DatabaseError> {
    Ok(wire::Feature {
        flag: document.id.clone(),
        enabled: document.parse()?,
        about: ade_app::settings::description(&document.id).to_owned(),
        revision: document.revision,
    })
}
