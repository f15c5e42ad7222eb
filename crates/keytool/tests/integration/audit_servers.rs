//! Audits of every kind of deployment, and of servers that deny or cannot reply.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use ade_catalog::Layout;
use ade_keytool::audit::{AuditError, AuditOptions};
use ade_keytool::server::{DeploymentKind, Role, ServerError};
use ade_testkit::{Redis, RedisCluster, RedisSentinel};

use crate::support::{audit, command, counts, options, owner_of, send, valid_keys};

#[tokio::test(flavor = "multi_thread")]
async fn every_primary_or_a_replica_of_each_is_read() {
    let cluster = RedisCluster::start().expect("starts");
    let commands = valid_keys(3000, Layout::Cluster);
    let owners: Vec<u16> = (0..16384)
        .step_by(16384 / 3 + 1)
        .map(|slot| cluster.slot_owner(slot, &[]).expect("an owner").port())
        .collect();
    for (number, port) in owners.iter().enumerate() {
        let node = cluster.nodes.iter().find(|node| node.port() == *port).expect("a node");
        let is_own = |key: &str| owner_of(key) == number;
        let own: Vec<_> = commands.iter().filter(|(key, _)| is_own(key)).cloned().collect();
        send(&mut node.connect().expect("connects"), &own);
        let _: i64 = node.query(&["WAIT", "1", "10000"]).expect("replicated");
    }
    let report = audit(&cluster.url(), &options()).await.expect("audited");
    assert_eq!(report.deployment, DeploymentKind::Cluster);
    assert_eq!((report.coverage.keys_seen, report.coverage.nodes.len()), (3000, 3));
    assert_eq!(counts(&report), Vec::<String>::new());
    let plain_url = cluster.nodes[0].url();
    assert_eq!(
        audit(&plain_url, &options()).await.expect("audited").coverage.keys_seen,
        3000,
        "one node is enough"
    );
    let replicas = AuditOptions { role: Role::Replica, ..options() };
    for (node, port) in cluster.nodes.iter().skip(3).zip(&owners) {
        let primary = cluster.nodes.iter().find(|node| node.port() == *port).expect("a node");
        let offset = |node: &Redis, field: &str| {
            let info: String = node.query(&["INFO", "replication"]).expect("a reply");
            info.lines().find_map(|line| line.strip_prefix(field)).map(str::to_owned)
        };
        let replicated = || match offset(node, "slave_repl_offset:") {
            it if it >= offset(primary, "master_repl_offset:") => Ok(()),
            it => Err(format!("{it:?}")),
        };
        ade_testkit::wait::eventually(
            "the replica has everything",
            std::time::Duration::from_secs(30),
            replicated,
        )
        .expect("in time");
    }
    let report = audit(&cluster.url(), &replicas).await.expect("audited");
    assert_eq!(report.coverage.keys_seen, 3000);
    assert!(report.coverage.nodes.iter().all(|node| node.role == Role::Replica));
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_name_the_primary_and_its_replicas() {
    let redis = RedisSentinel::start().expect("starts");
    let primary = redis.primary().expect("a primary");
    send(&mut primary.connect().expect("connects"), &valid_keys(400, Layout::Plain));
    let _: i64 = primary.query(&["WAIT", "2", "10000"]).expect("replicated");
    let report = audit(&redis.url(), &options()).await.expect("audited");
    let address = format!("127.0.0.1:{}", primary.port());
    assert_eq!((report.coverage.keys_seen, &report.coverage.nodes[0].address), (400, &address));
    let replicas = AuditOptions { role: Role::Replica, ..options() };
    let report = audit(&redis.url(), &replicas).await.expect("audited");
    assert_eq!((report.coverage.keys_seen, report.coverage.nodes[0].role), (400, Role::Replica));
    assert_ne!(report.coverage.nodes[0].address, address);
    let unknown = redis.url().replace(redis.master_name(), "nobody");
    let error = audit(&unknown, &options()).await.expect_err("unknown").to_string();
    assert!(error.contains("knows no master named \"nobody\""), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn denied_commands_are_in_the_report_or_an_error() {
    let redis = Redis::start_with(&["--requirepass", "secret-1"]).expect("starts");
    let url = |user: &str| format!("redis://{user}@127.0.0.1:{}", redis.port());
    let admin = redis::Client::open(url(":secret-1")).expect("a URL");
    let mut connection = admin.get_connection().expect("connects");
    send(&mut connection, &valid_keys(400, Layout::Plain));
    let mut set_user = |name: &str, rules: &[&str]| {
        let words = [&["ACL", "SETUSER", name, "on", ">pw"], rules].concat();
        let () = command(&words).query(&mut connection).expect("a user");
        url(&format!("{name}:pw"))
    };
    let all = ["~*", "+@all"];
    let poor = set_user(
        "poor",
        &[&all[..], &["-memory", "-type", "-pttl", "-dbsize", "-info", "-getrange"]].concat(),
    );
    let report = audit(&poor, &options()).await.expect("audited");
    let denied: Vec<&str> = report.coverage.denied.iter().map(|denied| denied.command.as_str()).collect();
    assert_eq!(denied, ["MEMORY USAGE", "PTTL", "TYPE"]);
    assert!(report.coverage.lines().iter().any(|line| line.contains("MEMORY USAGE is denied")));
    assert_eq!((report.coverage.keys_seen, report.coverage.keys_expected), (400, None));
    assert!(report.classes.iter().all(|class| class.memory.estimated_bytes.is_none()));
    let partial = set_user("partial", &["~shop:cart:*", "+@all"]);
    let report = audit(&partial, &options()).await.expect("audited");
    assert!(
        report.coverage.denied.iter().any(|denied| denied.consequence.contains("not of ")),
        "{:?}",
        report.coverage
    );
    let blind = set_user("blind", &[&all[..], &["-scan"]].concat());
    let error = audit(&blind, &options()).await.expect_err("denied");
    assert!(matches!(error, AuditError::Server(ServerError::Denied { command: "SCAN", .. })), "{error}");
    for user in [":wrong", "poor:wrong", ""] {
        let wrong = url(user).replace("//@", "//");
        let error = audit(&wrong, &options()).await.expect_err("unauthorized");
        assert!(matches!(error, AuditError::Server(ServerError::Unauthorized { .. })), "{user}: {error}");
        assert!(!error.to_string().contains("wrong:") && !error.to_string().contains("secret-1"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unsuitable_servers_are_one_clear_error() {
    let redis = Redis::start().expect("starts");
    let text = |result: Result<_, AuditError>| {
        result.map(|_: ade_keytool::audit::Report| ()).expect_err("unsuitable").to_string()
    };
    let as_cluster = redis.url().replace("redis://", "redis+cluster://");
    assert!(text(audit(&as_cluster, &options()).await).contains("use redis:// for a standalone server"));
    let replicas = AuditOptions { role: Role::Replica, ..options() };
    assert!(text(audit(&redis.url(), &replicas).await).contains("leave out --replicas"));
    redis.kill().expect("killed");
    assert!(text(audit(&redis.url(), &options()).await).contains("cannot connect"));
    // A web server.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let _ = stream.read(&mut [0; 512]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
    });
    let error = text(audit(&format!("redis://{address}"), &options()).await);
    assert!(error.contains("does not reply like a Redis server"), "{error}");
    server.join().expect("no panic");
}
