//! Validation of the merged settings, beyond their types. An error names the setting and its origin.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use ade_store::RedisUrl;
use ipnet::IpNet;
use toml::Value;

use super::settings::SETTINGS;
use super::{Result, Values, get, invalid_setting};

const LOG_FORMATS: [&str; 2] = ["text", "json"];
const LOG_LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];
const PUBLIC_SCHEMES: [&str; 2] = ["https://", "http://"];
const POSTGRES_SCHEMES: [&str; 2] = ["postgres://", "postgresql://"];

/// The allowed values of a number.
fn range_of(name: &str) -> RangeInclusive<i64> {
    match name {
        "webhooks.smtp.port" => 1..=65_535,
        "worker.slots" => 0..=1_000,
        "worker.lease_seconds" => 1..=300,
        "limit.read_timeout_seconds" | "limit.write_timeout_seconds" => 1..=3_600,
        "events.retention_days" => 1..=3_650,
        "lock.max_queue" => 0..=100_000,
        "lock.min_replica_acks" => 0..=100,
        "lock.max_clock_skew_ms" => 0..=60_000,
        _ => 1..=10_000_000,
    }
}

pub(super) fn validate(values: &Values) -> Result<()> {
    let invalid = |name: &str, message: &str| Err(invalid_setting(values, name, message));
    let number = |name: &str| get::<i64>(values, name);
    let text = |name: &str| get::<String>(values, name);
    if text("server.listen")?.parse::<SocketAddr>().is_err() {
        return invalid("server.listen", "must be an address and a port, such as 127.0.0.1:8300");
    }
    let redis = text("server.redis")?;
    if !redis.is_empty()
        && let Err(error) = redis.parse::<RedisUrl>()
    {
        return invalid("server.redis", &error.to_string());
    }
    let postgres = text("server.postgres")?;
    if !postgres.is_empty() && !POSTGRES_SCHEMES.iter().any(|scheme| postgres.starts_with(scheme)) {
        return invalid("server.postgres", "must be a PostgreSQL URL, such as postgres://user@host/database");
    }
    if !postgres.is_empty() && redis.is_empty() {
        let message = "requires server.redis: servers on one PostgreSQL share their locks";
        return invalid("server.postgres", message);
    }
    if !LOG_FORMATS.contains(&text("log.format")?.as_str()) {
        return invalid("log.format", "must be text or json");
    }
    let level = text("log.level")?;
    if !level.contains('=') && !LOG_LEVELS.contains(&level.as_str()) {
        let message = "must be error, warn, info, debug or trace, or filters such as ade_app=debug";
        return invalid("log.level", message);
    }
    let public_url = text("webhooks.public_url")?;
    if !public_url.is_empty() && !PUBLIC_SCHEMES.iter().any(|scheme| public_url.starts_with(scheme)) {
        return invalid("webhooks.public_url", "must be a URL, such as https://ade.example.com");
    }
    for name in SETTINGS.iter().map(|setting| &setting.name) {
        let range = range_of(name);
        if matches!(values.get(name), Some((Value::Integer(number), _)) if !range.contains(number)) {
            return invalid(name, &format!("must be between {} and {}", range.start(), range.end()));
        }
    }
    let (default, max) = ("lock.default_wait_seconds", "lock.max_wait_seconds");
    if number(default)? > number(max)? {
        return invalid(default, &format!("must not exceed {max}"));
    }
    Ok(())
}

/// A list of networks; an address alone is a network of one.
pub(super) fn networks(values: &Values, name: &str) -> Result<Vec<IpNet>> {
    let texts: Vec<String> = get(values, name)?;
    let parse = |text: &String| {
        let network = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        let message = format!("{text:?} is not a network such as 10.0.0.0/8, nor an address");
        network.map_err(|_| invalid_setting(values, name, message))
    };
    texts.iter().map(parse).collect()
}
