//! Followers that are cut off again and again miss no event and see none twice.

use ade_client::EventTransport::{self, Polling, Stream, WebSocket};
use ade_domain::people::AUTHOR;
use ade_testkit::{Deployment, SeededRng, TestUser, effort};
use serde_json::json;
use tokio::task::JoinHandle;

use super::cut_proxy::CutProxy;
use super::{client_of, comment, head, ids, next_events};

const ADE: &str = env!("CARGO_BIN_EXE_ade");
const CUTS: u64 = 50;
/// At most so many events between two cuts.
const MAX_EVENTS_BETWEEN: u64 = 6;

/// Comments on a task until it is aborted.
fn keep_commenting(author: &TestUser, task: &str) -> JoinHandle<()> {
    let (author, task) = (author.clone(), task.to_owned());
    tokio::spawn(async move {
        loop {
            comment(&author, &task).await;
        }
    })
}

/// Follows while connections are cut, with WebSockets and perhaps streams refused.
async fn follow_through_cuts(refused: &'static [&'static str], expected: EventTransport, round: u64) {
    let deployment = Deployment::embedded(ADE);
    let (ade, org) = (deployment.server(), deployment.admin().await);
    let pat = org.create_user("pat", &[AUTHOR]).await;
    let task = pat.create_draft(json!({})).await;
    let proxy = CutProxy::start(&ade.url(), refused).await;
    let start = head(&org.api).await;
    let mut follower = client_of(&proxy.url(), &pat).follow_events().after(start).task(&task);
    let (mut random, mut seen) = (SeededRng::new(effort::seed(), round), Vec::new());
    let writer = keep_commenting(&pat, &task);
    for _ in 0..CUTS {
        let count = usize::try_from(1 + random.below(MAX_EVENTS_BETWEEN)).expect("small");
        seen.extend(ids(&next_events(&mut follower, count).await));
        assert_eq!(follower.transport(), Some(expected));
        proxy.cut();
    }
    writer.abort();
    let _ = writer.await;
    let end = head(&org.api).await;
    while seen.last() != Some(&end) {
        seen.extend(ids(&next_events(&mut follower, 1).await));
    }
    // Nobody else does anything: every number is a comment.
    assert_eq!(seen, (start + 1..=end).collect::<Vec<u64>>());
}

#[tokio::test]
async fn a_web_socket_cut_off_fifty_times_misses_nothing() {
    follow_through_cuts(&[], WebSocket, 1).await;
}

#[tokio::test]
async fn a_stream_cut_off_fifty_times_misses_nothing() {
    follow_through_cuts(&["/api/v1/ws"], Stream, 2).await;
}

#[tokio::test]
async fn polling_cut_off_fifty_times_misses_nothing() {
    follow_through_cuts(&["/api/v1/ws", "/api/v1/events/stream"], Polling, 3).await;
}

#[tokio::test]
async fn a_follower_survives_the_death_of_its_server() {
    let deployment = Deployment::embedded(ADE);
    let (ade, org) = (deployment.server(), deployment.admin().await);
    let pat = org.create_user("pat", &[AUTHOR]).await;
    let task = pat.create_draft(json!({})).await;
    let start = head(&org.api).await;
    let mut follower = client_of(&ade.url(), &pat).follow_events().after(start);
    let mut seen = Vec::new();
    for _ in 0..effort::rounds(3, 20) {
        comment(&pat, &task).await;
        seen.extend(ids(&next_events(&mut follower, 1).await));
        comment(&pat, &task).await;
        ade.kill_and_restart().expect("starts again");
        comment(&pat, &task).await;
        seen.extend(ids(&next_events(&mut follower, 2).await));
    }
    let end = head(&org.api).await;
    assert_eq!(seen, (start + 1..=end).collect::<Vec<u64>>());
}
