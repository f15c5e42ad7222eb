//! Fixtures of stored JSON: examples that a build must read, and write again exactly so.
//!
//! A field that is added, removed or renamed changes what is written. An example therefore has a value in every optional field and an
//! entry in every list: whatever is in them is compared too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::golden::{assert_format_unchanged, format_changed};

/// Reads the examples of a format and writes them again.
pub type RoundTrip = fn(&[Value]) -> Result<Vec<Value>, String>;

/// Reads from text, as stores do.
fn read<T: DeserializeOwned>(example: &Value) -> Result<T, String> {
    serde_json::from_str(&example.to_string()).map_err(|error| format!("cannot read {example}: {error}"))
}

pub fn round_trip<T: Serialize + DeserializeOwned>(examples: &[Value]) -> Result<Vec<Value>, String> {
    let again = |example| serde_json::to_value(read::<T>(example)?).map_err(|error| error.to_string());
    examples.iter().map(again).collect()
}

/// [`round_trip`] of an enum: there must be an example of every variant. See [`every_variant!`](crate::every_variant).
pub fn round_trip_variants<T: Serialize + DeserializeOwned>(
    examples: &[Value],
    variants: &[&str],
    variant_of: fn(&T) -> &'static str,
) -> Result<Vec<Value>, String> {
    let found = examples.iter().map(|example| read(example).map(|value| variant_of(&value)));
    let found: BTreeSet<&str> = found.collect::<Result<_, _>>()?;
    if let Some(missing) = variants.iter().find(|variant| !found.contains(*variant)) {
        return Err(format!("there is no example of {missing}"));
    }
    round_trip::<T>(examples)
}

/// The name of an enum and its round trip. It does not compile unless all variants are listed.
#[macro_export]
macro_rules! every_variant {
    ($type:ident { $($variant:ident),+ $(,)? }) => {
        (stringify!($type), |examples: &[serde_json::Value]| {
            $crate::formats::round_trip_variants::<$type>(
                examples,
                &[$(stringify!($variant)),+],
                |value| match value { $($type::$variant { .. } => stringify!($variant)),+ },
            )
        })
    };
}

/// Checks the examples of a fixture, a JSON object with a list by the name of each format. Only the paths in `empty`, such as
/// `/policy/0/draft`, may lead to null, an empty list or an empty object.
pub fn assert_formats(file: &Path, formats: &[(&str, RoundTrip)], empty: &[&str]) -> Result<(), String> {
    let failed = |why: String| format!("{}: {why}", file.display());
    let text = fs::read_to_string(file).map_err(|error| failed(error.to_string()))?;
    let examples: BTreeMap<String, Vec<Value>> =
        serde_json::from_str(&text).map_err(|error| failed(error.to_string()))?;
    let names: BTreeSet<&str> = formats.iter().map(|(name, _)| *name).collect();
    if !examples.keys().map(String::as_str).eq(names.iter().copied()) {
        return Err(failed(format!("it must have examples of exactly these formats: {names:?}")));
    }
    let mut found = BTreeSet::new();
    find_empty(&serde_json::json!(examples), "", &mut found);
    if !found.iter().map(String::as_str).eq(empty.iter().copied().collect::<BTreeSet<_>>()) {
        return Err(failed(format!("exactly the paths {empty:?} must be empty, and these are: {found:?}")));
    }
    let (mut written, mut changed) = (BTreeMap::new(), Vec::new());
    for (name, round_trip) in formats {
        let Some(stored) = examples.get(*name) else { continue };
        let again = round_trip(stored).map_err(|error| format_changed(name, file, &error))?;
        if again != *stored {
            changed.push(*name);
        }
        written.insert(*name, again);
    }
    if changed.is_empty() {
        return Ok(());
    }
    let pretty = serde_json::to_string_pretty(&written).map_err(|error| failed(error.to_string()))?;
    assert_format_unchanged(&changed.join(", "), file, &format!("{pretty}\n"))
}

/// The paths of all values that are null or empty.
fn find_empty(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    let is_empty = match value {
        Value::Null => true,
        Value::Array(entries) => {
            let paths = entries.iter().enumerate();
            paths.for_each(|(index, entry)| find_empty(entry, &format!("{path}/{index}"), found));
            entries.is_empty()
        }
        Value::Object(fields) => {
            fields.iter().for_each(|(name, field)| find_empty(field, &format!("{path}/{name}"), found));
            fields.is_empty()
        }
        _ => false,
    };
    if is_empty {
        found.insert(path.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Stored {
        name: String,
    }
    #[derive(serde::Serialize, serde::Deserialize)]
    struct WithAnotherField {
        name: String,
        note: Option<String>,
    }
    #[derive(serde::Serialize, serde::Deserialize)]
    struct WithoutAField {}
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Renamed {
        title: String,
    }
    #[derive(serde::Serialize, serde::Deserialize)]
    enum Kind {
        One,
        Two(u32),
    }

    fn check(fixture: &str, format: RoundTrip, empty: &[&str]) -> Result<(), String> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), fixture).expect("written");
        assert_formats(file.path(), &[("thing", format)], empty)
    }

    #[test]
    fn finds_changed_formats_and_examples_that_hide_changes() {
        let fixture = r#"{"thing": [{"name": "ann"}]}"#;
        check(fixture, round_trip::<Stored>, &[]).expect("unchanged");
        for changed in [round_trip::<WithAnotherField>, round_trip::<WithoutAField>, round_trip::<Renamed>] {
            let error = check(fixture, changed, &[]).expect_err("changed");
            assert!(error.starts_with("the stored format of thing has changed"), "{error}");
        }
        let with_null = r#"{"thing": [{"name": "ann", "note": null}]}"#;
        check(with_null, round_trip::<WithAnotherField>, &[]).expect_err("hides the type of the field");
        check(with_null, round_trip::<WithAnotherField>, &["/thing/0/note"]).expect("an exception");
        check(fixture, round_trip::<Stored>, &["/thing/0/note"]).expect_err("not an exception");
        check(r#"{"other": [1]}"#, round_trip::<u8>, &[]).expect_err("another name");
    }

    #[test]
    fn asks_for_an_example_of_every_variant() {
        let (_, kind): (&str, RoundTrip) = crate::every_variant!(Kind { One, Two });
        check(r#"{"thing": ["One", {"Two": 2}]}"#, kind, &[]).expect("unchanged");
        let error = check(r#"{"thing": ["One"]}"#, kind, &[]).expect_err("incomplete");
        assert!(error.contains("no example of Two"), "{error}");
    }
}
