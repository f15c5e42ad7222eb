//! Pages of the audit log, the keyspace and the settings in real Chromium: what administrators and auditors do with them, what others
//! see, and secrets that are shown once.

use std::time::Duration;

use ade_testkit::browser::{Page, WindowOptions};
use ade_testkit::session::{SessionClient, sign_in};
use ade_testkit::wait::until;
use serde_json::json;

use super::appearance::check_all;
use super::{Dashboard, note, says};

const HOSTILE: &str = "<script>alert(1)</script>\"'\u{202e}x";
/// Only a hang reaches it, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Pages of administrators.
const PAGES: &[&str] = &[
    "/audit",
    "/audit?verify=yes",
    "/audit?task=none",
    "/audit?actor=nobody",
    "/keyspace?key=ade:lock:task:1",
    "/keyspace?key=none",
    "/keyspace/ade/lock.task",
    "/settings/users",
    "/settings/users/bob",
    "/settings/tokens",
    "/settings/webhooks",
    "/settings/webhooks/new?format=slack",
    "/settings/hooks/new",
    "/settings/configuration",
    "/settings/features",
    "/settings/jobs",
    "/settings/changes",
];

/// Presses the submit button of a form, which leaves the page.
async fn submit(page: &Page, form: &str) {
    page.click(&format!("{form} button[type=submit]")).await;
}

#[tokio::test]
async fn the_audit_log_is_searched_and_verified() {
    let dashboard = Dashboard::start().await;
    let erin = dashboard.session("erin").await;
    let verified = || async {
        let result = erin.get("/audit/verify").await.expect_status(200);
        if result["status"] == "valid" { Ok(()) } else { Err(result.to_string()) }
    };
    until("a checkpoint", TIMEOUT, verified).await.expect("signed");

    let page = dashboard.open("grace", "/audit").await;
    // Workers of the demo may act after the sign-in: its entry is among the newest ones.
    let newest = page.texts("#entries > li").await;
    assert!(newest.iter().any(|entry| entry.contains("grace") && entry.contains("signed in")), "{newest:?}");
    page.fill("[name=action]", "task.approve").await;
    page.click("form[action='/audit'] button[type=submit]").await;
    page.wait_until("location.search.includes('action=task.approve')").await;
    let found = page.texts("#entries .entry-line").await;
    assert!(!found.is_empty() && found.iter().all(|line| line.contains("approved the task")), "{found:?}");
    page.click("#entries summary").await;
    assert!(page.text("#entries details").await.contains("previous hash"));
    // Users and locks are objects; what is about a task is found by the task.
    page.goto(&dashboard.url("/audit?object=bob")).await;
    assert!(page.text("#entries").await.contains("bob"));
    // Pages follow each other without gaps.
    page.goto(&dashboard.url("/audit")).await;
    let last =
        page.eval("return [...document.querySelectorAll('#entries summary')].at(-1).textContent", &[]).await;
    page.click_through(".paging a").await;
    let next = page.text("#entries summary").await;
    let number = |text: &str| -> u64 {
        let digits: String =
            text.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
        digits.parse().expect("a number")
    };
    assert_eq!(number(last.as_str().expect("text")), number(&next) + 1);

    page.goto(&dashboard.url("/audit")).await;
    page.click("#verify").await;
    assert!(page.text("#verdict").await.contains("Valid:"), "{}", page.text("#verdict").await);
    page.assert_clean().await;

    // A task is shown by its title.
    let task = dashboard.propose(&note(&format!("Audited {HOSTILE}"))).await;
    page.goto(&dashboard.url(&format!("/audit?task={task}"))).await;
    let title = page.text(&format!("#entries a[href='/tasks/{task}']")).await;
    assert!(title.starts_with("Audited <script>") && title.contains("⟦U+202E⟧"), "{title}");

    // Others see their own entries, and read so.
    let ann = dashboard.open("ann", "/audit").await;
    assert!(ann.text("main").await.contains("You see your own entries"));
    assert!(ann.texts("#entries .entry-line b").await.iter().all(|who| who.contains("ann")));
    ann.goto(&dashboard.url("/audit?actor=erin")).await;
    assert!(ann.text("[role=alert]").await.contains("only administrators and auditors"));
}

