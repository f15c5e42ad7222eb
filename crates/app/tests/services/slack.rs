//! Decisions in Slack: a linked user decides about what a message shows, once, and nobody else does.

use std::collections::BTreeMap;
use std::time::Duration;

use ade_app::accounts::UserChange;
use ade_app::webhooks::{
    NewLinkCode, SlackService, WebhookChange, WebhookDispatcher, WebhookNetwork, reseal_secrets,
};
use ade_app::{AccountService, Caller, Error, WebhookService};
use ade_domain::Moment;
use ade_domain::approval::ApprovalStatus;
use ade_domain::audit::{AuditActor, Principal};
use ade_domain::independence::AccountActKind;
use ade_domain::people::{ADMIN, AUTHOR, REVIEWER, UserId};
use ade_domain::risk::RiskLevel;
use ade_domain::task::{Digest, TaskState};
use ade_domain::webhook::chat_secret::ChatSecret;
use ade_domain::webhook::slack_account::SlackAccount;
use ade_domain::webhook::slack_request::{ButtonContent, SignedSlackRequest, SlackRequest};
use ade_domain::webhook::{Webhook, WebhookFormat};
use ade_store::database::{Commit, DocumentKind, Password, StoredTask, StoredUser, Versioned, Write};
use ade_testkit::webhook_receiver::{Reply, WebhookReceiver};
use ring::hmac;
use serde_json::{Value, json};

use crate::fixture::{Fixture, caller, draft, on_both_databases, submitted, user};

on_both_databases!(
    linked_user_decides_once_and_the_message_is_updated,
    concurrent_copies_of_a_request_decide_once,
    forged_late_and_replayed_requests_change_nothing,
    refuses_who_is_not_linked_any_more,
    refuses_what_the_rules_refuse,
    who_set_the_secret_is_no_party_of_the_decision,
    everybody_who_ever_set_the_secret_stays_a_holder,
    a_new_secret_starts_with_who_set_it,
    a_bot_token_without_known_holders_decides_nothing,
    only_the_message_that_was_sent_decides,
    a_refused_request_is_used_up,
    answers_go_to_slack_only,
    who_is_deactivated_has_no_link_afterwards,
    codes_are_used_once_by_their_user,
);

const SECRET: &str = "0123456789abcdef0123456789abcdef";
/// Channel and time of all messages.
const MESSAGE: (&str, &str) = ("C1", "1503435956.000247");
const OTHER_SECRET: &str = "fedcba9876543210fedcba9876543210";

fn admin() -> Caller {
    caller("root", &[ADMIN])
}

fn operator() -> Caller {
    Caller { user: None, ..admin() }
}

/// A caller in a session.
fn in_session(name: &str, roles: &[&str]) -> Caller {
    Caller { session_hash: Some("session".to_owned()), ..caller(name, roles) }
}

/// A request as Slack sends it.
#[derive(Clone)]
struct Sent {
    timestamp: String,
    signature: String,
    fields: BTreeMap<String, String>,
    body: String,
}

/// A stand-in for Slack, and what it talks to.
struct Slack {
    fixture: Fixture,
    receiver: WebhookReceiver,
    service: SlackService,
    webhook_id: String,
    dispatcher: WebhookDispatcher,
}

impl Slack {
    /// Users: ann writes, rex reviews, root administers and sets the secrets.
    async fn new(fixture: Fixture) -> Self {
        Self::set_up_by(fixture, &admin()).await
    }

    /// Secrets of the operator make nobody dependent.
    async fn set_up_by(fixture: Fixture, who: &Caller) -> Self {
        let receiver = WebhookReceiver::start().await;
        let answer = json!({ "ok": true, "channel": MESSAGE.0, "ts": MESSAGE.1 });
        receiver.reply_with(Reply::Body(answer.to_string()));
        let network = WebhookNetwork::new(&[receiver.host()]).expect("valid");
        let webhooks = WebhookService::new(fixture.context(), network);
        for (name, role) in [("ann", AUTHOR), ("rex", REVIEWER), ("root", ADMIN)] {
            put_user(&fixture, name, &[role], "hash", None).await;
        }
        let webhook_id = create_webhook(&webhooks, &receiver, Some(SECRET), who).await;
        let dispatcher = WebhookDispatcher::new(webhooks.clone(), "server-1");
        dispatcher.write_deliveries().await.expect("at the end of the log");
        let service = SlackService { webhooks, tasks: fixture.service() };
        Self { fixture, receiver, service, webhook_id, dispatcher }
    }

