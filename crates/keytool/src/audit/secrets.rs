//! Recognises what looks like a secret: by its form, or by the name of its field.
//!
//! Invariant: only the kind of secret and its position are returned, never its text.

use serde_json::Value as Json;

/// Something that looks like a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Secret {
    /// What it seems to be, with an article.
    pub(super) what: &'static str,
    /// The field that has it.
    pub(super) field: Option<String>,
}

/// A secret with a fixed beginning, followed by at least so many letters, digits, `-` and `_`.
const PREFIXED: [(&str, usize, &str); 15] = [
    ("AKIA", 16, "an AWS access key"),
    ("ASIA", 16, "an AWS access key"),
    ("ghp_", 30, "a GitHub token"),
    ("gho_", 30, "a GitHub token"),
    ("ghs_", 30, "a GitHub token"),
    ("github_pat_", 30, "a GitHub token"),
    ("glpat-", 20, "a GitLab token"),
    ("xoxb-", 20, "a Slack token"),
    ("xoxp-", 20, "a Slack token"),
    ("sk_live_", 16, "a Stripe key"),
    ("rk_live_", 16, "a Stripe key"),
    ("AIza", 35, "a Google API key"),
    ("npm_", 36, "an npm token"),
    ("sk-", 32, "an API key"),
    ("eyJ", 17, "a JSON web token"),
];

/// Words in names of fields with secrets, in lower case and without separators.
const NAMES: [&str; 12] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "apikey",
    "accesskey",
    "accesstoken",
    "refreshtoken",
    "authtoken",
    "privatekey",
    "credential",
    "authorization",
];
/// Names that are words of their own.
const WHOLE_NAMES: [&str; 4] = ["token", "pwd", "bearer", "pass"];

/// Parts of these words are in every name above.
const HINTS: [&str; 8] = ["pass", "pwd", "secret", "key", "token", "credential", "authorization", "bearer"];

/// Looks for a secret in a text that has no fields.
pub(super) fn in_text(text: &str) -> Option<&'static str> {
    if text.contains("-----BEGIN ") && text.contains("PRIVATE KEY") {
        return Some("a private key");
    }
    let prefixed = PREFIXED.iter().find(|(prefix, min, what)| {
        text.match_indices(prefix).any(|(start, _)| {
            let before = text.get(..start).and_then(|before| before.chars().next_back());
            let rest = text.get(start + prefix.len()..).unwrap_or_default();
            let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            // A web token has three parts.
            let is_whole = *prefix != "eyJ"
                || rest.get(length..).is_some_and(|rest| {
                    rest.starts_with(".eyJ") && rest.get(1..).is_some_and(|rest| rest.contains('.'))
                });
            !before.is_some_and(|c| c.is_ascii_alphanumeric()) && length >= *min && is_whole && what.len() > 1
        })
    });
    prefixed.map(|(.., what)| *what).or_else(|| url_with_password(text).then_some("a URL with a password"))
}

fn url_with_password(text: &str) -> bool {
    text.match_indices("://").any(|(start, _)| {
        let rest = text.get(start + 3..).unwrap_or_default();
        let end = rest.find(|c: char| c.is_whitespace() || "/\"'<>\\,;".contains(c)).unwrap_or(rest.len());
        let user_info = rest.get(..end).and_then(|authority| authority.rsplit_once('@'));
        let password =
            user_info.and_then(|(user_info, _)| user_info.split_once(':')).map(|(_, password)| password);
        password.is_some_and(|password| !password.is_empty() && !is_harmless(password))
    })
}

/// Looks for a secret in the value of a named field.
pub(super) fn in_field(name: &str, value: &str) -> Option<&'static str> {
    let is_secret_name = HINTS.iter().any(|hint| contains_ignoring_case(name, hint)) && {
        let plain: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
        let plain = plain.to_ascii_lowercase();
        // A digest of a secret is none.
        !["hash", "digest", "sha256", "fingerprint", "id", "name"].iter().any(|end| plain.ends_with(end))
            && (NAMES.iter().any(|word| plain.contains(word)) || WHOLE_NAMES.contains(&plain.as_str()))
    };
    if is_secret_name && !is_harmless(value) {
        return Some("a secret, by the name of its field");
    }
    in_text(value)
}

