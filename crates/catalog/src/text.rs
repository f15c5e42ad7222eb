//! Texts for people: one line each, harmless on a terminal and in generated source.

/// The text in one line, without what would steer a terminal or turn the direction of reading.
pub(crate) fn one_line(written: &str) -> String {
    let steers = |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    written.replace(steers, " ").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The candidate that is spelled most like `name`, if any is close.
pub fn closest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // The distance takes time and memory by the product of the lengths.
    const LONGEST: usize = 200;
    let name = Some(name).filter(|name| name.len() <= LONGEST)?;
    candidates
        .filter(|candidate| candidate.len() <= LONGEST)
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .filter(|(edits, candidate)| *edits <= candidate.len().max(name.len()) / 3)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_harmless_line() {
        assert_eq!(one_line(" a\n\tb \u{1b}[31m \u{202e}c\r"), "a b [31m c");
    }

    #[test]
    fn only_a_near_name_is_suggested() {
        assert_eq!(closest("tsk_id", ["user_id", "task_id"].into_iter()), Some("task_id"));
        assert_eq!(closest("zzz", ["user_id"].into_iter()), None);
    }
}
