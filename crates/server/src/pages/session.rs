//! Pages around a session: sign in, sign out, join, set a password, give it again; and the link that signs in to the demo.

use ade_app::demo;
use ade_client::wire;
use ade_dashboard::{JoinPage, PasswordPage, Section, SignInPage};
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use serde_json::{Value, json};
use subtle::ConstantTimeEq;

use super::form::Form;
use super::respond::html;
use super::visit::{AnonymousVisit, PageError, PageResult, Visit, path, safe_next};
use crate::api::AppState;
use crate::api::sessions::set_cookie;
use crate::auth::{PasswordOrigin, SESSION_COOKIE, request_origin};
use crate::http::problem::Problem;

const CLEAR_SITE_DATA: HeaderName = HeaderName::from_static("clear-site-data");

/// The inbox, or the sign-in page.
pub(super) async fn start(visit: Result<Visit, PageError>) -> Response {
    match visit {
        Ok(_) => Redirect::to("/inbox").into_response(),
        Err(error) => error.into_response(),
    }
}

fn sign_in_template(app: &AppState, visit: &AnonymousVisit) -> SignInPage {
    SignInPage {
        shell: visit.shell("Sign in"),
        next: safe_next(visit.param("next")).to_owned(),
        user_id: String::new(),
        has_joined: visit.param("joined") == "1",
        problem: None,
        demo_password: app.demo_key.is_some().then_some(demo::PASSWORD),
    }
}

pub(super) async fn sign_in_page(
    State(app): State<AppState>,
    signed_in: Result<Visit, PageError>,
    visit: AnonymousVisit,
) -> Response {
    let page = sign_in_template(&app, &visit);
    if signed_in.is_ok() { Redirect::to(&page.next).into_response() } else { html(&page) }
}

pub(super) async fn sign_in(State(app): State<AppState>, visit: AnonymousVisit, form: Form) -> Response {
    let (user_id, next) = (form.get("user_id").to_owned(), safe_next(form.get("next")).to_owned());
    let request =
        wire::SignInRequest { user_id: user_id.clone(), password: form.verbatim("password").to_owned() };
    match visit.post("/sessions", &form, &request).await {
        Ok(headers) => with_cookies(Redirect::to(&next).into_response(), &headers),
        Err(problem) => {
            let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::UNAUTHORIZED);
            let page = SignInPage { user_id, next, problem: Some(problem), ..sign_in_template(&app, &visit) };
            (status, html(&page)).into_response()
        }
    }
}

/// Passes the cookies of a response of the API on to the browser.
fn with_cookies(mut response: Response, headers: &HeaderMap) -> Response {
    for cookie in headers.get_all(header::SET_COOKIE) {
        response.headers_mut().append(header::SET_COOKIE, cookie.clone());
    }
    response
}

pub(super) async fn sign_out(visit: Visit, form: Form) -> PageResult {
    let headers = visit.send_for_headers(Method::DELETE, "/sessions/current", &form).await?;
    let mut response = with_cookies(Redirect::to("/sign-in").into_response(), &headers);
    // Pages that the browser keeps must not be readable afterwards, as after Back.
    response.headers_mut().insert(CLEAR_SITE_DATA, HeaderValue::from_static("\"cache\""));
    Ok(response)
}

pub(super) async fn join_page(visit: AnonymousVisit) -> Response {
    let code = visit.param("code").to_owned();
    html(&JoinPage { shell: visit.shell("Join"), code, problem: None })
}

fn repeated_differently() -> wire::Problem {
    Problem::invalid_at("", "The two new passwords differ. Type them again.").to_wire()
}

pub(super) async fn join(visit: AnonymousVisit, form: Form) -> Response {
    let (code, password) = (form.get("code").to_owned(), form.verbatim("password").to_owned());
    let joined = if password == form.verbatim("repeated") {
        let request = wire::JoinRequest { code: code.clone(), password };
        visit.post("/users/invitations/accept", &form, &request).await
    } else {
        Err(repeated_differently())
    };
    match joined {
        Ok(_) => Redirect::to("/sign-in?joined=1").into_response(),
        Err(problem) => {
            let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::FORBIDDEN);
            (status, html(&JoinPage { shell: visit.shell("Join"), code, problem: Some(problem) }))
                .into_response()
        }
    }
}

async fn password_template(visit: &Visit, next: &str, is_change: bool) -> PageResult<PasswordPage> {
    let title = if is_change { "Change your password" } else { "Give your password again" };
    let shell = visit.shell(Section::None, title, "").await?;
    Ok(PasswordPage { shell, next: safe_next(next).to_owned(), is_change, problem: None })
}

pub(super) async fn password_page(visit: Visit) -> PageResult {
    Ok(html(&password_template(&visit, visit.param("next"), true).await?))
}

pub(super) async fn change_password(visit: Visit, form: Form) -> PageResult {
    let changed = if form.verbatim("new_password") == form.verbatim("repeated") {
        let body = json!({
            "password": form.verbatim("new_password"),
            "current_password": form.verbatim("password"),
        });
        visit.send::<Value>(Method::PATCH, &path(&["users", "me"]), &form, &body).await
    } else {
        Err(repeated_differently())
    };
    match changed {
        Ok(_) => Ok(visit.done(safe_next(form.get("next")), "password")),
        Err(problem) => {
            let page = password_template(&visit, form.get("next"), true).await?;
            Ok(visit.refused(&PasswordPage { problem: Some(problem.clone()), ..page }, &problem))
        }
    }
}

pub(super) async fn reauthenticate_page(visit: Visit) -> PageResult {
    Ok(html(&password_template(&visit, visit.param("next"), false).await?))
}

pub(super) async fn reauthenticate(visit: Visit, form: Form) -> PageResult {
    let body = wire::ReauthenticateRequest { password: form.verbatim("password").to_owned() };
    match visit.post("/sessions/reauthenticate", &form, &body).await {
        Ok(_) => Ok(visit.done(safe_next(form.get("next")), "reauthenticated")),
        Err(problem) => {
            let page = password_template(&visit, form.get("next"), false).await?;
            Ok(visit.refused(&PasswordPage { problem: Some(problem.clone()), ..page }, &problem))
        }
    }
}

/// Signs in as the reviewer of the demo. The key is printed by the server when it starts; a demo is served on loopback addresses only.
pub(super) async fn demo(
    State(app): State<AppState>,
    Path(key): Path<String>,
    request: Request,
) -> PageResult {
    let (parts, _) = request.into_parts();
    if parts.method != Method::GET {
        let detail = "open the link in a browser";
        return Err(Problem::new(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", detail).into());
    }
    let matches = app.demo_key.as_ref().is_some_and(|known| known.as_bytes().ct_eq(key.as_bytes()).into());
    if !matches {
        return Err(Problem::not_found(
            "NOT_FOUND",
            "this link is of another start of the demo; use the one it printed last",
        )
        .into());
    }
    let client = PasswordOrigin::of(&parts).client;
    let origin = request_origin(&parts, &app);
    let session = app
        .accounts
        .sign_in(demo::REVIEWER, demo::PASSWORD.to_owned(), origin)
        .await
        .map_err(Problem::from)?;
    let mut response = Redirect::to("/inbox").into_response();
    set_cookie(
        &mut response,
        client,
        SESSION_COOKIE,
        &session.secret,
        session.expires_at.ms_since(app.tasks.now()),
    );
    Ok(response)
}