/// Looks into a whole value: JSON by its fields, other text as it is.
pub(super) fn in_value(name: &str, value: &str) -> Option<Secret> {
    let trimmed = value.trim_start();
    if trimmed.starts_with(['{', '['])
        && HINTS.iter().any(|hint| contains_ignoring_case(trimmed, hint))
        && let Ok(json) = serde_json::from_str::<Json>(trimmed)
    {
        return in_json(name, &json);
    }
    in_field(name, value).map(|what| Secret { what, field: None })
}

fn in_json(name: &str, json: &Json) -> Option<Secret> {
    match json {
        Json::String(text) => {
            let field = (!name.is_empty()).then(|| name.chars().take(60).collect());
            in_field(name, text).map(|what| Secret { what, field })
        }
        Json::Array(items) => items.iter().find_map(|item| in_json(name, item)),
        Json::Object(fields) => fields.iter().find_map(|(name, value)| in_json(name, value)),
        Json::Null | Json::Bool(_) | Json::Number(_) => None,
    }
}

/// Whether a value is certainly no secret: a number, a word of a program, a mask, or a hash.
fn is_harmless(value: &str) -> bool {
    let value = value.trim();
    let is_hash = value.starts_with("$argon2") || value.starts_with("$2") || value.starts_with("sha256:");
    let is_hex =
        [32, 40, 64, 128].contains(&value.len()) && value.bytes().all(|byte| byte.is_ascii_hexdigit());
    value.len() < 4
        || ["true", "false", "null", "none", "bearer"].iter().any(|word| value.eq_ignore_ascii_case(word))
        || value.contains("***")
        || value.starts_with(['<', '[', '{'])
        || value.bytes().all(|byte| byte.is_ascii_digit() || b".:-+TZ ".contains(&byte))
        || is_hash
        || is_hex
}

fn contains_ignoring_case(text: &str, word: &str) -> bool {
    text.as_bytes().windows(word.len()).any(|window| window.eq_ignore_ascii_case(word.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognises_forms() {
        for (text, what) in [
            ("AKIAIOSFODNN7EXAMPLE", "AWS"),
            ("x ghp_0123456789abcdefghijABCDEFGHIJ012345", "GitHub"),
            ("eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "web token"),
            ("-----BEGIN RSA PRIVATE KEY-----\nMIIE", "private key"),
            ("postgres://me:hunter2@db/x", "URL"),
        ] {
            assert!(in_text(text).expect(text).contains(what));
        }
        for text in [
            "",
            "AKIA",
            "https://example.com/a@b:c",
            "redis://user:***@host",
            "eyJhbGciOiJIUzI1NiIsInR5cCI6",
            "MAKIAIOSFODNN7EXAMPLE1",
        ] {
            assert_eq!(in_text(text), None, "{text}");
        }
    }

    #[test]
    fn recognises_fields_by_name() {
        for (name, value) in [
            ("password", "hunter2"),
            ("clientSecret", "correct horse"),
            ("API_KEY", "abcd-1234"),
            ("token", "s3cr3t"),
        ] {
            assert!(in_field(name, value).is_some(), "{name}");
        }
        for (name, value) in [
            ("password", "***"),
            ("password", ""),
            ("token", "42"),
            ("password_hash", "$argon2id$x"),
            ("token", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"),
            ("tokens", "some words"),
            ("state", "APPROVED"),
        ] {
            assert_eq!(in_field(name, value), None, "{name}={value}");
        }
        let nested = in_value("", r#"{"user":{"name":"ann","Password":"hunter2"}}"#).expect("found");
        assert_eq!(
            (nested.field.as_deref(), format!("{nested:?}").contains("hunter2")),
            (Some("Password"), false)
        );
        assert_eq!(in_value("", r#"{"key":"a"}"#), None);
    }
}
