//! What an audit counts: by class of keys, and by rule.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::rules::Rule;
use crate::scan::{Denied, KeyTtl};

/// Upper ends of the bars of a TTL histogram, with their labels. Keys that never expire come first, longer TTLs last.
const BARS: [(u64, &str); 9] = [
    (1_000, "≤ 1 s"),
    (10_000, "≤ 10 s"),
    (60_000, "≤ 1 min"),
    (600_000, "≤ 10 min"),
    (3_600_000, "≤ 1 h"),
    (86_400_000, "≤ 1 d"),
    (604_800_000, "≤ 7 d"),
    (2_592_000_000, "≤ 30 d"),
    (7_776_000_000, "≤ 90 d"),
];
/// With the bars of keys that never expire, and of those that live longer.
pub const TTL_BARS: usize = BARS.len() + 2;
/// Prefixes of orphans that are counted apart.
const MAX_PREFIXES: usize = 100;
/// Stands for the prefixes beyond the maximum.
const OTHER_PREFIXES: &str = "(others)";

/// The label of a bar.
#[must_use]
pub fn ttl_label(bar: usize) -> &'static str {
    match bar {
        0 => "never",
        bar => BARS.get(bar - 1).map_or("> 90 d", |(_, label)| label),
    }
}

/// The keys of one class on one server, or on all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassStats {
    pub keys: u64,
    /// Keys whose memory usage was read.
    pub memory_samples: u64,
    pub memory_bytes: u64,
    pub memory_max: u64,
    /// Keys by the time that they have left.
    pub ttl: [u64; TTL_BARS],
}

impl ClassStats {
    pub(super) fn add_ttl(&mut self, ttl: KeyTtl) {
        let bar = match ttl {
            KeyTtl::Unknown => return,
            KeyTtl::Never => 0,
            KeyTtl::Left(ms) => 1 + BARS.iter().position(|(end, _)| ms <= *end).unwrap_or(BARS.len()),
        };
        if let Some(count) = self.ttl.get_mut(bar) {
            *count += 1;
        }
    }

    pub(super) fn add_memory(&mut self, bytes: u64) {
        self.memory_samples += 1;
        self.memory_bytes = self.memory_bytes.saturating_add(bytes);
        self.memory_max = self.memory_max.max(bytes);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.keys += other.keys;
        self.memory_samples += other.memory_samples;
        self.memory_bytes = self.memory_bytes.saturating_add(other.memory_bytes);
        self.memory_max = self.memory_max.max(other.memory_max);
        for (sum, count) in self.ttl.iter_mut().zip(other.ttl) {
            *sum += count;
        }
    }

    /// Memory of all keys, from that of the samples.
    #[must_use]
    pub fn estimated_bytes(&self) -> Option<u64> {
        let product = u128::from(self.memory_bytes) * u128::from(self.keys);
        let bytes = product.checked_div(u128::from(self.memory_samples))?;
        Some(u64::try_from(bytes).unwrap_or(u64::MAX))
    }
}

/// Violations of one rule by one class.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Found {
    pub(super) count: u64,
    /// Key and message of the first ones.
    pub(super) examples: Vec<(String, String)>,
}

/// What was counted on one server, or on all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counts {
    pub(super) keys: u64,
    pub(super) vanished: u64,
    /// In the order of the classes; the last one is that of orphans.
    pub(super) classes: Vec<ClassStats>,
    pub(super) orphan_prefixes: BTreeMap<String, u64>,
    pub(super) violations: BTreeMap<Rule, BTreeMap<String, Found>>,
    /// Keys of which at least a part of the value was read.
    pub(super) values_read: u64,
    /// Keys whose value is longer than what was read.
    pub(super) values_truncated: u64,
    pub(super) denied: Denied,
}

impl Counts {
    pub(super) fn new(classes: usize) -> Self {
        Self { classes: vec![ClassStats::default(); classes], ..Self::default() }
    }

    /// Counts a violation, and keeps it as an example if there are few yet.
    pub(super) fn report(
        &mut self,
        rule: Rule,
        class: &str,
        max: usize,
        example: impl FnOnce() -> (String, String),
    ) {
        let classes = self.violations.entry(rule).or_default();
        if !classes.contains_key(class) {
            classes.insert(class.to_owned(), Found::default());
        }
        if let Some(found) = classes.get_mut(class) {
            found.count += 1;
            if found.examples.len() < max {
                found.examples.push(example());
            }
        }
    }

    pub(super) fn add_orphan(&mut self, prefix: String) {
        let is_full =
            self.orphan_prefixes.len() >= MAX_PREFIXES && !self.orphan_prefixes.contains_key(&prefix);
        let prefix = if is_full { OTHER_PREFIXES.to_owned() } else { prefix };
        *self.orphan_prefixes.entry(prefix).or_default() += 1;
    }

    pub(super) fn merge(&mut self, other: &Self, max_examples: usize) {
        self.keys += other.keys;
        self.vanished += other.vanished;
        self.values_read += other.values_read;
        self.values_truncated += other.values_truncated;
        self.denied.merge(&other.denied);
        for (sum, class) in self.classes.iter_mut().zip(&other.classes) {
            sum.merge(class);
        }
        for (prefix, keys) in &other.orphan_prefixes {
            *self.orphan_prefixes.entry(prefix.clone()).or_default() += keys;
        }
        for (rule, classes) in &other.violations {
            for (class, found) in classes {
                let sum = self.violations.entry(*rule).or_default().entry(class.clone()).or_default();
                sum.count += found.count;
                let room = max_examples.saturating_sub(sum.examples.len());
                sum.examples.extend(found.examples.iter().take(room).cloned());
            }
        }
    }
}

/// The first two segments of a key, without what looks like an identifier.
pub(super) fn prefix_of(key: &str) -> String {
    let segments = key.split(':').take(2).map(|segment| {
        let is_word = segment.len() <= 40
            && segment.bytes().all(|byte| byte.is_ascii_alphabetic() || b"_-.".contains(&byte));
        if is_word { segment } else { "*" }
    });
    segments.collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_and_prefixes() {
        let mut stats = ClassStats::default();
        for ttl in [
            KeyTtl::Never,
            KeyTtl::Left(1_000),
            KeyTtl::Left(1_001),
            KeyTtl::Left(u64::MAX / 2),
            KeyTtl::Unknown,
        ] {
            stats.add_ttl(ttl);
        }
        assert_eq!(stats.ttl, [1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!((ttl_label(0), ttl_label(1), ttl_label(10)), ("never", "≤ 1 s", "> 90 d"));
        assert_eq!(prefix_of("shop:cart:7"), "shop:cart");
        assert_eq!(prefix_of("user42"), "*");
        stats.keys = 10;
        stats.add_memory(100);
        stats.add_memory(50);
        assert_eq!(stats.estimated_bytes(), Some(750));
    }
}
