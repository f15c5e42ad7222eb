//! Conversions between wire types and the types of domain, store and app. Handlers use functions such as `convert::task`
//! for objects, and [`Convert`] for their parts and for requests.

mod agents;
mod approvals;
mod audit;
mod execution;
mod jobs;
mod keys;
mod locks;
mod outcome;
mod rules;
mod settings;
mod simulations;
mod tasks;
mod users;
mod webhooks;

use std::collections::{BTreeMap, BTreeSet};

use ade_client::wire;
use ade_domain::Moment;
use ade_domain::glob::Pattern;
use ade_domain::people::UserId;
use ade_domain::task::Digest;
use serde_json::{Map, Value};

pub(crate) use agents::{agent, agent_health, status_name};
pub(crate) use approvals::{approval, approval_view, listed_approval};
pub(crate) use audit::{audit_entry, unnumbered_audit_entry};
pub(crate) use execution::{execution, task_claim};
pub(crate) use jobs::{job, restore_result};
pub(crate) use keys::{key_catalog, key_details, key_explanation, key_family_details};
pub(crate) use locks::{
    cycle_edge, grants, held_lock_result, lock, lock_holder, stored_release, stored_ticket, ticket,
    wait_graph_edge, waiting_ticket,
};
pub(crate) use outcome::{RenderedOutcome, outcome};
pub(crate) use rules::{change, delegation, executor_binding, policy, resource};
pub(crate) use settings::{feature, setting};
pub(crate) use simulations::simulation;
pub(crate) use tasks::{comment, lock_preview, risk, task, task_stats};
pub(crate) use users::{token, user, user_for};
pub(crate) use webhooks::{delivery, hook, webhook, webhook_with_secret};

/// Like `Into`, which cannot be implemented here because all these types belong to other crates.
pub(crate) trait Convert<T> {
    fn convert(self) -> T;
}

impl<T: Convert<U>, U> Convert<Option<U>> for Option<T> {
    fn convert(self) -> Option<U> {
        self.map(Convert::convert)
    }
}

impl<T: Convert<U>, U> Convert<Vec<U>> for Vec<T> {
    fn convert(self) -> Vec<U> {
        self.into_iter().map(Convert::convert).collect()
    }
}

impl<T: Convert<U>, U> Convert<Vec<U>> for BTreeSet<T> {
    fn convert(self) -> Vec<U> {
        self.into_iter().map(Convert::convert).collect()
    }
}

impl<T: Convert<U>, U: Ord> Convert<BTreeSet<U>> for Vec<T> {
    fn convert(self) -> BTreeSet<U> {
        self.into_iter().map(Convert::convert).collect()
    }
}

impl<T: Convert<U>, U: Ord> Convert<BTreeSet<U>> for BTreeSet<T> {
    fn convert(self) -> BTreeSet<U> {
        self.into_iter().map(Convert::convert).collect()
    }
}

impl<T: Convert<U>, U> Convert<BTreeMap<String, U>> for BTreeMap<String, T> {
    fn convert(self) -> BTreeMap<String, U> {
        self.into_iter().map(|(name, value)| (name, value.convert())).collect()
    }
}

/// Implements [`Convert`] with one expression per pair of types.
macro_rules! convert_values {
    ($($from:ty => $to:ty: $convert:expr;)+) => {$(
        impl Convert<$to> for $from {
            fn convert(self) -> $to {
                let convert: fn($from) -> $to = $convert;
                convert(self)
            }
        }
    )+};
}

/// Implements [`Convert`] in both directions between enums with the same variants.
macro_rules! convert_enums {
    ($($ours:ty = $wire:ty { $($variant:ident),+ })+) => {$(
        impl Convert<$wire> for $ours {
            fn convert(self) -> $wire {
                match self { $(<$ours>::$variant => <$wire>::$variant),+ }
            }
        }

        impl Convert<$ours> for $wire {
            fn convert(self) -> $ours {
                match self { $(<$wire>::$variant => <$ours>::$variant),+ }
            }
        }
    )+};
}

/// Implements [`Convert`] for structs whose fields have the same names. Each field of both is listed.
macro_rules! convert_structs {
    ($($from:path => $to:path { $($field:ident),+ } $(without { $($unused:ident),+ })?;)+) => {$(
        impl Convert<$to> for $from {
            fn convert(self) -> $to {
                let $from { $($field,)+ $($($unused: _,)+)? } = self;
                $to { $($field: $field.convert()),+ }
            }
        }
    )+};
}

use {convert_enums, convert_structs, convert_values};

convert_values! {
    bool => bool: |value| value;
    u8 => u8: |value| value;
    u32 => u32: |value| value;
    u64 => u64: |value| value;
    f64 => f64: |value| value;
    String => String: |value| value;
    Value => Value: |value| value;
    Map<String, Value> => Map<String, Value>: |value| value;
    (u8, u8) => (u8, u8): |value| value;
    Moment => wire::Time: |moment| wire::Time(moment.timestamp());
    wire::Time => Moment: |time| time.0.into();
    UserId => String: |id| id.to_string();
    String => UserId: UserId::new;
    Pattern => String: |pattern| pattern.to_string();
    String => Pattern: Pattern::new;
    Digest => String: |digest| digest.to_string();
}
