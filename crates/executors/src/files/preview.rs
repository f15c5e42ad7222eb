//! Previews changes of files: a diff for people, hashes and permissions for the fingerprint. Bounded in size and time.

use std::time::Duration;

use ade_domain::task::{ChangeKind, Digest, Preview, PreviewChange};
use similar::TextDiff;

use super::parameters::FileSpec;
use super::snapshot::{Entry, MAX_TOTAL_BYTES};
use super::tree::{ExistingFile, Tree};
use crate::{MAX_DIFF_BYTES, ready_preview};

/// How long to search for the shortest diff of one file. After that the diff is longer, but still correct.
const DIFF_TIMEOUT: Duration = Duration::from_millis(100);
/// Larger files get no diff.
const MAX_COMPARED_BYTES: usize = 1_048_576;

/// `notes` become warnings. Like all warnings they are only for people and not covered by the fingerprint.
pub(super) fn preview(tree: &Tree, specs: &[FileSpec], notes: Vec<String>) -> Preview {
    let (mut changes, mut warnings, mut errors) = (Vec::new(), notes, Vec::new());
    let (mut budget, mut diff_budget) = (MAX_TOTAL_BYTES, MAX_DIFF_BYTES);
    for spec in specs {
        match Entry::plan(tree, spec, &mut budget) {
            Err(failure) => errors.push(failure.message),
            Ok(entry) if entry.is_change() => {
                warnings.extend(entry.before.iter().flat_map(|before| file_warnings(spec, before)));
                let new_content = spec.content.as_deref().unwrap_or_default();
                changes.push(change(&entry, new_content, &mut diff_budget));
            }
            Ok(_) => {}
        }
    }
    ready_preview(changes, warnings, errors)
}

/// The fingerprint that a preview of these entries has.
pub(super) fn fingerprint<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Option<Digest> {
    let changes: Vec<PreviewChange> =
        entries.into_iter().filter(|entry| entry.is_change()).map(change_without_diff).collect();
    Preview::fingerprint_of(&changes)
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

fn change(entry: &Entry, new_content: &str, diff_budget: &mut usize) -> PreviewChange {
    let old_content = entry.before.as_ref().map_or(&[][..], |before| &before.content);
    let diff = diff(entry, old_content, new_content).map(|diff| truncate(diff, diff_budget));
    PreviewChange { diff, ..change_without_diff(entry) }
}

fn change_without_diff(entry: &Entry) -> PreviewChange {
    let kind = match (&entry.before, entry.after) {
        (None, _) => ChangeKind::Create,
        (Some(_), Some(_)) => ChangeKind::Update,
        (Some(_), None) => ChangeKind::Delete,
    };
    let describe = |hash: Digest, mode: u32| format!("{hash} {mode:04o}");
    let before = entry.before.as_ref().map(|before| describe(before.hash, before.mode));
    let after = entry.after.map(|after| describe(after.hash, after.mode));
    PreviewChange { kind, what: entry.path.clone(), before, after, diff: None }
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

/// Keeps as many lines of a diff as `budget` allows, and takes them from it.
fn truncate(diff: String, budget: &mut usize) -> String {
    if diff.len() <= *budget {
        *budget -= diff.len();
        return diff;
    }
    let end = diff.floor_char_boundary(*budget);
    let kept = diff.get(..end).unwrap_or_default();
    let kept = kept.rsplit_once('\n').map_or("", |(lines, _)| lines);
    *budget = 0;
    let omitted = diff.len() - kept.len();
    let line = format!("(the preview is too long: {omitted} bytes of this diff omitted)\n");
    if kept.is_empty() { line } else { format!("{kept}\n{line}") }
}
