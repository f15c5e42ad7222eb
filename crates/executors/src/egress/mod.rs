//! Egress policy (SSRF protection). Calls go only to hosts that an operator has listed, at checked addresses: a name is resolved
//! once, every address of it is checked, and the connection goes to one of these addresses and nowhere else.
//!
//! A host is listed as `HOST`, which means the default ports of http and https, or as `HOST:PORT`.
//! - An IP address (`10.0.0.5:8443`, `[fd00::5]`) is allowed whatever its scope is.
//! - `localhost` is this machine, and is not resolved.
//! - A name must have public addresses only. With `+private` appended (`git.internal:8443+private`) they may also be private,
//!   shared (carrier-grade NAT) or loopback addresses. A name must never resolve to link-local, multicast or reserved addresses,
//!   where cloud metadata services are.

mod address_scope;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ade_domain::InvalidField;
use async_trait::async_trait;
use url::{Host, Url};

pub use address_scope::{AddressScope, address_scope};

use crate::{Failure, Result};

/// Allows a name to have private addresses.
const PRIVATE_SUFFIX: &str = "+private";
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// How many addresses of one name are tried.
const MAX_ADDRESSES: usize = 8;
const MAX_URL_BYTES: usize = 2_048;

#[async_trait]
pub trait Resolver: Send + Sync + std::fmt::Debug {
    /// Returns all addresses of a name.
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// The resolver of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

#[async_trait]
impl Resolver for SystemResolver {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        Ok(tokio::net::lookup_host((name, 0)).await?.map(|address| address.ip()).collect())
    }
}

/// A host that an operator has listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedHost {
    host: Host<String>,
    port: Option<u16>,
    allows_private: bool,
}

impl AllowedHost {
    /// Parses `HOST` or `HOST:PORT`, either with `+private` appended.
    pub fn parse(entry: &str) -> Result<Self, String> {
        let (host, allows_private) =
            entry.strip_suffix(PRIVATE_SUFFIX).map_or((entry, false), |host| (host, true));
        let invalid = || {
            format!(
                "{entry:?} is not a host: write HOST or HOST:PORT, with {PRIVATE_SUFFIX} for an internal name"
            )
        };
        if host.contains(['/', '@', '?', '#', '\\', '*']) {
            return Err(invalid());
        }
        let parsed = Url::parse(&format!("http://{host}/")).map_err(|_| invalid())?;
        // Read from the text, because a parsed URL omits the default port.
        let port_text = host.rsplit_once(':').filter(|(_, port)| !port.contains(']'));
        let port = port_text.map(|(_, port)| port.parse()).transpose().map_err(|_| invalid())?;
        let host = parsed.host().ok_or_else(invalid)?.to_owned();
        Ok(Self { host, port, allows_private })
    }

    #[must_use]
    pub fn matches(&self, url: &Url) -> bool {
        let is_default_port = matches!((url.scheme(), url.port()), ("http" | "https", None));
        let port_matches =
            self.port.map_or(is_default_port, |port| url.port_or_known_default() == Some(port));
        port_matches && url.host().is_some_and(|host| host.to_owned() == self.host)
    }

    /// Whether a URL can match both.
    fn overlaps(&self, other: &Self) -> bool {
        const DEFAULT_PORTS: [u16; 2] = [80, 443];
        let ports_overlap = match (self.port, other.port) {
            (Some(port), Some(other)) => port == other,
            (Some(port), None) | (None, Some(port)) => DEFAULT_PORTS.contains(&port),
            (None, None) => true,
        };
        ports_overlap && self.host == other.host
    }

    /// Whether the host is in a private network or this machine. Calls to it need not be encrypted.
    #[must_use]
    pub fn is_internal(&self) -> bool {
        match &self.host {
            Host::Domain(name) => self.allows_private || name == "localhost",
            Host::Ipv4(address) => address_scope((*address).into()) == AddressScope::Private,
            Host::Ipv6(address) => address_scope((*address).into()) == AddressScope::Private,
        }
    }
}

/// Decides which URLs may be called.
#[derive(Debug, Clone)]
pub struct EgressPolicy {
    allowed_hosts: Vec<AllowedHost>,
    allows_all_public: bool,
    resolver: Arc<dyn Resolver>,
}

/// A URL with its checked addresses, at least one. A connection must go to one of these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedUrl {
    pub(crate) url: Url,
    pub(crate) addresses: Vec<SocketAddr>,
}

