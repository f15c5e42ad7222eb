//! What the preview command of a template says: changes as JSON, or any text, which is then one change.
//!
//! The fingerprint covers all of it, also what is too long to be shown.

use ade_domain::task::{ChangeKind, Digest, Preview, PreviewChange};
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::{MOST_CHANGES, preview_of};

/// Bytes that are shown.
const SHOWN: usize = 65_536;

/// What was heard so far.
#[derive(Default)]
pub(super) struct Listener {
    hash: Sha256,
    shown: Vec<u8>,
    bytes: u64,
}

/// Changes, as a command says them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    changes: Vec<Change>,
    #[serde(default)]
    warnings: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    kind: ChangeKind,
    what: String,
    before: Option<String>,
    after: Option<String>,
    diff: Option<String>,
}

impl Listener {
    pub(super) fn hear(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        let room = SHOWN.saturating_sub(self.shown.len()).min(bytes.len());
        self.shown.extend_from_slice(bytes.get(..room).unwrap_or_default());
    }

    /// What would change.
    pub(super) fn preview(self, what: &str) -> Result<Preview, String> {
        let left_out = self.bytes.saturating_sub(self.shown.len() as u64);
        if let Ok(value @ Value::Object(_)) = serde_json::from_slice::<Value>(&self.shown)
            && value.get("changes").is_some()
            && left_out == 0
        {
            let said: Said = serde_json::from_value(value)
                .map_err(|error| format!("the preview command says changes that cannot be read: {error}"))?;
            if said.changes.len() > MOST_CHANGES {
                return Err(format!(
                    "the preview command says more than {MOST_CHANGES} changes; say them in groups"
                ));
            }
            return Ok(preview_of(
                said.changes.into_iter().map(Change::told).collect(),
                said.warnings,
                Vec::new(),
            ));
        }
        let mut diff = String::from_utf8_lossy(&self.shown).into_owned();
        if left_out > 0 {
            diff.push_str(&format!("\n(the preview is too long: {left_out} bytes are left out)\n"));
        }
        let hash: [u8; 32] = self.hash.finalize().into();
        let after = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        let (kind, what) = (ChangeKind::Update, what.to_owned());
        let change = PreviewChange { kind, what, before: None, after: Some(after), diff: Some(diff) };
        Ok(preview_of(vec![change], Vec::new(), Vec::new()))
    }
}

impl Change {
    /// If only the diff tells what it comes to, another diff is another change.
    fn told(self) -> PreviewChange {
        let Self { kind, what, before, after, diff } = self;
        let by_diff = || diff.as_ref().map(|diff| Digest::of_bytes(diff.as_bytes()).to_string());
        let after = after.or_else(by_diff);
        PreviewChange { kind, what, before, after, diff }
    }
}
