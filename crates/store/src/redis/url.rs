//! Parses the URL of a Redis deployment.
//!
//! Its output never contains a password: it may go into a log or a response.

use std::fmt;
use std::str::FromStr;

use ade_keyspace::Layout;
use percent_encoding::percent_decode_str;

const REDIS_PORT: u16 = 6379;

const SENTINEL_PORT: u16 = 26379;

/// The accepted forms, for error messages.
const FORMS: &str = "redis://[user[:password]@]host[:port][/database], \
    redis+cluster://[user[:password]@]host:port[,host:port…], \
    redis+sentinel://[user[:password]@]host:port[,host:port…]/master-name, \
    and the same with rediss for TLS";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid Redis URL: {reason}. Use {FORMS}")]
pub struct InvalidRedisUrl {
    pub reason: String,
}

fn invalid<T>(reason: impl Into<String>) -> Result<T, InvalidRedisUrl> {
    Err(InvalidRedisUrl { reason: reason.into() })
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    Standalone { database: i64 },
    Cluster,
    Sentinel { master: String },
}

#[derive(Clone, PartialEq, Eq, Default)]
pub(crate) struct Credentials {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Address and kind of a Redis deployment.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    pub(crate) kind: Kind,
    pub(crate) hosts: Vec<Address>,
    pub(crate) tls: bool,
    pub(crate) credentials: Credentials,
}

impl RedisUrl {
    /// The layout of keys there.
    #[must_use]
    pub fn layout(&self) -> Layout {
        match self.kind {
            Kind::Cluster => Layout::Cluster,
            Kind::Standalone { .. } | Kind::Sentinel { .. } => Layout::Plain,
        }
    }
}

impl FromStr for RedisUrl {
    type Err = InvalidRedisUrl;

    fn from_str(text: &str) -> Result<Self, InvalidRedisUrl> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return invalid("it has no scheme");
        };
        let (tls, variant) = match scheme.split_once('+').unwrap_or((scheme, "")) {
            ("redis", variant) => (false, variant),
            ("rediss", variant) => (true, variant),
            _ => return invalid("the scheme is neither redis nor rediss"),
        };
        if let Some(found) = rest.chars().find(|char| matches!(char, '?' | '#') || char.is_whitespace()) {
            return invalid(format!("{found:?} must be percent-encoded"));
        }
        // Splits at the last @: an unencoded @ in a password is accepted, in a host name it is not.
        let (user_info, location) =
            rest.rsplit_once('@').map_or((None, rest), |(user_info, location)| (Some(user_info), location));
        let (hosts, path) = location.split_once('/').unwrap_or((location, ""));
        let credentials = user_info.map(parse_credentials).transpose()?.unwrap_or_default();
        let (kind, port) = match variant {
            "" => (Kind::Standalone { database: parse_database(path)? }, REDIS_PORT),
            "cluster" if path.is_empty() || path == "0" => (Kind::Cluster, REDIS_PORT),
            "cluster" => return invalid("a cluster has no databases"),
            "sentinel" => (Kind::Sentinel { master: parse_master(path)? }, SENTINEL_PORT),
            _ => return invalid("the scheme must end in +cluster, +sentinel or nothing"),
        };
        let hosts: Vec<Address> =
            hosts.split(',').map(|host| parse_address(host, port)).collect::<Result<_, _>>()?;
        if variant.is_empty() && hosts.len() > 1 {
            return invalid(
                "a standalone server has one host; use redis+cluster or redis+sentinel for several",
            );
        }
        Ok(Self { kind, hosts, tls, credentials })
    }
}

fn percent_decode(text: &str) -> Result<String, InvalidRedisUrl> {
    match percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => invalid("a percent-encoded part is not UTF-8"),
    }
}

fn parse_credentials(text: &str) -> Result<Credentials, InvalidRedisUrl> {
    let (user, password) =
        text.split_once(':').map_or((text, None), |(user, password)| (user, Some(password)));
    let user = Some(percent_decode(user)?).filter(|user| !user.is_empty());
    let password = password.map(percent_decode).transpose()?.filter(|password| !password.is_empty());
    if user.is_some() && password.is_none() {
        return invalid("a user needs a password: user:password@host");
    }
    Ok(Credentials { user, password })
}

fn parse_database(path: &str) -> Result<i64, InvalidRedisUrl> {
    if path.is_empty() {
        return Ok(0);
    }
    match path.parse::<u16>() {
        Ok(number) => Ok(i64::from(number)),
        Err(_) => invalid("the database after the / is not a number"),
    }
}

