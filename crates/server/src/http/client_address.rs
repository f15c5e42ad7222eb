//! Who the client of a request is: the peer of the connection, or the client that a trusted proxy names.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, header};
use ipnet::IpNet;

use super::problem::Problem;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The client of a request, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClientAddress {
    pub(crate) ip: IpAddr,
    /// Whether a trusted proxy received the request over TLS.
    pub(crate) is_tls: bool,
    /// Whether the client itself runs on this machine, with no proxy in between.
    pub(crate) is_local: bool,
}

/// The networks whose forwarding headers count.
#[derive(Debug, Clone, Default)]
pub(crate) struct TrustedProxies(Arc<[IpNet]>);

impl TrustedProxies {
    pub(crate) fn new(networks: &[IpNet]) -> Self {
        Self(networks.into())
    }

    pub(crate) fn contains(&self, ip: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&ip))
    }

    /// The client behind the trusted proxies: the right-most address that is not one of them. Fails if both kinds of headers are
    /// there and disagree: a proxy writes one of them and passes the other on as the client sent it.
    pub(crate) fn client(&self, peer: SocketAddr, headers: &HeaderMap) -> Result<ClientAddress, Problem> {
        let peer = peer.ip().to_canonical();
        if !self.contains(peer) {
            let is_forwarded =
                [header::FORWARDED, X_FORWARDED_FOR].iter().any(|name| headers.contains_key(name));
            return Ok(ClientAddress {
                ip: peer,
                is_tls: false,
                is_local: peer.is_loopback() && !is_forwarded,
            });
        }
        let forwarded = forwarded(headers);
        let x_forwarded = values(headers, &X_FORWARDED_FOR).map(parse_node).collect::<Vec<_>>();
        let is_https = |proto: &str| proto.eq_ignore_ascii_case("https");
        let (chain, is_tls) = match (forwarded.is_empty(), x_forwarded.is_empty()) {
            (true, _) => {
                let mut protos = values(headers, &X_FORWARDED_PROTO).peekable();
                let is_tls = protos.peek().is_some() && protos.all(is_https);
                (x_forwarded, is_tls)
            }
            (false, is_alone) => {
                let (chain, protos): (Vec<_>, Vec<_>) = forwarded.into_iter().unzip();
                if !is_alone && self.client_of(peer, &chain) != self.client_of(peer, &x_forwarded) {
                    return Err(Problem::proxy_headers());
                }
                (chain, protos.iter().all(|proto| proto.is_some_and(is_https)))
            }
        };
        let ip = self.client_of(peer, &chain);
        Ok(ClientAddress { ip, is_tls, is_local: chain.is_empty() && ip.is_loopback() && !is_tls })
    }

    /// An address that cannot be read ends the chain: the proxy that added it counts as the client.
    fn client_of(&self, peer: IpAddr, chain: &[Option<IpAddr>]) -> IpAddr {
        let mut client = peer;
        for address in chain.iter().rev() {
            let Some(address) = address else { break };
            client = *address;
            if !self.contains(client) {
                break;
            }
        }
        client
    }
}

/// The comma-separated values of all lines of a header.
fn values<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> + use<'a> {
    let lines = headers.get_all(name).into_iter().map(|line| line.to_str().unwrap_or_default());
    lines.flat_map(|line| line.split(',')).map(str::trim)
}

/// `for` and `proto` of each element of `Forwarded`.
fn forwarded(headers: &HeaderMap) -> Vec<(Option<IpAddr>, Option<&str>)> {
    values(headers, &header::FORWARDED)
        .map(|element| {
            let (mut node, mut proto) = (None, None);
            for (name, value) in element.split(';').filter_map(|pair| pair.trim().split_once('=')) {
                let value = value.trim().trim_matches('"');
                match name.trim() {
                    name if name.eq_ignore_ascii_case("for") => node = parse_node(value),
                    name if name.eq_ignore_ascii_case("proto") => proto = Some(value),
                    _ => {}
                }
            }
            (node, proto)
        })
        .collect()
}

