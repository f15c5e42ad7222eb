//! The configuration of servers and workers in three layers: a TOML file, overridden by ADE_* environment variables,
//! overridden by flags.
//!
//! Unknown settings are errors. Loading reads neither files nor the environment; its caller does.

mod executors;
mod settings;
mod smtp;
#[cfg(test)]
mod tests;
mod validate;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ade_domain::lock::LockLimits;
use ade_store::RedisUrl;
use ipnet::IpNet;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

/// For commands that look for a local server.
pub use ade_store::{ADDRESS_FILE, DataFolder};
pub use executors::{
    CommandSettings, CommandTemplate, ExecutorSettings, FilesRoot, FilesSettings, HttpHost, HttpSecret,
    HttpSettings, RedactedStrings, SqlConnection, SqlPreview, SqlSettings, UnusableRoot,
};
use settings::{DEFAULT_FILE, SETTINGS, Setting, parse_toml_value};
pub use smtp::{SmtpEncryption, SmtpSettings};

/// Edit distance up to which an unknown ADE_* variable counts as a typo. Others are ignored: they may belong to other
/// commands, or to an orchestrator that names variables after services.
const MAX_TYPO_DISTANCE: usize = 2;
/// Similarity from which a setting is suggested for an unknown name.
const MIN_SIMILARITY: f64 = 0.8;

/// Where the value of a setting comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingOrigin {
    Default,
    File(PathBuf),
    Variable(String),
    Flag(&'static str),
}

impl std::fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// The content of the layers.
#[derive(Debug, Clone, Default)]
pub struct ConfigLayers {
    /// Path and text of the file.
    pub file: Option<(PathBuf, String)>,
    /// The environment. Variables without the prefix `ADE_` are used only where the file refers to them with `env:`.
    pub variables: Vec<(String, String)>,
    /// Setting, such as `server.listen`; flag, such as `listen`; value.
    pub flags: Vec<(&'static str, &'static str, String)>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{}: {message}", path.display())]
    Syntax { path: PathBuf, message: String },
    #[error("unknown setting {name} in {origin}{}", suggestion(nearest))]
    Unknown { name: String, origin: SettingOrigin, nearest: Option<String> },
    #[error("{name} = {value} (from {origin}): {message}")]
    Value { name: String, value: String, origin: SettingOrigin, message: String },
}

fn suggestion(nearest: &Option<String>) -> String {
    nearest.as_ref().map_or_else(String::new, |name| format!("; did you mean {name}?"))
}

/// A setting with its value in effect.
#[derive(Debug, Clone, PartialEq)]
pub struct EffectiveSetting {
    /// The full name, such as `lock.max_queue`.
    pub name: String,
    /// As TOML, without secrets.
    pub value: String,
    pub origin: SettingOrigin,
    pub about: &'static str,
}

#[derive(Debug, Clone)]
pub struct Config {
    pub listen: SocketAddr,
    pub data: PathBuf,
    /// `None`: locks are kept in this process.
    pub redis: Option<RedisUrl>,
    /// `None`: the database is in the data folder.
    pub postgres: Option<String>,
    /// Of the sessions of one user, for one group of endpoints.
    pub requests_per_minute: u32,
    pub previews_per_minute: u32,
    pub sign_ins_per_minute: u32,
    pub read_timeout: Duration,
    pub write_timeout: Duration,
    pub checkpoint_seconds: u32,
    pub event_retention_days: u32,
    /// Whether this process may write projections and event streams to Redis.
    pub relay: bool,
    /// Whether the bootstrap token may create tokens that decide for any user.
    pub bootstrap_decides: bool,
    /// Whether changes of who decides, and by which rules, wait for a second administrator.
    pub dual_control: bool,
    /// Whether to create and serve a demo organisation.
    pub demo: bool,
    pub min_replica_acks: u32,
    pub max_clock_skew_ms: u64,
    pub hosts: Vec<String>,
    pub trusted_proxies: Vec<IpNet>,
    /// Whether people may sign in over plain HTTP from other machines.
    pub allow_plain_http: bool,
    pub log_format: String,
    pub log_level: String,
    pub lock_limits: LockLimits,
    /// `None`: the folder `blobs` in the data folder.
    pub blobs: Option<PathBuf>,
    pub worker_slots: usize,
    pub worker_lease_ms: u64,
    pub worker_label: Option<String>,
    /// Hosts in private networks that webhooks may be sent to.
    pub webhook_private_hosts: Vec<String>,
    /// Where people reach this server, for links in messages.
    pub public_url: Option<String>,
    /// Sends e-mail; `None`: nothing does.
    pub smtp: Option<SmtpSettings>,
    pub executors: ExecutorSettings,
    /// The secret of the installation; `None`: that of the data folder.
    pub secret: Option<SecretText>,
    /// Previous secrets, which only verify, with spaces between them.
    pub previous_secrets: Option<SecretText>,
    pub effective_settings: Vec<EffectiveSetting>,
}

