//! Events over HTTP: pages, event streams and WebSockets, who sees what, and followers that are cut off.

mod access;
mod cut_proxy;
mod documentation;
mod follow;
mod interruptions;
mod limits;
mod load;
mod rust_example;
mod socket;

use std::time::Duration;

use ade_client::wire::Event;
use ade_client::{Client, EventFollower};
use ade_testkit::{ApiClient, TestUser};
use serde_json::{Value, json};
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(30);

/// The next events of a follower.
async fn next_events(follower: &mut EventFollower, count: usize) -> Vec<Event> {
    let mut events = Vec::new();
    for _ in 0..count {
        let next = timeout(TIMEOUT, follower.next()).await;
        events.push(next.unwrap_or_else(|_| panic!("no further event after {events:?}")).expect("followed"));
    }
    events
}

fn ids(events: &[Event]) -> Vec<u64> {
    events.iter().map(|event| event.id.as_ref().expect("an id").parse().expect("a number")).collect()
}

fn names(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.event.as_str()).collect()
}

fn client_of(url: &str, user: &TestUser) -> Client {
    Client::new(url, &user.token).expect("a client")
}

/// The id of the last event.
async fn head(api: &ApiClient) -> u64 {
    let page = api.get("/events").await.expect_status(200);
    page["next_cursor"].as_str().expect("a cursor").parse().expect("a number")
}

/// All events after an id that a caller may see.
async fn all_events(api: &ApiClient, after: u64, filter: &str) -> Vec<Value> {
    let (mut found, mut after) = (Vec::new(), after.to_string());
    loop {
        let page = api.get(&format!("/events?after={after}&limit=200&{filter}")).await.expect_status(200);
        found.extend(page["items"].as_array().expect("items").iter().cloned());
        let next = page["next_cursor"].as_str().expect("a cursor").to_owned();
        if next == after {
            return found;
        }
        after = next;
    }
}

/// All events that a caller may see, newest first.
async fn events_backward(api: &ApiClient, filter: &str) -> Vec<Value> {
    let (mut found, mut before) = (Vec::new(), "end".to_owned());
    while before != "0" {
        let page = api.get(&format!("/events?before={before}&limit=2&{filter}")).await.expect_status(200);
        found.extend(page["items"].as_array().expect("items").iter().cloned());
        before = page["next_cursor"].as_str().expect("a cursor").to_owned();
    }
    found
}

async fn comment(author: &TestUser, task: &str) {
    let _ =
        author.post(&format!("/tasks/{task}/comments"), &json!({ "text": "look" })).await.expect_status(201);
}
