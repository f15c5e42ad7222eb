//! The report of a benchmark: rows of figures, each with its aim and verdict. Serialised for `--json`.

use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

use crate::cpu::CpuCost;
use crate::machine::Machine;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Met,
    Missed,
    /// A quick run is too small to judge, and some figures have no aim.
    NotJudged,
}

#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    pub name: String,
    pub value: f64,
    pub unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aim_below: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aim_at_least: Option<f64>,
    pub verdict: Verdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<Ratio>,
}

/// A figure relative to another figure of the same run.
#[derive(Debug, Clone, Serialize)]
pub struct Ratio {
    pub value: f64,
    pub to: String,
}

#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub row: &'static str,
    pub what: String,
    pub figures: Vec<Figure>,
    /// CPU time of each part per operation; also that of the baseline, if there is one.
    pub cpu: Vec<CpuCost>,
    pub details: Value,
}

/// Where locks and tasks are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Deployment {
    #[serde(rename = "embedded")]
    Embedded,
    /// Locks only.
    #[serde(rename = "Redis")]
    Redis,
    #[serde(rename = "Redis + PostgreSQL")]
    Distributed,
    /// A server that already runs; its deployment is unknown.
    #[serde(rename = "external")]
    External,
}

#[derive(Debug, Serialize)]
pub struct Report {
    pub machine: Machine,
    pub deployment: Deployment,
    /// The executable of the server, if it is not this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binary: Option<PathBuf>,
    pub quick: bool,
    pub seconds: f64,
    pub rows: Vec<Row>,
}

impl Figure {
    pub(super) fn below(name: impl Into<String>, value: f64, unit: &'static str, aim: f64) -> Self {
        let verdict = if value < aim { Verdict::Met } else { Verdict::Missed };
        Self { aim_below: Some(aim), verdict, ..Self::plain(name, value, unit) }
    }

    pub(super) fn at_least(name: impl Into<String>, value: f64, unit: &'static str, aim: f64) -> Self {
        let verdict = if value >= aim { Verdict::Met } else { Verdict::Missed };
        Self { aim_at_least: Some(aim), verdict, ..Self::plain(name, value, unit) }
    }

    pub(super) fn plain(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        let (aim_below, aim_at_least) = (None, None);
        Self {
            name: name.into(),
            value,
            unit,
            aim_below,
            aim_at_least,
            verdict: Verdict::NotJudged,
            ratio: None,
        }
    }

    /// Adds the ratio to another figure.
    pub(super) fn relative_to(mut self, other: f64, reference: impl Into<String>) -> Self {
        self.ratio = (other > 0.0).then(|| Ratio { value: self.value / other, to: reference.into() });
        self
    }
}

impl Report {
    /// For runs that are too small to judge.
    pub(super) fn without_verdicts(mut self) -> Self {
        let figures = self.rows.iter_mut().flat_map(|row| &mut row.figures);
        figures.for_each(|figure| figure.verdict = Verdict::NotJudged);
        self
    }
}
