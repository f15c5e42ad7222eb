//! The machine of one lock, row by row: who is granted, queued, refused, told what, and when.

use crate::world::{World, copy, holder, lock, wish};
use ade_domain::lock::{
    Acquire, End, Holder, LockCommand, LockLimits, LockRefusal, Mode, Outcome, RequestKey, Standing, Token,
    Wait,
};

use Mode::{Exclusive, Shared};

fn new() -> World {
    World::new(LockLimits::default())
}

fn patient(who: &str, request: &str, mode: Mode, served_by: &str) -> Acquire {
    let wait = Some(Wait { ms: 60_000, served_by: Some(served_by.into()) });
    Acquire { wait, ..wish(who, request, mode) }
}

fn at_once(who: &str, request: &str, mode: Mode) -> Acquire {
    Acquire { wait: None, ..wish(who, request, mode) }
}

fn over(standing: Standing) -> End {
    match standing {
        Standing::Over(end) => end,
        other => panic!("not over: {other:?}"),
    }
}

#[test]
fn free_locks_are_granted_with_token_and_lease() {
    let mut world = new();
    let grant = world.grant("p", wish("ann", "1", Exclusive));
    assert_eq!(grant.token.number(), world.now.micros());
    assert_eq!(grant.acquired_at, world.now);
    assert_eq!(grant.expires_at, world.now.plus_ms(30_000));
    let next = {
        world.release("p", "ann");
        world.grant("p", wish("ben", "1", Exclusive))
    };
    assert!(next.token > grant.token, "also within the same microsecond");
}

#[test]
fn who_holds_already_gets_the_same_grant_and_one_release_frees_it() {
    let mut world = new();
    let first = world.grant("p", wish("ann", "1", Exclusive));
    world.pass(1_000);
    for (request, mode) in [("2", Exclusive), ("3", Shared)] {
        let again = world.grant("p", wish("ann", request, mode));
        assert_eq!((again.token, again.mode), (first.token, Exclusive));
        assert_eq!(again.expires_at, world.now.plus_ms(30_000), "it lasts as long as was asked");
    }
    assert_eq!(world.release("p", "ann"), Outcome::Done);
    assert!(world.holders("p").is_empty());
    for request in ["1", "2", "3"] {
        let late = over(world.acquire("p", wish("ann", request, Exclusive)));
        assert_eq!(late, End::Released, "none of the requests comes back");
    }
}

#[test]
fn who_does_not_wait_is_told_who_holds() {
    let mut world = new();
    world.grant("p", Acquire { purpose: "migration".into(), ..wish("ann", "1", Exclusive) });
    world.position("p", wish("cem", "1", Shared));
    match world.acquire("p", at_once("ben", "1", Shared)) {
        Standing::Refused(LockRefusal::Held { holders, queue_length: 1 }) => {
            assert_eq!(holders.len(), 1);
            assert_eq!((holders[0].holder.agent_id(), &*holders[0].purpose), ("ann", "migration"));
        }
        other => panic!("{other:?}"),
    }
    world.release("p", "ann");
    world.release("p", "cem");
    world.grant("p", at_once("ben", "1", Shared));
}

#[test]
fn sharers_do_not_pass_a_writer_and_are_granted_together() {
    let mut world = new();
    world.grant("p", wish("s0", "1", Shared));
    world.grant("p", wish("s1", "1", Shared));
    assert_eq!(world.position("p", wish("w1", "1", Exclusive)), 1);
    for (at, name) in ["s2", "s3", "s4"].iter().enumerate() {
        assert_eq!(world.position("p", wish(name, "1", Shared)), at + 2);
    }
    world.position("p", wish("w2", "1", Exclusive));
    world.position("p", wish("s5", "1", Shared));
    world.release("p", "s0");
    assert_eq!(world.holders("p"), ["s1"]);
    world.release("p", "s1");
    assert_eq!(world.holders("p"), ["w1"]);
    world.release("p", "w1");
    assert_eq!(world.holders("p"), ["s2", "s3", "s4"]);
    assert_eq!(world.queue("p"), ["w2", "s5"]);
}

