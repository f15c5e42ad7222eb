//! The link against real servers.
//!
//! Tests wait for what servers do, never for time to pass, except where the passing of time is what is tested.

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

/// Long enough for a failover on a busy machine: sentinels that all voted for themselves try again after ten seconds, and those that
/// were not woken in time trust their clock again after thirty.
const SOON: Duration = Duration::from_secs(60);

/// As the scripts of the port begin.
const GUARD: &str = "if ARGV[1] ~= '' and redis.call('CLUSTER','MYID') ~= ARGV[1] then \
    return redis.error_reply('ANOTHERPRIMARY') end ";

/// Counts up, with its second argument as the step.
fn counter() -> Script {
    Script::new(format!("{GUARD} return redis.call('INCRBY', KEYS[1], ARGV[2])"))
}

fn key(layout: Layout, name: &str) -> RedisKey {
    lock::task(&TaskId::new(name).expect("an id")).in_layout(layout)
}

fn channel(layout: Layout, name: &str) -> ChannelName {
    lock::task_channel(&TaskId::new(name).expect("an id")).in_layout(layout)
}

fn quick() -> ConnectionOptions {
    ConnectionOptions { max_clock_skew: Duration::from_millis(20), ..ConnectionOptions::default() }
}

async fn open(url: &str, options: ConnectionOptions) -> RedisClient {
    let url: RedisUrl = url.parse().expect("a url");
    RedisClient::open(&url, options).await.expect("opens")
}

fn number(value: Value) -> i64 {
    i64::from_redis_value(value).expect("a number")
}

/// One step of the counter.
async fn count(link: &RedisClient, name: &str) -> Result<i64, String> {
    let keys = [key(link.layout(), name)];
    link.call(&counter(), &keys, &[b"1"]).await.map(number).map_err(|error| error.to_string())
}

/// Waits until calls work again.
async fn heals(link: &RedisClient, name: &str) {
    until("calls work again", SOON, || count(link, name)).await.expect("heals");
}

/// Publishes with a connection of the link, as scripts do.
async fn publish(link: &RedisClient, name: &str, text: &str) {
    let verb = if link.layout() == Layout::Cluster { "SPUBLISH" } else { "PUBLISH" };
    let mut command = redis::cmd(verb);
    command.arg(channel(link.layout(), name).as_str()).arg(text);
    link.ask(&key(link.layout(), name), command).await.expect("published");
}

async fn heard(hints: &mut ChannelEvents) -> ChannelEvent {
    timeout(SOON, hints.next()).await.expect("something is heard").expect("the link is there")
}

/// Publishes until it is heard: what is published while a subscription is interrupted is lost, and `Again` says so.
async fn gets_through(link: &RedisClient, hints: &mut ChannelEvents, name: &str, text: &str) {
    publish(link, name, text).await;
    loop {
        match heard(hints).await {
            ChannelEvent::Gap => publish(link, name, text).await,
            hint if hint == message(link, name, text) => return,
            ChannelEvent::Message { .. } => {}
        }
    }
}

fn message(link: &RedisClient, name: &str, text: &str) -> ChannelEvent {
    ChannelEvent::Message { channel: channel(link.layout(), name).as_str().into(), text: text.into() }
}

async fn subscribe(link: &RedisClient, name: &str) {
    let channel = channel(link.layout(), name);
    link.subscribe(&channel);
    link.subscribed(&channel).await.expect("subscribed");
}

/// Everything that must hold on every kind of Redis while nothing fails.
async fn works(link: &RedisClient) {
    assert_eq!(count(link, "a").await, Ok(1));
    assert_eq!(count(link, "a").await, Ok(2));
    let mut calls = tokio::task::JoinSet::new();
    for name in 0..100 {
        let link = link.clone();
        calls.spawn(async move {
            let name = format!("many-{}", name % 25);
            count(&link, &name).await.expect("counts")
        });
    }
    let mut counts = calls.join_all().await;
    counts.sort_unstable();
    assert_eq!(counts.iter().filter(|count| **count == 4).count(), 25);
    let layout = link.layout();
    let get = |name: &str| {
        let key = key(layout, name);
        let mut get = redis::cmd("GET");
        get.arg(key.as_str());
        (key, get)
    };
    let mut questions: Vec<_> = (0..25).map(|number| get(&format!("many-{number}"))).collect();
    questions.push((key(layout, "a"), redis::cmd("NONSENSE")));
    let mut answers = link.ask_all(questions).await;
    let refused = answers.pop().expect("an answer").expect_err("refused").to_string();
    assert!(refused.contains("unknown command"), "{refused}");
    for answer in answers {
        assert_eq!(String::from_redis_value(answer.expect("an answer")), Ok("4".to_owned()));
    }
    let sizes = link.each_primary(redis::cmd("DBSIZE")).await.expect("sizes");
    assert_eq!(sizes.into_iter().map(number).sum::<i64>(), 26);

    link.each_primary(redis::cmd("SCRIPT").arg("FLUSH").take()).await.expect("flushed");
    assert_eq!(count(link, "a").await, Ok(3));

    let mut hints = link.hints();
    subscribe(link, "a").await;
    subscribe(link, "b").await;
    publish(link, "a", "one").await;
    assert_eq!(heard(&mut hints).await, message(link, "a", "one"));
    link.unsubscribe(&channel(layout, "a"));
    subscribe(link, "a").await;
    publish(link, "b", "two").await;
    publish(link, "a", "three").await;
    let mut two = [heard(&mut hints).await, heard(&mut hints).await];
    // Different servers of a cluster may be heard in any order.
    two.sort_by_key(|hint| format!("{hint:?}"));
    assert_eq!(two, [message(link, "a", "three"), message(link, "b", "two")]);
}
