//! Reviews: with keys alone, without scripts, with a reason; what each level of risk asks for; and two reviewers at once.

use ade_testkit::browser::{WindowOptions, keys};
use serde_json::json;

use super::{Dashboard, READY, note, playground_change, risky_change, row_with};

#[tokio::test]
async fn approves_with_keys_alone() {
    let dashboard = Dashboard::start().await;
    let task = dashboard.propose(&note("Write down who is on call")).await;
    let page = dashboard.open("carol", "/inbox").await;
    let is_open = format!("{}.getAttribute('aria-current') === 'true'", row_with("who is on call"));
    for _ in 0..8 {
        if page.eval(&format!("return {is_open}"), &[]).await == json!(true) {
            break;
        }
        let open =
            page.eval("return document.querySelector('#queue [aria-current=true]').dataset.row", &[]).await;
        page.type_keys("j").await;
        let moved = format!("document.querySelector('#queue [aria-current=true]').dataset.row !== {open}");
        page.wait_until(&moved).await;
    }
    page.wait_until(&is_open).await;
    page.wait_until(READY).await;
    page.type_keys("a").await;
    assert_eq!(dashboard.state(&task).await, "REVIEWING", "no key decides by itself");
    page.type_keys(keys::ENTER).await;
    page.wait_until("document.querySelector('[data-notice]')?.textContent.includes('approval was recorded')")
        .await;
    assert_ne!(dashboard.state(&task).await, "REVIEWING");
    page.assert_clean().await;
}

#[tokio::test]
async fn rejects_with_a_reason_only() {
    let dashboard = Dashboard::start().await;
    let page = dashboard.open("carol", "/inbox").await;
    let task = page.eval("return document.querySelector('[name=task_id]').value", &[]).await;
    let task = task.as_str().expect("an id").to_owned();
    page.type_keys("r").await;
    page.type_keys("jkarx: not during the sale").await;
    let reason = page.eval("return document.querySelector('#reason').value", &[]).await;
    assert_eq!(reason, json!("jkarx: not during the sale"), "letters in a field are text");
    page.chord(&[keys::CONTROL, keys::ENTER]).await;
    page.wait_until("document.querySelector('[data-notice]')?.textContent.includes('rejected')").await;
    assert_eq!(dashboard.state(&task).await, "REJECTED");
    page.assert_clean().await;
}

#[tokio::test]
async fn approves_without_scripts() {
    let dashboard = Dashboard::start().await;
    let task = dashboard.propose(&playground_change("Three workers", "workers 3\n")).await;
    let options = WindowOptions { has_javascript: false, ..WindowOptions::default() };
    let page = dashboard.window("carol", options).await;
    page.goto(&dashboard.url(&format!("/tasks/{task}"))).await;
    page.click_through("[data-approve]").await;
    assert!(page.text(".notice").await.contains("approval was recorded"));
    assert_ne!(dashboard.state(&task).await, "REVIEWING");
}

#[tokio::test]
async fn risky_change_must_be_viewed_and_explained() {
    let dashboard = Dashboard::start().await;
    let page = dashboard.open("carol", "/inbox").await;
    page.wait_until("document.querySelector('[data-missing]').textContent.includes('viewed')").await;
    page.click("[data-approve]").await;
    page.click("input[data-viewed]").await;
    page.wait_until("!document.querySelector('[data-missing]').textContent.includes('viewed')").await;
    page.fill("#reason", "the index is built concurrently").await;
    page.wait_until(READY).await;
    page.click("[data-approve]").await;
    page.wait_until("document.querySelector('[data-notice]')?.textContent.includes('approval was recorded')")
        .await;
    page.assert_clean().await;
}

