//! Approval requests as the job of timeouts finds them.

use std::collections::BTreeSet;

use ade_domain::approval::{Approval, ApprovalStatus};

use super::tasks::{approval, execute_sql, put, task};
use crate::database::fixture::{TestDatabase, at, on_both_databases, person, write};

on_both_databases!(finds_approvals_to_raise_and_who_is_waited_for);

async fn finds_approvals_to_raise_and_who_is_waited_for(fixture: TestDatabase) {
    let database = &fixture.database;
    let mut stored = task("ann", "schema", "orders", "urgent");
    // Due after 41 and 81 seconds, from second 1 on; the others are not raised any more.
    stored.approvals = vec![approval(&stored.task, "rob", 41), approval(&stored.task, "sue", 81)];
    let mut raised = approval(&stored.task, "rob", 41);
    raised.raised = 3;
    let decided = Approval { status: ApprovalStatus::Approved, ..approval(&stored.task, "kim", 41) };
    let asked = Approval { status: ApprovalStatus::ChangesRequested, ..approval(&stored.task, "zoe", 41) };
    stored.approvals.extend([raised, decided, asked]);
    write(database, vec![put(&stored, None)]).await.expect("inserted");
    let [rob, sue] = [0, 1].map(|number: usize| stored.approvals[number].approval_id.clone());
    let check = || async {
        for (second, expected) in [(10, vec![]), (11, vec![&rob]), (20, vec![&rob]), (21, vec![&rob, &sue])] {
            let due = database.approvals_to_raise(at(second), 10).await.expect("read");
            let ids: BTreeSet<_> = due.iter().map(|(id, _)| id).collect();
            assert_eq!(ids, expected.into_iter().collect(), "{second}");
        }
    };
    check().await;
    // Once it is raised, the next quarter counts.
    (stored.approvals[0].raised, stored.approvals[0].revision, stored.revision) = (1, 2, 2);
    write(database, vec![put(&stored, Some(1))]).await.expect("updated");
    let due = async |second| {
        let due = database.approvals_to_raise(at(second), 10).await.expect("read");
        due.into_iter().map(|(id, _)| id).collect::<BTreeSet<_>>()
    };
    assert_eq!((due(20).await, due(21).await), (BTreeSet::new(), BTreeSet::from([rob.clone(), sue.clone()])));
    (stored.approvals[0].raised, stored.approvals[0].revision, stored.revision) = (0, 3, 3);
    write(database, vec![put(&stored, Some(2))]).await.expect("updated");
    let waited_for = database.reviewers_with_open_requests().await.expect("read");
    assert_eq!(waited_for, ["rob", "sue", "zoe"].map(person));
    // A database of an older version finds them after its migration.
    let older = "DROP INDEX approvals_to_raise; ALTER TABLE approvals DROP COLUMN raise_at;";
    execute_sql(&fixture, older).await.expect("as it was");
    let sqlite = include_str!("../../../src/database/schema/sqlite_raises.sql");
    let postgres = include_str!("../../../src/database/schema/postgres_raises.sql");
    execute_sql(&fixture, if fixture.postgres.is_some() { postgres } else { sqlite })
        .await
        .expect("migrated");
    check().await;
}
