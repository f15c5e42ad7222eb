//! A visit of a page: who visits, the API as the visitor sees it, and the response.
//!
//! Reads reuse the visitor, who was authenticated once. A change is authenticated by the API itself, with the CSRF token of the
//! form.

use ade_app::accounts::csrf_token;
use ade_client::wire;
use ade_dashboard::{ErrorPage, Section, Shell, Template, Viewer};
use ade_domain::permission::Scope;
use axum::Extension;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use url::{Url, form_urlencoded};
use uuid::Uuid;

use super::api_client::{Api, ApiClient, parse};
use super::form::Form;
use super::frame::{Frame, Refusal};
use super::respond::{etag, html, with_policies};
use super::{notice, respond};
use crate::api::AppState;
use crate::api::convert::Convert;
use crate::auth::{Caller, PageVisitor, session_secret};
use crate::http::client_address::ClientAddress;
use crate::http::problem::Problem;

/// Requests shown as waiting; beyond that, the number is one with a plus.
const MAX_WAITING: usize = 99;
/// The code of a change that needs the password again.
pub(super) const REAUTHENTICATE: &str = "REAUTHENTICATE";
/// The member of such a problem with the page to give it on.
pub(super) const REAUTHENTICATE_LINK: &str = "reauthenticate";
pub(super) type PageResult<T = Response> = Result<T, PageError>;

/// Why there is no page.
#[derive(Debug)]
pub(super) struct PageError(Box<Response>);

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        *self.0
    }
}

impl From<Response> for PageError {
    fn from(response: Response) -> Self {
        Self(Box::new(response))
    }
}

impl From<wire::Problem> for PageError {
    fn from(problem: wire::Problem) -> Self {
        if problem.code == "PASSWORD_CHANGE_REQUIRED" {
            return Redirect::to("/password").into_response().into();
        }
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let shell = Shell::anonymous("Error", Timestamp::UNIX_EPOCH);
        let mut response = (status, html(&ErrorPage { shell, problem: problem.clone() })).into_response();
        response.extensions_mut().insert(Refusal(problem));
        response.into()
    }
}

impl From<Problem> for PageError {
    fn from(problem: Problem) -> Self {
        problem.to_wire().into()
    }
}

/// A path of the API, or of a page, with encoded segments.
pub(super) fn path(segments: &[&str]) -> String {
    const KEPT: &percent_encoding::AsciiSet =
        &percent_encoding::NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
    let encode = |segment: &&str| format!("/{}", percent_encoding::utf8_percent_encode(segment, KEPT));
    segments.iter().map(encode).collect()
}

