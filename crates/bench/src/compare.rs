//! `ade bench compare`: the reports of two builds, figure by figure, and whether a difference is more than noise.
//!
//! Noise is measured, never assumed: a difference counts only if the runs of the one build and those of the other do not overlap.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use serde::{Deserialize, Serialize};
use serde_json::Deserializer;

use crate::cpu::CpuCost;
use crate::error::{BenchError, ErrorKind};

/// With fewer runs of each, even figures without any difference often do not overlap.
const MIN_RUNS: usize = 3;
const METHOD: &str = "\
Both files have the JSON of several runs, one after the other. Let the two builds take turns, so
that both see the same noise:
  for run in 1 2 3 4 5; do old/ade bench lifecycle --json >> old.json; new/ade bench lifecycle --json >> new.json; done
A difference counts if no run of the one build is within the range of the other, with at least
three runs of each. With three runs this happens by chance in one of ten figures, with five in
one of a hundred.";

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
    deployment: String,
    quick: bool,
    rows: Vec<StoredRow>,
}

#[derive(Debug, Deserialize)]
struct StoredRow {
    row: String,
    figures: Vec<StoredFigure>,
    cpu: Vec<CpuCost>,
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
    /// More or less, of a figure for which neither is known to be better.
    Different,
    WithinNoise,
    TooFewRuns,
    /// The new build has no such figure.
    OnlyOld,
    /// The old build has no such figure.
    OnlyNew,
}

/// A figure of both builds, or of one of them.
#[derive(Debug, Clone, Serialize)]
pub struct ComparedFigure {
    pub deployment: String,
    pub row: String,
    pub name: String,
    pub unit: String,
    pub old: Option<Spread>,
    pub new: Option<Spread>,
    /// The median of the new build over that of the old one.
    pub ratio: Option<f64>,
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

/// Identifies a figure: runs of different deployments are different figures.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    deployment: String,
    row: String,
    name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Better {
    Less,
    More,
    Unknown,
}

/// The values of a figure, one per run.
#[derive(Debug)]
struct Values {
    key: Key,
    unit: String,
    better: Better,
    values: Vec<f64>,
}

/// All figures of one build, in the order of its first report.
#[derive(Debug, Default)]
struct Build(Vec<Values>);

impl Build {
    fn read(file: &Path) -> Result<Self, BenchError> {
        let input = |reason: String| {
            BenchError::new(ErrorKind::Input, format!("cannot read {}: {reason}", file.display()))
        };
        let text = fs::read_to_string(file).map_err(|error| input(error.to_string()))?;
        let mut build = Self::default();
        for report in Deserializer::from_str(&text).into_iter::<StoredReport>() {
            let report = report.map_err(|error| {
                input(error.to_string()).hint("write it with ade bench locks --json, or another benchmark")
            })?;
            if report.quick {
                return Err(input("a run with --quick is too short to compare".to_owned()));
            }
            for row in report.rows {
                build.add_row(&report.deployment, row);
            }
        }
        if build.0.is_empty() { Err(input("it has no reports".to_owned())) } else { Ok(build) }
    }

    fn add_row(&mut self, deployment: &str, row: StoredRow) {
        let key = |name| Key { deployment: deployment.to_owned(), row: row.row.clone(), name };
        let mut judged = BTreeSet::new();
        for StoredFigure { name, value, unit, aim_below, aim_at_least } in row.figures {
            let better = match (aim_below, aim_at_least) {
                (Some(_), _) => Better::Less,
                (None, Some(_)) => Better::More,
                (None, None) => Better::Unknown,
            };
            judged.insert(name.clone());
            self.add(key(name), unit, better, value);
        }
        for (name, us) in row.cpu.iter().flat_map(CpuCost::parts) {
            // A part with an aim is among the figures too.
            if !judged.contains(&name) {
                self.add(key(name), "µs".to_owned(), Better::Less, us);
            }
        }
    }

