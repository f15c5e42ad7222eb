//! E-mail: who gets a message, what it says, and what happens if the mail server refuses it. Digests are complete, over restarts too.

use std::time::Duration;

use ade_app::webhooks::{
    MailEncryption, MailServer, MailSettings, WebhookChange, WebhookDispatcher, WebhookNetwork,
};
use ade_app::{Caller, Context, Error, WebhookService};
use ade_domain::people::{ADMIN, UserId};
use ade_domain::webhook::WebhookFormat;
use ade_domain::webhook::delivery::CircuitState;
use ade_store::database::{Claim, Delivery, DeliveryFilter, DeliveryStatus, StoredUser};
use ade_testkit::mail_receiver::{MailReceiver, ReceivedMail};

use crate::fixture::{Fixture, caller, on_both_databases, submitted, user};

on_both_databases!(
    writes_to_the_people_whom_an_event_concerns,
    retries_temporary_refusals_only,
    digests_are_complete_and_sent_once,
);

fn admin() -> Caller {
    caller("root", &[ADMIN])
}

struct Mails {
    receiver: MailReceiver,
}

impl Mails {
    async fn new(fixture: &Fixture) -> Self {
        fixture.add_user("ann", &["author"]).await;
        for (id, email) in [("rex", Some("rex@example.com")), ("sue", None), ("tom", Some("tom@example.com"))]
        {
            let mut user = user(id, &["reviewer"]);
            user.email = email.map(str::to_owned);
            let user = Box::new(StoredUser { user, revision: 1, password: None, invitation: None });
            fixture.write_user(user, None).await;
        }
        Self { receiver: MailReceiver::start().await }
    }

    fn server(&self, encryption: MailEncryption) -> MailServer {
        let settings = MailSettings {
            host: "127.0.0.1".to_owned(),
            port: self.receiver.port(),
            encryption,
            credentials: None,
            from: "ade@ade.test".to_owned(),
        };
        MailServer::new(settings).expect("valid")
    }

    fn service(&self, context: Context, encryption: MailEncryption) -> (WebhookService, WebhookDispatcher) {
        let network = WebhookNetwork::new(&[]).expect("valid").with_mail(Some(self.server(encryption)));
        let network = network.with_public_url(Some("https://ade.test".to_owned()));
        let service = WebhookService::new(context, network);
        (service.clone(), WebhookDispatcher::new(service, "server-1"))
    }

    /// The messages that arrived, by recipient.
    fn received(&mut self) -> Vec<(String, ReceivedMail)> {
        let mut all: Vec<_> =
            std::iter::from_fn(|| self.receiver.received()).map(|mail| (mail.header("To"), mail)).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }
}

fn change(addresses: &[&str], digest_minutes: Option<u32>) -> WebhookChange {
    WebhookChange {
        name: Some("reviewers".to_owned()),
        format: Some(WebhookFormat::Email),
        events: Some(vec!["approval:requested".to_owned()]),
        addresses: Some(addresses.iter().map(|address| (*address).to_owned()).collect()),
        digest_minutes,
        ..WebhookChange::default()
    }
}

async fn create(service: &WebhookService, change: &WebhookChange) -> String {
    service.create(change, &admin()).await.expect("created").view.webhook_id
}

async fn deliveries(service: &WebhookService, webhook_id: &str) -> Vec<Delivery> {
    let filter = DeliveryFilter { webhook_id, ..DeliveryFilter::default() };
    let mut all = service.deliveries(filter, 100, &admin()).await.expect("listed");
    all.reverse();
    all
}

/// Numbers the entries, as the sequencer does, and writes the deliveries.
async fn write_deliveries(fixture: &Fixture, dispatcher: &WebhookDispatcher) {
    let _ = fixture.entries().await;
    dispatcher.write_deliveries().await.expect("written");
}

