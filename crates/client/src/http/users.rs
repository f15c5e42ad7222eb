//! People, their sessions and their tokens.

use reqwest::Method;
use reqwest::header::SET_COOKIE;

use super::{Client, Proof, segment};
use crate::Error;
use crate::wire::{Page, Session, SignIn, Token, TokenRequest, User, UserPatch, UserRequest, UserStats};

/// The cookie that a session is known by.
const COOKIE_NAME: &str = "ade_session";

/// Somebody who signed in with a password, until it signs out.
#[derive(Debug)]
pub struct SignedIn {
    client: Client,
    session: Session,
}

impl Client {
    /// Signs in with a password.
    ///
    /// # Errors
    /// The password is wrong, or the server does not answer as one.
    pub async fn sign_in(url: &str, user: &str, password: &str) -> Result<SignedIn, Error> {
        let mut client = Self::with(url, Proof::Nothing)?;
        let body = SignIn { user_id: user.to_owned(), password: password.to_owned() };
        let answer = client.open(client.call(Method::POST, "/sessions").json(&body)).await?;
        let cookies = answer.headers().get_all(SET_COOKIE).iter().filter_map(|value| value.to_str().ok());
        let cookie = cookies.filter_map(session_cookie).next_back().map(str::to_owned);
        let body = answer.bytes().await.map_err(|error| client.unreachable(&error))?;
        let session: Session = client.read(&body)?;
        let (Some(cookie), Some(csrf)) = (cookie, session.csrf_token.clone()) else {
            let cause = "the answer to the sign-in has no session".to_owned();
            return Err(Error::Foreign { url: client.base, status: None, cause });
        };
        client.proof = Proof::Session { cookie, csrf };
        Ok(SignedIn { client, session })
    }

    /// Who acts with this token or session.
    ///
    /// # Errors
    /// It is not valid any more.
    pub async fn session(&self) -> Result<Session, Error> {
        self.get("/sessions/current", &[]).await
    }

    /// Everybody. Filters are `limit` and `cursor`.
    ///
    /// # Errors
    /// A filter is wrong.
    pub async fn users(&self, filters: &[(&str, &str)]) -> Result<Page<User>, Error> {
        self.get("/users", filters).await
    }

    /// One person.
    ///
    /// # Errors
    /// There is nobody of that name.
    pub async fn user(&self, user_id: &str) -> Result<User, Error> {
        self.get(&user_path(user_id), &[]).await
    }

    /// Makes a person known.
    ///
    /// # Errors
    /// The name is taken, or the caller is no administrator.
    pub async fn make_user(&self, user: &UserRequest) -> Result<User, Error> {
        self.make("/users", user).await
    }

    /// Changes a person, if it still has this revision.
    ///
    /// # Errors
    /// It was changed meanwhile, or the caller may not.
    pub async fn change_user(
        &self,
        user_id: &str,
        revision: Option<u64>,
        patch: &UserPatch,
    ) -> Result<User, Error> {
        self.change(Method::PATCH, &user_path(user_id), revision, patch).await
    }

    /// Somebody's tokens, without the tokens themselves.
    ///
    /// # Errors
    /// The caller may not see them.
    pub async fn tokens(&self, user_id: &str, filters: &[(&str, &str)]) -> Result<Page<Token>, Error> {
        self.get(&format!("{}/tokens", user_path(user_id)), filters).await
    }

    /// Makes a token that acts as somebody; it is told once.
    ///
    /// # Errors
    /// The caller may not.
    pub async fn make_token(&self, user_id: &str, token: &TokenRequest) -> Result<Token, Error> {
        self.make(&format!("{}/tokens", user_path(user_id)), token).await
    }

    /// Takes a token back.
    ///
    /// # Errors
    /// There is no such token, or the caller may not.
    pub async fn revoke_token(&self, user_id: &str, token_id: &str) -> Result<(), Error> {
        self.remove(&format!("{}/tokens/{}", user_path(user_id), segment(token_id)), None).await
    }

    /// How somebody works.
    ///
    /// # Errors
    /// There is nobody of that name.
    pub async fn user_stats(&self, user_id: &str) -> Result<UserStats, Error> {
        self.get(&format!("/stats/users/{}", segment(user_id)), &[]).await
    }
}

impl SignedIn {
    /// Who signed in.
    #[must_use]
    pub const fn session(&self) -> &Session {
        &self.session
    }

    /// A client that acts in this session; it is of no use after signing out.
    #[must_use]
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// Makes a token that acts as whoever signed in.
    ///
    /// # Errors
    /// It may not have these scopes, or not for so long.
    pub async fn make_token(&self, token: &TokenRequest) -> Result<Token, Error> {
        let Some(user) = &self.session.user else {
            let (url, cause) = (self.client.base.clone(), "the session is nobody's".to_owned());
            return Err(Error::Foreign { url, status: None, cause });
        };
        self.client.make_token(&user.user_id, token).await
    }

    /// Ends the session.
    ///
    /// # Errors
    /// The server cannot be reached; the session ends by itself.
    pub async fn sign_out(self) -> Result<(), Error> {
        self.client.remove("/sessions/current", None).await
    }
}

fn user_path(user_id: &str) -> String {
    format!("/users/{}", segment(user_id))
}

/// Name and value of the session's cookie, without what a browser would need to know besides.
fn session_cookie(set: &str) -> Option<&str> {
    let pair = set.split(';').next()?.trim();
    let (name, value) = pair.split_once('=')?;
    (name == COOKIE_NAME && !value.is_empty()).then_some(pair)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_s_cookie_is_found_among_others() {
        assert_eq!(session_cookie("ade_session=abc; HttpOnly; Path=/"), Some("ade_session=abc"));
        assert_eq!(session_cookie("ade_session=; Max-Age=0"), None);
        assert_eq!(session_cookie("other=abc"), None);
    }
}
