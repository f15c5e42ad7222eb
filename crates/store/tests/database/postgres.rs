//! What PostgreSQL does besides: the audit log by months, and what is said when it cannot be reached.

use ade_domain::Moment;
use ade_domain::audit::{AuditActor, AuditBody, Walk};
use ade_store::Database;
use ade_store::database::{AuditFilter, Commit, DocumentKind, StoredDocument, Write};
use ade_testkit::Postgres;

use crate::opened::{Opened, at, id, on_both, on_postgres, person, server, write};

on_both!(entries_of_any_month_are_kept_and_numbered);

const DAY: u64 = 86_400;

fn entry(moment: Moment) -> AuditBody {
    AuditBody {
        entry_id: id(),
        at: moment,
        who: AuditActor { user_id: Some(person("ann")), ..AuditActor::default() },
        action: "task.submit".to_owned(),
        object_type: "task".to_owned(),
        object_id: "t".to_owned(),
        task_id: Some(id()),
        from: None,
        to: None,
        revision: None,
        digest: None,
        reason: None,
        ticket: None,
        details: serde_json::Map::new(),
    }
}

async fn tell(record: &Database, moments: &[Moment]) {
    let audit = moments.iter().copied().map(entry).collect();
    record.commit(Commit { audit, ..Commit::default() }).await.expect("written");
}

/// The last moment of November, the first of December, and some that no part was made for.
fn moments() -> Vec<Moment> {
    let december = Moment::from_micros(1_796_083_200_000_000);
    let november = Moment::from_micros(december.micros() - 1);
    vec![at(0), november, december, at(50 * DAY), at(2_000 * DAY), Moment::from_micros(1)]
}

async fn entries_of_any_month_are_kept_and_numbered(opened: Opened) {
    let record = &opened.record;
    write(record, Vec::new()).await.expect("nothing is also a commit");
    for _ in 0..2 {
        assert_eq!(record.prepare_months(at(0)).await, Ok(0));
    }
    tell(record, &moments()).await;
    assert_eq!(record.number("one", at(1), 1_000, 4).await, Ok(4));
    assert_eq!(record.number("one", at(1), 1_000, 4).await, Ok(2));
    let mut walk = Walk::new(None);
    for row in opened.again().await.audit(&AuditFilter::default(), 0, 100).await.expect("read") {
        walk.step(&row.entry().expect("as it was written")).expect("in order");
    }
    assert_eq!(walk.end().expect("whole").number, 6);
    assert_eq!(record.audit_head().await.expect("read").number, 6);
    let within = AuditFilter { from: Some(at(0)), to: Some(at(20 * DAY)), ..AuditFilter::default() };
    let found = record.audit(&within, 1, 100).await.expect("read");
    assert_eq!(found.iter().map(|row| row.number).collect::<Vec<_>>(), [2, 3]);
}

