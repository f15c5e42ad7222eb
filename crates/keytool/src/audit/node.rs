//! Audits one server, batch by batch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ade_catalog::model::{Format, ValueType};
use tokio::task::JoinHandle;

use super::rules::{Rule, bad_envelope, misfit, too_long, wrong_ttl, wrong_type};
use super::secrets::{Secret, in_field, in_text, in_value};
use super::state::{Checkpoint, NodeState};
use super::stats::{Counts, prefix_of};
use super::{AuditError, AuditOptions, Classes, Classified};
use crate::scan::{
    Batch, Content, KeyKind, Pacer, ReadRequest, ReadValue, ScannedKey, memory_and_strings, next_batch,
    read_elements,
};
use crate::server::{Node, ServerError};
use crate::text::shown_key;

/// The first keys of a class are all sampled, so that rare classes are known completely.
const FULLY_SAMPLED: u64 = 1000;
/// Bytes of a string that are searched for secrets.
const MAX_STRING_BYTES: usize = 4 * 1024;
/// Bytes of an envelope, which is checked as a whole.
const MAX_ENVELOPE_BYTES: usize = 64 * 1024;
const ORPHANS: &str = "orphans";

/// The audit of one server.
pub(super) struct NodeAudit<'a> {
    node: Node,
    classes: &'a Classes<'a>,
    options: &'a AuditOptions,
    checkpoint: &'a Checkpoint,
    state: NodeState,
    /// Keys when the audit began.
    size: Option<u64>,
    seen: Arc<AtomicU64>,
    other_databases: Vec<(String, u64)>,
}

/// What the audit of one server found.
pub(super) struct NodeResult {
    pub(super) node: Node,
    pub(super) size: Option<u64>,
    pub(super) counts: Counts,
    /// Databases that the audit does not read, with their numbers of keys.
    pub(super) other_databases: Vec<(String, u64)>,
}

/// A key of a batch with its class.
struct Item<'a> {
    key: &'a ScannedKey,
    classified: Option<Classified<'a>>,
    is_sampled: bool,
}

impl<'a> NodeAudit<'a> {
    pub(super) async fn start(
        mut node: Node,
        classes: &'a Classes<'a>,
        options: &'a AuditOptions,
        checkpoint: &'a Checkpoint,
    ) -> Result<Self, AuditError> {
        let size = match node.query("DBSIZE", &redis::cmd("DBSIZE")).await {
            Err(ServerError::Denied { .. }) => None,
            other => Some(other?),
        };
        let keyspace = node.info("keyspace").await?.unwrap_or_default();
        let state = checkpoint.resume(&node.id, node.run_id.as_deref(), classes.count());
        let seen = Arc::new(AtomicU64::new(state.counts.keys));
        let own = format!("db{}", node.database);
        let other_databases = databases(&keyspace).filter(|(name, _)| *name != own).collect();
        Ok(Self { node, classes, options, checkpoint, state, size, seen, other_databases })
    }

    pub(super) fn size(&self) -> Option<u64> {
        self.size
    }