/// What a reviewer did with a version does not count for the next one: changes must be viewed again, and a click on its way approves
/// nothing.
#[tokio::test]
async fn changed_task_must_be_viewed_again() {
    let dashboard = Dashboard::start().await;
    let task = dashboard.propose(&risky_change("Two more workers", "workers 3\n")).await;
    let page = dashboard.open("carol", &format!("/tasks/{task}")).await;
    page.click("input[data-viewed]").await;
    page.fill("#reason", "I read it").await;
    page.wait_until(READY).await;
    let changed = risky_change("Two more workers", "workers 666\n");
    let changed = json!({ "parameters": changed["parameters"] });
    let _ = dashboard.ann().await.patch(&format!("/tasks/{task}"), &changed).await.expect_status(200);
    page.wait_until("document.querySelector('table.diff')?.textContent.includes('workers 666')").await;
    let state = "return [document.querySelector('input[data-viewed]').checked, \
                 document.querySelector('details.change').open, document.querySelector('#reason').value]";
    assert_eq!(page.eval(state, &[]).await, json!([false, true, "I read it"]));
    page.wait_until("/has changed.*viewed/.test(document.querySelector('[data-missing]').textContent)").await;
    page.click("input[data-viewed]").await;
    page.wait_until(READY).await;
    page.click("[data-approve]").await;
    page.wait_until("document.querySelector('[data-missing]').textContent === ''").await;
    assert_eq!(dashboard.state(&task).await, "REVIEWING", "the first click only says that it was read");
    page.wait_until(READY).await;
    page.click("[data-approve]").await;
    page.wait_until("document.querySelector('[data-notice]')?.textContent.includes('approval was recorded')")
        .await;
    page.assert_clean().await;
}

/// A riskier request becomes the first of the list. The one that is being read stays open.
#[tokio::test]
async fn open_request_stays_open_when_a_riskier_one_arrives() {
    let dashboard = Dashboard::start().await;
    let waiting = dashboard.api.get("/tasks?state=REVIEWING&limit=200").await.expect_status(200);
    for task in waiting["items"].as_array().expect("a list") {
        let cancel = format!("/tasks/{}/cancel", task["task_id"].as_str().expect("an id"));
        let _ = dashboard.api.post(&cancel, &json!({ "reason": "another time" })).await.expect_status(200);
    }
    let _ = dashboard.propose(&note("Write down who is on call")).await;
    let page = dashboard.open("carol", "/inbox").await;
    page.wait_until("document.querySelector('#connection')?.dataset.state === 'live'").await;
    let title = "return document.querySelector('.review h2.title').textContent";
    let open = page.eval(title, &[]).await;
    let _ = dashboard.propose(&risky_change("Drop everything", "workers 0\n")).await;
    let first = "document.querySelector('#queue [data-row]').textContent.includes('Drop everything')";
    page.wait_until(first).await;
    assert_eq!(page.eval(title, &[]).await, open);
    page.reload().await;
    assert_eq!(page.eval(title, &[]).await, open, "the address names what is open");
    page.assert_clean().await;
}

/// A link of somebody else cannot say that something was done.
#[tokio::test]
async fn notice_of_a_link_is_not_shown() {
    let dashboard = Dashboard::start().await;
    let page = dashboard.open("carol", "/inbox?notice=revoked").await;
    assert!(!page.text("#main").await.contains("revoked"));
    page.goto(&dashboard.url("/inbox?notice=revoked-0000000000000000")).await;
    assert!(!page.text("#main").await.contains("revoked"));
}

/// The server enforces what the page asks for, and what was typed stays.
#[tokio::test]
async fn refusal_of_the_server_keeps_what_was_typed() {
    let dashboard = Dashboard::start().await;
    let page = dashboard.open("carol", "/inbox").await;
    page.fill("#reason", "a reason that took long to write").await;
    // In one step: a refreshed page would bring the digest back.
    let tampered = "document.querySelector('[name=digest]').value = '0'.repeat(64); \
                    document.querySelector('[data-action=reject]').click()";
    page.eval(tampered, &[]).await;
    page.wait_for("[data-alert]").await;
    let reason = page.eval("return document.querySelector('#reason').value", &[]).await;
    assert_eq!(reason, json!("a reason that took long to write"));
}

#[tokio::test]
async fn later_of_two_reviewers_reads_what_happened() {
    let dashboard = Dashboard::start().await;
    let task = dashboard.propose(&playground_change("Five workers", "workers 5\n")).await;
    let page = dashboard.open("carol", &format!("/tasks/{task}")).await;
    let turn = page.text("#progress").await;
    assert!(turn.contains("Your turn") && turn.contains("1 more approval is needed"), "{turn}");
    page.fill("#reason", "too many").await;
    // Unlike carol's page, which would show it at once, she does not see it yet.
    page.set_offline(true).await;
    let alice = dashboard.session("alice").await;
    let own = alice.get("/approvals?reviewer=me&status=PENDING").await.expect_status(200);
    let items = own["items"].as_array().expect("a list").clone();
    let request = items.iter().find(|item| item["task_id"] == json!(task)).expect("alice is asked");
    let approval = request["approval_id"].as_str().expect("an id");
    let body = json!({ "digest": request["digest"], "scope_digest": request["scope_digest"] });
    let _ = alice.post(&format!("/approvals/{approval}/approve"), &body).await.expect_status(200);
    page.click("[data-action=reject]").await;
    page.wait_until("document.querySelector('[data-js-failed]')?.textContent.includes('kept')").await;
    let reason = page.eval("return document.querySelector('#reason').value", &[]).await;
    assert_eq!(reason, json!("too many"));
    page.set_offline(false).await;
    page.wait_until("!document.querySelector('form[data-decision]')").await;
    let votes = page.text("#main").await;
    assert!(votes.contains("Alice Architect") && votes.contains("approved"), "{votes}");
}

