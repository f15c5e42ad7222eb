//! Inbound hooks: a signed message proposes one task, and nothing else does.

use std::time::Duration;

use ade_app::webhooks::{InboundHookChange, InboundHookService, InboundHookWithSecret};
use ade_app::{Caller, Error, HookSuspension};
use ade_domain::Moment;
use ade_domain::audit::{AuditActor, Principal};
use ade_domain::people::{ADMIN, AUTHOR, AuthorReason, REVIEWER, UserId};
use ade_domain::task::TaskState;
use ade_domain::webhook::inbound::{InboundHook, TaskTemplate};
use ade_domain::webhook::signature::SignedMessage;
use ade_store::database::TaskFilter;
use serde_json::{Value, json};

use crate::fixture::{Fixture, approval_of, approve, caller, on_both_databases};

on_both_databases!(
    signed_message_proposes_a_task_once,
    forged_late_and_foreign_messages_create_nothing,
    concurrent_copies_create_one_task,
    everybody_who_made_a_secret_or_changed_a_hook_is_an_author,
    deactivated_people_propose_nothing,
);

fn admin() -> Caller {
    caller("root", &[ADMIN])
}

fn template() -> TaskTemplate {
    serde_json::from_value(json!({
        "type": "deploy", "description": "Deploy {version}", "executor": "noop",
        "parameters": { "version": "{version}" }, "resources": [{ "type": "service", "id": "shop" }],
        "tags": ["ci"], "inputs": { "version": { "type": "integer", "minimum": 1, "maximum": 99 } },
    }))
    .expect("a template")
}

struct Sender {
    service: InboundHookService,
    hook: InboundHookWithSecret,
}

/// The three headers of a message, signed by the independent library.
struct Message {
    id: String,
    timestamp: String,
    signature: String,
    body: String,
}

impl Sender {
    async fn new(fixture: &Fixture) -> Self {
        for (user, role) in [("ann", AUTHOR), ("rex", REVIEWER), ("root", ADMIN)] {
            fixture.add_user(user, &[role]).await;
        }
        let service = InboundHookService { context: fixture.context(), tasks: fixture.service() };
        let change = InboundHookChange {
            name: Some("deploys".to_owned()),
            owner: Some(UserId::new("ann")),
            template: Some(template()),
            ..InboundHookChange::default()
        };
        let hook = service.create(&change, &admin()).await.expect("registered");
        Self { service, hook }
    }

    fn sign(&self, id: &str, at: Moment, body: &Value) -> Message {
        let (seconds, body) = (at.micros() / 1_000_000, body.to_string());
        let library = standardwebhooks::Webhook::new(self.hook.secret.reveal()).expect("a secret");
        let timestamp = i64::try_from(seconds).expect("small");
        let signature = library.sign(id, timestamp, body.as_bytes()).expect("signed");
        Message { id: id.to_owned(), timestamp: seconds.to_string(), signature, body }
    }

    async fn send(&self, message: &Message) -> Result<ade_app::webhooks::HookedProposal, Error> {
        self.send_to(&self.hook.view.hook_id, message).await
    }

    async fn send_to(
        &self,
        hook_id: &str,
        message: &Message,
    ) -> Result<ade_app::webhooks::HookedProposal, Error> {
        let signed = SignedMessage {
            id: &message.id,
            timestamp: &message.timestamp,
            signatures: &message.signature,
            body: message.body.as_bytes(),
        };
        let verified = self.service.verify(hook_id, signed).await?;
        self.service.propose(verified, AuditActor::default()).await
    }
}

async fn task_count(fixture: &Fixture) -> usize {
    fixture.database.tasks(&TaskFilter::default(), None, 100).await.expect("listed").len()
}

async fn everybody_who_made_a_secret_or_changed_a_hook_is_an_author(fixture: Fixture) {
    let sender = Sender::new(&fixture).await;
    for user in ["eve", "fay"] {
        fixture.add_user(user, &[ADMIN]).await;
    }
    let id = &sender.hook.view.hook_id;
    sender.service.rotate(id, &caller("eve", &[ADMIN])).await.expect("rotated");
    let change = InboundHookChange { template: Some(template()), ..InboundHookChange::default() };
    sender.service.update(id, &change, &caller("fay", &[ADMIN])).await.expect("changed");
    // The previous secret is accepted for a day: who made it stays an author.
    let now = fixture.context().clock.now();
    let message = sender.sign("m1", now, &json!({ "type": "deploy", "data": { "version": 7 } }));
    let proposed = sender.send(&message).await.expect("accepted");
    let task = fixture.task(&proposed.task.task_id).await;
    for user in ["ann", "root", "eve", "fay"] {
        assert!(task.author_set.contains(&UserId::new(user)), "{user}");
    }
}