#[tokio::test]
async fn the_audit_log_is_downloaded() {
    let dashboard = Dashboard::start().await;
    let grace = dashboard.session("grace").await;
    let headers = grace.headers(None);
    let get = async |path: &str| dashboard.api.send_raw("GET", path, &headers, "").await;
    let lines = get("/audit/export?format=ndjson&action=user.create").await;
    assert_eq!(lines.status, 200);
    assert!(lines.header("content-disposition").starts_with("attachment; filename=\"audit-"));
    let text = lines.text();
    assert!(text.lines().count() > 3 && text.lines().all(|line| line.contains("user.create")), "{text}");
    let csv = get("/audit/export?format=csv&object=bob").await.text();
    assert!(csv.starts_with("number,at,user_id") && csv.contains(",bob,"), "{csv}");
    let refused = get("/audit/export?format=xml").await;
    assert_eq!(refused.status, 422);
    assert!(refused.text().contains("must be ndjson or csv"), "{}", refused.text());
}

#[tokio::test]
async fn keys_are_found_and_explained() {
    let dashboard = Dashboard::start().await;
    let options = WindowOptions { has_javascript: false, ..WindowOptions::default() };
    let page = dashboard.window("ann", options).await;
    page.goto(&dashboard.url("/keyspace")).await;
    page.fill("[name=q]", "task lock queue").await;
    page.click_through("form:has([name=q]) button").await;
    let found = page.texts("#keys .row-link").await;
    assert!(found.contains(&"lock.task_queue".to_owned()) && found.len() < 10, "{found:?}");
    page.goto(&dashboard.url("/keyspace")).await;
    let first = page.texts("#keys .row-link").await;
    page.click_through("a[rel=next]").await;
    let second = page.texts("#keys .row-link").await;
    assert!(first.len() == 50 && !second.is_empty() && second.iter().all(|name| !first.contains(name)));
    page.click_through("#keys .row-link").await;
    assert!(page.text("main").await.contains("Example"));
    page.goto(&dashboard.url("/keyspace")).await;
    page.fill("[name=key]", "ade:lock:task:{task:550e8400}").await;
    page.click_through("form:has([name=key]) button").await;
    let explained = page.text("#explained").await;
    for part in ["lock.task", "a cluster", "550e8400"] {
        assert!(explained.contains(part), "{explained}");
    }
    page.fill("[name=key]", &"ade:lock:task:1".replace("task", "tsk")).await;
    page.click_through("form:has([name=key]) button").await;
    assert!(page.text("#explained [role=alert]").await.contains("nearest entry is lock.task"));
}

