//! Conversions of shared settings and feature flags.

use ade_client::wire;
use ade_store::database::{FeatureFlag, Setting, Versioned};

pub(crate) fn setting(stored: &Versioned<Setting>) -> wire::Setting {
    wire::Setting {
        name: stored.id.clone(),
        value: stored.value.0.clone(),
        description: ade_app::shared_settings::description(&stored.id).to_owned(),
        is_default: stored.revision == 0,
        read_only: false,
        revision: stored.revision,
    }
}

pub(crate) fn feature(stored: &Versioned<FeatureFlag>) -> wire::Feature {
    wire::Feature {
        flag: stored.id.clone(),
        enabled: stored.value.0,
        description: ade_app::shared_settings::description(&stored.id).to_owned(),
        revision: stored.revision,
    }
}
