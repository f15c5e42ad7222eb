//! Deliveries of webhooks: which of them a process may send.

use ade_store::Database;
use ade_store::database::{Claim, Delivery, DeliveryContent, NewDelivery};

use crate::database::fixture::{TestDatabase, at, id, on_both_databases};

on_both_databases!(claims_one_delivery_of_each_task);

async fn add(database: &Database, task_id: Option<&str>, second: u64) -> String {
    let content = DeliveryContent {
        event: "task:created".to_owned(),
        task_id: task_id.map(str::to_owned),
        number: 0,
        payload: "{}".to_owned(),
        skipped_people: 0,
    };
    let new = NewDelivery {
        delivery_id: id(),
        webhook_id: "chat".to_owned(),
        event_id: id(),
        recipient: None,
        digest_at: None,
        created_at: at(second),
        give_up_at: at(1_000),
        content,
        refused: None,
    };
    database.add_delivery(&new).await.expect("written");
    new.delivery_id
}

async fn claim(database: &Database, second: u64, limit: u32) -> Vec<String> {
    let (webhook_id, by) = ("chat".to_owned(), "server".to_owned());
    let claim = Claim { webhook_id, by, now: at(second), until: at(second + 60), limit };
    let claimed = database.claim_deliveries(claim, true).await.expect("claimed");
    claimed.into_iter().map(|Delivery { delivery_id, .. }| delivery_id).collect()
}

async fn claims_one_delivery_of_each_task(fixture: TestDatabase) {
    let database = &fixture.database;
    let (busy, quiet) = (id(), id());
    let mut added = Vec::new();
    let tasks = [Some(&busy), Some(&busy), Some(&busy), Some(&busy), Some(&quiet), None, None];
    for (task_id, second) in tasks.into_iter().zip(1..) {
        added.push(add(database, task_id.map(String::as_str), second).await);
    }
    let expected = |which: &[usize]| which.iter().map(|index| added[*index].clone()).collect::<Vec<_>>();
    let first = claim(database, 10, 3).await;
    assert_eq!(first, expected(&[0, 4, 5]), "others come before the second of a task");
    assert_eq!(claim(database, 11, 3).await, expected(&[6]), "a process still has one of each task");
    // The process was lost: its deliveries are due again, after what waited longer.
    assert_eq!(claim(database, 70, 3).await, expected(&[1, 4, 5]));
}
