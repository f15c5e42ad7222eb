//! Grants and leases: who is granted with what, heartbeats, claims, expiry, breaks, wrong tokens.

#![expect(clippy::panic, clippy::indexing_slicing, reason = "helpers of tests fail like tests")]

use ade_domain::lock::{Acquire, End, Holder, LockCommand, Mode, Outcome, RequestKey, Standing, Token};

use super::Opener;
use super::play::{Play, ends, hint, kept, with};

use Mode::{Exclusive, Shared};

scenarios!(
    a_free_lock_is_granted_with_token_and_lease,
    tokens_grow_with_every_grant,
    who_holds_already_gets_the_same_grant,
    one_release_frees_however_often_it_was_acquired,
    two_activities_of_one_agent_exclude_each_other,
    task_locks_are_locks_too,
    commands_of_one_call_are_answered_in_order,
    a_heartbeat_extends_and_never_shortens,
    wrong_tokens_change_nothing,
    a_token_is_verified_while_its_lease_lasts,
    a_lease_ends_and_the_next_is_promoted_by_the_sweep_alone,
    an_unclaimed_ticket_goes_on_to_the_next,
    an_unclaimed_served_grant_goes_on_to_the_next,
    a_claim_starts_the_lease_once,
    an_unclaimed_grant_is_kept_while_others_are_taken,
    an_absent_lock_with_a_queue_is_not_given_to_a_newcomer,
    a_break_frees_everybody_and_the_queue_goes_on,
);

async fn a_free_lock_is_granted_with_token_and_lease(opener: Opener) {
    let play = Play::usual(&opener).await;
    let before = play.now();
    let wish = Acquire { ttl_ms: 7_000, purpose: "migration".into(), ..play.wish("ann", "1", Exclusive) };
    let grant = play.grant("p", wish).await;
    let during = before..=play.now();
    assert!(during.contains(&grant.acquired_at), "{grant:?} is not of {during:?}");
    assert!(ends(during, 7_000).contains(&grant.expires_at), "{grant:?}");
    assert!(grant.token.number() >= before.micros() && grant.token.number() < Token::END);
    assert!(grant.claimed && grant.mode == Exclusive);
    let view = play.look("p").await;
    assert_eq!((view.mode, view.queue_length, view.holders.len()), (Some(Exclusive), 0, 1));
    let held = &view.holders[0];
    assert_eq!((&held.grant, &*held.purpose, held.heartbeat_count), (&grant, "migration", 0));
}

async fn tokens_grow_with_every_grant(opener: Opener) {
    let play = Play::usual(&opener).await;
    let mut last = Token::default();
    for n in 0..20 {
        let who = ["ann", "ben"][n % 2];
        let mode = if n % 3 == 0 { Shared } else { Exclusive };
        let grant = play.grant("p", play.wish(who, &n.to_string(), mode)).await;
        assert!(grant.token > last, "{} after {last}", grant.token);
        last = grant.token;
        play.release("p", who).await;
    }
    play.grant("p", play.wish("ann", "last", Exclusive)).await;
    play.position("p", play.wish("ben", "last", Exclusive)).await;
    play.release("p", "ann").await;
    assert!(play.token_of("p", "ben").await > Some(last), "also by promotion");
}

async fn who_holds_already_gets_the_same_grant(opener: Opener) {
    let play = Play::usual(&opener).await;
    let first = play.grant("p", play.wish("ann", "1", Exclusive)).await;
    play.pass(2).await;
    for (request, mode, ttl_ms) in [("2", Exclusive, 60_000), ("3", Shared, 90_000), ("4", Exclusive, 1)] {
        let before = play.look("p").await.holders[0].grant.expires_at;
        let again = play.grant("p", Acquire { ttl_ms, ..play.wish("ann", request, mode) }).await;
        assert_eq!((again.token, again.mode, again.acquired_at), (first.token, Exclusive, first.acquired_at));
        assert!(again.expires_at >= before, "it never lasts shorter");
        assert!(again.expires_at >= play.now().plus_ms(ttl_ms.min(50_000)), "it lasts as long as asked");
    }
    assert_eq!(play.holders("p").await, ["ann"]);
}

