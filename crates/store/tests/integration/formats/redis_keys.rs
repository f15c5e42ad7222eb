//! What is in Redis after commands that write every kind of key, without its times and tokens.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use ade_domain::agent::AgentProfile;
use ade_domain::lock::{
    AcquireStatus, Acquisition, EndReason, FencingToken, Holder, LockCommand, LockLimits, LockMode, LockName,
    LockOutcome, LockRequest, RequestKey, RequestedLock, WaitOptions, WaitPolicy,
};
use ade_store::coordination::{AgentUpdate, Counting, Ticket, WakeAt, WakeUp};
use ade_store::{Agents, Capacity, LockRequests, Locks, RateLimits, RedisCoordination, WakeUpQueue, redis};
use ade_testkit::Redis;
use ade_testkit::golden::assert_format_unchanged;

use super::fixture;

/// One of two activities of an agent, so that the ids of agent and holder differ.
fn holder(agent: &str) -> Holder {
    Holder::new(agent, Some("work")).expect("valid")
}

fn lock(name: &str) -> LockName {
    format!("resource:service:{name}").parse().expect("valid")
}

fn acquisition(agent: &str, mode: LockMode) -> Acquisition {
    Acquisition {
        holder: holder(agent),
        request: RequestKey::derive(&holder(agent), &format!("{mode:?}")),
        leave_tombstone: true,
        mode,
        ttl_ms: 60_000,
        claimed: true,
        wait: Some(WaitOptions { timeout_ms: 60_000, served_by: Some("server-1".into()) }),
        purpose: "roll out".into(),
        priority: 5,
    }
}

async fn send(store: &RedisCoordination, name: &str, command: LockCommand) -> LockOutcome {
    let replies = store.execute_commands(vec![(lock(name), command)]).await.expect("reply");
    replies.into_iter().next().expect("one reply").outcome
}

async fn acquire(store: &RedisCoordination, name: &str, request: Acquisition) -> LockOutcome {
    send(store, name, LockCommand::Acquire(request)).await
}

async fn hold(store: &RedisCoordination, name: &str, request: Acquisition) -> FencingToken {
    match acquire(store, name, request).await {
        LockOutcome::Status(AcquireStatus::Held(grant)) => grant.token,
        other => panic!("{name} is not held: {other:?}"),
    }
}

async fn write_locks(store: &RedisCoordination) {
    let (shared, exclusive) = (LockMode::Shared, LockMode::Exclusive);
    // A holder, a waiter of a server, one with a ticket, and one that the full queue refuses.
    let token = hold(store, "queue", acquisition("ann", exclusive)).await;
    send(store, "queue", LockCommand::Extend { holder: holder("ann"), token, ttl_ms: 90_000 }).await;
    acquire(store, "queue", acquisition("ben", exclusive)).await;
    let ticket = Some(WaitOptions { timeout_ms: 60_000, served_by: None });
    acquire(store, "queue", Acquisition { wait: ticket, claimed: false, ..acquisition("cem", exclusive) })
        .await;
    acquire(store, "queue", acquisition("dee", exclusive)).await;
    // An upgrade that waits, and one that was granted and is not claimed yet.
    for (name, upgrading, other) in [("upgrade", "eve", "fay"), ("upgraded", "gus", "hal")] {
        hold(store, name, acquisition(upgrading, shared)).await;
        let token = hold(store, name, acquisition(other, shared)).await;
        acquire(store, name, Acquisition { claimed: false, ..acquisition(upgrading, exclusive) }).await;
        if name == "upgraded" {
            send(store, name, LockCommand::Release { holder: holder(other), token, server: None }).await;
        }
    }
    // A wait that was cancelled.
    let waiter = acquisition("kim", exclusive);
    let (holder, request, reason) = (waiter.holder.clone(), waiter.request, EndReason::Cancelled);
    hold(store, "cancelled", acquisition("jon", exclusive)).await;
    acquire(store, "cancelled", waiter).await;
    let cancel = LockCommand::Cancel { holder, request, reason, include_claimed: false };
    send(store, "cancelled", cancel).await;
    // A deadlock, and a lease that started with the promotion of its waiter.
    hold(store, "first", acquisition("lea", exclusive)).await;
    hold(store, "second", acquisition("mia", exclusive)).await;
    acquire(store, "second", acquisition("lea", exclusive)).await;
    acquire(store, "first", acquisition("mia", exclusive)).await;
    let token = hold(store, "promoted", acquisition("ned", exclusive)).await;
    acquire(store, "promoted", acquisition("oda", exclusive)).await;
    let server = Some("server-1".into());
    send(store, "promoted", LockCommand::Release { holder: self::holder("ned"), token, server }).await;
}

