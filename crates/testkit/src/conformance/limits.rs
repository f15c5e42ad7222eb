//! How often somebody may ask: so often in a minute, each by itself.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use ade_store::coordination::RateCount;

use super::Opener;
use super::play::{Play, ends};

scenarios!(
    somebody_may_ask_so_often_and_no_more,
    who_asks_too_often_is_no_concern_of_others,
    what_may_be_asked_can_change_meanwhile,
    of_many_who_ask_at_once_only_so_many_pass,
    no_other_endpoint_is_counted,
);

const MINUTE_MS: u64 = 60_000;

async fn count(play: &Play, endpoint: &str, who: &str, most: u32) -> RateCount {
    play.port.count(endpoint.to_owned(), play.agent(who), most).await.expect("answers")
}

async fn somebody_may_ask_so_often_and_no_more(opener: Opener) {
    let play = Play::usual(&opener).await;
    let before = play.now();
    let first = count(&play, "tasks:create", "ann", 3).await;
    let began = before..=play.now();
    // A store may keep it by the millisecond.
    let range = ends(began, MINUTE_MS - 1);
    assert!((*range.start()..=range.end().plus_ms(2)).contains(&first.reset_at), "{first:?}");
    assert_eq!((first.allowed, first.most, first.remaining), (true, 3, 2));
    play.pass(2).await;
    for remaining in [1, 0] {
        let counted = count(&play, "tasks:create", "ann", 3).await;
        assert_eq!(counted, RateCount { remaining, ..first }, "the minute is that of the first one");
    }
    for _ in 0..2 {
        let refused = count(&play, "tasks:create", "ann", 3).await;
        assert_eq!(refused, RateCount { allowed: false, remaining: 0, ..first });
    }
    if play.passes_at_once() {
        play.pass(MINUTE_MS - 3).await;
        assert!(!count(&play, "tasks:create", "ann", 3).await.allowed, "the last moment of the minute");
        play.pass(1).await;
        let anew = count(&play, "tasks:create", "ann", 3).await;
        assert_eq!((anew.allowed, anew.remaining), (true, 2));
        assert_eq!(anew.reset_at, first.reset_at.plus_ms(MINUTE_MS));
    }
}

async fn who_asks_too_often_is_no_concern_of_others(opener: Opener) {
    let play = Play::usual(&opener).await;
    assert!(count(&play, "tasks:create", "ann", 1).await.allowed);
    assert!(!count(&play, "tasks:create", "ann", 1).await.allowed);
    for (endpoint, who) in [
        ("tasks:create", "ben"),
        ("approvals:respond", "ann"),
        ("sessions:create", "ann"),
        ("sessions:create", "2001:db8::1"),
        ("sessions:create", "ü {x}%"),
    ] {
        let counted = count(&play, endpoint, who, 1).await;
        assert_eq!((counted.allowed, counted.remaining), (true, 0), "{endpoint} {who}");
        assert!(!count(&play, endpoint, who, 1).await.allowed, "{endpoint} {who}");
    }
}

async fn what_may_be_asked_can_change_meanwhile(opener: Opener) {
    let play = Play::usual(&opener).await;
    for remaining in [4, 3, 2] {
        assert_eq!(count(&play, "tasks:create", "ann", 5).await.remaining, remaining);
    }
    let fewer = count(&play, "tasks:create", "ann", 2).await;
    assert_eq!((fewer.allowed, fewer.remaining), (false, 0));
    let more = count(&play, "tasks:create", "ann", 4).await;
    assert_eq!((more.allowed, more.remaining), (true, 0), "who was refused was not counted");
    let none = count(&play, "tasks:create", "ben", 0).await;
    assert_eq!((none.allowed, none.remaining), (false, 0));
    assert!(none.reset_at > play.now() && none.reset_at <= play.now().plus_ms(MINUTE_MS), "{none:?}");
    assert!(count(&play, "tasks:create", "ben", 1).await.allowed);
}

async fn of_many_who_ask_at_once_only_so_many_pass(opener: Opener) {
    let play = std::sync::Arc::new(Play::usual(&opener).await);
    let asking: Vec<_> = (0..40)
        .map(|_| {
            let play = std::sync::Arc::clone(&play);
            tokio::spawn(async move { count(&play, "approvals:respond", "ann", 25).await.allowed })
        })
        .collect();
    let mut passed = 0;
    for one in asking {
        passed += usize::from(one.await.expect("no panic"));
    }
    assert_eq!(passed, 25);
}

async fn no_other_endpoint_is_counted(opener: Opener) {
    let play = Play::usual(&opener).await;
    assert!(play.port.count("tasks:juggle".to_owned(), "ann".to_owned(), 9).await.is_err());
    assert!(play.port.count("tasks:create".to_owned(), String::new(), 9).await.is_err());
}
