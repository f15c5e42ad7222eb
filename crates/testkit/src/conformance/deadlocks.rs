//! Deadlocks: every cycle is ended where it closes, the youngest gives way, and the rest goes on.

#![expect(clippy::panic, clippy::indexing_slicing, reason = "helpers of tests fail like tests")]

use ade_domain::lock::{Acquire, Deadlock, End, Mode, Standing};

use super::Opener;
use super::play::{Play, hint, with};

use Mode::{Exclusive, Shared};

scenarios!(
    a_ring_of_two,
    a_ring_of_three,
    a_ring_of_ten,
    rings_with_sharers,
    an_older_one_that_closes_the_cycle_wins,
    everything_the_victim_holds_is_freed,
    two_upgraders_are_a_deadlock,
    a_wait_behind_a_waiter_counts,
    priority_does_not_save_the_youngest,
    the_victim_keeps_its_age_and_does_not_starve,
    an_age_is_forgotten_after_its_time,
    detection_can_be_switched_off,
    waiting_without_a_cycle_is_no_deadlock,
);

/// Each holds one lock and waits for the next one's; the last closes the ring and is the youngest.
async fn ring(play: &Play, parties: usize, first: Mode, second: Mode) {
    let kind = format!("{}-{}-{parties}", first.word(), second.word());
    let name = |n: usize| format!("{kind}-{:02}", n % parties);
    for n in 0..parties {
        play.grant(&name(n), play.wish(&name(n), "hold", first)).await;
        play.pass(2).await;
    }
    for n in 0..parties - 1 {
        play.position(&name(n + 1), play.wish(&name(n), "wait", second)).await;
    }
    let last = name(parties - 1);
    let (standing, ended) = play.acquire_all(&name(parties), play.wish(&last, "wait", second)).await;
    let [Deadlock { cycle, victim, freed }] = &ended[..] else { panic!("one cycle: {ended:?}") };
    assert_eq!(standing, Standing::Over(End::Deadlock(cycle.clone())));
    assert_eq!((victim, &freed[..]), (&play.holder(&last), &[play.lock(&last)][..]));
    let order: Vec<String> = cycle.iter().map(|edge| play.short(&edge.holder)).collect();
    let expected: Vec<String> = (0..parties).map(|n| name(parties - 1 + n)).collect();
    assert_eq!(order, expected, "the cycle in order, from whoever closed it");
    for (at, edge) in cycle.iter().enumerate() {
        assert_eq!(edge.waits_for, play.lock(&name(parties + at)));
        assert_eq!(edge.request, play.key(&order[at], "wait"));
    }
    assert_eq!(play.holders(&last).await, [name(parties - 2)], "its lock went on to who waited for it");
    assert!(play.queue(&name(parties)).await.is_empty());
    let again = play.gives_way(&name(parties), play.wish(&last, "wait", second)).await;
    assert_eq!(&again, cycle, "a repetition is told the same");
}

async fn a_ring_of_two(opener: Opener) {
    ring(&Play::usual(&opener).await, 2, Exclusive, Exclusive).await;
}

async fn a_ring_of_three(opener: Opener) {
    ring(&Play::usual(&opener).await, 3, Exclusive, Exclusive).await;
}

async fn a_ring_of_ten(opener: Opener) {
    ring(&Play::usual(&opener).await, 10, Exclusive, Exclusive).await;
}

async fn rings_with_sharers(opener: Opener) {
    let play = Play::usual(&opener).await;
    for parties in [2, 3] {
        ring(&play, parties, Exclusive, Shared).await;
        ring(&play, parties, Shared, Exclusive).await;
    }
}

/// Ann holds `p`, then ben holds `q`.
async fn two_holders(play: &Play) {
    play.grant("p", play.wish("ann", "hold", Exclusive)).await;
    play.pass(2).await;
    play.grant("q", play.wish("ben", "hold", Exclusive)).await;
}

async fn an_older_one_that_closes_the_cycle_wins(opener: Opener) {
    let play = Play::usual(&opener).await;
    two_holders(&play).await;
    play.position("p", play.wish("ben", "wait", Exclusive)).await;
    let watch = play.port.watch(play.key("ben", "wait"));
    let (standing, ended) = play.acquire_all("q", play.wish("ann", "wait", Exclusive)).await;
    assert!(matches!(standing, Standing::Held(_)), "ben gave way at once: {standing:?}");
    assert_eq!(ended.len(), 1);
    assert_eq!(ended[0].victim, play.holder("ben"));
    hint(&watch).await;
    let cycle = play.gives_way("p", play.wish("ben", "wait", Exclusive)).await;
    assert_eq!(cycle, ended[0].cycle);
    assert!(matches!(play.over("q", play.wish("ben", "hold", Exclusive)).await, End::Deadlock(_)));
    assert_eq!((play.holders("p").await, play.holders("q").await), (vec!["ann".into()], vec!["ann".into()]));
}

async fn everything_the_victim_holds_is_freed(opener: Opener) {
    let play = Play::usual(&opener).await;
    two_holders(&play).await;
    play.grant("r", play.wish("ben", "more", Exclusive)).await;
    play.position("r", play.wish("cem", "1", Exclusive)).await;
    play.position("q", play.wish("ann", "wait", Exclusive)).await;
    let (_, ended) = play.acquire_all("p", play.wish("ben", "wait", Exclusive)).await;
    let mut freed = ended[0].freed.clone();
    freed.sort();
    assert_eq!(freed, [play.lock("q"), play.lock("r")]);
    assert_eq!((play.holders("q").await, play.holders("r").await), (vec!["ann".into()], vec!["cem".into()]));
}

