//! The client against real servers.
//!
//! Tests wait for events of the servers, never for time to pass, except where time is what is tested.

mod cluster;
mod sentinel;
mod standalone;

use std::time::Duration;

use ade_keyspace::ade::{ids::TaskId, lock};
use ade_keyspace::{ChannelName, Layout, RedisKey};
use ade_testkit::wait::until;
use redis::{FromRedisValue, Value};
use tokio::time::timeout;

use super::{ChannelEvent, ChannelEvents, ConnectionOptions, RedisClient, Script};
use crate::redis::url::RedisUrl;

/// Long enough for a failover on a busy machine: sentinels retry a split vote after ten seconds, and a sentinel that
/// was not scheduled in time leaves its tilt mode after thirty.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The check at the start of every function of the library.
const GUARD: &str = "if ARGV[1] ~= '' and redis.call('CLUSTER','MYID') ~= ARGV[1] then \
    return redis.error_reply('ANOTHERPRIMARY') end ";

fn script(body: impl std::fmt::Display) -> Script {
    let source = format!("redis.register_function(LIBRARY .. '_test', function(KEYS, ARGV) {body} end)");
    let [script] = Script::library(&source, ["test"]);
    script
}

/// Increments by its second argument.
fn increment_script() -> Script {
    script(format!("{GUARD} return redis.call('INCRBY', KEYS[1], ARGV[2])"))
}

fn key(layout: Layout, name: &str) -> RedisKey {
    lock::task(&TaskId::new(name).expect("valid id")).in_layout(layout)
}

fn channel(layout: Layout, name: &str) -> ChannelName {
    lock::task_channel(&TaskId::new(name).expect("valid id")).in_layout(layout)
}

fn short_skew() -> ConnectionOptions {
    ConnectionOptions { max_clock_skew: Duration::from_millis(20), ..ConnectionOptions::default() }
}

async fn open(url: &str, options: ConnectionOptions) -> RedisClient {
    let url: RedisUrl = url.parse().expect("valid URL");
    RedisClient::open(&url, options).await.expect("opened")
}

fn number(value: Value) -> i64 {
    i64::from_redis_value(value).expect("a number")
}

async fn increment(client: &RedisClient, name: &str) -> Result<i64, String> {
    let keys = [key(client.layout(), name)];
    client
        .call(&increment_script(), &keys.each_ref(), &["1"])
        .await
        .map(number)
        .map_err(|error| error.to_string())
}

/// Waits until calls succeed again.
async fn wait_until_healthy(client: &RedisClient, name: &str) {
    until("calls succeed", TEST_TIMEOUT, || increment(client, name)).await.expect("recovered");
}

/// Publishes over a connection of the client, as scripts do.
async fn publish(client: &RedisClient, name: &str, text: &str) {
    let command = if client.layout() == Layout::Cluster { "SPUBLISH" } else { "PUBLISH" };
    let mut command = redis::cmd(command);
    command.arg(channel(client.layout(), name).as_str()).arg(text);
    client.query(&key(client.layout(), name), command).await.expect("published");
}

async fn next_event(events: &mut ChannelEvents) -> ChannelEvent {
    timeout(TEST_TIMEOUT, events.next()).await.expect("event in time").expect("client exists")
}

/// Publishes until the message arrives: a message during an interruption is lost, which a gap event reports.
async fn expect_delivery(client: &RedisClient, events: &mut ChannelEvents, name: &str, text: &str) {
    publish(client, name, text).await;
    loop {
        match next_event(events).await {
            ChannelEvent::Gap => publish(client, name, text).await,
            event if event == message(client, name, text) => return,
            ChannelEvent::Message { .. } => {}
        }
    }
}

fn message(client: &RedisClient, name: &str, text: &str) -> ChannelEvent {
    ChannelEvent::Message { channel: channel(client.layout(), name).as_str().into(), text: text.into() }
}

async fn subscribe(client: &RedisClient, name: &str) {
    let channel = channel(client.layout(), name);
    client.subscribe(&channel);
    client.confirm_subscription(&channel).await.expect("subscribed");
}

/// Behaviour that every kind of Redis must have while nothing fails.
async fn check_basic_behaviour(client: &RedisClient) {
    assert_eq!(increment(client, "a").await, Ok(1));
    assert_eq!(increment(client, "a").await, Ok(2));
    let mut calls = tokio::task::JoinSet::new();
    for name in 0..100 {
        let client = client.clone();
        calls.spawn(async move {
            let name = format!("many-{}", name % 25);
            increment(&client, &name).await.expect("incremented")
        });
    }
    let mut counts = calls.join_all().await;
    counts.sort_unstable();
    assert_eq!(counts.iter().filter(|count| **count == 4).count(), 25);
    let layout = client.layout();
    let get = |name: &str| {
        let key = key(layout, name);
        let mut get = redis::cmd("GET");
        get.arg(key.as_str());
        (key, get)
    };
    let mut commands: Vec<_> = (0..25).map(|number| get(&format!("many-{number}"))).collect();
    commands.push((key(layout, "a"), redis::cmd("NONSENSE")));
    let mut replies = client.query_all(commands).await;
    let refused = replies.pop().expect("reply").expect_err("refused").to_string();
    assert!(refused.contains("unknown command"), "{refused}");
    for reply in replies {
        assert_eq!(String::from_redis_value(reply.expect("reply")), Ok("4".to_owned()));
    }
    let sizes = client.query_primaries(redis::cmd("DBSIZE")).await.expect("sizes");
    assert_eq!(sizes.into_iter().map(number).sum::<i64>(), 26);

    client.query_primaries(redis::cmd("FUNCTION").arg("FLUSH").take()).await.expect("flushed");
    assert_eq!(increment(client, "a").await, Ok(3));

    let mut events = client.channel_events();
    subscribe(client, "a").await;
    subscribe(client, "b").await;
    publish(client, "a", "one").await;
    assert_eq!(next_event(&mut events).await, message(client, "a", "one"));
    client.unsubscribe(&channel(layout, "a"));
    subscribe(client, "a").await;
    publish(client, "b", "two").await;
    publish(client, "a", "three").await;
    let mut received = [next_event(&mut events).await, next_event(&mut events).await];
    // Messages from different servers of a cluster may arrive in any order.
    received.sort_by_key(|event| format!("{event:?}"));
    assert_eq!(received, [message(client, "a", "three"), message(client, "b", "two")]);
}
