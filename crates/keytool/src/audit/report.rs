//! The result of an audit, as JSON has it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use super::node::NodeResult;
use super::rules::Rule;
use super::stats::{ClassStats, Counts, ttl_label};
use super::{AuditOptions, Baseline, Classes};
use crate::server::{DeploymentKind, Role};
use crate::text;

/// The result of an audit.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub deployment: DeploymentKind,
    pub finished_at: Timestamp,
    pub catalogs: Vec<String>,
    /// Classes with at least one key, in the order of the catalogs.
    pub classes: Vec<ClassReport>,
    /// Entries without a key.
    pub unused_classes: usize,
    pub orphans: OrphanReport,
    /// Examples; [`Report::counts`] has the exact numbers.
    pub violations: Vec<Violation>,
    pub counts: Vec<RuleCount>,
    pub coverage: Coverage,
}

/// The keys of one entry of a catalog.
#[derive(Debug, Clone, Serialize)]
pub struct ClassReport {
    pub class: String,
    pub catalog: String,
    pub pattern: String,
    #[serde(rename = "type")]
    pub type_name: &'static str,
    pub ttl_rule: String,
    pub keys: u64,
    pub memory: Memory,
    /// Numbers of keys by the time that they have left.
    pub ttl: Vec<TtlCount>,
}

/// A bar of a TTL histogram.
#[derive(Debug, Clone, Serialize)]
pub struct TtlCount {
    pub left: &'static str,
    pub keys: u64,
}

/// Memory of a class, as MEMORY USAGE shows it.
#[derive(Debug, Clone, Serialize)]
pub struct Memory {
    pub sampled_keys: u64,
    pub sampled_bytes: u64,
    pub largest_bytes: u64,
    /// For all keys of the class; `None` if no key was sampled.
    pub estimated_bytes: Option<u64>,
}

/// Keys that no catalog has.
#[derive(Debug, Clone, Serialize)]
pub struct OrphanReport {
    pub keys: u64,
    pub memory: Memory,
    pub ttl: Vec<TtlCount>,
    /// The most frequent beginnings.
    pub prefixes: Vec<(String, u64)>,
}

/// One violation as an example.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    pub rule: Rule,
    pub class: String,
    /// `None` if the violation concerns the whole class.
    pub key: Option<String>,
    pub message: String,
}

/// The number of violations of one rule by one class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleCount {
    pub rule: Rule,
    pub class: String,
    pub count: u64,
    /// How many of them are in `violations`.
    pub shown: usize,
}

/// What was read, and what was not.
#[derive(Debug, Clone, Serialize)]
pub struct Coverage {
    pub keys_seen: u64,
    /// The sum of DBSIZE when the audit began.
    pub keys_expected: Option<u64>,
    /// Keys that ended while they were read.
    pub keys_vanished: u64,
    pub nodes: Vec<NodeCoverage>,
    pub memory_sampled: u64,
    pub values_read: u64,
    pub values_truncated: u64,
    pub denied: Vec<DeniedCommand>,
    pub other_databases: Vec<(String, u64)>,
    /// Limits of this audit in words.
    pub notes: Vec<String>,
}

/// One server.
#[derive(Debug, Clone, Serialize)]
pub struct NodeCoverage {
    pub address: String,
    pub role: Role,
    pub keys_seen: u64,
    pub keys_expected: Option<u64>,
}

/// A command that the user of the audit may not run.
#[derive(Debug, Clone, Serialize)]
pub struct DeniedCommand {
    pub command: String,
    pub reason: String,
    pub consequence: String,
}

impl Report {
    /// How many violations there are of all rules.
    #[must_use]
    pub fn violation_count(&self) -> u64 {
        self.counts.iter().map(|count| count.count).sum()
    }

    /// The numbers of keys, to compare a later audit with them.
    #[must_use]
    pub fn baseline(&self) -> Baseline {
        let classes =
            self.classes.iter().map(|class| (format!("{}/{}", class.catalog, class.class), class.keys));
        let orphans = (self.orphans.keys > 0).then(|| ("orphans".to_owned(), self.orphans.keys));
        Baseline { created_at: self.finished_at, keys: classes.chain(orphans).collect() }
    }
}

impl Coverage {
    /// What was read and what was not, in words, besides the numbers of keys.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "memory of {} keys and values of {} keys were read, {} of them in part",
            text::count(self.memory_sampled),
            text::count(self.values_read),
            text::count(self.values_truncated)
        )];
        lines.extend(self.notes.iter().cloned());
        if self.keys_vanished > 0 {
            lines.push(format!("{} keys ended while they were read", text::count(self.keys_vanished)));
        }
        lines.extend(self.denied.iter().map(|denied| {
            format!("{} is denied ({}): {}", denied.command, denied.reason, denied.consequence)
        }));
        lines.extend(self.other_databases.iter().map(|(name, keys)| {
            format!("{name} with {} keys was not read: add its number to the URL", text::count(*keys))
        }));
        lines
    }
}

