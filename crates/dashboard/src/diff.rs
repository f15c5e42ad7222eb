//! Diffs as rows: line numbers, signs, and the words that differ between a removed line and the one that replaces it.
//!
//! Words are tokens of the text (names, numbers, strings, comments), so that a mark never begins within one. Every line is shown;
//! only the comparison of words is bounded.

use std::ops::Range;

use similar::{Algorithm, DiffTag, capture_diff_slices};

use crate::Markup;
use crate::format::visible;

/// Longer lines are shown without comparing their words.
const MAX_COMPARED_LEN: usize = 2_000;
/// Tokens that are compared in one preview. Beyond it lines are shown without comparing their words.
const MAX_COMPARED_TOKENS: usize = 20_000;
/// Lines with less in common are a removal and an addition, not a change.
const MIN_SIMILARITY: f64 = 0.35;

/// A line of a diff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DiffRow {
    pub(crate) kind: RowKind,
    pub(crate) old_number: Option<usize>,
    pub(crate) new_number: Option<usize>,
    pub(crate) text: Markup,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowKind {
    Context,
    Plus,
    Minus,
    Hunk,
}

impl DiffRow {
    /// The class in the style sheet.
    pub(crate) const fn class(&self) -> &'static str {
        match self.kind {
            RowKind::Context => "",
            RowKind::Plus => "plus",
            RowKind::Minus => "minus",
            RowKind::Hunk => "hunk",
        }
    }

    pub(crate) const fn sign(&self) -> &'static str {
        match self.kind {
            RowKind::Plus => "+",
            RowKind::Minus => "−",
            RowKind::Context | RowKind::Hunk => "",
        }
    }

    pub(crate) fn old_text(&self) -> String {
        self.old_number.map_or_else(String::new, |number| number.to_string())
    }

    pub(crate) fn new_text(&self) -> String {
        self.new_number.map_or_else(String::new, |number| number.to_string())
    }
}

/// What comparing words may still cost in a preview, in tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CompareBudget(usize);

impl Default for CompareBudget {
    fn default() -> Self {
        Self(MAX_COMPARED_TOKENS)
    }
}

/// The lines, without the names of the files before the first hunk. Line ends are split at `\n` only, so that a change of line ends is
/// shown as the characters that it consists of.
fn shown_lines(diff: &str) -> Vec<&str> {
    let text = diff.strip_suffix('\n').unwrap_or(diff);
    let mut lines: Vec<&str> = text.split('\n').collect();
    match lines.as_slice() {
        [""] => lines.clear(),
        [old, new, hunk, ..]
            if old.starts_with("--- ") && new.starts_with("+++ ") && hunk_start(hunk).is_some() =>
        {
            lines.drain(..2);
        }
        _ => {}
    }
    lines
}

/// The rows of a unified diff. Text in another form is shown as it is.
pub(crate) fn rows(diff: &str, budget: &mut CompareBudget) -> Vec<DiffRow> {
    let lines = shown_lines(diff);
    let has_hunks = lines.iter().any(|line| hunk_start(line).is_some());
    let (mut rows, mut removed, mut added) = (Vec::new(), Vec::new(), Vec::new());
    let mut numbers = if has_hunks { None } else { Some((1, 1)) };
    for line in lines {
        if let Some(start) = hunk_start(line) {
            flush(&mut rows, &mut removed, &mut added, &mut numbers, budget);
            numbers = Some(start);
            rows.push(DiffRow { kind: RowKind::Hunk, old_number: None, new_number: None, text: plain(line) });
            continue;
        }
        match line.split_at_checked(1) {
            Some(("-", text)) => {
                // A removal after additions begins another change.
                if !added.is_empty() {
                    flush(&mut rows, &mut removed, &mut added, &mut numbers, budget);
                }
                removed.push(text);
            }
            Some(("+", text)) => added.push(text),
            Some((" ", text)) => {
                flush(&mut rows, &mut removed, &mut added, &mut numbers, budget);
                rows.push(context(text, &mut numbers));
            }
            _ => {
                flush(&mut rows, &mut removed, &mut added, &mut numbers, budget);
                rows.push(context(line, &mut numbers));
            }
        }
    }
    flush(&mut rows, &mut removed, &mut added, &mut numbers, budget);
    rows
}

