//! Forms that are sent by the script: what happens if there is no answer, another answer than expected, or an answer that leads to
//! another page; and forms that need the password again.

use std::time::Duration;

use ade_testkit::browser::{Page, WindowOptions};
use ade_testkit::deployment::text_field;
use serde_json::json;
use sqlx::{ConnectOptions, Connection};

use super::live::IS_LIVE;
use super::{Dashboard, PASSWORD, READY, note, playground_change, says};

/// In microseconds, as SQLite has it.
const NINE_HOURS: u64 = 9 * 3_600_000_000;

/// The next form reaches the server, and its response is lost.
const LOSE_NEXT_RESPONSE: &str = "const real = window.fetch;
    window.fetch = async (url, options) => {
        const response = await real(url, options);
        if (options?.method !== 'POST') return response;
        window.fetch = real;
        throw new TypeError('lost');
    }";

/// Makes the passwords of all sessions too old to decide.
async fn age_sessions(dashboard: &Dashboard) {
    let file = dashboard.server.data().join("ade.sqlite3");
    let options =
        sqlx::sqlite::SqliteConnectOptions::new().filename(file).busy_timeout(Duration::from_secs(5));
    let mut connection = options.connect().await.expect("opens");
    let sql = format!("UPDATE sessions SET password_at = password_at - {NINE_HOURS}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await.expect("done");
    connection.close().await.expect("closed");
}

async fn comment(dashboard: &Dashboard, task: &str, text: &str) {
    let path = format!("/tasks/{task}/comments");
    let _ = dashboard.ann().await.post(&path, &json!({ "text": text })).await.expect_status(201);
}

fn has_comment(text: &str) -> String {
    format!(
        "[...document.querySelectorAll('#comments .quote')].some((one) => one.textContent.includes({text:?}))"
    )
}

#[tokio::test]
async fn form_without_answer_is_kept_and_sent_again_once() {
    let dashboard = Dashboard::start().await;
    let task = dashboard.propose(&note("Say who is on call")).await;
    let page = dashboard.open("carol", &format!("/tasks/{task}")).await;
    page.wait_until(IS_LIVE).await;
    let form = "form[action$='/comments']";
    page.fill(&format!("{form} textarea"), "who is it on Sundays?").await;
    page.eval(LOSE_NEXT_RESPONSE, &[]).await;
    page.click(&format!("{form} button")).await;
    let alert = page.text(&format!("{form} [data-js-failed]")).await;
    assert!(alert.contains("may have been done") && alert.contains("kept"), "{alert}");
    // Events of others, and of the comment that did arrive, renew the page.
    comment(&dashboard, &task, "nobody").await;
    page.wait_until(&has_comment("nobody")).await;
    page.wait_until(&has_comment("who is it on Sundays?")).await;
    let typed = format!("return document.querySelector(\"{form} textarea\").value");
    assert_eq!(page.eval(&typed, &[]).await, json!("who is it on Sundays?"));
    let focused = page.eval("return document.activeElement.textContent", &[]).await;
    assert_eq!(focused, json!("Comment"), "the form was not replaced by another one");
    page.click(&format!("{form} button")).await;
    says(&page, "The comment was added.").await;
    assert!(!page.is_visible("[data-js-failed]").await);
    assert_eq!(page.eval(&typed, &[]).await, json!(""));
    let comments = dashboard.api.get(&format!("/tasks/{task}/comments")).await.expect_status(200);
    let texts: Vec<_> =
        comments["items"].as_array().expect("a list").iter().map(|one| &one["text"]).collect();
    assert_eq!(texts, [&json!("who is it on Sundays?"), &json!("nobody")], "it is added once");
}

/// Errors that ADE answers with reach the form, or the banner: they take no page's place while somebody types.
#[tokio::test]
async fn error_page_does_not_take_the_place_of_what_was_typed() {
    let dashboard = Dashboard::start().await;
    let task = dashboard.propose(&playground_change("Six workers", "workers 6\n")).await;
    let page = dashboard.open("carol", &format!("/tasks/{task}")).await;
    page.wait_until(IS_LIVE).await;
    page.fill("#reason", "half a sentence").await;
    let fail = "window.real = window.fetch; window.fetch = () => window.real('/nothing/here', { headers: { accept: 'text/html' } })";
    page.eval(fail, &[]).await;
    comment(&dashboard, &task, "look here").await;
    page.wait_until("document.querySelector('#banner').textContent.includes('could not be renewed')").await;
    page.click("[data-action=reject]").await;
    let alert = page.text("#decision [data-js-failed]").await;
    assert!(alert.contains("there is no page at this address"), "{alert}");
    page.eval("window.fetch = window.real", &[]).await;
    page.click("#banner button").await;
    page.wait_until("document.querySelector('#banner').hidden").await;
    page.wait_until(&has_comment("look here")).await;
    let state = "return [document.querySelector('h1').textContent, document.querySelector('#reason').value]";
    assert_eq!(page.eval(state, &[]).await, json!(["Six workers", "half a sentence"]));
    page.click("[data-action=reject]").await;
    says(&page, "The task was rejected.").await;
}

#[tokio::test]
async fn back_leads_to_the_form_on_a_page_that_follows_nothing() {
    let dashboard = Dashboard::start().await;
    let page = dashboard.open("alice", "/delegations/new").await;
    page.fill("[name=delegate_to]", "mia").await;
    page.click("main button[type=submit]").await;
    says(&page, "It was created.").await;
    // The list that took its place follows events, as if it had been opened.
    page.wait_until(IS_LIVE).await;
    page.back().await;
    page.wait_until("document.querySelector('h1').textContent === 'New delegation'").await;
    assert!(page.is_visible("[name=delegate_to]").await);
    assert!(!page.is_visible("#connection").await);
    // Nothing but the step itself makes this page fetch anything.
    page.eval("history.forward()", &[]).await;
    page.wait_until("document.querySelector('h1').textContent === 'Delegations'").await;
    page.assert_clean().await;
}

/// What is between the top of the window and the end of the first title, and whether the notice is in view.
const VIEW: &str = "const seen = (element) => { const { top, bottom } = element.getBoundingClientRect(); \
                    return top >= 0 && bottom <= innerHeight; }; \
                    return [scrollY, seen(document.querySelector('[data-notice]'))]";

async fn approve_at_the_end(page: &Page) {
    page.eval("document.querySelector('[data-seen-key]').scrollIntoView({ block: 'center' })", &[]).await;
    page.wait_until(READY).await;
    page.eval("window.scrollTo(0, document.body.scrollHeight)", &[]).await;
    page.wait_until("scrollY > 0").await;
    page.click("[data-approve]").await;
    says(page, "Your approval was recorded.").await;
}

#[tokio::test]
async fn next_request_is_read_from_its_beginning() {
    let dashboard = Dashboard::start().await;
    let long: String = (0..60).map(|number| format!("worker {number}\n")).collect();
    let task = dashboard.propose(&playground_change("Name the workers", &long)).await;
    let page = dashboard.open("carol", "/inbox").await;
    let row = "[...document.querySelectorAll('#queue [data-row]')].find((row) => row.textContent.includes('Name the workers'))";
    let id = page.eval(&format!("return {row}.dataset.row"), &[]).await;
    let id = id.as_str().expect("an id").to_owned();
    let options = WindowOptions::phone();
    let phone = dashboard.window("carol", options).await;
    phone.goto(&dashboard.url(&format!("/inbox?at={id}"))).await;

    page.eval("window.scrollTo(0, document.body.scrollHeight)", &[]).await;
    page.click(&format!("#queue [data-row='{id}'] a")).await;
    page.wait_until("document.querySelector('.review h2.title').textContent.includes('Name the workers')")
        .await;
    page.wait_until("scrollY === 0").await;
    let body = json!({ "text": "the phone shows the same" });
    let _ = dashboard.ann().await.post(&format!("/tasks/{task}/comments"), &body).await.expect_status(201);
    approve_at_the_end(&page).await;
    assert_eq!(page.eval(VIEW, &[]).await, json!([0, true]));
    // A notice stays in view where the page keeps its place.
    page.eval("window.scrollTo(0, document.body.scrollHeight)", &[]).await;
    page.wait_until("scrollY > 0").await;
    assert_eq!(page.eval(VIEW, &[]).await[1], json!(true));
    page.assert_clean().await;

    let second = dashboard.propose(&playground_change("Name the workers again", &long)).await;
    phone.goto(&dashboard.url(&format!("/tasks/{second}/preview"))).await;
    approve_at_the_end(&phone).await;
    assert_eq!(phone.eval(VIEW, &[]).await, json!([0, true]));
    phone.assert_clean().await;
}

/// A preview is made again after a change: meanwhile there is no form. The reviewer still reads that it is another version.
#[tokio::test]
async fn form_that_returns_with_another_version_says_so() {
    let dashboard = Dashboard::start().await;
    let task = dashboard.propose(&playground_change("Three workers", "workers 3\n")).await;
    let page = dashboard.open("carol", &format!("/tasks/{task}")).await;
    page.wait_until(IS_LIVE).await;
    page.wait_until(READY).await;
    let without_form = "window.real = window.fetch; window.fetch = async (url, options) => {
            const response = await window.real(url, options);
            const text = (await response.text()).replaceAll('data-decision', 'data-none');
            const { status, headers } = response;
            return Object.defineProperty(new Response(text, { status, headers }), 'url', { value: response.url });
        }";
    page.eval(without_form, &[]).await;
    comment(&dashboard, &task, "wait").await;
    page.wait_until(&has_comment("wait")).await;
    page.wait_until("document.querySelector('form[data-decision]') === null").await;
    let changed = playground_change("Three workers", "workers 666\n");
    let changed = json!({ "parameters": changed["parameters"] });
    let _ = dashboard.ann().await.patch(&format!("/tasks/{task}"), &changed).await.expect_status(200);
    page.wait_until("document.querySelector('table.diff')?.textContent.includes('workers 666')").await;
    page.eval("window.fetch = window.real", &[]).await;
    comment(&dashboard, &task, "go on").await;
    page.wait_until(
        "document.querySelector('[data-decision] [data-missing]')?.textContent.includes('has changed')",
    )
    .await;
    page.assert_clean().await;
}