    /// Counts the keys while the audit runs.
    pub(super) fn seen(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.seen)
    }

    pub(super) async fn run(mut self, on_batch: &(dyn Fn() + Sync)) -> Result<NodeResult, AuditError> {
        let mut pacer = Pacer::new(self.options.pace);
        while !self.state.is_done {
            let mut batch = joined(self.request(self.state.cursor)).await?;
            loop {
                // Without pauses, the server reads the next batch while this one is checked.
                let is_ahead = self.options.pace.is_full() && batch.next != 0;
                let ahead = is_ahead.then(|| self.request(batch.next));
                pacer.pause(batch.commands, batch.busy).await;
                self.check(&batch, &mut pacer).await?;
                self.state.cursor = batch.next;
                self.state.is_done = batch.next == 0;
                self.checkpoint.publish(&self.node.id, &self.state)?;
                self.seen.store(self.state.counts.keys, Ordering::Relaxed);
                on_batch();
                match ahead {
                    Some(ahead) => batch = joined(ahead).await?,
                    None => break,
                }
            }
        }
        let Self { node, size, state, other_databases, .. } = self;
        Ok(NodeResult { node, size, counts: state.counts, other_databases })
    }

    fn request(&self, cursor: u64) -> JoinHandle<Result<Batch, ServerError>> {
        let denied = self.state.counts.denied.clone();
        tokio::spawn(next_batch(self.node.clone(), cursor, self.options.pace.batch(), denied))
    }

    async fn check(&mut self, batch: &Batch, pacer: &mut Pacer) -> Result<(), AuditError> {
        let counts = &mut self.state.counts;
        counts.vanished += batch.vanished;
        counts.denied.merge(&batch.denied);
        let mut items = Vec::with_capacity(batch.keys.len());
        for key in &batch.keys {
            items.push(count(key, counts, self.classes, self.options));
        }
        let requests: Vec<ReadRequest<'_>> =
            items.iter().map(|item| self.options.read_request(item)).collect();
        let mut contents = memory_and_strings(&self.node, &requests, &mut counts.denied, pacer).await?;
        if self.options.reads_values {
            read_elements(&self.node, &requests, &mut contents, &mut counts.denied, pacer).await?;
        }
        for (item, content) in items.iter().zip(&contents) {
            check_content(item, content, counts, self.classes, self.options);
        }
        Ok(())
    }
}

impl AuditOptions {
    fn read_request<'a>(&self, item: &Item<'a>) -> ReadRequest<'a> {
        let kind = if let KeyKind::Known(kind) = item.key.kind { Some(kind) } else { None };
        let max_bytes = match (kind, item.format()) {
            _ if !self.reads_values => 0,
            (Some(ValueType::String), Some(Format::Envelope)) => MAX_ENVELOPE_BYTES,
            _ => MAX_STRING_BYTES,
        };
        // The elements of a collection are read only if its memory is known to be small.
        let needs_memory = max_bytes > 0 && kind.is_some_and(|kind| kind != ValueType::String);
        ReadRequest { name: &item.key.name, kind, with_memory: item.is_sampled || needs_memory, max_bytes }
    }
}

impl Item<'_> {
    fn class_name(&self) -> &str {
        self.classified.as_ref().map_or(ORPHANS, |classified| &classified.found.entry.name)
    }

    fn format(&self) -> Option<Format> {
        self.classified.as_ref().map(|classified| classified.shape.format)
    }

    /// The key for a report. One that contains a secret is not shown.
    fn shown(&self) -> String {
        let shown = shown_key(&self.key.name);
        let secret = in_text(&String::from_utf8_lossy(&self.key.name));
        secret.map_or(shown, |what| format!("(not shown: the key contains {what})"))
    }
}

/// Counts a key, and checks everything that needs no value.
fn count<'a>(
    key: &'a ScannedKey,
    counts: &mut Counts,
    classes: &Classes<'a>,
    options: &AuditOptions,
) -> Item<'a> {
    let text = std::str::from_utf8(&key.name).ok();
    let classified = text.and_then(|text| classes.of(text));
    let class = classified.as_ref().map_or(classes.entries.len(), |classified| classified.class);
    let mut item = Item { key, classified, is_sampled: false };
    counts.keys += 1;
    if let Some(stats) = counts.classes.get_mut(class) {
        item.is_sampled = stats.keys < FULLY_SAMPLED || stats.keys % options.sample.max(1) == 0;
        stats.keys += 1;
        stats.add_ttl(key.ttl);
    }
    let max = options.max_examples;
    let mut report =
        |rule, message: String| counts.report(rule, item.class_name(), max, || (item.shown(), message));
    let limit = item.classified.as_ref().map_or(classes.key_limit, |classified| classified.catalog.key_limit);
    if let Some(message) = too_long(&key.name, limit) {
        report(Rule::KeyTooLong, message);
    }
    if let Some(what) = text.and_then(in_text) {
        report(Rule::SuspectedSecret, format!("the key contains {what}"));
    }
    match &item.classified {
        Some(Classified { shape, found, .. }) => {
            if let Some(message) = misfit(found) {
                report(Rule::Orphan, message);
            }
            if let Some(message) = wrong_type(&key.kind, shape) {
                report(Rule::WrongType, message);
            }
            if let Some((rule, message)) = wrong_ttl(key.ttl, &shape.ttl.rule) {
                report(rule, message);
            }
        }
        None => {
            let text = String::from_utf8_lossy(&key.name);
            let family = classes.catalogs.iter().find_map(|catalog| catalog.families_of(&text).last());
            let place = family
                .map_or_else(String::new, |family| format!(", although it is in the family {}", family.name));
            report(Rule::Orphan, format!("no catalog has it{place}"));
            if family.is_some_and(|family| family.must_expire) && key.ttl == crate::scan::KeyTtl::Never {
                report(Rule::TtlMissing, "never expires, as all keys of its family must".to_owned());
            }
            counts.add_orphan(if in_text(&text).is_some() { "*".to_owned() } else { prefix_of(&text) });
        }
    }
    item
}

