//! The description of the API: committed as docs/openapi.json, and as a table for people in docs/api.md.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use ade_testkit::golden::assert_fresh;
use serde_json::Value;

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

fn description() -> Value {
    serde_json::to_value(ade_server::openapi()).expect("JSON")
}

/// Every operation: path, method, what is said about it.
fn operations(api: &Value) -> Vec<(&String, &String, &Value)> {
    let paths = api["paths"].as_object().expect("paths");
    let of_path = |(path, methods)| {
        let methods: &Value = methods;
        methods.as_object().expect("methods").iter().map(move |(method, about)| (path, method, about))
    };
    paths.iter().flat_map(of_path).collect()
}

#[test]
fn the_description_is_fresh() {
    let text = serde_json::to_string_pretty(&description()).expect("JSON");
    assert_fresh(&docs("openapi.json"), &(text + "\n")).expect("fresh");
}

#[test]
fn the_reference_of_routes_is_fresh() {
    let api = description();
    let mut text = String::from(
        "<!-- Generated from the description of the API by `make docs`. Never edit this file. -->\n# HTTP API\n\n\
         A running server shows the same at `/docs`, and as data at `/openapi.json`\n([openapi.json](openapi.json)). \
         Failures are `application/problem+json` with a `code`.\n",
    );
    for tag in api["tags"].as_array().expect("tags") {
        let name = tag["name"].as_str().expect("a name");
        write!(text, "\n## {name}\n\n{}\n", tag["description"].as_str().unwrap_or_default())
            .expect("a String");
        text.push_str("\n| Route | Does | Answers |\n|---|---|---|\n");
        for (path, method, about) in operations(&api) {
            let tagged = about["tags"].as_array().is_some_and(|tags| tags.iter().any(|tag| tag == name));
            if tagged {
                let answers = about["responses"].as_object().expect("answers").iter();
                let answer = |(status, answer): (&String, &Value)| {
                    format!("{status} {}", answer["description"].as_str().unwrap_or_default())
                };
                let answers: Vec<String> = answers.map(answer).collect();
                let summary = about["summary"].as_str().expect("every route says what it does");
                let route = format!("{} {path}", method.to_uppercase());
                writeln!(text, "| `{route}` | {summary} | {} |", answers.join("; ")).expect("a String");
            }
        }
    }
    assert_fresh(&docs("api.md"), &text).expect("fresh");
}

#[test]
fn every_operation_is_told_fully() {
    let api = description();
    let schemas: BTreeSet<&String> =
        api["components"]["schemas"].as_object().expect("schemas").keys().collect();
    for (path, method, about) in operations(&api) {
        let place = format!("{method} {path}");
        assert!(about["summary"].is_string() && about["tags"].is_array(), "{place}");
        let answers = about["responses"].as_object().expect("answers");
        assert!(answers.keys().any(|status| status.starts_with('2')), "{place} never succeeds");
        if path.starts_with("/api/") {
            assert!(answers.contains_key("401"), "{place} does not say that it needs a token");
        }
    }
    let text = api.to_string();
    for part in text.split("#/components/schemas/").skip(1) {
        let name: String = part.chars().take_while(|c| *c != '"').collect();
        assert!(schemas.contains(&name), "{name} is named and not described");
    }
}
