//! Numbers of keys by class, to notice later that they have changed much.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{fs, io};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::AuditError;
use super::state::replace_file;
use crate::text;

/// Smaller differences are noise, whatever their percentage.
const MIN_DIFFERENCE: u64 = 5;

/// Numbers of keys at a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    pub created_at: Timestamp,
    /// By `catalog/class`; orphans are `orphans`.
    pub keys: BTreeMap<String, u64>,
}

impl Baseline {
    /// Reads a file that [`Baseline::write`] has written.
    pub fn read(path: &Path) -> Result<Self, AuditError> {
        let invalid = |reason: String| AuditError::Baseline { path: path.to_owned(), reason };
        let source = fs::read_to_string(path).map_err(|error| invalid(error.to_string()))?;
        serde_json::from_str(&source).map_err(|error| invalid(error.to_string()))
    }

    /// Replaces the file.
    pub fn write(&self, path: &Path) -> Result<(), AuditError> {
        let content = serde_json::to_vec_pretty(self).map_err(io::Error::from);
        let written = content.and_then(|content| replace_file(path, &content));
        written.map_err(|error| AuditError::Baseline { path: path.to_owned(), reason: error.to_string() })
    }

    /// The classes whose number of keys differs by more than `percent`, each with a message.
    pub(super) fn drift(&self, now: &BTreeMap<String, u64>, percent: u32) -> Vec<(String, String)> {
        let classes: BTreeSet<&String> = self.keys.keys().chain(now.keys()).collect();
        let drifted = classes.into_iter().filter_map(|class| {
            let count = |keys: &BTreeMap<String, u64>| keys.get(class).copied().unwrap_or(0);
            let (then, now) = (count(&self.keys), count(now));
            let difference = then.abs_diff(now);
            let is_drift = difference >= MIN_DIFFERENCE
                && u128::from(difference) * 100 > u128::from(then) * u128::from(percent);
            let change = if then == 0 {
                "new".to_owned()
            } else {
                format!(
                    "{}{} %",
                    if now > then { "+" } else { "-" },
                    u128::from(difference) * 100 / u128::from(then)
                )
            };
            let (now, then) = (text::count(now), text::count(then));
            is_drift.then(|| (class.clone(), format!("has {now} keys, the baseline {then} ({change})")))
        });
        drifted.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_needs_a_percentage_and_a_number() {
        let keys =
            |pairs: &[(&str, u64)]| pairs.iter().map(|(name, keys)| ((*name).to_owned(), *keys)).collect();
        let baseline = Baseline {
            created_at: Timestamp::UNIX_EPOCH,
            keys: keys(&[("a", 100), ("b", 4), ("c", 100), ("d", 9)]),
        };
        let drift = baseline.drift(&keys(&[("a", 150), ("b", 8), ("c", 151), ("e", 7)]), 50);
        let classes: Vec<&str> = drift.iter().map(|(class, _)| class.as_str()).collect();
        assert_eq!(classes, ["c", "d", "e"]);
        assert_eq!(drift[0].1, "has 151 keys, the baseline 100 (+51 %)");
        assert!(drift[2].1.ends_with("(new)"));
    }
}
