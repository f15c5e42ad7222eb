//! Decisions in Slack: linked users approve and reject tasks of low risk with the buttons of a message.
//!
//! Users link their own accounts with a code that they get in a session; nobody links one for somebody else. A request counts once: its
//! signature is the idempotency key of the transaction that it causes. Nothing here decides by itself: the linked user decides through
//! [`TaskService`], with the scope to decide and for this request only.

use std::collections::BTreeSet;
use std::time::Duration;

use ade_domain::Moment;
use ade_domain::approval::DecisionKind;
use ade_domain::audit::AuditActor;
use ade_domain::independence::{AccountAct, AccountActKind};
use ade_domain::people::UserId;
use ade_domain::permission::Scope;
use ade_domain::task::{Answer, ChatOrigin, Digest, TaskState};
use ade_domain::webhook::slack::ephemeral;
use ade_domain::webhook::slack_account::{LINK_CODE_TTL_MS, LINK_TTL_MS, LinkCode, SlackAccount, SlackLink};
use ade_domain::webhook::slack_request::{
    ButtonContent, SignedSlackRequest, SlackAction, SlackIdentity, SlackRequest,
};
use ade_domain::webhook::{SlackApp, WebhookFormat};
use ade_store::DatabaseError;
use ade_store::database::{Commit, StoredUser, Versioned, Write};
use serde_json::{Value, json};
use subtle::ConstantTimeEq;

use super::sealed::{new_link_secret, unseal};
use super::{StoredWebhook, WebhookService};
use crate::accounts::hash_secret;
use crate::events::AuditedAction;
use crate::idempotency::stored_response;
use crate::retry::retry_on_conflict;
use crate::tasks::DecisionInput;
use crate::{Caller, Error, IdempotentRequest, ObjectKind, Outcome, Result, TaskService};

/// Slack waits three seconds for a response; the answer to a button is sent before it.
const REPLY_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Where Slack takes answers.
const ANSWERS: &str = "https://hooks.slack.com:443";
/// Separates the user id from the secret of a code. No user id contains it.
const SEPARATOR: char = ':';
const HELP: &str =
    "Link your account: run `ade user slack-code`, then enter `link CODE` here. `unlink` ends the link.";

type StoredAccount = Versioned<SlackAccount>;

#[derive(Debug, Clone)]
pub struct SlackService {
    pub webhooks: WebhookService,
    pub tasks: TaskService,
}

/// A code with which a user links an account of Slack. It is shown once.
pub struct NewLinkCode {
    pub code: String,
    pub expires_at: Moment,
}

/// Hides the code.
impl std::fmt::Debug for NewLinkCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewLinkCode").field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}

/// A request whose signature is valid.
#[derive(Debug)]
pub struct VerifiedSlackRequest {
    webhook_id: String,
    app: SlackApp,
    /// Scheme, host and port of the webhook.
    destination: String,
    /// Everybody who could have signed it; none if they are not known.
    holders: Option<BTreeSet<UserId>>,
    signature: String,
    request_digest: String,
}

impl VerifiedSlackRequest {
    #[must_use]
    pub fn webhook_id(&self) -> &str {
        &self.webhook_id
    }

    /// Everybody who could have signed it. Fails if they are not known: any of them could be a party of a decision.
    fn holders(&self) -> Result<&BTreeSet<UserId>> {
        self.holders.as_ref().ok_or_else(|| {
            Error::forbidden(format!(
                "it is not recorded who knows the bot token of this chat, so nobody can decide here. An administrator has to set a new \
                 one: ade webhook update {} --credential-file TOKEN",
                self.webhook_id
            ))
        })
    }

    /// Whose idempotency key the signature is.
    fn owner(&self) -> String {
        format!("slack:{}", self.webhook_id)
    }

    /// How audit entries name the credential: a token would be named so.
    fn credential(&self, who: &SlackIdentity) -> String {
        format!("slack:{}:{}:{}", self.webhook_id, who.team_id, who.user_id)
    }
}

/// The same for an unknown webhook and for a wrong signature: nobody finds out which webhooks exist.
fn unauthenticated() -> Error {
    Error::Unauthenticated(
        "no active webhook with this id accepts the request: check its id, the signing secret of the Slack app, and that \
         X-Slack-Request-Timestamp is at most 5 minutes old"
            .to_owned(),
    )
}