async fn two_upgraders_are_a_deadlock(opener: Opener) {
    let play = Play::usual(&opener).await;
    let old = play.grant("p", play.wish("old", "1", Shared)).await;
    play.pass(2).await;
    play.grant("p", play.wish("young", "1", Shared)).await;
    play.position("p", play.wish("old", "2", Exclusive)).await;
    let cycle = play.gives_way("p", play.wish("young", "2", Exclusive)).await;
    assert_eq!(cycle.len(), 2);
    let view = play.look("p").await;
    assert_eq!((view.mode, view.holders.len()), (Some(Exclusive), 1));
    assert_eq!(view.holders[0].holder, play.holder("old"));
    assert!(view.holders[0].grant.token > old.token);
}

async fn a_wait_behind_a_waiter_counts(opener: Opener) {
    let play = Play::usual(&opener).await;
    play.grant("p", play.wish("zed", "hold", Exclusive)).await;
    play.grant("q", play.wish("cem", "hold", Exclusive)).await;
    play.pass(2).await;
    play.grant("r", play.wish("ben", "hold", Exclusive)).await;
    play.position("p", play.wish("ben", "first", Exclusive)).await;
    play.position("p", play.wish("cem", "behind", Exclusive)).await;
    // Ben waits for cem's lock, and cem stands behind ben: who holds `p` meanwhile does not matter.
    let (standing, ended) = play.acquire_all("q", play.wish("ben", "second", Exclusive)).await;
    assert_eq!(ended.len(), 1, "{standing:?}");
    let order: Vec<String> = ended[0].cycle.iter().map(|edge| play.short(&edge.holder)).collect();
    assert_eq!((order, &ended[0].victim), (vec!["ben".into(), "cem".into()], &play.holder("ben")));
    assert_eq!(play.queue("p").await, ["cem"], "all its waits fail, not only the one that closed the cycle");
    play.gives_way("p", play.wish("ben", "first", Exclusive)).await;
    assert!(play.holders("r").await.is_empty());
}

async fn priority_does_not_save_the_youngest(opener: Opener) {
    let play = Play::usual(&opener).await;
    two_holders(&play).await;
    play.position("q", Acquire { priority: -5, ..play.wish("ann", "wait", Exclusive) }).await;
    play.gives_way("p", Acquire { priority: 100, ..play.wish("ben", "wait", Exclusive) }).await;
}

/// Ben gives way to ann, and after some time meets cem, who came before it came back. Who gives way then.
async fn second_meeting(play: &Play, after_ms: u64) -> (Standing, String) {
    two_holders(play).await;
    play.position("q", play.wish("ann", "wait", Exclusive)).await;
    play.gives_way("p", play.wish("ben", "wait", Exclusive)).await;
    play.pass(after_ms).await;
    play.grant("r", play.wish("cem", "hold", Exclusive)).await;
    play.pass(2).await;
    play.grant("s", play.wish("ben", "again", Exclusive)).await;
    play.position("s", play.wish("cem", "wait", Exclusive)).await;
    let (standing, ended) = play.acquire_all("r", play.wish("ben", "again", Exclusive)).await;
    assert_eq!(ended.len(), 1, "{standing:?}");
    (standing, play.short(&ended[0].victim))
}

async fn the_victim_keeps_its_age_and_does_not_starve(opener: Opener) {
    let play = Play::usual(&opener).await;
    let (standing, victim) = second_meeting(&play, 2).await;
    assert!(matches!(standing, Standing::Held(_)), "{standing:?}");
    assert_eq!(victim, "cem", "ben counts as old as at its first try");
}

async fn an_age_is_forgotten_after_its_time(opener: Opener) {
    let play = Play::open(&opener, with(|rules| rules.repeat_ms = 300)).await;
    assert_eq!(second_meeting(&play, 400).await.1, "ben");
}

async fn detection_can_be_switched_off(opener: Opener) {
    let play = Play::open(&opener, with(|rules| rules.deadlock_detection = false)).await;
    two_holders(&play).await;
    play.position("q", play.wish("ann", "wait", Exclusive)).await;
    let (standing, ended) = play.acquire_all("p", play.wish("ben", "wait", Exclusive)).await;
    assert!(matches!(standing, Standing::Waiting { position: 1, .. }), "{standing:?}");
    assert_eq!(ended, []);
    assert_eq!(play.sweep().await, []);
    assert_eq!((play.queue("p").await, play.queue("q").await), (vec!["ben".into()], vec!["ann".into()]));
}

async fn waiting_without_a_cycle_is_no_deadlock(opener: Opener) {
    let play = Play::usual(&opener).await;
    two_holders(&play).await;
    for (name, who) in [("p", "cem"), ("p", "dee"), ("q", "eva")] {
        let (standing, ended) = play.acquire_all(name, play.wish(who, "1", Shared)).await;
        assert!(matches!(standing, Standing::Waiting { .. }), "{standing:?}");
        assert_eq!(ended, []);
    }
    let (_, ended) = play.acquire_all("p", play.wish("ben", "wait", Exclusive)).await;
    assert_eq!(ended, []);
    assert!(play.sweep().await.is_empty());
    assert_eq!(play.queue("p").await, ["cem", "dee", "ben"]);
}
