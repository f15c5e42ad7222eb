//! Writes a first catalog from the keys of a live Redis.
//!
//! Invariants: memory does not grow with the number of keys; the catalog contains segments and names of fields, no values.

mod catalog;
mod infer;
mod leaf;
mod trie;
mod words;

use std::collections::{BTreeMap, BTreeSet};

pub use self::catalog::Learned;
use self::trie::Node as Trie;
use crate::audit::Progress;
use crate::scan::{Denied, KeyKind, Pace, Pacer, ReadRequest, memory_and_strings, next_batch, read_elements};
use crate::server::{Deployment, Node, Role, ServerError};

/// Values that are read on each server, among the first keys and then of one key in so many.
const FULLY_SAMPLED: u64 = 20_000;
const SAMPLE: u64 = 50;
const MAX_STRING_BYTES: usize = 4 * 1024;

/// What was read so far.
#[derive(Default)]
struct Knowledge {
    /// By separator.
    tries: BTreeMap<char, Trie>,
    /// Short texts in values.
    known: BTreeSet<String>,
    keys: u64,
    /// Keys that no pattern can describe.
    irregular: u64,
}

/// Reads all keys and writes a catalog with this name.
pub async fn learn(
    url: &str,
    name: &str,
    role: Role,
    pace: Pace,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Learned, ServerError> {
    let deployment = Deployment::connect(url, role).await?;
    let mut knowledge = Knowledge::default();
    let mut expected = Some(0);
    let mut nodes = deployment.nodes;
    for node in &mut nodes {
        let size: Option<u64> = match node.query("DBSIZE", &redis::cmd("DBSIZE")).await {
            Err(ServerError::Denied { .. }) => None,
            other => Some(other?),
        };
        expected = expected.zip(size).map(|(sum, size)| sum + size);
    }
    for node in nodes {
        knowledge.read(&node, pace, expected, progress).await?;
    }
    let mut patterns = Vec::new();
    for trie in knowledge.tries.values_mut() {
        infer::infer(trie, &knowledge.known);
        infer::patterns(trie, &[], &mut patterns);
    }
    let mut learned = catalog::write(name, &patterns);
    if knowledge.irregular > 0 {
        let reason =
            "they have an empty segment, other braces than a hash tag, or are no ASCII text".to_owned();
        learned.rejected.push(("(irregular keys)".to_owned(), knowledge.irregular, reason));
    }
    Ok(learned)
}

impl Knowledge {
    async fn read(
        &mut self,
        node: &Node,
        pace: Pace,
        expected: Option<u64>,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<(), ServerError> {
        let (mut pacer, mut denied) = (Pacer::new(pace), Denied::default());
        let (mut cursor, mut seen) = (0, 0);
        loop {
            let batch = next_batch(node.clone(), cursor, pace.batch(), denied.clone()).await?;
            pacer.pause(batch.commands, batch.busy).await;
            denied.merge(&batch.denied);
            let mut requests = Vec::new();
            for key in &batch.keys {
                seen += 1;
                let is_sampled = seen <= FULLY_SAMPLED || seen % SAMPLE == 0;
                let kind = if let KeyKind::Known(kind) = key.kind { Some(kind) } else { None };
                let max_bytes = if is_sampled { MAX_STRING_BYTES } else { 0 };
                requests.push(ReadRequest { name: &key.name, kind, with_memory: is_sampled, max_bytes });
            }
            let mut contents = memory_and_strings(node, &requests, &mut denied, &mut pacer).await?;
            read_elements(node, &requests, &mut contents, &mut denied, &mut pacer).await?;
            for (key, content) in batch.keys.iter().zip(contents) {
                let text = std::str::from_utf8(&key.name).ok().filter(|text| text.is_ascii());
                let Some(parts) = text.and_then(words::split) else {
                    self.irregular += 1;
                    continue;
                };
                let leaf = self.tries.entry(parts.separator).or_default().leaf(&parts.segments);
                leaf.add(&key.kind, key.ttl, parts.separator, parts.tag);
                if let Some(value) = &content.value {
                    leaf.sample(value, &mut self.known);
                }
            }
            self.keys += batch.keys.len() as u64;
            progress(Progress { keys: self.keys, expected });
            cursor = batch.next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }
}
