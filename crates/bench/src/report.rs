//! Results: rows with what was measured, the aim, and an honest verdict; as a table or as JSON.

use serde::Serialize;
use serde_json::Value;

use crate::machine::Machine;

/// Whether an aim was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Met,
    Missed,
    /// A quick run is too small to judge, and some figures have no aim.
    NotJudged,
}

/// A measured figure and what it should be.
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

/// The figure compared with another one of the same run.
#[derive(Debug, Clone, Serialize)]
pub struct Ratio {
    pub value: f64,
    pub to: String,
}

/// One row of the speed table.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub row: &'static str,
    pub what: String,
    pub figures: Vec<Figure>,
    pub details: Value,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    pub machine: Machine,
    pub quick: bool,
    pub seconds: f64,
    pub rows: Vec<Row>,
}

impl Figure {
    /// A figure that should be below its aim.
    pub(super) fn aim(name: impl Into<String>, value: f64, unit: &'static str, below: f64) -> Self {
        let verdict = if value < below { Verdict::Met } else { Verdict::Missed };
        Self { aim_below: Some(below), verdict, ..Self::plain(name, value, unit) }
    }

    /// A figure that should reach its aim.
    pub(super) fn at_least(name: impl Into<String>, value: f64, unit: &'static str, least: f64) -> Self {
        let verdict = if value >= least { Verdict::Met } else { Verdict::Missed };
        Self { aim_at_least: Some(least), verdict, ..Self::plain(name, value, unit) }
    }

    /// A figure without an aim.
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

    /// Compared with another figure.
    pub(super) fn against(mut self, other: f64, to: impl Into<String>) -> Self {
        self.ratio = (other > 0.0).then(|| Ratio { value: self.value / other, to: to.into() });
        self
    }
}

impl Report {
    /// A run too small to judge must not look like a judgement.
    pub(super) fn without_verdicts(mut self) -> Self {
        let figures = self.rows.iter_mut().flat_map(|row| &mut row.figures);
        figures.for_each(|figure| figure.verdict = Verdict::NotJudged);
        self
    }
}
