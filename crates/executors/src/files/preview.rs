//! Previews changes of files: a diff for people, hashes and permissions for the fingerprint. Bounded in time; [`crate::bounded`] limits the size.
//!
//! Of a hidden file no text and no plain hash of its present content leaves this module, and it is listed even if its content would
//! stay the same: otherwise an author could check guesses of its content.

use std::time::Duration;

use ade_domain::task::{ChangeKind, Digest, Preview, PreviewChange};
use similar::TextDiff;

use super::parameters::FileSpec;
use super::snapshot::{Entry, MAX_TOTAL_BYTES};
use super::tree::{ExistingFile, Tree};
use super::visibility::{Audience, KeyedHash, Visibility};
use crate::ready_preview;

/// How long to search for the shortest diff of one file. After that the diff is longer, but still correct.
const DIFF_TIMEOUT: Duration = Duration::from_millis(100);
/// Larger files get no diff.
const MAX_COMPARED_BYTES: usize = 1_048_576;

/// What of the existing files is shown.
#[derive(Debug, Clone)]
pub(super) struct Presentation {
    pub(super) root: String,
    pub(super) visibility: Visibility,
    pub(super) keyed_hash: KeyedHash,
}

impl Presentation {
    /// Who sees the present content of a file. A file that does not exist yet has none.
    fn audience(&self, entry: &Entry) -> Audience {
        let before = entry.before.as_ref();
        before.map_or(Audience::Everybody, |before| self.visibility.audience(&entry.path, before))
    }

    fn is_listed(&self, entry: &Entry) -> bool {
        entry.is_change() || self.audience(entry) != Audience::Everybody
    }

    fn describe_before(&self, entry: &Entry, before: &ExistingFile) -> String {
        let ExistingFile { hash, mode, bytes, content, .. } = before;
        if self.audience(entry) == Audience::Everybody {
            return describe(hash, *mode);
        }
        let keyed = self.keyed_hash.of_file(&self.root, &entry.path, content);
        format!("{}, {bytes} bytes", describe(&keyed, *mode))
    }

    fn change(&self, entry: &Entry, new_content: &str) -> PreviewChange {
        let audience = self.audience(entry);
        let change = self.change_without_diff(entry);
        if audience == Audience::Nobody {
            return change;
        }
        let old_content = entry.before.as_ref().map_or(&[][..], |before| &before.content);
        let diff = diff(entry, old_content, new_content);
        PreviewChange { reviewers_only: audience == Audience::Reviewers && diff.is_some(), diff, ..change }
    }

    fn change_without_diff(&self, entry: &Entry) -> PreviewChange {
        let kind = match (&entry.before, entry.after) {
            (None, _) => ChangeKind::Create,
            (Some(_), Some(_)) => ChangeKind::Update,
            (Some(_), None) => ChangeKind::Delete,
        };
        let before = entry.before.as_ref().map(|before| self.describe_before(entry, before));
        let after = entry.after.map(|after| describe(&after.hash, after.mode));
        PreviewChange {
            kind,
            what: entry.path.clone(),
            before,
            after,
            diff: None,
            items: Some(1),
            reviewers_only: false,
        }
    }

    /// The fingerprint that a preview of these entries has.
    pub(super) fn fingerprint<'a>(&self, entries: impl IntoIterator<Item = &'a Entry>) -> Option<Digest> {
        let listed = entries.into_iter().filter(|entry| self.is_listed(entry));
        let changes: Vec<PreviewChange> = listed.map(|entry| self.change_without_diff(entry)).collect();
        Preview::fingerprint_of(&changes)
    }
}

fn describe(hash: &impl std::fmt::Display, mode: u32) -> String {
    format!("{hash} {mode:04o}")
}

/// Warnings are only for people and not covered by the fingerprint.
pub(super) fn preview(tree: &Tree, specs: &[FileSpec], presentation: &Presentation) -> Preview {
    let (mut changes, mut warnings, mut errors) = (Vec::new(), Vec::new(), Vec::new());
    let mut budget = MAX_TOTAL_BYTES;
    for spec in specs {
        match Entry::plan(tree, spec, &mut budget) {
            Err(failure) => errors.push(failure.message),
            Ok(entry) if presentation.is_listed(&entry) => {
                warnings.extend(entry.before.iter().flat_map(|before| file_warnings(spec, before)));
                let new_content = spec.content.as_deref().unwrap_or_default();
                changes.push(presentation.change(&entry, new_content));
            }
            Ok(_) => {}
        }
    }
    ready_preview(changes, warnings, errors)
}

fn file_warnings(spec: &FileSpec, existing: &ExistingFile) -> Vec<String> {
    let mut warnings = Vec::new();
    if existing.has_hard_links {
        warnings.push(format!("{:?} has other hard links, which keep the present content", spec.path));
    }
    let user = rustix::process::geteuid();
    if spec.content.is_some() && !user.is_root() && existing.owner != user.as_raw() {
        warnings.push(format!(
            "{:?} belongs to another user, and will belong to the user of the worker",
            spec.path
        ));
    }
    warnings
}

/// None if the old content is not text.
fn diff(entry: &Entry, old_content: &[u8], new_content: &str) -> Option<String> {
    let modes = match (&entry.before, entry.after) {
        (Some(before), Some(after)) if before.mode != after.mode => {
            format!("old mode {:04o}\nnew mode {:04o}\n", before.mode, after.mode)
        }
        _ => String::new(),
    };
    let old_content = std::str::from_utf8(old_content).ok()?;
    if old_content.len().max(new_content.len()) > MAX_COMPARED_BYTES {
        return Some(format!("{modes}(no diff: the file has more than {MAX_COMPARED_BYTES} bytes)\n"));
    }
    let name =
        |side: &str, exists: bool| if exists { format!("{side}/{}", entry.path) } else { "/dev/null".into() };
    let (from, to) = (name("a", entry.before.is_some()), name("b", entry.after.is_some()));
    let compared = TextDiff::configure().timeout(DIFF_TIMEOUT).diff_lines(old_content, new_content);
    let text = compared.unified_diff().context_radius(3).header(&from, &to).to_string();
    Some(modes + &text)
}
