//! Where calls may go. Only hosts that an operator listed are called, at addresses that were looked at before: a name is resolved
//! once, every address that it has is checked, and the connection goes to one of these and nowhere else.
//!
//! A host is listed as `HOST`, which means the usual port of http and https, or as `HOST:PORT`.
//! - An address (`10.0.0.5:8443`, `[fd00::5]`) allows itself, whatever it is.
//! - `localhost` is this machine, and is not asked for elsewhere.
//! - A name must have public addresses only. With `+private` after it (`git.internal:8443+private`) they may also be private,
//!   shared by a provider, or this machine. No name ever leads to link-local, multicast or reserved addresses: there are the
//!   metadata services of clouds.

mod reach;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ade_domain::Invalid;
use url::{Host, Url};

pub use reach::{Reach, reach};

use crate::Work;

/// What allows a name to have private addresses.
const PRIVATE: &str = "+private";
/// How long resolving a name may take.
const RESOLVE_WITHIN: Duration = Duration::from_secs(5);
/// Addresses of one name that are tried.
const MOST_ADDRESSES: usize = 8;
/// Bytes of a URL.
const LONGEST_URL: usize = 2_048;

/// Finds the addresses of names.
pub trait Resolve: Send + Sync {
    /// All addresses of a name.
    fn resolve<'a>(&'a self, name: &'a str) -> Work<'a, io::Result<Vec<IpAddr>>>;
}

/// As this machine resolves names.
#[derive(Debug, Clone, Copy, Default)]
pub struct System;

impl Resolve for System {
    fn resolve<'a>(&'a self, name: &'a str) -> Work<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            Ok(tokio::net::lookup_host((name, 0)).await?.map(|address| address.ip()).collect())
        })
    }
}

/// Why something is not called.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// For people.
    pub message: String,
    /// Another time it may work.
    pub again: bool,
}

impl Refusal {
    fn lasting(message: impl Into<String>) -> Self {
        Self { message: message.into(), again: false }
    }
}

/// A host that was listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    host: Host<String>,
    port: Option<u16>,
    private: bool,
}

impl Listed {
    /// Reads `HOST`, `HOST:PORT`, and either with `+private`.
    pub fn read(entry: &str) -> Result<Self, String> {
        let (host, private) = entry.strip_suffix(PRIVATE).map_or((entry, false), |host| (host, true));
        let wrong =
            || format!("{entry:?} is not a host: write HOST or HOST:PORT, with {PRIVATE} for a name inside");
        if host.contains(['/', '@', '?', '#', '\\', '*']) {
            return Err(wrong());
        }
        let parsed = Url::parse(&format!("http://{host}/")).map_err(|_| wrong())?;
        // Taken from what is written: a URL leaves out the usual port.
        let written = host.rsplit_once(':').filter(|(_, port)| !port.contains(']'));
        let port = written.map(|(_, port)| port.parse()).transpose().map_err(|_| wrong())?;
        let host = parsed.host().ok_or_else(wrong)?.to_owned();
        Ok(Self { host, port, private })
    }

    /// Whether a URL leads there.
    #[must_use]
    pub fn is_for(&self, url: &Url) -> bool {
        let usual = matches!((url.scheme(), url.port()), ("http" | "https", None));
        let port = self.port.map_or(usual, |port| url.port_or_known_default() == Some(port));
        port && url.host().is_some_and(|host| host.to_owned() == self.host)
    }

    /// Whether it is inside a network that somebody keeps: there, what is sent need not be encrypted.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        match &self.host {
            Host::Domain(name) => self.private || name == "localhost",
            Host::Ipv4(address) => reach((*address).into()) == Reach::Private,
            Host::Ipv6(address) => reach((*address).into()) == Reach::Private,
        }
    }
}

/// Where calls may go.
#[derive(Clone)]
pub struct Guard {
    listed: Vec<Listed>,
    everyone: bool,
    resolver: Arc<dyn Resolve>,
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard").field("listed", &self.listed).field("everyone", &self.everyone).finish()
    }
}

/// A URL whose addresses were looked at. Whoever connects to others than these has not asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pinned {
    url: Url,
    addresses: Vec<SocketAddr>,
}