    fn now(&self) -> Moment {
        self.fixture.clock.now().into()
    }

    fn sign(&self, secret: &str, at: Moment, fields: &[(&str, String)]) -> Sent {
        let fields: BTreeMap<String, String> =
            fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        // The form itself is parsed by the server.
        let body = json!({ "fields": fields, "trigger_id": uuid::Uuid::new_v4() }).to_string();
        let timestamp = (at.micros() / 1_000_000).to_string();
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let tag = hmac::sign(&key, format!("v0:{timestamp}:{body}").as_bytes());
        Sent { timestamp, signature: format!("v0={}", hex::encode(tag)), fields, body }
    }

    async fn send_to(&self, webhook_id: &str, sent: &Sent) -> Result<Value, Error> {
        let Sent { timestamp, signature, body, .. } = sent;
        let signed = SignedSlackRequest { timestamp, signature, body: body.as_bytes() };
        let verified = self.service.verify(webhook_id, signed).await?;
        let request = SlackRequest::parse(&sent.fields).map_err(|fault| Error::Invalid(vec![fault]))?;
        self.service.handle(&verified, request, AuditActor::default()).await
    }

    async fn send(&self, sent: &Sent) -> Result<Value, Error> {
        self.send_to(&self.webhook_id, sent).await
    }

    fn command(&self, who: &str, text: &str) -> Sent {
        let fields = [("command", "/ade"), ("team_id", "T1"), ("user_id", who), ("text", text)];
        self.sign(SECRET, self.now(), &fields.map(|(name, value)| (name, value.to_owned())))
    }

    /// The text of the answer to a command.
    async fn run(&self, who: &str, text: &str) -> String {
        text_of(&self.send(&self.command(who, text)).await.expect("answered"))
    }

    /// Sends the messages that are due.
    async fn post(&self) {
        let _ = self.fixture.entries().await;
        self.dispatcher.write_deliveries().await.expect("written");
        self.dispatcher.send_due().await.expect("sent");
    }

    fn press(&self, who: &str, button: &str, content: &ButtonContent) -> Sent {
        self.press_in(MESSAGE, who, button, content)
    }

    /// Presses a button of a message with this channel and time.
    fn press_in(&self, message: (&str, &str), who: &str, button: &str, content: &ButtonContent) -> Sent {
        self.press_for(&self.receiver.url("/answer"), message, who, button, content)
    }

    fn press_for(
        &self,
        response_url: &str,
        message: (&str, &str),
        who: &str,
        button: &str,
        content: &ButtonContent,
    ) -> Sent {
        let value = serde_json::to_string(content).expect("JSON");
        let payload = json!({
            "type": "block_actions", "team": { "id": "T1" }, "user": { "id": who },
            "actions": [{ "action_id": button, "value": value }], "response_url": response_url,
            "container": { "type": "message", "channel_id": message.0, "message_ts": message.1 },
        });
        self.sign(SECRET, self.now(), &[("payload", payload.to_string())])
    }

    async fn approve(&self, who: &str, task: &StoredTask) -> String {
        self.press_button(who, "ade_approve", &ButtonContent::of(task)).await
    }

    async fn press_button(&self, who: &str, button: &str, content: &ButtonContent) -> String {
        text_of(&self.send(&self.press(who, button, content)).await.expect("answered"))
    }

    async fn code(&self, name: &str) -> NewLinkCode {
        self.service.create_code(name, &in_session(name, &[REVIEWER])).await.expect("created")
    }

    async fn link(&self, who: &str, name: &str) {
        let text = self.run(who, &format!("link {}", self.code(name).await.code)).await;
        assert!(text.contains(&format!("linked with {name}")), "{text}");
    }

    async fn submitted(&self) -> StoredTask {
        let task = submitted(&self.fixture.service(), "grow").await;
        self.with_level(&task, RiskLevel::Low).await
    }

    /// The task after a change of its risk.
    async fn with_level(&self, task: &StoredTask, level: RiskLevel) -> StoredTask {
        let mut task = self.fixture.task(&task.task_id).await;
        let expected = Some(task.revision);
        task.revision += 1;
        task.risk.as_mut().expect("assessed").level = level;
        let write = Write::Task { task: Box::new(task.clone()), expected, at: self.now() };
        let commit = Commit { writes: vec![write], ..Commit::default() };
        self.fixture.database.commit(commit).await.expect("stored");
        self.post().await;
        task
    }

