//! Behind Sentinel: calls, and a primary that dies or hangs.

use ade_testkit::RedisSentinel;
use rustix::process::Signal;

use super::*;

#[tokio::test]
async fn recovers_after_sentinel_failover() {
    let servers = RedisSentinel::start().expect("servers start");
    // As if the servers had a password and the sentinels none; without authentication any password works.
    let url = servers.url().replace("://", "://:hush@");
    let client = open(&url, short_skew()).await;
    check_basic_behaviour(&client).await;

    let keys = [key(client.layout(), "acked")];
    let within = Duration::from_secs(5);
    let (_, acks) =
        client.call_acked(&increment_script(), &keys.each_ref(), &["1"], 2, within).await.expect("called");
    assert_eq!(acks, 2);

    let mut events = client.channel_events();
    servers.servers[0].kill().expect("killed");
    increment(&client, "a").await.expect_err("the primary is dead");
    wait_until_healthy(&client, "c").await;
    assert_eq!(increment(&client, "acked").await, Ok(2));
    assert_eq!(next_event(&mut events).await, ChannelEvent::Gap);
    expect_delivery(&client, &mut events, "a", "back").await;

    let url = url.replace("/ade", "/other");
    let error = RedisClient::open(&url.parse().expect("valid URL"), short_skew())
        .await
        .err()
        .expect("unknown")
        .to_string();
    assert!(error.contains("no master named \"other\"") && !error.contains("hush"), "{error}");
}

#[tokio::test]
async fn follows_failover_when_the_old_primary_returns() {
    let servers = RedisSentinel::start().expect("servers start");
    let client = open(&servers.url(), short_skew()).await;
    let mut events = client.channel_events();
    subscribe(&client, "a").await;
    let keys = [key(client.layout(), "a")];
    let within = Duration::from_secs(5);
    client.call_acked(&increment_script(), &keys.each_ref(), &["1"], 2, within).await.expect("called");
    let hanging = &servers.servers[0];
    hanging.process().signal(Signal::STOP).expect("suspended");
    increment(&client, "b").await.expect_err("no reply");
    wait_until_healthy(&client, "b").await;
    assert_eq!(increment(&client, "a").await, Ok(2));
    let mark = hanging.process().log_position();
    hanging.process().signal(Signal::CONT).expect("resumed");
    hanging
        .process()
        .wait_for_log_line_after(mark, "MASTER <-> REPLICA sync", TEST_TIMEOUT)
        .expect("replicating");
    assert_eq!(increment(&client, "a").await, Ok(3));
    expect_delivery(&client, &mut events, "a", "back").await;
}
