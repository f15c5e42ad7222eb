//! Text helpers: sanitising descriptions, and finding similar names.

/// Joins the text to one line and removes characters that control a terminal or change the direction of text.
pub(crate) fn one_line(text: &str) -> String {
    let is_control =
        |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.replace(is_control, " ").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The candidate most similar to `name`, if one is similar enough.
pub fn closest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // The distance takes time and memory proportional to the product of the lengths.
    const MAX_LEN: usize = 200;
    let name = Some(name).filter(|name| name.len() <= MAX_LEN)?;
    candidates
        .filter(|candidate| candidate.len() <= MAX_LEN)
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .filter(|(edits, candidate)| *edits <= candidate.len().max(name.len()) / 3)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_line_breaks_and_control_characters() {
        assert_eq!(one_line(" a\n\tb \u{1b}[31m \u{202e}c\r"), "a b [31m c");
    }

    #[test]
    fn suggests_only_similar_names() {
        assert_eq!(closest("tsk_id", ["user_id", "task_id"].into_iter()), Some("task_id"));
        assert_eq!(closest("zzz", ["user_id"].into_iter()), None);
    }
}