#[tokio::test]
async fn form_that_needs_the_password_leads_to_where_it_is_given() {
    let dashboard = Dashboard::start().await;
    let page = dashboard.open("alice", "/delegations/new").await;
    age_sessions(&dashboard).await;
    page.fill("[name=delegate_to]", "mia").await;
    page.click("main button[type=submit]").await;
    let alert = page.text("[data-alert]").await;
    assert!(alert.contains("You gave your password too long ago for this."), "{alert}");
    let link = page.eval("return document.querySelector('[data-alert] a').href", &[]).await;
    assert_eq!(link, json!(dashboard.url("/reauthenticate?next=%2Fdelegations%2Fnew")));
    page.open_tab(link.as_str().expect("a link")).await;
    page.fill("[name=password]", PASSWORD).await;
    page.click_through("main button[type=submit]").await;
    assert_eq!(page.text("h1").await, "New delegation");
    page.switch_to_tab(0).await;
    let typed = page.eval("return document.querySelector('[name=delegate_to]').value", &[]).await;
    assert_eq!(typed, json!("mia"));
    page.click("main button[type=submit]").await;
    says(&page, "It was created.").await;
}

#[tokio::test]
async fn reviewer_of_yesterday_gives_the_password_and_decides() {
    let dashboard = Dashboard::start().await;
    let page = dashboard.open("carol", "/inbox").await;
    let carol = dashboard.session("carol").await;
    let requests = carol.get("/approvals?reviewer=me&status=PENDING").await.expect_status(200);
    let request = text_field(&requests["items"][0], "approval_id");
    age_sessions(&dashboard).await;
    // A form that was opened before.
    let headers = [("cookie", carol.cookie.as_str()), ("content-type", "application/x-www-form-urlencoded")];
    let path = format!("/approvals/{request}/delegate");
    let task = text_field(&requests["items"][0], "task_id");
    let body = format!("csrf={}&task_id={task}&to=alice", carol.csrf_token);
    let refused = dashboard.api.send_raw("POST", &path, &headers, body).await;
    assert_eq!(refused.status, 403, "{}", refused.text());
    assert!(refused.text().contains("href=\"/reauthenticate?"), "{}", refused.text());
    page.reload().await;
    says(&page, "You gave your password too long ago to decide.").await;
    page.click_through(".review .callout a[href^='/reauthenticate']").await;
    page.fill("[name=password]", PASSWORD).await;
    page.click_through("main button[type=submit]").await;
    page.fill("#reason", "not during the sale").await;
    page.click("[data-action=reject]").await;
    says(&page, "The task was rejected.").await;
}

