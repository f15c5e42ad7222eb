//! Parses the stdout of a preview command: a JSON object with changes, or any text, which becomes one change.
//!
//! The fingerprint covers all of the output, including the part that is too long to be shown.

use ade_domain::task::{ChangeKind, Digest, Preview, PreviewChange};
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::{MAX_PREVIEW_CHANGES, ready_preview};

const MAX_SHOWN_BYTES: usize = 65_536;

/// Collects the stdout of a preview command.
#[derive(Default)]
pub(super) struct PreviewOutput {
    hash: Sha256,
    shown: Vec<u8>,
    total_bytes: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StructuredOutput {
    changes: Vec<PreviewChange>,
    #[serde(default)]
    warnings: Vec<String>,
}

impl PreviewOutput {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.total_bytes += bytes.len() as u64;
        let shown = MAX_SHOWN_BYTES.saturating_sub(self.shown.len()).min(bytes.len());
        self.shown.extend_from_slice(bytes.get(..shown).unwrap_or_default());
    }

    /// `what` names the change if the output is not structured.
    pub(super) fn into_preview(self, what: &str) -> Result<Preview, String> {
        let omitted = self.total_bytes.saturating_sub(self.shown.len() as u64);
        if let Ok(value @ Value::Object(_)) = serde_json::from_slice::<Value>(&self.shown)
            && value.get("changes").is_some()
            && omitted == 0
        {
            let mut output: StructuredOutput = serde_json::from_value(value).map_err(|error| {
                format!("cannot read the changes that the preview command printed: {error}")
            })?;
            if output.changes.len() > MAX_PREVIEW_CHANGES {
                return Err(format!(
                    "the preview command printed more than {MAX_PREVIEW_CHANGES} changes; group them"
                ));
            }
            for PreviewChange { after, diff, .. } in &mut output.changes {
                // Without `after`, the digest of the diff takes its place, so that another diff has another fingerprint.
                let diff_digest = || diff.as_ref().map(|diff| Digest::of_bytes(diff.as_bytes()).to_string());
                *after = after.take().or_else(diff_digest);
            }
            return Ok(ready_preview(output.changes, output.warnings, Vec::new()));
        }
        let mut diff = String::from_utf8_lossy(&self.shown).into_owned();
        if omitted > 0 {
            diff.push_str(&format!("\n(the preview is too long: {omitted} bytes omitted)\n"));
        }
        let hash: [u8; 32] = self.hash.finalize().into();
        let after = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        let (kind, what) = (ChangeKind::Update, what.to_owned());
        let change = PreviewChange {
            kind,
            what,
            before: None,
            after: Some(after),
            diff: Some(diff),
            items: Some(1),
            reviewers_only: false,
        };
        Ok(ready_preview(vec![change], Vec::new(), Vec::new()))
    }
}
