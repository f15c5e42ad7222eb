//! Why a server cannot be read. No text contains a password.

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// The accepted forms of a URL.
const FORMS: &str = "redis://[user:password@]host[:port][/database], redis+cluster://[user:password@]host:port[,host:port…] \
    or redis+sentinel://[user:password@]host:port[,host:port…]/master-name, and the same with rediss for TLS";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServerError {
    #[error("invalid Redis URL: {reason}. Use {FORMS}")]
    InvalidUrl { reason: String },
    #[error("cannot connect to {address}: {reason}; check the address, and that the server runs")]
    Unreachable { address: String, reason: String },
    #[error("{address} rejects the user or password ({reason}); check them in the URL")]
    Unauthorized { address: String, reason: String },
    #[error("{address} does not reply like a Redis server ({reason}); check the address and port")]
    NotRedis { address: String, reason: String },
    #[error("{address} does not allow {command} ({reason}); grant it to this user, or use another one")]
    Denied { address: String, command: &'static str, reason: String },
    #[error("{what}; {advice}")]
    Unsuitable { what: String, advice: &'static str },
    #[error("lost the connection to {address}: {reason}; repeat the command")]
    Lost { address: String, reason: String },
}

impl ServerError {
    /// For an error while connecting.
    pub(crate) fn connecting(address: &str, error: &RedisError) -> Self {
        let (address, reason) = (address.to_owned(), one_line(error));
        match error.kind() {
            ErrorKind::AuthenticationFailed => Self::Unauthorized { address, reason },
            ErrorKind::Io => Self::Unreachable { address, reason },
            _ if is_unauthorized(error) => Self::Unauthorized { address, reason },
            ErrorKind::Server(_) => Self::Unreachable { address, reason },
            _ => Self::NotRedis { address, reason },
        }
    }

    /// For an error of a command that the tool cannot do without.
    pub(crate) fn running(address: &str, command: &'static str, error: &RedisError) -> Self {
        let (address, reason) = (address.to_owned(), one_line(error));
        if is_denied(error) {
            return Self::Denied { address, command, reason };
        }
        match error.kind() {
            _ if is_unauthorized(error) => Self::Unauthorized { address, reason },
            ErrorKind::Io => Self::Lost { address, reason },
            ErrorKind::Server(_) => Self::Unsuitable {
                what: format!("{address} fails at {command}: {reason}"),
                advice: "try again later",
            },
            _ => Self::NotRedis { address, reason },
        }
    }
}

pub(crate) fn is_denied(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) || error.code() == Some("NOPERM")
}

fn is_unauthorized(error: &RedisError) -> bool {
    matches!(error.code(), Some("NOAUTH" | "WRONGPASS"))
}

pub(crate) fn one_line(error: &RedisError) -> String {
    error.to_string().replace(['\r', '\n'], " ")
}
