//! The mail server: `[webhooks.smtp]`. A password may be `env:NAME`, to keep it out of the file. Without encryption nothing leaves the
//! machine, unless the file permits it.

use std::net::IpAddr;

use ade_domain::email::is_email_address;

use super::{Result, SecretText, VARIABLE_PREFIX, Values, get, invalid_setting};

pub(super) const SECTION: &str = "webhooks.smtp";
pub(super) const PASSWORD: &str = "webhooks.smtp.password";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SmtpEncryption {
    /// From the beginning of a connection.
    Tls,
    StartTls,
    None,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmtpSettings {
    pub host: String,
    pub port: u16,
    pub encryption: SmtpEncryption,
    /// User and password.
    pub credentials: Option<(String, SecretText)>,
    /// The address of the sender.
    pub from: String,
}

/// `None` without a host.
pub(super) fn settings(values: &Values, variables: &[(String, String)]) -> Result<Option<SmtpSettings>> {
    let text = |name: &str| get::<String>(values, &format!("{SECTION}.{name}"));
    let invalid =
        |name: &str, message: String| invalid_setting(values, &format!("{SECTION}.{name}"), message);
    let host = text("host")?;
    if host.is_empty() {
        return Ok(None);
    }
    let is_host = |c: char| c.is_ascii_alphanumeric() || ".-:".contains(c);
    if !host.chars().all(is_host) {
        return Err(invalid("host", "must be a name or an address, without a port".to_owned()));
    }
    let encryption = match text("encryption")?.as_str() {
        "tls" => SmtpEncryption::Tls,
        "starttls" => SmtpEncryption::StartTls,
        "none" => SmtpEncryption::None,
        _ => return Err(invalid("encryption", "must be starttls, tls or none".to_owned())),
    };
    let is_loopback =
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    let may_be_plain = is_loopback || get(values, &format!("{SECTION}.allow_plaintext"))?;
    if encryption == SmtpEncryption::None && !may_be_plain {
        let message = "sends messages and the password in the clear to another machine; set starttls or tls, or \
                       allow_plaintext = true";
        return Err(invalid("encryption", message.to_owned()));
    }
    let from = text("from")?;
    if !is_email_address(&from) {
        return Err(invalid("from", "must be an address, such as ade@example.com".to_owned()));
    }
    let (user, password) = (text("user")?, text("password")?);
    let password = match password.strip_prefix(VARIABLE_PREFIX) {
        None => password,
        Some(name) => {
            let found = variables.iter().find(|(known, _)| known == name);
            let missing = || invalid("password", format!("the environment variable {name} is not set"));
            found.map(|(_, value)| value.clone()).ok_or_else(missing)?
        }
    };
    if user.is_empty() != password.is_empty() {
        return Err(invalid("user", "must be set together with password".to_owned()));
    }
    let credentials = (!user.is_empty()).then_some((user, SecretText(password)));
    let port = get(values, &format!("{SECTION}.port"))?;
    Ok(Some(SmtpSettings { host, port, encryption, credentials, from }))
}