pub(super) fn report(
    deployment: DeploymentKind,
    classes: &Classes<'_>,
    options: &AuditOptions,
    now: Timestamp,
    results: &[NodeResult],
) -> Report {
    let mut counts = Counts::new(classes.count());
    for result in results {
        counts.merge(&result.counts, options.max_examples);
    }
    let rows = classes.entries.iter().zip(&counts.classes).filter(|(_, stats)| stats.keys > 0);
    let rows: Vec<ClassReport> = rows
        .map(|((catalog, entry, shape), stats)| ClassReport {
            class: entry.name.clone(),
            catalog: catalog.name.clone(),
            pattern: entry.plain.text().to_owned(),
            type_name: shape.value_type.as_str(),
            ttl_rule: shape.ttl.to_string(),
            keys: stats.keys,
            memory: memory(stats),
            ttl: ttl_counts(stats),
        })
        .collect();
    let orphans = counts.classes.last().cloned().unwrap_or_default();
    let mut prefixes: Vec<(String, u64)> = counts.orphan_prefixes.clone().into_iter().collect();
    prefixes.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    prefixes.truncate(20);
    let (violations, rule_counts) = violations(&counts);
    let mut report = Report {
        deployment,
        finished_at: now,
        catalogs: classes.catalogs.iter().map(|catalog| catalog.name.clone()).collect(),
        unused_classes: classes.entries.len() - rows.len(),
        classes: rows,
        orphans: OrphanReport {
            keys: orphans.keys,
            memory: memory(&orphans),
            ttl: ttl_counts(&orphans),
            prefixes,
        },
        violations,
        counts: rule_counts,
        coverage: coverage(&counts, options, results),
    };
    if let Some(baseline) = &options.baseline {
        for (class, message) in baseline.drift(&report.baseline().keys, options.drift_percent) {
            let rule = Rule::CardinalityDrift;
            let class = class.split_once('/').map_or(class.clone(), |(_, class)| class.to_owned());
            report.counts.push(RuleCount { rule, class: class.clone(), count: 1, shown: 1 });
            report.violations.push(Violation { rule, class, key: None, message });
        }
    }
    report
}

fn memory(stats: &ClassStats) -> Memory {
    Memory {
        sampled_keys: stats.memory_samples,
        sampled_bytes: stats.memory_bytes,
        largest_bytes: stats.memory_max,
        estimated_bytes: stats.estimated_bytes(),
    }
}

fn ttl_counts(stats: &ClassStats) -> Vec<TtlCount> {
    stats.ttl.iter().enumerate().map(|(bar, keys)| TtlCount { left: ttl_label(bar), keys: *keys }).collect()
}

fn violations(counts: &Counts) -> (Vec<Violation>, Vec<RuleCount>) {
    let (mut violations, mut rule_counts) = (Vec::new(), Vec::new());
    for (rule, classes) in &counts.violations {
        for (class, found) in classes {
            let (rule, shown) = (*rule, found.examples.len());
            rule_counts.push(RuleCount { rule, class: class.clone(), count: found.count, shown });
            violations.extend(found.examples.iter().map(|(key, message)| Violation {
                rule,
                class: class.clone(),
                key: Some(key.clone()),
                message: message.clone(),
            }));
        }
    }
    (violations, rule_counts)
}

fn coverage(counts: &Counts, options: &AuditOptions, results: &[NodeResult]) -> Coverage {
    let nodes = results.iter().map(|result| NodeCoverage {
        address: result.node.address.clone(),
        role: result.node.role,
        keys_seen: result.counts.keys,
        keys_expected: result.size,
    });
    let mut other_databases: BTreeMap<String, u64> = BTreeMap::new();
    for (name, keys) in results.iter().flat_map(|result| &result.other_databases) {
        *other_databases.entry(name.clone()).or_default() += keys;
    }
    let denied = counts.denied.iter().map(|(command, denial)| {
        let extent =
            if denial.everywhere { "not".to_owned() } else { format!("not of {} keys", denial.keys) };
        DeniedCommand {
            command: command.to_owned(),
            reason: denial.reason.clone(),
            consequence: consequence(command, &extent),
        }
    });
    let mut notes = Vec::new();
    if options.reads_values {
        let limits = "strings were read up to 4 KiB, envelopes up to 64 KiB, and up to 64 elements of collections of at most 64 KiB";
        notes.push(limits.to_owned());
    }
    let sample = options.sample.max(1);
    if sample > 1 {
        let of = if options.reads_values { "strings" } else { "keys" };
        notes.push(format!(
            "memory is that of the first 1,000 {of} of each class and of one in {sample} of the others"
        ));
    }
    if !options.reads_values {
        notes.push("no values were read: envelopes and secrets in values were not checked".to_owned());
    }
    Coverage {
        keys_seen: counts.keys,
        keys_expected: results.iter().map(|result| result.size).sum(),
        keys_vanished: counts.vanished,
        nodes: nodes.collect(),
        memory_sampled: counts.classes.iter().map(|class| class.memory_samples).sum(),
        values_read: counts.values_read,
        values_truncated: counts.values_truncated,
        denied: denied.collect(),
        other_databases: other_databases.into_iter().collect(),
        notes,
    }
}

fn consequence(command: &str, extent: &str) -> String {
    match command {
        "TYPE" => format!("types were {extent} checked, and no values read"),
        "PTTL" => format!("lifetimes were {extent} checked"),
        "MEMORY USAGE" => format!("memory was {extent} read, nor elements of collections"),
        _ => format!("values were {extent} read"),
    }
}
