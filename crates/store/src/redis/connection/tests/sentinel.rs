//! Behind Sentinel: calls, and a primary that dies.

use ade_testkit::RedisSentinel;
use rustix::process::Signal;

use super::*;

#[tokio::test]
async fn behind_sentinel_it_works_and_a_failover_heals() {
    let servers = RedisSentinel::start().expect("redis with sentinel");
    // As where servers have a password and sentinels none; here nobody has, so any will do.
    let url = servers.url().replace("://", "://:hush@");
    let link = open(&url, quick()).await;
    works(&link).await;

    let keys = [key(link.layout(), "acked")];
    let within = Duration::from_secs(5);
    let (_, acks) = link.call_acked(&counter(), &keys, &[b"1"], 2, within).await.expect("called");
    assert_eq!(acks, 2);

    let mut hints = link.hints();
    servers.deployment[0].kill().expect("dies");
    count(&link, "a").await.expect_err("the primary is dead");
    heals(&link, "c").await;
    assert_eq!(count(&link, "acked").await, Ok(2));
    assert_eq!(heard(&mut hints).await, ChannelEvent::Gap);
    gets_through(&link, &mut hints, "a", "back").await;

    let url = url.replace("/ade", "/other");
    let error =
        RedisClient::open(&url.parse().expect("a url"), quick()).await.err().expect("unknown").to_string();
    assert!(error.contains("no master named \"other\"") && !error.contains("hush"), "{error}");
}

#[tokio::test]
async fn a_primary_that_hangs_is_replaced_and_its_return_changes_nothing() {
    let servers = RedisSentinel::start().expect("redis with sentinel");
    let link = open(&servers.url(), quick()).await;
    let mut hints = link.hints();
    subscribe(&link, "a").await;
    let keys = [key(link.layout(), "a")];
    let within = Duration::from_secs(5);
    link.call_acked(&counter(), &keys, &[b"1"], 2, within).await.expect("called");
    let hanging = &servers.deployment[0];
    hanging.process().signal(Signal::STOP).expect("stops");
    count(&link, "b").await.expect_err("no answer");
    heals(&link, "b").await;
    assert_eq!(count(&link, "a").await, Ok(2));
    let mark = hanging.process().mark();
    hanging.process().signal(Signal::CONT).expect("goes on");
    hanging.process().wait_for_line_after(mark, "MASTER <-> REPLICA sync", SOON).expect("follows");
    assert_eq!(count(&link, "a").await, Ok(3));
    gets_through(&link, &mut hints, "a", "back").await;
}
