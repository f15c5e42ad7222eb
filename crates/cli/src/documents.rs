//! Files that people write for commands: YAML, which JSON is a part of, or JSON alone if they are called so.
//!
//! Nothing is guessed: unknown fields, keys that are named twice and `yes` for `true` are refused, with their place.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::failure::{Failure, Kind};

/// As much as a server takes.
const LARGEST: u64 = 1 << 20;

/// What is written in a file, or on standard input if it is `-`.
pub(crate) fn read<T: DeserializeOwned>(file: &Path) -> Result<T, Failure> {
    let stdin = file.as_os_str() == "-";
    let name = if stdin { "standard input".to_owned() } else { file.display().to_string() };
    let cannot = |error: io::Error| Failure::new(Kind::Unavailable, format!("cannot read {name}: {error}"));
    let mut text = String::new();
    let many = if stdin {
        io::stdin().lock().take(LARGEST + 1).read_to_string(&mut text)
    } else {
        File::open(file).map_err(cannot)?.take(LARGEST + 1).read_to_string(&mut text)
    };
    if many.map_err(cannot)? as u64 > LARGEST {
        return Err(Failure::new(Kind::Input, format!("{name} is larger than 1 MiB, which no server takes")));
    }
    let json = file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    parse(&text, json).map_err(|error| {
        Failure::new(Kind::Input, format!("{name} is not as it should be: {error}"))
            .hint("the page /docs of a server lists the fields; they have the same names in YAML and JSON")
    })
}

fn parse<T: DeserializeOwned>(text: &str, json: bool) -> Result<T, String> {
    if json {
        return serde_json::from_str(text).map_err(|error| error.to_string());
    }
    // Nothing at all would be read as a document without fields.
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
    fn yaml_and_json_say_the_same() {
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
        assert_eq!(from_yaml.team, Some(None), "null is not the same as nothing");
        assert_eq!(parse::<TaskRequest>(&json.to_string(), false).expect("JSON is YAML"), from_json);
    }

    #[test]
    fn policies_are_read_with_their_windows() {
        let yaml = "{name: night, window: {weekdays: [sat, sun], hours: [22, 6], time_zone: Europe/Berlin}, priority: HIGH}";
        let policy: PolicyRequest = parse(yaml, false).expect("YAML");
        assert_eq!(policy.window.flatten().expect("a window").hours, (22, 6));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place_on_one_line() {
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
