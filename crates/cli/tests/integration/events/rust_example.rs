//! The Rust example of docs/events.md.

use ade_client::{Client, FollowError};

/// Prints decisions after an event until `count` have arrived, and returns the id to continue after.
pub(super) async fn print_decisions(client: &Client, after: u64, count: usize) -> Result<u64, FollowError> {
    let mut follower = client.follow_events().after(after).events(["approval:approved", "approval:rejected"]);
    for _ in 0..count {
        let event = follower.next().await?;
        println!("{} {} of task {}", event.timestamp, event.event, event.payload["task_id"]);
    }
    Ok(follower.last_event_id().unwrap_or(after))
}