#[tokio::test]
async fn a_person_is_invited_joins_and_is_deactivated() {
    let dashboard = Dashboard::start().await;
    let page = dashboard.open("erin", "/settings").await;
    assert_eq!(page.text("h1").await, "Users", "the first tab");
    page.click("#invite summary").await;
    page.fill("#invite [name=name]", HOSTILE).await;
    page.fill("#invite [name=user_id]", "zoe").await;
    submit(&page, "#invite").await;
    let code = page.text("#invitation-code").await;
    let link = page.text("#invitation-link").await;
    assert!(link.ends_with(&format!("/join?code={}", code.replace(':', "%3A"))));
    page.goto(&dashboard.url("/settings/users/zoe")).await;
    assert!(!page.text("main").await.contains(&code), "shown once");
    assert!(page.text("main").await.contains("erin invited the person"));
    assert!(page.text("main").await.contains("not independent until"));
    let own = dashboard.browser.window(WindowOptions::default()).await;
    own.goto(&link).await;
    for field in ["password", "repeated"] {
        own.fill(&format!("[name={field}]"), "a password of my own").await;
    }
    own.click_through("form button").await;
    assert!(own.text("[data-notice]").await.contains("You have joined"));
    own.fill("[name=user_id]", "zoe").await;
    own.fill("[name=password]", "a password of my own").await;
    own.click_through("form button").await;
    assert_eq!(own.url().await, dashboard.url("/inbox"));
    let zoe = SessionClient::sign_in(&dashboard.api, "zoe", "a password of my own").await;
    // The open page sees it.
    says(&page, "✓ active").await;
    page.fill("[name=other_roles]", "dba").await;
    submit(&page, "form[action$='/update']").await;
    says(&page, "The change was saved.").await;
    let roles = zoe.get("/users/me").await.expect_status(200)["roles"].clone();
    assert_eq!(roles, json!(["author", "dba"]));
    assert!(!page.is_visible("form[action$='/deactivate'] button").await);
    page.click("details.step > summary").await;
    submit(&page, "form[action$='/deactivate']").await;
    says(&page, "○ inactive").await;
    assert_eq!(zoe.status().await, 401);
    let html = page.eval("return document.documentElement.innerHTML", &[]).await.to_string();
    assert!(!html.contains("<script>alert"), "{html}");
    page.assert_clean().await;
    // Others see people, and change nothing.
    let ann = dashboard.open("ann", "/settings/users/bob").await;
    assert!(ann.texts("main form").await.is_empty());
    ann.goto(&dashboard.url("/settings/users")).await;
    assert_eq!(ann.texts(".tabs a").await, ["Users", "Your tokens", "Configuration", "Feature flags"]);
    assert!(ann.texts("main form").await.is_empty());
    ann.goto(&dashboard.url("/settings/jobs")).await;
    assert!(ann.text("main").await.contains("Only administrators and auditors may list jobs"));
}

#[tokio::test]
async fn tokens_are_shown_once_and_revoked() {
    let dashboard = Dashboard::start().await;
    let page = dashboard.open("ann", "/settings/tokens").await;
    page.fill("[name=name]", HOSTILE).await;
    page.click("[value=propose]").await;
    page.click("[value=lock]").await;
    submit(&page, "form[action$='/create']").await;
    let secret = page.text("#new-token").await;
    let token = dashboard.api.with_token(&secret);
    let session = token.get("/sessions/current").await.expect_status(200);
    assert_eq!((&session["user"]["user_id"], &session["scopes"]), (&json!("ann"), &json!(["read"])));
    page.goto(&dashboard.url("/settings/tokens")).await;
    let list = page.text("main").await;
    assert!(!list.contains(&secret) && list.contains("⟦U+202E⟧"), "{list}");
    submit(&page, "form[action$='/revoke']").await;
    says(&page, "You have no tokens").await;
    assert_eq!(token.get("/sessions/current").await.status, 401);
    page.assert_clean().await;
}

#[tokio::test]
async fn names_of_people_stay_text_everywhere() {
    let dashboard = Dashboard::start().await;
    let erin = dashboard.session("erin").await;
    let user = json!({ "user_id": "mallory", "name": HOSTILE, "team": HOSTILE, "password": "temporary-1" });
    let _ = erin.post("/users", &user).await.expect_status(201);
    assert_eq!(sign_in(&dashboard.api, "mallory", "temporary-1").await.status, 201);
    let page = dashboard.open("erin", "/settings/users").await;
    for path in ["/settings/users", "/settings/users/mallory", "/audit?object=mallory"] {
        page.goto(&dashboard.url(path)).await;
        let html = page.eval("return document.getElementById('main').innerHTML", &[]).await;
        let html = html.as_str().expect("markup").to_owned();
        assert!(!html.contains("<script>alert") && html.contains("⟦U+202E⟧"), "{path}: {html}");
    }
    page.assert_clean().await;
}

#[tokio::test]
async fn pages_of_operators_are_accessible_and_fit() {
    let dashboard = Dashboard::start().await;
    check_all(&dashboard, "erin", PAGES).await;
}
