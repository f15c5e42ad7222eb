//! Messages by e-mail: who gets them, and one attempt to send one. The mail server is set by the operator; addresses come from users and
//! administrators.
//!
//! An address of a user is read when a message is sent, and is kept neither in a delivery nor in its answer.

use std::time::{Duration, SystemTime};

use ade_domain::Moment;
use ade_domain::email::domain_of;
use ade_domain::event::Event;
use ade_domain::people::People;
use ade_domain::webhook::Webhook;
use ade_domain::webhook::email::{Mail, MailPart, Recipient, mail};
use ade_executors::Secrets;
use ade_store::database::Delivery;
use lettre::message::header::{HeaderName, HeaderValue};
use lettre::message::{Mailbox, MultiPart};
use lettre::transport::smtp::Error as SmtpError;
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Tls, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use lettre::{Address, AsyncSmtpTransport, AsyncTransport, Message, Tokio1Executor};
use tokio::time::timeout;

use super::WebhookService;
use super::attempt::AttemptResult;
use super::network::ATTEMPT_TIMEOUT;
use crate::{Error, Result};

/// The destination of all messages: circuits are of the mail server.
pub(super) const DESTINATION: &str = "smtp:";
/// Events that users cause about themselves as often as they like: they are sent to configured addresses only, so that nobody floods the
/// mailbox of somebody else by setting its address.
const NOT_MAILED: [&str; 1] = ["user:slack_code_created"];
const SENDER_NAME: &str = "ADE";
/// The mail server is about to stop.
const NOT_AVAILABLE: u16 = 421;
/// The mail server does not accept the credentials, which says nothing about a message.
const AUTHENTICATION_CODES: [u16; 4] = [530, 534, 535, 538];

/// How the connection to the mail server is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MailEncryption {
    /// From its beginning.
    Tls,
    /// By STARTTLS, without which nothing is sent.
    StartTls,
    None,
}

/// What the operator sets.
pub struct MailSettings {
    pub host: String,
    pub port: u16,
    pub encryption: MailEncryption,
    /// User and password.
    pub credentials: Option<(String, String)>,
    /// The address of the sender.
    pub from: String,
}

/// The mail server.
#[derive(Clone)]
pub struct MailServer {
    transport: AsyncSmtpTransport<Tokio1Executor>,
    from: Mailbox,
    /// What the server must not repeat in an answer that is kept.
    password: Option<String>,
}

/// Without credentials.
impl std::fmt::Debug for MailServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MailServer").field("from", &self.from.email).finish_non_exhaustive()
    }
}

impl MailServer {
    /// The error says which setting is wrong.
    pub fn new(settings: MailSettings) -> Result<Self, String> {
        let MailSettings { host, port, encryption, credentials, from } = settings;
        let sender: Address = from.parse().map_err(|error| format!("from = {from:?}: {error}"))?;
        let encrypted = || {
            let failed = |error: SmtpError| format!("cannot prepare TLS for the host {host:?}: {error}");
            TlsParameters::new(host.clone()).map_err(failed)
        };
        let tls = match encryption {
            MailEncryption::Tls => Tls::Wrapper(encrypted()?),
            MailEncryption::StartTls => Tls::Required(encrypted()?),
            MailEncryption::None => Tls::None,
        };
        let password = credentials.as_ref().map(|(_, password)| password.clone());
        let mut builder = AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(host)
            .port(port)
            .tls(tls)
            .hello_name(ClientId::Domain(sender.domain().to_owned()))
            .timeout(Some(ATTEMPT_TIMEOUT));
        if let Some((user, password)) = credentials {
            builder = builder.credentials(Credentials::new(user, password));
        }
        let from = Mailbox::new(Some(SENDER_NAME.to_owned()), sender);
        Ok(Self { transport: builder.build(), from, password })
    }

    /// A message whose id is that of a delivery, so that it is recognised if it comes again.
    fn message(&self, delivery_id: &str, to: &str, mail: Mail, now: Moment) -> Result<Message, String> {
        let invalid = |error: &dyn std::error::Error| format!("cannot compose the message: {error}");
        let to = to.parse().map_err(|error: lettre::address::AddressError| invalid(&error))?;
        let auto_submitted = HeaderName::new_from_ascii_str("Auto-Submitted");
        let sent_at = SystemTime::UNIX_EPOCH + Duration::from_micros(now.micros());
        let message = Message::builder()
            .from(self.from.clone())
            .to(Mailbox::new(None, to))
            .subject(mail.subject)
            .date(sent_at)
            .message_id(Some(format!("<{delivery_id}@{}>", domain_of(self.from.email.as_ref()))))
            // Programs that answer mail do not answer this.
            .raw_header(HeaderValue::new(auto_submitted, "auto-generated".to_owned()))
            .multipart(MultiPart::alternative_plain_html(mail.text, mail.html));
        message.map_err(|error| invalid(&error))
    }
}