/// An address with or without port, as in `192.0.2.1:80` or `[2001:db8::1]:80`.
fn parse_node(text: &str) -> Option<IpAddr> {
    let address =
        text.parse::<IpAddr>().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|node| node.ip()));
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse::<IpAddr>().ok();
    address.or_else(bracketed).map(|ip| ip.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().expect("a value")))
            .collect()
    }

    fn client(peer: &str, lines: &[(&'static str, &str)]) -> Option<ClientAddress> {
        let networks =
            ["10.0.0.0/8", "127.0.0.1/32", "fd00::/8"].map(|network| network.parse().expect("a network"));
        let peer = peer.parse().expect("an address");
        TrustedProxies::new(&networks).client(peer, &headers(lines)).ok()
    }

    fn expect(ip: &str, is_tls: bool, is_local: bool) -> Option<ClientAddress> {
        Some(ClientAddress { ip: ip.parse().expect("an address"), is_tls, is_local })
    }

    #[test]
    fn headers_count_only_from_trusted_proxies() {
        let forged = [
            ("x-forwarded-for", "127.0.0.1"),
            ("x-forwarded-proto", "https"),
            ("forwarded", "for=127.0.0.1"),
        ];
        assert_eq!(client("192.0.2.7:9", &forged), expect("192.0.2.7", false, false));
        assert_eq!(client("[::ffff:192.0.2.7]:9", &[]), expect("192.0.2.7", false, false));
        assert_eq!(client("[::1]:9", &[]), expect("::1", false, true));
        assert_eq!(
            client("[::1]:9", &forged),
            expect("::1", false, false),
            "an undeclared proxy is no local client"
        );
    }

    #[test]
    fn right_most_untrusted_address_is_the_client() {
        let https = ("x-forwarded-proto", "https");
        for (chain, expected) in [
            ("203.0.113.9", "203.0.113.9"),
            ("127.0.0.1, 203.0.113.9", "203.0.113.9"),
            ("203.0.113.9, 10.1.1.1, fd00::7", "203.0.113.9"),
            ("198.51.100.1, 203.0.113.9:4711, 10.1.1.1", "203.0.113.9"),
            ("[2001:db8::1]:80", "2001:db8::1"),
            ("203.0.113.9, unknown", "10.0.0.2"),
            ("10.0.0.3", "10.0.0.3"),
            ("203.0.113.9, , 10.0.0.4", "10.0.0.4"),
        ] {
            let found = client("10.0.0.2:9", &[("x-forwarded-for", chain), https]);
            assert_eq!(found, expect(expected, true, false), "{chain}");
        }
        let two_lines = [("x-forwarded-for", "198.51.100.1"), ("x-forwarded-for", "203.0.113.9")];
        assert_eq!(client("10.0.0.2:9", &two_lines), expect("203.0.113.9", false, false));
        assert_eq!(client("127.0.0.1:9", &[]), expect("127.0.0.1", false, true), "the proxy itself");
    }

    #[test]
    fn reads_forwarded_and_refuses_headers_that_disagree() {
        let standard = ("forwarded", "for=127.0.0.1, for=\"203.0.113.9:7\";proto=https;by=10.0.0.2");
        let plain = ("forwarded", "For=\"[2001:db8::1]\";Proto=http");
        assert_eq!(client("10.0.0.2:9", &[plain]), expect("2001:db8::1", false, false));
        assert_eq!(
            client("10.0.0.2:9", &[standard]),
            expect("203.0.113.9", false, false),
            "not all over TLS"
        );
        let all_tls = ("forwarded", "for=203.0.113.9;proto=https");
        assert_eq!(client("10.0.0.2:9", &[all_tls]), expect("203.0.113.9", true, false));
        assert_eq!(
            client("10.0.0.2:9", &[all_tls, ("x-forwarded-for", "203.0.113.9")]),
            expect("203.0.113.9", true, false)
        );
        assert_eq!(client("10.0.0.2:9", &[all_tls, ("x-forwarded-for", "198.51.100.1")]), None);
        assert_eq!(
            client("10.0.0.2:9", &[("x-forwarded-for", "203.0.113.9"), ("x-forwarded-proto", "https, http")]),
            expect("203.0.113.9", false, false)
        );
    }
}
