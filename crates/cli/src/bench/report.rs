//! Results: rows with what was measured, the aim, and an honest verdict; as a table or as JSON.

use comfy_table::{Cell, Color};
use owo_colors::OwoColorize;
use serde::Serialize;
use serde_json::Value;

use super::machine::Machine;
use crate::failure::Failure;
use crate::output;

/// Whether an aim was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    Met,
    Missed,
    /// A quick run is too small to judge, and some figures have no aim.
    NotJudged,
}

/// A measured figure and what it should be.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Figure {
    pub(super) name: String,
    pub(super) value: f64,
    pub(super) unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) aim_below: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) aim_at_least: Option<f64>,
    pub(super) verdict: Verdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio: Option<Ratio>,
}

/// The figure compared with another one of the same run.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Ratio {
    pub(super) value: f64,
    pub(super) to: String,
}

/// One row of the speed table.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    pub(super) row: &'static str,
    pub(super) what: String,
    pub(super) figures: Vec<Figure>,
    pub(super) details: Value,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) machine: Machine,
    pub(super) quick: bool,
    pub(super) seconds: f64,
    pub(super) rows: Vec<Row>,
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

    fn cells(&self) -> [Cell; 4] {
        let aim = match (self.aim_below, self.aim_at_least) {
            (Some(below), _) => format!("< {below} {}", self.unit),
            (None, Some(least)) => format!("≥ {} {}", number(least), self.unit),
            (None, None) => String::new(),
        };
        let verdict = match self.verdict {
            Verdict::Met => Cell::new("met").fg(Color::Green),
            Verdict::Missed => Cell::new("missed").fg(Color::Red),
            Verdict::NotJudged => Cell::new(""),
        };
        let ratio = self.ratio.as_ref().map(|Ratio { value, to }| format!("{value:.2} × {to}"));
        let measured = format!("{} {}", number(self.value), self.unit);
        [
            Cell::new(measured.trim_end()),
            Cell::new(aim.trim_end()),
            verdict,
            Cell::new(ratio.unwrap_or_default()),
        ]
    }
}

impl Report {
    /// A run too small to judge must not look like a judgement.
    pub(super) fn without_verdicts(mut self) -> Self {
        let figures = self.rows.iter_mut().flat_map(|row| &mut row.figures);
        figures.for_each(|figure| figure.verdict = Verdict::NotJudged);
        self
    }

    pub(super) fn print(&self) -> Result<(), Failure> {
        let mut table = output::table(&["ROW", "FIGURE", "MEASURED", "AIM", "VERDICT", "RATIO"]);
        for row in &self.rows {
            for (at, figure) in row.figures.iter().enumerate() {
                let name = if at == 0 { row.row } else { "" };
                let [measured, aim, verdict, ratio] = figure.cells();
                table.add_row([Cell::new(name), Cell::new(&figure.name), measured, aim, verdict, ratio]);
            }
        }
        output::line(&table.to_string())?;
        output::line("")?;
        for row in &self.rows {
            output::line(&format!("  {:<10} {}", row.row.bold(), row.what))?;
        }
        output::line(&format!("  {:<10} {}", "machine".bold(), self.machine.line()))?;
        if self.quick {
            output::note("a quick run shows that everything works; it is too small to judge by");
        } else if cfg!(debug_assertions) {
            output::note("this is a debug build; figures of a release build are several times better");
        }
        Ok(())
    }
}

/// Three digits that matter.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