/// Who gets a message about an event, and how many people do not because they have no address. A configured address always gets one, also
/// if it is that of a user: the user could set it, and another one before the message is sent.
pub(super) fn recipients(webhook: &Webhook, event: &Event, people: &People) -> (Vec<Recipient>, u32) {
    let (mut recipients, mut skipped) = (Vec::new(), 0);
    let notified = event.notify.iter().filter(|_| !NOT_MAILED.contains(&event.event.as_str()));
    for user in notified.filter_map(|id| people.active(id)) {
        match &user.email {
            Some(_) => recipients.push(Recipient::User(user.user_id.clone())),
            None => skipped += 1,
        }
    }
    let mut addresses: Vec<&String> = webhook.addresses.iter().collect();
    addresses.sort_by_key(|address| address.to_ascii_lowercase());
    addresses.dedup_by(|one, other| one.eq_ignore_ascii_case(other));
    recipients.extend(addresses.into_iter().cloned().map(Recipient::Address));
    recipients.sort();
    recipients.dedup();
    (recipients, skipped)
}

impl WebhookService {
    /// Sends one message about all deliveries, which have the same recipient.
    pub(super) async fn send_mail(&self, message: &[Delivery]) -> Result<(AttemptResult, Secrets)> {
        let secrets = |address: Option<&String>| {
            let password = self.network.mail.as_ref().and_then(|server| server.password.as_ref());
            Secrets::new(address.into_iter().chain(password).cloned())
        };
        let Some(server) = &self.network.mail else {
            return Ok((AttemptResult::not_sent(no_mail_server()), secrets(None)));
        };
        let recipient =
            message.first().and_then(|first| first.recipient.as_deref()).and_then(Recipient::parse);
        let address = match &recipient {
            Some(Recipient::Address(address)) => Some(address.clone()),
            Some(Recipient::User(id)) => {
                let found = self.context.database.user(id).await?;
                found.filter(|found| found.user.active).and_then(|found| found.user.email)
            }
            None => None,
        };
        let Some(address) = address else {
            let reason = "the recipient was deactivated, or has no e-mail address any more".to_owned();
            return Ok((AttemptResult::refused(reason), secrets(None)));
        };
        let secrets = secrets(Some(&address));
        let composed = compose(message).and_then(|mail| {
            let id = message.first().map_or("", |first| first.delivery_id.as_str());
            server.message(id, &address, mail, self.context.now())
        });
        let result = match composed {
            Err(reason) => AttemptResult::refused(reason),
            Ok(composed) => {
                let limit = self.network.attempt_timeout;
                match timeout(limit, server.transport.send(composed)).await {
                    Err(_) => AttemptResult::silence(format!(
                        "no answer of the mail server within {} seconds",
                        limit.as_secs_f32()
                    )),
                    Ok(Err(error)) => failure(&error),
                    Ok(Ok(response)) => {
                        let text = response.message().collect::<Vec<_>>().join(" ");
                        AttemptResult::accepted(response.code().into(), text.into_bytes())
                    }
                }
            }
        };
        Ok((without_address(result, &address), secrets))
    }

    /// Fails unless the operator has set a mail server.
    pub(super) fn require_mail_server(&self) -> Result<()> {
        if self.network.mail.is_some() { Ok(()) } else { Err(Error::invalid("format", no_mail_server())) }
    }
}

/// A result that does not name the recipient, in whatever case the mail server writes the address.
fn without_address(result: AttemptResult, address: &str) -> AttemptResult {
    let hide = |text: &str| {
        // These have the same length as the originals.
        let (lower, address) = (text.to_ascii_lowercase(), address.to_ascii_lowercase());
        let (mut shown, mut end) = (String::new(), 0);
        for (start, found) in lower.match_indices(&address) {
            shown.push_str(text.get(end..start).unwrap_or_default());
            shown.push_str("***");
            end = start + found.len();
        }
        shown + text.get(end..).unwrap_or_default()
    };
    let hide_bytes =
        |(code, body): (u16, Vec<u8>)| (code, hide(&String::from_utf8_lossy(&body)).into_bytes());
    AttemptResult {
        error: result.error.as_deref().map(hide),
        response: result.response.map(hide_bytes),
        ..result
    }
}

fn no_mail_server() -> String {
    "this server cannot send e-mail: set host and from of [webhooks.smtp] in its configuration file"
        .to_owned()
}

fn compose(message: &[Delivery]) -> Result<Mail, String> {
    let part = |delivery: &Delivery| {
        serde_json::from_str::<MailPart>(&delivery.content.payload)
            .map_err(|error| format!("the stored message is damaged: {error}"))
    };
    Ok(mail(&message.iter().map(part).collect::<Result<Vec<_>, _>>()?))
}

/// What an error says: a permanent one about the message is final, everything else is tried again.
fn failure(error: &SmtpError) -> AttemptResult {
    let Some(code) = error.status().map(u16::from) else {
        return match error.is_client() {
            true => AttemptResult::not_sent(format!("cannot send e-mail: {error}")),
            false => AttemptResult::silence(format!("cannot send to the mail server: {error}")),
        };
    };
    let is_of_server = code == NOT_AVAILABLE || AUTHENTICATION_CODES.contains(&code);
    AttemptResult {
        error: Some(format!("the mail server answered with code {code}")),
        is_final: error.is_permanent() && !is_of_server,
        response: Some((code, error.to_string().into_bytes())),
        is_reachable: Some(!is_of_server),
        superseded: None,
    }
}
