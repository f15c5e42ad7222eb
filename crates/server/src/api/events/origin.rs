//! Which pages may open a WebSocket: browsers let any page open one, with the cookies of this server.

use axum::http::{HeaderMap, header};
use url::Url;

use crate::http::problem::{ApiResult, Problem};

/// Checks that the request comes from a page of this server, or from a program that is no browser and has a token.
pub(super) fn check(headers: &HeaderMap, hosts: &[String], is_session: bool) -> ApiResult<()> {
    let refused = |detail: String| Err(Problem::forbidden("ORIGIN_NOT_ALLOWED", detail));
    let Some(origin) = headers.get(header::ORIGIN) else {
        if is_session {
            return refused(
                "a WebSocket with a session cookie needs an Origin header; use a token".to_owned(),
            );
        }
        return Ok(());
    };
    let origin = origin.to_str().unwrap_or_default();
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if is_allowed(origin, host, hosts) {
        return Ok(());
    }
    refused(format!("pages of {origin:?} may not follow events here; add its host name to server.hosts"))
}

fn is_allowed(origin: &str, host: &str, hosts: &[String]) -> bool {
    let Ok(url) = Url::parse(origin) else { return false };
    let (Some(name), "http" | "https") = (url.host_str(), url.scheme()) else { return false };
    let Some((_, authority)) = origin.split_once("://") else { return false };
    // Only scheme, host and port.
    if authority.contains(['/', '@', '?', '#']) {
        return false;
    }
    authority.eq_ignore_ascii_case(host) || hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_this_server_are_allowed() {
        let hosts = ["ade.example.com".to_owned()];
        let allowed = |origin, host| is_allowed(origin, host, &hosts);
        assert!(allowed("http://127.0.0.1:8300", "127.0.0.1:8300"));
        assert!(allowed("http://[::1]:8300", "[::1]:8300"));
        assert!(allowed("https://ADE.example.com", "127.0.0.1:8300"));
        assert!(allowed("https://ade.example.com:8443", "10.0.0.1"));
        for (origin, host) in [
            ("http://127.0.0.1:8301", "127.0.0.1:8300"),
            ("http://evil.example.com", "ade.example.com"),
            ("http://ade.example.com.evil.com", "ade.example.com"),
            ("http://evil.com/http://ade.example.com", "ade.example.com"),
            ("http://evil.com@ade.example.com", "evil.com"),
            ("file://ade.example.com", "ade.example.com"),
            ("null", "ade.example.com"),
            ("null", "null"),
            ("", ""),
        ] {
            assert!(!allowed(origin, host), "{origin} at {host}");
        }
    }
}
