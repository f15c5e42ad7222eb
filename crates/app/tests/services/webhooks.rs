//! Webhooks: what is sent, to whom, how often, and what happens if the receiver does not answer as it should.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ade_app::webhooks::{
    DeliveryOutcome, WebhookBacklog, WebhookChange, WebhookDispatcher, WebhookNetwork, WebhookWithSecret,
    reseal_secrets,
};
use ade_app::{Caller, Context, Error, WebhookService};
use ade_domain::Keys;
use ade_domain::people::{ADMIN, AUDITOR};
use ade_domain::webhook::WebhookFormat;
use ade_domain::webhook::delivery::{CIRCUIT_THRESHOLD, CircuitState};
use ade_executors::egress::Resolver;
use ade_store::Database;
use ade_store::database::{AttemptOutcome, Claim, Delivery, DeliveryFilter, DeliveryReport, DeliveryStatus};
use ade_testkit::webhook_receiver::{ReceivedRequest, Reply, WebhookReceiver};
use async_trait::async_trait;
use serde_json::{Value, json};

use crate::fixture::{Fixture, approval_of, approve, caller, on_both_databases, submitted};

on_both_databases!(
    sends_each_matching_event_once_with_a_valid_signature,
    retries_failures_and_gives_up_after_three_days,
    circuit_opens_and_recovers,
    test_of_a_destination_that_sent_nothing_is_repeated_at_once,
    answer_of_a_previous_url_says_nothing_about_the_present_one,
    unrecorded_attempts_are_sent_again_with_the_same_id,
    two_processes_send_each_delivery_once,
    counts_deliveries_and_measures_what_waits,
    slack_message_of_a_task_is_updated,
    slack_has_one_message_of_a_task_that_never_goes_back,
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
        ("/hook?key=topsecret", "application/json; charset=utf-8")
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

    // Only administrators see the path of a URL.
    let (host, id) = (hooks.receiver.host(), &created.view.webhook_id);
    for (who, path) in [(admin(), "hook?***"), (caller("abe", &[AUDITOR]), "***")] {
        let url = format!("http://{host}/{path}");
        assert_eq!(service.get(id, &who).await.expect("seen").url, url);
        let listed = service.list(&who).await.expect("seen");
        assert!(listed.iter().any(|each| each.id == *id && each.value.url == url), "{listed:?}");
    }
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

async fn answer_of_a_previous_url_says_nothing_about_the_present_one(fixture: Fixture) {
    let mut hooks = Hooks::new().await;
    hooks.network = hooks.network.with_attempt_timeout(Duration::from_secs(15));
    let (service, dispatcher) = hooks.service(fixture.context());
    let id = hooks.create(&service, &["*"]).await.view.webhook_id;
    let _ = service.test(&id, &admin()).await.expect("due");
    let url = Some(hooks.receiver.url("/moved"));
    let moved = WebhookChange { url, ..WebhookChange::default() };
    hooks.receiver.reply_with(Reply::Hold);
    let (sent, ()) = tokio::join!(dispatcher.send_due(), async {
        assert_eq!(hooks.receiver.next_request().await.path, "/hook?key=topsecret");
        let _ = service.update(&id, &moved, &admin()).await.expect("changed meanwhile");
        hooks.receiver.reply_with(Reply::Status(410));
    });
    assert_eq!(sent.expect("sent"), 1);
    assert!(service.get(&id, &admin()).await.expect("exists").active);
    let waiting = only_delivery(&service, &id).await;
    assert_eq!((waiting.status, waiting.report.response_status), (DeliveryStatus::Pending, Some(410)));
    assert!(waiting.report.error.is_some_and(|error| error.contains("previous URL")));
    hooks.receiver.reply_with(Reply::Status(204));
    fixture.clock.advance(Duration::from_secs(60));
    assert_eq!(dispatcher.send_due().await.expect("sent"), 1);
    assert_eq!(hooks.receiver.next_request().await.path, "/moved");
    assert_eq!(only_delivery(&service, &id).await.status, DeliveryStatus::Delivered);
    // The same URL, encrypted again, is still the one that is gone.
    let _ = service.redeliver(&id, &waiting.delivery_id, &admin()).await.expect("due");
    hooks.receiver.reply_with(Reply::Hold);
    let (sent, ()) = tokio::join!(dispatcher.send_due(), async {
        let _ = hooks.receiver.next_request().await;
        let _ = service.update(&id, &moved, &admin()).await.expect("the same");
        hooks.receiver.reply_with(Reply::Status(410));
    });
    assert_eq!(sent.expect("sent"), 1);
    assert!(!service.get(&id, &admin()).await.expect("exists").active);
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

async fn test_of_a_destination_that_sent_nothing_is_repeated_at_once(fixture: Fixture) {
    let address = Arc::new(Mutex::new("1.1.1.1".parse().expect("an address")));
    let network = WebhookNetwork::new(&[]).expect("valid");
    let network = network.with_resolver(Arc::new(ChangingResolver(Arc::clone(&address))));
    let service = WebhookService::new(fixture.context(), network);
    let dispatcher = WebhookDispatcher::new(service.clone(), "server-1");
    let change = WebhookChange {
        name: Some("x".to_owned()),
        url: Some("https://a.test/".to_owned()),
        events: Some(vec!["*".to_owned()]),
        ..WebhookChange::default()
    };
    let id = service.create(&change, &admin()).await.expect("public at present").view.webhook_id;
    let failure = AttemptOutcome {
        status: DeliveryStatus::Pending,
        next_at: None,
        report: DeliveryReport::default(),
        message_ref: None,
    };
    let now = fixture.context().clock.now();
    for _ in 0..CIRCUIT_THRESHOLD {
        let reached = ("https://a.test:443", Some(false));
        let _ = fixture.database.finish_attempt(&[], "x", &failure, reached, now).await.expect("stored");
    }
    fixture.clock.advance(Duration::from_secs(600));
    // Nothing is sent to an address that is not public.
    *address.lock().expect("not poisoned") = "127.0.0.1".parse().expect("an address");
    for _ in 0..2 {
        assert_eq!(service.get(&id, &admin()).await.expect("exists").circuit, CircuitState::HalfOpen);
        let _ = service.test(&id, &admin()).await.expect("due");
        assert_eq!(dispatcher.send_due().await.expect("tried"), 1);
    }
}

async fn unrecorded_attempts_are_sent_again_with_the_same_id(fixture: Fixture) {
    let mut hooks = Hooks::new().await;
    let (service, dispatcher) = hooks.service(fixture.context());
    let created = hooks.create(&service, &["*"]).await;
    let id = created.view.webhook_id.as_str();
    let _ = service.test(id, &admin()).await.expect("due");
    // Another process claims it, sends it, and stops before it stores the answer.
    let now = fixture.context().clock.now();
    let claim = Claim {
        webhook_id: id.to_owned(),
        by: "lost".to_owned(),
        now,
        until: now.plus_ms(60_000),
        limit: 10,
    };
    let claimed = fixture.database.claim_deliveries(claim, false).await.expect("claimed");
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

async fn counts_deliveries_and_measures_what_waits(fixture: Fixture) {
    let hooks = Hooks::new().await;
    let (service, dispatcher) = hooks.service(fixture.context());
    dispatcher.write_deliveries().await.expect("at the end of the log");
    let id = hooks.create(&service, &["task:created"]).await.view.webhook_id;
    write_deliveries(&fixture, &dispatcher).await;
    let backlog = async || service.backlog().await.expect("read");
    let idle = backlog().await;
    assert_eq!((idle.unread_events, idle.unread_ms, idle.open_circuits), (0, 0, 0));

    fixture.add_user("ann", &["author"]).await;
    fixture.add_user("rex", &["reviewer"]).await;
    let _ = submitted(&fixture.service(), "grow").await;
    let _ = fixture.entries().await;
    fixture.clock.advance(Duration::from_secs(7));
    let behind = backlog().await;
    assert!(behind.unread_events >= 2 && behind.unread_ms == 7_000, "{behind:?}");
    let overdue = |backlog: &WebhookBacklog| {
        let of = |format| backlog.overdue_ms.iter().find(|(found, _)| *found == format).map(|(_, ms)| *ms);
        (of(WebhookFormat::Standard), of(WebhookFormat::Email))
    };
    assert_eq!(overdue(&behind), (Some(0), Some(0)));
    dispatcher.write_deliveries().await.expect("written");
    fixture.clock.advance(Duration::from_secs(3));
    let waiting = backlog().await;
    assert_eq!((waiting.unread_events, waiting.unread_ms), (0, 0));
    assert_eq!(overdue(&waiting), (Some(3_000), Some(0)));

    for _ in 1..CIRCUIT_THRESHOLD {
        let _ = service.test(&id, &admin()).await.expect("due");
    }
    hooks.receiver.reply_with(Reply::Status(500));
    assert_eq!(dispatcher.send_due().await.expect("sent"), CIRCUIT_THRESHOLD as usize);
    assert_eq!(backlog().await.open_circuits, 1);
    hooks.receiver.reply_with(Reply::Status(204));
    fixture.clock.advance(Duration::from_secs(600));
    let resting = backlog().await;
    assert_eq!((resting.open_circuits, resting.half_open_circuits), (0, 1));
    assert_eq!(dispatcher.send_due().await.expect("sent"), CIRCUIT_THRESHOLD as usize);
    let counts = service.delivery_counts();
    let expected = [(DeliveryOutcome::Delivered, 5), (DeliveryOutcome::Retried, 5)];
    let found: Vec<_> = counts.iter().filter(|(_, _, count)| *count > 0).collect();
    assert_eq!(
        found,
        expected.each_ref().map(|(outcome, count)| (WebhookFormat::Standard, *outcome, *count)).each_ref()
    );
    assert_eq!(counts.len(), WebhookFormat::ALL.len() * DeliveryOutcome::ALL.len(), "no other labels");
}

/// A webhook of another format, with what its receiver asks for.
fn change(hooks: &Hooks, format: WebhookFormat, path: &str, credential: Option<&str>) -> WebhookChange {
    WebhookChange {
        name: Some("x".to_owned()),
        url: Some(hooks.receiver.url(path)),
        format: Some(format),
        events: Some(vec!["task:*".to_owned(), "approval:*".to_owned()]),
        credential: credential.map(str::to_owned),
        ..WebhookChange::default()
    }
}

/// Checks a Block Kit message by the documented limits of Slack.
fn assert_slack_message(message: &Value) {
    let blocks = message["blocks"].as_array().expect("blocks");
    assert!(
        (1..=50).contains(&blocks.len()) && message["text"].as_str().is_some_and(|text| !text.is_empty())
    );
    let length = |value: &Value| value.as_str().expect("a text").chars().count();
    let assert_text = |text: &Value, max: usize| {
        assert!(["plain_text", "mrkdwn"].contains(&text["type"].as_str().expect("a type")));
        assert!((1..=max).contains(&length(&text["text"])), "{text}");
    };
    for block in blocks {
        match block["type"].as_str().expect("a type") {
            "header" => {
                assert_eq!(block["text"]["type"], "plain_text");
                assert_text(&block["text"], 150);
            }
            "section" => {
                let fields = block["fields"].as_array();
                assert!(fields.is_some() || block["text"].is_object());
                fields.iter().for_each(|fields| assert!((1..=10).contains(&fields.len())));
                fields.into_iter().flatten().for_each(|field| assert_text(field, 2_000));
                if block["text"].is_object() {
                    assert_text(&block["text"], 3_000);
                }
            }
            "actions" => {
                for element in block["elements"].as_array().expect("elements") {
                    assert_eq!(element["type"], "button");
                    assert_text(&element["text"], 75);
                    assert!(length(&element["action_id"]) <= 255 && length(&element["url"]) <= 3_000);
                }
            }
            other => assert_eq!(other, "a known block"),
        }
    }
}

async fn slack_message_of_a_task_is_updated(fixture: Fixture) {
    let mut hooks = Hooks::new().await;
    hooks.network = hooks.network.with_public_url(Some("https://ade.example.com/".to_owned()));
    let (service, dispatcher) = hooks.service(fixture.context());
    dispatcher.write_deliveries().await.expect("at the end of the log");
    let mut bot = change(&hooks, WebhookFormat::Slack, "/api/chat.postMessage", Some("xoxb-topsecret"));
    assert!(service.create(&bot, &admin()).await.is_err(), "a bot needs a channel");
    bot.channel = Some("C1".to_owned());
    bot.events = Some(vec!["task:submitted".to_owned(), "task:approved".to_owned()]);
    let created = service.create(&bot, &admin()).await.expect("created");
    assert!(created.secret.is_none() && created.view.url.ends_with("/***"), "{:?}", created.view);
    let id = created.view.webhook_id.as_str();
    fixture.add_user("ann", &["author"]).await;
    fixture.add_user("rex", &["reviewer"]).await;
    let tasks = fixture.service();
    let task = submitted(&tasks, "<!channel> grow").await;
    write_deliveries(&fixture, &dispatcher).await;
    // The API of Slack answers errors with status 200.
    hooks.receiver.reply_with(Reply::Body(json!({ "ok": false, "error": "channel_not_found" }).to_string()));
    dispatcher.send_due().await.expect("sent");
    let refused = only_delivery(&service, id).await;
    assert!(refused.report.error.is_some_and(|error| error.contains("channel_not_found")));
    let _ = hooks.receiver.next_request().await;
    let answer = json!({ "ok": true, "channel": "C1", "ts": "1503435956.000247", "token": "xoxb-topsecret" });
    hooks.receiver.reply_with(Reply::Body(answer.to_string()));
    fixture.clock.advance(Duration::from_secs(60));
    dispatcher.send_due().await.expect("sent");
    let posted = hooks.receiver.next_request().await;
    assert_eq!(
        (posted.path.as_str(), posted.header("authorization")),
        ("/api/chat.postMessage", "Bearer xoxb-topsecret")
    );
    assert_eq!(posted.header("webhook-signature"), "");
    assert_slack_message(&posted.json());
    assert_eq!(posted.json()["channel"], "C1");
    assert!(posted.body.contains("https://ade.example.com/tasks/"));
    let delivered = only_delivery(&service, id).await;
    assert!(
        delivered
            .report
            .response
            .is_some_and(|text| text.contains("1503435956") && !text.contains("topsecret"))
    );

    let rex = caller("rex", &["reviewer"]);
    let _ = tasks.decide(approval_of(&task, "rex"), &approve(&task), &rex).await.expect("decided elsewhere");
    write_deliveries(&fixture, &dispatcher).await;
    dispatcher.send_due().await.expect("sent");
    let updated = hooks.receiver.next_request().await;
    assert_eq!(
        (updated.path.as_str(), &updated.json()["ts"]),
        ("/api/chat.update", &json!("1503435956.000247"))
    );
    assert!(updated.body.contains("Task approved"), "{}", updated.body);
    assert_slack_message(&updated.json());
    let entries = format!("{:?}", fixture.entries().await);
    assert!(!entries.contains("topsecret"));
}

async fn slack_has_one_message_of_a_task_that_never_goes_back(fixture: Fixture) {
    let mut hooks = Hooks::new().await;
    hooks.network = hooks.network.with_attempt_timeout(Duration::from_secs(15));
    let (service, first) = hooks.service(fixture.context());
    let other = WebhookService::new(fixture.other_context().await, hooks.network.clone());
    let second = WebhookDispatcher::new(other, "server-2");
    first.write_deliveries().await.expect("at the end of the log");
    let bot = WebhookChange {
        channel: Some("C1".to_owned()),
        events: Some(vec!["task:submitted".to_owned(), "task:approved".to_owned()]),
        ..change(&hooks, WebhookFormat::Slack, "/api/chat.postMessage", Some("xoxb-1"))
    };
    let id = service.create(&bot, &admin()).await.expect("created").view.webhook_id;
    fixture.add_user("ann", &["author"]).await;
    fixture.add_user("rex", &["reviewer"]).await;
    let (tasks, rex) = (fixture.service(), caller("rex", &["reviewer"]));
    let answer = json!({ "ok": true, "channel": "C1", "ts": "1503435956.000247" }).to_string();
    let approved = async || {
        let task = submitted(&tasks, "grow").await;
        let _ = tasks.decide(approval_of(&task, "rex"), &approve(&task), &rex).await.expect("approved");
    };

    // Two events of one task are due: while one is on its way, no process sends the other.
    approved().await;
    write_deliveries(&fixture, &first).await;
    hooks.receiver.reply_with(Reply::Hold);
    let ((), one) = tokio::join!(
        async {
            assert_eq!(hooks.receiver.next_request().await.path, "/api/chat.postMessage");
            assert_eq!(second.send_due().await.expect("nothing"), 0);
            hooks.receiver.reply_with(Reply::Body(answer.clone()));
        },
        first.send_due(),
    );
    assert_eq!(one.expect("sent"), 2);
    let updated = hooks.receiver.next_request().await;
    assert!(updated.path == "/api/chat.update" && updated.body.contains("Task approved"), "{updated:?}");

    // The first event of another task has to wait, the second one does not: the first comes too late.
    let task = submitted(&tasks, "grow more").await;
    write_deliveries(&fixture, &first).await;
    hooks.receiver.reply_with(Reply::Status(429));
    assert_eq!(first.send_due().await.expect("sent"), 1);
    let _ = hooks.receiver.next_request().await;
    let _ = tasks.decide(approval_of(&task, "rex"), &approve(&task), &rex).await.expect("approved");
    write_deliveries(&fixture, &first).await;
    hooks.receiver.reply_with(Reply::Body(answer));
    assert_eq!(first.send_due().await.expect("sent"), 1);
    assert!(hooks.receiver.next_request().await.body.contains("Task approved"));
    fixture.clock.advance(Duration::from_secs(60));
    assert_eq!(first.send_due().await.expect("decided"), 1);
    assert_eq!(hooks.receiver.received(), None);
    let all = deliveries(&service, &id).await;
    let is_late = |each: &&Delivery| {
        each.content.task_id.as_deref() == Some(&task.task_id) && each.content.event == "task:submitted"
    };
    let late = all.iter().find(is_late).expect("listed");
    assert_eq!((late.status, late.report.error.as_ref()), (DeliveryStatus::Delivered, None));
    let reason = late.report.response.as_ref().expect("a reason");
    let is_superseded = |count: &&(_, _, u64)| count.1 == DeliveryOutcome::Superseded && count.2 == 1;
    assert_eq!(service.delivery_counts().iter().filter(is_superseded).count(), 1);
    assert!(reason.contains("not sent") && reason.contains("newer event"), "{reason}");
    // Nor does it when somebody asks for it.
    let _ = service.redeliver(&id, &late.delivery_id, &admin()).await.expect("due");
    assert_eq!(first.send_due().await.expect("decided"), 1);
    assert_eq!(hooks.receiver.received(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_formats_follow_the_documented_schemas() {
    let fixture = Fixture::on_sqlite().await;
    let mut hooks = Hooks::new().await;
    let (service, dispatcher) = hooks.service(fixture.context());
    dispatcher.write_deliveries().await.expect("at the end of the log");
    for format in [WebhookFormat::Pagerduty, WebhookFormat::Servicenow] {
        assert!(
            service.create(&change(&hooks, format, "/x", None), &admin()).await.is_err(),
            "no credential"
        );
    }
    let only = |path: &str, format, credential, event: &str| WebhookChange {
        events: Some(vec![event.to_owned()]),
        ..change(&hooks, format, path, credential)
    };
    for hook in [
        only("/v2/enqueue", WebhookFormat::Pagerduty, Some("R0UTINGKEY"), "approval:requested"),
        only(
            "/api/now/table/incident",
            WebhookFormat::Servicenow,
            Some("Basic dXNlcjpwYXNz"),
            "task:submitted",
        ),
        only("/services/T0/B0/topsecret", WebhookFormat::Slack, None, "task:created"),
    ] {
        let created = service.create(&hook, &admin()).await.expect("created");
        assert!(created.secret.is_none() && !created.view.url.contains("topsecret"));
    }
    fixture.add_user("ann", &["author"]).await;
    fixture.add_user("rex", &["reviewer"]).await;
    let task = submitted(&fixture.service(), "grow\u{202e} the pool").await;
    write_deliveries(&fixture, &dispatcher).await;
    assert_eq!(dispatcher.send_due().await.expect("sent"), 3);
    let requests: Vec<ReceivedRequest> = std::iter::from_fn(|| hooks.receiver.received()).collect();
    let at = |path: &str| requests.iter().find(|request| request.path == path).expect(path);
    let event = at("/v2/enqueue").json();
    assert_eq!((&event["routing_key"], &event["event_action"]), (&json!("R0UTINGKEY"), &json!("trigger")));
    assert_eq!(event["dedup_key"], format!("ade-task-{}", task.task_id));
    let payload = &event["payload"];
    assert!(
        ["critical", "error", "warning", "info"].contains(&payload["severity"].as_str().expect("a severity"))
    );
    for (field, max) in [("summary", 1_024), ("source", 255), ("timestamp", 255)] {
        assert!((1..=max).contains(&payload[field].as_str().map_or(0, str::len)), "{field} of {payload}");
    }
    let record = at("/api/now/table/incident");
    assert_eq!(record.header("authorization"), "Basic dXNlcjpwYXNz");
    for (field, max) in [("short_description", 160), ("correlation_id", 100), ("urgency", 1), ("impact", 1)] {
        assert!((1..=max).contains(&record.json()[field].as_str().map_or(0, str::len)), "{field}");
    }
    assert!(
        record.json()["description"].as_str().is_some_and(|text| text.contains("grow\\u{202e} the pool"))
    );
    assert_slack_message(&at("/services/T0/B0/topsecret").json());
}

#[tokio::test(flavor = "multi_thread")]
async fn credential_does_not_follow_the_url_to_another_host() {
    let (fixture, mut hooks) = (Fixture::on_sqlite().await, Hooks::new().await);
    let mut other = WebhookReceiver::start().await;
    hooks.network = WebhookNetwork::new(&[hooks.receiver.host(), other.host()]).expect("valid");
    let (service, dispatcher) = hooks.service(fixture.context());
    let send = async |id: &str| {
        let _ = service.test(id, &admin()).await.expect("due");
        assert_eq!(dispatcher.send_due().await.expect("sent"), 1);
    };
    let at = |url: String| WebhookChange { url: Some(url), ..WebhookChange::default() };
    for (format, channel) in [
        (WebhookFormat::Slack, Some("C1")),
        (WebhookFormat::Pagerduty, None),
        (WebhookFormat::Servicenow, None),
    ] {
        let channel = channel.map(str::to_owned);
        let new = WebhookChange { channel, ..change(&hooks, format, "/a", Some("first-secret")) };
        let id = service.create(&new, &admin()).await.expect("created").view.webhook_id;
        let refused = service.update(&id, &at(other.url("/a")), &admin()).await.expect_err("another host");
        assert!(
            matches!(&refused, Error::Invalid(faults) if faults[0].path.to_string() == "url"),
            "{format:?}: {refused}"
        );
        // Another path of the same host is still who got the credential.
        let _ = service.update(&id, &at(hooks.receiver.url("/b")), &admin()).await.expect("the same host");
        send(&id).await;
        let request = hooks.receiver.next_request().await;
        let sent = format!("{} {}", request.header("authorization"), request.body);
        assert!(request.path == "/b" && sent.contains("first-secret"), "{format:?}: {sent}");
        assert_eq!(other.received(), None, "{format:?}");
        let credential = Some("second-secret".to_owned());
        let moved = WebhookChange { credential, ..at(other.url("/a")) };
        let _ = service.update(&id, &moved, &admin()).await.expect("with its own credential");
        send(&id).await;
        let request = other.next_request().await;
        let sent = format!("{:?} {}", request.headers, request.body);
        assert!(sent.contains("second-secret") && !sent.contains("first-secret"), "{format:?}: {sent}");
    }
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

#[tokio::test(flavor = "multi_thread")]
async fn secrets_outlive_the_secret_of_the_installation() {
    const OLD: &str = "an-old-secret-with-at-least-32-characters";
    const NEW: &str = "a-new-secret-that-has-enough-characters";
    let (folder, mut hooks) = (tempfile::tempdir().expect("a folder"), Hooks::new().await);
    let open = async |keys: Keys| {
        let database = Database::open_sqlite(folder.path(), keys).await.expect("opens");
        Fixture::with(database, None, tempfile::tempdir().expect("a folder"))
    };
    let old = open(Keys::derive(OLD, "").expect("long")).await;
    let created = hooks.create(&hooks.service(old.context()).0, &["*"]).await;
    let secret = created.secret.expect("shown once");
    drop(old);
    let send = async |fixture: &Fixture, hooks: &mut Hooks| {
        let (service, dispatcher) = hooks.service(fixture.context());
        let _ = service.test(&created.view.webhook_id, &admin()).await.expect("due");
        assert_eq!(dispatcher.send_due().await.expect("tried"), 1);
    };
    let both = open(Keys::derive(NEW, OLD).expect("long")).await;
    send(&both, &mut hooks).await;
    assert_signed_by(&hooks.receiver.next_request().await, &[secret.reveal()]);
    assert_eq!(reseal_secrets(&both.context()).await.expect("sealed"), 1);
    assert_eq!(reseal_secrets(&both.context()).await.expect("nothing to do"), 0);
    drop(both);
    // Without the previous secret.
    let new = open(Keys::derive(NEW, "").expect("long")).await;
    send(&new, &mut hooks).await;
    assert_signed_by(&hooks.receiver.next_request().await, &[secret.reveal()]);
}