/// The variable with the secret of the installation. It has no setting in the file, so that it is not copied with it.
pub const SECRET_VARIABLE: &str = "ADE_SECRET";
/// The variable with previous secrets.
pub const PREVIOUS_SECRETS_VARIABLE: &str = "ADE_SECRET_PREVIOUS";

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(pub String);

impl std::fmt::Debug for SecretText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

/// A text with this prefix stands for the value of a variable.
const VARIABLE_PREFIX: &str = "env:";

type Result<T, E = ConfigError> = std::result::Result<T, E>;
/// Value and origin by full name.
type Values = BTreeMap<String, (Value, SettingOrigin)>;

impl Config {
    /// Merges and validates the layers.
    pub fn load(layers: &ConfigLayers) -> Result<Self> {
        let default = |setting: &Setting| (setting.default.clone(), SettingOrigin::Default);
        let mut values: Values = SETTINGS.iter().map(|known| (known.name.clone(), default(known))).collect();
        let executors = apply_file(layers, &mut values)?;
        apply_variables(layers, &mut values)?;
        for (name, flag, text) in &layers.flags {
            set_from_text(&mut values, name, text, SettingOrigin::Flag(flag))?;
        }
        validate::validate(&values)?;
        let number = |name: &str| get::<u32>(&values, name);
        let milliseconds = |name: &str| number(name).map(|seconds| u64::from(seconds) * 1000);
        let seconds = |name: &str| number(name).map(|seconds| Duration::from_secs(seconds.into()));
        let text = |name: &str| get::<String>(&values, name);
        let non_empty = |name: &str| text(name).map(|text| Some(text).filter(|text| !text.is_empty()));
        Ok(Self {
            listen: get(&values, "server.listen")?,
            data: get(&values, "server.data")?,
            // A URL that is not empty has been validated.
            redis: text("server.redis")?.parse().ok(),
            postgres: non_empty("server.postgres")?,
            requests_per_minute: number("limit.requests_per_minute")?,
            previews_per_minute: number("limit.previews_per_minute")?,
            sign_ins_per_minute: number("limit.sign_ins_per_minute")?,
            read_timeout: seconds("limit.read_timeout_seconds")?,
            write_timeout: seconds("limit.write_timeout_seconds")?,
            checkpoint_seconds: number("audit.checkpoint_seconds")?,
            event_retention_days: number("events.retention_days")?,
            relay: get(&values, "events.relay")?,
            bootstrap_decides: get(&values, "security.bootstrap_decides")?,
            dual_control: get(&values, "security.dual_control")?,
            demo: false,
            min_replica_acks: number("lock.min_replica_acks")?,
            max_clock_skew_ms: get(&values, "lock.max_clock_skew_ms")?,
            hosts: get(&values, "server.hosts")?,
            trusted_proxies: validate::networks(&values, "server.trusted_proxies")?,
            allow_plain_http: get(&values, "server.allow_plain_http")?,
            log_format: text("log.format")?,
            log_level: text("log.level")?,
            lock_limits: LockLimits {
                max_queue: get(&values, "lock.max_queue")?,
                default_wait_ms: milliseconds("lock.default_wait_seconds")?,
                max_wait_ms: milliseconds("lock.max_wait_seconds")?,
                acquisitions_per_minute: number("lock.acquisitions_per_minute")?,
                ..LockLimits::default()
            },
            blobs: non_empty("server.blobs")?.map(PathBuf::from),
            worker_slots: get(&values, "worker.slots")?,
            worker_lease_ms: milliseconds("worker.lease_seconds")?,
            worker_label: non_empty("worker.label")?,
            public_url: non_empty("webhooks.public_url")?,
            smtp: smtp::settings(&values, &layers.variables)?,
            webhook_private_hosts: get(&values, "webhooks.allowed_private_hosts")?,
            secret: secret_variable(layers, SECRET_VARIABLE),
            previous_secrets: secret_variable(layers, PREVIOUS_SECRETS_VARIABLE),
            effective_settings: effective_settings(&values, &executors, layers),
            executors,
        })
    }

