//! Results: a table for each row with one line for each contestant, or JSON with every round.
//!
//! Invariant: every contestant that was asked for has a line in every row, if only with the reason why it has no figures.

use comfy_table::{Attribute, Cell, LineStyle, Table, presets};
use owo_colors::OwoColorize;
use serde::Serialize;

use crate::contestants::Contestant;
use crate::machine::Machine;
use crate::rows::{Figure, Row};

/// One contestant in one row.
#[derive(Debug, Serialize)]
pub(crate) struct Measured {
    peer: &'static str,
    how: String,
    beside: &'static str,
    /// The medians of the rounds.
    figures: Vec<Median>,
    #[serde(rename = "rounds", serialize_with = "values")]
    pub(crate) rounds: Vec<Vec<Figure>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) not_measured: Option<String>,
}

#[derive(Debug, Serialize)]
struct Median {
    name: &'static str,
    /// Absent where it is no number: the ratio to somebody who got nothing.
    value: f64,
    unit: &'static str,
    /// Median of the ratios to the bare minimum, each of one round.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(crate) struct RowReport {
    row: String,
    /// Whether the ratio says something about the first figure, or only about the pause that the bare minimum was given.
    #[serde(skip)]
    compares: bool,
    what: String,
    peers: Vec<Measured>,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) quick: bool,
    pub(crate) seconds: f64,
    pub(crate) rounds: usize,
    pub(crate) threads: usize,
    pub(crate) versions: Vec<(String, String)>,
    pub(crate) rows: Vec<RowReport>,
}

impl Measured {
    pub(crate) fn of(contestant: &Contestant) -> Self {
        let Contestant { name, how, beside, .. } = contestant;
        Self {
            peer: name,
            how: how.clone(),
            beside,
            figures: Vec::new(),
            rounds: Vec::new(),
            not_measured: None,
        }
    }

    fn value(&self, round: usize, figure: &str) -> Option<f64> {
        self.rounds.get(round)?.iter().find(|found| found.name == figure).map(|found| found.value)
    }

    fn medians(&self, bare: Option<&Self>) -> Vec<Median> {
        let names = self.rounds.first().into_iter().flatten();
        names
            .map(|Figure { name, unit, .. }| {
                let rounds = 0..self.rounds.len();
                let values = rounds.clone().filter_map(|round| self.value(round, name)).collect();
                let ratios: Vec<f64> = rounds
                    .filter_map(|round| Some(self.value(round, name)? / bare?.value(round, name)?))
                    .filter(|ratio| ratio.is_finite())
                    .collect();
                let ratio = (!ratios.is_empty()).then(|| median(ratios));
                Median { name, unit, value: median(values), ratio }
            })
            .collect()
    }
}

impl RowReport {
    pub(crate) fn new(row: Row, mut peers: Vec<Measured>) -> Self {
        let medians: Vec<_> = peers
            .iter()
            .map(|peer| peer.medians(peers.iter().find(|bare| bare.peer == peer.beside)))
            .collect();
        for (peer, figures) in peers.iter_mut().zip(medians) {
            peer.figures = figures;
        }
        Self { row: row.name(), compares: row == Row::Pairs, what: row.what(), peers }
    }

    fn table(&self) -> Table {
        let some = self.peers.iter().map(|peer| &peer.figures).find(|figures| !figures.is_empty());
        let names: Vec<&str> = some.into_iter().flatten().map(|figure| figure.name).collect();
        let titles = ["row", "peer"].into_iter().chain(names.iter().copied());
        let titles = titles.chain(self.compares.then_some("ratio"));
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING.header_separator(LineStyle::none().fill('─').junction('─')))
            .set_header(titles.map(|title| Cell::new(title.to_uppercase()).add_attribute(Attribute::Bold)));
        for (at, peer) in self.peers.iter().enumerate() {
            let row = if at == 0 { self.row.as_str() } else { "" };
            let mut cells = vec![row.to_owned(), peer.peer.to_owned()];
            let figure = |name: &&str| peer.figures.iter().find(|figure| figure.name == *name);
            cells.extend(names.iter().map(|name| figure(name).map_or_else(|| "–".to_owned(), Median::text)));
            let ratio = peer.figures.first().and_then(|figure| figure.ratio).filter(|_| self.compares);
            cells.extend(ratio.map(|ratio| format!("{ratio:.2} × {}", peer.beside)));
            table.add_row(cells);
        }
        table
    }

    fn print(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        writeln!(out, "{}\n", self.table())?;
        writeln!(out, "  {:<10} {}", "what".bold(), self.what)?;
        for peer in &self.peers {
            if let Some(why) = &peer.not_measured {
                let after = match peer.rounds.len() {
                    0 => "not measured".to_owned(),
                    rounds => format!("stopped after {rounds} rounds"),
                };
                // A reason may end with a long log: that is for the JSON.
                let reason = why.lines().next().unwrap_or_default();
                writeln!(out, "  {:<10} {}: {reason}", after.red(), peer.peer)?;
            }
        }
        writeln!(out)
    }
}

impl Median {
    fn text(&self) -> String {
        format!("{} {}", number(self.value), self.unit).trim_end().to_owned()
    }
}

impl Report {
    pub(crate) fn print(&self) -> std::io::Result<()> {
        use std::io::Write;
        let mut out = anstream::stdout().lock();
        for row in &self.rows {
            row.print(&mut out)?;
        }
        for peer in self.rows.first().map(|row| row.peers.as_slice()).unwrap_or_default() {
            writeln!(out, "  {:<18} {}", peer.peer.bold(), peer.how)?;
        }
        let versions: Vec<String> =
            self.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
        writeln!(out, "  {:<18} {}", "versions".bold(), versions.join(", "))?;
        writeln!(out, "  {:<18} {}", "machine".bold(), self.machine.line())?;
        let Self { rounds, seconds, threads, .. } = self;
        writeln!(
            out,
            "  {:<18} {rounds} rounds of {seconds} s for each; medians; ratios within the same round; Rust clients on {threads} threads",
            "measured".bold()
        )?;
        if self.quick {
            writeln!(out, "  {:<18} shows that everything works; too small to judge by", "quick run".bold())?;
        }
        Ok(())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
    if values.len().is_multiple_of(2) {
        f64::midpoint(at(middle.wrapping_sub(1)), at(middle))
    } else {
        at(middle)
    }
}

/// Three digits that matter.
fn number(value: f64) -> String {
    match value.abs() {
        size if size.is_infinite() => "∞".to_owned(),
        size if size >= 100.0 || size.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Rounds as objects: figure → value.
fn values<S: serde::Serializer>(rounds: &[Vec<Figure>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(rounds.iter().map(|figures| {
        let pairs = figures.iter().map(|figure| (figure.name.to_owned(), figure.value.into()));
        pairs.collect::<serde_json::Map<_, _>>()
    }))
}

#[cfg(test)]
mod tests {
    use super::{median, number};

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0]), 2.5);
        assert!(median(Vec::new()).is_nan());
        assert_eq!(median(vec![f64::INFINITY, 1.0, f64::INFINITY]), f64::INFINITY);
    }

    #[test]
    fn numbers_have_three_digits_that_matter() {
        assert_eq!(number(1234.5), "1234");
        assert_eq!(number(12.34), "12.3");
        assert_eq!(number(1.234), "1.23");
        assert_eq!(number(f64::INFINITY), "∞");
    }
}