async fn one_release_frees_however_often_it_was_acquired(opener: Opener) {
    let play = Play::usual(&opener).await;
    for request in ["1", "2", "3"] {
        play.grant("p", play.wish("ann", request, Exclusive)).await;
    }
    play.release("p", "ann").await;
    assert!(play.holders("p").await.is_empty());
    for request in ["1", "2", "3"] {
        let late = play.over("p", play.wish("ann", request, Exclusive)).await;
        assert_eq!(late, End::Released, "none of the requests comes back");
    }
}

async fn two_activities_of_one_agent_exclude_each_other(opener: Opener) {
    let play = Play::usual(&opener).await;
    let attempt = |id: &str| {
        let Ok(holder) = Holder::new(&play.agent("ann"), Some(id)) else { panic!("valid") };
        Acquire { request: RequestKey::of(&holder, "1"), holder, ..play.wish("ann", "1", Exclusive) }
    };
    play.grant("p", attempt("one")).await;
    assert_eq!(play.position("p", attempt("two")).await, 1);
}

async fn task_locks_are_locks_too(opener: Opener) {
    let play = Play::usual(&opener).await;
    let Ok(task) = format!("task:{}", play.tag).parse() else { panic!("valid") };
    for (who, waits) in [("ann", false), ("ben", true)] {
        let answer = play.command(&task, LockCommand::Acquire(play.wish(who, "1", Exclusive))).await;
        let waiting = matches!(answer.outcome, Outcome::Standing(Standing::Waiting { .. }));
        assert_eq!(waiting, waits, "{answer:?}");
    }
}

async fn commands_of_one_call_are_answered_in_order(opener: Opener) {
    let play = Play::usual(&opener).await;
    let acquire =
        |name: &str, who: &str| (play.lock(name), LockCommand::Acquire(play.wish(who, "1", Exclusive)));
    let commands: Vec<_> = (0..250)
        .flat_map(|n| {
            let name = format!("p{n}");
            [acquire(&name, "ann"), acquire(&name, "ben"), (play.lock(&name), LockCommand::Break)]
        })
        .collect();
    let Ok(answers) = play.port.commands(commands).await else { panic!("answers") };
    assert_eq!(answers.len(), 750);
    for (n, three) in answers.chunks(3).enumerate() {
        assert!(matches!(&three[0].outcome, Outcome::Standing(Standing::Held(_))), "{n}: {three:?}");
        assert!(matches!(&three[1].outcome, Outcome::Standing(Standing::Waiting { position: 1, .. })), "{n}");
        assert!(matches!(&three[2].outcome, Outcome::Broken(held) if held.len() == 1), "{n}");
    }
}

async fn a_heartbeat_extends_and_never_shortens(opener: Opener) {
    let play = Play::usual(&opener).await;
    let grant = play.grant("p", play.wish("ann", "1", Exclusive)).await;
    let same = kept(play.extend("p", "ann", grant.token, 1).await);
    assert_eq!(same, grant, "not shorter");
    let before = play.now();
    let longer = kept(play.extend("p", "ann", grant.token, 90_000).await);
    assert!(ends(before..=play.now(), 90_000).contains(&longer.expires_at), "{longer:?}");
    assert_eq!(longer.token, grant.token);
    let view = play.look("p").await;
    assert_eq!((view.holders[0].heartbeat_count, view.holders[0].grant.expires_at), (2, longer.expires_at));
    // A lease that was extended does not end when it would have without.
    let short = play.grant("q", Acquire { ttl_ms: 2_000, ..play.wish("ann", "2", Exclusive) }).await;
    kept(play.extend("q", "ann", short.token, 60_000).await);
    play.pass(2_100).await;
    play.sweep().await;
    assert_eq!(play.holders("q").await, ["ann"]);
}

