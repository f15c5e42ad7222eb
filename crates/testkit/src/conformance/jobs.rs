//! Calls that wake workers, calls for later, and locks of jobs.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::sync::Arc;
use std::time::Duration;

use ade_store::coordination::{Job, Moved, WakeAt, WakeUp};

use super::Opener;
use super::play::{Play, soon};

scenarios!(
    a_call_goes_to_whoever_comes_for_it,
    a_call_wakes_whoever_waits,
    of_two_who_wait_one_is_called,
    who_waits_at_several_queues_hears_the_first_of_them,
    nobody_calls_and_the_wait_ends,
    a_waiter_that_went_away_is_in_nobodys_way,
    many_may_wait_at_once,
    of_too_many_calls_the_oldest_are_dropped,
    a_call_for_later_comes_when_it_is_due,
    a_call_for_later_is_made_once,
    the_last_moment_of_a_call_counts,
    a_job_is_locked_by_one,
    a_lock_of_a_job_ends_by_itself,
    no_other_queue_is_known,
);

/// Longer than any scenario takes.
const LONG: Duration = Duration::from_secs(60);
/// Does not wait for what is not there yet.
const AT_ONCE: Duration = Duration::ZERO;

fn job(queue: &str, about: &str) -> Job {
    Job { queue: queue.to_owned(), about: about.to_owned() }
}

fn call(queue: &str, about: &str, when: WakeAt) -> WakeUp {
    WakeUp { queue: queue.to_owned(), about: about.to_owned(), when }
}

async fn make(play: &Play, calls: Vec<WakeUp>) {
    assert_eq!(play.port.call(calls).await, Ok(0), "there is room");
}

async fn wake(play: &Play, queue: &str, about: &str) {
    make(play, vec![call(queue, about, WakeAt::Now)]).await;
}

async fn woken(play: &Play, queues: &[&str], at_most: Duration) -> Option<Job> {
    let queues = queues.iter().map(|queue| (*queue).to_owned()).collect();
    soon(play.port.woken(queues, at_most)).await.expect("answers")
}

async fn schedule(play: &Play, in_ms: u64, queue: &str, about: &str) {
    let at = play.now().plus_ms(in_ms);
    make(play, vec![call(queue, about, WakeAt::At(at))]).await;
}

async fn move_due(play: &Play) -> Moved {
    play.port.wake_scheduled().await.expect("answers")
}

async fn wake_scheduled(play: &Play) -> usize {
    move_due(play).await.calls
}

async fn lock(play: &Play, name: &str, holder: &str, ttl_ms: u64) -> bool {
    play.port.lock_job(play.agent(name), holder.to_owned(), ttl_ms).await.expect("answers")
}

async fn unlock(play: &Play, name: &str, holder: &str) -> bool {
    play.port.unlock_job(play.agent(name), holder.to_owned()).await.expect("answers")
}

/// Scenarios share a server, and the names of queues are not their own.
async fn usual(opener: &Opener) -> Play {
    let play = Play::usual(opener).await;
    while woken(&play, &["apply", "preview", "archive"], AT_ONCE).await.is_some() {}
    play
}

async fn a_call_goes_to_whoever_comes_for_it(opener: Opener) {
    let play = usual(&opener).await;
    let strange = "\"{a}\\ ü🔒\n:%";
    wake(&play, "apply", "one").await;
    wake(&play, "apply", strange).await;
    wake(&play, "preview", "").await;
    assert_eq!(woken(&play, &["apply"], LONG).await, Some(job("apply", "one")), "the oldest first");
    assert_eq!(woken(&play, &["apply"], AT_ONCE).await, Some(job("apply", strange)), "as it was given");
    assert_eq!(woken(&play, &["apply"], AT_ONCE).await, None, "each once");
    assert_eq!(woken(&play, &["preview"], LONG).await, Some(job("preview", "")));
}

async fn a_call_wakes_whoever_waits(opener: Opener) {
    let play = Arc::new(usual(&opener).await);
    for about in ["one", "two"] {
        let waiting = {
            let play = Arc::clone(&play);
            tokio::spawn(async move { woken(&play, &["preview", "apply"], LONG).await })
        };
        // Whether it waits already makes no difference.
        tokio::task::yield_now().await;
        wake(&play, "apply", about).await;
        assert_eq!(soon(waiting).await.expect("no panic"), Some(job("apply", about)));
    }
}

async fn of_two_who_wait_one_is_called(opener: Opener) {
    let play = Arc::new(usual(&opener).await);
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let play = Arc::clone(&play);
        waiting.spawn(async move { woken(&play, &["apply"], LONG).await });
    }
    wake(&play, "apply", "one").await;
    let first = soon(waiting.join_next()).await.expect("one of them").expect("no panic");
    assert_eq!(first, Some(job("apply", "one")));
    assert!(waiting.try_join_next().is_none(), "the other one waits on");
    wake(&play, "apply", "two").await;
    let second = soon(waiting.join_next()).await.expect("the other one").expect("no panic");
    assert_eq!(second, Some(job("apply", "two")));
}

