//! What would change about files: a diff for people, hashes and permissions for the fingerprint. Bounded in size and time.

use std::time::Duration;

use ade_domain::task::{ChangeKind, Digest, Preview, PreviewChange};
use similar::TextDiff;

use super::parameters::Wanted;
use super::stash::{Entry, Room};
use super::tree::{Present, Tree};
use crate::{LONGEST_PREVIEW, preview_of};

/// How long comparing two texts may look for the shortest diff; after that it is longer, and still right.
const DIFF_WITHIN: Duration = Duration::from_millis(100);
/// Bytes of a file that are compared; a diff of more is nothing that anybody reads.
const LONGEST_COMPARED: usize = 1_048_576;

/// `notes` are for people only, like all warnings: no part of the fingerprint.
pub(super) fn preview(tree: &Tree, wanted: &[Wanted], notes: Vec<String>) -> Preview {
    let (mut changes, mut warnings, mut errors) = (Vec::new(), notes, Vec::new());
    let (mut room, mut left) = (Room::default(), LONGEST_PREVIEW);
    for file in wanted {
        match Entry::plan(tree, file, &mut room) {
            Err(error) => errors.push(error),
            Ok((entry, present)) if entry.is_change() => {
                warnings.extend(present.iter().flat_map(|present| worth_a_look(file, present)));
                changes.push(change(&entry, file.content.as_deref().unwrap_or_default(), &mut left));
            }
            Ok(_) => {}
        }
    }
    preview_of(changes, warnings, errors)
}

/// The fingerprint of a preview of these.
pub(super) fn fingerprint<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Option<Digest> {
    let changes: Vec<PreviewChange> =
        entries.into_iter().filter(|entry| entry.is_change()).map(bare).collect();
    Preview::fingerprint_of(&changes)
}

fn worth_a_look(file: &Wanted, present: &Present) -> Vec<String> {
    let mut found = Vec::new();
    if present.has_other_names {
        found.push(format!("{:?} has other names (hard links), which keep what it contains now", file.path));
    }
    let us = rustix::process::geteuid();
    if file.content.is_some() && !us.is_root() && present.owner != us.as_raw() {
        found.push(format!("{:?} belongs to another user, and will belong to the worker's", file.path));
    }
    found
}

fn change(entry: &Entry, new: &str, left: &mut usize) -> PreviewChange {
    let old = entry.before.as_ref().map_or(&[][..], |was| &was.content);
    let diff = diff(entry, old, new).map(|diff| cut(diff, left));
    PreviewChange { diff, ..bare(entry) }
}

/// What a change does, without what it looks like.
fn bare(entry: &Entry) -> PreviewChange {
    let kind = match (&entry.before, entry.after) {
        (None, _) => ChangeKind::Create,
        (Some(_), Some(_)) => ChangeKind::Update,
        (Some(_), None) => ChangeKind::Delete,
    };
    let said = |hash: Digest, mode: u32| format!("{hash} {mode:04o}");
    let before = entry.before.as_ref().map(|was| said(was.hash, was.mode));
    let after = entry.after.map(|after| said(after.hash, after.mode));
    PreviewChange { kind, what: entry.path.clone(), before, after, diff: None }
}

/// What people see; nothing for what is no text.
fn diff(entry: &Entry, old: &[u8], new: &str) -> Option<String> {
    let modes = match (&entry.before, entry.after) {
        (Some(was), Some(after)) if was.mode != after.mode => {
            format!("old mode {:04o}\nnew mode {:04o}\n", was.mode, after.mode)
        }
        _ => String::new(),
    };
    let old = std::str::from_utf8(old).ok()?;
    if old.len().max(new.len()) > LONGEST_COMPARED {
        return Some(format!("{modes}(it has more than {LONGEST_COMPARED} bytes: no diff)\n"));
    }
    let name =
        |side: &str, there: bool| if there { format!("{side}/{}", entry.path) } else { "/dev/null".into() };
    let (from, to) = (name("a", entry.before.is_some()), name("b", entry.after.is_some()));
    let compared = TextDiff::configure().timeout(DIFF_WITHIN).diff_lines(old, new);
    let text = compared.unified_diff().context_radius(3).header(&from, &to).to_string();
    Some(modes + &text)
}

/// As much of a diff as there is room for in the preview.
fn cut(diff: String, left: &mut usize) -> String {
    if diff.len() <= *left {
        *left -= diff.len();
        return diff;
    }
    let end = diff.floor_char_boundary(*left);
    let kept = diff.get(..end).unwrap_or_default();
    let kept = kept.rsplit_once('\n').map_or("", |(whole, _)| whole);
    *left = 0;
    let missing = diff.len() - kept.len();
    let line = format!("(the preview is too long: {missing} bytes of this diff are left out)\n");
    if kept.is_empty() { line } else { format!("{kept}\n{line}") }
}