fn not_linked() -> Error {
    Error::forbidden(format!("your account of Slack is not linked with an active user. {HELP}"))
}

/// What a link remembers of a password.
fn password_mark(user: &StoredUser) -> Option<String> {
    let password = user.password.as_ref().filter(|password| !password.is_temporary)?;
    Some(hash_secret(&password.hash))
}

/// Whether somebody who pressed a button should read the error. Others are errors of the request or of the server.
const fn is_answer(error: &Error) -> bool {
    matches!(error, Error::Refused(_) | Error::Forbidden(_) | Error::NotFound(_) | Error::Disabled(_))
}

impl SlackService {
    /// A code with which the caller links an account of Slack; it replaces an earlier one. Only in a session: a token must not make
    /// something that outlives it.
    pub async fn create_code(&self, user_id: &str, caller: &Caller) -> Result<NewLinkCode> {
        caller.require_scope(Scope::Decide)?;
        if !caller.is_user(user_id) || caller.session_hash.is_none() {
            let detail = "only you can link your account, signed in with a password: ade user slack-code";
            return Err(Error::forbidden(detail));
        }
        let context = &self.webhooks.context;
        let secret = new_link_secret()?;
        let expires_at = context.now().plus_ms(LINK_CODE_TTL_MS);
        let user = self.load_user(user_id).await?.ok_or(Error::NotFound(ObjectKind::User))?;
        let password_mark = password_mark(&user).ok_or(Error::PasswordChangeRequired)?;
        let code = LinkCode { code_hash: hash_secret(&secret), password_mark, expires_at };
        self.change_account("user.slack_code", user_id, caller, |account| SlackAccount {
            code: Some(code.clone()),
            ..account.clone()
        })
        .await?;
        Ok(NewLinkCode { code: format!("{user_id}{SEPARATOR}{secret}"), expires_at })
    }

    /// Ends the link of a user: by the user in a session, or by an administrator.
    pub async fn unlink(&self, user_id: &str, caller: &Caller) -> Result<()> {
        if !caller.is_user(user_id) || caller.session_hash.is_none() {
            caller.require_admin()?;
        }
        self.load_user(user_id).await?.ok_or(Error::NotFound(ObjectKind::User))?;
        self.change_account("user.slack_unlink", user_id, caller, |_| SlackAccount::default()).await
    }

    async fn load_user(&self, user_id: &str) -> Result<Option<StoredUser>> {
        Ok(self.webhooks.context.database.user(&UserId::new(user_id)).await?)
    }

    /// Changes the account of a user, who is notified.
    async fn change_account(
        &self,
        action: &str,
        user_id: &str,
        caller: &Caller,
        change: impl Fn(&SlackAccount) -> SlackAccount,
    ) -> Result<()> {
        let context = &self.webhooks.context;
        retry_on_conflict(async || {
            let before: Option<StoredAccount> = context.database.document(user_id).await?;
            let (id, revision) = (user_id.to_owned(), 1);
            let after = match &before {
                Some(before) => before.next(change(&before.value)),
                None => Versioned { id, revision, value: change(&SlackAccount::default()) },
            };
            let write = Write::document(&after, before.as_ref().map(|before| before.revision));
            let action =
                AuditedAction { notify: vec![UserId::new(user_id)], ..AuditedAction::new(action, user_id) };
            let mut commit = action.commit(vec![write], caller, context.now());
            commit.response = stored_response(caller, |_| Outcome::Done)?;
            match context.commit(commit).await {
                Err(Error::Database(DatabaseError::AlreadyExists { .. })) => Ok(None),
                committed => Ok(committed?.then_some(())),
            }
        })
        .await
    }

