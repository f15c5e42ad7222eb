//! What stands in Redis for claims and jobs: keys of the catalog, readable as the schema says, also written by others.

use std::collections::BTreeMap;
use std::time::Duration;

use ade_catalog::model::EntryKind;
use ade_store::coordination::{AgentUpdate, CapacityClaim, Job, Moved, WakeAt, WakeUp};
use ade_store::{Agents, Capacity, Jobs, Locks, RedisCoordination, redis};
use ade_testkit::wait::until;
use ade_testkit::{Redis, RedisCluster};

const SOON: Duration = Duration::from_secs(20);
const AT_ONCE: Duration = Duration::ZERO;

async fn open(url: &str) -> RedisCoordination {
    let options = redis::Options { max_clock_skew: Duration::ZERO, ..redis::Options::default() };
    RedisCoordination::open(&url.parse().expect("a URL"), options).await.expect("connects")
}

/// A command to a server itself, past the store.
fn past<T: ::redis::FromRedisValue>(server: &Redis, command: &[&str]) -> T {
    server.tell(command).expect("answers")
}

fn apply() -> Vec<String> {
    vec!["apply".to_owned()]
}

fn job(queue: &str, about: &str) -> Job {
    Job { queue: queue.to_owned(), about: about.to_owned() }
}

fn one() -> Vec<WakeUp> {
    vec![WakeUp { queue: "apply".to_owned(), about: "one".to_owned(), when: WakeAt::Now }]
}

/// Claims and jobs of every kind.
async fn leave_traces(store: &RedisCoordination) {
    let update = AgentUpdate { max_tasks: Some(1), ..AgentUpdate::default() };
    store.put("agent-123".to_owned(), update, true).await.expect("answers").expect("registered");
    let later = store.now().plus_ms(60_000);
    for (task, claimed) in [("one", CapacityClaim::Yes), ("two", CapacityClaim::Full)] {
        assert_eq!(store.claim("agent-123".to_owned(), task.to_owned(), later).await, Ok(claimed));
    }
    for queue in ["apply", "lock_cleanup"] {
        let call = |when| WakeUp { queue: queue.to_owned(), about: "ade:lock:task:123".to_owned(), when };
        store.call(vec![call(WakeAt::Now), call(WakeAt::At(later))]).await.expect("answers");
    }
    assert!(store.lock_job("job-1".to_owned(), "worker-1".to_owned(), 30_000).await.expect("answers"));
}

