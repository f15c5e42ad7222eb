//! The report in SARIF.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use ade_keytool::lint::{Rule, sarif};
use ade_testkit::effort;
use serde_json::Value;
use tempfile::TempDir;

use super::linter;

fn report_of_a_folder() -> Value {
    let folder = TempDir::new().expect("created");
    fs::write(folder.path().join("a b.py"), "import redis\nredis.set('ade:session:x', 1)\n")
        .expect("written");
    fs::write(folder.path().join("c.py"), b"\xff").expect("written");
    let report = linter().check_paths(&[folder.path().to_owned()]);
    assert_eq!((report.findings.len(), report.errors.len()), (2, 1), "{report:?}");
    sarif::log(&report, "1.2.3")
}

#[test]
fn has_the_properties_that_code_hosts_require() {
    let log = report_of_a_folder();
    assert_eq!(log["version"], "2.1.0");
    assert!(log["$schema"].as_str().expect("a schema").ends_with("sarif-schema-2.1.0.json"));
    let run = &log["runs"][0];
    let driver = &run["tool"]["driver"];
    assert_eq!((&driver["name"], &driver["version"]), (&"ade keys lint".into(), &"1.2.3".into()));
    for result in run["results"].as_array().expect("results") {
        let rule = result["ruleId"].as_str().expect("a rule");
        let index = usize::try_from(result["ruleIndex"].as_u64().expect("a number")).expect("small");
        assert_eq!(driver["rules"][index]["id"], rule);
        assert!(Rule::named(rule).is_some());
        assert!(result["message"]["text"].as_str().is_some_and(|text| text.contains("ade:session:x")));
        let place = &result["locations"][0]["physicalLocation"];
        let uri = place["artifactLocation"]["uri"].as_str().expect("a uri");
        assert!(uri.starts_with("file:///") && uri.ends_with("/a%20b.py"), "{uri}");
        assert_eq!(place["region"]["startLine"], 2);
    }
    let invocation = &run["invocations"][0];
    assert_eq!(invocation["executionSuccessful"], false);
    assert_eq!(invocation["toolExecutionNotifications"].as_array().expect("errors").len(), 1);
}

#[test]
fn an_empty_report_is_successful() {
    let log = sarif::log(&ade_keytool::lint::Report::default(), "1");
    assert_eq!(log["runs"][0]["results"], Value::Array(Vec::new()));
    assert_eq!(log["runs"][0]["invocations"][0]["executionSuccessful"], true);
}

/// With the schema in the source of the Python package `sarif-om`; only in long runs, which may download it.
#[test]
fn follows_the_official_schema() {
    if !effort::is_soak() {
        return;
    }
    let folder = TempDir::new().expect("created");
    let python = folder.path().join("venv/bin/python");
    let run = |program: &std::path::Path, args: &[&str]| {
        let output = Command::new(program).args(args).current_dir(folder.path()).output().expect("runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    run("python3".as_ref(), &["-m", "venv", "venv"]);
    run(&python, &["-m", "pip", "install", "--quiet", "jsonschema==4.26.0"]);
    run(
        &python,
        &["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "sarif-om==1.0.4"],
    );
    let mut check = Command::new(&python)
        .args(["-c", VALIDATE])
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("runs");
    let log = report_of_a_folder().to_string();
    check.stdin.take().expect("piped").write_all(log.as_bytes()).expect("written");
    let output = check.wait_with_output().expect("ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

const VALIDATE: &str = "
import json, sys, tarfile, jsonschema
source = tarfile.open('sarif_om-1.0.4.tar.gz')
schema = json.load(source.extractfile('sarif_om-1.0.4/sarif-2.1.0-rtm.4.json'))
jsonschema.validate(json.load(sys.stdin), schema)
";
