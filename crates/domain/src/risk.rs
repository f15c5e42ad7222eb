//! How dangerous a task is: four factors, each from 0 to 100, weighed and added.
//!
//! The sum is exact until its one rounding at the end, half up, so that the parts that people see add up to what is decided by.

use serde::{Deserialize, Serialize};

/// Which way of scoring this is.
pub const ASSESSED_BY: &str = "ade-risk-1";
/// How dangerous a resource counts that nobody registered.
pub const UNREGISTERED: u8 = 50;
/// Finished tasks of a type that its history looks back on.
pub const HISTORY: u32 = 50;
/// With fewer finished tasks there is no history.
const LEAST_HISTORY: u32 = 5;
const HIGHEST: u64 = 100;

/// What the score is made from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// Each resource with what the registry says about it.
    pub resources: Vec<Registered>,
    /// What the preview would change; nothing if there is no preview to be had.
    pub changes: Option<Changes>,
    /// How the last finished tasks of the same type ended, at most [`HISTORY`].
    pub history: History,
}

/// A resource and what the registry says about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// As `type:id`.
    pub resource: String,
    /// From 0 to 100; nothing if nobody registered it.
    pub criticality: Option<u8>,
    /// What depends on it, as `type:id`.
    pub dependents: Vec<String>,
}

/// How much a preview would change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Changes {
    /// Items that would be made or changed.
    pub created_or_changed: u64,
    /// Items that would be gone.
    pub deleted: u64,
}

/// How earlier tasks ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct History {
    /// All that are finished.
    pub finished: u32,
    /// Those that failed.
    pub failed: u32,
}

/// From where on a risk is medium, high and critical.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thresholds {
    /// Medium from here.
    pub medium: u8,
    /// High from here.
    pub high: u8,
    /// Critical from here.
    pub critical: u8,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self { medium: 25, high: 50, critical: 75 }
    }
}

/// How dangerous, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Level {
    /// Below the first threshold.
    Low,
    /// Below the second.
    Medium,
    /// Below the third.
    High,
    /// All others.
    Critical,
}

/// The score, and how it came about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Risk {
    /// From 0 to 100.
    pub score: u8,
    /// In a word.
    pub level: Level,
    /// What it is made of.
    pub factors: Vec<Factor>,
    /// By which way of scoring.
    pub assessed_by: String,
}

/// One part of the score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Factor {
    /// Which one.
    pub name: String,
    /// From 0 to 100.
    pub value: f64,
    /// How much it counts.
    pub weight: f64,
    /// What it adds to the score.
    pub contribution: f64,
    /// How it came about, for people.
    pub why: String,
}

/// A factor before it is shown: `value / of`, and its weight in tenths.
struct Part {
    name: &'static str,
    tenths: u64,
    value: u64,
    of: u64,
    why: String,
}

