//! Compares the keys of a live Redis with catalogs: which class each belongs to, and which rules it breaks.
//!
//! Invariants: counts are exact, examples are limited; the report states what was not read; no value of a key, and no text that
//! looks like a secret, gets into it. An audit that is interrupted and resumed counts the same.

mod baseline;
mod html;
mod node;
mod report;
mod rules;
mod secrets;
mod state;
mod stats;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ade_catalog::model::{Entry, EntryKind, KeyShape};
use ade_catalog::{Catalog, KeyIndex, KeyMatch};
use futures_util::future::try_join_all;
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

pub use self::baseline::Baseline;
pub use self::html::html;
pub use self::report::{
    ClassReport, Coverage, DeniedCommand, Memory, NodeCoverage, OrphanReport, Report, RuleCount, Violation,
};
pub use self::rules::Rule;
pub use self::stats::{ClassStats, TTL_BARS, ttl_label};

use self::node::NodeAudit;
use self::state::Checkpoint;
use crate::scan::Pace;
use crate::server::{Deployment, Role, ServerError};

/// How an audit reads.
#[derive(Debug, Clone)]
pub struct AuditOptions {
    pub role: Role,
    pub pace: Pace,
    /// Of a class with many strings, the memory of one in so many is read. At least 1.
    pub sample: u64,
    /// Whether values are read.
    pub reads_values: bool,
    /// Maximum number of examples for each rule and class.
    pub max_examples: usize,
    /// Where to save how far the audit is.
    pub state: Option<PathBuf>,
    /// How often to save it.
    pub save_interval: Duration,
    pub baseline: Option<Baseline>,
    /// Differences from the baseline above so many percent are violations.
    pub drift_percent: u32,
}

impl Default for AuditOptions {
    fn default() -> Self {
        Self {
            role: Role::Primary,
            pace: Pace::POLITE,
            sample: 10,
            reads_values: true,
            max_examples: 20,
            state: None,
            save_interval: Duration::from_secs(1),
            baseline: None,
            drift_percent: 50,
        }
    }
}

/// Why an audit cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error("{} belongs to an audit with another server, catalog or options: repeat that one, or remove the file", path.display())]
    ForeignState { path: PathBuf },
    #[error("cannot use the state file {}: {reason}", path.display())]
    State { path: PathBuf, reason: String },
    #[error("cannot use the baseline {}: {reason}; write one with --write-baseline", path.display())]
    Baseline { path: PathBuf, reason: String },
}

impl AuditError {
    fn state(path: &Path, error: &std::io::Error) -> Self {
        Self::State { path: path.to_owned(), reason: error.to_string() }
    }
}

/// Whether a text seems to contain a secret.
pub(crate) fn looks_secret(text: &str) -> bool {
    secrets::in_text(text).is_some()
}

/// How far an audit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub keys: u64,
    /// The number of keys when the audit began, if it is known.
    pub expected: Option<u64>,
}

/// Audits the deployment at a URL. `progress` is called after every batch.
pub async fn audit(
    url: &str,
    catalogs: &[Catalog],
    options: &AuditOptions,
    now: Timestamp,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Report, AuditError> {
    let deployment = Deployment::connect(url, options.role).await?;
    let classes = Classes::new(catalogs);
    let fingerprint = fingerprint(&deployment, catalogs, options);
    let checkpoint = Checkpoint::open(options.state.clone(), options.save_interval, fingerprint)?;
    let mut audits = Vec::new();
    for node in deployment.nodes {
        audits.push(NodeAudit::start(node, &classes, options, &checkpoint).await?);
    }
    let expected = audits.iter().map(NodeAudit::size).sum();
    let seen: Vec<_> = audits.iter().map(NodeAudit::seen).collect();
    let on_batch = || {
        let keys = seen.iter().map(|keys| keys.load(std::sync::atomic::Ordering::Relaxed)).sum();
        progress(Progress { keys, expected });
    };
    let results = try_join_all(audits.into_iter().map(|audit| audit.run(&on_batch))).await?;
    let report = report::report(deployment.kind, &classes, options, now, &results);
    checkpoint.finish()?;
    Ok(report)
}

/// What the counts depend on.
fn fingerprint(deployment: &Deployment, catalogs: &[Catalog], options: &AuditOptions) -> String {
    let AuditOptions { role, sample, reads_values, max_examples, .. } = options;
    let databases: Vec<_> = deployment.nodes.iter().map(|node| node.database).collect();
    let text = format!(
        "1 {:?} {databases:?} {catalogs:?} {role:?} {sample} {reads_values} {max_examples}",
        deployment.kind
    );
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The classes of keys: every key entry of the catalogs in order, then the orphans.
struct Classes<'a> {
    catalogs: &'a [Catalog],
    index: KeyIndex<'a>,
    entries: Vec<(&'a Catalog, &'a Entry, &'a KeyShape)>,
    positions: BTreeMap<(&'a str, &'a str), usize>,
    /// Keys that no catalog knows must stay below the smallest limit.
    key_limit: usize,
}

/// The class of a key.
struct Classified<'a> {
    class: usize,
    catalog: &'a Catalog,
    shape: &'a KeyShape,
    found: KeyMatch<'a>,
}

impl<'a> Classes<'a> {
    fn new(catalogs: &'a [Catalog]) -> Self {
        let entries =
            catalogs.iter().flat_map(|catalog| catalog.entries.iter().map(move |entry| (catalog, entry)));
        let entries: Vec<_> = entries
            .filter_map(|(catalog, entry)| match &entry.kind {
                EntryKind::Key(shape) => Some((catalog, entry, shape)),
                EntryKind::Channel { .. } | EntryKind::Group { .. } => None,
            })
            .collect();
        let names = entries.iter().enumerate();
        let positions =
            names.map(|(position, (catalog, entry, _))| ((&*catalog.name, &*entry.name), position)).collect();
        Self {
            catalogs,
            index: KeyIndex::of(catalogs, |entry| matches!(entry.kind, EntryKind::Key(_))),
            entries,
            positions,
            key_limit: catalogs.iter().map(|catalog| catalog.key_limit).min().unwrap_or(usize::MAX),
        }
    }

    /// With that of orphans.
    fn count(&self) -> usize {
        self.entries.len() + 1
    }

    fn of(&self, key: &str) -> Option<Classified<'a>> {
        let (catalog, found) = self.index.find(key)?;
        let class = *self.positions.get(&(&*catalog.name, &*found.entry.name))?;
        let EntryKind::Key(shape) = &found.entry.kind else { return None };
        Some(Classified { class, catalog, shape, found })
    }
}