async fn writes_to_the_people_whom_an_event_concerns(fixture: Fixture) {
    let mut mails = Mails::new(&fixture).await;
    let (service, dispatcher) = mails.service(fixture.context(), MailEncryption::None);
    dispatcher.write_deliveries().await.expect("at the end of the log");
    let webhook =
        create(&service, &change(&["ops@example.com", "REX@example.com", "OPS@example.com"], None)).await;
    let description = "Grow\r\nBcc: evil@a.test\r\n\r\n<script>1</script>\u{202e}.";
    let task = submitted(&fixture.service(), description).await;
    for _ in 0..2 {
        write_deliveries(&fixture, &dispatcher).await;
        dispatcher.send_due().await.expect("sent");
    }
    let all = mails.received();
    let people: Vec<&str> = all.iter().map(|(to, _)| to.as_str()).collect();
    // Every reviewer is an event. Who has an address gets the own one; the fixed addresses get all, also those of users.
    let (ops, rex, fixed) = ("ops@example.com", "rex@example.com", "REX@example.com");
    assert_eq!(people, [fixed, fixed, fixed, ops, ops, ops, rex, "tom@example.com"]);
    let mail = &all[6].1;
    assert_eq!(mail.envelope.len(), 2, "{:?}", mail.envelope);
    assert!(mail.envelope[0].starts_with("MAIL FROM:<ade@ade.test>"), "{:?}", mail.envelope);
    assert_eq!(mail.envelope[1], "RCPT TO:<rex@example.com>");
    let mut headers = mail.header_names();
    headers.sort();
    let expected =
        ["Auto-Submitted", "Content-Type", "Date", "From", "MIME-Version", "Message-ID", "Subject", "To"];
    assert_eq!(headers, expected);
    assert_eq!(mail.header("Auto-Submitted"), "auto-generated");
    assert_eq!(mail.header("From"), "ADE <ade@ade.test>");
    assert!(mail.header("Subject").starts_with("[ADE] Approval requested: Grow Bcc: evil@a.test"));
    assert!(mail.data.contains("text/plain") && mail.data.contains("text/html"));
    assert!(mail.data.contains(&format!("https://ade.test/tasks/{}", task.task_id)));
    // As it is in the subject and the plain text, escaped in the HTML.
    assert_eq!(mail.data.matches("<script>1").count(), 2, "{}", mail.data);
    assert_eq!(mail.data.matches("&lt;script&gt;1").count(), 1, "{}", mail.data);

    let stored = deliveries(&service, &webhook).await;
    assert!(stored.len() == 8 && stored.iter().all(|each| each.status == DeliveryStatus::Delivered));
    let skipped: Vec<u32> = stored.iter().map(|each| each.content.skipped_people).collect();
    assert_eq!(
        skipped.iter().sum::<u32>(),
        2,
        "those of the request to sue, who has no address: {skipped:?}"
    );
    let to_rex: Vec<&Delivery> =
        stored.iter().filter(|each| each.recipient.as_deref() == Some("user:rex")).collect();
    assert_eq!(to_rex.len(), 1);
    assert_eq!(mail.header("Message-ID"), format!("<{}@ade.test>", to_rex[0].delivery_id));
    assert!(!format!("{stored:?}").contains("rex@example.com"), "auditors do not see it");

    // Sent again, it has the same id.
    let _ = service.redeliver(&webhook, &to_rex[0].delivery_id, &admin()).await.expect("due");
    assert_eq!(dispatcher.send_due().await.expect("sent"), 1);
    assert_eq!(mails.received()[0].1.header("Message-ID"), mail.header("Message-ID"));
}

async fn retries_temporary_refusals_only(fixture: Fixture) {
    let mut mails = Mails::new(&fixture).await;
    let (service, dispatcher) = mails.service(fixture.context(), MailEncryption::None);
    let webhook = create(&service, &change(&["ops@example.com"], None)).await;
    let _ = service.test(&webhook, &admin()).await.expect("due");
    let only = async || deliveries(&service, &webhook).await.remove(0);
    mails.receiver.refuse_with(Some("451 4.7.1 greylisted OPS@Example.COM"));
    assert_eq!(dispatcher.send_due().await.expect("sent"), 1);
    let refused = only().await;
    assert_eq!((refused.status, refused.report.response_status), (DeliveryStatus::Pending, Some(451)));
    assert!(refused.report.response.is_some_and(|text| text.contains("greylisted ***")));
    mails.receiver.refuse_with(None);
    fixture.clock.advance(Duration::from_secs(60));
    assert_eq!(dispatcher.send_due().await.expect("sent"), 1);
    assert_eq!((only().await.status, mails.received().len()), (DeliveryStatus::Delivered, 1));

    mails.receiver.refuse_with(Some("550 no such user"));
    for _ in 0..6 {
        let _ = service.redeliver(&webhook, &refused.delivery_id, &admin()).await.expect("due");
        assert_eq!(dispatcher.send_due().await.expect("sent"), 1);
        let failed = only().await;
        assert_eq!((failed.status, failed.report.response_status), (DeliveryStatus::Failed, Some(550)));
    }
    // Whom a server refuses says nothing about the server.
    let view = service.get(&webhook, &admin()).await.expect("exists");
    assert_eq!((view.circuit, view.active), (CircuitState::Closed, true));
    // But wrong credentials do, and lose no message.
    mails.receiver.refuse_with(Some("535 authentication failed"));
    let _ = service.redeliver(&webhook, &refused.delivery_id, &admin()).await.expect("due");
    assert_eq!(dispatcher.send_due().await.expect("sent"), 1);
    assert_eq!(only().await.status, DeliveryStatus::Pending);

    // Nothing is sent without the encryption that is required.
    mails.receiver.refuse_with(None);
    let (_, encrypted) = mails.service(fixture.context(), MailEncryption::StartTls);
    fixture.clock.advance(Duration::from_secs(60));
    assert_eq!(encrypted.send_due().await.expect("tried"), 1);
    let pending = only().await;
    assert_eq!((pending.status, mails.received().len()), (DeliveryStatus::Pending, 0), "{pending:?}");
    assert!(pending.report.error.is_some_and(|error| error.contains("STARTTLS")));
}

