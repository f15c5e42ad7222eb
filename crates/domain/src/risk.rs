//! The risk score of a task: the weighted sum of four factors, each from 0 to 100.
//!
//! The sum is exact and rounded once at the end, half up, so that the contributions that people see add up to the score.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::glob::{Pattern, check_pattern};
use crate::text::counted;
use crate::{InvalidField, Validator};

/// The version of the scoring method.
pub const ASSESSED_BY: &str = "ade-risk-1";
/// The criticality of a resource that is not registered.
pub const UNREGISTERED_CRITICALITY: u8 = 50;
/// The failure rate covers at most this many finished tasks of a type.
pub const MAX_HISTORY: u32 = 50;
/// With fewer finished tasks the failure rate counts as zero.
const MIN_HISTORY: u32 = 5;
const MAX_FACTOR: u64 = 100;
const MAX_DEPENDENTS: usize = 1_000;
/// Of a pattern, and of each dependent.
const MAX_NAME_LEN: usize = 512;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RiskInputs {
    /// Everything that the task can touch: the highest criticality counts.
    pub scope: Vec<RegisteredResource>,
    /// What the task locks: their number and their dependents are the blast radius.
    pub resources: Vec<RegisteredResource>,
    /// None without a usable preview: then the magnitude counts as the highest.
    pub changes: Option<ChangeCounts>,
    /// Of the same task type.
    pub history: FailureHistory,
}

/// A resource with its entry in the registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisteredResource {
    /// As `type:id`.
    pub resource: String,
    /// From 0 to 100; none if it is not registered.
    pub criticality: Option<u8>,
    /// Resources that depend on it, as `type:id`.
    pub dependents: Vec<String>,
}

/// An entry of the resource registry: it applies to the resources that match the pattern.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegisteredPattern {
    pub pattern: Pattern,
    /// From 0 to 100.
    pub criticality: u8,
    /// As `type:id`.
    pub dependents: Vec<String>,
}

impl RegisteredPattern {
    pub fn validate(&self) -> Vec<InvalidField> {
        let mut input = Validator::default();
        let is_text = |text: &str| {
            !text.is_empty() && text.len() <= MAX_NAME_LEN && !text.chars().any(char::is_control)
        };
        let detail = format_args!("must be 1 to {MAX_NAME_LEN} bytes without control characters");
        input.check(is_text(self.pattern.as_str()), "pattern", detail);
        if let Err(detail) = check_pattern(self.pattern.as_str()) {
            input.check(false, "pattern", detail);
        }
        input.check(self.criticality <= 100, "criticality", "must be between 0 and 100");
        let detail = format_args!("must have at most {MAX_DEPENDENTS} entries");
        input.check(self.dependents.len() <= MAX_DEPENDENTS, "dependents", detail);
        for (number, name) in self.dependents.iter().take(MAX_DEPENDENTS).enumerate() {
            let is_name = name.split_once(':').is_some_and(|(of, id)| !of.is_empty() && !id.is_empty());
            let detail =
                format_args!("must be type:id, at most {MAX_NAME_LEN} bytes without control characters");
            input.check(is_name && is_text(name), format_args!("dependents.{number}"), detail);
        }
        input.errors
    }
}

/// How many items a preview changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ChangeCounts {
    pub created_or_changed: u64,
    pub deleted: u64,
}

/// How the last finished tasks ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FailureHistory {
    pub finished: u32,
    pub failed: u32,
}

/// The lowest score of each level above low.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RiskThresholds {
    pub medium: u8,
    pub high: u8,
    pub critical: u8,
}

impl Default for RiskThresholds {
    fn default() -> Self {
        Self { medium: 25, high: 50, critical: 75 }
    }
}

/// The level of a risk score.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, strum::Display,
)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
pub enum RiskLevel {
    Low,
    Medium,
    High,
    Critical,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Risk {
    /// From 0 to 100.
    pub score: u8,
    pub level: RiskLevel,
    pub factors: Vec<RiskFactor>,
    /// The version of the scoring method.
    pub assessed_by: String,
}

/// A factor of the risk score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RiskFactor {
    pub name: String,
    /// From 0 to 100.
    pub value: f64,
    pub weight: f64,
    /// Value times weight: what it adds to the score.
    pub contribution: f64,
    /// An explanation of the value.
    pub why: String,
}

