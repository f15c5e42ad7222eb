//! Modes and order: first come first served, sharers together, upgrades and downgrades.

#![expect(clippy::indexing_slicing, reason = "helpers of tests fail like tests")]

use ade_domain::lock::{Acquire, End, LockCommand, Mode, Outcome};

use super::Opener;
use super::play::{Play, kept};

use Mode::{Exclusive, Shared};

scenarios!(
    waiters_are_served_in_the_order_in_which_they_came,
    sharers_hold_together,
    a_sharer_does_not_pass_a_waiting_writer,
    the_leading_run_of_sharers_is_granted_together,
    a_long_run_of_sharers_is_granted,
    the_only_sharer_upgrades_at_once,
    an_upgrade_waits_ahead_of_others,
    an_unclaimed_upgrade_falls_back,
    an_upgrade_that_did_not_wait_leaves_the_shared_hold,
    an_upgrader_that_loses_its_hold_waits_like_others,
    a_downgrade_lets_the_leading_sharers_in,
);

async fn waiters_are_served_in_the_order_in_which_they_came(opener: Opener) {
    let play = Play::usual(&opener).await;
    play.grant("p", play.wish("ann", "1", Exclusive)).await;
    let names = ["zoe", "ben", "yan", "cem", "xia"];
    for (at, name) in names.iter().enumerate() {
        let priority = [0, 9, -9, 5, 1][at];
        let wish = Acquire { priority, purpose: (*name).into(), ..play.wish(name, "1", Exclusive) };
        assert_eq!(play.position("p", wish).await, at + 1, "whatever the name or the priority");
    }
    let view = play.look("p").await;
    let scores: Vec<f64> = view.queue.iter().map(|waiter| waiter.score.millis()).collect();
    assert!(scores.windows(2).all(|two| two[0] < two[1]), "never a tie, never backwards: {scores:?}");
    assert_eq!((view.queue[1].priority, &*view.queue[1].purpose), (9, "ben"), "carried and shown");
    let mut before = "ann";
    for (at, name) in names.iter().enumerate() {
        play.release("p", before).await;
        assert_eq!(play.holders("p").await, [*name]);
        assert_eq!(play.queue("p").await, names[at + 1..]);
        before = name;
    }
}

async fn sharers_hold_together(opener: Opener) {
    let play = Play::usual(&opener).await;
    let mut tokens = Vec::new();
    for who in ["a", "b", "c"] {
        tokens.push(play.grant("p", play.wish(who, "1", Shared)).await.token);
    }
    assert!(tokens.windows(2).all(|two| two[0] < two[1]), "each with a token of its own: {tokens:?}");
    let view = play.look("p").await;
    assert_eq!((view.mode, view.holders.len()), (Some(Shared), 3));
    assert_eq!(play.position("p", play.wish("w", "1", Exclusive)).await, 1);
}

async fn a_sharer_does_not_pass_a_waiting_writer(opener: Opener) {
    let play = Play::usual(&opener).await;
    play.grant("p", play.wish("s0", "1", Shared)).await;
    play.position("p", play.wish("w", "1", Exclusive)).await;
    assert_eq!(play.position("p", play.wish("s1", "1", Shared)).await, 2);
    play.refused("p", play.at_once("s2", "1", Shared)).await;
    // Once the writer has left, nothing is in the way.
    play.cancel("p", "w", "1", End::Cancelled).await;
    assert_eq!(play.holders("p").await, ["s0", "s1"]);
}

async fn the_leading_run_of_sharers_is_granted_together(opener: Opener) {
    let play = Play::usual(&opener).await;
    play.grant("p", play.wish("w0", "1", Exclusive)).await;
    for name in ["s1", "s2", "s3"] {
        play.position("p", play.wish(name, "1", Shared)).await;
    }
    play.position("p", play.wish("w1", "1", Exclusive)).await;
    play.position("p", play.wish("s4", "1", Shared)).await;
    play.release("p", "w0").await;
    assert_eq!(play.holders("p").await, ["s1", "s2", "s3"]);
    assert_eq!(play.queue("p").await, ["w1", "s4"]);
    for name in ["s1", "s2"] {
        play.release("p", name).await;
        assert_eq!(play.queue("p").await, ["w1", "s4"]);
    }
    play.release("p", "s3").await;
    assert_eq!(play.holders("p").await, ["w1"]);
    play.release("p", "w1").await;
    assert_eq!(play.holders("p").await, ["s4"]);
}

async fn a_long_run_of_sharers_is_granted(opener: Opener) {
    let play = Play::usual(&opener).await;
    play.grant("p", play.wish("writer", "1", Exclusive)).await;
    for n in 0..300 {
        play.position("p", play.wish(&format!("s{n:03}"), "1", Shared)).await;
    }
    play.release("p", "writer").await;
    // Work per step is bounded; the sweep does the rest, however often it is asked for.
    play.sweep().await;
    play.sweep().await;
    let view = play.look("p").await;
    assert_eq!((view.holders.len(), view.queue_length), (300, 0));
}

