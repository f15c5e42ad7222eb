//! Servers of every kind start, reply, are isolated from each other, and stop; also many at once.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

mod browser;
mod killed;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use ade_keyspace::{Layout, ade as keys};
use ade_testkit::wait::eventually;
use ade_testkit::{Postgres, Redis, RedisCluster, RedisSentinel, wait_for_exit};
use redis::Commands;
use rustix::process::Signal;

const FAILOVER_TIMEOUT: Duration = Duration::from_secs(120);

/// A key that never expires.
fn key() -> String {
    keys::lock::token().in_layout(Layout::Plain).to_string()
}

#[test]
fn redis_starts_empty_and_cleans_up() {
    let server = Redis::start().expect("starts");
    let mut connection = server.connect().expect("connects");
    assert_eq!(redis::cmd("DBSIZE").query::<usize>(&mut connection).expect("a reply"), 0);
    let (pid, folder) = (server.process().pid(), server.process().folder().to_owned());
    assert!(folder.is_dir());
    drop(server);
    assert!(wait_for_exit(pid, Some(Duration::ZERO)).expect("readable"), "drop waits for the exit");
    assert!(!folder.exists());
}

#[test]
fn redis_can_be_stopped_continued_killed_and_restarted() {
    let server = Redis::start().expect("starts");
    let mut connection = server.connect().expect("connects");
    let () = connection.set(key(), 1).expect("writes");

    server.process().signal(Signal::STOP).expect("stops");
    connection.set_read_timeout(Some(Duration::from_millis(200))).expect("set");
    redis::cmd("PING").query::<String>(&mut connection).expect_err("a stopped server does not reply");
    server.process().signal(Signal::CONT).expect("continues");
    let mut connection = server.connect().expect("connects again");
    assert_eq!(connection.get::<_, i32>(key()).expect("reads"), 1);

    let (port, pid) = (server.port(), server.process().pid());
    server.kill_and_restart().expect("comes back");
    assert_eq!(server.port(), port);
    assert_ne!(server.process().pid(), pid);
    let mut connection = server.connect().expect("connects once more");
    assert_eq!(connection.get::<_, Option<i32>>(key()).expect("reads"), None, "no persistence");
}

#[test]
fn redis_with_persistence_survives_a_kill() {
    let server = Redis::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).expect("starts");
    let () = server.connect().expect("connects").set(key(), 1).expect("writes");
    server.kill_and_restart().expect("comes back");
    assert_eq!(server.connect().expect("connects").get::<_, i32>(key()).expect("reads"), 1);
}

#[test]
fn failed_start_reports_the_log() {
    let error = Redis::start_with(&["--no-such-setting", "1"]).expect_err("refused").to_string();
    assert!(error.contains("exited") && error.contains("no-such-setting"), "{error}");
}

#[test]
fn sentinels_fail_over_to_a_replica() {
    let sentinel = RedisSentinel::start().expect("starts");
    let name = sentinel.master_name();
    let mut connections = sentinel.connect_sentinels().expect("connect");
    let mut primary = |number: usize| -> String {
        let (_, port): (String, String) = redis::cmd("SENTINEL")
            .arg("GET-MASTER-ADDR-BY-NAME")
            .arg(name)
            .query(&mut connections[number])
            .expect("a reply");
        port
    };
    let first = sentinel.servers[0].port().to_string();
    assert_eq!([primary(0), primary(1), primary(2)], [first.clone(), first.clone(), first.clone()]);

    sentinel.servers[0].kill().expect("killed");
    let second = eventually("another primary is elected", FAILOVER_TIMEOUT, || match primary(0) {
        port if port == first => Err(port),
        port => Ok(port),
    })
    .expect("fails over");
    let survivors: Vec<String> =
        sentinel.servers.iter().skip(1).map(|server| server.port().to_string()).collect();
    assert!(survivors.contains(&second));
}

#[test]
fn cluster_serves_all_slots_and_fails_over() {
    let cluster = RedisCluster::start().expect("starts");
    let mut connection = cluster.nodes[1].connect().expect("connects");
    let slots: Vec<redis::Value> =
        redis::cmd("CLUSTER").arg("SLOTS").query(&mut connection).expect("a reply");
    assert_eq!(slots.len(), 3);

    cluster.nodes[0].kill().expect("killed");
    eventually("its replica takes over", FAILOVER_TIMEOUT, || {
        let nodes: String =
            redis::cmd("CLUSTER").arg("NODES").query(&mut connection).map_err(|error| error.to_string())?;
        let info: String =
            redis::cmd("CLUSTER").arg("INFO").query(&mut connection).map_err(|error| error.to_string())?;
        let replica = format!(":{}@", cluster.nodes[3].port());
        let promoted = nodes.lines().any(|line| line.contains(&replica) && line.contains("master"));
        if promoted && info.contains("cluster_state:ok") { Ok(()) } else { Err(nodes) }
    })
    .expect("fails over");
}

#[test]
fn postgres_isolates_databases_and_cleans_up() {
    let server = Postgres::start().expect("starts");
    server.create_database("one").expect("created");
    server.create_database("two").expect("created");
    server.psql("one", "create table t (n int); insert into t values (7)").expect("written");
    assert_eq!(server.psql("one", "select n from t").expect("read"), "7");
    server.psql("two", "select n from t").expect_err("another database");
    let (pid, folder) = (server.process().pid(), server.process().folder().to_owned());
    drop(server);
    assert!(wait_for_exit(pid, Some(Duration::ZERO)).expect("readable"));
    assert!(!folder.exists());
}

#[test]
fn parallel_servers_never_share_port_or_folder() {
    let threads: Vec<_> = (0..16)
        .map(|_| {
            thread::spawn(|| {
                let server = Redis::start().expect("starts");
                let mut connection = server.connect().expect("connects");
                let empty: usize = redis::cmd("DBSIZE").query(&mut connection).expect("a reply");
                let () = connection.set(key(), server.port()).expect("writes");
                (server, empty)
            })
        })
        .collect();
    let servers: Vec<(Redis, usize)> =
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
    assert!(servers.iter().all(|(_, keys)| *keys == 0));
    let ports: BTreeSet<u16> = servers.iter().map(|(server, _)| server.port()).collect();
    let folders: BTreeSet<PathBuf> =
        servers.iter().map(|(server, _)| server.process().folder().to_owned()).collect();
    assert_eq!((ports.len(), folders.len()), (16, 16));
}
