//! Where webhooks may go, and how long an attempt may take. Nothing goes to a private address that the operator did not list.

use std::sync::Arc;
use std::time::Duration;

use ade_domain::InvalidField;
use ade_domain::webhook::WebhookFormat;
use ade_executors::client::HttpClient;
use ade_executors::egress::{EgressPolicy, Resolver};

use super::mail::MailServer;
use crate::{Error, Result};

/// How long one attempt may take.
pub(super) const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(15);
/// Allows a listed host to have private addresses; see [`EgressPolicy`].
const PRIVATE_SUFFIX: &str = "+private";
/// Where webhooks may go, and how long an attempt may take.
#[derive(Debug, Clone)]
pub struct WebhookNetwork {
    pub(super) egress: EgressPolicy,
    pub(super) client: HttpClient,
    pub(super) attempt_timeout: Duration,
    /// Where people reach this server, for links.
    pub(super) public_url: Option<String>,
    /// Sends e-mail.
    pub(super) mail: Option<MailServer>,
}

impl WebhookNetwork {
    /// All public addresses over HTTPS, and the listed hosts, which may be private and need no HTTPS.
    pub fn new(allowed_private_hosts: &[String]) -> Result<Self, InvalidField> {
        let private = |host: &String| format!("{}{PRIVATE_SUFFIX}", host.trim_end_matches(PRIVATE_SUFFIX));
        let hosts: Vec<String> = allowed_private_hosts.iter().map(private).collect();
        let egress = EgressPolicy::new(&hosts)?.allow_all_public();
        Ok(Self {
            egress,
            client: HttpClient::default(),
            attempt_timeout: ATTEMPT_TIMEOUT,
            public_url: None,
            mail: None,
        })
    }

    #[must_use]
    pub fn with_resolver(self, resolver: Arc<dyn Resolver>) -> Self {
        Self { egress: self.egress.with_resolver(resolver), ..self }
    }

    /// Links in messages begin with this URL.
    #[must_use]
    pub fn with_public_url(self, url: Option<String>) -> Self {
        Self { public_url: url.map(|url| url.trim_end_matches('/').to_owned()), ..self }
    }

    /// E-mail is sent by this server.
    #[must_use]
    pub fn with_mail(self, mail: Option<MailServer>) -> Self {
        Self { mail, ..self }
    }

    #[must_use]
    pub fn with_attempt_timeout(self, attempt_timeout: Duration) -> Self {
        Self { attempt_timeout, ..self }
    }

    /// Destination and masked form of a URL that may be called at present.
    pub(super) async fn check(&self, url: &str, format: WebhookFormat) -> Result<(String, String)> {
        let invalid = |reason: String| Error::invalid("url", reason);
        let (parsed, listed) = self.egress.check(url).map_err(|failure| invalid(failure.message))?;
        if parsed.scheme() != "https" && !listed.is_some_and(|host| host.is_internal()) {
            return Err(invalid(
                "must begin with https://, unless the operator lists the host in webhooks.allowed_private_hosts"
                    .to_owned(),
            ));
        }
        self.egress.resolve(url).await.map_err(|failure| invalid(failure.message))?;
        let host = parsed.host_str().unwrap_or_default();
        let port = parsed.port_or_known_default().unwrap_or_default();
        let destination = format!("{}://{host}:{port}", parsed.scheme());
        let mut masked = parsed.clone();
        if format == WebhookFormat::Slack {
            // The path of an incoming webhook is its secret.
            masked.set_path("***");
        }
        if parsed.query().is_some() {
            masked.set_query(Some("***"));
        }
        Ok((destination, masked.to_string()))
    }
}