async fn deactivated_people_propose_nothing(fixture: Fixture) {
    let mut sender = Sender::new(&fixture).await;
    fixture.add_user("eve", &[ADMIN]).await;
    fixture.add_user("fay", &[ADMIN]).await;
    let id = sender.hook.view.hook_id.clone();
    let set_active = async |name: &str, active: bool| {
        let stored = fixture.database.user(&UserId::new(name)).await.expect("read").expect("exists");
        let (mut changed, revision) = (stored.clone(), stored.revision);
        changed.user.active = active;
        changed.revision = revision + 1;
        fixture.write_user(Box::new(changed), Some(revision)).await;
    };
    let now = fixture.context().clock.now();
    let body = json!({ "data": { "version": 1 } });
    let holder = |name: &str| {
        Some(Error::HookSuspended(HookSuspension::SecretHolder {
            hook_id: id.clone(),
            user_id: UserId::new(name),
        }))
    };
    sender.hook = sender.service.rotate(&id, &caller("eve", &[ADMIN])).await.expect("rotated");
    set_active("eve", false).await;
    let refused = sender.send(&sender.sign("m1", now, &body)).await.err();
    assert_eq!(refused, holder("eve"));
    let text = refused.expect("refused").to_string();
    assert!(text.contains("eve") && text.contains(&format!("ade webhook inbound rotate {id}")), "{text}");
    // A wrong signature learns nothing of it.
    let forged = Message { signature: "v1,AAAA".to_owned(), ..sender.sign("m1", now, &body) };
    assert!(matches!(sender.send(&forged).await, Err(Error::Unauthenticated(_))));
    // After a rotation the new secret is accepted, and the previous one is not, not even for a day.
    let of_fay = sender.service.rotate(&id, &caller("fay", &[ADMIN])).await.expect("rotated");
    assert_eq!(sender.send(&sender.sign("m1", now, &body)).await.err(), holder("eve"));
    sender.hook = of_fay;
    let _ = sender.send(&sender.sign("m1", now, &body)).await.expect("accepted");
    // An owner who left proposes nothing, with any secret.
    set_active("ann", false).await;
    let refused = sender.send(&sender.sign("m2", now, &body)).await.err();
    assert_eq!(refused, Some(Error::HookSuspended(HookSuspension::Owner(UserId::new("ann")))));
    set_active("ann", true).await;
    let _ = sender.send(&sender.sign("m2", now, &body)).await.expect("accepted again");
    assert_eq!(task_count(&fixture).await, 2);
}

async fn signed_message_proposes_a_task_once(fixture: Fixture) {
    let sender = Sender::new(&fixture).await;
    let now = fixture.context().clock.now();
    let message = sender.sign("m1", now, &json!({ "type": "deploy", "data": { "version": 7 } }));
    let proposed = sender.send(&message).await.expect("accepted");
    assert_eq!(proposed.submit_error, None);
    let task = fixture.task(&proposed.task.task_id).await;
    assert_eq!((task.state, task.config.description.as_str()), (TaskState::Reviewing, "Deploy 7"));
    assert_eq!(task.config.parameters["version"], 7);
    assert_eq!(task.author_id.as_str(), "ann");
    // The owner and the administrator who knows the secret are authors: neither decides.
    let reason = |user: &str| task.author_set.reason(&UserId::new(user)).cloned();
    assert_eq!(reason("ann"), Some(AuthorReason::Author));
    assert_eq!(reason("root"), Some(AuthorReason::TokenIssuer));
    let tag = format!("hook:{}", sender.hook.view.hook_id);
    assert_eq!(task.metadata.tags, ["ci", tag.as_str()]);
    let entries = fixture.entries().await;
    let created = entries.iter().find(|entry| entry.action == "task.create").expect("audited");
    assert!(matches!(&created.who, Principal::Caller(who) if who.token_id.as_deref() == Some(tag.as_str())));
    let (tasks, rex) = (fixture.service(), caller("rex", &[REVIEWER]));
    let decided = tasks.decide(approval_of(&task, "rex"), &approve(&task), &rex).await.expect("independent");
    assert_eq!(decided.state, TaskState::Approved);

    let replayed = sender.send(&message).await.expect_err("used");
    assert_eq!(replayed, Error::Replayed { message_id: "m1".to_owned() });
    let other = sender.sign("m1", now, &json!({ "data": { "version": 8 } }));
    assert!(
        matches!(sender.send(&other).await, Err(Error::Replayed { .. })),
        "the same id with another body"
    );
    assert_eq!(task_count(&fixture).await, 1);
    let shown = format!("{:?} {:?}", sender.service.list(&admin()).await, fixture.entries().await);
    let documents = fixture.database.documents::<InboundHook>().await.expect("read");
    let secret = sender.hook.secret.reveal().trim_start_matches("whsec_");
    assert!(!shown.contains(secret) && !format!("{documents:?}").contains(secret));
}