async fn wrong_tokens_change_nothing(opener: Opener) {
    let play = Play::usual(&opener).await;
    let grant = play.grant("p", play.wish("ann", "1", Exclusive)).await;
    play.position("p", play.wish("ben", "1", Exclusive)).await;
    let before = play.look("p").await;
    for number in [0, grant.token.number() - 1, grant.token.number() + 1, Token::END - 1, u64::MAX] {
        let token = Token::shown(number);
        for who in ["ann", "ben", "cem"] {
            let holder = play.holder(who);
            for command in [
                LockCommand::Extend { holder: holder.clone(), token, ms: 90_000 },
                LockCommand::Release { holder: holder.clone(), token },
                LockCommand::Downgrade { holder, token },
                LockCommand::Verify { token },
            ] {
                assert_eq!(play.send("p", command.clone()).await, Outcome::Lost, "{command:?}");
            }
        }
    }
    let token = grant.token;
    let release = LockCommand::Release { holder: play.holder("ben"), token };
    assert_eq!(play.send("p", release).await, Outcome::Lost, "another's token");
    assert_eq!(play.claim("p", "ann", "unknown", 90_000).await, Outcome::Lost, "another request");
    assert_eq!(play.claim("p", "ben", "1", 90_000).await, Outcome::Lost, "a request that waits");
    let keep = LockCommand::Keep { holder: play.holder("ben"), request: play.key("ben", "1"), ms: 90_000 };
    assert_eq!(play.send("p", keep).await, Outcome::Lost);
    assert_eq!(play.look("p").await, before);
    // Also at a lock that nobody knows.
    for command in [LockCommand::Verify { token }, LockCommand::Release { holder: play.holder("ann"), token }]
    {
        assert_eq!(play.send("unknown", command).await, Outcome::Lost);
    }
}

async fn a_token_is_verified_while_its_lease_lasts(opener: Opener) {
    let play = Play::usual(&opener).await;
    let grant = play.grant("p", Acquire { ttl_ms: 2_000, ..play.wish("ann", "1", Exclusive) }).await;
    let verify = LockCommand::Verify { token: grant.token };
    match play.send("p", verify.clone()).await {
        Outcome::Valid(by) => assert_eq!((by.holder, by.grant), (play.holder("ann"), grant)),
        other => panic!("{other:?}"),
    }
    play.pass(2_100).await;
    assert_eq!(play.send("p", verify).await, Outcome::Lost, "also before anything is swept");
}

async fn a_lease_ends_and_the_next_is_promoted_by_the_sweep_alone(opener: Opener) {
    let play = Play::usual(&opener).await;
    let first = play.grant("p", Acquire { ttl_ms: 300, ..play.wish("ann", "1", Exclusive) }).await;
    play.position("p", play.wish("ben", "1", Exclusive)).await;
    let watch = play.port.watch(play.key("ben", "1"));
    play.pass(400).await;
    play.sweep().await;
    hint(&watch).await;
    let view = play.look("p").await;
    assert_eq!(view.holders.len(), 1);
    assert_eq!(view.holders[0].holder, play.holder("ben"));
    assert!(view.holders[0].grant.token > first.token);
    assert_eq!(play.extend("p", "ann", first.token, 1_000).await, Outcome::Lost);
    assert_eq!(play.over("p", play.wish("ann", "1", Exclusive)).await, End::Expired);
}

/// A grant to a waiter that nobody claims, and who comes next.
async fn unclaimed(play: &Play, first: Acquire) {
    play.heard("ben").await;
    play.grant("p", play.wish("ann", "1", Exclusive)).await;
    play.position("p", first.clone()).await;
    play.position("p", play.wish("next", "1", Exclusive)).await;
    play.release("p", "ann").await;
    let view = play.look("p").await;
    assert_eq!((play.short(&view.holders[0].holder), view.holders[0].grant.claimed), ("ben".into(), false));
    play.pass(2_100).await;
    play.sweep().await;
    assert_eq!(play.holders("p").await, ["next"]);
    assert_eq!(play.claim("p", "ben", "1", 1_000).await, Outcome::Lost);
    assert_eq!(play.over("p", first).await, End::Unclaimed);
    play.leave(&["ben"]).await;
}