#[test]
fn a_long_run_of_sharers_is_granted_in_bounded_steps() {
    let mut world = new();
    world.grant("p", wish("writer", "1", Exclusive));
    for n in 0..300 {
        world.position("p", wish(&format!("s{n:03}"), "1", Shared));
    }
    // `check` would complain that the next sharer could hold: the step is not the whole story, the sweep is.
    let token = world.table.lock(&lock("p")).expect("held").last_token();
    let release = LockCommand::Release { holder: holder("writer"), token };
    let mut steps = 0;
    world.table.command(&lock("p"), &release, world.now, &mut Vec::new());
    while let Some(name) = world.table.first_due(world.now) {
        let mut entries = Vec::new();
        world.table.command(&name, &LockCommand::Tick, world.now, &mut entries);
        assert!(entries.len() <= 3 * LockLimits::default().batch, "{} changes in one step", entries.len());
        steps += 1;
    }
    assert_eq!(world.holders("p").len(), 300);
    assert!(steps > 0);
}

#[test]
fn an_upgrade_comes_first_and_gets_a_new_token() {
    let mut world = new();
    let shared = world.grant("p", wish("ann", "1", Shared));
    world.grant("p", wish("ben", "1", Shared));
    world.position("p", wish("cem", "1", Exclusive));
    assert_eq!(world.position("p", wish("ann", "2", Exclusive)), 1, "ahead of others");
    world.release("p", "ben");
    assert_eq!(world.holders("p"), ["ann"]);
    let hold = world.table.lock(&lock("p")).expect("held").holds()[0].clone();
    assert_eq!(hold.mode, Exclusive);
    assert!(hold.token > shared.token);
    // The only holder upgrades at once, whoever waits.
    let mut world = new();
    let shared = world.grant("p", wish("ann", "1", Shared));
    world.position("p", wish("ben", "1", Exclusive));
    let exclusive = world.grant("p", wish("ann", "2", Exclusive));
    assert!(exclusive.token > shared.token);
    let command = LockCommand::Extend { holder: holder("ann"), token: shared.token, ms: 1 };
    assert_eq!(world.send(&lock("p"), &command).outcome, Outcome::Lost, "the old token is over");
}

#[test]
fn an_unclaimed_upgrade_falls_back_to_the_shared_hold() {
    let mut world = new();
    let shared = world.grant("p", wish("ann", "1", Shared));
    let upgrade = Acquire { claimed: false, ..wish("ann", "2", Exclusive) };
    let exclusive = world.grant("p", upgrade.clone());
    assert!(!exclusive.claimed);
    let command = LockCommand::Cancel {
        holder: holder("ann"),
        request: upgrade.request,
        why: End::Refused,
        begun: false,
    };
    world.send(&lock("p"), &command);
    let command = LockCommand::Extend { holder: holder("ann"), token: shared.token, ms: 1 };
    assert!(matches!(world.send(&lock("p"), &command).outcome, Outcome::Kept(grant) if grant.mode == Shared));
}

#[test]
fn a_downgraded_upgrade_keeps_its_later_wait() {
    let mut world = new();
    world.grant("p", wish("ann", "1", Shared));
    let exclusive = world.grant("p", Acquire { claimed: false, ..wish("ann", "2", Exclusive) });
    world.send(&lock("p"), &LockCommand::Downgrade { holder: holder("ann"), token: exclusive.token });
    world.grant("p", wish("ben", "1", Shared));
    world.position("p", wish("ann", "3", Exclusive));
    world.pass(10_000);
    world.sweep();
    assert_eq!((world.holders("p"), world.queue("p")), (vec!["ben".to_owned()], vec!["ann".to_owned()]));
}

#[test]
fn an_upgrader_that_loses_its_hold_waits_like_others() {
    let mut world = new();
    world.grant("p", wish("ann", "1", Shared));
    world.grant("p", wish("ben", "1", Shared));
    world.position("p", wish("cem", "1", Exclusive));
    world.pass(1);
    world.position("p", wish("ann", "2", Exclusive));
    assert_eq!(world.queue("p"), ["ann", "cem"]);
    world.release("p", "ann");
    assert_eq!(world.queue("p"), ["cem", "ann"]);
}