async fn the_only_sharer_upgrades_at_once(opener: Opener) {
    let play = Play::usual(&opener).await;
    let shared = play.grant("p", play.wish("ann", "1", Shared)).await;
    play.position("p", play.wish("ben", "1", Exclusive)).await;
    let exclusive = play.grant("p", play.at_once("ann", "2", Exclusive)).await;
    assert_eq!(exclusive.mode, Exclusive);
    assert!(exclusive.token > shared.token, "an upgrade is a new grant");
    assert_eq!(play.extend("p", "ann", shared.token, 1_000).await, Outcome::Lost, "the old token is over");
    kept(play.extend("p", "ann", exclusive.token, 1_000).await);
    assert_eq!(play.queue("p").await, ["ben"]);
}

async fn an_upgrade_waits_ahead_of_others(opener: Opener) {
    let play = Play::usual(&opener).await;
    let shared = play.grant("p", play.wish("ann", "1", Shared)).await;
    play.grant("p", play.wish("ben", "1", Shared)).await;
    play.position("p", play.wish("cem", "1", Exclusive)).await;
    assert_eq!(play.position("p", play.wish("ann", "2", Exclusive)).await, 1);
    assert_eq!(play.queue("p").await, ["ann", "cem"]);
    assert_eq!(play.holders("p").await, ["ann", "ben"], "it holds what it held");
    play.release("p", "ben").await;
    let grant = kept(play.claim("p", "ann", "2", 60_000).await);
    assert!(grant.mode == Exclusive && grant.token > shared.token, "{grant:?}");
    assert_eq!(play.queue("p").await, ["cem"]);
    play.release("p", "ann").await;
    assert_eq!(play.holders("p").await, ["cem"]);
}

async fn an_unclaimed_upgrade_falls_back(opener: Opener) {
    let play = Play::usual(&opener).await;
    for why in [End::Refused, End::Cancelled] {
        let name = why.word();
        let shared = play.grant(name, play.wish("ann", "1", Shared)).await;
        let wish = Acquire { claimed: false, ..play.wish("ann", name, Exclusive) };
        let exclusive = play.grant(name, wish).await;
        assert!(!exclusive.claimed && exclusive.mode == Exclusive);
        play.cancel(name, "ann", name, why).await;
        let back = kept(play.extend(name, "ann", shared.token, 1).await);
        assert_eq!((back.mode, back.token), (Shared, shared.token), "the shared hold it came from");
        play.grant(name, play.wish("ben", "1", Shared)).await;
    }
}

async fn an_upgrade_that_did_not_wait_leaves_the_shared_hold(opener: Opener) {
    let play = Play::usual(&opener).await;
    let shared = play.grant("p", play.wish("ann", "1", Shared)).await;
    play.grant("p", play.wish("ben", "1", Shared)).await;
    play.refused("p", play.at_once("ann", "2", Exclusive)).await;
    let same = kept(play.extend("p", "ann", shared.token, 1).await);
    assert_eq!(same, shared);
}

async fn an_upgrader_that_loses_its_hold_waits_like_others(opener: Opener) {
    let play = Play::usual(&opener).await;
    play.grant("p", play.wish("ann", "1", Shared)).await;
    play.grant("p", play.wish("ben", "1", Shared)).await;
    play.position("p", play.wish("cem", "1", Exclusive)).await;
    play.pass(2).await;
    play.position("p", play.wish("ann", "2", Exclusive)).await;
    assert_eq!(play.queue("p").await, ["ann", "cem"]);
    play.release("p", "ann").await;
    assert_eq!(play.queue("p").await, ["cem", "ann"], "from when it asked");
}

async fn a_downgrade_lets_the_leading_sharers_in(opener: Opener) {
    let play = Play::usual(&opener).await;
    let grant = play.grant("p", play.wish("ann", "1", Exclusive)).await;
    for (name, mode) in [("s1", Shared), ("s2", Shared), ("w", Exclusive), ("s3", Shared)] {
        play.position("p", play.wish(name, "1", mode)).await;
    }
    let downgrade = LockCommand::Downgrade { holder: play.holder("ann"), token: grant.token };
    for _ in 0..2 {
        let shared = kept(play.send("p", downgrade.clone()).await);
        assert_eq!((shared.mode, shared.token), (Shared, grant.token), "the same grant, also if repeated");
        assert_eq!(play.holders("p").await, ["ann", "s1", "s2"]);
        assert_eq!(play.queue("p").await, ["w", "s3"]);
    }
}