    /// Asserts that rex, in Slack, cannot approve a task of somebody who knows a secret.
    async fn assert_holder(&self, holder: &str, what: &str) {
        let (tasks, author) = (self.fixture.service(), caller(holder, &[ADMIN, AUTHOR]));
        let task = tasks.create(draft("by a holder"), &author).await.expect("created");
        let task = tasks.submit(&task.task_id, &author).await.expect("submitted");
        let task = self.with_level(&task, RiskLevel::Low).await;
        let text = self.approve("U1", &task).await;
        assert!(text.contains(&format!("{holder} knows a secret of this chat")), "{what}: {text}");
        self.assert_undecided(&task, what).await;
    }

    async fn assert_undecided(&self, task: &StoredTask, what: &str) {
        let now = self.fixture.task(&task.task_id).await;
        let is_open = now.approvals.iter().all(|approval| approval.status == ApprovalStatus::Pending);
        assert!(now.state == TaskState::Reviewing && is_open, "{what}: {:?}", now.state);
    }
}

fn text_of(answer: &Value) -> String {
    assert_eq!(answer["response_type"], "ephemeral");
    answer["text"].as_str().expect("a text").to_owned()
}

async fn create_webhook(
    service: &WebhookService,
    receiver: &WebhookReceiver,
    secret: Option<&str>,
    who: &Caller,
) -> String {
    let change = WebhookChange {
        name: Some("chat".to_owned()),
        url: Some(receiver.url("/api/chat.postMessage")),
        format: Some(WebhookFormat::Slack),
        events: Some(vec!["task:submitted".to_owned(), "task:approved".to_owned()]),
        credential: Some("xoxb-1".to_owned()),
        channel: Some("C1".to_owned()),
        signing_secret: secret.map(str::to_owned),
        ..WebhookChange::default()
    };
    let created = service.create(&change, who).await.expect("created");
    assert_eq!(created.view.decisions, secret.is_some());
    created.view.webhook_id
}

async fn put_user(fixture: &Fixture, name: &str, roles: &[&str], hash: &str, expected: Option<u64>) {
    let password = Some(Password { hash: hash.to_owned(), is_temporary: false });
    let revision = expected.unwrap_or_default() + 1;
    let user = StoredUser { user: user(name, roles), revision, password, invitation: None };
    let writes = vec![Write::User { user: Box::new(user), expected }];
    fixture.database.commit(Commit { writes, ..Commit::default() }).await.expect("stored");
}

async fn stored_user(slack: &Slack, name: &str) -> StoredUser {
    slack.fixture.database.user(&UserId::new(name)).await.expect("read").expect("exists")
}

async fn linked_user_decides_once_and_the_message_is_updated(fixture: Fixture) {
    let mut slack = Slack::new(fixture).await;
    slack.link("U1", "rex").await;
    let acts = stored_user(&slack, "rex").await.user.history.acts;
    assert_eq!((acts[0].kind, acts[0].by.as_str()), (AccountActKind::LinkedIdentity, "root"));

    let task = slack.submitted().await;
    let posted = slack.receiver.next_request().await.json();
    let blocks = posted["blocks"].as_array().expect("blocks");
    let buttons = blocks.last().expect("actions")["elements"].as_array().expect("buttons").clone();
    let value = |action: &str| {
        let button = buttons.iter().find(|button| button["action_id"] == action).expect("a button");
        serde_json::from_str::<ButtonContent>(button["value"].as_str().expect("a text")).expect("JSON")
    };
    assert_eq!(value("ade_approve"), ButtonContent::of(&task));
    assert_eq!(value("ade_reject"), value("ade_approve"));

    let request = slack.press("U1", "ade_approve", &value("ade_approve"));
    assert_eq!(text_of(&slack.send(&request).await.expect("decided")), "You approved the task.");
    let answer = slack.receiver.next_request().await;
    assert_eq!(
        (answer.path.as_str(), text_of(&answer.json()).as_str()),
        ("/answer", "You approved the task.")
    );
    let decided = slack.fixture.task(&task.task_id).await;
    assert_eq!(decided.state, TaskState::Approved);
    let entries = slack.fixture.entries().await;
    let entry = entries.iter().find(|entry| entry.action == "approval.approve").expect("audited");
    let credential = format!("slack:{}:T1:U1", slack.webhook_id);
    let is_rex = |who: &AuditActor| {
        who.user_id == Some(UserId::new("rex")) && who.token_id.as_deref() == Some(credential.as_str())
    };
    assert!(matches!(&entry.who, Principal::Caller(who) if is_rex(who)), "{entry:?}");
    assert!(matches!(slack.send(&request).await, Err(Error::Replayed { .. })));

    slack.post().await;
    let updated = slack.receiver.next_request().await;
    assert_eq!(updated.path, "/api/chat.update");
    assert!(
        updated.body.contains("Task approved") && !updated.body.contains("ade_approve"),
        "{}",
        updated.body
    );
    let shown =
        format!("{:?} {:?}", slack.fixture.entries().await, slack.service.webhooks.list(&admin()).await);
    let stored = slack.fixture.database.documents::<Webhook>().await.expect("read");
    assert!(!shown.contains(SECRET) && !format!("{stored:?}").contains(SECRET));
    assert_eq!(reseal_secrets(&slack.fixture.context()).await, Ok(0));

    let task = slack.submitted().await;
    let text = slack.press_button("U1", "ade_reject", &ButtonContent::of(&task)).await;
    assert_eq!(text, "You rejected the task.");
    let rejected = slack.fixture.task(&task.task_id).await;
    assert_eq!(rejected.state, TaskState::Rejected);
    let reason = rejected.approvals.iter().find_map(|approval| approval.response_reason.clone());
    assert_eq!(reason.as_deref(), Some("rejected in Slack by rex"));
}

