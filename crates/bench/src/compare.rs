//! `ade bench compare`: the reports of two builds, figure by figure, and whether a difference is more than noise.
//!
//! Noise is measured, never assumed: a difference counts only if the runs of the one build and those of the other do not overlap.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use serde::{Deserialize, Serialize};
use serde_json::Deserializer;

use crate::error::{BenchError, ErrorKind};

/// With fewer runs of each, even figures without any difference often do not overlap.
const MIN_RUNS: usize = 3;
const METHOD: &str = "\
Both files have the JSON of several runs, one after the other. Let the two builds take turns, so that both see the same noise:
  for run in 1 2 3 4 5; do old/ade bench lifecycle --json >> old.json; new/ade bench lifecycle --json >> new.json; done
A difference counts if no run of the one build is within the range of the other, with at least three runs of each. With three runs
this happens by chance in one of ten figures, with five in one of a hundred.";

#[derive(Debug, ClapArgs)]
#[command(after_long_help = METHOD, after_help = "Use --help for how to make the files.")]
pub(super) struct Args {
    /// Reports of the old build, as --json prints them
    old: PathBuf,
    /// Reports of the new build
    new: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What is read of a report.
#[derive(Debug, Deserialize)]
struct StoredReport {
    rows: Vec<StoredRow>,
}

#[derive(Debug, Deserialize)]
struct StoredRow {
    row: String,
    figures: Vec<StoredFigure>,
}

#[derive(Debug, Deserialize)]
struct StoredFigure {
    name: String,
    value: f64,
    unit: String,
    aim_below: Option<f64>,
    aim_at_least: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Difference {
    Better,
    Worse,
    /// More or less, of a figure without an aim.
    Different,
    WithinNoise,
    TooFewRuns,
}

/// A figure of both builds.
#[derive(Debug, Clone, Serialize)]
pub struct ComparedFigure {
    pub row: String,
    pub name: String,
    pub unit: String,
    pub old: Spread,
    pub new: Spread,
    /// The median of the new build over that of the old one.
    pub ratio: f64,
    pub difference: Difference,
}

/// The runs of one build.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    pub least: f64,
    pub median: f64,
    pub most: f64,
    pub runs: usize,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        Some(Self { least, median: *values.get(values.len() / 2)?, most, runs: values.len() })
    }
}

/// Values of each row and figure in the order of the first report, with whether more is better.
#[derive(Debug, Default)]
struct Values(Vec<((String, String), StoredFigure, Vec<f64>)>);

impl Values {
    fn read(file: &Path) -> Result<Self, BenchError> {
        let input = |reason: String| {
            BenchError::new(ErrorKind::Input, format!("cannot read {}: {reason}", file.display()))
        };
        let text = fs::read_to_string(file).map_err(|error| input(error.to_string()))?;
        let mut values = Self::default();
        for report in Deserializer::from_str(&text).into_iter::<StoredReport>() {
            let report = report.map_err(|error| {
                input(error.to_string()).hint("write it with ade bench locks --json, or another benchmark")
            })?;
            for row in report.rows {
                for figure in row.figures {
                    values.add(row.row.clone(), figure);
                }
            }
        }
        if values.0.is_empty() { Err(input("it has no reports".to_owned())) } else { Ok(values) }
    }

    fn add(&mut self, row: String, figure: StoredFigure) {
        let key = (row, figure.name.clone());
        match self.0.iter_mut().find(|(known, ..)| *known == key) {
            Some((.., values)) => values.push(figure.value),
            None => {
                let value = figure.value;
                self.0.push((key, figure, vec![value]));
            }
        }
    }
}

pub(super) fn run(args: &Args) -> Result<Vec<ComparedFigure>, BenchError> {
    let (old, new) = (Values::read(&args.old)?, Values::read(&args.new)?);
    let mut old: BTreeMap<_, _> = old.0.into_iter().map(|(key, _, values)| (key, values)).collect();
    let compared = new.0.into_iter().filter_map(|(key, figure, values)| {
        let (old, new) = (Spread::of(old.remove(&key)?)?, Spread::of(values)?);
        let difference = difference(&figure, old, new);
        let ((row, name), unit) = (key, figure.unit);
        Some(ComparedFigure { row, name, unit, old, new, ratio: new.median / old.median, difference })
    });
    let compared: Vec<ComparedFigure> = compared.collect();
    if compared.is_empty() {
        return Err(BenchError::new(ErrorKind::Input, "the two files have no figure in common"));
    }
    Ok(compared)
}

fn difference(figure: &StoredFigure, old: Spread, new: Spread) -> Difference {
    if old.runs.min(new.runs) < MIN_RUNS {
        return Difference::TooFewRuns;
    }
    let (is_less, is_more) = (new.most < old.least, new.least > old.most);
    match (figure.aim_below.is_some(), figure.aim_at_least.is_some()) {
        _ if !is_less && !is_more => Difference::WithinNoise,
        (true, _) if is_less => Difference::Better,
        (_, true) if is_more => Difference::Better,
        (false, false) => Difference::Different,
        _ => Difference::Worse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differs_only_beyond_noise() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, values: &[f64]| {
            let report = |value: &f64| {
                serde_json::json!({ "rows": [{ "row": "pair", "figures": [
                    { "name": "CPU", "value": value, "unit": "µs", "aim_below": 20.0 },
                    { "name": "pairs", "value": value, "unit": "/s", "aim_at_least": 1.0 },
                    { "name": "other", "value": value, "unit": "" },
                ] }] })
            };
            let file = folder.path().join(name);
            let reports: Vec<String> = values.iter().map(|value| report(value).to_string()).collect();
            fs::write(&file, reports.join("\n")).expect("written");
            file
        };
        let compare = |old: &[f64], new: &[f64]| {
            let args = Args { old: write("old", old), new: write("new", new), json: false };
            let compared = run(&args).expect("compared");
            compared.iter().map(|figure| figure.difference).collect::<Vec<_>>()
        };
        use Difference::{Better, Different, TooFewRuns, WithinNoise, Worse};
        assert_eq!(compare(&[10.0, 11.0, 12.0], &[7.0, 8.0, 9.9]), [Better, Worse, Different]);
        assert_eq!(compare(&[10.0, 11.0, 12.0], &[13.0, 14.0, 15.0]), [Worse, Better, Different]);
        assert_eq!(compare(&[10.0, 11.0, 12.0], &[12.0, 14.0, 15.0]), [WithinNoise; 3]);
        assert_eq!(compare(&[10.0, 11.0], &[1.0, 2.0, 3.0]), [TooFewRuns; 3]);
        let empty = Args { old: write("none", &[]), new: write("new", &[1.0]), json: false };
        assert!(run(&empty).is_err());
    }
}
