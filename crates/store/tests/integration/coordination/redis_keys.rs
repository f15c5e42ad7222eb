//! What the Redis backend stores for capacity claims and jobs: keys as in the catalog, readable and writable by
//! others.

use std::collections::BTreeMap;
use std::time::Duration;

use ade_catalog::model::EntryKind;
use ade_store::coordination::{AgentUpdate, CapacityClaim, MovedWakeUps, ReceivedWakeUp, WakeAt, WakeUp};
use ade_store::{Agents, Capacity, Locks, RedisCoordination, WakeUpQueue, redis};
use ade_testkit::wait::until;
use ade_testkit::{Redis, RedisCluster};

const TEST_TIMEOUT: Duration = Duration::from_secs(20);
const NO_WAIT: Duration = Duration::ZERO;

async fn open(url: &str) -> RedisCoordination {
    let options = redis::RedisOptions { max_clock_skew: Duration::ZERO, ..redis::RedisOptions::default() };
    RedisCoordination::open(&url.parse().expect("valid URL"), options).await.expect("connected")
}

/// Sends a command directly to the server, bypassing the store.
fn raw_command<T: ::redis::FromRedisValue>(server: &Redis, command: &[&str]) -> T {
    server.query(command).expect("reply")
}

fn apply_queue() -> Vec<String> {
    vec!["apply".to_owned()]
}

fn job(queue: &str, about: &str) -> ReceivedWakeUp {
    ReceivedWakeUp { queue: queue.to_owned(), subject: about.to_owned() }
}

fn apply_wake_up() -> Vec<WakeUp> {
    vec![WakeUp { queue: "apply".to_owned(), subject: "one".to_owned(), when: WakeAt::Now }]
}

/// Writes claims, wake-ups and job locks of every kind.
async fn write_samples(store: &RedisCoordination) {
    let update = AgentUpdate { max_tasks: Some(1), ..AgentUpdate::default() };
    store.put_agent("agent-123".to_owned(), update, true).await.expect("reply").expect("registered");
    let later = store.now().plus_ms(60_000);
    for (task, claimed) in [("one", CapacityClaim::Claimed), ("two", CapacityClaim::Full)] {
        assert_eq!(store.claim_capacity("agent-123".to_owned(), task.to_owned(), later).await, Ok(claimed));
    }
    for queue in ["apply", "lock_cleanup"] {
        let wake_up =
            |when| WakeUp { queue: queue.to_owned(), subject: "ade:lock:task:123".to_owned(), when };
        store.send_wake_ups(vec![wake_up(WakeAt::Now), wake_up(WakeAt::At(later))]).await.expect("reply");
    }
    assert!(store.lock_job("job-1".to_owned(), "worker-1".to_owned(), 30_000).await.expect("reply"));
}

