//! Parses the URL of a deployment: standalone, Sentinel or cluster.

use redis::{ConnectionInfo, IntoConnectionInfo};

use super::error::ServerError;

/// Where the servers of a deployment are found.
#[derive(Clone)]
pub(crate) struct DeploymentUrl {
    pub(crate) kind: UrlKind,
    pub(crate) hosts: Vec<ConnectionInfo>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UrlKind {
    Standalone,
    Cluster,
    Sentinel { master: String },
}

pub(crate) fn parse(text: &str) -> Result<DeploymentUrl, ServerError> {
    let invalid = |reason: &str| ServerError::InvalidUrl { reason: reason.to_owned() };
    let (scheme, rest) = text.split_once("://").ok_or_else(|| invalid("it has no scheme"))?;
    let (protocol, variant) = scheme.split_once('+').unwrap_or((scheme, ""));
    if !["redis", "rediss"].contains(&protocol) {
        return Err(invalid("the scheme is neither redis nor rediss"));
    }
    let (user_info, location) =
        rest.rsplit_once('@').map_or(("", rest), |(user_info, location)| (user_info, location));
    let (hosts, path) = location.split_once('/').unwrap_or((location, ""));
    let (kind, database) = match variant {
        "" => (UrlKind::Standalone, path),
        "cluster" if path.is_empty() || path == "0" => (UrlKind::Cluster, ""),
        "cluster" => return Err(invalid("a cluster has no databases")),
        "sentinel" if path.is_empty() || path.contains('/') => {
            return Err(invalid("a sentinel URL must end in /master-name"));
        }
        "sentinel" => (UrlKind::Sentinel { master: path.to_owned() }, ""),
        _ => return Err(invalid("the scheme must end in +cluster, +sentinel or nothing")),
    };
    let sign = if user_info.is_empty() { "" } else { "@" };
    let hosts: Vec<&str> = hosts.split(',').collect();
    if kind == UrlKind::Standalone && hosts.len() > 1 {
        return Err(invalid(
            "a standalone server has one host; use redis+cluster or redis+sentinel for several",
        ));
    }
    let default_port = if matches!(kind, UrlKind::Sentinel { .. }) { ":26379" } else { "" };
    let infos = hosts.iter().map(|host| {
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
        let port = if has_port { "" } else { default_port };
        let url = format!("{protocol}://{user_info}{sign}{host}{port}/{database}");
        // The text of the error may contain parts of the URL.
        url.into_connection_info().map_err(|_| invalid("a host, port, password or database is malformed"))
    });
    Ok(DeploymentUrl { kind, hosts: infos.collect::<Result<_, _>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_every_kind_and_never_shows_a_password() {
        for (text, hosts) in [
            ("redis://localhost", vec!["localhost:6379"]),
            ("redis://:secret@10.0.0.1:7000/3", vec!["10.0.0.1:7000"]),
            ("redis+cluster://me:secret@a:1,b:2", vec!["a:1", "b:2"]),
            ("redis+sentinel://a,b:2/ade", vec!["a:26379", "b:2"]),
        ] {
            let url = parse(text).expect(text);
            assert_eq!(url.hosts.iter().map(|host| host.addr().to_string()).collect::<Vec<_>>(), hosts);
        }
        for text in [
            "localhost:6379",
            "http://host",
            "redis+ring://host",
            "redis://a,b",
            "redis://:secret@host:port",
            "redis://host/x",
            "redis+cluster://host/3",
            "redis+sentinel://host",
        ] {
            let error = parse(text).map(|_| ()).expect_err(text).to_string();
            assert!(error.contains("redis+sentinel://[user") && !error.contains("secret"), "{error}");
        }
    }
}
