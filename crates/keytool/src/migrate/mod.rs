//! Migrates the keys of a former schema to the present one: keys with former patterns get their present name, numbers of approval
//! states become words, and lists in JSON fields become JSON.
//!
//! Invariants: nothing is lost, whenever the process is killed. A key is renamed atomically, or copied to its new slot before the old
//! one is removed; TTLs stay; an existing key is never overwritten. What is done is no longer found, so a repeated migration
//! continues. Without `apply`, nothing is written.

mod apply;
mod plan;

use std::collections::BTreeMap;

use ade_catalog::{Catalog, KeyIndex, Layout};
use serde::Serialize;

use self::apply::Writer;
pub use self::plan::StatusMap;
use self::plan::{Planner, Step};
use crate::audit::Progress;
use crate::scan::{Denied, Pace, Pacer, next_batch};
use crate::server::{Deployment, DeploymentKind, Role, ServerError};
use crate::text::shown_key;

/// Examples of each kind of step.
const MAX_EXAMPLES: usize = 10;
/// A rename can move a key to a place where the scan has been already, so scans are repeated until nothing is left.
const MAX_PASSES: usize = 5;

/// How a migration works.
#[derive(Debug, Clone)]
pub struct MigrateOptions {
    pub apply: bool,
    pub pace: Pace,
    pub statuses: StatusMap,
}

/// What a migration does, or would do.
#[derive(Debug, Clone, Default, Serialize)]
pub struct MigrationReport {
    pub applied: bool,
    pub keys_seen: u64,
    /// By kind and entry.
    pub steps: Vec<StepCount>,
    /// Keys that need a decision. They stay as they are.
    pub problems: Vec<Problem>,
    /// All problems, also those that are not listed.
    pub problem_count: u64,
}

/// Steps of one kind for one entry.
#[derive(Debug, Clone, Serialize)]
pub struct StepCount {
    pub step: &'static str,
    pub entry: String,
    pub count: u64,
    /// Exactly what changes, for the first ones.
    pub examples: Vec<String>,
}

/// A key that cannot be migrated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    pub key: String,
    pub reason: String,
}

/// Plans the migration of a deployment and, with `apply`, makes it.
pub async fn migrate(
    url: &str,
    catalog: &Catalog,
    options: &MigrateOptions,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<MigrationReport, ServerError> {
    let deployment = Deployment::connect(url, Role::Primary).await?;
    let layout = match deployment.kind {
        DeploymentKind::Cluster => Layout::Cluster,
        DeploymentKind::Standalone | DeploymentKind::Sentinel => Layout::Plain,
    };
    let catalogs = std::slice::from_ref(catalog);
    let planner = Planner { index: KeyIndex::new(catalogs), catalog, layout, statuses: &options.statuses };
    let writer = Writer::new(&deployment).await?;
    let mut tally = Tally::default();
    for _ in 0..MAX_PASSES {
        let done = tally.steps_done;
        tally.problems.clear();
        tally.problem_count = 0;
        tally.keys = 0;
        for node in &deployment.nodes {
            let (mut pacer, mut cursor) = (Pacer::new(options.pace), 0);
            loop {
                let batch = next_batch(node.clone(), cursor, options.pace.batch(), Denied::default()).await?;
                pacer.pause(batch.commands, batch.busy).await;
                for key in &batch.keys {
                    tally.keys += 1;
                    let steps = planner.steps(node, key).await?;
                    for step in steps {
                        if options.apply {
                            let outcome = writer.apply(node, &step).await?;
                            tally.add(&step, outcome.err());
                        } else {
                            tally.add(&step, None);
                        }
                    }
                }
                progress(Progress { keys: tally.keys, expected: None });
                cursor = batch.next;
                if cursor == 0 {
                    break;
                }
            }
        }
        if !options.apply || tally.steps_done == done {
            break;
        }
    }
    Ok(tally.report(options.apply))
}

#[derive(Default)]
struct Tally {
    keys: u64,
    steps_done: u64,
    steps: BTreeMap<(&'static str, String), (u64, Vec<String>)>,
    problems: Vec<Problem>,
    problem_count: u64,
}

impl Tally {
    fn add(&mut self, step: &Step, failure: Option<String>) {
        let failure = match step {
            Step::Problem { reason, .. } => Some(reason.clone()),
            _ => failure,
        };
        if let Some(reason) = failure {
            self.problem_count += 1;
            if self.problems.len() < 10 * MAX_EXAMPLES {
                self.problems.push(Problem { key: shown_key(step.key()), reason });
            }
            return;
        }
        self.steps_done += 1;
        let (count, examples) = self.steps.entry((step.name(), step.entry().to_owned())).or_default();
        *count += 1;
        if examples.len() < MAX_EXAMPLES {
            examples.push(step.describe());
        }
    }

    fn report(self, applied: bool) -> MigrationReport {
        let steps = self.steps.into_iter().map(|((step, entry), (count, examples))| StepCount {
            step,
            entry,
            count,
            examples,
        });
        MigrationReport {
            applied,
            keys_seen: self.keys,
            steps: steps.collect(),
            problems: self.problems,
            problem_count: self.problem_count,
        }
    }
}
