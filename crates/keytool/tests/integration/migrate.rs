//! Migrations of the former schema of ADE: complete, repeatable, and without loss when interrupted.

use std::collections::BTreeMap;

use ade_catalog::Catalog;
use ade_keytool::migrate::{MigrateOptions, MigrationReport, StatusMap, migrate};
use ade_keytool::scan::Pace;
use ade_testkit::{Redis, RedisCluster, effort};

use crate::support::{command, owner_of};

fn catalog() -> Catalog {
    Catalog::parse("ade.toml", include_str!("../../../keyspace/catalogs/ade.toml")).expect("valid")
}

fn options(apply: bool) -> MigrateOptions {
    MigrateOptions { apply, pace: Pace::FULL, statuses: StatusMap::default() }
}

async fn run(url: &str, options: &MigrateOptions) -> MigrationReport {
    migrate(url, &catalog(), options, &|_| ()).await.expect("migrated")
}

/// The former schema: locks, their indexes and queues, and approval requests with numbers.
fn former_keys(number: u64) -> Vec<Vec<String>> {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let mut commands = vec![
        words("ZADD lock:registry 1700000000 lock:task:1 1700000001 lock:resource:db:2 5 other"),
        words("HSET lock:agent:bot:capacity max_tasks 3 status active"),
        words("SET unrelated:1 x"),
        words("HSET ade:approval:request:odd status 9 task_id t"),
    ];
    for id in 0..number {
        commands.push(words(&format!("HSET lock:task:{id} holder_agent_id bot purpose work")));
        commands.push(words(&format!("PEXPIRE lock:task:{id} {}", 1_000_000 + id)));
        commands
            .push(words(&format!("HSET lock:resource:db:{id} mode shared holders ann,ben acquired_at now")));
        commands.push(words(&format!("PEXPIRE lock:resource:db:{id} {}", 2_000_000 + id)));
        commands.push(words(&format!("SADD lock:index:agent:a{id} lock:task:{id} lock:resource:db:{id}")));
        commands.push(words(&format!("HSET ade:approval:request:r{id} status {} task_id t{id}", id % 4)));
        commands.push(words(&format!("PEXPIRE ade:approval:request:r{id} {}", 3_000_000 + id)));
    }
    commands
}

fn run_all(nodes: &[Redis], commands: &[Vec<String>]) {
    let mut connections: Vec<_> = nodes.iter().map(|node| node.connect().expect("connects")).collect();
    for words in commands {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let owner = if connections.len() == 1 { 0 } else { owner_of(words[1]) };
        let _: redis::Value = command(&words).query(&mut connections[owner]).expect("written");
    }
}

/// Content and TTL of every key.
fn snapshot(nodes: &[Redis]) -> BTreeMap<String, (Vec<String>, i64)> {
    let mut all = BTreeMap::new();
    for node in nodes.iter().take(3) {
        let mut connection = node.connect().expect("connects");
        let keys: Vec<String> = command(&["KEYS", "*"]).query(&mut connection).expect("keys");
        for key in keys {
            let kind: String = command(&["TYPE", &key]).query(&mut connection).expect("a type");
            let words: &[&str] = match kind.as_str() {
                "hash" => &["HGETALL", &key],
                "set" => &["SMEMBERS", &key],
                "zset" => &["ZRANGE", &key, "0", "-1", "WITHSCORES"],
                _ => &["GET", &key],
            };
            let mut content: Vec<String> =
                match command(words).query::<redis::Value>(&mut connection).expect("content") {
                    redis::Value::BulkString(text) => vec![String::from_utf8(text).expect("text")],
                    other => redis::from_redis_value(other).expect("items"),
                };
            if kind != "zset" && kind != "hash" {
                content.sort();
            }
            let expires: i64 = command(&["PEXPIRETIME", &key]).query(&mut connection).expect("a time");
            all.insert(key, (content, expires));
        }
    }
    all
}

