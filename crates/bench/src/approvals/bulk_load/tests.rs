//! A bulk load writes the same rows as commits and the sequencer, column by column.

use std::collections::BTreeSet;

use ade_domain::approval::{Approval, ApprovalStatus};
use ade_domain::audit::{AuditActor, ChainVerifier};
use ade_domain::lock::LockMode;
use ade_domain::people::{AuthorSet, UserId};
use ade_domain::task::Task;
use ade_domain::task::{Config, Metadata, Resource, RollbackStrategy, TaskState};
use ade_store::Database;
use ade_store::database::{AuditFilter, Commit, Write};
use ade_testkit::{Postgres, test_keys};
use serde_json::json;
use tempfile::TempDir;
use uuid::Uuid;

use super::*;
use crate::database::{BaselineTable, BenchDatabase};

fn id() -> String {
    Uuid::now_v7().to_string()
}

/// `second` seconds after noon of 15 November 2026.
fn at(second: u64) -> Moment {
    Moment::from_micros(1_794_744_000_000_120 + second * 1_000_000)
}

fn person(name: &str) -> UserId {
    UserId::new(name)
}

fn task(state: TaskState) -> StoredTask {
    let resource = |id: &str| Resource {
        resource_type: "database".to_owned(),
        id: id.to_owned(),
        mode: LockMode::Exclusive,
    };
    let config = Config {
        task_type: "schema".to_owned(),
        version: "1".to_owned(),
        description: "ünï \"{}\" \n\t\\N \\ \r".to_owned(),
        executor: "noop".to_owned(),
        parameters: json!({ "a": [1, 2.5, null, "x\ty"] }).as_object().cloned().expect("an object"),
        resources: vec![resource("orders"), resource("users"), resource("orders")],
        rollback_strategy: RollbackStrategy::Manual,
        timeout_seconds: 60,
        priority: 7,
    };
    let digest = config.digest().expect("canonical");
    let mut task = Task::draft(id(), config, digest, person("ann"), AuthorSet::default(), at(0));
    task.transitions.clear();
    task.state = state;
    task.entered_at.insert(state, at(9));
    let approval = |reviewer: &str, responded_at| Approval {
        approval_id: id(),
        task_id: task.task_id.clone(),
        revision: 2,
        reviewer_id: person(reviewer),
        reviewer_name: "Rob".to_owned(),
        policies: vec!["default".to_owned()],
        chat_holders: BTreeSet::new(),
        on_behalf_of: BTreeSet::from([person(reviewer)]),
        delegation_chain: Vec::new(),
        follows: None,
        status: ApprovalStatus::Approved,
        priority: ade_domain::approval::policy::Priority::Normal,
        score: 610,
        delegated_to: None,
        created_at: at(1),
        due_at: at(100),
        escalation_level: 0,
        raised: 0,
        digest,
        scope_digest: None,
        fingerprint: None,
        responded_at,
        response_action: None,
        response_reason: None,
        reviewed_by: None,
        reasons: vec!["because".to_owned()],
    };
    let approvals = vec![approval("rob", Some(at(8))), approval("sue", None)];
    task.approvals = approvals;
    let metadata = Metadata { tags: vec!["urgent".to_owned(), "q\\3".to_owned()], ..Metadata::default() };
    Task { metadata, approval_ends_at: Some(at(500)), ..task }.into()
}

fn entry(task: &StoredTask, actor: Option<&str>) -> AuditBody {
    AuditBody {
        entry_id: id(),
        at: at(9),
        who: AuditActor { user_id: actor.map(person), ..AuditActor::default() }.into(),
        action: "task.complete".to_owned(),
        object_type: "task".to_owned(),
        object_id: task.task_id.clone(),
        task_id: Some(task.task_id.clone()),
        from: Some(TaskState::Draft),
        to: Some(task.state),
        revision: Some(2),
        digest: Some(task.digest),
        reviewed: None,
        reason: Some("ünï\n\\".to_owned()),
        ticket: None,
        details: serde_json::Map::new(),
    }
}

fn event(entry: &AuditBody) -> Event {
    Event::of(entry, vec![person("ann")])
}

/// Tasks in several states, with audit entries and events.
fn history() -> (Vec<StoredTask>, Vec<AuditBody>, Vec<Event>) {
    let tasks: Vec<_> = [TaskState::Completed, TaskState::Approved, TaskState::Draft, TaskState::Failed]
        .map(task)
        .into_iter()
        .collect();
    let entries: Vec<_> =
        tasks.iter().flat_map(|task| [entry(task, Some("ann")), entry(task, None)]).collect();
    let events = entries.iter().step_by(2).map(event).collect();
    (tasks, entries, events)
}

async fn commit(database: &Database, tasks: &[StoredTask], audit: &[AuditBody], events: &[Event]) {
    let write = |task: &StoredTask| Write::Task { task: Box::new(task.clone()), expected: None, at: at(100) };
    let writes = tasks.iter().map(write).collect();
    let commit = Commit { writes, audit: audit.to_vec(), events: events.to_vec(), response: None };
    database.commit(commit).await.expect("inserted");
    while database.number_entries(at(100), 100).await.expect("numbered").numbered > 0 {}
}