type Numbers = Option<(usize, usize)>;

fn context(text: &str, numbers: &mut Numbers) -> DiffRow {
    let (old_number, new_number) = (next_old(numbers), next_new(numbers));
    DiffRow { kind: RowKind::Context, old_number, new_number, text: plain(text) }
}

fn next_old(numbers: &mut Numbers) -> Option<usize> {
    let (old, _) = numbers.as_mut()?;
    *old += 1;
    Some(*old - 1)
}

fn next_new(numbers: &mut Numbers) -> Option<usize> {
    let (_, new) = numbers.as_mut()?;
    *new += 1;
    Some(*new - 1)
}

/// The first line numbers of `@@ -3,4 +3,5 @@`.
fn hunk_start(line: &str) -> Option<(usize, usize)> {
    let ranges = line.strip_prefix("@@ -")?;
    let (old, rest) = ranges.split_once(" +")?;
    let (new, _) = rest.split_once(" @@")?;
    let first = |range: &str| range.split(',').next().and_then(|number| number.parse().ok());
    Some((first(old)?, first(new)?))
}

/// Adds removed and added lines that follow each other: the first removed one is compared with the first added one, and so on.
fn flush<'a>(
    rows: &mut Vec<DiffRow>,
    removed: &mut Vec<&'a str>,
    added: &mut Vec<&'a str>,
    numbers: &mut Numbers,
    budget: &mut CompareBudget,
) {
    let pairs = removed.iter().zip(added.iter());
    let compared: Vec<_> = pairs.map(|(old, new)| compare(old, new, budget)).collect();
    for (index, text) in removed.drain(..).enumerate() {
        let marked = compared.get(index).and_then(|pair| pair.as_ref().map(|(old, _)| old.clone()));
        let text = marked.unwrap_or_else(|| plain(text));
        rows.push(DiffRow { kind: RowKind::Minus, old_number: next_old(numbers), new_number: None, text });
    }
    for (index, text) in added.drain(..).enumerate() {
        let marked = compared.get(index).and_then(|pair| pair.as_ref().map(|(_, new)| new.clone()));
        let text = marked.unwrap_or_else(|| plain(text));
        rows.push(DiffRow { kind: RowKind::Plus, old_number: None, new_number: next_new(numbers), text });
    }
}

/// Both lines with the tokens marked that differ, if they have enough in common.
fn compare(old: &str, new: &str, budget: &mut CompareBudget) -> Option<(Markup, Markup)> {
    if old.len() > MAX_COMPARED_LEN || new.len() > MAX_COMPARED_LEN {
        return None;
    }
    let (old_tokens, new_tokens) = (tokens(old), tokens(new));
    // What is left stays for shorter lines.
    budget.0 = budget.0.checked_sub(old_tokens.len() + new_tokens.len())?;
    let texts = |tokens: &[Token<'_>]| tokens.iter().map(|token| token.text.to_owned()).collect::<Vec<_>>();
    let operations = capture_diff_slices(Algorithm::Myers, &texts(&old_tokens), &texts(&new_tokens));
    let (mut old_marks, mut new_marks) = (vec![false; old_tokens.len()], vec![false; new_tokens.len()]);
    let mut common = 0;
    for operation in operations {
        let (tag, old_range, new_range) = operation.as_tag_tuple();
        if tag == DiffTag::Equal {
            let equal = old_tokens.get(old_range).unwrap_or_default();
            common += equal.iter().map(|token| token.text.trim().len()).sum::<usize>();
        } else {
            mark(&mut old_marks, old_range);
            mark(&mut new_marks, new_range);
        }
    }
    let longest = old.trim().len().max(new.trim().len()).max(1);
    #[expect(clippy::cast_precision_loss, reason = "the lengths are bounded")]
    let similarity = common as f64 / longest as f64;
    (similarity >= MIN_SIMILARITY).then(|| (marked(&old_tokens, &old_marks), marked(&new_tokens, &new_marks)))
}

fn mark(marks: &mut [bool], range: Range<usize>) {
    for mark in marks.get_mut(range).unwrap_or_default() {
        *mark = true;
    }
}

/// What a token is, as far as it shows without knowing the language.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenKind {
    Space,
    Word,
    Number,
    String,
    Comment,
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Token<'a> {
    kind: TokenKind,
    text: &'a str,
}