    /// Verifies that a request comes from the Slack app of an active webhook.
    pub async fn verify(
        &self,
        webhook_id: &str,
        signed: SignedSlackRequest<'_>,
    ) -> Result<VerifiedSlackRequest> {
        let context = &self.webhooks.context;
        let stored: Option<StoredWebhook> = context.database.document(webhook_id).await?;
        let webhook = stored.map(|stored| stored.value).filter(|webhook| webhook.active);
        let webhook = webhook.ok_or_else(unauthenticated)?;
        let app = webhook.slack_app.clone().ok_or_else(unauthenticated)?;
        let secret = unseal(context.database.keys(), webhook_id, "signing_secret", &app.signing_secret);
        let secret = secret.map_err(|error| {
            tracing::error!(webhook_id, %error, "cannot decrypt the signing secret of a Slack app");
            Error::system(format!("the signing secret cannot be decrypted: {error}"))
        })?;
        let signature = signed.verify(&secret, context.now()).map_err(|_| unauthenticated())?;
        let request_digest = Digest::of_bytes(signed.body).to_string();
        let holders = self.webhooks.chat_holders(webhook_id, &webhook, &secret).await?;
        let (webhook_id, destination) = (webhook_id.to_owned(), webhook.destination);
        Ok(VerifiedSlackRequest { webhook_id, app, destination, holders, signature, request_digest })
    }

    /// Does what a verified request asks for, and returns what its sender is shown. A request counts once.
    pub async fn handle(
        &self,
        verified: &VerifiedSlackRequest,
        request: SlackRequest,
        origin: AuditActor,
    ) -> Result<Value> {
        let SlackRequest { who, action, response_url } = request;
        let context = &self.webhooks.context;
        if context.database.stored_response(&verified.owner(), &verified.signature).await?.is_some() {
            return Err(replayed(verified));
        }
        let done = match action {
            SlackAction::Decide { kind, content, reason, message_ref } => {
                let decided = async {
                    let caller = self.sender(verified, &who, origin).await?;
                    self.require_own_message(verified, &content.task_id, message_ref).await?;
                    self.decide(verified, &caller, kind, &content, reason).await
                };
                decided.await
            }
            SlackAction::Link { code } => self.link(verified, &who, &code, origin).await,
            SlackAction::Unlink => self.unlink_sender(verified, &who, origin).await,
            SlackAction::Help => Ok(HELP.to_owned()),
            SlackAction::Nothing => return Ok(Value::Null),
        };
        let text = match done {
            Ok(text) => text,
            Err(Error::Database(DatabaseError::DuplicateIdempotencyKey)) => return Err(replayed(verified)),
            Err(error) if is_answer(&error) => {
                self.use_up(verified).await?;
                error.to_string()
            }
            Err(error) => return Err(error),
        };
        let answer = ephemeral(&text);
        if let Some(url) = response_url {
            self.webhooks.reply(&url, &verified.destination, &answer).await;
        }
        Ok(answer)
    }

    /// Everybody who has linked an account of Slack through any webhook, with the signing secret that it has now.
    async fn linked_accounts(&self, who: &SlackIdentity) -> Result<Vec<StoredAccount>> {
        let (database, now) = (&self.webhooks.context.database, self.webhooks.context.now());
        let webhooks: Vec<StoredWebhook> = database.documents().await?;
        let is_live = |link: &SlackLink| {
            let app =
                |stored: &StoredWebhook| stored.value.slack_app.as_ref().map(|app| app.secret_id.clone());
            let found = webhooks.iter().find(|stored| stored.id == link.webhook_id);
            found.and_then(app).as_ref() == Some(&link.secret_id)
        };
        let mut accounts: Vec<StoredAccount> = database.documents().await?;
        accounts.retain(|stored| stored.value.link_with(who, now).is_some_and(is_live));
        Ok(accounts)
    }

    /// The user whose account of Slack sent a request, as a caller who can do nothing but decide.
    async fn sender(
        &self,
        verified: &VerifiedSlackRequest,
        who: &SlackIdentity,
        origin: AuditActor,
    ) -> Result<Caller> {
        let accounts = self.linked_accounts(who).await?;
        // Two users who linked the same account at the same time: it says nothing about who it is.
        let [account] = accounts.as_slice() else { return Err(not_linked()) };
        let (now, secret_id) = (self.webhooks.context.now(), &verified.app.secret_id);
        if !account.value.is_linked_to(&verified.webhook_id, secret_id, who, now) {
            return Err(not_linked());
        }
        let user = self.load_user(&account.id).await?.filter(|stored| stored.user.active);
        let user = user.ok_or_else(not_linked)?;
        let mark = account.value.link.as_ref().map(|link| link.password_mark.as_str());
        if mark.is_none() || password_mark(&user).as_deref() != mark {
            return Err(not_linked());
        }
        Ok(self.caller(verified, who, user, origin))
    }

