//! The size of a preview, whatever its executor returned: it is stored with its task and shown to people.

use ade_domain::task::{Preview, PreviewChange};

use crate::{MAX_DIFF_BYTES, MAX_PREVIEW_CHANGES};

/// Warnings or errors.
const MAX_NOTES: usize = 100;
const MAX_NOTE_BYTES: usize = 4_096;
/// Bytes of a path, a statement or a hash.
const MAX_TEXT_BYTES: usize = 2_048;
/// Lines of all diffs together, as [`MAX_DIFF_BYTES`]. Diffs for reviewers only have a limit of their own: the length of what is
/// hidden must not change what is shown.
const MAX_DIFF_LINES: usize = 10_000;

/// The preview without what is too much of it. Its fingerprint still covers everything. If changes are missing it says so as an
/// error, so that nobody approves what is not shown, and nothing is approved automatically.
#[must_use]
pub fn bounded(mut preview: Preview) -> Preview {
    let omitted = preview.changes.len().saturating_sub(MAX_PREVIEW_CHANGES);
    preview.changes.truncate(MAX_PREVIEW_CHANGES);
    let [mut shown, mut hidden] = [(MAX_DIFF_BYTES, MAX_DIFF_LINES); 2];
    for PreviewChange { what, before, after, diff, reviewers_only, .. } in &mut preview.changes {
        for text in [Some(what), before.as_mut(), after.as_mut()].into_iter().flatten() {
            truncate_text(text, MAX_TEXT_BYTES);
        }
        if let Some(diff) = diff {
            truncate_diff(diff, if *reviewers_only { &mut hidden } else { &mut shown });
        }
    }
    for notes in [&mut preview.warnings, &mut preview.errors] {
        let omitted = notes.len().saturating_sub(MAX_NOTES);
        notes.truncate(MAX_NOTES);
        notes.iter_mut().for_each(|note| truncate_text(note, MAX_NOTE_BYTES));
        if omitted > 0 {
            notes.push(format!("(and {omitted} more)"));
        }
    }
    if omitted > 0 {
        preview.errors.push(format!(
            "{omitted} changes are not shown: a preview has at most {MAX_PREVIEW_CHANGES}. Split the task."
        ));
    }
    preview
}

fn truncate_text(text: &mut String, max_bytes: usize) {
    if text.len() > max_bytes {
        text.truncate(text.floor_char_boundary(max_bytes));
        text.push('…');
    }
}

/// Keeps whole lines, as far as the rest of both budgets allows.
fn truncate_diff(diff: &mut String, (bytes_left, lines_left): &mut (usize, usize)) {
    let mut end = 0;
    for line in diff.split_inclusive('\n') {
        if line.len() > *bytes_left || *lines_left == 0 {
            let omitted = diff.len() - end;
            diff.truncate(end);
            diff.push_str(&format!("(the preview is too long: {omitted} bytes of this diff omitted)\n"));
            (*bytes_left, *lines_left) = (0, 0);
            return;
        }
        end += line.len();
        *bytes_left -= line.len();
        *lines_left -= 1;
    }
}

#[cfg(test)]
mod tests {
    use ade_domain::task::ChangeKind;

    use super::*;
    use crate::ready_preview;

    fn change(what: String, diff: Option<String>) -> PreviewChange {
        PreviewChange {
            kind: ChangeKind::Update,
            what,
            before: None,
            after: None,
            diff,
            items: Some(1),
            reviewers_only: false,
        }
    }

    #[test]
    fn small_preview_stays_as_it_is() {
        let preview = ready_preview(
            vec![change("a".to_owned(), Some("-x\n+y".to_owned()))],
            vec!["careful".to_owned()],
            vec!["fails".to_owned()],
        );
        assert_eq!(bounded(preview.clone()), preview);
    }

    #[test]
    fn everything_is_bounded_and_says_so() {
        let many = (0..=MAX_PREVIEW_CHANGES).map(|number| change(number.to_string(), None)).collect();
        let notes = vec!["ä".repeat(MAX_NOTE_BYTES); MAX_NOTES + 7];
        let preview = bounded(ready_preview(many, notes.clone(), notes));
        assert_eq!(preview.changes.len(), MAX_PREVIEW_CHANGES);
        assert_eq!(preview.warnings.len(), MAX_NOTES + 1);
        assert_eq!(preview.warnings.last().map(String::as_str), Some("(and 7 more)"));
        assert!(preview.warnings.iter().all(|note| note.len() <= MAX_NOTE_BYTES + '…'.len_utf8()));
        assert!(preview.errors.last().is_some_and(|error| error.starts_with("1 changes are not shown")));
        assert!(preview.has_errors());

        let lines = "+\n".repeat(MAX_DIFF_LINES + 5);
        let long = "x".repeat(MAX_DIFF_BYTES + 1);
        let text = "y".repeat(MAX_TEXT_BYTES + 1);
        let changes = vec![change(text, Some(lines)), change("b".to_owned(), Some(long))];
        let preview = bounded(ready_preview(changes, Vec::new(), Vec::new()));
        assert_eq!(preview.changes[0].what.len(), MAX_TEXT_BYTES + '…'.len_utf8());
        let diffs: Vec<&str> = preview.changes.iter().filter_map(|change| change.diff.as_deref()).collect();
        assert_eq!(diffs[0].lines().count(), MAX_DIFF_LINES + 1);
        assert!(
            diffs[0].ends_with("10 bytes of this diff omitted)\n") && diffs[1].starts_with("(the preview is")
        );
    }

    /// Otherwise an author could tell from the end of a visible diff how long a hidden one is, and by that what it contains.
    #[test]
    fn hidden_diffs_do_not_shorten_visible_ones() {
        let visible = "+\n".repeat(MAX_DIFF_LINES + 5);
        let cut = |hidden: String| {
            let hidden = PreviewChange { reviewers_only: true, ..change("a".to_owned(), Some(hidden)) };
            let changes = vec![hidden, change("b".to_owned(), Some(visible.clone()))];
            bounded(ready_preview(changes, Vec::new(), Vec::new())).restricted().changes
        };
        let shown = cut("-\n".to_owned());
        assert!(cut("-\n".repeat(MAX_DIFF_LINES + 1)) == shown, "lines");
        assert!(cut("x".repeat(MAX_DIFF_BYTES + 1)) == shown, "bytes");
    }
}