/// A factor as exact integers: `value / divisor`, with the weight in tenths.
struct ExactFactor {
    name: &'static str,
    tenths: u64,
    value: u64,
    divisor: u64,
    why: String,
}

pub fn assess(inputs: &RiskInputs, thresholds: RiskThresholds) -> Risk {
    let factors = [criticality(inputs), magnitude(inputs), blast_radius(inputs), failure_rate(inputs)];
    // Over the product of all divisors, so that nothing is rounded before the end. Only one of them is not 1.
    let common: u64 = factors.iter().map(|factor| factor.divisor).product();
    let sum: u64 =
        factors.iter().map(|factor| factor.tenths * factor.value * (common / factor.divisor)).sum();
    let tenths = common * 10;
    let score = u8::try_from((2 * sum + tenths) / (2 * tenths)).unwrap_or(u8::MAX).min(100);
    Risk {
        score,
        level: level(score, thresholds),
        factors: factors.into_iter().map(ExactFactor::into_factor).collect(),
        assessed_by: ASSESSED_BY.to_owned(),
    }
}

impl ExactFactor {
    #[expect(clippy::cast_precision_loss, reason = "the numbers are below 2^53")]
    fn into_factor(self) -> RiskFactor {
        RiskFactor {
            name: self.name.to_owned(),
            value: self.value as f64 / self.divisor as f64,
            weight: self.tenths as f64 / 10.0,
            contribution: (self.tenths * self.value) as f64 / (10 * self.divisor) as f64,
            why: self.why,
        }
    }
}

pub const fn level(score: u8, thresholds: RiskThresholds) -> RiskLevel {
    if score < thresholds.medium {
        RiskLevel::Low
    } else if score < thresholds.high {
        RiskLevel::Medium
    } else if score < thresholds.critical {
        RiskLevel::High
    } else {
        RiskLevel::Critical
    }
}

fn criticality(inputs: &RiskInputs) -> ExactFactor {
    let criticality =
        |resource: &RegisteredResource| resource.criticality.unwrap_or(UNREGISTERED_CRITICALITY).min(100);
    let highest = inputs.scope.iter().max_by_key(|resource| criticality(resource));
    let (value, why) = match highest {
        None => (0, "no targets and no resources".to_owned()),
        Some(resource) if resource.criticality.is_none() => (
            UNREGISTERED_CRITICALITY,
            format!("{} is not registered and counts as {UNREGISTERED_CRITICALITY}", resource.resource),
        ),
        Some(resource) => (criticality(resource), format!("{} is the most critical", resource.resource)),
    };
    ExactFactor { name: "resource_criticality", tenths: 4, value: value.into(), divisor: 1, why }
}

fn magnitude(inputs: &RiskInputs) -> ExactFactor {
    let (value, why) = match inputs.changes {
        None => {
            (MAX_FACTOR, "no verified preview counts the changes, so the highest value is assumed".to_owned())
        }
        Some(ChangeCounts { created_or_changed, deleted }) => {
            let points = created_or_changed.saturating_mul(5).saturating_add(deleted.saturating_mul(15));
            let why = format!("5 × {created_or_changed} created or changed + 15 × {deleted} deleted");
            (points.min(MAX_FACTOR), why)
        }
    };
    ExactFactor { name: "change_magnitude", tenths: 3, value, divisor: 1, why }
}

fn blast_radius(inputs: &RiskInputs) -> ExactFactor {
    let is_own = |name: &&String| inputs.resources.iter().any(|resource| resource.resource == **name);
    let dependents = inputs.resources.iter().flat_map(|resource| &resource.dependents);
    let dependents: BTreeSet<&String> = dependents.filter(|name| !is_own(name)).collect();
    let (own, others) = (inputs.resources.len() as u64, dependents.len() as u64);
    let value = (own + others).saturating_mul(10).min(MAX_FACTOR);
    let own = counted(inputs.resources.len(), "resource", "resources");
    let others = counted(dependents.len(), "registered dependent", "registered dependents");
    let why = format!("10 × ({own} + {others})");
    ExactFactor { name: "blast_radius", tenths: 2, value, divisor: 1, why }
}

