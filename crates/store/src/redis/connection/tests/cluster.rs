//! On a cluster: calls, slot migration, manual failover, a primary that dies and one that hangs.

use std::collections::BTreeSet;

use ade_testkit::RedisCluster;
use rustix::process::Signal;
use tokio::time::Instant;

use super::*;

/// A name whose key is served by the primary with that index.
fn name_at(primary: usize) -> String {
    (0..1000)
        .map(|number| format!("n{number}"))
        .find(|name| usize::from(key(Layout::Cluster, name).slot()) * 3 / 16384 == primary)
        .expect("matching name")
}

fn cluster_command(servers: &RedisCluster, node: usize, arguments: &[&str]) -> String {
    let mut connection = servers.nodes[node].connect().expect("connected");
    let mut command = redis::cmd("CLUSTER");
    let value: Value = command.arg(arguments).query(&mut connection).expect("reply");
    String::from_redis_value(value).expect("text")
}

#[tokio::test]
async fn recovers_from_cluster_failures() {
    let servers = RedisCluster::start().expect("cluster starts");
    let client = open(&servers.url(), short_skew()).await;
    check_basic_behaviour(&client).await;
    assert_eq!(client.query_primaries(redis::cmd("PING")).await.expect("pongs").len(), 3);
    let node_id = script(format!("{GUARD} return redis.call('CLUSTER', 'MYID')"));
    let mut ids = BTreeSet::new();
    for primary in 0..3 {
        let keys = [key(Layout::Cluster, &name_at(primary))];
        let value = client.call(&node_id, &keys.each_ref(), &[]).await.expect("valid id");
        ids.insert(String::from_redis_value(value).expect("text"));
    }
    assert_eq!(ids.len(), 3);
    let keys = [key(Layout::Cluster, &name_at(2))];
    let within = Duration::from_secs(5);
    let (_, acks) =
        client.call_acked(&increment_script(), &keys.each_ref(), &["1"], 1, within).await.expect("called");
    assert_eq!(acks, 1);

    migrate_slot(&servers, &client).await;
    fail_over_manually(&servers, &client).await;
    kill_primary(&servers, &client).await;
    suspend_primary(&servers, &client).await;
}

/// Migrates one slot from the first to the second primary, with calls in every phase.
async fn migrate_slot(servers: &RedisCluster, client: &RedisClient) {
    let name = name_at(0);
    let slot = key(Layout::Cluster, &name).slot().to_string();
    let (from, to) = (cluster_command(servers, 0, &["MYID"]), cluster_command(servers, 1, &["MYID"]));
    assert_eq!(increment(client, &name).await, Ok(1));
    let mut events = client.channel_events();
    subscribe(client, &name).await;
    cluster_command(servers, 1, &["SETSLOT", &slot, "IMPORTING", &from]);
    cluster_command(servers, 0, &["SETSLOT", &slot, "MIGRATING", &to]);
    assert_eq!(increment(client, &name).await, Ok(2));
    let mut migrate = redis::cmd("MIGRATE");
    migrate.arg("127.0.0.1").arg(servers.nodes[1].port());
    migrate.arg(key(Layout::Cluster, &name).as_str()).arg(0).arg(5000);
    let mut connection = servers.nodes[0].connect().expect("connected");
    migrate.exec(&mut connection).expect("migrated");
    // During the migration the call goes to the new primary, which does not own the slot yet.
    assert_eq!(increment(client, &name).await, Ok(3));
    for node in [1, 0, 2] {
        cluster_command(servers, node, &["SETSLOT", &slot, "NODE", &to]);
    }
    assert_eq!(increment(client, &name).await, Ok(4));
    assert_eq!(next_event(&mut events).await, ChannelEvent::Gap);
    expect_delivery(client, &mut events, &name, "moved").await;
}

/// The replica of the second primary takes over in a manual failover; no call is lost.
async fn fail_over_manually(servers: &RedisCluster, client: &RedisClient) {
    let name = name_at(1);
    assert_eq!(increment(client, &name).await, Ok(1));
    let skew = Duration::from_millis(700);
    let long_skew =
        open(&servers.url(), ConnectionOptions { max_clock_skew: skew, ..ConnectionOptions::default() })
            .await;
    assert_eq!(increment(&long_skew, &name).await, Ok(2));
    let before = Instant::now();
    cluster_command(servers, 4, &["FAILOVER"]);
    let replica = cluster_command(servers, 4, &["MYID"]);
    until("the replica took over", TEST_TIMEOUT, || {
        let nodes = cluster_command(servers, 4, &["NODES"]);
        let is_primary =
            nodes.lines().any(|line| line.starts_with(&replica) && line.contains("myself,master"));
        std::future::ready(if is_primary { Ok(()) } else { Err(nodes) })
    })
    .await
    .expect("failed over");
    assert_eq!(increment(client, &name).await, Ok(3));
    assert_eq!(increment(&long_skew, &name).await, Ok(4));
    assert!(before.elapsed() >= skew, "gate of the new primary: {:?}", before.elapsed());
}

async fn kill_primary(servers: &RedisCluster, client: &RedisClient) {
    let name = name_at(2);
    let before = increment(client, &name).await.expect("incremented");
    let mut events = client.channel_events();
    subscribe(client, &name).await;
    servers.nodes[2].kill().expect("killed");
    increment(client, &name).await.expect_err("the primary is dead");
    increment(client, &name_at(0)).await.expect("other primaries serve");
    wait_until_healthy(client, &name).await;
    assert!(increment(client, &name).await.expect("incremented") > before);
    assert_eq!(next_event(&mut events).await, ChannelEvent::Gap);
    expect_delivery(client, &mut events, &name, "back").await;
}

async fn suspend_primary(servers: &RedisCluster, client: &RedisClient) {
    let (name, other) = (name_at(0), name_at(1));
    let mut events = client.channel_events();
    // The first slot has moved to another primary before.
    let name = (0..).map(|number| format!("{name}-{number}"));
    let mut name = name.filter(|name| usize::from(key(Layout::Cluster, name).slot()) * 3 / 16384 == 0);
    let name = name.next().expect("matching name");
    subscribe(client, &name).await;
    servers.nodes[0].process().signal(Signal::STOP).expect("suspended");
    increment(client, &name).await.expect_err("no reply");
    increment(client, &other).await.expect("other primaries serve");
    wait_until_healthy(client, &name).await;
    servers.nodes[0].process().signal(Signal::CONT).expect("resumed");
    increment(client, &name).await.expect("incremented");
    assert_eq!(next_event(&mut events).await, ChannelEvent::Gap);
    expect_delivery(client, &mut events, &name, "back").await;
}