/// Tokens that most languages and configuration files share. Together they are the line.
fn tokens(line: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let after_space = found.last().is_none_or(|token: &Token<'_>| token.kind == TokenKind::Space);
        let (kind, len) = match first {
            _ if after_space && ["#", "//", "-- "].iter().any(|start| rest.starts_with(start)) => {
                (TokenKind::Comment, rest.len())
            }
            '"' | '\'' | '`' => {
                string_len(rest, first).map_or((TokenKind::Other, 1), |len| (TokenKind::String, len))
            }
            _ if first.is_whitespace() => (TokenKind::Space, prefix_len(rest, char::is_whitespace)),
            '0'..='9' => {
                (TokenKind::Number, prefix_len(rest, |c| c.is_alphanumeric() || matches!(c, '.' | '_')))
            }
            _ if first.is_alphabetic() || first == '_' => {
                (TokenKind::Word, prefix_len(rest, |c| c.is_alphanumeric() || c == '_'))
            }
            _ => (TokenKind::Other, first.len_utf8()),
        };
        let (text, remaining) = rest.split_at(len);
        found.push(Token { kind, text });
        rest = remaining;
    }
    found
}

fn prefix_len(text: &str, is_part: impl Fn(char) -> bool) -> usize {
    text.find(|character| !is_part(character)).unwrap_or(text.len())
}

/// The length of a quoted string that ends on the line.
fn string_len(text: &str, quote: char) -> Option<usize> {
    let mut is_escaped = false;
    for (index, character) in text.char_indices().skip(1) {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if character == quote => return Some(index + character.len_utf8()),
            _ => {}
        }
    }
    None
}

fn plain(line: &str) -> Markup {
    let tokens = tokens(line);
    marked(&tokens, &[])
}

