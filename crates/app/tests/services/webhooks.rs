//! Webhooks: what is sent, to whom, how often, and what happens if the receiver does not answer as it should.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ade_app::webhooks::{WebhookChange, WebhookDispatcher, WebhookNetwork, WebhookWithSecret};
use ade_app::{Caller, Context, Error, WebhookService};
use ade_domain::people::ADMIN;
use ade_domain::webhook::delivery::{CIRCUIT_THRESHOLD, CircuitState};
use ade_executors::egress::Resolver;
use ade_store::database::{Delivery, DeliveryFilter, DeliveryStatus};
use ade_testkit::webhook_receiver::{ReceivedRequest, Reply, WebhookReceiver};
use async_trait::async_trait;

use crate::fixture::{Fixture, caller, on_both_databases, submitted};

on_both_databases!(
    sends_each_matching_event_once_with_a_valid_signature,
    retries_failures_and_gives_up_after_three_days,
    circuit_opens_and_recovers,
    unrecorded_attempts_are_sent_again_with_the_same_id,
    two_processes_send_each_delivery_once,
);

fn admin() -> Caller {
    caller("root", &[ADMIN])
}

struct Hooks {
    receiver: WebhookReceiver,
    network: WebhookNetwork,
}

impl Hooks {
    async fn new() -> Self {
        let receiver = WebhookReceiver::start().await;
        let network = WebhookNetwork::new(&[receiver.host()]).expect("valid");
        Self { receiver, network: network.with_attempt_timeout(Duration::from_millis(300)) }
    }

    fn service(&self, context: Context) -> (WebhookService, WebhookDispatcher) {
        let service = WebhookService::new(context, self.network.clone());
        (service.clone(), WebhookDispatcher::new(service, "server-1"))
    }

    async fn create(&self, service: &WebhookService, events: &[&str]) -> WebhookWithSecret {
        let change = WebhookChange {
            name: Some("ci".to_owned()),
            url: Some(self.receiver.url("/hook?key=topsecret")),
            events: Some(events.iter().map(|event| (*event).to_owned()).collect()),
            ..WebhookChange::default()
        };
        service.create(&change, &admin()).await.expect("created")
    }
}

async fn deliveries(service: &WebhookService, webhook_id: &str) -> Vec<Delivery> {
    let filter = DeliveryFilter { webhook_id, ..DeliveryFilter::default() };
    service.deliveries(filter, 100, &admin()).await.expect("listed")
}