/// The stored keys by catalog entry. Panics if a key or its type is not as the catalog says.
fn keys_by_entry(servers: &[&Redis]) -> BTreeMap<String, Vec<String>> {
    let catalog = ade_keyspace::catalogs().iter().find(|catalog| catalog.name == "ade").expect("ours");
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for server in servers {
        for key in raw_command::<Vec<String>>(server, &["KEYS", "*"]) {
            let matched = catalog.find(&key).expect("a key of the catalog");
            assert!(matched.is_canonical(), "{key}");
            let EntryKind::Key(shape) = &matched.entry.kind else { unreachable!("{key} is not a key") };
            assert_eq!(raw_command::<String>(server, &["TYPE", &key]), shape.value_type.as_str(), "{key}");
            found.entry(matched.entry.name.clone()).or_default().push(key);
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_claims_and_jobs_as_in_the_schema() {
    let server = Redis::start().expect("server starts");
    let store = open(&server.url()).await;
    write_samples(&store).await;
    let keys = keys_by_entry(&[&server]);
    for (entry, key) in [
        ("lock.agent_capacity", "ade:lock:agent:agent-123:capacity"),
        ("job.queue", "ade:job:queue:apply"),
        ("job.queue", "ade:job:queue:lock_cleanup"),
        ("job.scheduled", "ade:job:scheduled"),
        ("job.lock", "ade:job:lock:job-1"),
    ] {
        assert!(keys.get(entry).is_some_and(|keys| keys.iter().any(|found| found == key)), "{key}: {keys:?}");
    }
    let capacity: BTreeMap<String, String> =
        raw_command(&server, &["HGETALL", "ade:lock:agent:agent-123:capacity"]);
    let field = |name: &str| capacity.get(name).map(String::as_str);
    assert_eq!((field("max_tasks"), field("active_tasks")), (Some("1"), Some("1")));
    assert_eq!((field("queued_tasks"), field("status")), (Some("1"), Some("active")));
    for name in ["t:one", "q:two"] {
        let expires: u64 = field(name).expect("there").parse().expect("milliseconds");
        assert!(expires > store.now().micros() / 1000, "{name}");
    }
    let wake_ups: Vec<String> = raw_command(&server, &["LRANGE", "ade:job:queue:lock_cleanup", "0", "-1"]);
    assert_eq!(wake_ups, [r#"{"type":"lock_cleanup","target":"ade:lock:task:123"}"#]);
    let scheduled: Vec<(String, f64)> =
        raw_command(&server, &["ZRANGE", "ade:job:scheduled", "0", "-1", "WITHSCORES"]);
    assert_eq!(scheduled.len(), 2);
    let now = store.now().micros() as f64 / 1e6;
    for (wake_up, due) in scheduled {
        assert!(wake_up.ends_with(r#""target":"ade:lock:task:123"}"#), "{wake_up}");
        assert!((now..now + 61.0).contains(&due), "{due} is not in Unix seconds, now {now}");
    }
    assert_eq!(raw_command::<String>(&server, &["GET", "ade:job:lock:job-1"]), "worker-1");
    assert!((1..=30_000).contains(&raw_command::<i64>(&server, &["PTTL", "ade:job:lock:job-1"])));
}

#[tokio::test(flavor = "multi_thread")]
async fn keeps_queues_and_schedule_in_one_cluster_slot() {
    let cluster = RedisCluster::start().expect("server starts");
    let store = open(&cluster.url()).await;
    write_samples(&store).await;
    let keys = keys_by_entry(&cluster.nodes.iter().take(3).collect::<Vec<_>>());
    let keys_of = |entry: &str| keys.get(entry).cloned().unwrap_or_default();
    assert_eq!(keys_of("job.scheduled"), ["ade:job:scheduled:{job:queue}"]);
    assert_eq!(keys_of("job.queue").len(), 2, "{keys:?}");
    assert!(keys_of("job.queue").iter().all(|key| key.starts_with("ade:{job:queue}:")), "{keys:?}");
    assert_eq!((keys_of("job.lock").len(), keys_of("lock.agent_capacity").len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_refreshes_task_counts() {
    let server = Redis::start().expect("server starts");
    let store = open(&server.url()).await;
    let expires = store.now().plus_ms(200);
    assert_eq!(
        store.claim_capacity("ann".to_owned(), "one".to_owned(), expires).await,
        Ok(CapacityClaim::Claimed)
    );
    let active_tasks =
        || raw_command::<String>(&server, &["HGET", "ade:lock:agent:ann:capacity", "active_tasks"]);
    assert_eq!(active_tasks(), "1");
    until("the claim ends", TEST_TIMEOUT, async || {
        let view = store.agent("ann".to_owned()).await.expect("reply").expect("disconnect noticed");
        if view.active_tasks == 0 { Ok(()) } else { Err(format!("{view:?}")) }
    })
    .await
    .expect("expired");
    assert!(store.record_heartbeat("ann".to_owned()).await.expect("reply"));
    assert_eq!(active_tasks(), "0");
    let fields: Vec<String> = raw_command(&server, &["HKEYS", "ade:lock:agent:ann:capacity"]);
    assert!(!fields.iter().any(|field| field.starts_with("t:")), "{fields:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn accepts_wake_ups_of_other_writers() {
    let server = Redis::start().expect("server starts");
    let store = open(&server.url()).await;
    for text in ["no json", r#"{"type":"apply","target":"t","more":1}"#, r#"{"type":"apply"}"#] {
        let _: i64 = raw_command(&server, &["LPUSH", "ade:job:queue:apply", text]);
    }
    for about in ["no json", "t", r#"{"type":"apply"}"#] {
        assert_eq!(store.receive_wake_up(apply_queue(), TEST_TIMEOUT).await, Ok(Some(job("apply", about))));
    }
    for member in
        [r#"{"type":"lock_cleanup","target":"x"}"#, r#"{"type":"juggle"}"#, "[]", "7", r#"{"type":{}}"#, "{"]
    {
        let _: i64 = raw_command(&server, &["ZADD", "ade:job:scheduled", "1710776400", member]);
    }
    assert_eq!(store.move_due_wake_ups().await, Ok(MovedWakeUps { count: 1, next_in: None }));
    assert_eq!(
        raw_command::<i64>(&server, &["ZCARD", "ade:job:scheduled"]),
        0,
        "wake-ups of unknown queues are dropped"
    );
    assert_eq!(
        store.receive_wake_up(vec!["lock_cleanup".to_owned()], TEST_TIMEOUT).await,
        Ok(Some(job("lock_cleanup", "x")))
    );
}

fn connections(server: &Redis) -> usize {
    raw_command::<String>(server, &["CLIENT", "LIST", "TYPE", "normal"]).lines().count()
}

fn blocked(server: &Redis) -> usize {
    let clients: String = raw_command(server, &["INFO", "clients"]);
    let blocked = clients.lines().find_map(|line| line.strip_prefix("blocked_clients:"));
    blocked.expect("blocked_clients in INFO").trim().parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn closes_connections_of_aborted_waits() {
    let server = Redis::start().expect("server starts");
    let store = open(&server.url()).await;
    let before = connections(&server);
    for _ in 0..20 {
        assert_eq!(store.receive_wake_up(apply_queue(), NO_WAIT).await, Ok(None));
    }
    assert_eq!(connections(&server), before + 1, "sequential waits share one connection");
    let waiting: Vec<_> = (0..10)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.receive_wake_up(apply_queue(), TEST_TIMEOUT).await })
        })
        .collect();
    let expect_count = |expected: usize, actual: usize| {
        if actual == expected { Ok(()) } else { Err(actual.to_string()) }
    };
    until("all wait", TEST_TIMEOUT, async || expect_count(10, blocked(&server))).await.expect("wait");
    assert_eq!(store.agent("ann".to_owned()).await, Ok(None), "other calls are not blocked");
    for task in &waiting {
        task.abort();
    }
    until("nobody waits", TEST_TIMEOUT, async || expect_count(0, blocked(&server))).await.expect("aborted");
    until("connections are closed", TEST_TIMEOUT, async || expect_count(before, connections(&server)))
        .await
        .expect("closed");
    store.send_wake_ups(apply_wake_up()).await.expect("reply");
    assert_eq!(
        store.receive_wake_up(apply_queue(), TEST_TIMEOUT).await,
        Ok(Some(job("apply", "one"))),
        "an aborted wait must not consume the wake-up"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn fails_waits_on_restart_and_recovers() {
    let server = Redis::start().expect("server starts");
    let store = open(&server.url()).await;
    let waiting = {
        let store = store.clone();
        tokio::spawn(async move { store.receive_wake_up(apply_queue(), Duration::from_secs(60)).await })
    };
    until("it waits", TEST_TIMEOUT, async || if blocked(&server) == 1 { Ok(()) } else { Err(String::new()) })
        .await
        .expect("waits");
    server.kill_and_restart().expect("restarted");
    let result = tokio::time::timeout(TEST_TIMEOUT, waiting).await.expect("returned").expect("no panic");
    assert!(result.is_err(), "{result:?}");
    until("wake-ups are received again", TEST_TIMEOUT, async || {
        store.send_wake_ups(apply_wake_up()).await.map_err(|error| error.to_string())?;
        let received = store
            .receive_wake_up(apply_queue(), Duration::from_secs(1))
            .await
            .map_err(|error| error.to_string())?;
        received.ok_or_else(|| "nothing".to_owned())
    })
    .await
    .expect("recovered");
}