    fn caller(
        &self,
        verified: &VerifiedSlackRequest,
        who: &SlackIdentity,
        user: StoredUser,
        origin: AuditActor,
    ) -> Caller {
        let audit_actor = AuditActor {
            user_id: Some(user.user.user_id.clone()),
            token_id: Some(verified.credential(who)),
            ..origin
        };
        let scopes = BTreeSet::from([Scope::Read, Scope::Decide]);
        let caller = Caller::new(Some(user.user), scopes, audit_actor);
        Caller { idempotent_request: Some(self.idempotent_request(verified)), ..caller }
    }

    fn idempotent_request(&self, verified: &VerifiedSlackRequest) -> IdempotentRequest {
        IdempotentRequest {
            owner: verified.owner(),
            key: verified.signature.clone(),
            request_digest: verified.request_digest.clone(),
            received_at: self.webhooks.context.now(),
        }
    }

    /// Remembers a request that was refused: it must not succeed later, when what it was refused for has changed.
    async fn use_up(&self, verified: &VerifiedSlackRequest) -> Result<()> {
        let nobody = Caller::new(None, BTreeSet::new(), AuditActor::default());
        let request = Some(self.idempotent_request(verified));
        let response = stored_response(&Caller { idempotent_request: request, ..nobody }, |_| Outcome::Done)?;
        match self.webhooks.context.database.commit(Commit { response, ..Commit::default() }).await {
            Err(DatabaseError::DuplicateIdempotencyKey) => Err(replayed(verified)),
            stored => Ok(stored?),
        }
    }

    /// Refuses a button of a message that this server did not send about the task: it can say anything beside the button.
    async fn require_own_message(
        &self,
        verified: &VerifiedSlackRequest,
        task_id: &str,
        message_ref: Option<String>,
    ) -> Result<()> {
        let database = &self.webhooks.context.database;
        let sent = database.message_of_task(&verified.webhook_id, task_id).await?;
        if message_ref.is_some() && sent.map(|sent| sent.message_ref) == message_ref {
            return Ok(());
        }
        Err(Error::forbidden(
            "this is not the message that ADE sent about the task. Open the task to decide.",
        ))
    }

    async fn decide(
        &self,
        verified: &VerifiedSlackRequest,
        caller: &Caller,
        kind: DecisionKind,
        content: &ButtonContent,
        reason: Option<String>,
    ) -> Result<String> {
        let name = caller.user.as_ref().map(|user| user.name.clone()).unwrap_or_default();
        let default = (kind != DecisionKind::Approve).then(|| format!("rejected in Slack by {name}"));
        // Only tasks of low risk are decided here, which ask for nothing more.
        let answer = Answer {
            reason: reason.or(default),
            digest: Some(content.digest),
            scope_digest: content.scope_digest,
            ..Answer::default()
        };
        let input = DecisionInput { action: kind, answer };
        let origin = ChatOrigin { fingerprint: content.fingerprint.as_deref(), holders: verified.holders()? };
        let task = self.tasks.decide_in_chat(&content.task_id, &input, origin, caller).await?;
        let decided = if kind == DecisionKind::Approve { "approved" } else { "rejected" };
        Ok(match task.state {
            TaskState::Reviewing => format!("You {decided} the task. Others still have to decide."),
            _ => format!("You {decided} the task."),
        })
    }