/// The risk of a task.
#[must_use]
pub fn assess(facts: &Facts, thresholds: Thresholds) -> Risk {
    let parts = [criticality(facts), magnitude(facts), blast_radius(facts), failure_rate(facts)];
    // Over the product of all denominators, so that nothing is rounded before the end. Only one of them is not 1.
    let common: u64 = parts.iter().map(|part| part.of).product();
    let sum: u64 = parts.iter().map(|part| part.tenths * part.value * (common / part.of)).sum();
    let tenths = common * 10;
    let score = u8::try_from((2 * sum + tenths) / (2 * tenths)).unwrap_or(u8::MAX).min(100);
    Risk {
        score,
        level: level(score, thresholds),
        factors: parts.into_iter().map(shown).collect(),
        assessed_by: ASSESSED_BY.to_owned(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "numbers up to a hundred times fifty")]
fn shown(part: Part) -> Factor {
    let value = part.value as f64 / part.of as f64;
    Factor {
        name: part.name.to_owned(),
        value,
        weight: part.tenths as f64 / 10.0,
        contribution: (part.tenths * part.value) as f64 / (10 * part.of) as f64,
        why: part.why,
    }
}

/// The word for a score.
#[must_use]
pub const fn level(score: u8, thresholds: Thresholds) -> Level {
    if score < thresholds.medium {
        Level::Low
    } else if score < thresholds.high {
        Level::Medium
    } else if score < thresholds.critical {
        Level::High
    } else {
        Level::Critical
    }
}

fn criticality(facts: &Facts) -> Part {
    let of = |resource: &Registered| resource.criticality.unwrap_or(UNREGISTERED).min(100);
    let highest = facts.resources.iter().max_by_key(|resource| of(resource));
    let (value, why) = match highest {
        None => (0, "no resources".to_owned()),
        Some(resource) if resource.criticality.is_none() => {
            (UNREGISTERED, format!("{} is not registered, which counts {UNREGISTERED}", resource.resource))
        }
        Some(resource) => (of(resource), format!("{} is the most critical resource", resource.resource)),
    };
    Part { name: "resource_criticality", tenths: 4, value: value.into(), of: 1, why }
}

fn magnitude(facts: &Facts) -> Part {
    let (value, why) = match facts.changes {
        None => (HIGHEST, "no preview tells what would change, so anything may".to_owned()),
        Some(Changes { created_or_changed, deleted }) => {
            let points = created_or_changed.saturating_mul(5).saturating_add(deleted.saturating_mul(15));
            let why = format!("5 × {created_or_changed} created or changed + 15 × {deleted} deleted");
            (points.min(HIGHEST), why)
        }
    };
    Part { name: "change_magnitude", tenths: 3, value, of: 1, why }
}

fn blast_radius(facts: &Facts) -> Part {
    let mut dependents: Vec<&str> =
        facts.resources.iter().flat_map(|resource| &resource.dependents).map(String::as_str).collect();
    dependents.sort_unstable();
    dependents.dedup();
    dependents.retain(|name| !facts.resources.iter().any(|resource| resource.resource == *name));
    let (own, others) = (facts.resources.len() as u64, dependents.len() as u64);
    let value = (own + others).saturating_mul(10).min(HIGHEST);
    let why = format!("10 × ({own} resources + {others} registered dependents)");
    Part { name: "blast_radius", tenths: 2, value, of: 1, why }
}

fn failure_rate(facts: &Facts) -> Part {
    let History { finished, failed } = facts.history;
    let (value, of, why) = if finished < LEAST_HISTORY {
        (0, 1, format!("{finished} finished tasks of this type: too few to tell"))
    } else {
        let failed = failed.min(finished);
        let why = format!("{failed} of the last {finished} tasks of this type failed");
        (HIGHEST * u64::from(failed), u64::from(finished), why)
    };
    Part { name: "historical_failure_rate", tenths: 1, value, of, why }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn facts(
        criticality: &[Option<u8>],
        changes: Option<(u64, u64)>,
        dependents: usize,
        history: (u32, u32),
    ) -> Facts {
        let resources = criticality.iter().enumerate().map(|(number, criticality)| Registered {
            resource: format!("database:{number}"),
            criticality: *criticality,
            dependents: (0..dependents).map(|other| format!("service:{other}")).collect(),
        });
        Facts {
            resources: resources.collect(),
            changes: changes.map(|(created_or_changed, deleted)| Changes { created_or_changed, deleted }),
            history: History { finished: history.0, failed: history.1 },
        }
    }

    #[test]
    fn to_the_digit() {
        for (facts, score, level) in [
            (facts(&[], Some((0, 0)), 0, (0, 0)), 0, Level::Low),
            // 0.4 × 50 + 0.3 × 5 + 0.2 × 10 = 23.5, half up.
            (facts(&[None], Some((1, 0)), 0, (4, 4)), 24, Level::Low),
            // 0.4 × 80 + 0.3 × 35 + 0.2 × 30 + 0.1 × 20 = 50.5.
            (facts(&[Some(80)], Some((1, 2)), 2, (5, 1)), 51, Level::High),
            // 36 + 3 + 4 + 14.2857… / 10 = 44.43: the percentage is not rounded by itself.
            (facts(&[Some(90), Some(10)], Some((2, 0)), 0, (7, 1)), 44, Level::Medium),
            (facts(&[Some(100)], None, 9, (50, 50)), 100, Level::Critical),
            (facts(&[Some(100); 12], Some((u64::MAX, u64::MAX)), 0, (50, 0)), 90, Level::Critical),
            // 0.4 × 100 + 0.3 × 100 + 0.2 × 25…: dependents are counted once, however many resources they depend on.
            (facts(&[Some(100), Some(100)], None, 3, (0, 0)), 80, Level::Critical),
        ] {
            let risk = assess(&facts, Thresholds::default());
            assert_eq!((risk.score, risk.level), (score, level), "{risk:?}");
        }
    }

    proptest! {
        #[test]
        fn the_parts_add_up(
            criticality in prop::collection::vec(prop::option::of(0..=100_u8), 0..4),
            changes in prop::option::of((0..30_u64, 0..10_u64)),
            dependents in 0..5_usize,
            (finished, failed) in (0..=50_u32).prop_flat_map(|finished| (Just(finished), 0..=finished)),
        ) {
            let risk = assess(&facts(&criticality, changes, dependents, (finished, failed)), Thresholds::default());
            let sum: f64 = risk.factors.iter().map(|factor| factor.contribution).sum();
            prop_assert!((sum - f64::from(risk.score)).abs() < 0.5 + 1e-9, "{sum} and {}", risk.score);
            for factor in &risk.factors {
                prop_assert!((0.0..=100.0).contains(&factor.value));
                prop_assert!((factor.value * factor.weight - factor.contribution).abs() < 1e-9);
            }
        }
    }
}
