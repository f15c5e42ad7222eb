//! Users who sign in with a password, as browsers do: a cookie, and a CSRF token with every change.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use serde_json::{Value, json};

use crate::api::{ApiClient, ApiResponse};
use crate::deployment::{AdminClient, text_field};

/// A signed-in user.
#[derive(Debug, Clone)]
pub struct SessionClient {
    api: ApiClient,
    pub cookie: String,
    pub csrf_token: String,
}

impl SessionClient {
    /// Signs in with a password that must be right.
    pub async fn sign_in(api: &ApiClient, user: &str, password: &str) -> Self {
        let response = sign_in(api, user, password).await;
        let csrf_token = text_field(&response.expect_status(201), "csrf_token");
        let cookie = response.header("set-cookie").to_owned();
        for part in ["HttpOnly", "SameSite=Strict", "Path=/"] {
            assert!(cookie.contains(part), "{cookie}");
        }
        let cookie = cookie.split(';').next().expect("a pair").to_owned();
        Self { api: api.clone(), cookie, csrf_token }
    }

    /// The headers of a request with this CSRF token.
    #[must_use]
    pub fn headers<'a>(&'a self, csrf_token: Option<&'a str>) -> Vec<(&'a str, &'a str)> {
        let csrf_token = csrf_token.map(|csrf_token| ("x-csrf-token", csrf_token));
        [("cookie", self.cookie.as_str())].into_iter().chain(csrf_token).collect()
    }

    /// Sends a request with this CSRF token.
    pub async fn call(
        &self,
        method: &str,
        path: &str,
        csrf_token: Option<&str>,
        body: &Value,
    ) -> ApiResponse {
        let headers = self.headers(csrf_token);
        self.api.send_raw(method, &format!("/api/v1{path}"), &headers, body.to_string()).await
    }

    pub async fn get(&self, path: &str) -> ApiResponse {
        self.call("GET", path, None, &json!({})).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> ApiResponse {
        self.call("POST", path, Some(&self.csrf_token), body).await
    }

    pub async fn patch(&self, path: &str, body: &Value) -> ApiResponse {
        self.call("PATCH", path, Some(&self.csrf_token), body).await
    }

    /// The status of a request for the own session.
    pub async fn status(&self) -> u16 {
        self.get("/sessions/current").await.status
    }
}

/// Tries to sign in.
pub async fn sign_in(api: &ApiClient, user: &str, password: &str) -> ApiResponse {
    let body = json!({ "user_id": user, "password": password });
    api.send_raw("POST", "/api/v1/sessions", &[], body.to_string()).await
}

/// Uses an invitation.
pub async fn accept_invitation(api: &ApiClient, code: &str, password: &str) -> ApiResponse {
    let body = json!({ "code": code, "password": password });
    api.send_raw("POST", "/api/v1/users/invitations/accept", &[], body.to_string()).await
}

impl AdminClient {
    /// Invites a user, who joins with this password.
    pub async fn join(&self, id: &str, roles: &[&str], password: &str) {
        let body = json!({ "user_id": id, "roles": roles });
        let invited = self.api.post("/users/invitations", &body).await.expect_status(201);
        let code = text_field(&invited, "code");
        let _ = accept_invitation(&self.api, &code, password).await.expect_status(200);
    }

    /// Invites a user and signs in as the user.
    pub async fn join_and_sign_in(&self, id: &str, roles: &[&str], password: &str) -> SessionClient {
        self.join(id, roles, password).await;
        SessionClient::sign_in(&self.api, id, password).await
    }
}