#[tokio::test]
async fn refused_command_keeps_its_fields_and_no_others() {
    let dashboard = Dashboard::start().await;
    let task = dashboard.propose(&note("Say who is on call")).await;
    let erin = dashboard.session("erin").await;
    let headers = [("cookie", erin.cookie.as_str()), ("content-type", "application/x-www-form-urlencoded")];
    let send = async |action: &str, fields: &str| {
        let body = format!("csrf=wrong&{fields}");
        let sent = dashboard.api.send_raw("POST", &format!("/tasks/{task}/{action}"), &headers, body).await;
        assert_eq!(sent.status, 403, "{}", sent.text());
        sent.text()
    };
    let page = send("override", "reason=the+shop+is+down&incident_ticket=INC-7").await;
    assert_eq!(page.matches("the shop is down").count(), 1, "{page}");
    assert!(page.contains("value=\"INC-7\""), "{page}");
    assert!(page.contains("id=\"command-override\" open"), "{page}");
    let page = send("comments", "text=half+a+thought").await;
    assert!(page.contains(">half a thought</textarea>"), "{page}");
}

/// Whatever a form says, the answer says why it was refused.
#[tokio::test]
async fn decision_of_no_task_says_why_it_was_refused() {
    let dashboard = Dashboard::start().await;
    let carol = dashboard.session("carol").await;
    let requests = carol.get("/approvals?reviewer=me&status=PENDING").await.expect_status(200);
    let request = requests["items"][0]["approval_id"].as_str().expect("a request").to_owned();
    let headers = [("cookie", carol.cookie.as_str()), ("content-type", "application/x-www-form-urlencoded")];
    for task in ["", "&task_id=none"] {
        let body = format!("csrf={}{task}", carol.csrf_token);
        let path = format!("/approvals/{request}/reject");
        let refused = dashboard.api.send_raw("POST", &path, &headers, body).await;
        assert_eq!(refused.status, 422, "{}", refused.text());
        assert!(refused.text().contains("reason"), "{}", refused.text());
    }
}
