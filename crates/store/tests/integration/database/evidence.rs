//! The entries that prove what happened to a task: marking, moving or hiding one in the database changes nothing about it.

use ade_domain::audit::AuditBody;
use ade_store::database::Commit;

use crate::database::fixture::{TestDatabase, id, on_both_databases};
use crate::database::tasks::entry;

on_both_databases!(marked_and_moved_entries_prove_the_same);

async fn marked_and_moved_entries_prove_the_same(fixture: TestDatabase) {
    let (database, task_id) = (&fixture.database, id());
    let written: Vec<AuditBody> = (1..)
        .zip(["task.approve", "task.revoke"])
        .map(|(revision, action)| AuditBody {
            revision: Some(revision),
            ..entry(action, Some("ann"), Some(&task_id), revision)
        })
        .collect();
    for audit in written.iter().cloned() {
        database.commit(Commit { audit: vec![audit], ..Commit::default() }).await.expect("written");
    }
    let is_sqlite = fixture.folder.is_some();
    // The mark that ade itself gives to a row of somebody else.
    let mark = if is_sqlite { "quarantined_at = 1, number = -5" } else { "quarantined_at = now()" };
    for change in ["action = 'noise'", "actor = NULL", "task_id = NULL"] {
        let refused = fixture.try_sql(&format!("UPDATE audit SET {mark}, {change}")).await;
        assert!(refused.is_err_and(|error| error.contains("append-only")), "{change}");
    }
    fixture.sql(&format!("UPDATE audit SET {mark} WHERE action = 'task.revoke'")).await;
    assert_eq!(database.task_entries(&task_id).await.expect("read"), written);
    // An owner can also change the order in which rows seem to be written.
    if !is_sqlite {
        let move_first = "ALTER TABLE audit DISABLE TRIGGER USER; \
                          UPDATE audit SET insert_seq = -1 WHERE action = 'task.revoke'";
        fixture.sql(move_first).await;
        assert_eq!(database.task_entries(&task_id).await.expect("read"), written);
    }
}