async fn concurrent_copies_of_a_request_decide_once(fixture: Fixture) {
    let slack = Slack::new(fixture).await;
    slack.link("U1", "rex").await;
    let task = slack.submitted().await;
    let request = slack.press("U1", "ade_approve", &ButtonContent::of(&task));
    let sent = futures_util::future::join_all((0..8).map(|_| slack.send(&request))).await;
    let approved = |answer: &&Value| text_of(answer) == "You approved the task.";
    assert_eq!(sent.iter().filter_map(|result| result.as_ref().ok()).filter(approved).count(), 1, "{sent:?}");
    let actions = slack.fixture.audit_actions(Some(&task.task_id)).await;
    assert_eq!(actions.iter().filter(|action| *action == "approval.approve").count(), 1);
}

async fn forged_late_and_replayed_requests_change_nothing(fixture: Fixture) {
    let slack = Slack::new(fixture).await;
    slack.link("U1", "rex").await;
    let task = slack.submitted().await;
    let valid = slack.press("U1", "ade_approve", &ButtonContent::of(&task));
    let fields: Vec<(&str, String)> = vec![("payload", valid.fields["payload"].clone())];
    let past = Moment::from_micros(slack.now().micros() - 301_000_000);
    for (what, sent) in [
        ("secret", slack.sign("fedcba9876543210fedcba9876543210", slack.now(), &fields)),
        ("empty secret", slack.sign("", slack.now(), &fields)),
        ("old", slack.sign(SECRET, past, &fields)),
        ("future", slack.sign(SECRET, slack.now().plus_ms(301_000), &fields)),
        ("body", Sent { body: valid.body.replace("T1", "T2"), ..valid.clone() }),
        ("signature", Sent { signature: format!("v0={}", "0".repeat(64)), ..valid.clone() }),
    ] {
        let refused = slack.send(&sent).await;
        assert!(matches!(refused, Err(Error::Unauthenticated(_))), "{what}: {refused:?}");
        slack.assert_undecided(&task, what).await;
    }
    // A webhook without a signing secret, an unknown and an inactive one accept nothing.
    let webhooks = &slack.service.webhooks;
    let without = create_webhook(webhooks, &slack.receiver, None, &admin()).await;
    for id in [without.as_str(), "01a1e9b1-fa2d-7273-b608-000000000001"] {
        assert!(matches!(slack.send_to(id, &valid).await, Err(Error::Unauthenticated(_))), "{id}");
    }
    // Another webhook with the same secret: the link is not its link.
    let other = create_webhook(webhooks, &slack.receiver, Some(SECRET), &admin()).await;
    let refused = text_of(&slack.send_to(&other, &valid).await.expect("answered"));
    assert!(refused.contains("not linked"), "{refused}");
    let active = |active| WebhookChange { active: Some(active), ..WebhookChange::default() };
    let _ = webhooks.update(&slack.webhook_id, &active(false), &admin()).await.expect("updated");
    assert!(matches!(slack.send(&valid).await, Err(Error::Unauthenticated(_))));
    let _ = webhooks.update(&slack.webhook_id, &active(true), &admin()).await.expect("updated");
    slack.assert_undecided(&task, "all").await;

    let _ = slack.send(&valid).await.expect("decided");
    let upper = Sent { signature: valid.signature.to_uppercase().replace("V0", "v0"), ..valid.clone() };
    for replay in [&valid, &upper] {
        assert!(matches!(slack.send(replay).await, Err(Error::Replayed { .. })));
    }
}