#[test]
fn a_downgrade_lets_the_leading_sharers_in() {
    let mut world = new();
    let grant = world.grant("p", wish("ann", "1", Exclusive));
    world.position("p", wish("s1", "1", Shared));
    world.position("p", wish("s2", "1", Shared));
    world.position("p", wish("w", "1", Exclusive));
    let command = LockCommand::Downgrade { holder: holder("ann"), token: grant.token };
    let outcome = world.send(&lock("p"), &command).outcome;
    assert!(matches!(outcome, Outcome::Kept(kept) if kept.token == grant.token && kept.mode == Shared));
    assert_eq!(world.holders("p"), ["ann", "s1", "s2"]);
    assert_eq!(world.queue("p"), ["w"]);
}

#[test]
fn leases_end_heartbeats_extend_and_never_shorten() {
    let mut world = new();
    let grant = world.grant("p", wish("ann", "1", Exclusive));
    world.position("p", wish("ben", "1", Exclusive));
    let extend = |ms| LockCommand::Extend { holder: holder("ann"), token: grant.token, ms };
    world.pass(20_000);
    for (ms, left_ms) in [(30_000, 30_000), (1, 30_000), (60_000, 60_000)] {
        match world.send(&lock("p"), &extend(ms)).outcome {
            Outcome::Kept(kept) => assert_eq!(kept.expires_at, world.now.plus_ms(left_ms)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(world.table.lock(&lock("p")).expect("held").holds()[0].heartbeat_count, 3);
    world.position("p", wish("cem", "1", Exclusive));
    world.pass(59_999);
    world.sweep();
    assert_eq!(world.holders("p"), ["ann"]);
    world.pass(1);
    world.sweep();
    assert!(world.holders("p").is_empty(), "ben had given up, cem too");
    assert_eq!(world.send(&lock("p"), &extend(1)).outcome, Outcome::Lost);
    assert_eq!(over(world.acquire("p", wish("ann", "1", Exclusive))), End::Expired);
}

#[test]
fn expiry_promotes_the_next_without_anybody_asking() {
    let mut world = new();
    world.grant("p", wish("ann", "1", Exclusive));
    world.position("p", Acquire { ttl_ms: 5_000, ..patient("ben", "1", Exclusive, "server") });
    for _ in 0..30 {
        world.pass(1_000);
        world.send(&lock("p"), &LockCommand::Mark { server: "server".into() });
    }
    assert_eq!(world.holders("p"), ["ben"]);
    // Whom a server serves, the server claims; else the grant does not last.
    let request = RequestKey::of(&holder("ben"), "1");
    let claim = LockCommand::Claim { holder: holder("ben"), request, ttl_ms: 5_000 };
    let Outcome::Kept(grant) = world.send(&lock("p"), &claim).outcome else { panic!("claimed") };
    assert_eq!(grant.expires_at, world.now.plus_ms(5_000));
    world.pass(1_000);
    let Outcome::Kept(again) = world.send(&lock("p"), &claim).outcome else { panic!("claimed") };
    assert_eq!(again, grant, "a repeated claim finds the lease running");
}

#[test]
fn an_unclaimed_grant_goes_on_to_the_next() {
    let mut world = new();
    world.grant("p", wish("ann", "1", Exclusive));
    world.position("p", wish("ticket", "1", Exclusive));
    world.position("p", wish("next", "1", Exclusive));
    world.release("p", "ann");
    world.pass(9_999);
    world.sweep();
    assert_eq!(world.holders("p"), ["ticket"]);
    world.pass(1);
    world.sweep();
    assert_eq!(world.holders("p"), ["next"]);
    assert_eq!(over(world.acquire("p", wish("ticket", "1", Exclusive))), End::Unclaimed);
}

#[test]
fn waiters_of_a_silent_server_are_skipped() {
    let mut world = new();
    world.grant("p", wish("ann", "1", Exclusive));
    world.position("p", patient("dead", "1", Exclusive, "silent"));
    world.position("p", patient("live", "1", Exclusive, "alive"));
    for _ in 0..3 {
        world.pass(1_000);
        world.send(&lock("p"), &LockCommand::Mark { server: "alive".into() });
    }
    world.release("p", "ann");
    assert_eq!(world.holders("p"), ["live"]);
    // It may queue again once its server is back: it was not its fault.
    assert_eq!(world.position("p", patient("dead", "1", Exclusive, "silent")), 1);
}

#[test]
fn a_repeated_request_regains_its_place_on_another_server() {
    let mut world = new();
    world.grant("p", wish("ann", "1", Exclusive));
    world.position("p", patient("ben", "1", Exclusive, "old"));
    world.position("p", patient("cem", "1", Exclusive, "new"));
    world.pass(2_900);
    assert_eq!(world.position("p", patient("ben", "1", Exclusive, "new")), 1);
    world.pass(2_900);
    world.release("p", "ann");
    assert_eq!(world.holders("p"), ["ben"]);
}

#[test]
fn a_holder_waits_once_and_its_newer_request_takes_the_place() {
    let mut world = new();
    world.grant("p", wish("ann", "1", Exclusive));
    world.position("p", wish("ben", "1", Exclusive));
    world.position("p", wish("cem", "1", Exclusive));
    assert_eq!(world.position("p", wish("ben", "2", Exclusive)), 1, "the same mode keeps the place");
    assert_eq!(over(world.acquire("p", wish("ben", "1", Exclusive))), End::Superseded);
    assert_eq!(world.position("p", wish("ben", "3", Shared)), 2, "another mode starts anew");
    assert!(matches!(world.acquire("p", at_once("ben", "4", Shared)), Standing::Refused(_)));
    assert_eq!(world.queue("p"), ["cem", "ben"], "who does not wait takes no place");
}

#[test]
fn a_full_queue_refuses_and_a_crowd_opens_the_circuit() {
    let mut world = World::new(LockLimits { max_queue: 3, ..LockLimits::default() });
    world.grant("p", wish("ann", "1", Exclusive));
    for n in 0..3 {
        world.position("p", wish(&format!("w{n}"), "1", Exclusive));
    }
    for n in 0..100 {
        let refused = world.acquire("p", wish(&format!("x{n}"), "1", Exclusive));
        assert_eq!(refused, Standing::Refused(LockRefusal::QueueFull { queue_length: 3 }), "{n}");
    }
    let retry_at = world.now.plus_ms(5_000);
    world.release("p", "ann");
    let refused = world.acquire("p", wish("y", "1", Exclusive));
    assert_eq!(
        refused,
        Standing::Refused(LockRefusal::Contention { retry_at }),
        "although there is room by now"
    );
    assert_eq!(world.position("p", wish("w2", "1", Exclusive)), 2, "who waits already is not turned away");
    world.pass(5_000);
    assert_eq!(world.position("p", wish("y", "1", Exclusive)), 3);
    // Ninety-nine, and a pause, do not make a crowd.
    for _ in 0..2 {
        for n in 0..99 {
            world.acquire("p", wish(&format!("z{n}"), "2", Exclusive));
        }
        world.pass(10_000);
    }
    assert!(!matches!(
        world.acquire("p", at_once("q", "1", Shared)),
        Standing::Refused(LockRefusal::Contention { .. })
    ));
}

#[test]
fn waiters_give_up_at_their_own_deadline_at_any_place() {
    let mut world = new();
    world.grant("p", Acquire { ttl_ms: 300_000, ..wish("ann", "1", Exclusive) });
    world.position("p", wish("long", "1", Exclusive));
    world.position(
        "p",
        Acquire { wait: Some(Wait { ms: 5, served_by: None }), ..wish("short", "1", Exclusive) },
    );
    world.position("p", wish("last", "1", Exclusive));
    world.pass(5);
    world.sweep();
    assert_eq!(world.queue("p"), ["long", "last"]);
    assert_eq!(
        world.position("p", wish("short", "1", Exclusive)),
        3,
        "it may try again: a refusal is not remembered"
    );
}

#[test]
fn cancelled_and_released_requests_do_not_come_back() {
    let mut world = new();
    let request = RequestKey::of(&holder("ben"), "1");
    let cancel = LockCommand::Cancel { holder: holder("ben"), request, why: End::Cancelled, begun: false };
    world.send(&lock("p"), &cancel);
    assert_eq!(
        over(world.acquire("p", wish("ben", "1", Exclusive))),
        End::Cancelled,
        "the cancel came first"
    );
    world.grant("p", wish("ann", "1", Exclusive));
    world.position("p", wish("ben", "2", Exclusive));
    let request = RequestKey::of(&holder("ben"), "2");
    world.send(
        &lock("p"),
        &LockCommand::Cancel { holder: holder("ben"), request, why: End::Cancelled, begun: false },
    );
    assert!(world.queue("p").is_empty());
    assert_eq!(over(world.acquire("p", wish("ben", "2", Exclusive))), End::Cancelled);
    world.release("p", "ann");
    assert_eq!(over(world.acquire("p", wish("ann", "1", Exclusive))), End::Released);
    world.pass(600_000);
    world.grant("p", wish("ann", "1", Exclusive));
}

#[test]
fn wrong_tokens_change_nothing() {
    let mut world = new();
    let grant = world.grant("p", wish("ann", "1", Exclusive));
    for token in [Token::default(), Token::shown(grant.token.number() + 1), Token::shown(u64::MAX)] {
        for who in ["ann", "ben"] {
            for command in [
                LockCommand::Extend { holder: holder(who), token, ms: 1 },
                LockCommand::Release { holder: holder(who), token },
                LockCommand::Downgrade { holder: holder(who), token },
                LockCommand::Verify { token },
            ] {
                assert_eq!(world.send(&lock("p"), &command).outcome, Outcome::Lost, "{command:?}");
                assert_eq!(world.last, [], "{command:?}");
            }
        }
    }
    let release = LockCommand::Release { holder: holder("ben"), token: grant.token };
    assert_eq!(world.send(&lock("p"), &release).outcome, Outcome::Lost, "another's token");
    let verify = LockCommand::Verify { token: grant.token };
    assert!(
        matches!(world.send(&lock("p"), &verify).outcome, Outcome::Valid(by) if by.holder == holder("ann"))
    );
}

#[test]
fn a_break_frees_everybody_and_the_queue_goes_on() {
    let mut world = new();
    world.grant("p", wish("s1", "1", Shared));
    world.grant("p", wish("s2", "1", Shared));
    world.position("p", wish("w", "1", Exclusive));
    let Outcome::Broken(held) = world.send(&lock("p"), &LockCommand::Break).outcome else { panic!("broken") };
    assert_eq!(held.len(), 2);
    assert_eq!(world.holders("p"), ["w"]);
    assert_eq!(over(world.acquire("p", wish("s1", "1", Shared))), End::Broken);
}

fn cancel(who: &str, request: &str, why: End) -> LockCommand {
    LockCommand::Cancel {
        holder: holder(who),
        request: RequestKey::of(&holder(who), request),
        why,
        begun: false,
    }
}

#[test]
fn a_lease_that_has_begun_is_not_given_back_by_a_late_failure() {
    for why in [End::Refused, End::TimedOut, End::HungUp] {
        let mut world = new();
        world.grant("p", wish("ann", "1", Exclusive));
        world.send(&lock("p"), &cancel("ann", "1", why.clone()));
        assert_eq!(world.holders("p"), ["ann"], "{why:?}");
    }
    let mut world = new();
    world.grant("p", wish("ann", "1", Exclusive));
    world.send(&lock("p"), &cancel("ann", "1", End::Cancelled));
    assert!(world.holders("p").is_empty(), "its holder may");
}

#[test]
fn a_grant_that_is_shared_by_requests_stays_for_the_others() {
    for claimed in [true, false] {
        let mut world = new();
        world.grant("p", Acquire { claimed: false, ..wish("eva", "a", Exclusive) });
        world.grant("p", Acquire { claimed, ..wish("eva", "b", Exclusive) });
        world.send(&lock("p"), &cancel("eva", "a", End::TimedOut));
        assert_eq!(world.holders("p"), ["eva"], "claimed: {claimed}");
        world.grant("p", wish("eva", "b", Exclusive));
    }
}

#[test]
fn requests_that_share_a_grant_are_bounded_and_none_comes_back() {
    let mut world = new();
    for n in 0..40 {
        world.grant("p", wish("ann", &n.to_string(), Exclusive));
    }
    world.release("p", "ann");
    for n in 0..40 {
        over(world.acquire("p", wish("ann", &n.to_string(), Exclusive)));
    }
}

#[test]
fn an_upgrade_that_fails_in_any_way_leaves_the_shared_hold_and_its_token() {
    for why in [End::Refused, End::TimedOut, End::HungUp, End::Cancelled] {
        let mut world = new();
        let shared = world.grant("p", wish("dan", "1", Shared));
        world.grant("p", Acquire { claimed: false, ..wish("dan", "2", Exclusive) });
        let extend = LockCommand::Extend { holder: holder("dan"), token: shared.token, ms: 60_000 };
        let outcome = world.send(&lock("p"), &extend).outcome;
        assert!(matches!(outcome, Outcome::Kept(grant) if grant.token == shared.token), "heartbeats go on");
        let verify = LockCommand::Verify { token: shared.token };
        assert!(matches!(world.send(&lock("p"), &verify).outcome, Outcome::Valid(_)));
        world.send(&lock("p"), &cancel("dan", "2", why.clone()));
        world.pass(59_000);
        world.sweep();
        assert_eq!(world.holders("p"), ["dan"], "{why:?}");
        let outcome = world.send(&lock("p"), &extend).outcome;
        assert!(matches!(outcome, Outcome::Kept(grant) if grant.mode == Shared), "{why:?}");
    }
}

#[test]
fn a_dead_waiter_blocks_nobody_behind_it_wherever_it_stands() {
    let mut world = new();
    world.grant("p", Acquire { ttl_ms: 300_000, ..wish("s1", "1", Shared) });
    world.position("p", patient("ghost", "1", Exclusive, "silent"));
    world.position("p", wish("s2", "1", Shared));
    world.pass(3_000);
    world.sweep();
    assert_eq!(world.holders("p"), ["s1", "s2"]);
    assert!(world.queue("p").is_empty());
}

#[test]
fn a_request_that_failed_leaves_the_grant_of_another_alone_also_if_it_had_begun_the_lease() {
    let mut world = new();
    world.grant("p", Acquire { claimed: false, ..wish("eva", "m", Exclusive) });
    world.grant("p", wish("eva", "s", Exclusive));
    let (holder, request) = (holder("eva"), RequestKey::of(&holder("eva"), "m"));
    world.send(&lock("p"), &LockCommand::Cancel { holder, request, why: End::Refused, begun: true });
    assert_eq!(world.holders("p"), ["eva"], "s was told of it");
}

#[test]
fn a_refused_request_has_no_part_in_a_grant_any_more() {
    let mut world = new();
    world.grant("p", wish("ann", "r0", Exclusive));
    for n in 0..40 {
        let request = format!("refused-{n}");
        world.grant("p", Acquire { claimed: false, ..wish("ann", &request, Exclusive) });
        world.send(&lock("p"), &cancel("ann", &request, End::Refused));
    }
    world.grant("p", wish("ann", "r0", Exclusive));
    world.release("p", "ann");
    assert_eq!(over(world.acquire("p", wish("ann", "r0", Exclusive))), End::Released);
    world.grant("p", wish("ann", "refused-1", Exclusive));
}

#[test]
fn requests_of_the_hold_under_an_upgrade_are_known_and_do_not_come_back() {
    let mut world = new();
    let shared = world.grant("p", wish("dan", "r0", Shared));
    world.grant("p", Acquire { claimed: false, ..wish("dan", "up", Exclusive) });
    assert_eq!(world.grant("p", wish("dan", "r0", Shared)).token, shared.token);
    let inquire =
        LockCommand::Inquire { holder: holder("dan"), request: RequestKey::of(&holder("dan"), "r0") };
    let outcome = world.send(&lock("p"), &inquire).outcome;
    assert!(matches!(outcome, Outcome::Standing(Standing::Held(grant)) if grant.token == shared.token));
    let release = LockCommand::Release { holder: holder("dan"), token: shared.token };
    assert_eq!(world.send(&lock("p"), &release).outcome, Outcome::Done);
    for request in ["r0", "up"] {
        assert_eq!(over(world.acquire("p", wish("dan", request, Shared))), End::Released);
    }
}

#[test]
fn sharers_of_one_lock_are_bounded() {
    let mut world = World::new(LockLimits { max_holders: 2, ..LockLimits::default() });
    world.grant("p", wish("s1", "1", Shared));
    world.grant("p", wish("s2", "1", Shared));
    world.position("p", wish("s3", "1", Shared));
    world.release("p", "s1");
    assert_eq!(world.holders("p"), ["s2", "s3"]);
}

#[test]
fn two_activities_of_one_agent_exclude_each_other() {
    let mut world = new();
    let attempt = |id: &str| {
        let holder = Holder::new("agent", Some(id)).expect("valid");
        Acquire { request: RequestKey::of(&holder, "1"), holder, ..wish("agent", "1", Exclusive) }
    };
    world.grant("p", attempt("one"));
    assert_eq!(world.position("p", attempt("two")), 1);
}

#[test]
fn a_lock_without_holder_is_not_given_to_a_newcomer() {
    let mut world = new();
    world.grant("p", wish("ann", "1", Exclusive));
    world.position("p", wish("ben", "1", Exclusive));
    world.pass(30_000);
    assert_eq!(world.position("p", wish("new", "1", Exclusive)), 1, "ben was first and holds now");
    assert_eq!(world.holders("p"), ["ben"]);
}

#[test]
fn a_promoted_request_claims_with_its_next_question_if_its_answer_is_held_open() {
    let mut world = new();
    world.grant("p", wish("ann", "1", Exclusive));
    world.acquire("p", patient("ben", "1", Exclusive, "here"));
    world.acquire(
        "p",
        Acquire { wait: Some(Wait { ms: 60_000, served_by: None }), ..wish("cem", "1", Exclusive) },
    );
    world.release("p", "ann");
    world.pass(1_000);
    let grant = world.grant("p", patient("ben", "1", Exclusive, "here"));
    assert!(grant.claimed, "the lease begins with the answer");
    assert_eq!(grant.expires_at, world.now.plus_ms(30_000));
    world.release("p", "ben");
    let ticket = Acquire { wait: Some(Wait { ms: 60_000, served_by: None }), ..wish("cem", "1", Exclusive) };
    assert!(!world.grant("p", ticket).claimed, "a ticket is claimed by itself");
}

#[test]
fn hanging_up_ends_a_lease_of_which_nobody_can_have_been_told() {
    for (begun, holders) in [(false, vec!["ann"]), (true, vec![])] {
        let mut world = new();
        world.grant("p", patient("ann", "1", Exclusive, "here"));
        let request = RequestKey::of(&holder("ann"), "1");
        let server = "here".into();
        world.send(&lock("p"), &LockCommand::HangUp { holder: holder("ann"), request, server, begun });
        assert_eq!(world.holders("p"), holders, "begun: {begun}");
    }
}

#[test]
fn locks_have_their_turn_by_what_is_due_and_not_by_what_would_have_been() {
    let mut world = World::new(LockLimits::default());
    let grant = world.grant("p", Acquire { ttl_ms: 10_000, ..wish("ann", "1", Exclusive) });
    world.grant("q", Acquire { ttl_ms: 20_000, ..wish("ben", "1", Exclusive) });
    let extend = LockCommand::Extend { holder: holder("ann"), token: grant.token, ms: 30_000 };
    world.send(&lock("p"), &extend);
    let again = copy(&world.table);
    for mut table in [world.table, again] {
        assert_eq!(table.first_due(world.now.plus_ms(15_000)), None);
        for name in ["q", "p"] {
            let due = table.first_due(world.now.plus_ms(40_000));
            assert_eq!(due, Some(lock(name)));
            table.step(&lock(name), &LockCommand::Sweep, world.now.plus_ms(40_000), &mut Vec::new());
        }
    }
}
