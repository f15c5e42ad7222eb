//! Pages for people who are not signed in yet, or whose session needs their password: sign in, join with an invitation, set a
//! password, give it again.

use ade_client::wire::Problem;
use askama::Template;

use crate::Shell;

#[derive(Debug, Clone, Template)]
#[template(path = "sign_in.html")]
pub struct SignInPage {
    pub shell: Shell,
    /// The page to open afterwards: a path of this server.
    pub next: String,
    pub user_id: String,
    /// Whether the visitor has just used an invitation.
    pub has_joined: bool,
    /// Why the last attempt failed.
    pub problem: Option<Problem>,
    /// Whether this is the demo, whose users are named on the page with this password.
    pub demo_password: Option<&'static str>,
}

/// Uses an invitation: the person sets their own password.
#[derive(Debug, Clone, Template)]
#[template(path = "join.html")]
pub struct JoinPage {
    pub shell: Shell,
    pub code: String,
    pub problem: Option<Problem>,
}

/// The password is given again, or a temporary one is replaced.
#[derive(Debug, Clone, Template)]
#[template(path = "password.html")]
pub struct PasswordPage {
    pub shell: Shell,
    pub next: String,
    /// Whether a new password must be set; otherwise the present one is asked for.
    pub is_change: bool,
    pub problem: Option<Problem>,
}
