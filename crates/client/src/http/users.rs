//! Client methods of users, sessions and tokens.

use reqwest::Method;
use reqwest::header::{COOKIE, SET_COOKIE};

use super::{Client, Credentials, Result, routes};
use crate::Error;
use crate::wire::{
    Invitation, InvitationRequest, JoinRequest, ReauthenticateRequest, Session, SignInRequest, SlackCode,
    Token, TokenRequest, User, UserPatch, UserRequest, UserStats,
};

const SESSION_COOKIE: &str = "ade_session";
const DEVICE_COOKIE: &str = "ade_device";

/// The session of a user who signed in with a password.
pub struct UserSession {
    client: Client,
    session: Session,
    device: Option<String>,
}

/// Hides the secrets.
impl std::fmt::Debug for UserSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UserSession").field("client", &self.client).finish_non_exhaustive()
    }
}

routes! {
    /// Gets the user or agent that the token or session belongs to.
    get session() "/sessions/current" => Session;
    /// Lists users. Filters: `limit`, `cursor`.
    list users() "/users" => User;
    /// Gets a user.
    get user(user_id) "/users/{}" => User;
    /// Creates a user (admin).
    post create_user() "/users": UserRequest => User;
    /// Updates a user if it has this revision.
    patch update_user(user_id) "/users/{}": UserPatch => User;
    /// Invites a user (admin). The code is returned only once.
    post invite_user() "/users/invitations": InvitationRequest => Invitation;
    /// Confirms that another person uses an account, so that it counts as independent (admin).
    post confirm_user(user_id) "/users/{}/confirm" => User;
    /// Creates a code with which you link your account of Slack, in a session. It is returned only once.
    post create_slack_code(user_id) "/users/{}/slack-link" => SlackCode;
    /// Ends the link of a user with Slack.
    delete unlink_slack(user_id) "/users/{}/slack-link" => ();
    /// Gives the password again in a session.
    send reauthenticate() "/sessions/reauthenticate": ReauthenticateRequest => Session;
    /// Lists the tokens of a user, without their secrets.
    list tokens(user_id) "/users/{}/tokens" => Token;
    /// Creates a token for a user. Its secret is returned only once.
    post create_token(user_id) "/users/{}/tokens": TokenRequest => Token;
    /// Revokes a token.
    delete revoke_token(user_id, token_id) "/users/{}/tokens/{}" => ();
    /// Gets the statistics of a user.
    get user_stats(user_id) "/stats/users/{}" => UserStats;
}

impl Client {
    /// Uses an invitation: sets the password of the invited user.
    pub async fn join(url: &str, code: &str, password: &str) -> Result<User> {
        let client = Self::with_credentials(url, Credentials::None)?;
        let body = JoinRequest { code: code.to_owned(), password: password.to_owned() };
        client.post("/users/invitations/accept", &body).await
    }

    /// Signs in with a password.
    pub async fn sign_in(url: &str, user: &str, password: &str) -> Result<UserSession> {
        Self::sign_in_on_device(url, user, password, None).await
    }

    /// Signs in with a password on a device where the user signed in before: failed attempts of others do not delay it. The secret of
    /// the device is [`UserSession::device`] of an earlier session.
    pub async fn sign_in_on_device(
        url: &str,
        user: &str,
        password: &str,
        device: Option<&str>,
    ) -> Result<UserSession> {
        let mut client = Self::with_credentials(url, Credentials::None)?;
        let body = SignInRequest { user_id: user.to_owned(), password: password.to_owned() };
        let mut request = client.request(Method::POST, "/sessions").json(&body);
        if let Some(device) = device {
            request = request.header(COOKIE, format!("{DEVICE_COOKIE}={device}"));
        }
        let response = client.open(request).await?;
        let cookies = response.headers().get_all(SET_COOKIE).iter().filter_map(|value| value.to_str().ok());
        let cookies: Vec<&str> = cookies.collect();
        let cookie = cookies.iter().copied().filter_map(session_cookie).next_back().map(str::to_owned);
        let device = cookies.iter().filter_map(|line| cookie_value(line, DEVICE_COOKIE)).next_back();
        let device = device.map(str::to_owned);
        let body = response.bytes().await.map_err(|error| client.unreachable(&error))?;
        let session: Session = client.parse(&body)?;
        let (Some(cookie), Some(csrf)) = (cookie, session.csrf_token.clone()) else {
            let cause = "the sign-in response contains no session".to_owned();
            return Err(Error::UnexpectedResponse { url: client.base, status: None, cause });
        };
        client.credentials = Credentials::Session { cookie, csrf };
        Ok(UserSession { client, session, device })
    }
}

impl UserSession {
    /// The user and scopes of the session.
    #[must_use]
    pub const fn session(&self) -> &Session {
        &self.session
    }

    /// The secret of this device, if the server did not know it before.
    #[must_use]
    pub fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    /// A client that acts in this session. It stops working after [`sign_out`](Self::sign_out).
    #[must_use]
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// Creates a token for the signed-in user.
    pub async fn create_token(&self, token: &TokenRequest) -> Result<Token> {
        let Some(user) = &self.session.user else {
            let (url, cause) = (self.client.base.clone(), "the session has no user".to_owned());
            return Err(Error::UnexpectedResponse { url, status: None, cause });
        };
        self.client.create_token(&user.user_id, token).await
    }

    /// Ends the session.
    pub async fn sign_out(self) -> Result<()> {
        self.client.delete("/sessions/current").await
    }
}

/// Name and value of the session cookie, without its attributes.
fn session_cookie(set_cookie: &str) -> Option<&str> {
    let pair = set_cookie.split(';').next()?.trim();
    cookie_value(set_cookie, SESSION_COOKIE).map(|_| pair)
}

fn cookie_value<'a>(set_cookie: &'a str, name: &str) -> Option<&'a str> {
    let (found, value) = set_cookie.split(';').next()?.trim().split_once('=')?;
    (found == name && !value.is_empty()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_session_cookie() {
        assert_eq!(session_cookie("ade_session=abc; HttpOnly; Path=/"), Some("ade_session=abc"));
        assert_eq!(session_cookie("ade_session=; Max-Age=0"), None);
        assert_eq!(session_cookie("other=abc"), None);
    }
}
