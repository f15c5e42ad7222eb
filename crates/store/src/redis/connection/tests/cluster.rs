//! On a cluster: calls, a primary that dies, a primary that is replaced on purpose, slots that move.

use std::collections::BTreeSet;

use ade_testkit::RedisCluster;
use rustix::process::Signal;
use tokio::time::Instant;

use super::*;

/// A name whose key is served by the primary with that number.
fn name_at(number: usize) -> String {
    (0..1000)
        .map(|try_| format!("n{try_}"))
        .find(|name| usize::from(key(Layout::Cluster, name).slot()) * 3 / 16384 == number)
        .expect("some name")
}

fn cluster_command(servers: &RedisCluster, node: usize, arguments: &[&str]) -> String {
    let mut connection = servers.nodes[node].connect().expect("connects");
    let mut command = redis::cmd("CLUSTER");
    let value: Value = command.arg(arguments).query(&mut connection).expect("answers");
    String::from_redis_value(value).expect("text")
}

#[tokio::test]
async fn a_cluster_works_and_heals() {
    let servers = RedisCluster::start().expect("a cluster");
    let link = open(&servers.url(), quick()).await;
    works(&link).await;
    assert_eq!(link.each_primary(redis::cmd("PING")).await.expect("pongs").len(), 3);
    let whoami = Script::new(format!("{GUARD} return redis.call('CLUSTER', 'MYID')"));
    let mut ids = BTreeSet::new();
    for number in 0..3 {
        let keys = [key(Layout::Cluster, &name_at(number))];
        let value = link.call(&whoami, &keys, &[]).await.expect("an id");
        ids.insert(String::from_redis_value(value).expect("text"));
    }
    assert_eq!(ids.len(), 3);
    let keys = [key(Layout::Cluster, &name_at(2))];
    let within = Duration::from_secs(5);
    let (_, acks) = link.call_acked(&counter(), &keys, &[b"1"], 1, within).await.expect("called");
    assert_eq!(acks, 1);

    a_slot_moves(&servers, &link).await;
    a_primary_steps_down(&servers, &link).await;
    a_primary_dies(&servers, &link).await;
    a_primary_hangs(&servers, &link).await;
}

/// One slot goes from the first to the second primary, with calls in every phase.
async fn a_slot_moves(servers: &RedisCluster, link: &RedisClient) {
    let name = name_at(0);
    let slot = key(Layout::Cluster, &name).slot().to_string();
    let (from, to) = (cluster_command(servers, 0, &["MYID"]), cluster_command(servers, 1, &["MYID"]));
    assert_eq!(count(link, &name).await, Ok(1));
    let mut hints = link.hints();
    subscribe(link, &name).await;
    cluster_command(servers, 1, &["SETSLOT", &slot, "IMPORTING", &from]);
    cluster_command(servers, 0, &["SETSLOT", &slot, "MIGRATING", &to]);
    assert_eq!(count(link, &name).await, Ok(2));
    let mut migrate = redis::cmd("MIGRATE");
    migrate.arg("127.0.0.1").arg(servers.nodes[1].port());
    migrate.arg(key(Layout::Cluster, &name).as_str()).arg(0).arg(5000);
    let mut connection = servers.nodes[0].connect().expect("connects");
    migrate.exec(&mut connection).expect("migrates");
    // Between the two: asked of the new one, which does not own the slot yet.
    assert_eq!(count(link, &name).await, Ok(3));
    for node in [1, 0, 2] {
        cluster_command(servers, node, &["SETSLOT", &slot, "NODE", &to]);
    }
    assert_eq!(count(link, &name).await, Ok(4));
    assert_eq!(heard(&mut hints).await, ChannelEvent::Gap);
    gets_through(link, &mut hints, &name, "moved").await;
}

/// The replica of the second primary takes over in order; no call is lost.
async fn a_primary_steps_down(servers: &RedisCluster, link: &RedisClient) {
    let name = name_at(1);
    assert_eq!(count(link, &name).await, Ok(1));
    let skew = Duration::from_millis(700);
    let careful =
        open(&servers.url(), ConnectionOptions { max_clock_skew: skew, ..ConnectionOptions::default() })
            .await;
    assert_eq!(count(&careful, &name).await, Ok(2));
    let before = Instant::now();
    cluster_command(servers, 4, &["FAILOVER"]);
    let replica = cluster_command(servers, 4, &["MYID"]);
    until("the replica took over", SOON, || {
        let nodes = cluster_command(servers, 4, &["NODES"]);
        let is_primary =
            nodes.lines().any(|line| line.starts_with(&replica) && line.contains("myself,master"));
        std::future::ready(if is_primary { Ok(()) } else { Err(nodes) })
    })
    .await
    .expect("took over");
    assert_eq!(count(link, &name).await, Ok(3));
    assert_eq!(count(&careful, &name).await, Ok(4));
    assert!(before.elapsed() >= skew, "the gate of the new primary: {:?}", before.elapsed());
}

async fn a_primary_dies(servers: &RedisCluster, link: &RedisClient) {
    let name = name_at(2);
    let before = count(link, &name).await.expect("counts");
    let mut hints = link.hints();
    subscribe(link, &name).await;
    servers.nodes[2].kill().expect("dies");
    count(link, &name).await.expect_err("the primary is dead");
    count(link, &name_at(0)).await.expect("the others serve");
    heals(link, &name).await;
    assert!(count(link, &name).await.expect("counts") > before);
    assert_eq!(heard(&mut hints).await, ChannelEvent::Gap);
    gets_through(link, &mut hints, &name, "back").await;
}

async fn a_primary_hangs(servers: &RedisCluster, link: &RedisClient) {
    let (name, other) = (name_at(0), name_at(1));
    let mut hints = link.hints();
    // The first slot moved to another primary before.
    let name = (0..).map(|number| format!("{name}-{number}"));
    let mut name = name.filter(|name| usize::from(key(Layout::Cluster, name).slot()) * 3 / 16384 == 0);
    let name = name.next().expect("some name");
    subscribe(link, &name).await;
    servers.nodes[0].process().signal(Signal::STOP).expect("stops");
    count(link, &name).await.expect_err("no answer");
    count(link, &other).await.expect("the others serve");
    heals(link, &name).await;
    servers.nodes[0].process().signal(Signal::CONT).expect("goes on");
    count(link, &name).await.expect("counts");
    assert_eq!(heard(&mut hints).await, ChannelEvent::Gap);
    gets_through(link, &mut hints, &name, "back").await;
}
