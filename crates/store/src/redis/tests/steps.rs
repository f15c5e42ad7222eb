//! Steps outside a cluster: their tokens come from one source, and what goes together in one call does not share errors.

use std::sync::Arc;

use ade_domain::lock::{
    AcquireStatus, Acquisition, Grant, Holder, LockCommand, LockLimits, LockMode, LockName, LockOutcome,
    RequestKey, WaitOptions,
};
use ade_testkit::Redis;
use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::task::yield_now;

use super::differential::open;
use crate::coordination::Locks;
use crate::redis::RedisCoordination;

fn ann() -> Holder {
    Holder::new("ann", None).expect("valid")
}

fn name(lock: &str) -> LockName {
    lock.parse().expect("valid")
}

fn acquire(request: &str) -> LockCommand {
    LockCommand::Acquire(Acquisition {
        holder: ann(),
        request: RequestKey::derive(&ann(), request),
        leave_tombstone: false,
        mode: LockMode::Exclusive,
        ttl_ms: 30_000,
        claimed: true,
        wait: None,
        purpose: "".into(),
        priority: 0,
    })
}

async fn hold(store: &RedisCoordination, lock: &str, request: &str) -> Grant {
    match store.inner.apply(&name(lock), &acquire(request)).await.expect("reply").outcome {
        LockOutcome::Status(AcquireStatus::Held(grant)) => grant,
        other => unreachable!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_grow_after_data_loss_and_when_the_clock_is_behind() {
    let server = Redis::start().expect("server starts");
    let store = open(&server.url(), LockLimits::default()).await;
    let first = hold(&store, "task:1", "1").await;
    assert_eq!(first.token.number(), first.acquired_at.micros(), "the clock");
    let _: () = server.query(&["FLUSHALL"]).expect("reply");
    let second = hold(&store, "task:1", "2").await;
    assert!(second.token > first.token, "{first:?} {second:?}");
    // As after a failover to a server whose clock is an hour behind.
    let ahead = second.token.number() + 3_600_000_000;
    let _: () = server.query(&["SET", "ade:lock:token", &ahead.to_string()]).expect("reply");
    assert_eq!(hold(&store, "task:2", "1").await.token.number(), ahead + 1);
    assert_eq!(hold(&store, "resource:a:b", "1").await.token.number(), ahead + 2, "all locks share it");
}

#[tokio::test(flavor = "multi_thread")]
async fn released_locks_leave_only_the_token() {
    let server = Redis::start().expect("server starts");
    let store = open(&server.url(), LockLimits::default()).await;
    for number in 0..100 {
        let lock = format!("task:{number}");
        let token = hold(&store, &lock, &lock).await.token;
        let release = LockCommand::Release { holder: ann(), token, server: None };
        assert_eq!(
            store.inner.apply(&name(&lock), &release).await.expect("reply").outcome,
            LockOutcome::Done
        );
    }
    store.inner.write_name_indexes().await;
    assert_eq!(server.query::<Vec<String>>(&["KEYS", "*"]).expect("reply"), ["ade:lock:token"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_only_acquires_when_out_of_memory() {
    let server = Redis::start().expect("server starts");
    let store = open(&server.url(), LockLimits::default()).await;
    let mut steps = Vec::new();
    for number in 0..10 {
        let lock = format!("task:{number}");
        let token = hold(&store, &lock, &lock).await.token;
        steps.push((name(&lock), LockCommand::Release { holder: ann(), token, server: None }));
        steps.push((name(&format!("task:{}", number + 10)), acquire("other")));
    }
    let _: () = server.query(&["CONFIG", "SET", "maxmemory", "1"]).expect("reply");
    let replies = join_all(steps.iter().map(|(name, command)| store.inner.apply(name, command))).await;
    for ((name, command), reply) in steps.iter().zip(replies) {
        match command {
            LockCommand::Release { .. } => {
                assert_eq!(reply.expect("released").outcome, LockOutcome::Done, "{name}");
            }
            _ => assert!(reply.is_err(), "{name}: {reply:?}"),
        }
    }
}

#[tokio::test]
async fn a_cancelled_request_for_several_locks_does_not_come_back() {
    let server = Redis::start().expect("server starts");
    let store = open(&server.url(), LockLimits::default()).await;
    hold(&store, "task:2", "1").await;
    let ben = Holder::new("ben", None).expect("valid");
    let request = RequestKey::derive(&ben, "1");
    let wait = Some(WaitOptions { timeout_ms: 60_000, served_by: Some("server".into()) });
    let LockCommand::Acquire(of_ann) = acquire("1") else { unreachable!("an acquisition") };
    let acquire = Acquisition { holder: ben.clone(), request, wait, ..of_ann };
    let cancel =
        LockCommand::Disconnect { holder: ben, request, server: "server".into(), include_claimed: true };
    let names = [name("task:1"), name("task:2")];
    let idle = Arc::strong_count(&store.inner);
    // The server asks again once the subscription to the lock is confirmed.
    let _subscription = store.subscribe(request);
    let acquires = names.clone().map(|name| (name, LockCommand::Acquire(acquire.clone())));
    assert!(store.execute_while_successful(acquires.into()).now_or_never().is_none(), "under way");
    assert!(Arc::strong_count(&store.inner) > idle, "its replies are waited for");
    store.execute_commands(names.clone().map(|name| (name, cancel.clone())).into()).await.expect("cancelled");
    // The task that waits for them has ended when it drops its reference.
    while Arc::strong_count(&store.inner) > idle {
        yield_now().await;
    }
    let views = store.peek_locks(names.into()).await.expect("views");
    let used = views.iter().map(|view| (view.holders.len(), view.queue_length)).collect::<Vec<_>>();
    assert_eq!(used, [(0, 0), (1, 0)]);
}

/// A key that somebody else wrote fails its own step only.
#[tokio::test(flavor = "multi_thread")]
async fn a_corrupt_lock_does_not_affect_others() {
    let server = Redis::start().expect("server starts");
    let store = open(&server.url(), LockLimits::default()).await;
    let _: () = server.query(&["SET", "ade:lock:task:5", "not a lock"]).expect("reply");
    let names: Vec<LockName> = (0..10).map(|number| name(&format!("task:{number}"))).collect();
    let command = acquire("1");
    let replies = join_all(names.iter().map(|name| store.inner.apply(name, &command))).await;
    for (name, reply) in names.iter().zip(replies) {
        assert_eq!(reply.is_err(), name.as_str() == "task:5", "{name}: {reply:?}");
    }
}