fn failure_rate(inputs: &RiskInputs) -> ExactFactor {
    let FailureHistory { finished, failed } = inputs.history;
    let (value, divisor, why) = if finished < MIN_HISTORY {
        let so_far = match finished {
            0 => "no finished tasks of this type yet".to_owned(),
            some => format!("only {} of this type", counted(some, "finished task", "finished tasks")),
        };
        (0, 1, format!("{so_far}; at least {MIN_HISTORY} are needed"))
    } else {
        let failed = failed.min(finished);
        let why = format!("{failed} of the last {finished} tasks of this type failed");
        (MAX_FACTOR * u64::from(failed), u64::from(finished), why)
    };
    ExactFactor { name: "historical_failure_rate", tenths: 1, value, divisor, why }
}

#[cfg(test)]
mod tests {
    use ade_testkit::effort;
    use proptest::prelude::*;

    use super::*;

    fn inputs(
        criticality: &[Option<u8>],
        changes: Option<(u64, u64)>,
        dependents: usize,
        history: (u32, u32),
    ) -> RiskInputs {
        let resources = criticality.iter().enumerate().map(|(number, criticality)| RegisteredResource {
            resource: format!("database:{number}"),
            criticality: *criticality,
            dependents: (0..dependents).map(|other| format!("service:{other}")).collect(),
        });
        let resources: Vec<RegisteredResource> = resources.collect();
        RiskInputs {
            scope: resources.clone(),
            resources,
            changes: changes
                .map(|(created_or_changed, deleted)| ChangeCounts { created_or_changed, deleted }),
            history: FailureHistory { finished: history.0, failed: history.1 },
        }
    }

    #[test]
    fn computes_exact_scores() {
        for (inputs, score, level) in [
            (inputs(&[], Some((0, 0)), 0, (0, 0)), 0, RiskLevel::Low),
            // 0.4 × 50 + 0.3 × 5 + 0.2 × 10 = 23.5, half up.
            (inputs(&[None], Some((1, 0)), 0, (4, 4)), 24, RiskLevel::Low),
            // 0.4 × 80 + 0.3 × 35 + 0.2 × 30 + 0.1 × 20 = 50.5.
            (inputs(&[Some(80)], Some((1, 2)), 2, (5, 1)), 51, RiskLevel::High),
            // 36 + 3 + 4 + 14.2857… / 10 = 44.43: the failure rate is not rounded separately.
            (inputs(&[Some(90), Some(10)], Some((2, 0)), 0, (7, 1)), 44, RiskLevel::Medium),
            (inputs(&[Some(100)], None, 9, (50, 50)), 100, RiskLevel::Critical),
            (inputs(&[Some(100); 12], Some((u64::MAX, u64::MAX)), 0, (50, 0)), 90, RiskLevel::Critical),
            // 0.4 × 100 + 0.3 × 100 + 0.2 × 50: dependents are counted once, however many resources they depend on.
            (inputs(&[Some(100), Some(100)], None, 3, (0, 0)), 80, RiskLevel::Critical),
        ] {
            let risk = assess(&inputs, RiskThresholds::default());
            assert_eq!((risk.score, risk.level), (score, level), "{risk:?}");
        }
    }

    proptest! {
        #![proptest_config(effort::property(256))]

        #[test]
        fn contributions_add_up_to_the_score(
            criticality in prop::collection::vec(prop::option::of(0..=100_u8), 0..4),
            changes in prop::option::of((0..30_u64, 0..10_u64)),
            dependents in 0..5_usize,
            (finished, failed) in (0..=50_u32).prop_flat_map(|finished| (Just(finished), 0..=finished)),
        ) {
            let risk = assess(&inputs(&criticality, changes, dependents, (finished, failed)), RiskThresholds::default());
            let sum: f64 = risk.factors.iter().map(|factor| factor.contribution).sum();
            prop_assert!((sum - f64::from(risk.score)).abs() < 0.5 + 1e-9, "{sum} and {}", risk.score);
            for factor in &risk.factors {
                prop_assert!((0.0..=100.0).contains(&factor.value));
                prop_assert!((factor.value * factor.weight - factor.contribution).abs() < 1e-9);
            }
        }
    }
}
