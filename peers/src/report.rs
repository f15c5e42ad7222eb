//! The report: a table per row with one line per peer, or JSON with every round.
//!
//! Invariant: every selected peer has a line in every row, with figures or with the reason why there are none.

use comfy_table::{Attribute, Cell, LineStyle, Table, presets};
use owo_colors::OwoColorize;
use serde::Serialize;

use crate::machine::Machine;
use crate::registry::Peer;
use crate::rows::{Figure, Row};

/// The results of one peer in one row.
#[derive(Debug, Serialize)]
pub(crate) struct PeerResults {
    peer: &'static str,
    method: String,
    baseline: &'static str,
    /// Medians of the rounds.
    figures: Vec<Median>,
    #[serde(rename = "rounds", serialize_with = "serialize_rounds")]
    pub(crate) rounds: Vec<Vec<Figure>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) not_measured: Option<String>,
}

#[derive(Debug, Serialize)]
struct Median {
    name: &'static str,
    /// Infinite as a ratio to a client without grants; JSON then has null.
    value: f64,
    unit: &'static str,
    /// Median of the ratios to the baseline within each round.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(crate) struct RowReport {
    row: String,
    /// Whether to show ratios. In some rows they only depend on the pause of the baseline.
    #[serde(skip)]
    has_ratios: bool,
    description: String,
    peers: Vec<PeerResults>,
}

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

impl PeerResults {
    pub(crate) fn new(peer: &Peer) -> Self {
        let Peer { name, method, baseline, .. } = peer;
        Self {
            peer: name,
            method: method.clone(),
            baseline,
            figures: Vec::new(),
            rounds: Vec::new(),
            not_measured: None,
        }
    }

    fn value(&self, round: usize, figure: &str) -> Option<f64> {
        self.rounds.get(round)?.iter().find(|found| found.name == figure).map(|found| found.value)
    }

    fn medians(&self, baseline: Option<&Self>) -> Vec<Median> {
        let names = self.rounds.first().into_iter().flatten();
        names
            .map(|Figure { name, unit, .. }| {
                let rounds = 0..self.rounds.len();
                let values = rounds.clone().filter_map(|round| self.value(round, name)).collect();
                let ratios: Vec<f64> = rounds
                    .filter_map(|round| Some(self.value(round, name)? / baseline?.value(round, name)?))
                    .filter(|ratio| ratio.is_finite())
                    .collect();
                let ratio = (!ratios.is_empty()).then(|| median(ratios));
                Median { name, unit, value: median(values), ratio }
            })
            .collect()
    }
}

impl RowReport {
    pub(crate) fn new(row: Row, mut peers: Vec<PeerResults>) -> Self {
        let medians: Vec<_> = peers
            .iter()
            .map(|peer| peer.medians(peers.iter().find(|other| other.peer == peer.baseline)))
            .collect();
        for (peer, figures) in peers.iter_mut().zip(medians) {
            peer.figures = figures;
        }
        Self { row: row.name(), has_ratios: row == Row::Pairs, description: row.description(), peers }
    }

    fn table(&self) -> Table {
        let measured = self.peers.iter().map(|peer| &peer.figures).find(|figures| !figures.is_empty());
        let names: Vec<&str> = measured.into_iter().flatten().map(|figure| figure.name).collect();
        let titles = ["row", "peer"].into_iter().chain(names.iter().copied());
        let titles = titles.chain(self.has_ratios.then_some("ratio"));
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING.header_separator(LineStyle::none().fill('─').junction('─')))
            .set_header(titles.map(|title| Cell::new(title.to_uppercase()).add_attribute(Attribute::Bold)));
        for (at, peer) in self.peers.iter().enumerate() {
            let row = if at == 0 { self.row.as_str() } else { "" };
            let mut cells = vec![row.to_owned(), peer.peer.to_owned()];
            let figure = |name: &&str| peer.figures.iter().find(|figure| figure.name == *name);
            cells.extend(names.iter().map(|name| figure(name).map_or_else(|| "–".to_owned(), Median::text)));
            let ratio = peer.figures.first().and_then(|figure| figure.ratio).filter(|_| self.has_ratios);
            cells.extend(ratio.map(|ratio| format!("{ratio:.2} × {}", peer.baseline)));
            table.add_row(cells);
        }
        table
    }

    fn print(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        writeln!(out, "{}\n", self.table())?;
        writeln!(out, "  {:<10} {}", "measured".bold(), self.description)?;
        for peer in &self.peers {
            if let Some(reason) = &peer.not_measured {
                let status = match peer.rounds.len() {
                    0 => "not measured".to_owned(),
                    rounds => format!("stopped after {rounds} rounds"),
                };
                // The reason may include a long log, which only the JSON shows.
                let reason = reason.lines().next().unwrap_or_default();
                writeln!(out, "  {:<10} {}: {reason}", status.red(), peer.peer)?;
            }
        }
        writeln!(out)
    }
}

impl Median {
    fn text(&self) -> String {
        format!("{} {}", format_number(self.value), self.unit).trim_end().to_owned()
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
            writeln!(out, "  {:<18} {}", peer.peer.bold(), peer.method)?;
        }
        let versions: Vec<String> =
            self.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
        writeln!(out, "  {:<18} {}", "versions".bold(), versions.join(", "))?;
        writeln!(out, "  {:<18} {}", "machine".bold(), self.machine.summary())?;
        let Self { rounds, seconds, threads, .. } = self;
        writeln!(
            out,
            "  {:<18} {rounds} rounds of {seconds} s each; medians; ratios within the same round; Rust clients on {threads} threads",
            "measured".bold()
        )?;
        if self.quick {
            writeln!(out, "  {:<18} shows that everything works; too small to judge", "quick run".bold())?;
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

/// Formats with three significant digits.
fn format_number(value: f64) -> String {
    match value.abs() {
        size if size.is_infinite() => "∞".to_owned(),
        size if size >= 100.0 || size.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Serialises each round as an object: figure → value.
fn serialize_rounds<S: serde::Serializer>(rounds: &[Vec<Figure>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(rounds.iter().map(|figures| {
        let pairs = figures.iter().map(|figure| (figure.name.to_owned(), figure.value.into()));
        pairs.collect::<serde_json::Map<_, _>>()
    }))
}

#[cfg(test)]
mod tests {
    use super::{format_number, median};

    #[test]
    fn median_is_the_middle_value() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0]), 2.5);
        assert!(median(Vec::new()).is_nan());
        assert_eq!(median(vec![f64::INFINITY, 1.0, f64::INFINITY]), f64::INFINITY);
    }

    #[test]
    fn formats_three_significant_digits() {
        assert_eq!(format_number(1234.5), "1234");
        assert_eq!(format_number(12.34), "12.3");
        assert_eq!(format_number(1.234), "1.23");
        assert_eq!(format_number(f64::INFINITY), "∞");
    }
}