impl Pinned {
    /// What is called.
    #[must_use]
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Where it is; at least one.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

impl Guard {
    /// Only these hosts.
    pub fn new(hosts: &[String]) -> Result<Self, Invalid> {
        let each = hosts.iter().enumerate().map(|(number, entry)| {
            Listed::read(entry).map_err(|why| Invalid::at(format!("/hosts/{number}"), why))
        });
        Ok(Self { listed: each.collect::<Result<_, _>>()?, everyone: false, resolver: Arc::new(System) })
    }

    /// The same, and everybody else whose addresses are public, at any port.
    #[must_use]
    pub fn and_everyone_public(self) -> Self {
        Self { everyone: true, ..self }
    }

    /// The same, with names resolved by somebody else.
    #[must_use]
    pub fn resolved_by(self, resolver: Arc<dyn Resolve>) -> Self {
        Self { resolver, ..self }
    }

    /// Whether a URL leads to a host that is listed. Asks nobody.
    pub fn read(&self, url: &str) -> Result<(Url, Option<&Listed>), Refusal> {
        if url.len() > LONGEST_URL || url.chars().any(|c| c.is_control() || c.is_whitespace()) {
            let message = format!("must be a URL of at most {LONGEST_URL} bytes without blanks");
            return Err(Refusal::lasting(message));
        }
        let mut read = Url::parse(url).map_err(|error| Refusal::lasting(format!("is not a URL: {error}")))?;
        if !matches!(read.scheme(), "http" | "https") {
            return Err(Refusal::lasting("must begin with https:// or http://"));
        }
        if !read.username().is_empty() || read.password().is_some() {
            return Err(Refusal::lasting(
                "must not contain a user or a password: use a header with a secret",
            ));
        }
        let listed = self.listed.iter().find(|listed| listed.is_for(&read));
        if listed.is_none() && !self.everyone {
            let host = read.host_str().unwrap_or_default();
            let port = read.port_or_known_default().unwrap_or_default();
            return Err(Refusal::lasting(format!(
                "leads to {host} at port {port}, which is not a listed host"
            )));
        }
        read.set_fragment(None);
        Ok((read, listed))
    }

    /// Finds out where a URL leads, and whether calls may go there.
    pub async fn resolve(&self, url: &str) -> Result<Pinned, Refusal> {
        let (url, listed) = self.read(url)?;
        let port = url.port_or_known_default().unwrap_or_default();
        let addresses = match url.host() {
            None => return Err(Refusal::lasting("has no host")),
            Some(Host::Ipv4(address)) => vec![literal(address.into(), listed)?],
            Some(Host::Ipv6(address)) => vec![literal(address.into(), listed)?],
            Some(Host::Domain("localhost")) if listed.is_some() => {
                vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]
            }
            Some(Host::Domain(name)) => {
                self.addresses(name, listed.is_some_and(|listed| listed.private)).await?
            }
        };
        let addresses = addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect();
        Ok(Pinned { url, addresses })
    }

    /// Every address of a name. One that must not be called is enough to call none: who can add one can also swap them.
    async fn addresses(&self, name: &str, private: bool) -> Result<Vec<IpAddr>, Refusal> {
        let unknown =
            |why: String| Refusal { message: format!("{name} cannot be resolved: {why}"), again: true };
        let seconds = RESOLVE_WITHIN.as_secs();
        let mut found = tokio::time::timeout(RESOLVE_WITHIN, self.resolver.resolve(name))
            .await
            .map_err(|_| unknown(format!("no answer within {seconds} seconds")))?
            .map_err(|error| unknown(error.to_string()))?;
        for address in &found {
            match reach(*address) {
                Reach::Public => {}
                Reach::Private if private => {}
                Reach::Private => {
                    return Err(Refusal::lasting(format!(
                        "{name} leads to {address}, which is not public: list it with {PRIVATE} if that is meant"
                    )));
                }
                Reach::Reserved => {
                    return Err(Refusal::lasting(format!(
                        "{name} leads to {address}, which no name may lead to"
                    )));
                }
            }
        }
        if found.is_empty() {
            return Err(unknown("it has no address".to_owned()));
        }
        found.truncate(MOST_ADDRESSES);
        Ok(found)
    }
}

/// An address allows itself where it is listed; otherwise only if it is public.
fn literal(address: IpAddr, listed: Option<&Listed>) -> Result<IpAddr, Refusal> {
    if listed.is_some() || reach(address) == Reach::Public {
        return Ok(address);
    }
    Err(Refusal::lasting(format!("leads to {address}, which is not public")))
}

#[cfg(test)]
mod tests;