async fn digests_are_complete_and_sent_once(fixture: Fixture) {
    let mut mails = Mails::new(&fixture).await;
    let (service, dispatcher) = mails.service(fixture.context(), MailEncryption::None);
    dispatcher.write_deliveries().await.expect("at the end of the log");
    let webhook = create(&service, &change(&[], Some(30))).await;
    let tasks = fixture.service();
    for number in 0..3 {
        let _ = submitted(&tasks, &format!("early task {number}")).await;
    }
    write_deliveries(&fixture, &dispatcher).await;
    assert_eq!(dispatcher.send_due().await.expect("nothing yet"), 0);
    fixture.clock.advance(Duration::from_secs(30 * 60));
    let _ = submitted(&tasks, "late task").await;
    write_deliveries(&fixture, &dispatcher).await;

    // A process claims the digest of one person, sends it, and stops before it stores that.
    let now = fixture.context().clock.now();
    let claim = Claim {
        webhook_id: webhook.clone(),
        by: "lost".to_owned(),
        now,
        until: now.plus_ms(60_000),
        limit: 1,
    };
    let lost = fixture.database.claim_digests(claim).await.expect("claimed");
    assert_eq!(lost.iter().map(Vec::len).collect::<Vec<_>>(), [3]);
    // Two processes send the other one once.
    let other = mails.service(fixture.other_context().await, MailEncryption::None).0;
    let other = WebhookDispatcher::new(other, "server-2");
    let (one, two) = tokio::join!(dispatcher.send_due(), other.send_due());
    assert_eq!(one.expect("sent") + two.expect("sent"), 1);
    let first = mails.received();
    assert_eq!(first.len(), 1);
    // The lost one is sent again, with all that was in it and no more.
    fixture.clock.advance(Duration::from_secs(60));
    assert_eq!(other.send_due().await.expect("sent"), 1);
    let again = mails.received();
    let mut people: Vec<&str> = first.iter().chain(&again).map(|(to, _)| to.as_str()).collect();
    people.sort_unstable();
    assert_eq!(people, ["rex@example.com", "tom@example.com"]);
    for (_, mail) in first.iter().chain(&again) {
        assert_eq!(mail.header("Subject"), "[ADE] 3 notifications");
        for number in 0..3 {
            // In the plain text and in the HTML.
            assert_eq!(mail.data.matches(&format!("early task {number}")).count(), 2, "{}", mail.data);
        }
        assert!(!mail.data.contains("late task"));
    }
    assert_eq!(again[0].1.header("Message-ID"), format!("<{}@ade.test>", lost[0][0].delivery_id));

    // The next interval has its own message. Who was deactivated meanwhile gets none.
    let mut rex = fixture.database.user(&UserId::new("rex")).await.expect("read").expect("exists");
    rex.user.active = false;
    rex.revision += 1;
    fixture.write_user(Box::new(rex), Some(1)).await;
    fixture.clock.advance(Duration::from_secs(30 * 60));
    assert_eq!(dispatcher.send_due().await.expect("sent"), 2);
    let next = mails.received();
    assert_eq!(next.len(), 1);
    assert!(next[0].0 == "tom@example.com" && next[0].1.data.contains("late task"));
    assert_eq!(dispatcher.send_due().await.expect("nothing"), 0);
    let mut all = deliveries(&service, &webhook).await;
    let is_to_nobody = |each: &Delivery| each.recipient.is_none() && each.content.skipped_people == 1;
    assert_eq!(all.extract_if(.., |each| is_to_nobody(each)).count(), 4, "the requests to sue");
    let failed: Vec<&Delivery> = all.iter().filter(|each| each.status == DeliveryStatus::Failed).collect();
    assert_eq!((all.len(), failed.len()), (8, 1));
    assert!(failed[0].report.error.as_ref().is_some_and(|error| error.contains("deactivated")));
}

#[tokio::test]
async fn needs_a_mail_server_and_somebody_to_write_to() {
    let fixture = Fixture::on_sqlite().await;
    let network = WebhookNetwork::new(&[]).expect("valid");
    let service = WebhookService::new(fixture.context(), network);
    let refused = service.create(&change(&[], None), &admin()).await.expect_err("no mail server");
    assert!(matches!(&refused, Error::Invalid(faults) if faults[0].to_string().contains("[webhooks.smtp]")));
    let mails = Mails::new(&fixture).await;
    let (service, _) = mails.service(fixture.context(), MailEncryption::None);
    let with_url = WebhookChange { url: Some("https://a.test".to_owned()), ..change(&[], None) };
    service.create(&with_url, &admin()).await.expect_err("a URL");
    service.create(&change(&["a@b.test\r\nBcc: c@d.test"], None), &admin()).await.expect_err("no address");
    let webhook = create(&service, &change(&[], None)).await;
    service.test(&webhook, &admin()).await.expect_err("nobody");
    let digest = WebhookChange { digest_minutes: Some(5), ..WebhookChange::default() };
    let view = service.update(&webhook, &digest, &admin()).await.expect("changed");
    assert_eq!(view.digest_minutes, Some(5));
    let none = WebhookChange { digest_minutes: Some(0), ..WebhookChange::default() };
    let view = service.update(&webhook, &none, &admin()).await.expect("changed");
    assert_eq!((view.digest_minutes, view.url.as_str()), (None, "smtp:"));
}
