//! Registration of request ids: new, repeated or conflicting, until they expire, with the tickets of queued requests.

#![expect(clippy::expect_used, clippy::panic, reason = "helpers of tests fail like tests")]

use ade_domain::lock::{LockMode, LockRequest, LockRequestDraft};
use ade_store::coordination::{Registration, Ticket};

use super::BackendFactory;
use super::fixture::Fixture;

scenarios!(
    distinguishes_new_same_and_other_request,
    forgotten_request_is_new_again,
    registration_expires,
    recalls_request_of_ticket,
);

async fn remember(
    fixture: &Fixture,
    request_id: &str,
    digest: u128,
    ticket: Option<Ticket>,
    ms: u64,
) -> Registration {
    let until = fixture.now().plus_ms(ms);
    fixture
        .backend
        .register_request(fixture.key("ann", request_id), digest, ticket, until)
        .await
        .expect("a reply")
}

async fn recall(fixture: &Fixture, request_id: &str) -> Option<Ticket> {
    fixture.backend.ticket(fixture.key("ann", request_id)).await.expect("a reply")
}

/// A request for two locks, with special characters in names and purpose.
fn ticket(fixture: &Fixture, request_id: &str) -> Ticket {
    let lock = fixture.lock("a:{}%ü🔒");
    let task = format!("task:{}", fixture.namespace);
    let draft = LockRequestDraft {
        locks: vec![(lock.as_str(), Some(LockMode::Shared)), (&task, None)],
        ttl_seconds: Some(1.5),
        wait_seconds: Some(20.0),
        queue: true,
        priority: Some(-3),
        purpose: Some("\"quoted\" ü🔒"),
        request_id: Some(request_id),
    };
    match LockRequest::new(fixture.holder("ann"), &draft, fixture.backend.limits(), 0) {
        Ok(request) => Ticket { request, deadline: fixture.now().plus_ms(20_000) },
        Err(errors) => panic!("{errors:?}"),
    }
}

async fn distinguishes_new_same_and_other_request(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    assert_eq!(remember(&fixture, "1", 7, None, 60_000).await, Registration::New);
    assert_eq!(remember(&fixture, "1", 7, None, 60_000).await, Registration::Repeated);
    assert_eq!(remember(&fixture, "1", 8, None, 60_000).await, Registration::KeyReused);
    assert_eq!(
        remember(&fixture, "1", 7, None, 60_000).await,
        Registration::Repeated,
        "the first digest stays"
    );
    assert_eq!(remember(&fixture, "2", 8, None, 60_000).await, Registration::New);
    for digest in [0, u128::MAX, 1 << 100, u128::from(u64::MAX) + 1] {
        let id = format!("digest {digest}");
        assert_eq!(remember(&fixture, &id, digest, None, 60_000).await, Registration::New);
        assert_eq!(remember(&fixture, &id, digest, None, 60_000).await, Registration::Repeated);
        assert_eq!(remember(&fixture, &id, digest ^ 1, None, 60_000).await, Registration::KeyReused);
    }
}

async fn forgotten_request_is_new_again(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let key = fixture.key("ann", "1");
    fixture.backend.forget_request(key).await.expect("also for an unknown request");
    remember(&fixture, "1", 7, Some(ticket(&fixture, "1")), 60_000).await;
    fixture.backend.forget_request(key).await.expect("a reply");
    assert_eq!(recall(&fixture, "1").await, None);
    assert_eq!(remember(&fixture, "1", 8, None, 60_000).await, Registration::New);
}

async fn registration_expires(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    assert_eq!(
        remember(&fixture, "long", 7, Some(ticket(&fixture, "long")), 60_000).await,
        Registration::New
    );
    assert_eq!(remember(&fixture, "1", 7, Some(ticket(&fixture, "1")), 2_000).await, Registration::New);
    assert_eq!(remember(&fixture, "2", 7, Some(ticket(&fixture, "2")), 2_000).await, Registration::New);
    assert!(recall(&fixture, "1").await.is_some());
    fixture.advance(2_100).await;
    assert_eq!(recall(&fixture, "1").await, None, "also before a sweep");
    assert_eq!(remember(&fixture, "1", 8, None, 60_000).await, Registration::New);
    fixture.sweep().await;
    assert_eq!(recall(&fixture, "2").await, None);
    assert_eq!(
        remember(&fixture, "1", 8, None, 60_000).await,
        Registration::Repeated,
        "the newer registration is kept"
    );
    assert!(recall(&fixture, "long").await.is_some());
}

async fn recalls_request_of_ticket(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let ticket = ticket(&fixture, "1");
    assert_eq!(recall(&fixture, "1").await, None);
    assert_eq!(remember(&fixture, "1", 7, Some(ticket.clone()), 60_000).await, Registration::New);
    assert_eq!(recall(&fixture, "1").await, Some(ticket.clone()));
    assert_eq!(remember(&fixture, "1", 7, None, 60_000).await, Registration::Repeated);
    assert_eq!(recall(&fixture, "1").await, Some(ticket), "a repeated request keeps the ticket");
    remember(&fixture, "open", 7, None, 60_000).await;
    assert_eq!(recall(&fixture, "open").await, None, "a long poll has no ticket");
}