/// A path with the query parameters that are not empty.
pub(super) fn with_query(path: &str, params: &[(&str, &str)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(params.iter().filter(|(_, value)| !value.is_empty()));
    let query = query.finish();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}

/// A visit by somebody who is signed in, or has a token.
#[derive(Debug, Clone)]
pub(super) struct Visit {
    client: ApiClient,
    viewer: Viewer,
    csrf: String,
    now: Timestamp,
    query: Vec<(String, String)>,
    /// The version that the script of a page has.
    if_none_match: Option<HeaderValue>,
    address: String,
    /// The page with the form that was sent, without its notice.
    sent_from: String,
    /// The path of the page.
    page: String,
}

impl FromRequestParts<AppState> for Visit {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> PageResult<Self> {
        let api = api(parts, app).await?;
        let caller = match Caller::visitor(parts, app).await {
            Ok(caller) => caller,
            Err(problem) if problem.code() == "UNAUTHENTICATED" => return Err(anonymous(parts)),
            Err(problem) => return Err(problem.into()),
        };
        let csrf = session_secret(parts).filter(|_| !parts.headers.contains_key(header::AUTHORIZATION));
        let visitor = Some(PageVisitor(caller.0.clone()));
        let query = parts.uri.query().unwrap_or_default();
        let visit = Self {
            client: ApiClient::new(parts, api, visitor),
            viewer: viewer(&caller),
            csrf: csrf.map_or_else(String::new, csrf_token),
            now: now(app),
            query: form_urlencoded::parse(query.as_bytes()).into_owned().collect(),
            if_none_match: parts
                .headers
                .get(header::IF_NONE_MATCH)
                .filter(|_| is_from_script(parts))
                .cloned(),
            address: address(parts),
            sent_from: sent_from(parts),
            page: parts.uri.path().to_owned(),
        };
        if let Some(frame) = parts.extensions.get::<Frame>() {
            frame.set(&visit);
        }
        Ok(visit)
    }
}

/// A page that is opened says what time it is, which the ETag leaves out: only what a script fetches may be what the browser has.
fn is_from_script(parts: &Parts) -> bool {
    parts.headers.get("sec-fetch-dest").is_some_and(|destination| destination == "empty")
}

/// Path and query of the page that a form is on. The policy for referrers lets them be sent within this site only.
fn sent_from(parts: &Parts) -> String {
    let referrer = parts.headers.get(header::REFERER).and_then(|value| value.to_str().ok());
    let Some(referrer) = referrer.and_then(|text| Url::parse(text).ok()) else { return String::new() };
    let pairs: Vec<_> = referrer.query_pairs().filter(|(name, _)| name != "notice").collect();
    let params: Vec<(&str, &str)> = pairs.iter().map(|(name, value)| (&**name, &**value)).collect();
    with_query(referrer.path(), &params)
}

/// Browsers name the address in the origin of a form; elsewhere, the host is known, and what a trusted proxy says of TLS.
fn address(parts: &Parts) -> String {
    let text = |name| parts.headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let origin = text(header::ORIGIN).filter(|origin| origin.starts_with("http"));
    let is_tls = parts.extensions.get::<ClientAddress>().is_some_and(|client| client.is_tls);
    let scheme = if is_tls { "https" } else { "http" };
    origin.map_or_else(|| format!("{scheme}://{}", text(header::HOST).unwrap_or("localhost")), str::to_owned)
}

fn viewer(caller: &ade_app::Caller) -> Viewer {
    match (&caller.user, &caller.agent_id) {
        (_, Some(agent)) => Viewer { name: agent.clone(), ..Viewer::default() },
        (Some(user), None) => Viewer {
            user_id: user.user_id.to_string(),
            name: user.name.clone(),
            roles: user.roles.iter().map(ToString::to_string).collect(),
            must_reauthenticate: caller.decides_until.is_some() && !caller.scopes.contains(&Scope::Decide),
        },
        (None, None) => {
            Viewer { name: "Operator".to_owned(), roles: vec!["admin".to_owned()], ..Viewer::default() }
        }
    }
}

pub(super) fn now(app: &AppState) -> Timestamp {
    let now: wire::Time = app.tasks.now().convert();
    now.0
}

async fn api(parts: &mut Parts, app: &AppState) -> PageResult<Api> {
    let found = Extension::<Api>::from_request_parts(parts, app).await;
    found.map(|Extension(api)| api).map_err(|rejection| rejection.into_response().into())
}

/// Sends a visitor without session to the sign-in page, and back afterwards.
///
/// A link on another site arrives without the session cookie, which is `SameSite=Strict`: the page is then loaded once more from
/// here, with the cookie.
fn anonymous(parts: &Parts) -> PageError {
    let here = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let is_cross_site = parts.headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site");
    if parts.method == Method::GET && is_cross_site {
        let here = here.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;");
        let page = format!(
            "<!doctype html><title>ADE</title><meta http-equiv=\"refresh\" content=\"0;url={here}\">"
        );
        return Html(page).into_response().into();
    }
    let next = if parts.method == Method::GET { here } else { "" };
    Redirect::to(&with_query("/sign-in", &[("next", next)])).into_response().into()
}

/// A page that a browser may load after a sign-in: a path of this server, and none of the API.
pub(super) fn safe_next(next: &str) -> &str {
    let is_path = next.starts_with('/') && !next.starts_with("//");
    let is_path = is_path && !next.contains(|c: char| c == '\\' || c.is_control());
    let is_page = is_path && !next.starts_with("/api/") && !next.starts_with("/sign-");
    if is_page { next } else { "/inbox" }
}

impl Visit {
    pub(super) fn viewer(&self) -> &Viewer {
        &self.viewer
    }

    pub(super) const fn now(&self) -> Timestamp {
        self.now
    }

    /// The address of this server as the visitor reaches it, such as `https://ade.example.com`.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// A parameter of the query; empty if it is absent.
    pub(super) fn param(&self, name: &str) -> &str {
        self.query.iter().find(|(found, _)| found == name).map_or("", |(_, value)| value)
    }

    /// All values of a parameter.
    pub(super) fn params(&self, name: &str) -> Vec<&str> {
        self.query.iter().filter(|(found, _)| found == name).map(|(_, value)| value.as_str()).collect()
    }

    /// Whether the query has a parameter, which may be empty.
    pub(super) fn has_param(&self, name: &str) -> bool {
        self.query.iter().any(|(found, _)| found == name)
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, wire::Problem> {
        self.client.call(Method::GET, path, None).await
    }

    /// Like [`get`](Self::get), but nothing if the visitor may not see it or it does not exist.
    pub(super) async fn get_if_allowed<T: DeserializeOwned>(
        &self,
        path: &str,
    ) -> Result<Option<T>, wire::Problem> {
        match self.get(path).await {
            Ok(found) => Ok(Some(found)),
            Err(problem) if matches!(problem.status, 403 | 404) => Ok(None),
            Err(problem) => Err(problem),
        }
    }

    /// Sends a change. The API authenticates it with the CSRF token of the form.
    pub(super) async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        form: &Form,
        body: &impl Serialize,
    ) -> Result<T, wire::Problem> {
        let json = serde_json::to_vec(body).unwrap_or_default();
        let sent = self.client.call(method, path, Some((form, json))).await;
        sent.map_err(|problem| self.with_reauthentication(problem))
    }

    /// What the API says to programs, for people: where to give the password again.
    fn with_reauthentication(&self, mut problem: wire::Problem) -> wire::Problem {
        if problem.code == REAUTHENTICATE {
            let link = with_query("/reauthenticate", &[("next", safe_next(&self.sent_from))]);
            problem.extensions.insert(REAUTHENTICATE_LINK.to_owned(), link.into());
            "You gave your password too long ago for this.".clone_into(&mut problem.detail);
        }
        problem
    }

    pub(super) async fn post(
        &self,
        path: &str,
        form: &Form,
        body: &impl Serialize,
    ) -> Result<Value, wire::Problem> {
        self.send(Method::POST, path, form, body).await
    }

    /// Asks the API whether something would be allowed, with a POST that changes and runs nothing: any link may cause it.
    pub(super) async fn compute<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, wire::Problem> {
        self.send(Method::POST, path, &Form::with_csrf(&self.csrf), body).await
    }

    /// Sends a change whose response sets cookies.
    pub(super) async fn send_for_headers(
        &self,
        method: Method,
        path: &str,
        form: &Form,
    ) -> Result<HeaderMap, wire::Problem> {
        let response = self.client.send(method, path, Some((form, Vec::new()))).await;
        let headers = response.headers().clone();
        parse::<Value>(response).await.map(|_| headers)
    }

    pub(super) async fn raw(&self, path: &str) -> Response {
        self.client.send(Method::GET, path, None).await
    }

    /// A response of the API that the browser stores as a file, as long as it is; or the page that says why there is none.
    pub(super) async fn download(&self, path: &str, name: &str) -> PageResult {
        let mut response = self.raw(path).await;
        if !response.status().is_success() {
            let refused = parse::<Value>(response).await.err();
            let unknown =
                || Problem::unavailable("UNAVAILABLE", "the file cannot be read at the moment").to_wire();
            return Err(refused.unwrap_or_else(unknown).into());
        }
        let disposition = format!("attachment; filename=\"{name}\"");
        if let Ok(disposition) = HeaderValue::from_str(&disposition) {
            response.headers_mut().insert(header::CONTENT_DISPOSITION, disposition);
        }
        Ok(response)
    }

    /// The frame of a page.
    pub(super) async fn shell(
        &self,
        section: Section,
        title: &str,
        topics: &'static str,
    ) -> PageResult<Shell> {
        let path = format!("/approvals?reviewer=me&status=PENDING&limit={}", MAX_WAITING + 1);
        let waiting: Option<wire::Page<wire::Approval>> =
            if self.viewer.user_id.is_empty() { None } else { self.get_if_allowed(&path).await? };
        let waiting = waiting.map_or(0, |page| page.items.len());
        let shell = Shell {
            viewer: Some(self.viewer.clone()),
            csrf: self.csrf.clone(),
            form_key: Uuid::new_v4().simple().to_string(),
            notice: notice::verified(self.param("notice"), &self.csrf, &self.page),
            waiting: (waiting.min(MAX_WAITING), waiting > MAX_WAITING),
            ..Shell::anonymous(title, self.now)
        };
        Ok(shell.page(section, title, topics))
    }

    /// The response with a page; 304 if the browser has it already.
    pub(super) fn render(&self, page: &impl Template, shell: &Shell) -> Response {
        let body = match respond::text(page) {
            Ok(body) => body,
            Err(failed) => return failed.into_response(),
        };
        let tag = etag(&body, shell);
        if self.if_none_match.as_ref().is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
            // The browser takes over the headers, so they are those of the page.
            return with_policies((StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response());
        }
        let mut response = with_policies(Html(body).into_response());
        if let Ok(tag) = HeaderValue::from_str(&tag) {
            response.headers_mut().insert(header::ETAG, tag);
        }
        response
    }

    /// Opens a page after a change, with a notice.
    pub(super) fn done(&self, target: &str, name: &str) -> Response {
        let (page, separator) = target.split_once('?').map_or((target, '?'), |(page, _)| (page, '&'));
        let notice = notice::signed(name, &self.csrf, page);
        Redirect::to(&format!("{target}{separator}notice={notice}")).into_response()
    }

    /// The page with a form that was refused.
    pub(super) fn refused(&self, page: &impl Template, problem: &wire::Problem) -> Response {
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::UNPROCESSABLE_ENTITY);
        // 202 says that a change waits for a second administrator; a browser would take 401 for the end of the session.
        let status = if status.is_success() { StatusCode::OK } else { status };
        (status, html(page)).into_response()
    }
}