async fn who_waits_at_several_queues_hears_the_first_of_them(opener: Opener) {
    let play = usual(&opener).await;
    for queue in ["archive", "preview", "apply"] {
        wake(&play, queue, "one").await;
    }
    let queues = ["apply", "archive", "preview"];
    for queue in queues {
        assert_eq!(woken(&play, &queues, LONG).await, Some(job(queue, "one")));
    }
    assert_eq!(woken(&play, &queues, AT_ONCE).await, None);
}

async fn nobody_calls_and_the_wait_ends(opener: Opener) {
    let play = usual(&opener).await;
    for at_most in [AT_ONCE, Duration::from_micros(1), Duration::from_millis(30)] {
        let began = tokio::time::Instant::now();
        assert_eq!(woken(&play, &["apply", "preview"], at_most).await, None);
        assert!(began.elapsed() >= at_most, "{:?}", began.elapsed());
    }
}

async fn a_waiter_that_went_away_is_in_nobodys_way(opener: Opener) {
    let play = usual(&opener).await;
    for _ in 0..80 {
        let waiting = play.port.woken(vec!["apply".to_owned()], LONG);
        let gone = tokio::time::timeout(Duration::from_millis(2), waiting).await;
        assert!(gone.is_err(), "nobody called");
    }
    // It may take a call with it, as long as the store does not know that it went away; not all of them.
    let mut called = 0;
    loop {
        wake(&play, "apply", "one").await;
        called += 1;
        if let Some(found) = woken(&play, &["apply"], Duration::from_millis(200)).await {
            assert_eq!(found, job("apply", "one"));
            break;
        }
        assert!(called < 100, "all calls are lost");
    }
}

async fn many_may_wait_at_once(opener: Opener) {
    const WAITERS: usize = 100;
    let play = Arc::new(usual(&opener).await);
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..WAITERS {
        let play = Arc::clone(&play);
        waiting.spawn(async move { woken(&play, &["apply"], LONG).await });
    }
    for number in 0..WAITERS {
        wake(&play, "apply", &number.to_string()).await;
    }
    let mut heard = Vec::new();
    while let Some(one) = soon(waiting.join_next()).await {
        let one = one.expect("no panic").expect("there is a call for each");
        heard.push(one.about.parse::<usize>().expect("a number"));
    }
    heard.sort_unstable();
    assert!(heard.into_iter().eq(0..WAITERS), "each call goes to one");
}

async fn of_too_many_calls_the_oldest_are_dropped(opener: Opener) {
    let play = usual(&opener).await;
    for number in 0..1_003 {
        wake(&play, "archive", &number.to_string()).await;
    }
    for number in 3..1_003 {
        assert_eq!(woken(&play, &["archive"], AT_ONCE).await, Some(job("archive", &number.to_string())));
    }
    assert_eq!(woken(&play, &["archive"], AT_ONCE).await, None);
}

async fn a_call_for_later_comes_when_it_is_due(opener: Opener) {
    let play = usual(&opener).await;
    let passed = play.now();
    // Moments are as good as milliseconds.
    play.pass(2).await;
    make(&play, vec![call("preview", "now", WakeAt::At(passed))]).await;
    schedule(&play, 60_000, "apply", "much later").await;
    schedule(&play, 600, "apply", "later").await;
    assert_eq!(woken(&play, &["apply", "preview"], LONG).await, Some(job("preview", "now")), "at once");
    let next_in = move_due(&play).await.next_in.expect("one waits");
    // Where the clock is another's, both what is known of it and when something is due are rounded to milliseconds.
    assert!(next_in <= Duration::from_millis(602), "{next_in:?}");
    if play.passes_at_once() {
        assert_eq!(next_in, Duration::from_millis(600));
        play.pass(599).await;
        assert_eq!(wake_scheduled(&play).await, 0, "the last moment before");
        play.pass(1).await;
    } else {
        play.pass(602).await;
    }
    let moved = move_due(&play).await;
    assert_eq!(moved.calls, 1);
    let next_in = moved.next_in.expect("one waits");
    assert!(Duration::from_secs(30) < next_in && next_in < Duration::from_secs(60), "{next_in:?}");
    assert_eq!(woken(&play, &["apply", "preview"], LONG).await, Some(job("apply", "later")));
    assert_eq!(wake_scheduled(&play).await, 0);
    assert_eq!(woken(&play, &["apply", "preview"], AT_ONCE).await, None);
    make(&play, vec![call("apply", "much later", WakeAt::NotAnyMore)]).await;
    assert_eq!(move_due(&play).await, Moved::default(), "nobody waits for it any more");
}

