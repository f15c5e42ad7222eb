//! Previews over HTTP: nobody without permission has one computed, each is audited and counted, none takes the memory of the
//! server, and authors read neither private files nor rows of databases in them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ade_domain::people::{ADMIN, AUDITOR, AUTHOR, REVIEWER};
use ade_domain::permission::Scope;
use ade_testkit::deployment::{task, text_field};
use ade_testkit::wait::until;
use ade_testkit::{Deployment, Postgres};
use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, raw_sql};
use tempfile::TempDir;

const ADE: &str = env!("CARGO_BIN_EXE_ade");
/// Generous: only a hang reaches it, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
const SECRET: &str = "hunter2-hunter2";

/// A command template whose previews append a line to a file.
struct CountingTemplate {
    folder: TempDir,
}

impl CountingTemplate {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder") }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("previews")
    }

    fn config(&self) -> String {
        let limits = "ulimit -v; ulimit -t; ulimit -f; ulimit -n";
        let script = format!("echo preview >> {}; {limits}", self.path().display());
        format!(
            "[executors.command.templates.count]\nargv = [\"true\"]\npreview_argv = [\"sh\", \"-c\", {script:?}]\n"
        )
    }

    fn task(&self) -> Value {
        task(json!({ "executor": "command", "parameters": { "template": "count" } }))
    }

    fn previews(&self) -> usize {
        fs::read_to_string(self.path()).unwrap_or_default().lines().count()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_without_permission_run_no_preview() {
    let template = CountingTemplate::new();
    let deployment = Deployment::embedded_with_config(ADE, &template.config());
    let org = deployment.admin().await;
    let pat = org.create_user("pat", &[AUTHOR]).await;
    let rex = org.create_user("rex", &[REVIEWER]).await;
    let other = org.create_user("other", &[AUTHOR]).await;
    let ada = org.create_user("ada", &[ADMIN]).await;
    let nobody = org.create_user("nobody", &[]).await;
    let reader = org.issue_token("pat", &[Scope::Read]).await;
    let bot = org.create_agent("bot", &other).await;
    // Creating and simulating.
    let simulation = json!({ "task": template.task() });
    for (path, body) in [("/tasks", &template.task()), ("/simulations", &simulation)] {
        for caller in [&rex, &nobody] {
            let _ = caller.post(path, body).await.expect_problem(403, "FORBIDDEN");
        }
        let _ = reader.post(path, body).await.expect_problem(403, "SCOPE_MISSING");
    }
    assert_eq!(template.previews(), 0);
    // Submitting and changing what others may see, or may not.
    let created = pat.post("/tasks", &template.task()).await.expect_status(201);
    let id = text_field(&created, "task_id");
    assert_eq!(template.previews(), 1);
    let (submit, show) = (format!("/tasks/{id}/submit"), format!("/tasks/{id}"));
    let change = json!({ "description": "another" });
    for caller in [&other, &nobody, &rex, &bot] {
        let _ = caller.post(&submit, &json!({})).await.expect_problem(404, "TASK_NOT_FOUND");
        let _ = caller.patch(&show, &change).await.expect_problem(404, "TASK_NOT_FOUND");
    }
    let _ = ada.patch(&show, &change).await.expect_problem(403, "FORBIDDEN");
    let _ = reader.post(&submit, &json!({})).await.expect_problem(403, "SCOPE_MISSING");
    let _ = reader.patch(&show, &change).await.expect_problem(403, "SCOPE_MISSING");
    let stale = [("if-match", "\"99\"")];
    let response = pat.request_with_headers("PATCH", &show, &stale, &change.to_string()).await;
    let _ = response.expect_problem(412, "STALE");
    assert_eq!(template.previews(), 1);
    let _ = pat.post(&submit, &json!({})).await.expect_status(202);
    assert_eq!(template.previews(), 2);
    // The reviewer sees it now, and still neither changes nor submits it. Nobody submits it twice.
    for caller in [&rex, &pat, &ada] {
        let refused = caller.post(&submit, &json!({})).await;
        assert!(matches!(refused.status, 403 | 409), "{}", refused.text());
    }
    let _ = rex.patch(&show, &change).await.expect_problem(403, "FORBIDDEN");
    let _ = rex.post(&format!("/tasks/{id}/resubmit"), &json!({})).await.expect_problem(403, "FORBIDDEN");
    let _ = pat.post(&format!("/tasks/{id}/cancel"), &json!({})).await.expect_status(200);
    let _ = pat.patch(&show, &change).await.expect_problem(409, "INVALID_TRANSITION");
    assert_eq!(template.previews(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn previews_are_audited_limited_and_counted() {
    let template = CountingTemplate::new();
    let config = format!("[limit]\npreviews_per_minute = 3\n{}", template.config());
    let deployment = Deployment::embedded_with_config(ADE, &config);
    let org = deployment.admin().await;
    let pat = org.create_user("pat", &[AUTHOR]).await;
    let _ = org.create_user("rex", &[REVIEWER]).await;
    let bot = org.create_agent("bot", &pat).await;
    let created = pat.post("/tasks", &template.task()).await.expect_status(201);
    let id = text_field(&created, "task_id");
    // The operating system limits address space (in KiB), CPU time, written files (in blocks of 512 bytes) and open files.
    assert_eq!(created["preview"]["changes"][0]["diff"], "2097152\n15\n131072\n256\n", "{created}");
    let _ = pat.post(&format!("/tasks/{id}/submit"), &json!({})).await.expect_status(202);
    let simulation = json!({ "task": template.task() });
    let _ = pat.post("/simulations", &simulation).await.expect_status(200);
    // The fourth within a minute is refused on every path, before it runs.
    let refused = pat.post("/simulations", &simulation).await;
    let problem = refused.expect_problem(429, "RATE_LIMITED");
    assert!(text_field(&problem, "detail").contains("3 requests per minute for previews"), "{problem}");
    let seconds: u64 = refused.header("retry-after").parse().expect("seconds");
    assert!((1..=60).contains(&seconds), "{seconds}");
    let _ = pat.post("/tasks", &template.task()).await.expect_problem(429, "RATE_LIMITED");
    let _ = pat
        .patch(&format!("/tasks/{id}"), &json!({ "description": "another" }))
        .await
        .expect_problem(429, "RATE_LIMITED");
    assert_eq!(template.previews(), 3);
    // Others, and tasks that need no preview, go on.
    let _ = bot.post("/simulations", &simulation).await.expect_status(200);
    let _ = pat.create_draft(json!({})).await;
    let observe = || async {
        let entries = org.audit_entries("action=task.preview").await;
        if entries.len() >= 4 { Ok(entries) } else { Err(format!("{entries:?}")) }
    };
    let entries = until("the entries are numbered", TIMEOUT, observe).await.expect("in time");
    let who = |entry: &Value| (entry["who"]["user_id"].clone(), entry["who"]["agent_id"].clone());
    let actors: Vec<_> = entries.iter().map(who).collect();
    let (pat, null) = (json!("pat"), Value::Null);
    let by_pat = (pat.clone(), null);
    assert_eq!(actors, [by_pat.clone(), by_pat.clone(), by_pat, (pat, json!("bot"))], "{entries:?}");
    for entry in &entries {
        let expected = json!({ "executor": "command", "work_queue": "command:count" });
        assert_eq!(entry["details"], expected, "{entry}");
    }
    let objects: Vec<_> = entries.iter().map(|entry| text_field(entry, "object_type")).collect();
    assert_eq!(objects, ["task", "task", "simulation", "simulation"]);
    assert!(entries[..2].iter().all(|entry| entry["task_id"] == json!(id)), "{entries:?}");
}

/// A root with a private file, a dotfile and a public file.
fn root_with_secrets(folder: &Path) -> PathBuf {
    let root = folder.join("root");
    fs::create_dir(&root).expect("created");
    for (path, mode) in [("private.conf", 0o600), (".env", 0o644), ("public.conf", 0o644)] {
        fs::write(root.join(path), format!("password = {SECRET}\n")).expect("written");
        fs::set_permissions(root.join(path), fs::Permissions::from_mode(mode)).expect("set");
    }
    root
}

#[tokio::test(flavor = "multi_thread")]
async fn authors_and_agents_see_no_private_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = root_with_secrets(folder.path());
    let config = format!("[executors.files.roots.site]\npath = {root:?}\n");
    let deployment = Deployment::embedded_with_config(ADE, &config);
    let org = deployment.admin().await;
    let pat = org.create_user("pat", &[AUTHOR]).await;
    let boss = org.create_user("boss", &[AUTHOR, ADMIN]).await;
    let rex = org.create_user("rex", &[REVIEWER]).await;
    let aud = org.create_user("aud", &[AUDITOR]).await;
    let bot = org.create_agent("bot", &boss).await;
    let change = |path: &str| {
        let files = json!([{ "path": path, "content": "password = new\n" }]);
        task(json!({ "executor": "files", "parameters": { "root": "site", "files": files } }))
    };
    let diff_of = |preview: &Value| preview["changes"][0]["diff"].as_str().unwrap_or_default().to_owned();
    for path in ["private.conf", ".env"] {
        // What the author gets, on every route, again with the same idempotency key, and as an administrator.
        for author in [&pat, &boss, &bot] {
            let key = [("idempotency-key", format!("create-{path}-{}", author.id))];
            let headers: Vec<(&str, &str)> = key.iter().map(|(name, key)| (*name, key.as_str())).collect();
            let body = change(path).to_string();
            let first = author.request_with_headers("POST", "/tasks", &headers, &body).await;
            let again = author.request_with_headers("POST", "/tasks", &headers, &body).await;
            let id = text_field(&first.expect_status(201), "task_id");
            let submitted = author.post(&format!("/tasks/{id}/submit"), &json!({})).await;
            let shown = [
                first,
                again,
                submitted,
                author.get(&format!("/tasks/{id}")).await,
                author.get(&format!("/tasks/{id}/preview")).await,
                author
                    .get(&format!("/tasks?author={}", if author.id == "bot" { "boss" } else { &author.id }))
                    .await,
                author.patch(&format!("/tasks/{id}"), &json!({ "description": "more" })).await,
            ];
            for response in shown {
                assert!(response.status < 300, "{}", response.text());
                assert!(!response.text().contains(SECRET), "{path} {}: {}", author.id, response.text());
            }
            let preview = author.get(&format!("/tasks/{id}/preview")).await.expect_status(200);
            assert!(diff_of(&preview).starts_with("(hidden"), "{preview}");
            let before = preview["changes"][0]["before"].as_str().expect("a hash");
            let bytes = format!("password = {SECRET}\n").len();
            assert!(before.ends_with(&format!(", {bytes} bytes")), "{before}");
            let plain = ade_domain::task::Digest::of_bytes(format!("password = {SECRET}\n").as_bytes());
            assert!(!preview.to_string().contains(&plain.to_string()), "{preview}");
            // Who decides, and who audits, sees it.
            for reader in [&rex, &aud] {
                let preview = reader.get(&format!("/tasks/{id}/preview")).await.expect_status(200);
                assert!(diff_of(&preview).contains(SECRET), "{}: {preview}", reader.id);
            }
        }
    }
    let public = pat.post("/tasks", &change("public.conf")).await.expect_status(201);
    assert!(diff_of(&public["preview"]).contains(SECRET), "{public}");
}

/// A SQLite database with a secret in it.
async fn sqlite_database(folder: &Path) -> PathBuf {
    let path = folder.join("shop.sqlite3");
    let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true);
    let mut connection = options.connect().await.expect("connects");
    let tables = format!("CREATE TABLE vault (secret TEXT); INSERT INTO vault VALUES ('{SECRET}')");
    raw_sql(sqlx::AssertSqlSafe(tables)).execute(&mut connection).await.expect("created");
    path
}

fn sql_task(connection: &str, statement: &str) -> Value {
    task(json!({ "executor": "sql", "parameters": { "connection": connection, "statements": [statement] } }))
}

#[tokio::test(flavor = "multi_thread")]
async fn database_errors_and_plans_tell_no_values() {
    let folder = tempfile::tempdir().expect("a folder");
    let lite = sqlite_database(folder.path()).await;
    let postgres = Postgres::start().expect("starts");
    let url = postgres.create_database("shop").expect("created");
    let tables = format!(
        "CREATE TABLE vault (secret TEXT); INSERT INTO vault VALUES ('{SECRET}'); CREATE SEQUENCE numbers; \
         CREATE ROLE previewer LOGIN; GRANT ALL ON vault, numbers TO previewer"
    );
    postgres.psql("shop", &tables).expect("created");
    let preview_url = url.replace("postgres@", "previewer@");
    let connection = |name: &str, mode: &str| {
        format!("[executors.sql.connections.{name}]\nurl = {url:?}\npreview_url = {preview_url:?}\n{mode}\n")
    };
    let lite_url = format!("sqlite://{}", lite.display());
    let config = format!(
        "{}{}[executors.sql.connections.lite]\nurl = {lite_url:?}\npreview_url = {lite_url:?}\n",
        connection("planned", ""),
        connection("executed", "preview = \"execute\"")
    );
    let deployment = Deployment::embedded_with_config(ADE, &config);
    let org = deployment.admin().await;
    let pat = org.create_user("pat", &[AUTHOR]).await;
    let preview_of = async |connection: &str, statement: &str| {
        let created = pat.post("/tasks", &sql_task(connection, statement)).await;
        assert!(!created.text().contains(SECRET), "{}", created.text());
        created.expect_status(201)
    };
    let created = preview_of("executed", "SELECT CAST(secret AS INTEGER) FROM vault").await;
    assert_eq!(
        created["preview"]["errors"],
        json!(["statement 1: SQLSTATE 22P02 (invalid text for the type)"])
    );
    let created = preview_of("lite", "SELECT json_extract('{}', (SELECT secret FROM vault))").await;
    assert!(created["preview"]["errors"][0].as_str().is_some_and(|error| error.contains("SQLite error 1 ")));
    // By default PostgreSQL executes nothing, and the risk counts the highest magnitude.
    let created = preview_of("planned", "DELETE FROM vault WHERE nextval('numbers') > 0").await;
    let preview = &created["preview"];
    assert_eq!((&preview["status"], &preview["estimated"]), (&json!("ready"), &json!(true)), "{preview}");
    let factors = created["risk"]["factors"].as_array().expect("factors").clone();
    let magnitude = factors.iter().find(|factor| factor["name"] == "change_magnitude").expect("a factor");
    assert_eq!(magnitude["value"], json!(100.0), "{magnitude}");
    let created = preview_of("planned", "SELECT CAST(secret AS INTEGER) FROM vault").await;
    assert_eq!(created["preview"]["errors"], json!([]), "it is not executed");
    assert_eq!(postgres.psql("shop", "SELECT is_called FROM numbers").expect("answered"), "f");
    let _ = preview_of("executed", "DELETE FROM vault WHERE nextval('numbers') > 0").await;
    assert_eq!(postgres.psql("shop", "SELECT is_called FROM numbers").expect("answered"), "t");
    assert_eq!(postgres.psql("shop", "SELECT count(*) FROM vault").expect("answered"), "1");
}

/// The peak of the memory that a process had in use, in KiB.
fn peak_memory_kib(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_previews_cannot_take_the_memory_of_the_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite://{}", sqlite_database(folder.path()).await.display());
    let config = format!("[executors.sql.connections.lite]\nurl = {url:?}\npreview_url = {url:?}\n");
    let deployment = Deployment::embedded_with_config(ADE, &config);
    let org = deployment.admin().await;
    let pat = org.create_user("pat", &[AUTHOR]).await;
    let other = org.create_user("other", &[AUTHOR]).await;
    let _ = other.create_draft(json!({})).await;
    let pid = deployment.server().process().pid();
    let before = peak_memory_kib(pid);
    let numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)";
    let endless = [
        "SELECT length(randomblob(999999999))".to_owned(),
        format!("{numbers} SELECT group_concat(hex(randomblob(4000))) FROM n"),
        format!("{numbers} INSERT INTO vault SELECT hex(randomblob(100000)) FROM n"),
    ];
    let previews = endless.iter().map(|statement| {
        let (pat, task) = (pat.clone(), sql_task("lite", statement));
        tokio::spawn(async move { pat.post("/tasks", &task).await.expect_status(201) })
    });
    let previews: Vec<_> = previews.collect();
    // Others go on meanwhile.
    while !previews.iter().all(tokio::task::JoinHandle::is_finished) {
        let _ = other.create_draft(json!({})).await;
        let _ = other.get("/tasks?limit=1").await.expect_status(200);
    }
    for preview in previews {
        let created = preview.await.expect("joined");
        let errors = created["preview"]["errors"].to_string();
        let is_clear = ["memory", "CPU time", "timeout", "wrote more", "limits", "locked"];
        assert!(is_clear.iter().any(|text| errors.contains(text)), "{errors}");
        assert_eq!(created["auto_approved"], Value::Null);
    }
    let growth = peak_memory_kib(pid).saturating_sub(before);
    assert!(growth < 64 * 1_024, "the server grew by {growth} KiB");
    let select = "SELECT count(*) FROM vault";
    let created = other.post("/tasks", &sql_task("lite", select)).await.expect_status(201);
    assert_eq!(created["preview"]["errors"], json!([]), "the database is as before");
}