    /// A commented file with all settings and their defaults.
    #[must_use]
    pub const fn default_file() -> &'static str {
        DEFAULT_FILE
    }
}

fn apply_file(layers: &ConfigLayers, values: &mut Values) -> Result<ExecutorSettings> {
    let mut executors = ExecutorSettings::default();
    let Some((path, text)) = &layers.file else { return Ok(executors) };
    let syntax_error = |error: toml::de::Error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        let message = format!("line {line}, column {column}: {}", error.message().replace('\n', " "));
        ConfigError::Syntax { path: path.clone(), message }
    };
    let table: Table = text.parse().map_err(syntax_error)?;
    for (section, content) in table {
        let Value::Table(content) = content else {
            return Err(unknown_setting(&section, SettingOrigin::File(path.clone())));
        };
        if section == "executors" {
            executors = executors::parse(content, &layers.variables).map_err(|message| {
                invalid_value("executors", "…".to_owned(), SettingOrigin::File(path.clone()), message)
            })?;
            continue;
        }
        set_table(values, &section, content, path)?;
    }
    Ok(executors)
}

fn set_table(values: &mut Values, section: &str, content: Table, path: &Path) -> Result<()> {
    for (name, value) in content {
        let name = format!("{section}.{name}");
        match value {
            Value::Table(inner) if name == smtp::SECTION => set_table(values, &name, inner, path)?,
            value => set(values, &name, value, SettingOrigin::File(path.to_owned()))?,
        }
    }
    Ok(())
}

/// An empty variable counts as not set.
fn secret_variable(layers: &ConfigLayers, name: &str) -> Option<SecretText> {
    let found = layers.variables.iter().rfind(|(variable, _)| variable == name);
    found.filter(|(_, text)| !text.is_empty()).map(|(_, text)| SecretText(text.clone()))
}

fn apply_variables(layers: &ConfigLayers, values: &mut Values) -> Result<()> {
    for (name, text) in layers.variables.iter().filter(|(name, _)| name.starts_with("ADE_")) {
        let origin = SettingOrigin::Variable(name.clone());
        match SETTINGS.iter().find(|setting| setting.variable() == *name) {
            // Who can set a variable of a process is often not who may change its security.
            Some(setting) if setting.is_file_only() => {
                let message = "can only be set in the configuration file";
                return Err(invalid_value(&setting.name, text.clone(), origin, message));
            }
            Some(setting) => set_from_text(values, &setting.name, text, origin)?,
            None => {
                let is_typo = |known: &String| strsim::damerau_levenshtein(known, name) <= MAX_TYPO_DISTANCE;
                if let Some(nearest) = SETTINGS.iter().map(Setting::variable).find(is_typo) {
                    return Err(ConfigError::Unknown { nearest: Some(nearest), name: name.clone(), origin });
                }
            }
        }
    }
    Ok(())
}

