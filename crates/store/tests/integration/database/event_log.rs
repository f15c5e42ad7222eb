//! What followers of events need: the participants of tasks, and events that are deleted in order once they are old.

use std::collections::BTreeSet;

use ade_domain::event::Event;
use ade_store::database::Commit;

use crate::database::fixture::{TestDatabase, at, id, on_both_databases, person, write};
use crate::database::tasks::{approval, entry, put, task};

on_both_databases!(
    finds_the_participants_of_many_tasks_at_once,
    deletes_old_events_in_order_and_only_those_that_consumers_have_handled
);

async fn finds_the_participants_of_many_tasks_at_once(fixture: TestDatabase) {
    let database = &fixture.database;
    let (mut reviewed, other) = (task("ann", "docs", "a", "t"), task("ben", "docs", "b", "t"));
    let request = approval(&reviewed, "rex", 1);
    reviewed.approvals.push(request);
    write(database, vec![put(&reviewed, None), put(&other, None)]).await.expect("written");
    let asked = [reviewed.task_id.clone(), other.task_id.clone(), id(), "no-uuid".to_owned()];
    let found = database.task_participants(&BTreeSet::from(asked)).await.expect("read");
    assert_eq!(found.len(), 2);
    let participants = &found[&reviewed.task_id];
    assert_eq!(participants.authors, BTreeSet::from([person("ann")]));
    assert!(participants.reviewers.contains(&person("rex")) && participants.applied_by.is_none());
    assert!(!found[&other.task_id].reviewers.contains(&person("rex")));
    assert!(database.task_participants(&BTreeSet::new()).await.expect("read").is_empty());
    let damage = format!("UPDATE tasks SET body = '{{}}' WHERE task_id = '{}'", other.task_id);
    fixture.sql(&damage).await;
    let asked = [reviewed.task_id.clone(), other.task_id.clone()];
    let found = database.task_participants(&BTreeSet::from(asked)).await.expect("the others can be read");
    assert_eq!(found.keys().collect::<Vec<_>>(), [&reviewed.task_id]);
}

async fn deletes_old_events_in_order_and_only_those_that_consumers_have_handled(fixture: TestDatabase) {
    let database = &fixture.database;
    for second in 1..=6 {
        let audit = entry("task.create", Some("ann"), Some(&id()), second);
        let events = vec![Event::of(&audit, Vec::new())];
        let commit = Commit { audit: vec![audit], events, ..Commit::default() };
        database.commit(commit).await.expect("written");
        while database.number_entries(at(9), 10).await.expect("numbered").has_more {}
    }
    let page = async |after| {
        let page = database.event_page(after, 10).await.expect("read");
        (page.events.iter().map(|(number, _)| *number).collect::<Vec<_>>(), page.deleted_up_to)
    };
    assert_eq!(page(0).await, (vec![1, 2, 3, 4, 5, 6], 0));
    database.lease_consumer("relay", "a", 2, at(0), at(10)).await.expect("leased");
    assert_eq!(database.delete_old_events(at(5)).await.expect("deleted"), 2, "the consumer is at 2");
    assert_eq!(page(0).await, (vec![3, 4, 5, 6], 2));
    assert!(database.advance_consumer("relay", "a", 6, at(10)).await.expect("advanced"));
    assert_eq!(database.delete_old_events(at(5)).await.expect("deleted"), 2, "the rest is not old");
    assert_eq!(database.delete_old_events(at(5)).await.expect("nothing"), 0);
    assert_eq!(page(4).await, (vec![5, 6], 4));
    assert_eq!(database.deleted_events().await.expect("read"), 4);
}
