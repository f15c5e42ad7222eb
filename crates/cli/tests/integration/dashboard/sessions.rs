//! Sign in, sign out, cookies across sites, and forms from elsewhere.

use ade_testkit::browser::WindowOptions;
use serde_json::json;

use super::{Dashboard, PASSWORD};

#[tokio::test]
async fn signs_in_and_out_without_scripts() {
    let dashboard = Dashboard::start().await;
    let options = WindowOptions { has_javascript: false, ..WindowOptions::default() };
    let page = dashboard.browser.window(options).await;
    page.goto(&dashboard.url("/tasks?state=REVIEWING")).await;
    assert_eq!(page.text("h1").await, "Sign in");
    page.fill("[name=user_id]", "carol").await;
    page.fill("[name=password]", "wrong-password").await;
    page.click_through("form button.primary").await;
    assert!(page.text("[role=alert]").await.contains("password"), "{}", page.text("[role=alert]").await);
    page.fill("[name=password]", PASSWORD).await;
    page.click_through("form button.primary").await;
    assert_eq!(page.url().await, dashboard.url("/tasks?state=REVIEWING"), "the page that was asked for");
    page.click(".account summary").await;
    page.click_through(".account form button").await;
    assert_eq!(page.text("h1").await, "Sign in");
    page.goto(&dashboard.url("/inbox")).await;
    assert_eq!(page.text("h1").await, "Sign in");
}

/// The session cookie is not sent with the first request after a link on another site.
#[tokio::test]
async fn links_from_other_sites_open_the_page() {
    let dashboard = Dashboard::start().await;
    let carol = dashboard.session("carol").await;
    let page = dashboard.browser.window(WindowOptions::default()).await;
    page.set_cookie(&dashboard.server.url(), &carol.cookie).await;
    let link = format!("data:text/html,<a id=link href='{}'>review</a>", dashboard.url("/tasks"));
    page.goto(&link).await;
    page.click("#link").await;
    page.wait_until("document.querySelector('h1')?.textContent === 'Tasks'").await;
}

#[tokio::test]
async fn forms_need_the_token_of_the_session_and_this_origin() {
    let dashboard = Dashboard::start().await;
    let carol = dashboard.session("carol").await;
    let requests = carol.get("/approvals?reviewer=me&status=PENDING").await.expect_status(200);
    let request = requests["items"][0]["approval_id"].as_str().expect("a request").to_owned();
    let path = format!("/approvals/{request}/reject");
    let cookie = ("cookie", carol.cookie.as_str());
    let form = ("content-type", "application/x-www-form-urlencoded");
    let task = requests["items"][0]["task_id"].as_str().expect("a task").to_owned();
    let body = |csrf: &str| format!("reason=no&task_id={task}&csrf={csrf}");
    for csrf in ["", "0000"] {
        let refused = dashboard.api.send_raw("POST", &path, &[cookie, form], body(csrf)).await;
        assert_eq!(refused.status, 403, "{}", refused.text());
    }
    for foreign in
        [("sec-fetch-site", "cross-site"), ("sec-fetch-site", "same-site"), ("origin", "http://evil.example")]
    {
        let sent =
            dashboard.api.send_raw("POST", &path, &[cookie, form, foreign], body(&carol.csrf_token)).await;
        assert_eq!(sent.status, 403, "{foreign:?}");
    }
    assert_eq!(dashboard.state(&task).await, "REVIEWING");
    let sent = dashboard.api.send_raw("POST", &path, &[cookie, form], body(&carol.csrf_token)).await;
    // After the redirect.
    assert_eq!(sent.status, 200, "{}", sent.text());
    assert_eq!(dashboard.state(&task).await, "REJECTED");
    let missing = dashboard.api.send_raw("POST", "/api/v1/tasks", &[cookie], json!({}).to_string()).await;
    assert_eq!(missing.status, 403, "the API still wants its header");
}

