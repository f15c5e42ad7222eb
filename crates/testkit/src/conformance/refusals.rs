//! Refusals: held by others, queue full, contention; and that a refusal leaves no trace.

#![expect(clippy::panic, clippy::indexing_slicing, reason = "helpers of tests fail like tests")]

use ade_domain::lock::{Acquire, LockRefusal, Mode, Standing, Wait};

use super::Opener;
use super::play::{Play, ends, hint, with};

use Mode::{Exclusive, Shared};

scenarios!(
    who_does_not_wait_is_told_who_holds,
    a_refusal_is_not_remembered,
    a_full_queue_refuses,
    a_crowd_at_a_full_queue_opens_the_circuit,
    refusals_that_are_far_apart_are_no_crowd,
    a_waiter_gives_up_at_its_own_deadline_at_any_place,
);

async fn who_does_not_wait_is_told_who_holds(opener: Opener) {
    let play = Play::usual(&opener).await;
    let wish = Acquire { purpose: "migration".into(), ..play.wish("ann", "1", Exclusive) };
    let grant = play.grant("p", wish).await;
    play.position("p", play.wish("cem", "1", Shared)).await;
    for mode in [Shared, Exclusive] {
        let LockRefusal::Held { holders, queue_length } =
            play.refused("p", play.at_once("ben", "1", mode)).await
        else {
            panic!("held by others")
        };
        assert_eq!((holders.len(), queue_length), (1, 1));
        assert_eq!((&holders[0].holder, &*holders[0].purpose), (&play.holder("ann"), "migration"));
        assert_eq!(holders[0].grant, grant);
    }
    assert_eq!(play.queue("p").await, ["cem"], "who does not wait takes no place");
}

async fn a_refusal_is_not_remembered(opener: Opener) {
    let play = Play::usual(&opener).await;
    play.grant("p", play.wish("ann", "1", Exclusive)).await;
    play.refused("p", play.at_once("ben", "1", Exclusive)).await;
    play.release("p", "ann").await;
    play.grant("p", play.at_once("ben", "1", Exclusive)).await;
}

async fn a_full_queue_refuses(opener: Opener) {
    let play = Play::open(&opener, with(|rules| rules.max_queue = 2)).await;
    play.grant("p", play.wish("ann", "1", Exclusive)).await;
    for name in ["w1", "w2"] {
        play.position("p", play.wish(name, "1", Exclusive)).await;
    }
    let refused = play.refused("p", play.wish("w3", "1", Shared)).await;
    assert_eq!(refused, LockRefusal::QueueFull { queue_length: 2 });
    assert_eq!(play.position("p", play.wish("w2", "1", Exclusive)).await, 2, "who waits already may ask");
    play.release("p", "ann").await;
    assert_eq!(play.position("p", play.wish("w3", "1", Shared)).await, 2, "it may try again");
}

async fn a_crowd_at_a_full_queue_opens_the_circuit(opener: Opener) {
    let setting = with(|rules| {
        (rules.max_queue, rules.crowded_after, rules.crowded_for_ms) = (1, 3, 2_000);
        rules.crowded_within_ms = 60_000;
    });
    let play = Play::open(&opener, setting).await;
    play.grant("p", play.wish("ann", "1", Exclusive)).await;
    play.position("p", play.wish("ben", "1", Exclusive)).await;
    let mut before = play.now();
    for n in 0..3 {
        before = play.now();
        let refused = play.refused("p", play.wish(&format!("x{n}"), "1", Exclusive)).await;
        assert_eq!(refused, LockRefusal::QueueFull { queue_length: 1 }, "{n}");
    }
    let opened = before..=play.now();
    play.release("p", "ann").await;
    for wish in [play.wish("y", "1", Exclusive), play.at_once("y", "1", Shared)] {
        match play.refused("p", wish).await {
            LockRefusal::Contention { retry_at } => assert!(ends(opened.clone(), 2_000).contains(&retry_at)),
            other => panic!("although there is room by now: {other:?}"),
        }
    }
    play.grant("p", play.wish("ben", "1", Exclusive)).await;
    play.grant("q", play.wish("y", "1", Exclusive)).await;
    play.pass(2_100).await;
    assert_eq!(play.position("p", play.wish("y", "1", Exclusive)).await, 1, "it is closed again");
}

async fn refusals_that_are_far_apart_are_no_crowd(opener: Opener) {
    let setting = with(|rules| {
        (rules.max_queue, rules.crowded_after, rules.crowded_within_ms) = (0, 2, 200);
    });
    let play = Play::open(&opener, setting).await;
    play.grant("p", play.wish("ann", "1", Exclusive)).await;
    for n in 0..3 {
        let refused = play.refused("p", play.wish(&format!("x{n}"), "1", Exclusive)).await;
        assert_eq!(refused, LockRefusal::QueueFull { queue_length: 0 }, "{n}");
        play.pass(250).await;
    }
}

async fn a_waiter_gives_up_at_its_own_deadline_at_any_place(opener: Opener) {
    let play = Play::usual(&opener).await;
    play.grant("p", play.wish("ann", "1", Exclusive)).await;
    play.position("p", play.wish("long", "1", Exclusive)).await;
    let wait = Some(Wait { ms: 300, served_by: Some("server".into()) });
    let short = Acquire { wait, ..play.wish("short", "1", Exclusive) };
    let before = play.now();
    match play.acquire("p", short.clone()).await {
        Standing::Waiting { position: 2, deadline } => {
            assert!(ends(before..=play.now(), 300).contains(&deadline));
        }
        other => panic!("{other:?}"),
    }
    play.position("p", play.wish("last", "1", Exclusive)).await;
    let watch = play.port.watch(short.request);
    play.pass(400).await;
    play.sweep().await;
    hint(&watch).await;
    assert_eq!(play.queue("p").await, ["long", "last"]);
    assert_eq!(play.position("p", short).await, 3, "it may try again");
}
