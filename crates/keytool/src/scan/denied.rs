//! Commands that a user may not run, and what is unknown because of that.

use std::collections::BTreeMap;

use redis::Value;
use serde::{Deserialize, Serialize};

/// How often each command was denied.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Denied(BTreeMap<String, Denial>);

/// A command that was denied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// For how many keys.
    pub keys: u64,
    /// What the server replied first.
    pub reason: String,
    /// Whether the command is denied for every key.
    pub everywhere: bool,
}

impl Denied {
    /// Whether the command needs not be tried again.
    pub(crate) fn is_pointless(&self, command: &str) -> bool {
        self.0.get(command).is_some_and(|denial| denial.everywhere)
    }

    /// Counts a reply that may be a denial; returns whether it is an error.
    pub(crate) fn count(&mut self, command: &str, reply: &Value) -> bool {
        let Value::ServerError(error) = reply else { return false };
        if error.code() == "NOPERM" {
            let reason = error.details().unwrap_or("no permission").to_owned();
            // "… to run the 'memory|usage' command", or "… to access one of the keys …".
            let everywhere = reason.contains("to run");
            let denial = self.0.entry(command.to_owned()).or_insert_with(|| Denial {
                keys: 0,
                reason,
                everywhere: false,
            });
            denial.keys += 1;
            denial.everywhere |= everywhere;
        }
        true
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (command, denial) in &other.0 {
            let sum = self.0.entry(command.clone()).or_insert_with(|| Denial { keys: 0, ..denial.clone() });
            sum.keys += denial.keys;
            sum.everywhere |= denial.everywhere;
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Denial)> {
        self.0.iter().map(|(command, denial)| (command.as_str(), denial))
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