/// What the former keys must have become.
fn check_migrated(
    before: &BTreeMap<String, (Vec<String>, i64)>,
    after: &BTreeMap<String, (Vec<String>, i64)>,
    is_cluster: bool,
) {
    assert_eq!(before.len(), after.len(), "nothing is lost or added");
    let present = |key: &str| {
        let parts: Vec<&str> = key.split(':').collect();
        match (parts.as_slice(), is_cluster) {
            (["lock", "task", id], true) => format!("ade:lock:task:{{task:{id}}}"),
            (["lock", "resource", of, id], true) => format!("ade:lock:resource:{{resource:{of}:{id}}}"),
            (["lock", "index", "agent", id], true) => format!("ade:lock:index:agent:{{agent:{id}}}"),
            (["lock", "agent", id, "capacity"], true) => format!("ade:lock:agent:{{agent:{id}}}:capacity"),
            (["lock", ..], _) => format!("ade:{key}"),
            _ => key.to_owned(),
        }
    };
    for (key, (content, expires)) in before {
        let name = present(key);
        let (migrated, expires_now) = after.get(&name).unwrap_or_else(|| panic!("{key} is lost: no {name}"));
        assert_eq!(expires, expires_now, "{name} keeps its TTL");
        let pairs: Vec<String> = content
            .iter()
            .enumerate()
            .map(|(position, text)| {
                let field =
                    position.checked_sub(1).and_then(|before| content.get(before)).map(String::as_str);
                match (field, text.as_str()) {
                    (Some("status"), "0") => "PENDING".to_owned(),
                    (Some("status"), "1") => "APPROVED".to_owned(),
                    (Some("status"), "2") => "REJECTED".to_owned(),
                    (Some("status"), "3") => "DELEGATED".to_owned(),
                    (Some("holders"), "ann,ben") => {
                        r#"[{"acquired_at":"now","agent_id":"ann"},{"acquired_at":"now","agent_id":"ben"}]"#
                            .to_owned()
                    }
                    (_, text) if text.starts_with("lock:") => present(text),
                    (_, text) => text.to_owned(),
                }
            })
            .collect();
        // The order of fields in JSON does not matter.
        let plain = |text: &String| {
            let json =
                serde_json::from_str::<serde_json::Value>(text).ok().filter(serde_json::Value::is_array);
            json.map_or_else(|| text.clone(), |json| json.to_string())
        };
        let [mut pairs, mut migrated] =
            [&pairs, migrated].map(|texts| texts.iter().map(plain).collect::<Vec<_>>());
        pairs.sort();
        migrated.sort();
        assert_eq!(pairs, migrated, "{name}");
    }
}

async fn check(nodes: &[Redis], url: &str, is_cluster: bool) {
    run_all(nodes, &former_keys(effort::rounds(60, 5000)));
    let before = snapshot(nodes);
    let plan = run(url, &options(false)).await;
    assert_eq!(snapshot(nodes), before, "a dry run writes nothing");
    assert_eq!(plan.problems.len(), 1);
    assert!(plan.problems[0].reason.contains("--status-map 9="), "{plan:?}");
    let renames =
        plan.steps.iter().find(|step| step.step == "rename" && step.entry == "lock.task").expect("planned");
    assert!(
        renames.examples[0].starts_with("lock:task:") && renames.examples[0].contains(" → ade:lock:task:")
    );
    let made = run(url, &options(true)).await;
    let counts = |report: &MigrationReport| {
        report.steps.iter().map(|it| (it.step, it.entry.clone(), it.count)).collect::<Vec<_>>()
    };
    assert_eq!(counts(&made), counts(&plan), "the dry run told exactly what changes");
    check_migrated(&before, &snapshot(nodes), is_cluster);
    let again = run(url, &options(true)).await;
    assert!(again.steps.is_empty(), "{again:?}");
    let mut statuses = StatusMap::default();
    statuses.extend("9=CANCELLED").expect("valid");
    let last = run(url, &MigrateOptions { statuses, ..options(true) }).await;
    assert_eq!((last.steps.len(), last.problem_count), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_a_standalone_server_are_migrated() {
    let nodes = [Redis::start().expect("starts")];
    check(&nodes, &nodes[0].url(), false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_a_cluster_move_to_their_slots() {
    let cluster = RedisCluster::start().expect("starts");
    check(&cluster.nodes, &cluster.url(), true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn existing_keys_are_never_overwritten() {
    let nodes = [Redis::start().expect("starts")];
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    run_all(
        &nodes,
        &[
            words("HSET lock:task:1 purpose old"),
            words("HSET ade:lock:task:1 purpose new"),
            words("HSET lock:task:2 purpose same"),
            words("HSET ade:lock:task:2 purpose same"),
            words("SET lock:task:3 text"),
        ],
    );
    let report = run(&nodes[0].url(), &options(true)).await;
    let problems: Vec<&str> = report.problems.iter().map(|problem| problem.key.as_str()).collect();
    assert!(
        problems.contains(&"lock:task:1") && problems.contains(&"lock:task:3") && problems.len() == 2,
        "{report:?}"
    );
    let keys: Vec<String> = snapshot(&nodes).into_keys().collect();
    assert_eq!(keys, ["ade:lock:task:1", "ade:lock:task:2", "lock:task:1", "lock:task:3"]);
}
