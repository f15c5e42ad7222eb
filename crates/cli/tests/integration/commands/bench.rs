//! `ade bench` measures every row and cleans up. The measured values themselves are not tested. Each benchmark runs in one
//! kind of deployment; they share the code that starts and removes either.

use std::path::Path;
use std::process::{Command, Output};

use ade_testkit::{Postgres, Redis};
use serde_json::Value;

fn bench_locks(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ade"));
    command.args(["bench", "locks", "--quick"]).args(arguments).output().expect("runs")
}

#[test]
fn quick_run_measures_every_row_and_cleans_up() {
    let folder = tempfile::tempdir().expect("made");
    let output = bench_locks(&["--json", "--data", folder.path().to_str().expect("text")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    for (row, figures) in [("acquire", 5), ("handover", 5), ("hold", 2), ("stall", 10), ("deadlock", 3)] {
        let rows = report["rows"].as_array().expect("rows");
        let found = rows.iter().find(|found| found["row"] == row).expect(row);
        let measured = found["figures"].as_array().expect("figures");
        assert_eq!(measured.len(), figures, "{found}");
        for figure in measured {
            assert!(figure["value"].as_f64().is_some_and(f64::is_finite), "{figure}");
            assert_eq!(figure["verdict"], "not_judged", "a quick run has no verdict: {figure}");
        }
        assert!(found["details"].as_object().is_some_and(|details| !details.is_empty()), "{found}");
        check_cpu(found, &["server", "client"]);
    }
    for (row, field) in [("acquire", "acquire"), ("acquire", "healthz"), ("handover", "long")] {
        let rows = report["rows"].as_array().expect("rows");
        let found = rows.iter().find(|found| found["row"] == row).expect(row);
        assert!(found["details"][field]["p99_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{found}");
    }
    for field in ["cpu", "cores", "memory_mib", "kernel", "ade_version", "build"] {
        assert!(!report["machine"][field].is_null(), "{report}");
    }
    assert_eq!(folder.path().read_dir().expect("readable").count(), 0, "the data folders are gone");
}

/// Checks that the CPU time of these parts was measured in a row, and of no others. The baseline may use fewer of them.
fn check_cpu(row: &Value, parts: &[&str]) {
    let costs = row["cpu"].as_array().expect("CPU times");
    assert!(!costs.is_empty(), "{row}");
    for (number, cost) in costs.iter().enumerate() {
        assert!(cost["operations"].as_u64().is_some_and(|count| count > 0), "{cost}");
        assert!(cost["client_threads"].as_u64().is_some_and(|count| count > 0), "{cost}");
        for part in ["server", "redis", "postgresql", "client"] {
            let us = &cost[format!("{part}_us")];
            match us.as_f64() {
                Some(us) => assert!(parts.contains(&part) && us >= 0.0, "{cost}"),
                None => assert!(us.is_null() && (number > 0 || !parts.contains(&part)), "{part} of {cost}"),
            }
        }
    }
}

#[test]
fn rows_on_redis_have_cpu_time_of_redis() {
    let redis = Redis::start().expect("starts");
    let output = bench_locks(&["--json", "--redis", &redis.url(), "--only", "pair", "--only", "hold"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let (pair, hold) = (&report["rows"][0], &report["rows"][1]);
    check_cpu(pair, &["redis", "client"]);
    check_cpu(hold, &["server", "redis", "client"]);
    for cost in pair["cpu"].as_array().expect("CPU times") {
        assert!(cost["redis_us"].as_f64().is_some_and(|us| us > 0.0), "{cost}");
        assert!(cost["redis_main_thread_us"].as_f64().is_some_and(|us| us > 0.0), "{cost}");
        assert_eq!(cost["client_threads"], 2, "{cost}");
    }
    assert_eq!(report["deployment"], "Redis");
    assert_eq!(redis.query::<u64>(&["DBSIZE"]).expect("answers"), 0, "its keys are gone");
}

#[test]
fn starts_another_binary_as_server() {
    let binary = env!("CARGO_BIN_EXE_ade");
    let output = bench_locks(&["--json", "--only", "deadlock", "--binary", binary]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["binary"], binary);
    let output = bench_locks(&["--only", "deadlock", "--binary", "missing/ade"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("missing/ade"));
    let output = bench_locks(&["--only", "deadlock", "--binary", "/bin/false"]);
    assert_eq!(output.status.code(), Some(5), "a program that is no server");
}

#[test]
fn prints_selected_rows_as_table() {
    let output = bench_locks(&["--only", "deadlock"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8(output.stdout).expect("text");
    assert!(table.contains("deadlock") && table.contains("< 20 ms"), "{table}");
    assert!(!table.contains("handover") && !table.contains("missed"), "{table}");
    assert!(table.contains("CPU TIME PER") && table.contains("POSTGRESQL"), "{table}");
    let widest = table.lines().map(|line| line.chars().count()).max();
    assert!(widest.is_some_and(|width| width <= 100), "{table}");
}

#[test]
fn reports_unreachable_server() {
    let output = bench_locks(&["--server", "http://127.0.0.1:1", "--token", "0123456789abcdef"]);
    assert_eq!(output.status.code(), Some(5));
    let output = bench_locks(&["--server", "https://localhost", "--token", "0123456789abcdef"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("hint:"));
}

fn bench_approvals(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ade"));
    let small = ["bench", "approvals", "--quick", "--tasks", "60", "--tasks", "400"];
    command.args(small).args(arguments).output().expect("runs")
}

fn check_approvals_report(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let names: Vec<_> = report["rows"].as_array().expect("rows").iter().map(|row| &row["row"]).collect();
    assert_eq!(names, ["lists", "pages", "create", "submit", "approve", "start"]);
    for row in report["rows"].as_array().expect("rows") {
        let (figures, is_start) = (row["figures"].as_array().expect("figures"), row["row"] == "start");
        assert!(figures.len() >= if is_start { 2 } else { 6 }, "{row}");
        for figure in figures {
            assert!(figure["value"].as_f64().is_some_and(|value| value > 0.0), "{figure}");
            assert_eq!(figure["verdict"], "not_judged", "a quick run has no verdict: {figure}");
        }
        if !is_start {
            check_cpu(row, &["server", "redis", "postgresql", "client"]);
        }
    }
    let lists = report["rows"][0]["details"]["many"]["lists"].as_array().expect("lists").clone();
    for name in ["state=COMPLETED", "author", "resource", "tag", "type", "visible to me", "inbox"] {
        assert!(lists.iter().any(|list| list["list"] == name), "the list {name} was not measured");
    }
    for list in &lists {
        assert!(list["items"].as_u64().is_some_and(|items| items > 0), "the list is empty: {list}");
    }
    report
}

#[test]
fn approvals_run_on_empty_postgres_only_and_clean_up() {
    let (redis, postgres) = (Redis::start().expect("starts"), Postgres::start().expect("starts"));
    let url = postgres.create_database("bench").expect("created");
    let keys = || redis.query::<u64>(&["DBSIZE"]).expect("answers");
    let (redis_url, url) = (redis.url(), url.as_str());
    let report =
        check_approvals_report(&bench_approvals(&["--json", "--redis", &redis_url, "--postgres", url]));
    assert!(report["rows"][0]["what"].as_str().expect("text").contains("fsync off"), "{report}");
    // Long enough for a clock that counts in ticks of 10 ms.
    for cost in report["rows"][0]["cpu"].as_array().expect("CPU times") {
        assert!(cost["postgresql_us"].as_f64().is_some_and(|us| us > 0.0), "{cost}");
    }
    for cost in report["rows"][1]["cpu"].as_array().expect("CPU times") {
        assert!(cost["postgresql_us"].is_number(), "also of the baseline: {cost}");
    }
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'ade%'";
    assert_eq!((postgres.psql("bench", schemas).expect("read").as_str(), keys()), ("0", 0), "both are empty");
    postgres.psql("bench", "CREATE TABLE precious ()").expect("made");
    let refused = bench_approvals(&["--redis", &redis_url, "--postgres", url]);
    assert_eq!(refused.status.code(), Some(2), "{}", String::from_utf8_lossy(&refused.stderr));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("not empty"));
}

fn bench_lifecycle(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ade"));
    let small = ["bench", "lifecycle", "--quick", "--clients", "2", "--window", "4", "--json"];
    command.args(small).args(arguments).output().expect("runs")
}

fn check_lifecycle_report(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    let names: Vec<_> = rows.iter().map(|row| &row["row"]).collect();
    assert_eq!(names, ["noop", "files"]);
    for row in rows {
        for figure in row["figures"].as_array().expect("figures") {
            assert!(figure["value"].as_f64().is_some_and(f64::is_finite), "{figure}");
            assert_eq!(figure["verdict"], "not_judged", "a quick run has no verdict: {figure}");
        }
        check_cpu(row, &["server", "client"]);
        let details = &row["details"];
        assert!(details["created"].as_u64().is_some_and(|count| count > 0), "{row}");
        assert_eq!(details["created"], details["completed_once"], "{row}");
        assert!(row["what"].as_str().expect("text").contains("each exactly once"), "{row}");
    }
    assert_eq!(rows[0]["details"]["files"], 0, "{report}");
    assert_eq!(rows[1]["details"]["files"], rows[1]["details"]["created"], "{report}");
    report
}

#[test]
fn lifecycles_run_on_sqlite_and_clean_up() {
    let folder = tempfile::tempdir().expect("made");
    let report = check_lifecycle_report(&bench_lifecycle(&["--data", folder.path().to_str().expect("text")]));
    assert_eq!(report["rows"][0]["figures"][0]["aim_at_least"], 40_000.0, "{report}");
    assert!(report["rows"][1]["figures"][0]["aim_at_least"].is_null(), "{report}");
    assert_eq!(folder.path().read_dir().expect("readable").count(), 0, "the data folders are gone");
}

#[test]
fn events_run_on_postgres_and_clean_up() {
    let (redis, postgres) = (Redis::start().expect("starts"), Postgres::start().expect("starts"));
    let url = postgres.create_database("bench").expect("created");
    let output = bench(&["events", "--quick", "--json", "--redis", &redis.url(), "--postgres", &url]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    let names: Vec<_> = rows.iter().map(|row| &row["row"]).collect();
    assert_eq!(names, ["followers", "stream", "projections", "relay"]);
    for figure in rows.iter().flat_map(|row| row["figures"].as_array().expect("figures")) {
        assert!(figure["value"].as_f64().is_some_and(f64::is_finite), "{figure}");
    }
    assert_eq!(redis.query::<Vec<String>>(&["KEYS", "*"]).expect("keys"), [""; 0]);
    let refused = bench(&["events", "--quick", "--only", "stream"]);
    assert_eq!(refused.status.code(), Some(2), "{}", String::from_utf8_lossy(&refused.stderr));
}

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ade")).arg("bench").args(arguments).output().expect("runs")
}

#[test]
fn compares_reports_of_two_builds() {
    let folder = tempfile::tempdir().expect("made");
    let quick = String::from_utf8(bench_locks(&["--json", "--only", "deadlock"]).stdout).expect("text");
    let report = quick.replace("\"quick\": true", "\"quick\": false");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let (old, new) = (path("old.json"), path("new.json"));
    for (file, runs) in [(&old, 3), (&new, 4)] {
        std::fs::write(file, report.repeat(runs)).expect("written");
    }
    let output = bench(&["compare", "--json", &old, &new]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let figures: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let names: Vec<_> = figures.as_array().expect("figures").iter().map(|figure| &figure["name"]).collect();
    assert_eq!(names, ["p50", "p99", "max", "server per deadlock", "client per deadlock"]);
    for figure in figures.as_array().expect("figures") {
        assert_eq!((&figure["difference"], &figure["row"]), (&"within_noise".into(), &"deadlock".into()));
        assert_eq!((&figure["old"]["runs"], &figure["new"]["runs"]), (&3.into(), &4.into()), "{figure}");
    }
    let output = bench(&["compare", &old, &new]);
    let table = String::from_utf8(output.stdout).expect("text");
    assert!(table.contains("1.00 ×") && table.contains("within noise"), "{table}");
    let widest = table.lines().map(|line| line.chars().count()).max();
    assert!(widest.is_some_and(|width| width <= 100), "{table}");
    assert_eq!(bench(&["compare", &old, &path("missing.json")]).status.code(), Some(2));
    std::fs::write(&new, quick).expect("written");
    assert_eq!(bench(&["compare", &old, &new]).status.code(), Some(2), "too short to compare");
}

#[test]
fn picture_of_documentation_is_fresh() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/benchmarks");
    let output = bench(&["chart", &format!("{docs}/peers.json")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let drawn = String::from_utf8(output.stdout).expect("text");
    ade_testkit::golden::assert_fresh(&Path::new(docs).join("peers.svg"), &drawn).expect("fresh");
    assert_eq!(bench(&["chart", &format!("{docs}/peers.svg")]).status.code(), Some(2), "no report");
}