async fn refuses_who_is_not_linked_any_more(fixture: Fixture) {
    let slack = Slack::new(fixture).await;
    let task = slack.submitted().await;
    let assert_refused = async |what: &str| {
        let text = slack.approve("U1", &task).await;
        assert!(text.contains("not linked"), "{what}: {text}");
        slack.assert_undecided(&task, what).await;
    };
    assert_refused("never linked").await;
    slack.link("U2", "rex").await;
    assert_refused("another account of Slack").await;
    slack.link("U1", "rex").await;
    assert!(slack.run("U1", "unlink").await.contains("no longer linked"));
    assert_refused("unlinked in Slack").await;
    slack.link("U1", "rex").await;
    slack.service.unlink("rex", &admin()).await.expect("unlinked");
    assert_refused("unlinked by an administrator").await;

    slack.link("U1", "rex").await;
    let revision = stored_user(&slack, "rex").await.revision;
    put_user(&slack.fixture, "rex", &[REVIEWER], "another hash", Some(revision)).await;
    assert_refused("a new password").await;

    slack.link("U1", "rex").await;
    let before = stored_user(&slack, "rex").await;
    let mut gone = before.clone();
    (gone.user.active, gone.revision) = (false, before.revision + 1);
    let write = Write::User { user: Box::new(gone.clone()), expected: Some(before.revision) };
    let deactivate = Commit { writes: vec![write], ..Commit::default() };
    slack.fixture.database.commit(deactivate).await.expect("stored");
    assert_refused("deactivated").await;
    put_user(&slack.fixture, "rex", &[REVIEWER], "another hash", Some(gone.revision)).await;

    // An administrator who sets a secret that only he knows gets no link with it.
    slack.link("U1", "rex").await;
    let same = WebhookChange { signing_secret: Some(SECRET.to_owned()), ..WebhookChange::default() };
    let _ = slack.service.webhooks.update(&slack.webhook_id, &same, &admin()).await.expect("updated");
    assert_refused("another signing secret").await;

    slack.link("U1", "rex").await;
    // Two users with the same account, as after a race: nobody knows who it is.
    let link = slack.fixture.database.document::<SlackAccount>("rex").await.expect("read").expect("linked");
    let copy = Versioned { id: "ann".to_owned(), revision: 1, value: link.value };
    let copied = Commit { writes: vec![Write::document(&copy, None)], ..Commit::default() };
    slack.fixture.database.commit(copied).await.expect("stored");
    assert_refused("ambiguous").await;
    slack.service.unlink("ann", &admin()).await.expect("unlinked");
    slack.fixture.clock.advance(Duration::from_secs(90 * 86_400));
    let text = slack.approve("U1", &task).await;
    assert!(text.contains("not linked"), "expired: {text}");
}

async fn refuses_what_the_rules_refuse(fixture: Fixture) {
    let slack = Slack::set_up_by(fixture, &operator()).await;
    put_user(&slack.fixture, "sam", &[AUTHOR, REVIEWER], "hash", None).await;
    for (who, name) in [("U1", "rex"), ("U2", "ann"), ("U3", "sam"), ("U4", "root")] {
        slack.link(who, name).await;
    }
    assert_eq!(stored_user(&slack, "rex").await.user.history.acts, []);
    let task = slack.submitted().await;
    let other = Digest::of_bytes(b"other");
    let content = ButtonContent::of(&task);
    for (what, content) in [
        ("digest", ButtonContent { digest: other, ..content.clone() }),
        ("scope", ButtonContent { scope_digest: Some(other), ..content.clone() }),
    ] {
        let text = slack.press_button("U1", "ade_approve", &content).await;
        assert!(text.contains("has changed"), "{what}: {text}");
        slack.assert_undecided(&task, what).await;
    }
    let unscoped = ButtonContent { scope_digest: None, ..content.clone() };
    assert!(task.scope_digest.is_some());
    assert!(slack.press_button("U1", "ade_approve", &unscoped).await.contains("has changed"));
    let unknown = ButtonContent { task_id: "01a1e9b1-fa2d-7273-b608-000000000001".to_owned(), ..content };
    assert!(slack.press_button("U1", "ade_approve", &unknown).await.contains("not the message"));
    let unpermitted = slack.approve("U2", &task).await;
    assert!(unpermitted.contains("permission"), "{unpermitted}");
    let (tasks, sam) = (slack.fixture.service(), caller("sam", &[AUTHOR]));
    let own = tasks.create(draft("own"), &sam).await.expect("created");
    let own = tasks.submit(&own.task_id, &sam).await.expect("submitted");
    let own = slack.with_level(&own, RiskLevel::Low).await;
    let text = slack.approve("U3", &own).await;
    assert!(text.contains("sam cannot decide"), "{text}");
    slack.assert_undecided(&own, "own task").await;
    // An administrator has no request, and cannot decide in place of the reviewer here.
    let admin_text = slack.approve("U4", &task).await;
    assert!(admin_text.contains("addressed to"), "{admin_text}");
    slack.assert_undecided(&task, "author and administrator").await;

    let agent = Caller { agent_id: Some("bot".to_owned()), ..caller("sam", &[AUTHOR]) };
    let by_agent = tasks.create(draft("by an agent"), &agent).await.expect("created");
    let by_agent = tasks.submit(&by_agent.task_id, &agent).await.expect("submitted");
    let by_agent = slack.with_level(&by_agent, RiskLevel::Low).await;
    let sponsor = slack.approve("U3", &by_agent).await;
    assert!(sponsor.contains("sam cannot decide"), "{sponsor}");
    slack.assert_undecided(&by_agent, "sponsor").await;

    // The level is that of the task now, not that of the message.
    let _ = slack.with_level(&task, RiskLevel::Medium).await;
    let text = slack.approve("U1", &task).await;
    assert!(text.contains("level LOW"), "{text}");
    slack.assert_undecided(&task, "level").await;
}

