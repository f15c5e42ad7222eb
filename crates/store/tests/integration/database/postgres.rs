//! What only PostgreSQL does: audit partitions, query plans, TLS, and errors when it cannot be reached.

use ade_domain::Moment;
use ade_domain::audit::{AuditActor, AuditBody, ChainVerifier};
use ade_store::Database;
use ade_store::database::{AuditFilter, Commit, FeatureFlag, Versioned, Write};
use ade_testkit::{Postgres, test_keys};

use crate::database::fixture::{TestDatabase, at, id, on_both_databases, on_postgres, person, server, write};

on_both_databases!(numbers_entries_of_any_month);

const DAY: u64 = 86_400;

fn entry(moment: Moment) -> AuditBody {
    AuditBody {
        entry_id: id(),
        at: moment,
        who: AuditActor { user_id: Some(person("ann")), ..AuditActor::default() }.into(),
        action: "task.submit".to_owned(),
        object_type: "task".to_owned(),
        object_id: "t".to_owned(),
        task_id: Some(id()),
        from: None,
        to: None,
        revision: None,
        digest: None,
        reviewed: None,
        reason: None,
        ticket: None,
        details: serde_json::Map::new(),
    }
}

pub(super) async fn write_entries(database: &Database, moments: &[Moment]) {
    let audit = moments.iter().copied().map(entry).collect();
    database.commit(Commit { audit, ..Commit::default() }).await.expect("written");
}

/// The last moment of November, the first of December, and some without a partition.
fn moments() -> Vec<Moment> {
    let december = Moment::from_micros(1_796_083_200_000_000);
    let november = Moment::from_micros(december.micros() - 1);
    vec![at(0), november, december, at(50 * DAY), at(2_000 * DAY), Moment::from_micros(1)]
}

async fn numbers_entries_of_any_month(fixture: TestDatabase) {
    let database = &fixture.database;
    write(database, Vec::new()).await.expect("an empty commit");
    for _ in 0..2 {
        assert_eq!(database.create_audit_partitions(at(0)).await, Ok(0));
    }
    write_entries(database, &moments()).await;
    let left = if fixture.postgres.is_some() { [4, 2] } else { [0, 0] };
    for numbered in left {
        let done = database.number_entries(at(1), 4).await;
        assert_eq!(done.map(|done| done.numbered), Ok(numbered));
    }
    let mut walk = ChainVerifier::new(None);
    for row in fixture.reopen().await.audit_rows(&AuditFilter::default(), 0, 100).await.expect("read") {
        walk.verify(&row.entry().expect("as it was written")).expect("in order");
    }
    assert_eq!(walk.finish().expect("whole").number, 6);
    assert_eq!(database.audit_head().await.expect("read").number, 6);
    let within = AuditFilter { from: Some(at(0)), to: Some(at(20 * DAY)), ..AuditFilter::default() };
    let found = database.audit_rows(&within, 1, 100).await.expect("read");
    assert_eq!(found.iter().map(|row| row.number).collect::<Vec<_>>(), [2, 3]);
}

