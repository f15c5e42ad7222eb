//! What one follower may cost: a client that does not read is dropped and learns why, and others are not delayed.

use std::net::SocketAddr;
use std::time::Duration;

use ade_domain::people::AUTHOR;
use ade_testkit::{AdeServer, Deployment};
use serde_json::json;
use tokio::net::{TcpSocket, TcpStream};

use super::socket::{Closed, Socket, open};
use super::{client_of, comment, next_events};

const ADE: &str = env!("CARGO_BIN_EXE_ade");
/// Half of it until a client counts as slow, the other half to be told why.
const CONFIG: &str =
    "[limit]\nwrite_timeout_seconds = 6\n\n[log]\nlevel = \"info,ade_server::api::events=trace\"\n";
const EVENTS: usize = 300;
/// More than fits into the buffers of the operating system, if each sends all events again.
const SUBSCRIPTIONS: usize = 100;

const DROPPED_LINE: &str = "a follower of events is dropped";
/// Events were sent to a follower, or it is dropped.
const FOLLOWER_LINE: &str = "a follower of events";

/// A connection that takes little from the server unless it is read.
async fn connect_with_small_buffer(ade: &AdeServer) -> TcpStream {
    let server: SocketAddr = ade.url().trim_start_matches("http://").parse().expect("an address");
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4_096).expect("set");
    socket.connect(server).await.expect("connected")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_is_dropped_with_the_reason() {
    let deployment = Deployment::embedded_with_config(ADE, CONFIG);
    let (ade, org) = (deployment.server(), deployment.admin().await);
    let pat = org.create_user("pat", &[AUTHOR]).await;
    let task = pat.create_draft(json!({})).await;
    for _ in 0..EVENTS {
        comment(&pat, &task).await;
    }
    let mut reading = client_of(&ade.url(), &pat).follow_events().task(&task);
    reading.connect().await.expect("connected");
    let authorization = format!("Bearer {}", pat.token);
    let stream = connect_with_small_buffer(ade).await;
    let mut slow: Socket =
        open(ade, &[("authorization", &authorization)], Some(stream)).await.expect("opened");
    let wait_for_lines = |text: &str, count| {
        let wait = || ade.process().wait_for_log_lines(text, count, Duration::from_secs(60));
        tokio::task::block_in_place(wait).expect("in time");
    };
    // A subscription that arrives before anything was sent would replace the earlier one.
    for count in 1..=SUBSCRIPTIONS {
        slow.send(&json!({ "type": "subscribe", "last_event_id": "0" })).await;
        wait_for_lines(FOLLOWER_LINE, count);
        if !ade.process().log_lines_with(DROPPED_LINE).is_empty() {
            break;
        }
    }
    wait_for_lines(DROPPED_LINE, 1);
    // Others were served meanwhile.
    comment(&pat, &task).await;
    let _ = next_events(&mut reading, 1).await;
    let closed = loop {
        if let Err(closed) = slow.receive().await {
            break closed;
        }
    };
    assert_eq!(closed, Closed { code: 1013, reason: "slow".to_owned() });
}

#[tokio::test]
async fn too_many_and_too_large_messages_close_the_connection() {
    let deployment = Deployment::embedded(ADE);
    let (ade, org) = (deployment.server(), deployment.admin().await);
    let pat = org.create_user("pat", &[AUTHOR]).await;
    let mut socket = Socket::with_token(ade, &pat.token).await;
    let closed = loop {
        socket.send(&json!({ "type": "ping" })).await;
        match socket.receive().await {
            Ok(pong) => assert_eq!(pong["type"], "pong"),
            Err(closed) => break closed,
        }
    };
    assert_eq!(closed, Closed { code: 1008, reason: "too_many_messages".to_owned() });
    let mut socket = Socket::with_token(ade, &pat.token).await;
    socket.send(&json!({ "type": "ping", "filler": "x".repeat(70_000) })).await;
    let ended = futures_util::StreamExt::next(&mut socket.0).await;
    assert!(!matches!(&ended, Some(Ok(message)) if message.is_text()), "{ended:?}");
}

#[tokio::test]
async fn one_user_follows_on_a_bounded_number_of_connections() {
    let deployment = Deployment::embedded(ADE);
    let (ade, org) = (deployment.server(), deployment.admin().await);
    let (pat, sue) = (org.create_user("pat", &[AUTHOR]).await, org.create_user("sue", &[AUTHOR]).await);
    let mut open_sockets = Vec::new();
    for _ in 0..100 {
        open_sockets.push(Socket::with_token(ade, &pat.token).await);
    }
    let authorization = format!("Bearer {}", pat.token);
    let refused = open(ade, &[("authorization", &authorization)], None).await;
    assert_eq!(refused.err(), Some((429, "TOO_MANY_FOLLOWERS".to_owned())));
    let _ = pat.get("/events?after=0").await.expect_problem(429, "TOO_MANY_FOLLOWERS");
    let _ = Socket::with_token(ade, &sue.token).await;
}
