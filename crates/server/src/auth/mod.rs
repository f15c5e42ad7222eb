//! Authentication: who calls, by bootstrap token, token or session cookie.

mod bootstrap_token;
mod caller;

pub(crate) use bootstrap_token::{BootstrapToken, TOKEN_FILE};
pub use bootstrap_token::{disable_bootstrap_token, rotate_bootstrap_token};
pub(crate) use caller::{
    Authenticated, Caller, CookieRenewal, Credentials, DEVICE_COOKIE, PageVisitor, PasswordOrigin,
    SESSION_COOKIE, client_address, request_origin, session_secret,
};