async fn write_others(store: &RedisCoordination) {
    let profile = AgentProfile {
        name: "Release bot".to_owned(),
        model: Some("model-1".to_owned()),
        version: Some("2".to_owned()),
        capabilities: vec!["deploy".to_owned()],
        config: "{}".to_owned(),
    };
    let update = AgentUpdate { profile: Some(profile), max_tasks: Some(1), draining: Some(false) };
    store.put_agent("bot".to_owned(), update, true).await.expect("reply").expect("registered");
    let later = store.now().plus_ms(60_000);
    for task in ["claimed", "queued"] {
        store.claim_capacity("bot".to_owned(), task.to_owned(), later).await.expect("reply");
    }
    assert!(store.record_heartbeat("named".to_owned()).await.expect("reply"));
    store.admit_acquisition("bot".to_owned(), 2).await.expect("reply").expect("admitted");
    let user = "ann".to_owned();
    store.count_request("locks".to_owned(), user, 100, Counting::Exact).await.expect("reply");
    let key = RequestKey::derive(&holder("ann"), "ticket");
    let request = LockRequest {
        holder: holder("ann"),
        key,
        has_request_id: true,
        locks: vec![RequestedLock { lock: lock("queue"), mode: LockMode::Exclusive }],
        ttl_ms: 60_000,
        wait: WaitPolicy::Ticket { timeout_ms: 60_000 },
        priority: 5,
        purpose: "roll out".into(),
    };
    let ticket = Ticket { request, deadline: later };
    store.register_request(key, 0xfeed, Some(ticket), later).await.expect("reply");
    let wake_up = |when| WakeUp { queue: "apply".to_owned(), subject: "task".to_owned(), when };
    store.send_wake_ups(vec![wake_up(WakeAt::Now), wake_up(WakeAt::At(later))]).await.expect("reply");
    assert!(store.lock_job("archive".to_owned(), "server-1".to_owned(), 30_000).await.expect("reply"));
}

/// Replaces times and tokens, which are timestamps or numbers of ten to twenty digits.
fn normalise(text: &str) -> String {
    let is_separator = |c: char| !c.is_ascii_alphanumeric() && !".:-".contains(c);
    let mut normal = String::new();
    for part in text.split_inclusive(is_separator) {
        let (word, separator) = part.split_at(part.trim_end_matches(is_separator).len());
        let is_number = (10..=20).contains(&word.len()) && word.parse::<f64>().is_ok();
        let is_time = word.parse::<jiff::Timestamp>().is_ok();
        normal.push_str(if is_time {
            "TIME"
        } else if is_number {
            "NUMBER"
        } else {
            word
        });
        normal.push_str(separator);
    }
    normal
}

fn dump(server: &Redis) -> String {
    let read = |command: &[&str]| -> Vec<String> { server.query(command).expect("reply") };
    let mut keys = read(&["KEYS", "*"]);
    keys.sort();
    // The sweep rebuilds these from the others, and some are written later.
    keys.retain(|key| !key.starts_with("ade:lock:index:"));
    let mut dumped = String::new();
    for key in keys {
        let kind: String = server.query(&["TYPE", &key]).expect("reply");
        let ttl: i64 = server.query(&["PTTL", &key]).expect("reply");
        let mut lines: Vec<String> = match kind.as_str() {
            "string" => read(&["MGET", &key]),
            "list" => read(&["LRANGE", &key, "0", "-1"]),
            "hash" => {
                let fields: BTreeMap<String, String> = server.query(&["HGETALL", &key]).expect("reply");
                fields.iter().map(|(field, value)| format!("{field} = {value}")).collect()
            }
            "zset" => {
                let members: Vec<(String, String)> =
                    server.query(&["ZRANGE", &key, "0", "-1", "WITHSCORES"]).expect("reply");
                members.iter().map(|(member, score)| format!("{score} {member}")).collect()
            }
            _ => read(&["SMEMBERS", &key]),
        };
        lines = lines.iter().map(|line| normalise(line)).collect();
        if kind != "list" {
            lines.sort();
        }
        let expires = if ttl > 0 { ", expires" } else { "" };
        let _ = writeln!(dumped, "{key} ({kind}{expires})");
        for line in lines {
            let _ = writeln!(dumped, "  {line}");
        }
    }
    dumped
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_keys_keep_their_formats() {
    let server = Redis::start().expect("server starts");
    // Nothing may expire meanwhile.
    let limits = LockLimits {
        max_queue: 2,
        long_poll_claim_ms: 60_000,
        server_timeout_ms: 60_000,
        ..LockLimits::default()
    };
    let options =
        redis::RedisOptions { limits, max_clock_skew: Duration::ZERO, ..redis::RedisOptions::default() };
    let url = server.url().parse().expect("valid URL");
    let store = RedisCoordination::open(&url, options).await.expect("connected");
    write_locks(&store).await;
    write_others(&store).await;
    assert_format_unchanged("keys in Redis", &fixture("redis.txt"), &dump(&server)).expect("unchanged");
}