/// What psql prints, by lines.
async fn psql(opened: &Opened, sql: &str) -> Result<Vec<String>, String> {
    let (database, _) = opened.database.as_ref().expect("on PostgreSQL");
    let printed = server().await.psql(database, sql).map_err(|error| error.to_string())?;
    Ok(printed.lines().map(str::to_owned).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_were_cut_are_replaced() {
    let opened = on_postgres().await;
    let record = &opened.record;
    let (one, two, three) = tokio::join!(record.mark(), record.mark(), record.audit_head());
    assert!(one.is_ok() && two.is_ok() && three.is_ok(), "{one:?} {two:?} {three:?}");
    let cut = "SELECT count(pg_terminate_backend(pid, 5000)) > 0 FROM pg_stat_activity \
               WHERE datname = current_database() AND pid <> pg_backend_pid()";
    assert_eq!(psql(&opened, cut).await.expect("cut"), ["t"]);
    // Whoever comes first may find one that was good a moment ago. Nobody after it does.
    let _ = record.mark().await;
    let (one, two, three) = tokio::join!(record.mark(), record.mark(), record.audit_head());
    assert!(one.is_ok() && two.is_ok() && three.is_ok(), "{one:?} {two:?} {three:?}");
    tell(record, &moments()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_entry_is_in_the_part_of_its_month_and_none_can_be_changed() {
    let opened = on_postgres().await;
    opened.record.prepare_months(at(0)).await.expect("prepared");
    tell(&opened.record, &moments()).await;
    let parts = psql(&opened, "SELECT tableoid::regclass FROM audit ORDER BY entry_id").await.expect("read");
    let expected = [
        "audit_2026_11",
        "audit_2026_11",
        "audit_2026_12",
        "audit_2027_01",
        "audit_default",
        "audit_default",
    ];
    assert_eq!(parts, expected);
    opened.record.number("one", at(1), 1_000, 100).await.expect("numbered");
    for part in ["audit", "audit_2026_11", "audit_2026_12", "audit_2027_01", "audit_default"] {
        for sql in ["DELETE FROM", "TRUNCATE", "UPDATE"] {
            let sql = format!("{sql} {part} {}", if sql == "UPDATE" { "SET actor = 'eve'" } else { "" });
            let refused = psql(&opened, &sql).await.expect_err("append-only");
            assert!(refused.contains("append-only"), "{sql}: {refused}");
        }
        if part != "audit" {
            let sql =
                format!("INSERT INTO {part} SELECT gen_random_uuid(), number, at, actor, action FROM {part}");
            assert!(psql(&opened, &sql).await.is_err(), "a number twice in {part}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_prepare_the_same_months_at_once() {
    let opened = on_postgres().await;
    let (one, two) = (opened.again().await, opened.again().await);
    let racers: Vec<_> = (0..12)
        .map(|number| {
            let record = if number % 2 == 0 { one.clone() } else { two.clone() };
            tokio::spawn(async move {
                let now = at(2_000 * DAY);
                tokio::try_join!(record.prepare_months(now), tell_all(&record, now))
            })
        })
        .collect();
    for racer in racers {
        racer.await.expect("no panic").expect("prepared and told");
    }
    assert_eq!(one.number("one", at(1), 1_000, 100).await, Ok(12));
}

async fn tell_all(record: &Database, now: Moment) -> Result<(), ade_store::DatabaseError> {
    record.commit(Commit { audit: vec![entry(now)], ..Commit::default() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_that_were_faster_than_their_part_stay_where_they_are() {
    let opened = on_postgres().await;
    let (april, may) =
        (Moment::from_micros(1_933_000_000_000_000), Moment::from_micros(1_936_000_000_000_000));
    tell(&opened.record, &[may]).await;
    assert_eq!(opened.record.prepare_months(april).await, Ok(1), "not the one of May");
    tell(&opened.record, &[april, may]).await;
    let parts = psql(&opened, "SELECT tableoid::regclass FROM audit ORDER BY entry_id").await.expect("read");
    assert_eq!(parts, ["audit_default", "audit_2031_04", "audit_default"]);
    let there = psql(&opened, "SELECT to_regclass('audit_2031_06') IS NOT NULL").await.expect("read");
    assert_eq!(there, ["t"], "the month after it was made");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_reads_the_log_for_long_is_not_waited_for() {
    use sqlx::{Connection, Executor};
    let opened = on_postgres().await;
    let (_, url) = opened.database.as_ref().expect("on PostgreSQL");
    let mut backup = sqlx::PgConnection::connect(url).await.expect("connects");
    backup.execute("BEGIN; LOCK TABLE audit IN ACCESS SHARE MODE").await.expect("locked");
    assert_eq!(opened.record.prepare_months(at(2_000 * DAY)).await, Ok(3), "all are missing");
    tell(&opened.record, &moments()).await;
    backup.execute("COMMIT").await.expect("done");
    assert_eq!(opened.record.prepare_months(at(3_000 * DAY)).await, Ok(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_through_the_log_and_every_count_goes_by_an_index() {
    let opened = on_postgres().await;
    opened.record.prepare_months(at(0)).await.expect("prepared");
    let walks = [
        "SELECT body FROM audit WHERE number IS NULL ORDER BY insert_seq LIMIT 9",
        "SELECT body FROM audit WHERE number IS NOT NULL ORDER BY number DESC LIMIT 1",
        "SELECT body FROM audit WHERE number > 7 ORDER BY number LIMIT 9",
        "SELECT body FROM audit WHERE number IS NOT NULL AND actor = 'ann' ORDER BY at, number LIMIT 9",
        "SELECT body FROM audit WHERE (at > now() OR number > 7) AND action = 'task.submit' AND at >= now() \
         ORDER BY at, number LIMIT 9",
        "SELECT body FROM audit WHERE number > 7 AND task_id = gen_random_uuid() ORDER BY number LIMIT 9",
        "SELECT body FROM audit WHERE number IS NOT NULL AND at >= now() AND at < now() ORDER BY at, number LIMIT 9",
        "SELECT t.body FROM task_labels l CROSS JOIN tasks t WHERE l.kind = 'tag' AND l.label = 'x' \
         AND t.task_id = l.task_id AND t.task_id < gen_random_uuid() AND l.task_id < gen_random_uuid() ORDER BY l.task_id DESC LIMIT 9",
        "SELECT body FROM approvals WHERE reviewer_id = 'ann' AND status = 'PENDING' AND score <= 7 \
         AND (score < 7 OR approval_id > gen_random_uuid()) ORDER BY score DESC, approval_id LIMIT 9",
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
    for walk in walks {
        let sql = format!("SET enable_seqscan = off; SET enable_sort = off; EXPLAIN {walk}");
        let plan = psql(&opened, &sql).await.expect("planned").join("\n");
        assert!(!plan.contains("Seq Scan") && !plan.contains("Sort  ("), "{walk}\n{plan}");
    }
    let number = "EXPLAIN UPDATE audit SET number = 1 WHERE entry_id = gen_random_uuid() \
                  AND at = 'epoch'::timestamptz + 1794744000000120 * interval '1 microsecond'";
    let plan = psql(&opened, number).await.expect("planned").join("\n");
    assert!(plan.contains("Subplans Removed: 3"), "one part is looked at: {plan}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_connect_is_told_why_but_never_the_password() {
    let (database, url) = on_postgres().await.database.expect("on PostgreSQL");
    let there = url.split_once('@').expect("a user").1.to_owned();
    let cases = [
        ("postgres://ann:s3cret@127.0.0.1:1/x".to_owned(), "PostgreSQL at 127.0.0.1:1: "),
        ("postgres://ann:s3cret@127.0.0.1:x/x".to_owned(), "its URL cannot be read"),
        ("postgres://ann:s3cret@127.0.0.1/x?sslmode=s3cret".to_owned(), "its URL cannot be read"),
        ("s3cret".to_owned(), "its URL cannot be read"),
        (format!("postgres://ann:s3cret@{there}"), "role \"ann\" does not exist"),
        (format!("postgres://postgres:s3cret@{there}?sslmode=require"), "server does not support TLS"),
        (
            format!("postgres://postgres:s3cret@{}", there.replace(&database, "none")),
            "database \"none\" does not exist",
        ),
    ];
    for (url, expected) in cases {
        let told = Database::on_postgres(&url).await.expect_err("refused").to_string();
        assert!(told.contains(expected), "{told}");
        assert!(!told.contains("s3cret"), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_go_by_bytes_whatever_the_locale() {
    let server = server().await;
    let create = "CREATE DATABASE english TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'";
    server.psql("postgres", create).expect("created");
    let record = Database::on_postgres(&server.url("english")).await.expect("opens");
    let thing = |id: &str| StoredDocument {
        kind: DocumentKind::Setting,
        id: id.to_owned(),
        revision: 1,
        body: true.into(),
    };
    let things = ["a", "B", "ü", "z"].map(|id| Write::Thing { thing: thing(id), expected: None });
    write(&record, things.to_vec()).await.expect("new");
    let listed = record.things(DocumentKind::Setting).await.expect("listed");
    assert_eq!(listed, ["B", "a", "z", "ü"].map(thing), "as on SQLite");
}

/// A folder with a certificate for 127.0.0.1 and its key, readable for PostgreSQL, which does not run as root.
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
async fn what_goes_to_postgres_can_be_encrypted_and_its_certificate_checked() {
    let folder = certificate();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let settings =
        [format!("ssl_cert_file={}", file("certificate")), format!("ssl_key_file={}", file("key"))];
    let server = Postgres::start_with(&["ssl=on", &settings[0], &settings[1]]).expect("starts");
    let url = server.create_database("encrypted").expect("created");
    let trusted = format!("{url}?sslmode=verify-full&sslrootcert={}", file("certificate"));
    for url in [format!("{url}?sslmode=require"), trusted] {
        let record = Database::on_postgres(&url).await.expect("connects");
        assert_eq!(record.prepare_months(at(0)).await, Ok(0));
        let sql = "SELECT count(*) > 0 FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                   WHERE ssl AND query LIKE '%audit_create_partitions%' AND pid <> pg_backend_pid()";
        assert_eq!(server.psql("encrypted", sql).expect("read"), "t");
    }
    let told = Database::on_postgres(&format!("{url}?sslmode=verify-full"))
        .await
        .expect_err("nobody vouches for it");
    assert!(told.to_string().contains("certificate"), "{told}");
}
