//! Authentication: who calls, by bootstrap token, token or session cookie.

mod bootstrap_token;
mod caller;

pub(crate) use bootstrap_token::{BootstrapToken, TOKEN_FILE};
pub(crate) use caller::{Caller, PeerAddress, SESSION_COOKIE, peer_ip, request_origin, session_secret};