async fn a_call_for_later_is_made_once(opener: Opener) {
    const CALLS: usize = 50;
    let play = Arc::new(usual(&opener).await);
    let at = play.now().plus_ms(300);
    let later = |number: usize| call("apply", &number.to_string(), WakeAt::At(at));
    make(&play, (0..CALLS).chain(0..CALLS).map(later).collect()).await;
    play.pass(302).await;
    let mut moving = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let play = Arc::clone(&play);
        moving.spawn(async move { wake_scheduled(&play).await });
    }
    let mut moved = 0;
    while let Some(some) = moving.join_next().await {
        moved += some.expect("no panic");
    }
    assert_eq!(moved, CALLS);
    let mut heard = Vec::new();
    while let Some(one) = woken(&play, &["apply"], AT_ONCE).await {
        heard.push(one.about.parse::<usize>().expect("a number"));
    }
    heard.sort_unstable();
    assert!(heard.into_iter().eq(0..CALLS), "each of them once");
}

async fn the_last_moment_of_a_call_counts(opener: Opener) {
    let play = usual(&opener).await;
    schedule(&play, 300, "apply", "put off").await;
    schedule(&play, 60_000, "apply", "put off").await;
    schedule(&play, 300, "apply", "given up").await;
    make(&play, vec![call("apply", "given up", WakeAt::NotAnyMore)]).await;
    schedule(&play, 60_000, "apply", "brought forward").await;
    schedule(&play, 300, "apply", "brought forward").await;
    schedule(&play, 300, "apply", "made at once").await;
    wake(&play, "apply", "made at once").await;
    schedule(&play, 60_000, "preview", "brought forward").await;
    play.pass(302).await;
    assert_eq!(wake_scheduled(&play).await, 1);
    assert_eq!(woken(&play, &["apply"], LONG).await, Some(job("apply", "made at once")));
    assert_eq!(woken(&play, &["apply"], LONG).await, Some(job("apply", "brought forward")));
    assert_eq!(woken(&play, &["apply", "preview"], AT_ONCE).await, None);
    let rest = ["put off", "brought forward"];
    let rest = ["apply", "preview"].into_iter().zip(rest);
    make(&play, rest.map(|(queue, about)| call(queue, about, WakeAt::NotAnyMore)).collect()).await;
    assert_eq!(move_due(&play).await, Moved::default());
}

async fn a_job_is_locked_by_one(opener: Opener) {
    let play = Arc::new(usual(&opener).await);
    assert!(!unlock(&play, "job", "ann").await, "nobody has it");
    let mut locking = tokio::task::JoinSet::new();
    for number in 0..8 {
        let play = Arc::clone(&play);
        locking.spawn(async move { (number, lock(&play, "job", &number.to_string(), 60_000).await) });
    }
    let mut holders = Vec::new();
    while let Some(locked) = locking.join_next().await {
        let (number, locked) = locked.expect("no panic");
        holders.extend(locked.then_some(number));
    }
    assert_eq!(holders.len(), 1, "{holders:?}");
    let holder = holders.first().expect("one").to_string();
    assert!(lock(&play, "job", &holder, 60_000).await, "its own it may prolong");
    assert!(!lock(&play, "job", "other", 60_000).await);
    assert!(lock(&play, "other job", "other", 60_000).await);
    assert!(!unlock(&play, "job", "other").await, "only its holder gives it back");
    assert!(!lock(&play, "job", "other", 60_000).await);
    assert!(unlock(&play, "job", &holder).await);
    assert!(lock(&play, "job", "other", 60_000).await);
}

async fn a_lock_of_a_job_ends_by_itself(opener: Opener) {
    let play = usual(&opener).await;
    assert!(lock(&play, "short", "ann", 300).await);
    assert!(lock(&play, "prolonged", "ann", 300).await);
    assert!(lock(&play, "prolonged", "ann", 60_000).await);
    play.pass(400).await;
    assert!(!unlock(&play, "short", "ann").await, "it is over");
    assert!(lock(&play, "short", "ben", 60_000).await);
    assert!(!lock(&play, "short", "ann", 60_000).await);
    assert!(!lock(&play, "prolonged", "ben", 60_000).await);
}

async fn no_other_queue_is_known(opener: Opener) {
    let play = usual(&opener).await;
    let known = || "apply".to_owned();
    let other = || "juggling".to_owned();
    for when in [WakeAt::Now, WakeAt::At(play.now()), WakeAt::NotAnyMore] {
        assert!(play.port.call(vec![call("juggling", "", when)]).await.is_err(), "{when:?}");
    }
    assert!(play.port.woken(vec![known(), other()], LONG).await.is_err());
    assert!(play.port.woken(Vec::new(), LONG).await.is_err());
    assert!(play.port.lock_job(String::new(), known(), 1_000).await.is_err(), "a job has a name");
    assert!(play.port.unlock_job(String::new(), known()).await.is_err());
    assert!(play.port.lock_job(play.agent("job"), known(), 0).await.is_err(), "and its lock a time");
}