/// A visit by anybody.
#[derive(Debug)]
pub(super) struct AnonymousVisit {
    client: ApiClient,
    pub(super) now: Timestamp,
    query: Vec<(String, String)>,
}

impl FromRequestParts<AppState> for AnonymousVisit {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> PageResult<Self> {
        let api = api(parts, app).await?;
        let query = form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes());
        Ok(Self {
            now: now(app),
            query: query.into_owned().collect(),
            client: ApiClient::new(parts, api, None),
        })
    }
}

impl AnonymousVisit {
    pub(super) fn param(&self, name: &str) -> &str {
        self.query.iter().find(|(found, _)| found == name).map_or("", |(_, value)| value)
    }

    pub(super) fn shell(&self, title: &str) -> Shell {
        Shell::anonymous(title, self.now)
    }

    /// The response of the API to a form, with its cookies.
    pub(super) async fn post(
        &self,
        path: &str,
        form: &Form,
        body: &impl Serialize,
    ) -> Result<HeaderMap, wire::Problem> {
        let json = serde_json::to_vec(body).unwrap_or_default();
        let response = self.client.send(Method::POST, path, Some((form, json))).await;
        let headers = response.headers().clone();
        parse::<Value>(response).await.map(|_| headers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sign_in_returns_to_pages_of_this_server_only() {
        for safe in ["/tasks/1?view=x", "/inbox", "/locks"] {
            assert_eq!(safe_next(safe), safe);
        }
        for unsafe_next in [
            "//evil.example",
            "https://evil.example",
            "/\\evil.example",
            "/api/v1/tasks",
            "",
            "/sign-out",
            "/a\r\nb",
            "/\u{1}",
            "/a\u{7f}",
        ] {
            assert_eq!(safe_next(unsafe_next), "/inbox");
        }
    }

    #[test]
    fn paths_are_encoded() {
        assert_eq!(path(&["locks", "resource:a/b c"]), "/locks/resource%3Aa%2Fb%20c");
        assert_eq!(
            with_query("/tasks", &[("state", "DRAFT"), ("tag", ""), ("author", "a&b")]),
            "/tasks?state=DRAFT&author=a%26b"
        );
    }
}