fn marked(tokens: &[Token<'_>], marks: &[bool]) -> Markup {
    let mut markup = Markup::default();
    let is_marked = |index: usize| marks.get(index).copied().unwrap_or_default();
    for (index, token) in tokens.iter().enumerate() {
        if is_marked(index) && (index == 0 || !is_marked(index - 1)) {
            markup.raw("<mark>");
        }
        let class = match token.kind {
            TokenKind::Comment => Some("<span class=\"c\">"),
            TokenKind::String => Some("<span class=\"q\">"),
            TokenKind::Number => Some("<span class=\"d\">"),
            TokenKind::Space | TokenKind::Word | TokenKind::Other => None,
        };
        if let Some(start) = class {
            markup.raw(start).text(&visible(token.text)).raw("</span>");
        } else {
            markup.text(&visible(token.text));
        }
        if is_marked(index) && !is_marked(index + 1) {
            markup.raw("</mark>");
        }
    }
    markup
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all_rows(diff: &str) -> Vec<DiffRow> {
        rows(diff, &mut CompareBudget::default())
    }

    fn texts(diff: &str) -> Vec<(RowKind, String)> {
        all_rows(diff).into_iter().map(|row| (row.kind, row.text.to_string())).collect()
    }

    #[test]
    fn marks_the_tokens_that_differ() {
        let found = texts("@@ -1,2 +1,2 @@\n listen 80\n-workers 2\n+workers 4\n");
        assert_eq!(found[1], (RowKind::Context, "listen <span class=\"d\">80</span>".to_owned()));
        assert_eq!(found[2], (RowKind::Minus, "workers <mark><span class=\"d\">2</span></mark>".to_owned()));
        assert_eq!(found[3], (RowKind::Plus, "workers <mark><span class=\"d\">4</span></mark>".to_owned()));
    }

    #[test]
    fn lines_with_little_in_common_are_not_compared() {
        let found = texts("@@ -1 +1 @@\n-alpha beta gamma\n+something else entirely\n");
        assert!(found.iter().all(|(_, text)| !text.contains("<mark>")), "{found:?}");
    }

    #[test]
    fn lines_are_numbered_by_their_hunk() {
        let rows = all_rows("--- a\n+++ b\n@@ -10,2 +20,3 @@\n same\n-old\n+new\n+more\n");
        let numbers: Vec<_> = rows.iter().map(|row| (row.old_number, row.new_number)).collect();
        let expected =
            [(None, None), (Some(10), Some(20)), (Some(11), None), (None, Some(21)), (None, Some(22))];
        assert_eq!(numbers, expected);
    }

    #[test]
    fn only_the_names_of_the_files_are_left_out() {
        let header = "--- a\n+++ b\n";
        let hunk = "@@ -1 +1 @@\n-x\n+y\n";
        let shown = |diff: &str| texts(diff).into_iter().map(|(_, text)| text).collect::<Vec<_>>();
        assert_eq!(shown(&format!("{header}{hunk}")).len(), 3);
        let hidden = "--- DROP TABLE users;\n+++ everything\n";
        for diff in [
            format!("{header}{hidden}{hunk}"),
            format!("{hidden}{header}{hunk}"),
            format!("{hidden}x\n{hunk}"),
        ] {
            assert!(shown(&diff).iter().any(|text| text.contains("DROP TABLE users")), "{diff}");
        }
        assert_eq!(shown(&format!("--- one\n{hunk}")).len(), 4);
        assert!(shown("").is_empty());
        assert_eq!(shown("+a\n\n+b\n").len(), 3, "also lines without anything");
    }

    #[test]
    fn a_change_of_line_ends_is_visible() {
        let found = texts("@@ -1,2 +1,2 @@\n-a b\r\n+a b\n c\r\n");
        assert_eq!(found[1], (RowKind::Minus, "a b<mark>⟦U+000D⟧</mark>".to_owned()));
        assert_eq!(found[2], (RowKind::Plus, "a b".to_owned()));
        assert_eq!(found[3], (RowKind::Context, "c⟦U+000D⟧".to_owned()));
    }

    #[test]
    fn words_are_compared_up_to_a_limit_for_the_whole_preview() {
        let line = |sign: char, end: char| format!("{sign}{}{end}\n", ".".repeat(1_989));
        let diff = line('-', '!').repeat(60) + &line('+', '?').repeat(60);
        let mut budget = CompareBudget::default();
        let marked = |rows: Vec<DiffRow>| {
            assert_eq!(rows.len(), 120, "every line is shown");
            rows.iter().filter(|row| row.text.to_string().contains("<mark>")).count()
        };
        let of_a_preview = MAX_COMPARED_TOKENS / (2 * 1_990);
        assert_eq!(marked(rows(&diff, &mut budget)), 2 * of_a_preview);
        assert_eq!(marked(rows(&diff, &mut budget)), 0, "the next change of the same preview");
    }

    #[test]
    fn markup_in_a_diff_is_text() {
        let found = texts("+<script>alert(\"x\")</script>\n");
        assert!(!found[0].1.contains("<script"), "{found:?}");
    }

    proptest! {
        #[test]
        fn no_text_is_lost(lines in proptest::collection::vec("[-+ ][ -~]{0,40}", 1..30)) {
            let shown: Vec<String> = all_rows(&lines.join("\n")).into_iter().map(|row| {
                let text = row.text.to_string();
                let parts = text.split('<').map(|part| part.split_once('>').map_or(part, |(_, text)| text));
                parts.collect::<String>().replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"")
                    .replace("&#39;", "'").replace("&amp;", "&")
            }).collect();
            let mut shown = shown;
            let mut expected: Vec<String> = lines.iter().map(|line| line[1..].to_owned()).collect();
            shown.sort();
            expected.sort();
            prop_assert_eq!(shown, expected);
        }

        #[test]
        fn any_text_is_rendered_without_markup_of_its_own(diff in "(.|\n){0,200}") {
            for row in all_rows(&diff) {
                let text = row.text.to_string().replace("<mark>", "").replace("</mark>", "").replace("</span>", "")
                    .replace("<span class=\"c\">", "").replace("<span class=\"q\">", "").replace("<span class=\"d\">", "");
                prop_assert!(!text.contains(['<', '>']));
            }
        }
    }
}
