//! Consumers of events: one process at a time, positions that only grow.

use crate::database::fixture::{TestDatabase, at, on_both_databases};

on_both_databases!(leases_a_consumer_to_one_process_and_keeps_its_position);

async fn leases_a_consumer_to_one_process_and_keeps_its_position(fixture: TestDatabase) {
    let database = &fixture.database;
    let lease = async |holder, now, until| {
        database.lease_consumer("relay", holder, 7, at(now), at(until)).await.expect("available")
    };
    assert_eq!(lease("a", 0, 10).await, Some(7), "a new consumer starts at the given position");
    assert_eq!(lease("b", 5, 15).await, None);
    assert_eq!(lease("a", 5, 12).await, Some(7), "the holder keeps it");
    let advance = async |holder, position| {
        database.advance_consumer("relay", holder, position, at(20)).await.expect("available")
    };
    assert!(advance("a", 9).await);
    assert!(!advance("a", 8).await, "never backwards");
    assert!(!advance("b", 10).await);
    assert_eq!(lease("b", 20, 30).await, Some(9), "after the lease has expired");
    assert!(!advance("a", 10).await);
    database.release_consumer("relay", "a").await.expect("nothing to do");
    assert_eq!(lease("a", 21, 31).await, None);
    database.release_consumer("relay", "b").await.expect("released");
    assert_eq!(lease("a", 21, 31).await, Some(9));
    assert_eq!(database.consumers().await.expect("listed"), [("relay".to_owned(), 9)]);
}