/// Parses the text as TOML, except that strings need no quotes.
fn set_from_text(values: &mut Values, name: &str, text: &str, origin: SettingOrigin) -> Result<()> {
    let value = match values.get(name) {
        Some((Value::String(_), _)) => text.into(),
        _ => parse_toml_value(text).unwrap_or_else(|| text.into()),
    };
    set(values, name, value, origin)
}

fn set(values: &mut Values, name: &str, value: Value, origin: SettingOrigin) -> Result<()> {
    let Some(entry) = values.get_mut(name) else { return Err(unknown_setting(name, origin)) };
    if entry.0.type_str() != value.type_str() {
        let message = format!("must be of type {}", entry.0.type_str());
        return Err(invalid_value(name, value.to_string(), origin, message));
    }
    *entry = (value, origin);
    Ok(())
}

fn get<T: DeserializeOwned>(values: &Values, name: &str) -> Result<T> {
    let (value, _) = values.get(name).ok_or_else(|| unknown_setting(name, SettingOrigin::Default))?;
    let value: Result<T, toml::de::Error> = value.clone().try_into();
    value.map_err(|error| invalid_setting(values, name, error.message()))
}

fn invalid_setting(values: &Values, name: &str, message: impl Into<String>) -> ConfigError {
    match values.get(name) {
        Some((value, origin)) => invalid_value(name, redact(name, value), origin.clone(), message),
        None => unknown_setting(name, SettingOrigin::Default),
    }
}

fn invalid_value(
    name: &str,
    value: String,
    origin: SettingOrigin,
    message: impl Into<String>,
) -> ConfigError {
    ConfigError::Value { name: name.to_owned(), value, origin, message: message.into() }
}

fn unknown_setting(name: &str, origin: SettingOrigin) -> ConfigError {
    let scored = SETTINGS.iter().map(|known| (strsim::jaro_winkler(name, &known.name), &known.name));
    let similar = scored.filter(|(score, _)| *score > MIN_SIMILARITY);
    let nearest = similar.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, known)| known.clone());
    ConfigError::Unknown { nearest, name: name.to_owned(), origin }
}

/// A value without the credentials of its URL.
fn redact(name: &str, value: &Value) -> String {
    match value.as_str() {
        Some("") => value.to_string(),
        Some(text) if name == smtp::PASSWORD && !text.starts_with(VARIABLE_PREFIX) => "\"***\"".to_owned(),
        Some(url) if name == "server.postgres" => {
            let (scheme, rest) = url.split_once("://").unwrap_or(("postgres", url));
            let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
            let host = host.split_once('?').map_or(host, |(host, _)| host);
            Value::String(format!("{scheme}://{host}")).to_string()
        }
        Some(url) if name == "server.redis" => {
            let redacted = url.parse::<RedisUrl>().map_or_else(|_| "***".to_owned(), |url| url.to_string());
            Value::String(redacted).to_string()
        }
        _ => value.to_string(),
    }
}

fn effective_settings(
    values: &Values,
    executors: &ExecutorSettings,
    layers: &ConfigLayers,
) -> Vec<EffectiveSetting> {
    let settings = SETTINGS.iter().filter_map(|Setting { name, about, .. }| {
        let (value, origin) = values.get(name)?.clone();
        Some(EffectiveSetting { name: name.clone(), value: redact(name, &value), origin, about })
    });
    let executor_origin = match &layers.file {
        Some((path, _)) if *executors != ExecutorSettings::default() => SettingOrigin::File(path.clone()),
        _ => SettingOrigin::Default,
    };
    let executors = executors::summary(executors).into_iter().map(|(name, listed)| EffectiveSetting {
        name: name.to_owned(),
        value: Value::from(listed).to_string(),
        origin: executor_origin.clone(),
        about: "What workers may do; set only in the configuration file.",
    });
    settings.chain(executors).collect()
}
