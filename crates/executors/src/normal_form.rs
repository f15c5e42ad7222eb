//! The normal form of texts that become part of a target or a resource, or that a command may read as a path. A second spelling of
//! the same thing is refused: it would escape the patterns that judge it.

use ade_domain::normal_form::is_composed;
use ade_domain::text::is_shown;
use percent_encoding::percent_decode_str;
use serde_json::Value;
use url::Url;

use crate::command::placeholder_names;

type Check = Result<(), String>;

/// Checks that a text has one spelling, and that people see all of it.
pub(crate) fn check_text(text: &str) -> Check {
    if !is_composed(text) {
        return Err("must be composed Unicode (NFC): two spellings of one name would be two names".to_owned());
    }
    match text.chars().find(|c| !is_shown(*c)) {
        Some(hidden) => Err(format!("must not contain {}, which is not shown", hidden.escape_unicode())),
        None => Ok(()),
    }
}

/// Checks the arguments of a task. Those that fill the operator's `resources` must also be names of one spelling. The error has the
/// name of the argument.
pub(crate) fn check_arguments(
    arguments: Option<&Value>,
    resources: &[String],
) -> Result<(), (String, String)> {
    let of_resources: Vec<String> = resources.iter().flat_map(|text| placeholder_names(text)).collect();
    for (name, value) in arguments.and_then(Value::as_object).into_iter().flatten() {
        let Some(text) = value.as_str() else { continue };
        check_argument(text, of_resources.contains(name)).map_err(|detail| (name.clone(), detail))?;
    }
    Ok(())
}

fn check_argument(text: &str, is_of_resource: bool) -> Check {
    check_text(text)?;
    if text.trim() != text {
        return Err("must not begin or end with a space".to_owned());
    }
    // A command may decode it, or pass it on to somebody who does.
    let decoded = percent_decode_str(text).decode_utf8_lossy();
    for text in [text, &decoded] {
        let mut segments = text.split(['/', '\\']);
        if segments.clone().any(is_dot_segment) {
            return Err("must not contain the path segments \".\" and \"..\"".to_owned());
        }
        if is_of_resource && segments.any(str::is_empty) {
            return Err(
                "must not contain empty path segments: it is part of the name of a resource".to_owned()
            );
        }
    }
    Ok(())
}

/// Servers ignore parameters, as in `..;a=b`.
fn is_dot_segment(segment: &str) -> bool {
    matches!(segment.split(';').next(), Some("." | ".."))
}

/// A URL that is written in normal form.
pub(crate) fn normal_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("must be a URL: {error}"))?;
    if url.as_str() != text {
        return Err(format!("must be written in normal form: {url}"));
    }
    let is_unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    for (at, _) in url.path().match_indices('%') {
        let escape = url.path().get(at..at + 3).unwrap_or_default();
        let decoded: Vec<u8> = percent_decode_str(escape).collect();
        if decoded.len() != 1 || decoded.iter().any(|byte| is_unreserved(*byte)) {
            return Err(format!("must not contain {escape:?}: write the character itself"));
        }
        if escape.bytes().any(|byte| byte.is_ascii_lowercase()) {
            return Err(format!("must not contain {escape:?}: write the digits in upper case"));
        }
    }
    let mut segments = url.path().strip_prefix('/').unwrap_or_default().split('/').peekable();
    while let Some(segment) = segments.next() {
        // A path may end with a slash.
        if segment.is_empty() && segments.peek().is_some() {
            return Err("must not contain empty path segments".to_owned());
        }
        let decoded = percent_decode_str(segment).decode_utf8();
        let decoded = decoded.map_err(|_| format!("must have a path in UTF-8, unlike {segment:?}"))?;
        if decoded.contains(['/', '\\']) || is_dot_segment(&decoded) {
            return Err(format!(
                "must not contain the path segment {segment:?}: servers disagree about its meaning"
            ));
        }
        check_text(&decoded).map_err(|detail| format!("has the path segment {segment:?}, which {detail}"))?;
    }
    Ok(url)
}