#[tokio::test]
async fn unchanged_page_is_not_sent_again_to_its_script() {
    let dashboard = Dashboard::start().await;
    let carol = dashboard.session("carol").await;
    let cookie = ("cookie", carol.cookie.as_str());
    for path in ["/inbox", "/tasks"] {
        let first = dashboard.api.send_raw("GET", path, &[cookie], String::new()).await;
        assert_eq!(first.status, 200);
        let known = ("if-none-match", first.header("etag"));
        let opened = dashboard.api.send_raw("GET", path, &[cookie, known], String::new()).await;
        assert_eq!(opened.status, 200, "a page that is opened says what time it is");
        let script = ("sec-fetch-dest", "empty");
        let again = dashboard.api.send_raw("GET", path, &[cookie, known, script], String::new()).await;
        assert_eq!((again.status, again.text().len()), (304, 0), "{path}");
        assert_eq!(again.header("content-security-policy"), first.header("content-security-policy"));
    }
}

#[tokio::test]
async fn demo_link_signs_in_once_the_key_is_right() {
    let dashboard = Dashboard::start().await;
    let wrong = dashboard.api.send_raw("GET", "/demo/0000", &[], String::new()).await;
    assert_eq!((wrong.status, wrong.header("set-cookie")), (404, ""));
    let printed = dashboard.server.process().log_lines_with("/demo/");
    let link = printed.iter().flat_map(|line| line.split_whitespace()).find(|word| word.contains("/demo/"));
    let page = dashboard.browser.window(WindowOptions::default()).await;
    page.goto(link.expect("the server prints it")).await;
    assert_eq!(
        (page.text("h1").await, page.text(".who").await),
        ("Inbox".to_owned(), "Carol Custodian".to_owned())
    );
    page.assert_clean().await;
}

/// A page that the browser keeps is not readable after a sign-out.
#[tokio::test]
async fn back_shows_nothing_after_a_sign_out() {
    let dashboard = Dashboard::start().await;
    let page = dashboard.open("carol", "/inbox").await;
    page.wait_for("#connection[data-state=live]").await;
    page.goto(&dashboard.url("/tasks")).await;
    page.click(".account summary").await;
    page.click_through(".account form button").await;
    assert_eq!(page.text("h1").await, "Sign in");
    for _ in 0..2 {
        page.back().await;
        page.wait_until("document.querySelector('h1')?.textContent === 'Sign in'").await;
    }
}

/// Times on a page are relative to when it was opened, not to when it was opened first.
#[tokio::test]
async fn page_that_is_opened_again_says_what_time_it_is() {
    let dashboard = Dashboard::start().await;
    let page = dashboard.open("carol", "/delegations").await;
    let now = "return document.body.dataset.now";
    let first = page.eval(now, &[]).await;
    page.goto(&dashboard.url("/policies")).await;
    page.goto(&dashboard.url("/delegations")).await;
    assert_ne!(page.eval(now, &[]).await, first);
}

#[tokio::test]
async fn page_after_the_sign_in_has_no_control_characters() {
    let dashboard = Dashboard::start().await;
    let carol = dashboard.session("carol").await;
    let cookie = ("cookie", carol.cookie.as_str());
    let form = ("content-type", "application/x-www-form-urlencoded");
    let opened = dashboard.api.send_raw("GET", "/sign-in?next=%2F%01", &[cookie], "").await;
    assert_eq!(opened.status, 200, "after the redirect to the inbox");
    let again = format!("csrf={}&password={PASSWORD}&next=%2F%01", carol.csrf_token);
    for (path, body) in
        [("/sign-in", format!("user_id=carol&password={PASSWORD}&next=%2F%01")), ("/reauthenticate", again)]
    {
        let sent = dashboard.api.send_raw("POST", path, &[cookie, form], body).await;
        assert_eq!(sent.status, 200, "{path}: {}", sent.text());
    }
}