async fn forged_late_and_foreign_messages_create_nothing(fixture: Fixture) {
    let mut sender = Sender::new(&fixture).await;
    let now = fixture.context().clock.now();
    let body = json!({ "data": { "version": 1 } });
    let valid = || sender.sign("m1", now, &body);
    let stranger = standardwebhooks::Webhook::from_bytes(vec![1; 32]).expect("a secret");
    let at = i64::try_from(now.micros() / 1_000_000).expect("small");
    let forged = stranger.sign("m1", at, body.to_string().as_bytes()).expect("signed");
    let old = Moment::from_micros(now.micros() - 301_000_000);
    for (what, message) in [
        ("signature", Message { signature: forged, ..valid() }),
        ("body", Message { body: json!({ "data": { "version": 2 } }).to_string(), ..valid() }),
        ("id", Message { id: "m2".to_owned(), ..valid() }),
        ("timestamp", Message { timestamp: (at + 1).to_string(), ..valid() }),
        ("old", sender.sign("m1", old, &body)),
        ("future", sender.sign("m1", now.plus_ms(301_000), &body)),
    ] {
        assert!(matches!(sender.send(&message).await, Err(Error::Unauthenticated(_))), "{what}");
    }
    let unknown = sender.send_to("01a1e9b1-fa2d-7273-b608-000000000001", &valid()).await;
    assert!(matches!(unknown, Err(Error::Unauthenticated(_))));
    for (what, body) in [
        ("type", json!({ "data": { "version": "1" } })),
        ("bounds", json!({ "data": { "version": 100 } })),
        ("missing", json!({ "data": {} })),
        ("extra", json!({ "data": { "version": 1, "x": 1 } })),
        ("field", json!({ "data": { "version": 1 }, "x": 1 })),
        ("list", json!([1])),
    ] {
        let sent = sender.send(&sender.sign("m1", now, &body)).await;
        assert!(matches!(sent, Err(Error::Invalid(_))), "{what}: {sent:?}");
    }
    assert_eq!(task_count(&fixture).await, 0);

    // An invalid message does not use its id up; a rotated secret is accepted for a day, a deactivated hook accepts nothing.
    let id = sender.hook.view.hook_id.clone();
    let by_old = sender.sign("m1", now, &body);
    sender.hook = sender.service.rotate(&id, &admin()).await.expect("rotated");
    let _ = sender.send(&by_old).await.expect("accepted");
    let _ = sender.send(&sender.sign("m2", now, &body)).await.expect("accepted");
    let off = InboundHookChange { active: Some(false), ..InboundHookChange::default() };
    let _ = sender.service.update(&id, &off, &admin()).await.expect("updated");
    let sent = sender.send(&sender.sign("m3", now, &body)).await;
    assert!(matches!(sent, Err(Error::Unauthenticated(_))));
    let on = InboundHookChange { active: Some(true), ..InboundHookChange::default() };
    let _ = sender.service.update(&id, &on, &admin()).await.expect("updated");
    fixture.clock.advance(Duration::from_secs(86_400));
    let late = Message { ..by_old };
    assert!(matches!(sender.send(&late).await, Err(Error::Unauthenticated(_))));
    assert_eq!(task_count(&fixture).await, 2);
}

async fn concurrent_copies_create_one_task(fixture: Fixture) {
    let sender = Sender::new(&fixture).await;
    let message = sender.sign("m1", fixture.context().clock.now(), &json!({ "data": { "version": 1 } }));
    let sent = futures_util::future::join_all((0..8).map(|_| sender.send(&message))).await;
    assert_eq!(sent.iter().filter(|result| result.is_ok()).count(), 1);
    let is_replay = |error: &Error| matches!(error, Error::Replayed { .. });
    assert!(sent.iter().filter_map(|result| result.as_ref().err()).all(is_replay), "{sent:?}");
    assert_eq!(task_count(&fixture).await, 1);
}