/// The lines that psql prints.
pub(super) async fn psql(fixture: &TestDatabase, sql: &str) -> Result<Vec<String>, String> {
    let (name, _) = fixture.postgres.as_ref().expect("on PostgreSQL");
    let printed = server().await.psql(name, sql).map_err(|error| error.to_string())?;
    Ok(printed.lines().map(str::to_owned).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn replaces_lost_connections() {
    let fixture = on_postgres().await;
    let database = &fixture.database;
    let (first, second, head) =
        tokio::join!(database.rules_version(), database.rules_version(), database.audit_head());
    assert!(first.is_ok() && second.is_ok() && head.is_ok(), "{first:?} {second:?} {head:?}");
    let terminate = "SELECT count(pg_terminate_backend(pid, 5000)) > 0 FROM pg_stat_activity \
               WHERE datname = current_database() AND pid <> pg_backend_pid()";
    assert_eq!(psql(&fixture, terminate).await.expect("terminated"), ["t"]);
    // The first caller may get a lost connection. No caller after it does.
    let _ = database.rules_version().await;
    let (first, second, head) =
        tokio::join!(database.rules_version(), database.rules_version(), database.audit_head());
    assert!(first.is_ok() && second.is_ok() && head.is_ok(), "{first:?} {second:?} {head:?}");
    write_entries(database, &moments()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_by_month_and_rejects_changes() {
    let fixture = on_postgres().await;
    fixture.database.create_audit_partitions(at(0)).await.expect("created");
    write_entries(&fixture.database, &moments()).await;
    let partitions =
        psql(&fixture, "SELECT tableoid::regclass FROM audit ORDER BY entry_id").await.expect("read");
    let expected = [
        "audit_2026_11",
        "audit_2026_11",
        "audit_2026_12",
        "audit_2027_01",
        "audit_default",
        "audit_default",
    ];
    assert_eq!(partitions, expected);
    // New partitions compress bodies like the default one: with lz4, if the server has it.
    let sql = "SELECT DISTINCT attcompression FROM pg_attribute WHERE attname = 'body' AND attrelid IN \
               ('tasks'::regclass, 'audit'::regclass, 'audit_default'::regclass, 'audit_2026_11'::regclass)";
    let used = psql(&fixture, sql).await.expect("read");
    let sql = "SELECT CASE WHEN 'lz4' = ANY (enumvals) THEN 'l' ELSE '' END FROM pg_settings \
               WHERE name = 'default_toast_compression'";
    assert_eq!(used, psql(&fixture, sql).await.expect("read"));
    fixture.database.number_entries(at(1), 100).await.expect("numbered");
    for partition in ["audit", "audit_2026_11", "audit_2026_12", "audit_2027_01", "audit_default"] {
        for sql in ["DELETE FROM", "TRUNCATE", "UPDATE"] {
            let sql = format!("{sql} {partition} {}", if sql == "UPDATE" { "SET actor = 'eve'" } else { "" });
            let refused = psql(&fixture, &sql).await.expect_err("append-only");
            assert!(refused.contains("append-only"), "{sql}: {refused}");
        }
    }
    let truncated = psql(&fixture, "TRUNCATE audit_chain").await.expect_err("append-only");
    assert!(truncated.contains("append-only"), "{truncated}");
    let sql = "INSERT INTO audit_chain SELECT number, at, gen_random_uuid(), 'x', 'y' FROM audit_chain";
    assert!(psql(&fixture, sql).await.is_err(), "duplicate number");
}

#[tokio::test(flavor = "multi_thread")]
async fn creates_partitions_concurrently() {
    let fixture = on_postgres().await;
    let (first, second) = (fixture.reopen().await, fixture.reopen().await);
    let racers: Vec<_> = (0..12)
        .map(|number| {
            let database = if number % 2 == 0 { first.clone() } else { second.clone() };
            tokio::spawn(async move {
                let now = at(2_000 * DAY);
                tokio::try_join!(database.create_audit_partitions(now), try_write_entry(&database, now))
            })
        })
        .collect();
    for racer in racers {
        racer.await.expect("no panic").expect("created and written");
    }
    assert_eq!(first.number_entries(at(1), 100).await.map(|done| done.numbered), Ok(12));
}

async fn try_write_entry(database: &Database, at: Moment) -> Result<(), ade_store::DatabaseError> {
    database.commit(Commit { audit: vec![entry(at)], ..Commit::default() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_in_the_default_partition_stay_there() {
    let fixture = on_postgres().await;
    let (april, may) =
        (Moment::from_micros(1_933_000_000_000_000), Moment::from_micros(1_936_000_000_000_000));
    write_entries(&fixture.database, &[may]).await;
    assert_eq!(fixture.database.create_audit_partitions(april).await, Ok(1), "the one of May is missing");
    write_entries(&fixture.database, &[april, may]).await;
    let partitions =
        psql(&fixture, "SELECT tableoid::regclass FROM audit ORDER BY entry_id").await.expect("read");
    assert_eq!(partitions, ["audit_default", "audit_2031_04", "audit_default"]);
    let exists = psql(&fixture, "SELECT to_regclass('audit_2031_06') IS NOT NULL").await.expect("read");
    assert_eq!(exists, ["t"], "the month after it was created");
}

#[tokio::test(flavor = "multi_thread")]
async fn does_not_wait_for_long_readers() {
    use sqlx::{Connection, Executor};
    let fixture = on_postgres().await;
    let (_, url) = fixture.postgres.as_ref().expect("on PostgreSQL");
    let mut backup = sqlx::PgConnection::connect(url).await.expect("connects");
    backup.execute("BEGIN; LOCK TABLE audit IN ACCESS SHARE MODE").await.expect("locked");
    assert_eq!(
        fixture.database.create_audit_partitions(at(2_000 * DAY)).await,
        Ok(3),
        "all three are missing"
    );
    write_entries(&fixture.database, &moments()).await;
    backup.execute("COMMIT").await.expect("executed");
    assert_eq!(fixture.database.create_audit_partitions(at(3_000 * DAY)).await, Ok(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_query_uses_an_index() {
    let fixture = on_postgres().await;
    fixture.database.create_audit_partitions(at(0)).await.expect("created");
    let queries = [
        "SELECT body FROM audit WHERE queued = 0 AND quarantined_at IS NULL ORDER BY insert_seq LIMIT 9",
        "SELECT entry_id FROM audit_queue ORDER BY position LIMIT 9",
        "SELECT number FROM audit_chain WHERE number > 0 ORDER BY number DESC LIMIT 1",
        "SELECT body FROM audit_chain AS key CROSS JOIN LATERAL (SELECT body FROM audit WHERE audit.at = key.at \
         AND audit.entry_id = key.entry_id LIMIT 1) AS entry WHERE number > 7 ORDER BY number LIMIT 9",
        "SELECT body FROM audit_chain JOIN events ON events.event_id = audit_chain.entry_id WHERE number > 7 \
         ORDER BY number LIMIT 9",
        "SELECT body FROM audit_log WHERE number > 0 AND actor = 'ann' ORDER BY at, number LIMIT 9",
        "SELECT body FROM audit_log WHERE (at > now() OR number > 7) AND action = 'task.submit' AND at >= now() \
         ORDER BY at, number LIMIT 9",
        "SELECT body FROM audit_log WHERE number > 0 AND at >= now() AND at < now() ORDER BY at, number LIMIT 9",
        "SELECT t.body FROM task_labels l CROSS JOIN tasks t WHERE l.kind = 'tag' AND l.label = 'x' \
         AND t.task_id = l.task_id AND t.task_id < gen_random_uuid() AND l.task_id < gen_random_uuid() ORDER BY l.task_id DESC LIMIT 9",
        "SELECT body FROM approvals WHERE reviewer_id = 'ann' AND status = 'PENDING' AND score <= 7 \
         AND (score < 7 OR approval_id > gen_random_uuid()) ORDER BY score DESC, approval_id LIMIT 9",
        "SELECT task_id FROM tasks WHERE work_kind IS NOT NULL AND work_queue = 'noop' AND ready_at <= now() \
         AND coalesce((SELECT c.claimed_until FROM task_claims c WHERE c.task_id = tasks.task_id \
         AND c.revision = tasks.revision), ready_at) <= now() ORDER BY work_priority DESC, ready_at, task_id LIMIT 9",
        "SELECT state, count(*) FROM tasks GROUP BY state",
        "SELECT state, count(*) FROM tasks WHERE author_id = 'ann' GROUP BY state",
        "SELECT count(*), min(created_at) FROM approvals WHERE status = 'PENDING'",
        "SELECT status, count(*) FROM approvals WHERE reviewer_id = 'ann' GROUP BY status",
        "SELECT created_at, responded_at FROM approvals WHERE reviewer_id = 'ann' AND responded_at IS NOT NULL \
         ORDER BY responded_at DESC LIMIT 200",
        "SELECT body FROM agents WHERE auto_registered = 1 AND last_seen < now() ORDER BY last_seen LIMIT 9",
        "SELECT body FROM inbox WHERE agent_id = 'ann' AND message_id > gen_random_uuid() ORDER BY message_id LIMIT 9",
        "SELECT owner, key FROM stored_responses WHERE created_at < now() ORDER BY created_at LIMIT 9",
        "SELECT session_hash FROM sessions WHERE expires_at <= now() ORDER BY expires_at LIMIT 9",
    ];
    for query in queries {
        let sql = format!("SET enable_seqscan = off; SET enable_sort = off; EXPLAIN {query}");
        let plan = psql(&fixture, &sql).await.expect("planned").join("\n");
        assert!(
            !plan.contains("Seq Scan") && !plan.replace("Incremental Sort  (", "").contains("Sort  ("),
            "{query}
{plan}"
        );
    }
    let number = "EXPLAIN SELECT body FROM audit WHERE entry_id = gen_random_uuid() \
                  AND at = 'epoch'::timestamptz + 1794744000000120 * interval '1 microsecond'";
    let plan = psql(&fixture, number).await.expect("planned").join("\n");
    assert!(plan.contains("Subplans Removed: 3"), "only one partition is scanned: {plan}");
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_errors_never_contain_the_password() {
    let (database, url) = on_postgres().await.postgres.expect("on PostgreSQL");
    let address = url.split_once('@').expect("a user").1.to_owned();
    let cases = [
        ("postgres://ann:s3cret@127.0.0.1:1/x".to_owned(), "PostgreSQL at 127.0.0.1:1: "),
        ("postgres://ann:s3cret@127.0.0.1:x/x".to_owned(), "invalid database URL"),
        ("postgres://ann:s3cret@127.0.0.1/x?sslmode=s3cret".to_owned(), "invalid database URL"),
        ("s3cret".to_owned(), "invalid database URL"),
        (format!("postgres://ann:s3cret@{address}"), "role \"ann\" does not exist"),
        (format!("postgres://postgres:s3cret@{address}?sslmode=require"), "server does not support TLS"),
        (
            format!("postgres://postgres:s3cret@{}", address.replace(&database, "none")),
            "database \"none\" does not exist",
        ),
    ];
    for (url, expected) in cases {
        let error = Database::open_postgres(&url, test_keys()).await.expect_err("refused").to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains("s3cret"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sorts_by_bytes_in_any_locale() {
    let server = server().await;
    let create = "CREATE DATABASE english TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'";
    server.psql("postgres", create).expect("created");
    let database = Database::open_postgres(&server.url("english"), test_keys()).await.expect("opens");
    let document = |id: &str| Versioned { id: id.to_owned(), revision: 1, value: FeatureFlag(true) };
    let documents = ["a", "B", "ü", "z"].map(|id| Write::document(&document(id), None));
    write(&database, documents.to_vec()).await.expect("inserted");
    let listed = database.documents().await.expect("listed");
    assert_eq!(listed, ["B", "a", "z", "ü"].map(document), "as on SQLite");
}

/// A folder with a certificate for 127.0.0.1 and its key, owned by the user that PostgreSQL runs as.
fn certificate() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let run = |program: &str, args: &str| {
        let mut command = std::process::Command::new(program);
        let done = command.args(args.split(' ')).current_dir(folder.path()).output().expect("runs");
        assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    };
    run(
        "openssl",
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key -out certificate -days 2 \
         -subj /CN=ade -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE",
    );
    if run("id", "-u") == "0" {
        run("chown", "-R postgres .");
    }
    folder
}

#[tokio::test(flavor = "multi_thread")]
async fn connects_with_tls_and_checks_the_certificate() {
    let folder = certificate();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let settings =
        [format!("ssl_cert_file={}", file("certificate")), format!("ssl_key_file={}", file("key"))];
    let server = Postgres::start_with(&["ssl=on", &settings[0], &settings[1]]).expect("starts");
    let url = server.create_database("encrypted").expect("created");
    let trusted = format!("{url}?sslmode=verify-full&sslrootcert={}", file("certificate"));
    for url in [format!("{url}?sslmode=require"), trusted] {
        let database = Database::open_postgres(&url, test_keys()).await.expect("connects");
        assert_eq!(database.create_audit_partitions(at(0)).await, Ok(0));
        let sql = "SELECT count(*) > 0 FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                   WHERE ssl AND query LIKE '%audit_create_partitions%' AND pid <> pg_backend_pid()";
        assert_eq!(server.psql("encrypted", sql).expect("read"), "t");
    }
    let error = Database::open_postgres(&format!("{url}?sslmode=verify-full"), test_keys())
        .await
        .expect_err("the certificate is not trusted");
    assert!(error.to_string().contains("certificate"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_databases_of_newer_and_unreleased_versions() {
    let server = Postgres::start().expect("server starts");
    let refusal = async |name: &str, sql: &str| {
        let url = server.url(name);
        server.psql(name, sql).expect("executed");
        Database::open_postgres(&url, test_keys()).await.expect_err("refused").to_string()
    };
    for (name, sql, why) in [
        ("changed", "UPDATE _sqlx_migrations SET checksum = '\\x00'", "start with a new database"),
        ("newer", "UPDATE _sqlx_migrations SET version = version + 1000", "a newer version of ade"),
    ] {
        let url = server.create_database(name).expect("created");
        Database::open_postgres(&url, test_keys()).await.expect("opened");
        let refused = refusal(name, sql).await;
        assert!(refused.contains(why), "{refused}");
    }
    server.create_database("without_migrations").expect("created");
    let refused = refusal("without_migrations", "CREATE TABLE users (user_id text)").await;
    assert!(refused.contains("start with a new database"), "{refused}");
}