    /// Links the sender with the user of a code. The code is used up, and everybody who knows the signing secret counts as somebody who
    /// could act through the account.
    async fn link(
        &self,
        verified: &VerifiedSlackRequest,
        who: &SlackIdentity,
        code: &str,
        origin: AuditActor,
    ) -> Result<String> {
        let (context, holders) = (&self.webhooks.context, verified.holders()?);
        let wrong = || {
            Error::forbidden(
                "the code is wrong, has expired or was used already; get a new one: ade user slack-code",
            )
        };
        let (user_id, secret) = code.split_once(SEPARATOR).ok_or_else(wrong)?;
        let code_hash = hash_secret(secret);
        retry_on_conflict(async || {
            let now = context.now();
            let before: StoredAccount = context.database.document(user_id).await?.ok_or_else(wrong)?;
            let code = before.value.code.clone().ok_or_else(wrong)?;
            let is_valid =
                now < code.expires_at && bool::from(code.code_hash.as_bytes().ct_eq(code_hash.as_bytes()));
            let user = self.load_user(user_id).await?.filter(|stored| is_valid && stored.user.active);
            let user = user.ok_or_else(wrong)?;
            // A code that was made with an earlier password ends with it.
            let mark = password_mark(&user).filter(|mark| *mark == code.password_mark);
            let password_mark = mark.ok_or_else(wrong)?;
            // One account of Slack is one person, also through different webhooks.
            if self.linked_accounts(who).await?.iter().any(|stored| stored.id != before.id) {
                let detail = "your account of Slack is linked with another user; enter unlink first, where you linked it, or ask an \
                              administrator: ade user slack-unlink";
                return Err(Error::forbidden(detail));
            }
            let link = SlackLink {
                webhook_id: verified.webhook_id.clone(),
                identity: who.clone(),
                secret_id: verified.app.secret_id.clone(),
                password_mark,
                expires_at: now.plus_ms(LINK_TTL_MS),
            };
            let after = before.next(SlackAccount { code: None, link: Some(link) });
            let mut writes = vec![Write::document(&after, Some(before.revision))];
            let mut linked = user.clone();
            for by in holders.iter().filter(|by| **by != user.user.user_id) {
                let kind = AccountActKind::LinkedIdentity;
                let act = AccountAct { kind, by: by.clone(), at: now, exempt: false, lifted: None };
                linked.user.history.record(act);
            }
            let mut notify = BTreeSet::from([UserId::new(user_id)]);
            if linked.user.history != user.user.history {
                // As every act after which somebody could act through an account.
                notify.extend(context.database.people().await?.administrators());
                linked.revision += 1;
                writes.push(Write::User { user: Box::new(linked), expected: Some(user.revision) });
            }
            let caller = self.caller(verified, who, user, origin.clone());
            let mut action = AuditedAction::new("user.slack_link", user_id);
            action.notify = notify.into_iter().collect();
            action.details.insert("webhook_id".to_owned(), json!(verified.webhook_id));
            action.details.insert("identity".to_owned(), json!(who));
            let mut commit = action.commit(writes, &caller, now);
            commit.response = stored_response(&caller, |_| Outcome::Done)?;
            let text = format!("Your account of Slack is linked with {user_id}.");
            Ok(context.commit(commit).await?.then_some(text))
        })
        .await
    }

    async fn unlink_sender(
        &self,
        verified: &VerifiedSlackRequest,
        who: &SlackIdentity,
        origin: AuditActor,
    ) -> Result<String> {
        let caller = self.sender(verified, who, origin).await?;
        let user_id = caller.user_id().map(ToString::to_string).unwrap_or_default();
        self.change_account("user.slack_unlink", &user_id, &caller, |_| SlackAccount::default()).await?;
        Ok(format!("Your account of Slack is no longer linked with {user_id}."))
    }
}

fn replayed(verified: &VerifiedSlackRequest) -> Error {
    Error::Replayed { message_id: verified.signature.clone() }
}

impl WebhookService {
    /// Sends the answer to a button, best effort: the decision is made, and the message shows it soon.
    async fn reply(&self, url: &str, destination: &str, answer: &Value) {
        let headers = [("content-type", "application/json; charset=utf-8".to_owned())];
        let sent = async {
            // As for webhooks: only public addresses over HTTPS, and hosts that the operator lists.
            let checked = self.network.check(url, WebhookFormat::Slack).await;
            let (asked, _) = checked.map_err(|error| error.to_string())?;
            // Who can sign requests does not choose where the server calls.
            if asked != ANSWERS && asked != destination {
                return Err(format!("{asked} is neither {ANSWERS} nor the destination of the webhook"));
            }
            let pinned = self.network.egress.resolve(url).await.map_err(|failure| failure.message)?;
            let body = answer.to_string().into_bytes();
            let sent = self.network.client.post(pinned, &headers, body, REPLY_TIMEOUT).await;
            sent.map_err(|_| "the address did not answer".to_owned())
        };
        match tokio::time::timeout(REPLY_TIMEOUT, sent).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::info!(error, "cannot send an answer to Slack"),
            Err(_) => tracing::info!("Slack took too long to take an answer"),
        }
    }
}
