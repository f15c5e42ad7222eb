//! Requests that may be repeated: what is remembered, for how long, and with which ticket.

#![expect(clippy::expect_used, clippy::panic, reason = "helpers of tests fail like tests")]

use ade_domain::lock::{Draft, LockRequest, Mode};
use ade_store::coordination::{Registration, Ticket};

use super::Opener;
use super::play::Play;

scenarios!(
    a_request_is_new_once_then_the_same_or_another,
    a_forgotten_request_is_new_again,
    a_request_is_forgotten_after_its_time,
    a_ticket_recalls_its_request,
);

async fn remember(play: &Play, request: &str, digest: u128, ticket: Option<Ticket>, ms: u64) -> Registration {
    let until = play.now().plus_ms(ms);
    play.port.remember(play.key("ann", request), digest, ticket, until).await.expect("answers")
}

async fn recall(play: &Play, request: &str) -> Option<Ticket> {
    play.port.recall(play.key("ann", request)).await.expect("answers")
}

/// A request for two locks with names and texts that need care.
fn ticket(play: &Play, request_id: &str) -> Ticket {
    let lock = play.lock("a:{}%ü🔒");
    let task = format!("task:{}", play.tag);
    let draft = Draft {
        locks: vec![(lock.as_str(), Some(Mode::Shared)), (&task, None)],
        ttl_seconds: Some(1.5),
        wait_seconds: Some(20.0),
        queue: true,
        priority: Some(-3),
        purpose: Some("\"quoted\" ü🔒"),
        request_id: Some(request_id),
    };
    match LockRequest::new(play.holder("ann"), &draft, play.port.rules(), 0) {
        Ok(request) => Ticket { request, deadline: play.now().plus_ms(20_000) },
        Err(faults) => panic!("{faults:?}"),
    }
}

async fn a_request_is_new_once_then_the_same_or_another(opener: Opener) {
    let play = Play::usual(&opener).await;
    assert_eq!(remember(&play, "1", 7, None, 60_000).await, Registration::New);
    assert_eq!(remember(&play, "1", 7, None, 60_000).await, Registration::Same);
    assert_eq!(remember(&play, "1", 8, None, 60_000).await, Registration::Other);
    assert_eq!(remember(&play, "1", 7, None, 60_000).await, Registration::Same, "the first one stays");
    assert_eq!(remember(&play, "2", 8, None, 60_000).await, Registration::New);
    for digest in [0, u128::MAX, 1 << 100, u128::from(u64::MAX) + 1] {
        let id = format!("digest {digest}");
        assert_eq!(remember(&play, &id, digest, None, 60_000).await, Registration::New);
        assert_eq!(remember(&play, &id, digest, None, 60_000).await, Registration::Same);
        assert_eq!(remember(&play, &id, digest ^ 1, None, 60_000).await, Registration::Other);
    }
}

async fn a_forgotten_request_is_new_again(opener: Opener) {
    let play = Play::usual(&opener).await;
    let key = play.key("ann", "1");
    play.port.forget(key).await.expect("also if it was never known");
    remember(&play, "1", 7, Some(ticket(&play, "1")), 60_000).await;
    play.port.forget(key).await.expect("answers");
    assert_eq!(recall(&play, "1").await, None);
    assert_eq!(remember(&play, "1", 8, None, 60_000).await, Registration::New);
}

async fn a_request_is_forgotten_after_its_time(opener: Opener) {
    let play = Play::usual(&opener).await;
    assert_eq!(remember(&play, "long", 7, Some(ticket(&play, "long")), 60_000).await, Registration::New);
    assert_eq!(remember(&play, "1", 7, Some(ticket(&play, "1")), 2_000).await, Registration::New);
    assert_eq!(remember(&play, "2", 7, Some(ticket(&play, "2")), 2_000).await, Registration::New);
    assert!(recall(&play, "1").await.is_some());
    play.pass(2_100).await;
    assert_eq!(recall(&play, "1").await, None, "also before anything is swept");
    assert_eq!(remember(&play, "1", 8, None, 60_000).await, Registration::New);
    play.sweep().await;
    assert_eq!(recall(&play, "2").await, None);
    assert_eq!(remember(&play, "1", 8, None, 60_000).await, Registration::Same, "the newer one is not swept");
    assert!(recall(&play, "long").await.is_some());
}

async fn a_ticket_recalls_its_request(opener: Opener) {
    let play = Play::usual(&opener).await;
    let ticket = ticket(&play, "1");
    assert_eq!(recall(&play, "1").await, None);
    assert_eq!(remember(&play, "1", 7, Some(ticket.clone()), 60_000).await, Registration::New);
    assert_eq!(recall(&play, "1").await, Some(ticket.clone()));
    assert_eq!(remember(&play, "1", 7, None, 60_000).await, Registration::Same);
    assert_eq!(recall(&play, "1").await, Some(ticket), "a repetition does not take it away");
    remember(&play, "open", 7, None, 60_000).await;
    assert_eq!(recall(&play, "open").await, None, "an answer that is held open has none");
}