/// Checks the memory and value of a key.
fn check_content(
    item: &Item<'_>,
    content: &Content,
    counts: &mut Counts,
    classes: &Classes<'_>,
    options: &AuditOptions,
) {
    let class = item.classified.as_ref().map_or(classes.entries.len(), |classified| classified.class);
    if let (Some(bytes), Some(stats)) = (content.memory, counts.classes.get_mut(class)) {
        stats.add_memory(bytes);
    }
    let Some(value) = &content.value else { return };
    counts.values_read += 1;
    let max = options.max_examples;
    let report = |counts: &mut Counts, rule, message: String| {
        counts.report(rule, item.class_name(), max, || (item.shown(), message));
    };
    if let ReadValue::Text { bytes, is_truncated } = value {
        if *is_truncated {
            counts.values_truncated += 1;
        } else if item.format() == Some(Format::Envelope)
            && let Some(reason) = bad_envelope(bytes)
        {
            report(counts, Rule::BadEnvelope, format!("the value {reason}"));
        }
    }
    if let Some(Secret { what, field }) = secret_in(&item.key.name, value) {
        let place = field.map_or_else(
            || "the value".to_owned(),
            |field| format!("the field {}", shown_key(field.as_bytes())),
        );
        report(counts, Rule::SuspectedSecret, format!("{place} looks like {what}"));
    }
}

fn secret_in(key: &[u8], value: &ReadValue) -> Option<Secret> {
    let text = String::from_utf8_lossy;
    match value {
        ReadValue::Text { bytes, .. } => {
            let key = text(key);
            // user:7:password is named by its last segment.
            let name = key.rsplit(':').next().filter(|name| name.len() < key.len()).unwrap_or_default();
            in_value(name, &text(bytes))
        }
        ReadValue::Fields(fields) => fields.iter().find_map(|(name, value)| {
            let (name, value) = (text(name), text(value));
            let in_name = in_text(&name).map(|what| Secret { what, field: None });
            in_name.or_else(|| {
                let shown = || Some(name.chars().take(60).collect());
                match in_field(&name, &value) {
                    Some(what) => Some(Secret { what, field: shown() }),
                    None => in_value("", &value)
                        .map(|secret| Secret { field: secret.field.or_else(shown), ..secret }),
                }
            })
        }),
        ReadValue::Members(members) => members.iter().find_map(|member| in_value("", &text(member))),
    }
}

/// The databases in INFO keyspace: `db0:keys=1,expires=0,…`.
fn databases(info: &str) -> impl Iterator<Item = (String, u64)> + '_ {
    info.lines().filter_map(|line| {
        let (name, fields) = line.trim().split_once(":keys=")?;
        Some((name.to_owned(), fields.split(',').next()?.parse().ok()?))
    })
}

async fn joined(request: JoinHandle<Result<Batch, ServerError>>) -> Result<Batch, ServerError> {
    request.await.unwrap_or_else(|error| {
        Err(ServerError::Lost {
            address: "the server".to_owned(),
            reason: format!("the scan ended early: {error}"),
        })
    })
}