fn parse_master(path: &str) -> Result<String, InvalidRedisUrl> {
    let name = percent_decode(path)?;
    if name.is_empty() || name.contains('/') {
        return invalid("a sentinel URL must end in /master-name");
    }
    Ok(name)
}

fn parse_address(text: &str, default_port: u16) -> Result<Address, InvalidRedisUrl> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let Some((host, after)) = rest.split_once(']') else {
            return invalid("an IPv6 address has no closing bracket");
        };
        if !after.is_empty() && !after.starts_with(':') {
            return invalid("only :port may follow an IPv6 address");
        }
        (host, after.strip_prefix(':'))
    } else {
        text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)))
    };
    if host.is_empty() {
        return invalid("a host is missing");
    }
    let port = match port.map(str::parse::<u16>) {
        None => default_port,
        Some(Ok(port)) if port > 0 => port,
        // The text is not shown, because it may be part of a mistyped password.
        Some(_) => return invalid("a port is not a number from 1 to 65535"),
    };
    Ok(Address { host: host.to_owned(), port })
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls { "rediss" } else { "redis" })?;
        f.write_str(match self.kind {
            Kind::Standalone { .. } => "://",
            Kind::Cluster => "+cluster://",
            Kind::Sentinel { .. } => "+sentinel://",
        })?;
        if self.credentials.password.is_some() {
            // Encoded, so that an unusual name does not look like another host.
            let user = self.credentials.user.as_deref().unwrap_or_default();
            let user = percent_encoding::utf8_percent_encode(user, percent_encoding::NON_ALPHANUMERIC);
            write!(f, "{user}:***@")?;
        }
        for (index, host) in self.hosts.iter().enumerate() {
            write!(f, "{}{host}", if index == 0 { "" } else { "," })?;
        }
        match &self.kind {
            Kind::Standalone { database: 0 } | Kind::Cluster => Ok(()),
            Kind::Standalone { database } => write!(f, "/{database}"),
            Kind::Sentinel { master } => write!(f, "/{master}"),
        }
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displays_valid_urls_without_the_password() {
        let table = [
            ("redis://localhost", "redis://localhost:6379"),
            ("redis://10.0.0.1:7000/3", "redis://10.0.0.1:7000/3"),
            ("redis://:secret@host", "redis://:***@host:6379"),
            ("rediss://me:secret@host:1", "rediss://me:***@host:1"),
            ("redis://me:s%40cret%2F@[::1]:6380/0", "redis://me:***@[::1]:6380"),
            ("redis+cluster://a:1,b:2", "redis+cluster://a:1,b:2"),
            ("rediss+cluster://me:secret@a,b:2", "rediss+cluster://me:***@a:6379,b:2"),
            ("redis+sentinel://a:1,b/ade", "redis+sentinel://a:1,b:26379/ade"),
            ("rediss+sentinel://:secret@a/ade", "rediss+sentinel://:***@a:26379/ade"),
        ];
        for (text, expected) in table {
            let url: RedisUrl = text.parse().expect(text);
            assert_eq!(url.to_string(), expected);
            assert!(!format!("{url:?} {:?}", url.credentials).contains("cret"), "{url:?}");
            let cluster = text.contains("cluster");
            assert_eq!(url.layout(), if cluster { Layout::Cluster } else { Layout::Plain });
        }
    }

    #[test]
    fn decodes_user_and_password() {
        let url: RedisUrl = "redis://m%3Ae:s%40c%3Aret%2F@host".parse().expect("valid URL");
        assert_eq!(url.credentials.user.as_deref(), Some("m:e"));
        assert_eq!(url.credentials.password.as_deref(), Some("s@c:ret/"));
    }

    #[test]
    fn rejects_invalid_urls_without_showing_the_password() {
        let table = [
            ("localhost:6379", "no scheme"),
            ("http://host", "neither redis nor rediss"),
            ("redis+ring://host", "+cluster, +sentinel"),
            ("redis://", "host is missing"),
            ("redis://a,b", "one host"),
            ("redis://host:0", "port"),
            ("redis://:secret@host:port", "port"),
            ("redis://host/x", "database"),
            ("redis://host?x=1", "percent-encoded"),
            ("redis://me@host", "needs a password"),
            ("redis://:secret%FF@host", "UTF-8"),
            ("redis+cluster://host/3", "no databases"),
            ("redis+cluster://a,,b", "host is missing"),
            ("redis+sentinel://host", "must end in /master-name"),
            ("redis+sentinel://host/a/b", "must end in /master-name"),
            ("redis://[::1", "bracket"),
        ];
        for (text, reason) in table {
            let error = text.parse::<RedisUrl>().expect_err(text).to_string();
            assert!(error.contains(reason), "{text}: {error}");
            assert!(error.contains("redis+sentinel://[user"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
