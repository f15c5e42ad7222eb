//! Who is alive: servers that serve waiters, agents that hold tickets; hints and events that tell what happened.

#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "helpers of tests fail like tests")]

use ade_domain::agent::{OFFLINE_AFTER_MS, Status};
use ade_domain::lock::{Acquire, End, LockCommand, Mode, Wait};
use ade_store::coordination::LockEventKind;

use super::Opener;
use super::play::{Play, hint, soon, with};

use Mode::{Exclusive, Shared};

scenarios!(
    waiters_of_a_silent_server_are_skipped,
    a_repeated_request_is_adopted_by_another_server,
    a_held_open_request_becomes_a_ticket,
    tickets_of_a_silent_agent_leave_and_open_waits_do_not,
    a_hint_tells_that_a_request_was_granted,
    a_hint_is_not_missed_by_who_listens_later,
    events_tell_who_came_and_went,
);

async fn waiters_of_a_silent_server_are_skipped(opener: Opener) {
    let play = Play::open(&opener, with(|rules| rules.server_silence_ms = 2_000)).await;
    play.grant("p", play.wish("ann", "1", Exclusive)).await;
    play.position("p", play.served("dead", "1", "silent")).await;
    play.position("p", play.served("live", "1", "alive")).await;
    let watch = play.port.watch(play.key("dead", "1"));
    // In small steps: a backend that has not been asked for long stood still itself, and blames nobody for silence.
    for _ in 0..3 {
        play.pass(700).await;
        play.mark("p", "alive").await;
    }
    play.sweep().await;
    assert_eq!(play.queue("p").await, ["live"], "it leaves wherever it stands");
    hint(&watch).await;
    play.release("p", "ann").await;
    assert_eq!(play.holders("p").await, ["live"]);
    assert_eq!(play.position("p", play.served("dead", "1", "silent")).await, 1, "it was not its fault");
}

async fn a_repeated_request_is_adopted_by_another_server(opener: Opener) {
    let play = Play::open(&opener, with(|rules| rules.server_silence_ms = 2_000)).await;
    play.grant("p", play.wish("ann", "1", Exclusive)).await;
    play.position("p", play.served("ben", "1", "old")).await;
    play.position("p", play.served("cem", "1", "new")).await;
    assert_eq!(play.position("p", play.served("ben", "1", "new")).await, 1, "in its place");
    assert_eq!(play.look("p").await.queue[0].served_by.as_deref(), Some("new"));
    play.pass(2_100).await;
    play.mark("p", "new").await;
    play.release("p", "ann").await;
    assert_eq!(play.holders("p").await, ["ben"]);
}

async fn a_held_open_request_becomes_a_ticket(opener: Opener) {
    let play = Play::open(&opener, with(|rules| rules.server_silence_ms = 300)).await;
    play.grant("p", play.wish("ann", "1", Exclusive)).await;
    play.position("p", play.served("ben", "1", "server")).await;
    assert_eq!(play.position("p", play.ticket("ben", "1", Exclusive)).await, 1);
    assert_eq!(play.look("p").await.queue[0].served_by, None);
    play.pass(400).await;
    play.release("p", "ann").await;
    assert_eq!(play.holders("p").await, ["ben"], "no server needs to serve it");
}