async fn load(mut loader: BulkLoader, tasks: &[StoredTask], audit: &[AuditBody], events: &[Event]) {
    loader.create_audit_partition(at(0)).await.expect("created");
    let mut chain = loader.chain(test_keys()).await.expect("read");
    // In two parts, to continue the chain.
    for (tasks, audit, events) in
        [(&tasks[..1], &audit[..2], &events[..1]), (&tasks[1..], &audit[2..], &events[1..])]
    {
        let rows = chain.rows(tasks, audit.to_vec(), events).expect("serialised");
        loader.write(&rows).await.expect("written");
    }
    loader.finish().await.expect("finished");
}

/// Reads a loaded task, and continues with ordinary commits.
async fn check_in_use(database: &Database, task: &StoredTask) {
    assert_eq!(database.task(&task.task_id).await.expect("read").as_ref(), Some(task));
    let another = self::task(TaskState::Reviewing);
    let audit = [entry(&another, Some("ann"))];
    commit(database, std::slice::from_ref(&another), &audit, &[event(&audit[0])]).await;
    let mut walk = ChainVerifier::new(None);
    let entries = database.audit_rows(&AuditFilter::default(), 0, 100).await.expect("read");
    assert_eq!(entries.len(), 9);
    for row in &entries {
        walk.verify(&row.entry().expect("as it was written")).expect("chained");
    }
    assert_eq!(database.events(0, 100).await.expect("read").len(), 5);
}

async fn sqlite_rows(folder: &Path, table: &str) -> Vec<String> {
    let options = SqliteConnectOptions::new().filename(folder.join(SQLITE_FILE)).read_only(true);
    let mut connection = options.connect().await.expect("opens");
    let columns: String =
        sqlx::query_scalar("SELECT group_concat('\"' || name || '\"') FROM pragma_table_info($1)")
            .bind(table)
            .fetch_one(&mut connection)
            .await
            .expect("columns");
    let sql = format!("SELECT json_array({columns}) AS line FROM {table} ORDER BY line");
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&mut connection).await.expect("rows")
}

/// A copy of a new database that no process uses.
async fn empty_sqlite() -> TempDir {
    let (open, copy) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let _database = Database::open_sqlite(open.path(), test_keys()).await.expect("opens");
    for file in [SQLITE_FILE.to_owned(), format!("{SQLITE_FILE}-wal")] {
        std::fs::copy(open.path().join(&file), copy.path().join(&file)).expect("copied");
    }
    copy
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_rows_equal_those_of_commits() {
    let (committed, loaded) = (tempfile::tempdir().expect("a folder"), empty_sqlite().await);
    let (tasks, audit, events) = history();
    let database = Database::open_sqlite(committed.path(), test_keys()).await.expect("opens");
    commit(&database, &tasks, &audit, &events).await;
    load(BulkLoader::open_sqlite(loaded.path()).await.expect("opens"), &tasks, &audit, &events).await;
    for table in TABLES.into_iter().filter(|table| *table != "audit_chain") {
        let rows = sqlite_rows(committed.path(), table).await;
        assert!(!rows.is_empty());
        assert_eq!(rows, sqlite_rows(loaded.path(), table).await, "{table}");
    }
    check_in_use(&Database::open_sqlite(loaded.path(), test_keys()).await.expect("opens"), &tasks[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_rows_equal_those_of_commits() {
    let server = Postgres::start().expect("starts");
    let url = |name: &str| server.create_database(name).expect("created");
    let (committed_url, loaded_url) = (url("committed"), url("loaded"));
    let committed = Database::open_postgres(&committed_url, test_keys()).await.expect("opens");
    let loaded = Database::open_postgres(&loaded_url, test_keys()).await.expect("opens");
    let (tasks, audit, events) = history();
    commit(&committed, &tasks, &audit, &events).await;
    load(BulkLoader::open_postgres(&loaded_url).await.expect("opens"), &tasks, &audit, &events).await;
    for table in TABLES {
        let sql = format!("SELECT row_to_json(t)::text AS line FROM {table} t ORDER BY line");
        let rows = |name: &str| server.psql(name, &sql).expect("rows");
        assert!(!rows("committed").is_empty());
        assert_eq!(rows("committed"), rows("loaded"), "{table}");
    }
    check_in_use(&loaded, &tasks[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn benchmarks_require_an_empty_database() {
    let server = Postgres::start().expect("starts");
    let url = server.create_database("bench").expect("created");
    let bench = BenchDatabase::open_if_empty(&url).await.expect("reached").expect("empty");
    assert!(bench.settings.contains("fsync"), "{}", bench.settings);
    let schema_url = bench.create_schema(1).await.expect("created");
    let table = BaselineTable::open_postgres(&schema_url, 2).await.expect("created");
    table.insert(&id(), "{}").await.expect("inserted");
    table.close().await;
    drop(Database::open_postgres(&schema_url, test_keys()).await.expect("opens"));
    let loader = BulkLoader::open_postgres(&schema_url).await.expect("opens");
    loader.finish().await.expect("finished");
    assert!(BenchDatabase::open_if_empty(&url).await.expect("reached").is_none(), "not empty");
    bench.drop_schema(1).await.expect("removed");
    assert!(BenchDatabase::open_if_empty(&url).await.expect("reached").is_some(), "empty again");
}