#[tokio::test]
async fn script_in_every_field_stays_text() {
    let dashboard = Dashboard::start().await;
    let evil = "<script>window.hit = 1</script><img src=x onerror=\"window.hit=1\">\u{202e}\"'";
    let mut task =
        playground_change(&format!("First line {evil}\nMore {evil}"), &format!("workers {evil}\n"));
    task["tags"] = json!([evil]);
    task["ticket_ref"] = json!(evil);
    task["team"] = json!("<b>team</b>");
    task["resources"] = json!([{ "type": "service", "id": evil }]);
    let id = dashboard.propose(&task).await;
    let ann = dashboard.ann().await;
    let _ = ann.post(&format!("/tasks/{id}/comments"), &json!({ "text": evil })).await.expect_status(201);
    let page = dashboard.open("carol", &format!("/tasks/{id}")).await;
    let paths = ["/tasks", "/inbox", &format!("/tasks/{id}/preview"), &format!("/tasks/{id}")];
    for path in paths {
        page.goto(&dashboard.url(path)).await;
        page.wait_until("document.querySelector('#connection')?.dataset.state === 'live'").await;
        assert_eq!(page.eval("return window.hit ?? null", &[]).await, json!(null), "{path}");
        assert_eq!(
            page.eval("return document.querySelectorAll('main img, main script').length", &[]).await,
            json!(0)
        );
    }
    let shown = page.text("#main").await;
    assert!(shown.contains("<script>window.hit = 1</script>") && shown.contains("⟦U+202E⟧"), "{shown}");
    page.assert_clean().await;
}

/// What is typed after `a` is what the approval lacks, and never other keys.
#[tokio::test]
async fn a_risky_task_is_approved_with_keys_alone() {
    let dashboard = Dashboard::start().await;
    let page = dashboard.open("carol", "/inbox").await;
    let high = "[...document.querySelectorAll('#queue [data-row]')].find((row) => row.textContent.includes('refunded_at'))";
    page.eval(&format!("{high}.querySelector('a').click()"), &[]).await;
    page.wait_until(&format!("{high}.getAttribute('aria-current') === 'true'")).await;
    page.wait_until("document.querySelector('[data-decision]')?.dataset.level === 'HIGH'").await;
    let task = page.eval("return document.querySelector('[name=task_id]').value", &[]).await;
    let task = task.as_str().expect("an id").to_owned();
    let lacks_viewing = "document.querySelector('input[data-viewed]:not(:checked)') !== null";
    while page.eval(&format!("return {lacks_viewing}"), &[]).await == json!(true) {
        page.type_keys("a").await;
        page.wait_until("document.activeElement.matches('input[data-viewed]')").await;
        page.type_keys("v").await;
    }
    page.wait_until("document.querySelector('[data-missing]').textContent.includes('give a reason')").await;
    page.type_keys("areviewed the xcjd of it").await;
    let reason = page.eval("return document.querySelector('#reason').value", &[]).await;
    assert_eq!(reason, json!("reviewed the xcjd of it"));
    assert!(page.text("[data-intent]").await.contains("approves"));
    page.wait_until(READY).await;
    page.chord(&[keys::CONTROL, keys::ENTER]).await;
    page.wait_until("document.querySelector('[data-notice]')?.textContent.includes('approval was recorded')")
        .await;
    let approvals = dashboard.api.get(&format!("/tasks/{task}/approvals")).await.expect_status(200);
    let own = approvals["items"].as_array().expect("items").iter().find(|one| one["reviewer_id"] == "carol");
    assert_eq!(own.expect("carol's")["status"], "APPROVED");
    page.assert_clean().await;
}
