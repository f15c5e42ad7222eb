//! Client methods of users, sessions and tokens.

use reqwest::Method;
use reqwest::header::SET_COOKIE;

use super::{Client, Credentials, Result, routes};
use crate::Error;
use crate::wire::{Session, SignInRequest, Token, TokenRequest, User, UserPatch, UserRequest, UserStats};

const SESSION_COOKIE: &str = "ade_session";

/// The session of a user who signed in with a password.
#[derive(Debug)]
pub struct UserSession {
    client: Client,
    session: Session,
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
    /// Signs in with a password.
    pub async fn sign_in(url: &str, user: &str, password: &str) -> Result<UserSession> {
        let mut client = Self::with_credentials(url, Credentials::None)?;
        let body = SignInRequest { user_id: user.to_owned(), password: password.to_owned() };
        let response = client.open(client.request(Method::POST, "/sessions").json(&body)).await?;
        let cookies = response.headers().get_all(SET_COOKIE).iter().filter_map(|value| value.to_str().ok());
        let cookie = cookies.filter_map(session_cookie).next_back().map(str::to_owned);
        let body = response.bytes().await.map_err(|error| client.unreachable(&error))?;
        let session: Session = client.parse(&body)?;
        let (Some(cookie), Some(csrf)) = (cookie, session.csrf_token.clone()) else {
            let cause = "the sign-in response contains no session".to_owned();
            return Err(Error::UnexpectedResponse { url: client.base, status: None, cause });
        };
        client.credentials = Credentials::Session { cookie, csrf };
        Ok(UserSession { client, session })
    }
}

impl UserSession {
    /// The user and scopes of the session.
    #[must_use]
    pub const fn session(&self) -> &Session {
        &self.session
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
    let (name, value) = pair.split_once('=')?;
    (name == SESSION_COOKIE && !value.is_empty()).then_some(pair)
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
