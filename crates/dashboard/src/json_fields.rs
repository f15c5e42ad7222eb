//! JSON values as lists of fields, for people: the path of each value, and what changed between two values. What cannot be seen is
//! shown as code points.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::format::visible;

/// A field that changes. Empty texts stand for values that are absent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FieldChange {
    pub(crate) name: String,
    pub(crate) before: String,
    pub(crate) after: String,
}

/// The values inside a JSON value by their paths. A list of plain values is one value.
pub(crate) fn fields(value: &Value) -> BTreeMap<String, String> {
    let mut open = vec![(String::new(), value)];
    let mut fields = BTreeMap::new();
    while let Some((path, value)) = open.pop() {
        let inside = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        match value {
            Value::Null => {}
            Value::Object(inner) => {
                open.extend(inner.iter().map(|(name, value)| (inside(&visible(name)), value)));
            }
            Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {
                open.extend(items.iter().enumerate().map(|(at, item)| (inside(&(at + 1).to_string()), item)));
            }
            value => {
                let path = if path.is_empty() { "value".to_owned() } else { path };
                fields.insert(path, plain(value));
            }
        }
    }
    fields
}

/// A value as text: a text without quotes, a list with commas.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => visible(text),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        value => visible(value.to_string()),
    }
}

/// The fields that differ.
pub(crate) fn changed(before: &Value, after: &Value) -> Vec<FieldChange> {
    let (mut before, after) = (fields(before), fields(after));
    let mut changes: Vec<FieldChange> = after
        .into_iter()
        .map(|(name, after)| FieldChange { before: before.remove(&name).unwrap_or_default(), name, after })
        .filter(|change| change.before != change.after)
        .collect();
    let removed = before.into_iter().filter(|(_, before)| !before.is_empty());
    changes.extend(removed.map(|(name, before)| FieldChange { name, before, after: String::new() }));
    changes.sort_by(|a, b| a.name.cmp(&b.name));
    changes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_what_differs_by_path() {
        let before = json!({ "roles": ["author"], "team": "db", "gone": 1, "same": true });
        let after =
            json!({ "roles": ["author", "reviewer"], "team": "db", "limits": { "max": 3 }, "same": true });
        let change = |name: &str, before: &str, after: &str| FieldChange {
            name: name.to_owned(),
            before: before.to_owned(),
            after: after.to_owned(),
        };
        let expected = [
            change("gone", "1", ""),
            change("limits.max", "", "3"),
            change("roles", "author", "author, reviewer"),
        ];
        assert_eq!(changed(&before, &after), expected);
        assert!(changed(&before, &before).is_empty());
    }

    #[test]
    fn shows_invisible_characters_of_names_and_values() {
        let shown = fields(&json!({ "a\u{202e}b": [{ "c": "d\u{200b}" }, [1, 2]] }));
        let expected = [("a⟦U+202E⟧b.1.c", "d⟦U+200B⟧"), ("a⟦U+202E⟧b.2", "1, 2")];
        assert_eq!(
            shown.into_iter().collect::<Vec<_>>(),
            expected.map(|(a, b)| (a.to_owned(), b.to_owned()))
        );
    }
}