    fn add(&mut self, key: Key, unit: String, better: Better, value: f64) {
        match self.0.iter_mut().find(|known| known.key == key) {
            Some(known) => known.values.push(value),
            None => self.0.push(Values { key, unit, better, values: vec![value] }),
        }
    }
}

pub(super) fn run(args: &Args) -> Result<Vec<ComparedFigure>, BenchError> {
    let (mut old, new) = (Build::read(&args.old)?, Build::read(&args.new)?);
    let mut compared = Vec::new();
    for new in new.0 {
        let old = old.0.iter().position(|old| old.key == new.key).map(|at| old.0.remove(at));
        compared.push(compare(old, Some(new)));
    }
    compared.extend(old.0.into_iter().map(|old| compare(Some(old), None)));
    Ok(compared.into_iter().flatten().collect())
}

fn compare(old: Option<Values>, new: Option<Values>) -> Option<ComparedFigure> {
    let spread = |build: &Option<Values>| Spread::of(build.as_ref()?.values.clone());
    let (old_spread, new_spread) = (spread(&old), spread(&new));
    let Values { key: Key { deployment, row, name }, unit, better, .. } = new.or(old)?;
    let both = old_spread.zip(new_spread);
    let difference = match both {
        Some((old, new)) => difference(better, old, new),
        None if new_spread.is_some() => Difference::OnlyNew,
        None => Difference::OnlyOld,
    };
    let ratio = both.map(|(old, new)| new.median / old.median).filter(|ratio| ratio.is_finite());
    Some(ComparedFigure { deployment, row, name, unit, old: old_spread, new: new_spread, ratio, difference })
}

fn difference(better: Better, old: Spread, new: Spread) -> Difference {
    let (is_less, is_more) = (new.most < old.least, new.least > old.most);
    match better {
        _ if old.runs.min(new.runs) < MIN_RUNS => Difference::TooFewRuns,
        _ if !is_less && !is_more => Difference::WithinNoise,
        Better::Unknown => Difference::Different,
        Better::Less if is_less => Difference::Better,
        Better::More if is_more => Difference::Better,
        Better::Less | Better::More => Difference::Worse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::io::Write;

    fn report(deployment: &str, value: f64) -> Value {
        let cpu = json!({
            "operation": "pair", "operations": 7, "server_us": null, "redis_us": value, "redis_main_thread_us": value,
            "postgresql_us": null, "client_us": value, "client_threads": 2,
        });
        json!({ "deployment": deployment, "quick": false, "rows": [{ "row": "pair", "cpu": [cpu], "figures": [
            { "name": "Redis per pair", "value": value, "unit": "µs", "aim_below": 20.0 },
            { "name": "pairs", "value": value, "unit": "/s", "aim_at_least": 1.0 },
            { "name": "p50", "value": value, "unit": "ms" },
        ] }] })
    }

    fn compare_reports(old: &[Value], new: &[Value]) -> Result<Vec<ComparedFigure>, BenchError> {
        let write = |reports: &[Value]| {
            let mut file = tempfile::NamedTempFile::new().expect("a file");
            reports.iter().for_each(|report| write!(file, "{report:#}").expect("written"));
            file
        };
        let (old, new) = (write(old), write(new));
        run(&Args { old: old.path().to_owned(), new: new.path().to_owned(), json: false })
    }

    fn differences(old: &[f64], new: &[f64]) -> Vec<Difference> {
        let reports = |values: &[f64]| values.iter().map(|value| report("Redis", *value)).collect::<Vec<_>>();
        let compared = compare_reports(&reports(old), &reports(new)).expect("compared");
        let names: Vec<&str> = compared.iter().map(|figure| figure.name.as_str()).collect();
        assert_eq!(
            names,
            ["Redis per pair", "pairs", "p50", "client per pair"],
            "CPU time with an aim is there once"
        );
        compared.iter().map(|figure| figure.difference).collect()
    }

    #[test]
    fn differs_only_beyond_noise() {
        use Difference::{Better, Different, TooFewRuns, WithinNoise, Worse};
        let old = [10.0, 11.0, 12.0];
        assert_eq!(differences(&old, &[7.0, 8.0, 9.9]), [Better, Worse, Different, Better]);
        assert_eq!(differences(&old, &[13.0, 14.0, 15.0]), [Worse, Better, Different, Worse]);
        assert_eq!(differences(&old, &[12.0, 14.0, 15.0]), [WithinNoise; 4]);
        assert_eq!(differences(&[10.0, 11.0], &[1.0, 2.0, 3.0]), [TooFewRuns; 4]);
        assert!(compare_reports(&[], &[report("Redis", 1.0)]).is_err(), "a file without reports");
    }

    #[test]
    fn shows_figures_of_one_build_and_keeps_deployments_apart() {
        let compared =
            compare_reports(&[report("embedded", 2.0)], &[report("Redis", 3.0)]).expect("compared");
        let found: Vec<_> =
            compared.iter().map(|figure| (figure.deployment.as_str(), figure.difference)).collect();
        let expected = [[("Redis", Difference::OnlyNew); 4], [("embedded", Difference::OnlyOld); 4]];
        assert_eq!(found, expected.as_flattened());
        assert!(
            compared
                .iter()
                .all(|figure| figure.ratio.is_none() && figure.old.is_some() != figure.new.is_some())
        );
    }
}
