//! Edge cases of the Redis backend: lost index entries, missing replicas, the cost of deadlock searches, and the
//! expiry of counters.

use std::time::Duration;

use ade_domain::lock::{
    AcquireStatus, Acquisition, FencingToken, Holder, LockCommand, LockMode, LockName, LockOutcome,
    LockRefusal, LockReply, RequestKey, WaitOptions,
};
use ade_store::coordination::{Counting, LockEventKind, LockFilter};
use ade_store::{Locks, RateLimits, RedisCoordination, redis};
use ade_testkit::{Redis, wait};
use futures_util::FutureExt;
use tokio::time::timeout;

async fn open(server: &Redis, min_replica_acks: u32) -> RedisCoordination {
    let options = redis::RedisOptions {
        min_replica_acks,
        max_clock_skew: Duration::ZERO,
        ..redis::RedisOptions::default()
    };
    RedisCoordination::open(&server.url().parse().expect("valid URL"), options).await.expect("connected")
}

fn holder(name: &str) -> Holder {
    Holder::new(name, None).expect("a name")
}

fn lock(name: &str) -> LockName {
    format!("resource:edge:{name}").parse().expect("a name")
}

fn acquire(agent: &str) -> Acquisition {
    Acquisition {
        holder: holder(agent),
        request: RequestKey::derive(&holder(agent), "first"),
        leave_tombstone: false,
        mode: LockMode::Exclusive,
        ttl_ms: 30_000,
        claimed: true,
        wait: Some(WaitOptions { timeout_ms: 30_000, served_by: Some("server".into()) }),
        purpose: "".into(),
        priority: 0,
    }
}

/// The same with another request.
fn second_acquire(agent: &str) -> Acquisition {
    Acquisition { request: RequestKey::derive(&holder(agent), "second"), ..acquire(agent) }
}

async fn send(store: &RedisCoordination, name: &str, command: LockCommand) -> LockReply {
    let replies = store.execute_commands(vec![(lock(name), command)]).await.expect("reply");
    replies.into_iter().next().expect("one reply")
}

async fn hold(store: &RedisCoordination, name: &str, agent: &str) -> FencingToken {
    match send(store, name, LockCommand::Acquire(acquire(agent))).await.outcome {
        LockOutcome::Status(AcquireStatus::Held(grant)) => grant.token,
        other => unreachable!("{agent} does not hold {name}: {other:?}"),
    }
}

async fn send_acquire(store: &RedisCoordination, name: &str, acquire: Acquisition) -> LockReply {
    send(store, name, LockCommand::Acquire(acquire)).await
}

/// Sends a command directly to the server, bypassing the store.
fn raw_command<T: ::redis::FromRedisValue>(server: &Redis, command: &[&str]) -> T {
    let mut connection = server.connect().expect("connected");
    let (name, args) = command.split_first().expect("a command");
    ::redis::cmd(name).arg(args).query(&mut connection).expect("reply")
}

