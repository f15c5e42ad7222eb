//! Text for people. From outside, for a terminal or a log: characters that control the terminal, reorder the text or cannot be seen
//! are written as escapes, so that a reader sees what is there.

use std::borrow::Cow;
use std::fmt::{self, Write};

/// Whether a character is shown as itself: neither a control character, nor one that changes the direction of text, nor invisible.
#[must_use]
pub const fn is_shown(c: char) -> bool {
    !matches!(c,
        // Control characters, DEL and C1 included.
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}'
        // Default ignorable and format characters; fillers that have no glyph; separators of lines and paragraphs.
        | '\u{ad}' | '\u{34f}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}'
        | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{2800}'
        | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
        // Private use has no agreed glyph; tags and variation selectors have none at all.
        | '\u{e000}'..='\u{f8ff}' | '\u{e0000}'..='\u{10ffff}')
}

/// The text without surrounding space, if there is anything in it to be seen.
pub fn visible(text: Option<&str>) -> Option<&str> {
    let is_visible = |c: char| is_shown(c) && !c.is_whitespace();
    text.map(str::trim).filter(|text| text.chars().any(is_visible))
}

/// The text with every other character as an escape, such as `\u{202e}`.
#[must_use]
pub fn escape_hidden(text: &str) -> Cow<'_, str> {
    escape(text, |c, escaped| {
        // Writing to a String never fails.
        let _ = match c {
            '\n' | '\r' | '\t' => write!(escaped, "{}", c.escape_default()),
            c => write!(escaped, "{}", c.escape_unicode()),
        };
    })
}

/// JSON in which the strings contain no such character: it means the same.
#[must_use]
pub fn escape_hidden_in_json(json: &str) -> Cow<'_, str> {
    escape(json, |c, escaped| {
        // Between the strings of a document there are line ends, and no other such character.
        if c == '\n' {
            return escaped.push(c);
        }
        let mut units = [0; 2];
        for unit in c.encode_utf16(&mut units) {
            let _ = write!(escaped, "\\u{unit:04x}");
        }
    })
}

/// A number with its noun, such as `1 resource` and `2 resources`.
#[must_use]
pub fn counted<N: fmt::Display + PartialEq + From<u8> + Copy>(
    number: N,
    singular: &str,
    plural: &str,
) -> String {
    format!("{number} {}", if number == N::from(1) { singular } else { plural })
}

fn escape(text: &str, write_escaped: impl Fn(char, &mut String)) -> Cow<'_, str> {
    if text.chars().all(is_shown) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len() * 2);
    for c in text.chars() {
        if is_shown(c) { escaped.push(c) } else { write_escaped(c, &mut escaped) }
    }
    escaped.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_nobody_sees_is_none() {
        assert_eq!(visible(Some("  fine \n")), Some("fine"));
        for unseen in ["", " \t", "\u{200b}\u{2060}", "\u{3164} \u{202e}"] {
            assert_eq!(visible(Some(unseen)), None, "{unseen:?}");
        }
    }

    #[test]
    fn shows_letters_of_any_script_and_escapes_what_deceives() {
        for text in ["deploy v2", "Grüße, 東京, שלום, नमस्ते", "✔ 🚀 — “quoted”", ""]
        {
            assert!(matches!(escape_hidden(text), Cow::Borrowed(same) if same == text), "{text}");
        }
        for (text, shown) in [
            ("\u{1b}[2Jok\u{7}", "\\u{1b}[2Jok\\u{7}"),
            ("a\u{202e}b\u{2066}c\u{200f}\u{61c}", "a\\u{202e}b\\u{2066}c\\u{200f}\\u{61c}"),
            ("pay\u{200b}\u{200d}\u{ad}load\u{feff}", "pay\\u{200b}\\u{200d}\\u{ad}load\\u{feff}"),
            (
                "x\u{e0061}\u{e0100}\u{fe0f}\u{3164}\u{9b}\u{7f}",
                "x\\u{e0061}\\u{e0100}\\u{fe0f}\\u{3164}\\u{9b}\\u{7f}",
            ),
            ("two\nlines\r\t", "two\\nlines\\r\\t"),
        ] {
            assert_eq!(escape_hidden(text), shown);
            assert!(escape_hidden(text).chars().all(is_shown));
        }
    }

    #[test]
    fn nouns_follow_their_number() {
        let shown = |number| counted(number, "entry", "entries");
        assert_eq!([shown(0), shown(1), shown(2)], ["0 entries", "1 entry", "2 entries"]);
    }

    #[test]
    fn escaped_json_means_the_same() {
        let value = serde_json::json!({ "a\u{202e}": ["\u{e0061}\u{7f}\u{9b}", "x\ny", "ü"] });
        let json = serde_json::to_string_pretty(&value).expect("JSON");
        let escaped = escape_hidden_in_json(&json);
        assert!(escaped.chars().all(|c| c == '\n' || is_shown(c)), "{escaped}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).expect("JSON"), value);
    }
}