async fn only_delivery(service: &WebhookService, webhook_id: &str) -> Delivery {
    let mut all = deliveries(service, webhook_id).await;
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// Numbers the entries, as the sequencer does, and writes the deliveries.
async fn write_deliveries(fixture: &Fixture, dispatcher: &WebhookDispatcher) {
    let _ = fixture.entries().await;
    dispatcher.write_deliveries().await.expect("written");
}

fn assert_signed_by(request: &ReceivedRequest, secrets: &[&str]) {
    let timestamp = request.header("webhook-timestamp").parse().expect("a number");
    let sign = |secret: &&str| {
        let webhook = standardwebhooks::Webhook::new(secret).expect("a secret");
        webhook.sign(request.header("webhook-id"), timestamp, request.body.as_bytes()).expect("signed")
    };
    let expected: Vec<String> = secrets.iter().map(sign).collect();
    assert_eq!(request.header("webhook-signature"), expected.join(" "));
}

async fn sends_each_matching_event_once_with_a_valid_signature(fixture: Fixture) {
    let mut hooks = Hooks::new().await;
    let (service, dispatcher) = hooks.service(fixture.context());
    dispatcher.write_deliveries().await.expect("at the end of the log");
    let created = hooks.create(&service, &["task:sub*"]).await;
    let other = hooks.create(&service, &["approval:*"]).await;
    fixture.add_user("ann", &["author"]).await;
    fixture.add_user("rex", &["reviewer"]).await;
    let task = submitted(&fixture.service(), "with a SECRET-DESCRIPTION").await;
    for _ in 0..2 {
        write_deliveries(&fixture, &dispatcher).await;
        dispatcher.send_due().await.expect("sent");
    }
    let mut requests: Vec<ReceivedRequest> = std::iter::from_fn(|| hooks.receiver.received()).collect();
    requests.sort_by_key(|request| request.json()["type"].to_string());
    let types: Vec<String> = requests.iter().map(|request| request.json()["type"].to_string()).collect();
    assert_eq!(types, ["\"approval:requested\"", "\"task:submitted\""]);
    let request = &requests[1];
    assert_eq!(
        (request.path.as_str(), request.header("content-type")),
        ("/hook?key=topsecret", "application/json")
    );
    let secret = created.secret.expect("shown once");
    assert_signed_by(request, &[secret.reveal()]);
    let data = &request.json()["data"];
    assert_eq!(
        (data["task_id"].as_str(), data["who"]["user_id"].as_str()),
        (Some(task.task_id.as_str()), Some("ann"))
    );
    assert!(!request.body.contains("SECRET-DESCRIPTION"));
    let delivery = only_delivery(&service, &created.view.webhook_id).await;
    assert_eq!((delivery.status, delivery.attempts), (DeliveryStatus::Delivered, 1));
    assert_eq!(delivery.report.response_status, Some(204));
    assert_eq!(request.header("webhook-id"), delivery.delivery_id);

    // After a rotation both secrets sign, for a day.
    let rotated = service.rotate(&created.view.webhook_id, &admin()).await.expect("rotated");
    let new = rotated.secret.expect("shown once");
    let resend = async |hooks: &mut Hooks| {
        let id = (&created.view.webhook_id, &delivery.delivery_id);
        service.redeliver(id.0, id.1, &admin()).await.expect("due");
        assert_eq!(dispatcher.send_due().await.expect("sent"), 1);
        hooks.receiver.next_request().await
    };
    let again = resend(&mut hooks).await;
    assert_eq!((again.header("webhook-id"), &again.body), (request.header("webhook-id"), &request.body));
    assert_signed_by(&again, &[new.reveal(), secret.reveal()]);
    fixture.clock.advance(Duration::from_secs(86_400));
    assert_signed_by(&resend(&mut hooks).await, &[new.reveal()]);

    // Nothing that is stored or shown contains a secret.
    let shown = format!(
        "{:?} {:?} {:?} {:?}",
        service.list(&admin()).await.expect("listed"),
        deliveries(&service, &other.view.webhook_id).await,
        fixture.entries().await,
        fixture.database.events(0, 1_000).await.expect("read"),
    );
    let documents = fixture.database.documents::<ade_domain::webhook::Webhook>().await.expect("read");
    for text in [secret.reveal(), new.reveal(), "topsecret"] {
        let bare = text.trim_start_matches("whsec_");
        assert!(!shown.contains(bare) && !format!("{documents:?}").contains(bare), "{text}");
    }
}

async fn retries_failures_and_gives_up_after_three_days(fixture: Fixture) {
    let mut hooks = Hooks::new().await;
    let (service, dispatcher) = hooks.service(fixture.context());
    let created = hooks.create(&service, &["*"]).await;
    let id = created.view.webhook_id.as_str();
    let elsewhere = WebhookReceiver::start().await;
    let _ = service.test(id, &admin()).await.expect("due");
    let step = async |hooks: &mut Hooks, reply: Reply| {
        hooks.receiver.reply_with(reply);
        let before = only_delivery(&service, id).await;
        let wait = before.next_at.expect("due").ms_since(fixture.context().clock.now());
        fixture.clock.advance(Duration::from_millis(wait));
        assert_eq!(dispatcher.send_due().await.expect("sent"), 1);
        assert_eq!(hooks.receiver.next_request().await.header("webhook-id"), before.delivery_id);
        only_delivery(&service, id).await
    };
    for (reply, status, error) in [
        (Reply::Status(500), Some(500), "status 500"),
        (Reply::Redirect(elsewhere.url("/")), Some(302), "redirects"),
        (Reply::Silence, None, "no answer within"),
    ] {
        let failed = step(&mut hooks, reply).await;
        assert_eq!((failed.status, failed.report.response_status), (DeliveryStatus::Pending, status));
        assert!(failed.report.error.as_ref().is_some_and(|text| text.contains(error)), "{failed:?}");
    }
    let delay =
        only_delivery(&service, id).await.next_at.expect("due").ms_since(fixture.context().clock.now());
    assert!((36_000..=54_000).contains(&delay), "the third delay is about 45 s, not {delay} ms");
    // Only the beginning of a huge answer is read, and kept.
    let delivered = step(&mut hooks, Reply::EndlessBody).await;
    assert_eq!((delivered.status, delivered.attempts), (DeliveryStatus::Delivered, 4));
    assert_eq!(delivered.report.response.map(|text| text.len()), Some(1_000));

    // Time is over: the next failure is the last.
    let _ = service.redeliver(id, &delivered.delivery_id, &admin()).await.expect("due");
    hooks.receiver.reply_with(Reply::Status(503));
    fixture.clock.advance(Duration::from_secs(3 * 86_400));
    assert_eq!(dispatcher.send_due().await.expect("sent"), 1);
    let failed = only_delivery(&service, id).await;
    assert_eq!((failed.status, failed.next_at), (DeliveryStatus::Failed, None));

    // A receiver that is gone is sent nothing more.
    let _ = hooks.receiver.next_request().await;
    let _ = service.redeliver(id, &delivered.delivery_id, &admin()).await.expect("due");
    hooks.receiver.reply_with(Reply::Status(410));
    assert_eq!(dispatcher.send_due().await.expect("sent"), 1);
    let view = service.get(id, &admin()).await.expect("exists");
    assert!(!view.active && view.disabled_reason.is_some_and(|reason| reason.contains("410")));
    assert_eq!(only_delivery(&service, id).await.status, DeliveryStatus::Failed);
    assert!(service.test(id, &admin()).await.is_err());
    assert_eq!(fixture.audit_actions(None).await.last().map(String::as_str), Some("webhook.disable"));
}

async fn circuit_opens_and_recovers(fixture: Fixture) {
    let mut hooks = Hooks::new().await;
    let (service, dispatcher) = hooks.service(fixture.context());
    let created = hooks.create(&service, &["*"]).await;
    let id = created.view.webhook_id.as_str();
    hooks.receiver.reply_with(Reply::Status(500));
    let count = CIRCUIT_THRESHOLD as usize + 5;
    for _ in 0..count {
        let _ = service.test(id, &admin()).await.expect("due");
    }
    let circuit = async || service.get(id, &admin()).await.expect("exists").circuit;
    // A few attempts at the same time may end after the one that opened it.
    let attempts = dispatcher.send_due().await.expect("sent");
    assert!((CIRCUIT_THRESHOLD as usize..count).contains(&attempts), "{attempts}");
    assert_eq!(circuit().await, CircuitState::Open);
    assert_eq!(dispatcher.send_due().await.expect("nothing"), 0);
    while hooks.receiver.received().is_some() {}

    // One attempt tests the destination, and its failure opens the circuit for longer.
    fixture.clock.advance(Duration::from_secs(600));
    assert_eq!(circuit().await, CircuitState::HalfOpen);
    assert_eq!(dispatcher.send_due().await.expect("sent"), 1);
    assert_eq!(circuit().await, CircuitState::Open);
    hooks.receiver.reply_with(Reply::Status(200));
    fixture.clock.advance(Duration::from_secs(600));
    assert_eq!(dispatcher.send_due().await.expect("sent"), count);
    assert_eq!(circuit().await, CircuitState::Closed);
    assert!(deliveries(&service, id).await.iter().all(|each| each.status == DeliveryStatus::Delivered));
}

async fn unrecorded_attempts_are_sent_again_with_the_same_id(fixture: Fixture) {
    let mut hooks = Hooks::new().await;
    let (service, dispatcher) = hooks.service(fixture.context());
    let created = hooks.create(&service, &["*"]).await;
    let id = created.view.webhook_id.as_str();
    let _ = service.test(id, &admin()).await.expect("due");
    // Another process claims it, sends it, and stops before it stores the answer.
    let now = fixture.context().clock.now();
    let claimed =
        fixture.database.claim_deliveries(id, "lost", now, now.plus_ms(60_000), 10).await.expect("claimed");
    assert_eq!(claimed.len(), 1);
    assert_eq!(dispatcher.send_due().await.expect("nothing"), 0);
    fixture.clock.advance(Duration::from_secs(60));
    assert_eq!(dispatcher.send_due().await.expect("sent"), 1);
    assert_eq!(hooks.receiver.next_request().await.header("webhook-id"), claimed[0].delivery_id);
    let delivery = only_delivery(&service, id).await;
    assert_eq!((delivery.status, delivery.attempts), (DeliveryStatus::Delivered, 1));
}

async fn two_processes_send_each_delivery_once(fixture: Fixture) {
    let mut hooks = Hooks::new().await;
    let (service, first) = hooks.service(fixture.context());
    let other = WebhookService::new(fixture.other_context().await, hooks.network.clone());
    let second = WebhookDispatcher::new(other, "server-2");
    first.write_deliveries().await.expect("at the end of the log");
    let created = hooks.create(&service, &["task:created"]).await;
    fixture.add_user("ann", &["author"]).await;
    fixture.add_user("rex", &["reviewer"]).await;
    let tasks = fixture.service();
    for number in 0..20 {
        let _ = submitted(&tasks, &format!("task {number}")).await;
    }
    let _ = fixture.entries().await;
    let (one, two) = tokio::join!(first.write_deliveries(), second.write_deliveries());
    one.and(two).expect("written");
    let (one, two) = tokio::join!(first.send_due(), second.send_due());
    assert_eq!(one.expect("sent") + two.expect("sent"), 20);
    let mut ids: Vec<String> = std::iter::from_fn(|| hooks.receiver.received())
        .map(|request| request.header("webhook-id").to_owned())
        .collect();
    ids.sort();
    let mut expected: Vec<String> = deliveries(&service, &created.view.webhook_id)
        .await
        .into_iter()
        .map(|each| each.delivery_id)
        .collect();
    expected.sort();
    assert_eq!((ids.len(), ids), (20, expected));
}

/// Resolves every name to the address that a test sets.
#[derive(Debug, Clone)]
struct ChangingResolver(Arc<Mutex<IpAddr>>);

#[async_trait]
impl Resolver for ChangingResolver {
    async fn resolve(&self, _: &str) -> io::Result<Vec<IpAddr>> {
        Ok(vec![*self.0.lock().expect("not poisoned")])
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn never_goes_to_private_addresses_that_are_not_listed() {
    let fixture = Fixture::on_sqlite().await;
    let mut receiver = WebhookReceiver::start().await;
    let address = Arc::new(Mutex::new("1.1.1.1".parse().expect("an address")));
    let resolver = ChangingResolver(Arc::clone(&address));
    let network = WebhookNetwork::new(&[]).expect("valid").with_resolver(Arc::new(resolver));
    let service = WebhookService::new(fixture.context(), network);
    let dispatcher = WebhookDispatcher::new(service.clone(), "server-1");
    let create = async |url: &str| {
        let change = WebhookChange {
            name: Some("x".to_owned()),
            url: Some(url.to_owned()),
            events: Some(vec!["*".to_owned()]),
            ..WebhookChange::default()
        };
        service.create(&change, &admin()).await
    };
    for url in [
        &receiver.url("/"),
        "http://a.test/",
        "https://127.0.0.1/",
        "https://169.254.169.254/latest",
        "https://[::1]/",
        "https://2130706433/",
        "https://ann:pass@a.test/",
        "ftp://a.test/",
        "not a url",
    ] {
        let error = create(url).await.expect_err(url);
        assert!(matches!(&error, Error::Invalid(faults) if faults[0].path.to_string() == "url"), "{error}");
    }
    // A name that is public when it is registered, and points into the network of the server later.
    let url = format!("https://a.test:{}/", receiver.port());
    let created = create(&url).await.expect("public at present").view;
    *address.lock().expect("not poisoned") = "127.0.0.1".parse().expect("an address");
    assert!(create(&url).await.is_err());
    let _ = service.test(&created.webhook_id, &admin()).await.expect("due");
    assert_eq!(dispatcher.send_due().await.expect("tried"), 1);
    let delivery = only_delivery(&service, &created.webhook_id).await;
    assert!(delivery.report.error.is_some_and(|error| error.contains("127.0.0.1, which is not public")));
    assert_eq!(receiver.received(), None);
}
