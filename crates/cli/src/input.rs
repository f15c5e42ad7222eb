//! Files that users write for commands: YAML, or JSON if the file name ends in `.json`.
//!
//! Strict: unknown fields, duplicate keys and `yes` for `true` are rejected with their position.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::failure::{Failure, Result};

/// Largest request body that a server accepts.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Reads and parses a file, or standard input if the path is `-`.
pub(crate) fn read<T: DeserializeOwned>(file: &Path) -> Result<T> {
    let (name, text) = read_file(file)?;
    let is_json = file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    parse(&text, is_json).map_err(|error| {
        Failure::invalid(format!("{name} is invalid: {error}"))
            .hint("see the page /docs of the server for the fields; YAML and JSON use the same names")
    })
}

/// Reads a secret from a file, or standard input if the path is `-`, without the line end.
pub(crate) fn read_secret(file: &Path) -> Result<String> {
    Ok(read_file(file)?.1.trim().to_owned())
}

/// The name of a file in messages, and its text.
fn read_file(file: &Path) -> Result<(String, String)> {
    let (name, text) = if file.as_os_str() == "-" {
        ("standard input".to_owned(), read_text(io::stdin().lock(), MAX_FILE_BYTES))
    } else {
        let text = File::open(file).and_then(|file| read_text(file, MAX_FILE_BYTES));
        (file.display().to_string(), text)
    };
    let text = text.map_err(|error| match error.kind() {
        ErrorKind::FileTooLarge => Failure::invalid(format!("{name} is too large: the limit is 1 MiB")),
        _ => Failure::cannot(format_args!("read {name}"), error),
    })?;
    Ok((name, text))
}

/// Reads a text of at most `limit` bytes.
pub(crate) fn read_text(source: impl Read, limit: u64) -> io::Result<String> {
    let mut text = String::new();
    if source.take(limit + 1).read_to_string(&mut text)? as u64 > limit {
        return Err(io::Error::new(ErrorKind::FileTooLarge, format!("it is larger than {limit} bytes")));
    }
    Ok(text)
}

fn parse<T: DeserializeOwned>(text: &str, is_json: bool) -> Result<T, String> {
    if is_json {
        return serde_json::from_str(text).map_err(|error| error.to_string());
    }
    // The YAML parser reads an empty text as a document without fields.
    if text.trim().is_empty() {
        return Err("it is empty".to_owned());
    }
    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use ade_client::wire::{PolicyRequest, TaskRequest};
    use serde_json::json;

    use super::*;

    #[test]
    fn parses_yaml_and_json_alike() {
        let yaml = "
type: deploy
version: 2
description: |
  ship it
parameters:
  replicas: 3
  ratio: 0.5
  country: no
  dry: true
  nothing: null
  list: [a, {b: 1}]
resources:
  - {type: database, id: prod}
team: null
";
        let json = json!({
            "type": "deploy", "version": "2", "description": "ship it\n",
            "parameters": { "replicas": 3, "ratio": 0.5, "country": "no", "dry": true, "nothing": null, "list": ["a", { "b": 1 }] },
            "resources": [{ "type": "database", "id": "prod" }], "team": null,
        });
        let from_yaml: TaskRequest = parse(yaml, false).expect("YAML");
        let from_json: TaskRequest = parse(&json.to_string(), true).expect("JSON");
        assert_eq!(from_yaml, from_json);
        assert_eq!(from_yaml.team, Some(None), "null differs from absent");
        assert_eq!(parse::<TaskRequest>(&json.to_string(), false).expect("JSON is YAML"), from_json);
    }

    #[test]
    fn parses_policy_windows() {
        let yaml = "{name: night, window: {weekdays: [sat, sun], hours: [22, 6], time_zone: Europe/Berlin}, priority: HIGH}";
        let policy: PolicyRequest = parse(yaml, false).expect("YAML");
        assert_eq!(policy.window.flatten().expect("a window").hours, (22, 6));
    }

    #[test]
    fn reports_errors_on_one_line_with_their_position() {
        for wrong in
            ["type: a\ntyp: b", "type: a\ntype: b", "type: a\npriority: high", "type: [a", "a: &x [*x]", ""]
        {
            let error = parse::<TaskRequest>(wrong, false).expect_err(wrong);
            assert!(!error.contains('\n'), "{error}");
        }
        let error = parse::<TaskRequest>("type: a\ntyp: b", false).expect_err("unknown");
        assert!(error.contains("typ") && error.contains("line 2"), "{error}");
    }
}