impl EgressPolicy {
    /// Allows only these hosts.
    pub fn new(hosts: &[String]) -> Result<Self, InvalidField> {
        let mut allowed_hosts: Vec<AllowedHost> = Vec::with_capacity(hosts.len());
        for (index, entry) in hosts.iter().enumerate() {
            let invalid = |reason| InvalidField::at(format!("/hosts/{index}"), reason);
            let host = AllowedHost::parse(entry).map_err(invalid)?;
            if allowed_hosts.iter().any(|other| other.overlaps(&host)) {
                let reason = format!("{entry:?} is listed twice: each host and port must have one name");
                return Err(invalid(reason));
            }
            allowed_hosts.push(host);
        }
        Ok(Self { allowed_hosts, allows_all_public: false, resolver: Arc::new(SystemResolver) })
    }

    /// Also allows all other hosts with public addresses, at any port.
    #[must_use]
    pub fn allow_all_public(self) -> Self {
        Self { allows_all_public: true, ..self }
    }

    #[must_use]
    pub fn with_resolver(self, resolver: Arc<dyn Resolver>) -> Self {
        Self { resolver, ..self }
    }

    /// Checks a URL without resolving its host. Returns the entry that allows it, if it is listed.
    pub fn check(&self, url: &str) -> Result<(Url, Option<&AllowedHost>)> {
        if url.len() > MAX_URL_BYTES || url.chars().any(|c| c.is_control() || c.is_whitespace()) {
            let message = format!("must be a URL of at most {MAX_URL_BYTES} bytes without whitespace");
            return Err(Failure::permanent(message));
        }
        let mut parsed =
            Url::parse(url).map_err(|error| Failure::permanent(format!("is not a URL: {error}")))?;
        if !matches!(parsed.scheme(), "http" | "https") {
            return Err(Failure::permanent("must begin with https:// or http://"));
        }
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err(Failure::permanent(
                "must not contain a user or a password: use a header with a secret",
            ));
        }
        let allowed_host = self.allowed_hosts.iter().find(|allowed| allowed.matches(&parsed));
        if allowed_host.is_none() && !self.allows_all_public {
            let host = parsed.host_str().unwrap_or_default();
            let port = parsed.port_or_known_default().unwrap_or_default();
            return Err(Failure::permanent(format!(
                "must have an allowed host: {host} at port {port} is not listed"
            )));
        }
        parsed.set_fragment(None);
        Ok((parsed, allowed_host))
    }

    /// Resolves the host of a URL and checks its addresses.
    pub async fn resolve(&self, url: &str) -> Result<PinnedUrl> {
        let (url, allowed_host) = self.check(url)?;
        let port = url.port_or_known_default().unwrap_or_default();
        let addresses = match url.host() {
            None => return Err(Failure::permanent("has no host")),
            Some(Host::Ipv4(address)) => vec![check_literal(address.into(), allowed_host)?],
            Some(Host::Ipv6(address)) => vec![check_literal(address.into(), allowed_host)?],
            Some(Host::Domain("localhost")) if allowed_host.is_some() => {
                vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]
            }
            Some(Host::Domain(name)) => {
                self.resolve_name(name, allowed_host.is_some_and(|allowed| allowed.allows_private)).await?
            }
        };
        let addresses = addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect();
        Ok(PinnedUrl { url, addresses })
    }

    /// Returns the addresses of a name. One forbidden address rejects the name, because its owner could return only that one later.
    async fn resolve_name(&self, name: &str, allows_private: bool) -> Result<Vec<IpAddr>> {
        let unresolved = |reason: String| Failure::retryable(format!("cannot resolve {name}: {reason}"));
        let seconds = RESOLVE_TIMEOUT.as_secs();
        let mut addresses = tokio::time::timeout(RESOLVE_TIMEOUT, self.resolver.resolve(name))
            .await
            .map_err(|_| unresolved(format!("no answer within {seconds} seconds")))?
            .map_err(|error| unresolved(error.to_string()))?;
        for address in &addresses {
            let reason = match address_scope(*address) {
                AddressScope::Public => continue,
                AddressScope::Private if allows_private => continue,
                AddressScope::Private => {
                    format!("not public: list it with {PRIVATE_SUFFIX} if that is intended")
                }
                AddressScope::Reserved => "reserved and never allowed for a name".to_owned(),
            };
            return Err(Failure::permanent(format!("{name} resolves to {address}, which is {reason}")));
        }
        if addresses.is_empty() {
            return Err(unresolved("it has no address".to_owned()));
        }
        addresses.truncate(MAX_ADDRESSES);
        Ok(addresses)
    }
}

/// An IP address in a URL is allowed if it is listed or public.
fn check_literal(address: IpAddr, allowed_host: Option<&AllowedHost>) -> Result<IpAddr> {
    if allowed_host.is_some() || address_scope(address) == AddressScope::Public {
        return Ok(address);
    }
    Err(Failure::permanent(format!("must not go to {address}, which is not public")))
}

#[cfg(test)]
mod tests;