#[tokio::test(flavor = "multi_thread")]
async fn finds_deadlock_despite_lost_index_entries() {
    let server = Redis::start().expect("server starts");
    let store = open(&server, 0).await;
    for (name, agent) in [("a", "ann"), ("b", "ben"), ("c", "cem")] {
        hold(&store, name, agent).await;
    }
    send_acquire(&store, "c", second_acquire("ben")).await;
    send_acquire(&store, "a", second_acquire("cem")).await;
    // Only the index of the holder that closes the cycle must be intact.
    for agent in ["ben", "cem"] {
        let _: i64 = raw_command(&server, &["DEL", &format!("ade:lock:index:agent:{agent}")]);
    }
    let reply = send_acquire(&store, "b", second_acquire("ann")).await;
    assert_eq!(reply.deadlocks.len(), 1, "{reply:?}");
    assert_eq!(reply.deadlocks.iter().map(|found| found.cycle.len()).sum::<usize>(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn searches_long_queues_with_few_commands() {
    let server = Redis::start().expect("server starts");
    let store = open(&server, 0).await;
    hold(&store, "hot", "keeper").await;
    for number in 0..200 {
        send_acquire(&store, "hot", acquire(&format!("waiter-{number:03}"))).await;
    }
    hold(&store, "own", "ann").await;
    for agent in ["ben", "cem", "dee"] {
        send_acquire(&store, "own", acquire(agent)).await;
    }
    let _: () = raw_command(&server, &["CONFIG", "RESETSTAT"]);
    let reply = send_acquire(&store, "hot", second_acquire("ann")).await;
    assert!(
        matches!(reply.outcome, LockOutcome::Status(AcquireStatus::Waiting { position: 201, .. })),
        "{reply:?}"
    );
    let stats: String = raw_command(&server, &["INFO", "commandstats"]);
    let calls = |command: &str| {
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.and_then(|line| line.split(',').next())
            .map_or(0, |calls| calls.parse::<u32>().expect("a number"))
    };
    // The awaited locks of each of the 200 agents are read once, with few calls of the library.
    assert!(calls("sscan") < 250, "{}", calls("sscan"));
    assert!(calls("fcall") < 20, "{}", calls("fcall"));
}

/// Waits until another task or server has written what is observed.
async fn eventually(what: &str, observe: impl AsyncFn() -> bool) {
    let observe = async || if observe().await { Ok(()) } else { Err("not yet".to_owned()) };
    wait::until(what, Duration::from_secs(20), observe).await.expect("in time");
}

async fn listed(store: &RedisCoordination) -> Vec<LockName> {
    let views = store.list_locks(LockFilter::default(), None, 10).await.expect("reply");
    views.into_iter().map(|view| view.lock).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn other_servers_see_locks_soon() {
    let server = Redis::start().expect("server starts");
    let (store, other) = (open(&server, 0).await, open(&server, 0).await);
    let token = hold(&store, "a", "ann").await;
    send_acquire(&store, "a", acquire("ben")).await;
    eventually("the lock is listed", async || listed(&other).await == [lock("a")]).await;
    eventually("the wait is listed", async || other.waits(10).await.expect("reply").len() == 1).await;
    send(&store, "a", LockCommand::Release { holder: holder("ann"), token, server: None }).await;
    eventually("the wait has left", async || other.waits(10).await.expect("reply").is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repairs_indexes_by_name() {
    const USED: &str = "ade:lock:index:name";
    const AWAITED: &str = "ade:lock:index:awaited";
    let server = Redis::start().expect("server starts");
    let store = open(&server, 0).await;
    let token = hold(&store, "a", "ann").await;
    assert_eq!(listed(&store).await, [lock("a")]);
    // Entries of locks that nobody uses, as a killed server leaves them.
    let stale = [lock("0"), lock("z")];
    for (index, name) in [(USED, &stale[0]), (USED, &stale[1]), (AWAITED, &stale[0])] {
        let _: i64 = raw_command(&server, &["ZADD", index, "0", name.as_str()]);
    }
    assert_eq!(listed(&store).await, [lock("a")]);
    assert!(store.waits(10).await.expect("reply").is_empty());
    let members = |index| raw_command::<Vec<String>>(&server, &["ZRANGE", index, "0", "-1"]);
    assert_eq!(members(USED), [lock("a").as_str()], "a reader removes what it meets");
    assert!(members(AWAITED).is_empty());
    // What nobody reads, and what is missing, is up to the sweep.
    for index in [USED, AWAITED] {
        let _: i64 = raw_command(&server, &["ZADD", index, "0", stale[1].as_str()]);
    }
    let _: i64 = raw_command(&server, &["ZREM", USED, lock("a").as_str()]);
    send(&store, "a", LockCommand::Extend { holder: holder("ann"), token, ttl_ms: 30_000 }).await;
    store.sweep().await.expect("sweeps");
    let is_repaired = || members(USED) == [lock("a").as_str()] && members(AWAITED).is_empty();
    eventually("the indexes are repaired", async || is_repaired()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_a_cancelled_request_have_their_consequences() {
    let server = Redis::start().expect("server starts");
    let store = open(&server, 0).await;
    let mut events = store.subscribe_events();
    let names = [lock("a"), lock("b")];
    let acquires = names.clone().map(|name| (name, LockCommand::Acquire(acquire("ann"))));
    let acquired = store.execute_while_successful(acquires.into()).now_or_never();
    assert!(acquired.is_none(), "cancelled while it is under way: {acquired:?}");
    for name in names {
        let event =
            timeout(Duration::from_secs(20), events.recv()).await.expect("in time").expect("an event");
        assert_eq!(event.lock, name);
        assert!(matches!(event.kind, LockEventKind::Acquired(..)), "{event:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_go_on_after_what_is_no_name() {
    let server = Redis::start().expect("server starts");
    let store = open(&server, 0).await;
    hold(&store, "a", "ann").await;
    send_acquire(&store, "a", acquire("ben")).await;
    assert_eq!(listed(&store).await, [lock("a")]);
    let mut connection = server.connect().expect("connected");
    for index in ["ade:lock:index:name", "ade:lock:index:awaited"] {
        let mut add = ::redis::cmd("ZADD");
        add.arg(index).arg(0).arg(b"resource:\xe9".as_slice());
        for number in 0..1_200 {
            add.arg(0).arg(format!("resource:a{number}"));
        }
        let _: i64 = add.query(&mut connection).expect("reply");
    }
    assert_eq!(listed(&store).await, [lock("a")]);
    assert_eq!(store.waits(10).await.expect("reply").len(), 1);
    assert_eq!(store.counts().await.expect("reply").waiting, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn cancels_grants_that_too_few_replicas_confirm() {
    let server = Redis::start().expect("server starts");
    let (lenient, strict) = (open(&server, 0).await, open(&server, 1).await);
    let unconfirmed =
        LockOutcome::Status(AcquireStatus::Refused(LockRefusal::Unreplicated { acks: 0, required_acks: 1 }));
    assert_eq!(send_acquire(&strict, "a", acquire("ann")).await.outcome, unconfirmed);
    assert!(lenient.lock_view(lock("a")).await.expect("reply").holders.is_empty());
    // The same for a promoted waiter: it is notified and does not queue again.
    let token = hold(&lenient, "a", "ben").await;
    send_acquire(&strict, "a", acquire("ann")).await;
    send(&lenient, "a", LockCommand::Release { holder: holder("ben"), token, server: None }).await;
    assert_eq!(send_acquire(&strict, "a", acquire("ann")).await.outcome, unconfirmed);
    let view = lenient.lock_view(lock("a")).await.expect("reply");
    assert!(view.holders.is_empty() && view.queue.is_empty(), "{view:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rate_limit_counters_expire_after_a_minute() {
    let server = Redis::start().expect("server starts");
    let store = open(&server, 0).await;
    let count = async || {
        store
            .count_request("tasks:create".to_owned(), "ann".to_owned(), 2, Counting::InBlocks)
            .await
            .expect("reply")
    };
    let mut connection = server.connect().expect("connected");
    let mut send = |name: &str, args: &[&str]| -> String {
        let key = "ade:ratelimit:tasks:create:ann";
        let value = ::redis::cmd(name).arg(key).arg(args).query(&mut connection).expect("reply");
        ::redis::from_redis_value::<String>(value).expect("text")
    };
    assert_eq!(count().await.remaining, 1);
    let stored = send("GET", &[]);
    let [current, previous, started_at] = stored.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{stored}")
    };
    assert_eq!((current, previous), ("1", "0"));
    let started_at: u64 = started_at.parse().expect("milliseconds");
    let ttl = |text: String| text.parse::<u64>().expect("milliseconds");
    assert!((1..=60_000).contains(&ttl(send("PTTL", &[]))));
    // A minute is too long for a test: the window is moved back instead. Half of the previous minute still counts.
    let moved = |current: u32, by_ms: u64| format!("{current} 0 {}", started_at - by_ms);
    send("SET", &[&moved(2, 90_000), "PX", "30000"]);
    let other = open(&server, 0).await;
    let count_elsewhere = async || {
        other
            .count_request("tasks:create".to_owned(), "ann".to_owned(), 2, Counting::InBlocks)
            .await
            .expect("reply")
    };
    assert!(count_elsewhere().await.allowed);
    assert!(ttl(send("PTTL", &[])) > 30_000, "a counted request renews the counter");
    let refused = count_elsewhere().await;
    assert!(!refused.allowed);
    let ms = refused.reset_at.ms_since(other.now());
    assert!((25_000..=30_001).contains(&ms), "{ms}: when the previous minute is over");
    // Refused on Redis, so not counted by this process either.
    assert!(send("GET", &[]).starts_with("1 2 "));
    send("UNLINK", &[]);
    assert!(count_elsewhere().await.allowed && !count_elsewhere().await.allowed);
}

/// Counts a request in blocks of 2.
async fn is_allowed(store: &RedisCoordination, caller: &str) -> bool {
    let count = store.count_request("tasks:read".to_owned(), caller.to_owned(), 100, Counting::InBlocks);
    count.await.expect("counted").allowed
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_share_a_limit_that_they_count_in_blocks() {
    let server = Redis::start().expect("server starts");
    let (one, two) = (open(&server, 0).await, open(&server, 0).await);
    assert!(is_allowed(&one, "ann").await, "one has another request left");
    let mut passed = 1;
    while is_allowed(&two, "ann").await {
        passed += 1;
    }
    assert_eq!(passed, 99, "what one has left is not available to two");
    assert!(is_allowed(&one, "ann").await && !is_allowed(&one, "ann").await);
    // What must be exact does not spend what was reserved.
    assert!(is_allowed(&one, "ben").await);
    let exact = one.count_request("tasks:read".to_owned(), "ben".to_owned(), 100, Counting::Exact);
    assert_eq!(exact.await.expect("counted").remaining, 97);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_request_leaves_its_block_to_others() {
    let server = Redis::start().expect("server starts");
    let store = open(&server, 0).await;
    assert!(is_allowed(&store, "ann").now_or_never().is_none(), "cancelled while Redis counts it");
    // Waits for the reservation of the first.
    assert!(is_allowed(&store, "ann").await);
    let counted: String = raw_command(&server, &["GET", "ade:ratelimit:tasks:read:ann"]);
    assert!(counted.starts_with("2 0 "), "{counted}: one block");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_returns_what_it_reserved() {
    let server = Redis::start().expect("server starts");
    let (one, two) = (open(&server, 0).await, open(&server, 0).await);
    for caller in ["ann", "ben"] {
        assert!(is_allowed(&one, caller).await && is_allowed(&two, caller).await);
    }
    one.return_reserved_requests().await.expect("returned");
    one.return_reserved_requests().await.expect("nothing is left to return");
    for caller in ["ann", "ben"] {
        let counted: String = raw_command(&server, &["GET", &format!("ade:ratelimit:tasks:read:{caller}")]);
        assert!(counted.starts_with("3 0 "), "{counted}: one request each, and one that two has left");
        let mut passed = 0;
        while is_allowed(&one, caller).await || is_allowed(&two, caller).await {
            passed += 1;
        }
        assert_eq!(passed, 98);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unused_requests_are_returned_at_the_end_of_the_minute() {
    let server = Redis::start().expect("server starts");
    let (one, two) = (open(&server, 0).await, open(&server, 0).await);
    let connection = std::cell::RefCell::new(server.connect().expect("connected"));
    let send = |name: &str, args: &[&str]| -> String {
        let mut command = ::redis::cmd(name);
        let value =
            command.arg("ade:ratelimit:tasks:read:ann").arg(args).query(&mut *connection.borrow_mut());
        ::redis::from_redis_value::<String>(value.expect("reply")).expect("text")
    };
    // A minute that ends soon, because a whole one is too long for a test.
    let started_at = one.now().micros() / 1_000 - 56_000;
    send("SET", &[&format!("0 0 {started_at}"), "PX", "60000"]);
    assert!(is_allowed(&one, "ann").await && is_allowed(&two, "ann").await);
    assert_eq!(send("GET", &[]), format!("4 0 {started_at}"));
    let ttl: u64 = send("PTTL", &[]).parse().expect("milliseconds");
    assert!(ttl > 60_000, "{ttl}: kept for a minute after the last request that may come");
    let returned = format!("0 2 {}", started_at + 60_000);
    let (one_ref, two_ref, send_ref, returned_ref) = (&one, &two, &send, &returned);
    wait::until("the return of unused requests", Duration::from_secs(20), || async move {
        one_ref.sweep().await.expect("swept");
        two_ref.sweep().await.expect("swept");
        let value = send_ref("GET", &[]);
        if value == *returned_ref { Ok(()) } else { Err(value) }
    })
    .await
    .expect("returned");
    // Returned once: the next request is counted on top of the two that came.
    assert!(is_allowed(&one, "ann").await);
    assert_eq!(send("GET", &[]), format!("2 2 {}", started_at + 60_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn rate_limits_hold_per_process_without_redis() {
    let server = Redis::start().expect("server starts");
    let (one, two) = (open(&server, 0).await, open(&server, 0).await);
    let count = async |store: &RedisCoordination, limit| {
        store
            .count_request("tasks:create".to_owned(), "ann".to_owned(), limit, Counting::InBlocks)
            .await
            .expect("counted")
            .allowed
    };
    assert!(count(&one, 3).await && count(&one, 3).await && count(&two, 3).await);
    assert!(!count(&one, 3).await && !count(&two, 3).await, "both share the limit");
    drop(server);
    // What a process counted before stays counted.
    assert!(count(&one, 3).await && !count(&one, 3).await);
    assert!(count(&two, 3).await && count(&two, 3).await && !count(&two, 3).await);
}
