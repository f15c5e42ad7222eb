//! What only a store on Redis can get wrong: indexes that lost something, replicas that are away, searches that read too much.

use std::time::Duration;

use ade_domain::lock::{
    Acquire, Answer, Holder, LockCommand, LockName, LockRefusal, Mode, Outcome, RequestKey, Standing, Token,
    Wait,
};
use ade_store::{Limits, Locks, RedisCoordination, redis};
use ade_testkit::Redis;

async fn open(server: &Redis, min_replica_acks: u32) -> RedisCoordination {
    let options =
        redis::Options { min_replica_acks, max_clock_skew: Duration::ZERO, ..redis::Options::default() };
    RedisCoordination::open(&server.url().parse().expect("a URL"), options).await.expect("connects")
}

fn holder(name: &str) -> Holder {
    Holder::new(name, None).expect("a name")
}

fn lock(name: &str) -> LockName {
    format!("resource:edge:{name}").parse().expect("a name")
}

fn wish(who: &str) -> Acquire {
    Acquire {
        holder: holder(who),
        request: RequestKey::of(&holder(who), "request"),
        remember: false,
        mode: Mode::Exclusive,
        ttl_ms: 30_000,
        claimed: true,
        wait: Some(Wait { ms: 30_000, served_by: Some("here".into()) }),
        purpose: "".into(),
        priority: 0,
    }
}

/// Somebody asks for something else than before.
fn another(who: &str) -> Acquire {
    Acquire { request: RequestKey::of(&holder(who), "another"), ..wish(who) }
}

async fn send(store: &RedisCoordination, name: &str, command: LockCommand) -> Answer {
    let answers = store.commands(vec![(lock(name), command)]).await.expect("answers");
    answers.into_iter().next().expect("one answer")
}

async fn hold(store: &RedisCoordination, name: &str, who: &str) -> Token {
    match send(store, name, LockCommand::Acquire(wish(who))).await.outcome {
        Outcome::Standing(Standing::Held(grant)) => grant.token,
        other => unreachable!("{who} does not hold {name}: {other:?}"),
    }
}

async fn queue(store: &RedisCoordination, name: &str, wish: Acquire) -> Answer {
    send(store, name, LockCommand::Acquire(wish)).await
}

/// A command to the server itself, past the store.
fn past<T: ::redis::FromRedisValue>(server: &Redis, command: &[&str]) -> T {
    let mut link = server.connect().expect("connects");
    let (name, args) = command.split_first().expect("a command");
    ::redis::cmd(name).arg(args).query(&mut link).expect("answers")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cycle_is_found_although_the_indexes_of_what_is_held_are_lost() {
    let server = Redis::start().expect("starts");
    let store = open(&server, 0).await;
    for (name, who) in [("a", "ann"), ("b", "ben"), ("c", "cem")] {
        hold(&store, name, who).await;
    }
    queue(&store, "c", another("ben")).await;
    queue(&store, "a", another("cem")).await;
    // Only whoever closes the cycle must be known to hold something that others want.
    for who in ["ben", "cem"] {
        let _: i64 = past(&server, &["DEL", &format!("ade:lock:index:agent:{who}")]);
    }
    let closing = queue(&store, "b", another("ann")).await;
    assert_eq!(closing.deadlocks.len(), 1, "{closing:?}");
    assert_eq!(closing.deadlocks.iter().map(|found| found.cycle.len()).sum::<usize>(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_does_not_ask_for_every_waiter_of_a_long_queue() {
    let server = Redis::start().expect("starts");
    let store = open(&server, 0).await;
    hold(&store, "hot", "keeper").await;
    for number in 0..200 {
        queue(&store, "hot", wish(&format!("waiter-{number:03}"))).await;
    }
    hold(&store, "own", "ann").await;
    for who in ["ben", "cem", "dee"] {
        queue(&store, "own", wish(who)).await;
    }
    let _: () = past(&server, &["CONFIG", "RESETSTAT"]);
    let answer = queue(&store, "hot", another("ann")).await;
    assert!(
        matches!(answer.outcome, Outcome::Standing(Standing::Waiting { position: 201, .. })),
        "{answer:?}"
    );
    let stats: String = past(&server, &["INFO", "commandstats"]);
    let calls = |command: &str| {
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.and_then(|line| line.split(',').next())
            .map_or(0, |calls| calls.parse::<u32>().expect("a number"))
    };
    // Each of 200 agents once for what it waits for, and nobody twice; a few calls of the library.
    assert!(calls("smembers") < 250, "{}", calls("smembers"));
    assert!(calls("fcall") < 20, "{}", calls("fcall"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_too_few_replicas_have_is_given_back_and_its_request_told() {
    let server = Redis::start().expect("starts");
    let (plain, strict) = (open(&server, 0).await, open(&server, 1).await);
    let unconfirmed = Outcome::Standing(Standing::Refused(LockRefusal::Unconfirmed { acks: 0, wanted: 1 }));
    assert_eq!(queue(&strict, "a", wish("ann")).await.outcome, unconfirmed);
    assert!(plain.look(lock("a")).await.expect("seen").holders.is_empty());
    // The same for somebody who waited and was promoted: it is told, and does not stand at the end of the queue again.
    let token = hold(&plain, "a", "ben").await;
    queue(&strict, "a", wish("ann")).await;
    send(&plain, "a", LockCommand::Release { holder: holder("ben"), token }).await;
    assert_eq!(queue(&strict, "a", wish("ann")).await.outcome, unconfirmed);
    let seen = plain.look(lock("a")).await.expect("seen");
    assert!(seen.holders.is_empty() && seen.queue.is_empty(), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_counted_ends_by_itself_after_a_minute() {
    let server = Redis::start().expect("starts");
    let store = open(&server, 0).await;
    let count = async || store.count("tasks:create".to_owned(), "ann".to_owned(), 2).await.expect("answers");
    let mut link = server.connect().expect("connects");
    let mut ask = |verb: &str, key: &str, args: &[&str]| -> i64 {
        ::redis::cmd(verb).arg(key).arg(args).query(&mut link).expect("answers")
    };
    let key = "ade:ratelimit:tasks:create:ann";
    assert_eq!(count().await.remaining, 1);
    let (counted, ttl) = (ask("GET", key, &[]), ask("PTTL", key, &[]));
    assert_eq!(counted, 1);
    assert!((1..=60_000).contains(&ttl), "{ttl}");
    // Towards the end of the minute: what comes later neither prolongs it nor is let in by it.
    ask("PEXPIRE", key, &["30000"]);
    assert!(count().await.allowed);
    assert!(!count().await.allowed);
    assert!((1..=30_000).contains(&ask("PTTL", key, &[])));
    // A minute is long for a test: this is what Redis does at its end.
    ask("UNLINK", key, &[]);
    assert_eq!(count().await.remaining, 1);
}