/// Entries of the catalog by what was found of them: all are as it says.
fn found(servers: &[&Redis]) -> BTreeMap<String, Vec<String>> {
    let catalog = ade_keyspace::catalogs().iter().find(|catalog| catalog.name == "ade").expect("ours");
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for server in servers {
        for key in past::<Vec<String>>(server, &["KEYS", "*"]) {
            let is = catalog.find(&key).expect("a key of the catalog");
            assert!(is.is_canonical(), "{key}");
            let EntryKind::Key(shape) = &is.entry.kind else { unreachable!("{key} is not a key") };
            assert_eq!(past::<String>(server, &["TYPE", &key]), shape.value_type.as_str(), "{key}");
            found.entry(is.entry.name.clone()).or_default().push(key);
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_and_jobs_stand_there_as_the_schema_says() {
    let server = Redis::start().expect("starts");
    let store = open(&server.url()).await;
    leave_traces(&store).await;
    let keys = found(&[&server]);
    for (entry, key) in [
        ("lock.agent_capacity", "ade:lock:agent:agent-123:capacity"),
        ("job.queue", "ade:job:queue:apply"),
        ("job.queue", "ade:job:queue:lock_cleanup"),
        ("job.scheduled", "ade:job:scheduled"),
        ("job.lock", "ade:job:lock:job-1"),
    ] {
        assert!(keys.get(entry).is_some_and(|keys| keys.iter().any(|found| found == key)), "{key}: {keys:?}");
    }
    let capacity: BTreeMap<String, String> = past(&server, &["HGETALL", "ade:lock:agent:agent-123:capacity"]);
    let field = |name: &str| capacity.get(name).map(String::as_str);
    assert_eq!((field("max_tasks"), field("active_tasks")), (Some("1"), Some("1")));
    assert_eq!((field("queued_tasks"), field("status")), (Some("1"), Some("active")));
    for name in ["t:one", "q:two"] {
        let ends: u64 = field(name).expect("there").parse().expect("milliseconds");
        assert!(ends > store.now().micros() / 1000, "{name}");
    }
    let calls: Vec<String> = past(&server, &["LRANGE", "ade:job:queue:lock_cleanup", "0", "-1"]);
    assert_eq!(calls, [r#"{"type":"lock_cleanup","target":"ade:lock:task:123"}"#]);
    let scheduled: Vec<(String, f64)> =
        past(&server, &["ZRANGE", "ade:job:scheduled", "0", "-1", "WITHSCORES"]);
    assert_eq!(scheduled.len(), 2);
    let now = store.now().micros() as f64 / 1e6;
    for (call, due) in scheduled {
        assert!(call.ends_with(r#""target":"ade:lock:task:123"}"#), "{call}");
        assert!((now..now + 61.0).contains(&due), "{due} is no Unix seconds, now {now}");
    }
    assert_eq!(past::<String>(&server, &["GET", "ade:job:lock:job-1"]), "worker-1");
    assert!((1..=30_000).contains(&past::<i64>(&server, &["PTTL", "ade:job:lock:job-1"])));
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_cluster_everything_that_is_waited_for_is_in_one_slot() {
    let cluster = RedisCluster::start().expect("starts");
    let store = open(&cluster.url()).await;
    leave_traces(&store).await;
    let keys = found(&cluster.nodes.iter().take(3).collect::<Vec<_>>());
    let of = |entry: &str| keys.get(entry).cloned().unwrap_or_default();
    assert_eq!(of("job.scheduled"), ["ade:job:scheduled:{job:queue}"]);
    assert_eq!(of("job.queue").len(), 2, "{keys:?}");
    assert!(of("job.queue").iter().all(|key| key.starts_with("ade:{job:queue}:")), "{keys:?}");
    assert_eq!((of("job.lock").len(), of("lock.agent_capacity").len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_count_of_tasks_is_right_again_when_the_agent_is_heard_of() {
    let server = Redis::start().expect("starts");
    let store = open(&server.url()).await;
    let ends = store.now().plus_ms(200);
    assert_eq!(store.claim("ann".to_owned(), "one".to_owned(), ends).await, Ok(CapacityClaim::Yes));
    let counted = || past::<String>(&server, &["HGET", "ade:lock:agent:ann:capacity", "active_tasks"]);
    assert_eq!(counted(), "1");
    until("the claim ends", SOON, async || {
        let view = store.agent("ann".to_owned()).await.expect("answers").expect("known");
        if view.active_tasks == 0 { Ok(()) } else { Err(format!("{view:?}")) }
    })
    .await
    .expect("ends");
    assert!(store.heard("ann".to_owned()).await.expect("answers"));
    assert_eq!(counted(), "0");
    let left: Vec<String> = past(&server, &["HKEYS", "ade:lock:agent:ann:capacity"]);
    assert!(!left.iter().any(|field| field.starts_with("t:")), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn others_may_call_as_the_schema_says() {
    let server = Redis::start().expect("starts");
    let store = open(&server.url()).await;
    for text in ["no json", r#"{"type":"apply","target":"t","more":1}"#, r#"{"type":"apply"}"#] {
        let _: i64 = past(&server, &["LPUSH", "ade:job:queue:apply", text]);
    }
    for about in ["no json", "t", r#"{"type":"apply"}"#] {
        assert_eq!(store.woken(apply(), SOON).await, Ok(Some(job("apply", about))));
    }
    for member in
        [r#"{"type":"lock_cleanup","target":"x"}"#, r#"{"type":"juggle"}"#, "[]", "7", r#"{"type":{}}"#, "{"]
    {
        let _: i64 = past(&server, &["ZADD", "ade:job:scheduled", "1710776400", member]);
    }
    assert_eq!(store.wake_scheduled().await, Ok(Moved { calls: 1, next_in: None }));
    assert_eq!(past::<i64>(&server, &["ZCARD", "ade:job:scheduled"]), 0, "what belongs nowhere is dropped");
    assert_eq!(store.woken(vec!["lock_cleanup".to_owned()], SOON).await, Ok(Some(job("lock_cleanup", "x"))));
}

fn connections(server: &Redis) -> usize {
    past::<String>(server, &["CLIENT", "LIST", "TYPE", "normal"]).lines().count()
}

fn blocked(server: &Redis) -> usize {
    let clients: String = past(server, &["INFO", "clients"]);
    let blocked = clients.lines().find_map(|line| line.strip_prefix("blocked_clients:"));
    blocked.expect("it says so").trim().parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_leaves_no_connections_behind() {
    let server = Redis::start().expect("starts");
    let store = open(&server.url()).await;
    let before = connections(&server);
    for _ in 0..20 {
        assert_eq!(store.woken(apply(), AT_ONCE).await, Ok(None));
    }
    assert_eq!(connections(&server), before + 1, "one for all who wait one after the other");
    let waiting: Vec<_> = (0..10)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.woken(apply(), SOON).await })
        })
        .collect();
    let are = |wanted: usize, seen: usize| if seen == wanted { Ok(()) } else { Err(seen.to_string()) };
    until("all wait", SOON, async || are(10, blocked(&server))).await.expect("wait");
    assert_eq!(store.agent("ann".to_owned()).await, Ok(None), "others are answered meanwhile");
    for one in &waiting {
        one.abort();
    }
    until("nobody waits", SOON, async || are(0, blocked(&server))).await.expect("gone");
    until("connections are closed", SOON, async || are(before, connections(&server))).await.expect("closed");
    store.call(one()).await.expect("answers");
    assert_eq!(
        store.woken(apply(), SOON).await,
        Ok(Some(job("apply", "one"))),
        "the call was not taken along"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_is_told_when_redis_goes_away_and_waits_again_when_it_is_back() {
    let server = Redis::start().expect("starts");
    let store = open(&server.url()).await;
    let waiting = {
        let store = store.clone();
        tokio::spawn(async move { store.woken(apply(), Duration::from_secs(60)).await })
    };
    until("it waits", SOON, async || if blocked(&server) == 1 { Ok(()) } else { Err(String::new()) })
        .await
        .expect("waits");
    server.kill_and_restart().expect("restarts");
    let told = tokio::time::timeout(SOON, waiting).await.expect("told").expect("no panic");
    assert!(told.is_err(), "{told:?}");
    until("calls are heard again", SOON, async || {
        store.call(one()).await.map_err(|error| error.to_string())?;
        let heard = store.woken(apply(), Duration::from_secs(1)).await.map_err(|error| error.to_string())?;
        heard.ok_or_else(|| "nothing".to_owned())
    })
    .await
    .expect("heals");
}