async fn tickets_of_a_silent_agent_leave_and_open_waits_do_not(opener: Opener) {
    let play = Play::open(&opener, with(|rules| rules.server_silence_ms = 300_000)).await;
    let names = ["ann", "silent", "open", "talks"];
    for name in names {
        play.heard(name).await;
    }
    let long = |wish: Acquire| {
        let wait = wish.wait.clone().map(|wait| Wait { ms: 300_000, ..wait });
        Acquire { ttl_ms: 300_000, wait, ..wish }
    };
    play.grant("p", long(play.wish("ann", "1", Exclusive))).await;
    play.position("p", long(play.ticket("silent", "1", Exclusive))).await;
    play.position("p", long(play.wish("open", "1", Exclusive))).await;
    play.position("p", long(play.ticket("talks", "1", Exclusive))).await;
    play.sweep().await;
    assert_eq!(play.queue("p").await, ["silent", "open", "talks"], "all of them were heard of");
    let watch = play.port.watch(play.key("silent", "1"));
    play.pass(OFFLINE_AFTER_MS - 1_000).await;
    play.heard("talks").await;
    play.pass(2_000).await;
    play.sweep().await;
    hint(&watch).await;
    assert_eq!(play.queue("p").await, ["open", "talks"]);
    assert_eq!(play.over("p", play.ticket("silent", "1", Exclusive)).await, End::AgentOffline);
    assert_eq!(play.holders("p").await, ["ann"], "holds are ended by their leases alone");
    for (name, status) in [("silent", Status::Offline), ("talks", Status::Active)] {
        let view = play.port.agent(play.agent(name)).await.expect("answers").expect("known");
        assert_eq!(view.status, status, "{name}");
    }
    play.heard("silent").await;
    let back = play.port.agent(play.agent("silent")).await.expect("answers").expect("known");
    assert_eq!(back.status, Status::Active, "it is back");
    play.leave(&names).await;
}

async fn a_hint_tells_that_a_request_was_granted(opener: Opener) {
    let play = Play::usual(&opener).await;
    play.grant("p", play.wish("ann", "1", Exclusive)).await;
    play.position("p", play.wish("ben", "1", Exclusive)).await;
    let (one, two) = (play.port.watch(play.key("ben", "1")), play.port.watch(play.key("ben", "1")));
    let waiting = tokio::spawn(async move { hint(&one).await });
    play.release("p", "ann").await;
    soon(waiting).await.expect("the hint came");
    hint(&two).await;
    play.grant("p", play.wish("ben", "1", Exclusive)).await;
}

async fn a_hint_is_not_missed_by_who_listens_later(opener: Opener) {
    let play = Play::usual(&opener).await;
    play.grant("p", play.wish("ann", "1", Exclusive)).await;
    play.position("p", play.wish("ben", "1", Shared)).await;
    let watch = play.port.watch(play.key("ben", "1"));
    play.send("p", LockCommand::Break).await;
    assert_eq!(play.holders("p").await, ["ben"]);
    hint(&watch).await;
}

async fn events_tell_who_came_and_went(opener: Opener) {
    let play = Play::open(&opener, with(|rules| rules.max_queue = 2)).await;
    let mut events = play.port.events();
    let before = play.now();
    let ann = play.grant("p", play.wish("ann", "1", Exclusive)).await.token;
    play.position("p", play.wish("ben", "1", Exclusive)).await;
    play.position("p", play.wish("cem", "1", Exclusive)).await;
    play.refused("p", play.wish("dee", "1", Exclusive)).await;
    play.cancel("p", "cem", "1", End::Cancelled).await;
    play.release("p", "ann").await;
    let ben = play.token_of("p", "ben").await.expect("promoted");
    play.send("p", LockCommand::Break).await;
    let expected = [
        LockEventKind::Acquired(play.holder("ann"), ann),
        LockEventKind::Queued(play.holder("ben")),
        LockEventKind::Queued(play.holder("cem")),
        LockEventKind::QueueFull,
        LockEventKind::Left(play.holder("cem"), "cancelled"),
        LockEventKind::Freed(play.holder("ann"), ann, "released"),
        LockEventKind::Acquired(play.holder("ben"), ben),
        LockEventKind::Freed(play.holder("ben"), ben, "broken"),
    ];
    for event in expected {
        let happening = loop {
            let happening = soon(events.recv()).await.expect("not too slow");
            if happening.lock == play.lock("p") {
                break happening;
            }
        };
        assert_eq!(happening.event, event);
        assert!((before..=play.now()).contains(&happening.at), "{happening:?}");
    }
}