async fn who_set_the_secret_is_no_party_of_the_decision(fixture: Fixture) {
    let slack = Slack::new(fixture).await;
    slack.link("U1", "rex").await;
    // The act of linking expires after a week; that root knows the secret does not.
    slack.fixture.clock.advance(Duration::from_secs(8 * 86_400));
    slack.assert_holder("root", "author").await;
}

async fn everybody_who_ever_set_the_secret_stays_a_holder(fixture: Fixture) {
    let slack = Slack::set_up_by(fixture, &operator()).await;
    let webhooks = &slack.service.webhooks;
    for name in ["erin", "eve", "tom"] {
        put_user(&slack.fixture, name, &[ADMIN], "hash", None).await;
    }
    let secret =
        |text: &str| WebhookChange { signing_secret: Some(text.to_owned()), ..WebhookChange::default() };
    let set = async |change: &WebhookChange, who: &Caller| {
        let _ = webhooks.update(&slack.webhook_id, change, who).await.expect("updated");
    };
    set(&secret(SECRET), &admin()).await;
    set(&secret(SECRET), &caller("erin", &[ADMIN])).await;
    set(&secret(SECRET), &operator()).await;
    // The same secret in a webhook that is deleted again; and the bot token, which posts messages with buttons.
    let eve = caller("eve", &[ADMIN]);
    let other = create_webhook(webhooks, &slack.receiver, Some(SECRET), &eve).await;
    webhooks.delete(&other, &eve).await.expect("deleted");
    let token = WebhookChange { credential: Some("xoxb-2".to_owned()), ..WebhookChange::default() };
    set(&token, &caller("tom", &[ADMIN])).await;
    let token = WebhookChange { credential: Some("xoxb-2".to_owned()), ..WebhookChange::default() };
    set(&token, &operator()).await;

    slack.link("U1", "rex").await;
    let acts = stored_user(&slack, "rex").await.user.history.acts;
    let by: Vec<&str> = acts.iter().map(|act| act.by.as_str()).collect();
    assert_eq!(by, ["erin", "eve", "root", "tom"]);
    let entries = slack.fixture.entries().await;
    let linked = entries.iter().find(|entry| entry.action == "user.slack_link").expect("audited");
    assert_eq!(linked.details["notified"], json!(["erin", "eve", "rex", "root", "tom"]));
    slack.fixture.clock.advance(Duration::from_secs(8 * 86_400));
    for holder in ["root", "erin", "eve", "tom"] {
        slack.assert_holder(holder, holder).await;
    }
    // Another webhook with the secret has the same holders.
    let copy = create_webhook(webhooks, &slack.receiver, Some(SECRET), &operator()).await;
    let copied = Slack { webhook_id: copy, ..slack };
    copied.link("U1", "rex").await;
    copied.fixture.clock.advance(Duration::from_secs(8 * 86_400));
    copied.assert_holder("root", "copy").await;
    assert_eq!(reseal_secrets(&copied.fixture.context()).await, Ok(0));
}