async fn an_unclaimed_ticket_goes_on_to_the_next(opener: Opener) {
    let play = Play::open(&opener, with(|rules| rules.ticket_claim_ms = 2_000)).await;
    unclaimed(&play, play.ticket("ben", "1", Exclusive)).await;
}

async fn an_unclaimed_served_grant_goes_on_to_the_next(opener: Opener) {
    let play = Play::open(&opener, with(|rules| rules.served_claim_ms = 2_000)).await;
    unclaimed(&play, play.wish("ben", "1", Exclusive)).await;
}

async fn a_claim_starts_the_lease_once(opener: Opener) {
    let play = Play::usual(&opener).await;
    play.grant("p", play.wish("ann", "1", Exclusive)).await;
    play.position("p", play.wish("ben", "1", Exclusive)).await;
    play.release("p", "ann").await;
    let before = play.now();
    let grant = kept(play.claim("p", "ben", "1", 90_000).await);
    assert!(ends(before..=play.now(), 90_000).contains(&grant.expires_at), "{grant:?}");
    assert!(grant.claimed);
    play.pass(2).await;
    assert_eq!(kept(play.claim("p", "ben", "1", 90_000).await), grant, "the lease runs already");
    assert_eq!(play.grant("p", play.wish("ben", "1", Exclusive)).await, grant, "nor does the request");
}

async fn an_unclaimed_grant_is_kept_while_others_are_taken(opener: Opener) {
    let play = Play::open(&opener, with(|rules| rules.served_claim_ms = 2_000)).await;
    let wish = Acquire { claimed: false, ..play.wish("ann", "1", Exclusive) };
    let before = play.now();
    let grant = play.grant("p", wish.clone()).await;
    assert!(!grant.claimed);
    assert!(ends(before..=play.now(), 2_000).contains(&grant.expires_at), "the claim window: {grant:?}");
    let keep = |ms| LockCommand::Keep { holder: play.holder("ann"), request: wish.request, ms };
    assert_eq!(kept(play.send("p", keep(1)).await), grant, "never shorter");
    let longer = kept(play.send("p", keep(60_000)).await);
    assert!(longer.expires_at > grant.expires_at && !longer.claimed);
    play.pass(2_100).await;
    play.sweep().await;
    assert_eq!(play.holders("p").await, ["ann"]);
    let claimed = kept(play.claim("p", "ann", "1", 90_000).await);
    assert!(claimed.claimed && claimed.token == grant.token);
}

async fn an_absent_lock_with_a_queue_is_not_given_to_a_newcomer(opener: Opener) {
    let play = Play::usual(&opener).await;
    play.grant("p", Acquire { ttl_ms: 300, ..play.wish("ann", "1", Exclusive) }).await;
    play.position("p", play.wish("ben", "1", Exclusive)).await;
    play.pass(400).await;
    assert_eq!(play.position("p", play.wish("new", "1", Exclusive)).await, 1, "ben was first");
    assert_eq!(play.holders("p").await, ["ben"]);
}

async fn a_break_frees_everybody_and_the_queue_goes_on(opener: Opener) {
    let play = Play::usual(&opener).await;
    let mut tokens = vec![];
    for who in ["s1", "s2"] {
        tokens.push(play.grant("p", play.wish(who, "1", Shared)).await.token);
    }
    play.position("p", play.wish("w", "1", Exclusive)).await;
    let Outcome::Broken(held) = play.send("p", LockCommand::Break).await else { panic!("broken") };
    let mut broken: Vec<Token> = held.iter().map(|held| held.grant.token).collect();
    broken.sort();
    assert_eq!(broken, tokens);
    assert_eq!(play.holders("p").await, ["w"]);
    assert_eq!(play.over("p", play.wish("s1", "1", Shared)).await, End::Broken);
    assert_eq!(play.extend("p", "s2", tokens[1], 1_000).await, Outcome::Lost);
    assert_eq!(play.send("nobody", LockCommand::Break).await, Outcome::Broken(vec![]));
}
