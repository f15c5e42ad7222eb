//! What somebody else writes into the queue or the chain of PostgreSQL: each entry gets one number or is quarantined, and nothing is
//! held up.

use ade_domain::Moment;
use ade_store::database::{AuditFilter, Numbering};

use crate::database::fixture::{TestDatabase, at, on_postgres};
use crate::database::postgres::{psql, write_entries};
use crate::database::sqlite::verified;

/// Numbers everything, a few rows at a time. Returns how many entries got a number, and why others were quarantined.
async fn number_all(fixture: &TestDatabase) -> (u64, Vec<&'static str>) {
    let (mut total, mut reasons) = (0, Vec::new());
    loop {
        let done = fixture.database.number_entries(at(1), 3).await.expect("not held up");
        let Numbering { numbered, has_more, quarantined } = done;
        total += numbered;
        reasons.extend(quarantined.iter().map(|row| row.reason));
        if !has_more && quarantined.is_empty() {
            assert_eq!(fixture.database.has_unnumbered().await, Ok(false));
            reasons.sort_unstable();
            return (total, reasons);
        }
    }
}

async fn tamper(fixture: &TestDatabase, sql: &str) {
    psql(fixture, sql).await.expect("executed");
}

/// The numbers of the entries, which are intact.
async fn numbers(fixture: &TestDatabase, filter: AuditFilter) -> Vec<u64> {
    let rows = fixture.database.audit_rows(&filter, 0, 100).await.expect("read");
    rows.iter().map(|row| row.entry().expect("intact").number).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_that_somebody_queues_get_no_second_number() {
    let fixture = on_postgres().await;
    write_entries(&fixture.database, &[at(1), at(2)]).await;
    // Ahead of them: with another time, with no entry at all, and the rows of the queue themselves.
    let insert = "INSERT INTO audit_queue (position, at, entry_id) OVERRIDING SYSTEM VALUE SELECT";
    tamper(&fixture, &format!("{insert} -1, at + interval '1 s', entry_id FROM audit")).await;
    tamper(&fixture, &format!("{insert} -1, at, gen_random_uuid() FROM audit LIMIT 1")).await;
    tamper(&fixture, &format!("{insert} position, at, entry_id FROM audit_queue WHERE position > 0")).await;
    tamper(&fixture, &format!("{insert} -2, at, entry_id FROM audit_queue WHERE position > 0")).await;
    assert_eq!(number_all(&fixture).await, (2, vec!["it was removed"; 3]));
    tamper(&fixture, &format!("{insert} -3, at, entry_id FROM audit")).await;
    assert_eq!(number_all(&fixture).await, (0, Vec::new()));
    assert_eq!(numbers(&fixture, AuditFilter::default()).await, [1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_of_an_entry_do_not_take_its_place() {
    let fixture = on_postgres().await;
    write_entries(&fixture.database, &[at(1), at(2)]).await;
    // With the id of an authentic entry and another time: queued, and not queued.
    let copy = |shift: &str, queued: u8| {
        format!(
            "INSERT INTO audit (entry_id, at, actor, action, task_id, body, mac, queued) \
             SELECT entry_id, at + interval '{shift}', actor, action, task_id, body, mac, {queued} FROM audit"
        )
    };
    tamper(&fixture, &copy("1 minute", 1)).await;
    let insert = "INSERT INTO audit_queue (position, at, entry_id) OVERRIDING SYSTEM VALUE SELECT";
    tamper(&fixture, &format!("{insert} -1, at, entry_id FROM audit")).await;
    let differs = "its columns differ from its body";
    assert_eq!(number_all(&fixture).await, (2, vec![differs; 2]));
    tamper(&fixture, &copy("1 hour", 0)).await;
    assert_eq!(number_all(&fixture).await, (0, vec![differs; 4]));
    assert_eq!(fixture.database.quarantined_entries().await, Ok(6));
    let by_actor = AuditFilter { actor: Some("ann".to_owned()), ..AuditFilter::default() };
    for filter in [AuditFilter::default(), by_actor] {
        assert_eq!(numbers(&fixture, filter).await, [1, 2]);
    }
    assert_eq!(fixture.database.entry_without_place().await, Ok(None));
}

const INSERT_PLACE: &str = "INSERT INTO audit_chain (number, at, entry_id, previous_hash, entry_hash) SELECT";

#[tokio::test(flavor = "multi_thread")]
async fn places_that_somebody_inserts_hold_up_nothing() {
    let fixture = on_postgres().await;
    write_entries(&fixture.database, &[at(1), at(2)]).await;
    // For a queued entry with another time, and for no entry.
    let other_time = "1, at + interval '1 s', entry_id, 'x', 'y' FROM audit_queue ORDER BY position LIMIT 1";
    tamper(&fixture, &format!("{INSERT_PLACE} {other_time}")).await;
    tamper(&fixture, &format!("{INSERT_PLACE} 2, at, gen_random_uuid(), 'x', 'y' FROM audit LIMIT 1")).await;
    assert_eq!(number_all(&fixture).await, (2, vec!["it was removed"; 2]));
    assert_eq!(numbers(&fixture, AuditFilter::default()).await, [1, 2]);
    assert_eq!(fixture.database.quarantined_entries().await, Ok(2));
    assert_eq!(fixture.database.entry_without_place().await, Ok(None));

    // For a row that is quarantined already.
    let forged =
        "INSERT INTO audit (entry_id, at, action, body) VALUES (gen_random_uuid(), now(), 'x', '{}')";
    tamper(&fixture, forged).await;
    assert_eq!(number_all(&fixture).await, (0, vec!["it has no MAC"]));
    let quarantined = "3, at, entry_id, 'x', 'y' FROM audit WHERE quarantined_at IS NOT NULL";
    tamper(&fixture, &format!("{INSERT_PLACE} {quarantined}")).await;
    write_entries(&fixture.database, &[at(3)]).await;
    assert_eq!(number_all(&fixture).await, (1, vec!["it has no MAC"]));
    assert_eq!(numbers(&fixture, AuditFilter::default()).await, [1, 2, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn places_with_an_unknown_key_hold_up_nothing() {
    let fixture = on_postgres().await;
    write_entries(&fixture.database, &[at(1)]).await;
    assert_eq!(number_all(&fixture).await, (1, Vec::new()));
    // More of them than are searched for an authentic entry.
    let forge = "INSERT INTO audit (entry_id, at, action, body, mac, queued) \
                 SELECT gen_random_uuid(), now(), 'x', '{}', '0011223344556677:00', 1 FROM generate_series(1, 150)";
    let places = "1 + row_number() OVER (), at, entry_id, 'x', 'y' FROM audit WHERE action = 'x'";
    tamper(&fixture, &format!("{forge}; {INSERT_PLACE} {places}")).await;
    // A process that has not seen what is before them may lack a secret.
    let refused = fixture.reopen().await.number_entries(at(1), 3).await.expect_err("unknown").to_string();
    assert!(refused.contains("key id 0011223344556677"), "{refused}");
    assert_eq!(fixture.database.quarantined_entries().await, Ok(0));
    write_entries(&fixture.database, &[at(2)]).await;
    assert_eq!(number_all(&fixture).await, (1, vec!["its MAC names a key that does not exist"; 150]));
    assert_eq!(verified(&fixture).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn places_of_authentic_entries_that_somebody_inserts_are_taken_from_them() {
    let fixture = on_postgres().await;
    let misplaced = "its hashes are not those of its place";
    // Of entries that are queued: with made-up hashes, and with only one of them.
    write_entries(&fixture.database, &[at(1), at(2)]).await;
    let places = "row_number() OVER (), at, entry_id, 'x', 'y' FROM audit_queue";
    tamper(&fixture, &format!("{INSERT_PLACE} {places}")).await;
    assert_eq!(number_all(&fixture).await, (2, vec![misplaced; 2]));
    assert_eq!(verified(&fixture).await, 2);
    // Of an entry that has left the queue: somebody takes its place, and gives it back with another hash.
    tamper(&fixture, "UPDATE audit_chain SET number = -7 WHERE number = 2").await;
    for hashes in ["'x', entry_hash", "previous_hash, 'y'"] {
        let place = format!("{INSERT_PLACE} 2, at, entry_id, {hashes} FROM audit_chain WHERE number = -7");
        tamper(&fixture, &place).await;
        assert_eq!(fixture.database.needs_numbering().await, Ok(true), "the poll finds it");
        assert_eq!(number_all(&fixture).await, (1, vec![misplaced]));
        assert_eq!(verified(&fixture).await, 2);
        assert_eq!(fixture.database.entry_without_place().await, Ok(None));
        tamper(
            &fixture,
            "UPDATE audit_chain SET number = -8 - position.last FROM \
               (SELECT count(*) AS last FROM audit_chain) AS position WHERE number = 2",
        )
        .await;
    }
    // Of an entry before the last one: only that one is missed.
    write_entries(&fixture.database, &[at(3), at(4)]).await;
    assert_eq!(number_all(&fixture).await, (2, Vec::new()));
    tamper(&fixture, "UPDATE audit_chain SET number = -100 WHERE number = 2").await;
    assert_eq!(number_all(&fixture).await, (1, vec!["no entry has the number before it"]));
    assert_eq!(verified(&fixture).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_poll_finds_a_forged_entry_with_a_place() {
    let fixture = on_postgres().await;
    write_entries(&fixture.database, &[at(1)]).await;
    assert_eq!(number_all(&fixture).await, (1, Vec::new()));
    assert_eq!(fixture.database.needs_numbering().await, Ok(false));
    let forge = "INSERT INTO audit (entry_id, at, action, body, queued) VALUES (gen_random_uuid(), now(), 'x', '{}', 1)";
    tamper(
        &fixture,
        &format!("{forge}; {INSERT_PLACE} 2, at, entry_id, 'x', 'y' FROM audit WHERE action = 'x'"),
    )
    .await;
    assert_eq!(fixture.database.needs_numbering().await, Ok(true));
    assert_eq!(number_all(&fixture).await, (0, vec!["it has no MAC"]));
    assert_eq!(fixture.database.needs_numbering().await, Ok(false));
    assert_eq!(numbers(&fixture, AuditFilter::default()).await, [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_can_use_up_the_numbers() {
    let fixture = on_postgres().await;
    write_entries(&fixture.database, &[at(1), at(2)]).await;
    let places = |number: &str| format!("{INSERT_PLACE} {number}, at, entry_id, 'x', 'y' FROM audit_queue");
    let before_last = "9223372036854775805 + row_number() OVER ()";
    for number in [before_last, "row_number() OVER () * 2 - 1", "row_number() OVER () - 1", "-position"] {
        let refused = psql(&fixture, &places(number)).await.expect_err("append-only");
        assert!(refused.contains("append-only"), "{number}: {refused}");
    }
    // The owner of the database can disable the trigger. An authentic entry loses such a place, and nothing else.
    let switch = |state: &str| format!("ALTER TABLE audit_chain {state} TRIGGER audit_chain_no_gaps");
    let sql = [switch("DISABLE"), places("9223372036854775807") + " LIMIT 1", switch("ENABLE")].join("; ");
    tamper(&fixture, &sql).await;
    assert_eq!(number_all(&fixture).await, (2, vec!["no entry has the number before it"]));
    write_entries(&fixture.database, &[at(3)]).await;
    assert_eq!(number_all(&fixture).await, (1, Vec::new()));
    assert_eq!(numbers(&fixture, AuditFilter::default()).await, [1, 2, 3]);
    assert_eq!(fixture.database.quarantined_entries().await, Ok(0));
    assert_eq!(fixture.database.entry_without_place().await, Ok(None));
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_can_insert_times_that_are_not_exact() {
    let fixture = on_postgres().await;
    // The first and the last microsecond that the tables accept.
    let last = Moment::from_micros(7_258_118_399_999_999);
    write_entries(&fixture.database, &[Moment::from_micros(0), last]).await;
    let tables = [
        "audit (entry_id, action, body, at) SELECT gen_random_uuid(), 'x', '{}', time",
        "audit_queue (entry_id, at) SELECT gen_random_uuid(), time",
        "audit_chain (number, entry_id, previous_hash, entry_hash, at) SELECT 1, gen_random_uuid(), 'x', 'y', time",
    ];
    for (table, time) in tables.iter().flat_map(|table| {
        ["1969-12-31 23:59:59Z", "2200-01-01 00:00:00Z", "294270-01-01Z", "infinity"]
            .map(|time| (table, time))
    }) {
        let sql = format!("INSERT INTO {table} FROM (SELECT '{time}'::timestamptz AS time) AS given");
        let refused = psql(&fixture, &sql).await.expect_err("out of range");
        assert!(refused.contains("violates check constraint"), "{sql}: {refused}");
    }
    // A forged row at the end of time is found by its key.
    let copy = "INSERT INTO audit (entry_id, at, action, body) \
                SELECT gen_random_uuid(), at, action, body FROM audit ORDER BY at DESC LIMIT 1";
    tamper(&fixture, copy).await;
    assert_eq!(number_all(&fixture).await, (2, vec!["it has no MAC"]));
    assert_eq!(numbers(&fixture, AuditFilter::default()).await, [1, 2]);
    assert_eq!(fixture.database.quarantined_entries().await, Ok(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn authentic_entries_that_somebody_marks_get_their_numbers() {
    let fixture = on_postgres().await;
    write_entries(&fixture.database, &[at(1), at(2)]).await;
    tamper(&fixture, "UPDATE audit SET quarantined_at = now()").await;
    let marked = "somebody marked it as quarantined; it has its number all the same";
    assert_eq!(number_all(&fixture).await, (2, vec![marked; 2]));
    assert_eq!(numbers(&fixture, AuditFilter::default()).await, [1, 2]);
    assert_eq!(fixture.database.quarantined_entries().await, Ok(0));
    assert_eq!(fixture.database.entry_without_place().await, Ok(None));
    // One that is kept out of the chain is missed, even among many rows that are not authentic.
    tamper(
        &fixture,
        "INSERT INTO audit (entry_id, at, action, body, quarantined_at) \
         SELECT gen_random_uuid(), '1970-01-01Z', 'x', '{}', now() FROM generate_series(1, 1500)",
    )
    .await;
    assert_eq!(fixture.database.entry_without_place().await, Ok(None));
    tamper(&fixture, "UPDATE audit_chain SET number = -1 WHERE number = 2").await;
    assert!(matches!(fixture.database.entry_without_place().await, Ok(Some(_))));
    assert_eq!(number_all(&fixture).await, (0, Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_claim_to_be_queued_are_found() {
    let fixture = on_postgres().await;
    write_entries(&fixture.database, &[at(1)]).await;
    assert_eq!(number_all(&fixture).await, (1, Vec::new()));
    let forge = |count: u32, queued: u8| {
        format!(
            "INSERT INTO audit (entry_id, at, action, body, queued) \
             SELECT gen_random_uuid(), now(), 'x', '{{}}', {queued} FROM generate_series(1, {count})"
        )
    };
    tamper(&fixture, &forge(1_500, 1)).await;
    tamper(&fixture, &forge(1, 0)).await;
    assert_eq!(fixture.database.entry_without_place().await, Ok(None), "they are not authentic");
    let done = fixture.database.number_entries(at(1), 2_000).await.expect("quarantined");
    assert_eq!((done.numbered, done.quarantined.len()), (0, 1_501), "each is reported");
    assert_eq!(fixture.database.quarantined_entries().await, Ok(1_501));
    assert_eq!(fixture.database.entry_without_place().await, Ok(None));
}