async fn a_new_secret_starts_with_who_set_it(fixture: Fixture) {
    let slack = Slack::set_up_by(fixture, &operator()).await;
    put_user(&slack.fixture, "erin", &[ADMIN], "hash", None).await;
    let first = WebhookChange { signing_secret: Some(OTHER_SECRET.to_owned()), ..WebhookChange::default() };
    let second = WebhookChange { signing_secret: Some(SECRET.to_owned()), ..WebhookChange::default() };
    let webhooks = &slack.service.webhooks;
    let _ = webhooks.update(&slack.webhook_id, &first, &admin()).await.expect("updated");
    let _ = webhooks.update(&slack.webhook_id, &second, &caller("erin", &[ADMIN])).await.expect("updated");
    slack.link("U1", "rex").await;
    let acts = stored_user(&slack, "rex").await.user.history.acts;
    assert_eq!(acts.iter().map(|act| act.by.as_str()).collect::<Vec<_>>(), ["erin"]);
}

async fn a_bot_token_without_known_holders_decides_nothing(fixture: Fixture) {
    let slack = Slack::new(fixture).await;
    let (webhooks, database) = (&slack.service.webhooks, &slack.fixture.database);
    let secret = WebhookChange { signing_secret: Some(SECRET.to_owned()), ..WebhookChange::default() };
    let _ = webhooks.update(&slack.webhook_id, &secret, &operator()).await.expect("updated");
    slack.link("U1", "rex").await;
    // As in an installation whose secrets are older than the record of holders.
    let recorded = database.documents::<ChatSecret>().await.expect("read");
    let forget = |stored: Versioned<ChatSecret>| Write::DeleteDocument {
        kind: DocumentKind::ChatSecret,
        id: stored.id,
        expected: stored.revision,
    };
    let writes = recorded.into_iter().map(forget).collect();
    database.commit(Commit { writes, ..Commit::default() }).await.expect("deleted");

    let (task, unknown) = (slack.submitted().await, "it is not recorded who knows the bot token");
    let refused = slack.approve("U1", &task).await;
    assert!(refused.contains(unknown), "{refused}");
    slack.assert_undecided(&task, "holders are not known").await;
    put_user(&slack.fixture, "ria", &[REVIEWER], "hash", None).await;
    let refused = slack.run("U2", &format!("link {}", slack.code("ria").await.code)).await;
    assert!(refused.contains(unknown), "{refused}");

    let token = WebhookChange { credential: Some("xoxb-1".to_owned()), ..WebhookChange::default() };
    let _ = webhooks.update(&slack.webhook_id, &token, &operator()).await.expect("updated");
    let approved = slack.approve("U1", &task).await;
    assert!(approved.starts_with("You approved the task"), "{approved}");
    slack.fixture.clock.advance(Duration::from_secs(8 * 86_400));
    slack.assert_holder("root", "who created the webhook with the old token").await;
}

async fn only_the_message_that_was_sent_decides(fixture: Fixture) {
    let slack = Slack::set_up_by(fixture, &operator()).await;
    slack.link("U1", "rex").await;
    let task = slack.submitted().await;
    let content = ButtonContent::of(&task);
    for message in [("C2", MESSAGE.1), ("C1", "1503435956.000248"), ("C1", ""), ("", "")] {
        let sent = slack.press_in(message, "U1", "ade_approve", &content);
        let text = text_of(&slack.send(&sent).await.expect("answered"));
        assert!(text.contains("not the message"), "{message:?}: {text}");
        slack.assert_undecided(&task, "another message").await;
    }
    // A webhook that sent no message about the task.
    let later = create_webhook(&slack.service.webhooks, &slack.receiver, Some(SECRET), &operator()).await;
    let later = Slack { webhook_id: later, ..slack };
    later.link("U1", "rex").await;
    assert!(later.approve("U1", &task).await.contains("not the message"));
    later.assert_undecided(&task, "another webhook").await;
}

async fn a_refused_request_is_used_up(fixture: Fixture) {
    let slack = Slack::set_up_by(fixture, &operator()).await;
    let task = slack.submitted().await;
    let request = slack.press("U1", "ade_approve", &ButtonContent::of(&task));
    let refused = text_of(&slack.send(&request).await.expect("answered"));
    assert!(refused.contains("not linked"), "{refused}");
    slack.link("U1", "rex").await;
    assert!(matches!(slack.send(&request).await, Err(Error::Replayed { .. })));
    slack.assert_undecided(&task, "used up").await;
    assert_eq!(slack.approve("U1", &task).await, "You approved the task.");
}

