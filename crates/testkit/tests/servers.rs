//! Each kind of server starts, answers, is its own and stops; also many at once.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use ade_testkit::wait::eventually;
use ade_testkit::{Postgres, Redis, RedisCluster, RedisSentinel, wait_for_exit};
use redis::Commands;
use rustix::process::Signal;

const LONG: Duration = Duration::from_secs(120);

#[test]
fn redis_starts_empty_answers_and_leaves_nothing_behind() {
    let server = Redis::start().expect("starts");
    let mut link = server.connect().expect("connects");
    assert_eq!(redis::cmd("DBSIZE").query::<usize>(&mut link).expect("answers"), 0);
    let (pid, folder) = (server.process().pid(), server.process().folder().to_owned());
    assert!(folder.is_dir());
    drop(server);
    assert!(wait_for_exit(pid, Some(Duration::ZERO)).expect("readable"), "drop waits for the end");
    assert!(!folder.exists());
}

#[test]
fn redis_is_stopped_continued_killed_and_restarted_at_the_test_s_will() {
    let server = Redis::start().expect("starts");
    let mut link = server.connect().expect("connects");
    let () = link.set("kept", 1).expect("writes");

    server.process().signal(Signal::STOP).expect("stops");
    link.set_read_timeout(Some(Duration::from_millis(200))).expect("settable");
    redis::cmd("PING").query::<String>(&mut link).expect_err("a stopped server is silent");
    server.process().signal(Signal::CONT).expect("goes on");
    let mut link = server.connect().expect("connects again");
    assert_eq!(link.get::<_, i32>("kept").expect("reads"), 1);

    let (port, pid) = (server.port(), server.process().pid());
    server.kill_and_restart().expect("comes back");
    assert_eq!(server.port(), port);
    assert_ne!(server.process().pid(), pid);
    let mut link = server.connect().expect("connects once more");
    assert_eq!(link.get::<_, Option<i32>>("kept").expect("reads"), None, "no persistence was asked for");
}

#[test]
fn redis_with_persistence_keeps_its_data_over_a_kill() {
    let server = Redis::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).expect("starts");
    let () = server.connect().expect("connects").set("kept", 1).expect("writes");
    server.kill_and_restart().expect("comes back");
    assert_eq!(server.connect().expect("connects").get::<_, i32>("kept").expect("reads"), 1);
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let error = Redis::start_with(&["--no-such-setting", "1"]).expect_err("refused").to_string();
    assert!(error.contains("ended") && error.contains("no-such-setting"), "{error}");
}

#[test]
fn sentinels_agree_on_a_primary_and_replace_it_when_it_dies() {
    let sentinel = RedisSentinel::start().expect("starts");
    let name = sentinel.master_name();
    let mut links = sentinel.connect_sentinels().expect("connect");
    let mut primary = |number: usize| -> String {
        let (_, port): (String, String) = redis::cmd("SENTINEL")
            .arg("GET-MASTER-ADDR-BY-NAME")
            .arg(name)
            .query(&mut links[number])
            .expect("answers");
        port
    };
    let first = sentinel.servers[0].port().to_string();
    assert_eq!([primary(0), primary(1), primary(2)], [first.clone(), first.clone(), first.clone()]);

    sentinel.servers[0].kill().expect("killed");
    let second = eventually("another primary is chosen", LONG, || match primary(0) {
        port if port == first => Err(port),
        port => Ok(port),
    })
    .expect("fails over");
    let survivors: Vec<String> =
        sentinel.servers.iter().skip(1).map(|server| server.port().to_string()).collect();
    assert!(survivors.contains(&second));
}

#[test]
fn a_cluster_serves_every_slot_and_survives_a_primary() {
    let cluster = RedisCluster::start().expect("starts");
    let mut link = cluster.nodes[1].connect().expect("connects");
    let slots: Vec<redis::Value> = redis::cmd("CLUSTER").arg("SLOTS").query(&mut link).expect("answers");
    assert_eq!(slots.len(), 3);

    cluster.nodes[0].kill().expect("killed");
    eventually("its replica takes over", LONG, || {
        let nodes: String =
            redis::cmd("CLUSTER").arg("NODES").query(&mut link).map_err(|error| error.to_string())?;
        let info: String =
            redis::cmd("CLUSTER").arg("INFO").query(&mut link).map_err(|error| error.to_string())?;
        let replica = format!(":{}@", cluster.nodes[3].port());
        let promoted = nodes.lines().any(|line| line.contains(&replica) && line.contains("master"));
        if promoted && info.contains("cluster_state:ok") { Ok(()) } else { Err(nodes) }
    })
    .expect("fails over");
}

#[test]
fn postgres_gives_each_test_a_database_and_leaves_nothing_behind() {
    let server = Postgres::start().expect("starts");
    server.create_database("one").expect("made");
    server.create_database("two").expect("made");
    server.psql("one", "create table t (n int); insert into t values (7)").expect("written");
    assert_eq!(server.psql("one", "select n from t").expect("read"), "7");
    server.psql("two", "select n from t").expect_err("another database");
    let (pid, folder) = (server.process().pid(), server.process().folder().to_owned());
    drop(server);
    assert!(wait_for_exit(pid, Some(Duration::ZERO)).expect("readable"));
    assert!(!folder.exists());
}

#[test]
fn many_tests_at_once_never_share_a_port_or_a_folder() {
    let threads: Vec<_> = (0..16)
        .map(|_| {
            thread::spawn(|| {
                let server = Redis::start().expect("starts");
                let mut link = server.connect().expect("connects");
                let empty: usize = redis::cmd("DBSIZE").query(&mut link).expect("answers");
                let () = link.set("mine", server.port()).expect("writes");
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
