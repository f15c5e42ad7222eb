//! Locks that came and went leave no memory in Redis, except what the key schema keeps.

use std::time::Duration;

use ade_domain::lock::{
    AcquireStatus, Acquisition, Holder, LockCommand, LockMode, LockName, LockOutcome, RequestKey,
};
use ade_store::{Locks, RedisCoordination, redis};
use ade_testkit::wait::until;
use ade_testkit::{Redis, effort};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const AGENTS: u64 = 100;
const LOCKS_PER_BATCH: u64 = 500;
/// Redis itself takes this much more or less. Less than half of what 5,000 locks would take if only their fences stayed.
const MAX_GROWTH_BYTES: u64 = 512 * 1024;

fn lock(number: u64) -> LockName {
    format!("task:{number:08}").parse().expect("a name")
}

fn holder(number: u64) -> Holder {
    Holder::new(&format!("agent-{}", number % AGENTS), None).expect("a name")
}

fn acquire(number: u64) -> LockCommand {
    LockCommand::Acquire(Acquisition {
        holder: holder(number),
        request: RequestKey::derive(&holder(number), &number.to_string()),
        leave_tombstone: false,
        mode: LockMode::Exclusive,
        ttl_ms: 30_000,
        claimed: true,
        wait: None,
        purpose: "apply".into(),
        priority: 0,
    })
}

/// Acquires and releases these locks, each once.
async fn use_locks(store: &RedisCoordination, numbers: impl Iterator<Item = u64> + Clone) {
    let acquired = numbers.clone().map(|number| (lock(number), acquire(number))).collect();
    let granted = store.execute_commands(acquired).await.expect("replies");
    let released = numbers.zip(granted).map(|(number, reply)| match reply.outcome {
        LockOutcome::Status(AcquireStatus::Held(grant)) => {
            (lock(number), LockCommand::Release { holder: holder(number), token: grant.token, server: None })
        }
        other => unreachable!("task {number} is not held: {other:?}"),
    });
    for reply in store.execute_commands(released.collect()).await.expect("replies") {
        assert_eq!(reply.outcome, LockOutcome::Done);
    }
}

fn used_memory(server: &Redis) -> u64 {
    let info: String = server.query(&["INFO", "memory"]).expect("reply");
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("a figure");
    used.trim().parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_of_ended_task_locks_is_freed() {
    let server = Redis::start().expect("server starts");
    let options = redis::RedisOptions { max_clock_skew: Duration::ZERO, ..redis::RedisOptions::default() };
    let store =
        RedisCoordination::open(&server.url().parse().expect("valid URL"), options).await.expect("connected");
    // Connections, their buffers and the functions take memory once.
    use_locks(&store, 0..LOCKS_PER_BATCH).await;
    store.sweep().await.expect("swept");
    let (start, count) = (used_memory(&server), effort::rounds(5_000, 1_000_000));
    for first in (0..count).step_by(LOCKS_PER_BATCH as usize) {
        use_locks(&store, first..first + LOCKS_PER_BATCH).await;
    }
    let peak = used_memory(&server);
    let end = until("the memory is free", TEST_TIMEOUT, async || {
        store.sweep().await.map_err(|error| error.to_string())?;
        let used = used_memory(&server);
        if used <= start + MAX_GROWTH_BYTES { Ok(used) } else { Err(format!("{start} → {used} bytes")) }
    })
    .await
    .expect("in time");
    eprintln!("{count} locks: {start} bytes before, {peak} after the last release, {end} at the end");
    let keys: Vec<String> = server.query(&["KEYS", "*"]).expect("reply");
    assert!(keys.iter().all(|key| !key.starts_with("ade:lock:task:")), "{keys:?}");
    assert!(keys.len() <= 4, "{keys:?}");
}