async fn who_is_deactivated_has_no_link_afterwards(fixture: Fixture) {
    let slack = Slack::set_up_by(fixture, &operator()).await;
    put_user(&slack.fixture, "sam", &[REVIEWER], "hash", None).await;
    slack.link("U1", "rex").await;
    let accounts = AccountService::new(slack.fixture.context(), slack.fixture.service());
    for active in [false, true] {
        let change = UserChange { active: Some(active), ..UserChange::default() };
        let _ = accounts.update_user("rex", &change, &admin()).await.expect("changed");
        assert_eq!(slack.fixture.database.document::<SlackAccount>("rex").await, Ok(None));
    }
    let task = slack.submitted().await;
    assert!(slack.approve("U1", &task).await.contains("not linked"));
}

async fn answers_go_to_slack_only(fixture: Fixture) {
    let mut other = WebhookReceiver::start().await;
    let mut slack = Slack::set_up_by(fixture, &operator()).await;
    // Another host that the operator lists.
    let network = WebhookNetwork::new(&[slack.receiver.host(), other.host()]).expect("valid");
    slack.service.webhooks = WebhookService::new(slack.fixture.context(), network);
    let task = slack.submitted().await;
    let _ = slack.receiver.next_request().await;
    let content = ButtonContent::of(&task);
    let listed = slack.press_for(&other.url("/internal"), MESSAGE, "U1", "ade_approve", &content);
    let _ = slack.send(&listed).await.expect("answered");
    // One that arrives shows that the first did not: the answer is sent before the response.
    let _ = slack.send(&slack.press("U1", "ade_approve", &content)).await.expect("answered");
    assert_eq!(slack.receiver.next_request().await.path, "/answer");
    assert!(other.received().is_none());
}

async fn codes_are_used_once_by_their_user(fixture: Fixture) {
    let slack = Slack::new(fixture).await;
    let rex = in_session("rex", &[REVIEWER]);
    for (what, user_id, caller) in [
        ("token", "rex", caller("rex", &[REVIEWER])),
        ("other", "rex", in_session("ann", &[AUTHOR])),
        ("administrator", "rex", in_session("root", &[ADMIN])),
        ("agent", "rex", Caller { agent_id: Some("bot".to_owned()), ..rex.clone() }),
    ] {
        let refused = slack.service.create_code(user_id, &caller).await;
        assert!(matches!(refused, Err(Error::Forbidden(_))), "{what}: {refused:?}");
    }
    let first = slack.code("rex").await;
    let code = slack.code("rex").await;
    let (_, secret) = code.code.split_once(':').expect("two parts");
    for wrong in
        [first.code, format!("ann:{secret}"), "rex:".to_owned(), "rex".to_owned(), "no:no".to_owned()]
    {
        assert!(slack.run("U1", &format!("link {wrong}")).await.contains("wrong"), "{wrong}");
    }
    assert!(slack.run("U1", &format!("link {}", code.code)).await.contains("linked with rex"));
    assert!(slack.run("U1", &format!("link {}", code.code)).await.contains("wrong"), "used");
    // One account of Slack is not two people.
    let of_ann = slack.service.create_code("ann", &in_session("ann", &[AUTHOR])).await.expect("created");
    let taken = slack.run("U1", &format!("link {}", of_ann.code)).await;
    assert!(taken.contains("linked with another user"), "{taken}");
    // Nor through another webhook.
    let other = create_webhook(&slack.service.webhooks, &slack.receiver, Some(SECRET), &admin()).await;
    let link = slack.command("U1", &format!("link {}", of_ann.code));
    let taken = text_of(&slack.send_to(&other, &link).await.expect("answered"));
    assert!(taken.contains("linked with another user"), "{taken}");

    let late = slack.code("rex").await;
    slack.fixture.clock.advance(Duration::from_secs(601));
    assert!(slack.run("U1", &format!("link {}", late.code)).await.contains("wrong"), "expired");
    // Somebody who stole the session must not link after the password has changed.
    let stolen = slack.code("rex").await;
    let revision = stored_user(&slack, "rex").await.revision;
    put_user(&slack.fixture, "rex", &[REVIEWER], "another hash", Some(revision)).await;
    assert!(slack.run("U9", &format!("link {}", stolen.code)).await.contains("wrong"), "a new password");
    let accounts = slack.fixture.database.documents::<SlackAccount>().await.expect("read");
    let shown = format!("{accounts:?} {:?} {code:?}", slack.fixture.entries().await);
    assert!(!shown.contains(secret) && !shown.contains("adel_"));
    assert!(slack.run("U1", "").await.contains("slack-code"));
}
