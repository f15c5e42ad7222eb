//! What stands in the place of the form: a decision that was made already, a form that is folded on a phone, and rows that are not
//! decided together.

use ade_testkit::browser::WindowOptions;
use ade_testkit::deployment::text_field;
use serde_json::{Value, json};

use super::{Dashboard, note, playground_change, risky_change, row_with, says};

/// Decides about a task by the API.
async fn decide(dashboard: &Dashboard, user: &str, task: &str, action: &str, reason: &str) {
    let session = dashboard.session(user).await;
    let own = session.get("/approvals?reviewer=me&status=PENDING&limit=200").await.expect_status(200);
    let items: Vec<Value> = own["items"].as_array().expect("a list").clone();
    let request = items.iter().find(|item| item["task_id"] == json!(task)).expect("is asked");
    let body =
        json!({ "digest": request["digest"], "scope_digest": request["scope_digest"], "reason": reason });
    let path = format!("/approvals/{}/{action}", text_field(request, "approval_id"));
    let _ = session.post(&path, &body).await.expect_status(200);
}

#[tokio::test]
async fn a_decision_that_was_made_is_shown_and_can_be_changed() {
    let dashboard = Dashboard::start().await;
    let task = dashboard.propose(&risky_change("Three more workers", "workers 7\n")).await;
    decide(&dashboard, "carol", &task, "approve", "fine with me").await;
    assert_eq!(dashboard.state(&task).await, "REVIEWING", "it needs two approvals");
    let page = dashboard.open("carol", &format!("/tasks/{task}")).await;
    let own = page.text("#own-decision").await;
    assert!(own.contains("You approved this") && own.contains("fine with me"), "{own}");
    let turn = page.text("#progress").await;
    assert!(turn.contains("Waits for") && !turn.contains("Your turn"), "{turn}");
    assert!(!page.is_visible("#decision").await, "nothing is asked");
    page.click(".redecide > summary").await;
    assert_eq!(page.texts("#decision [data-approve]").await.len(), 0, "it is approved already");
    page.fill("#reason", "I had overlooked the migration").await;
    page.click("[data-action=changes]").await;
    page.wait_until("document.querySelector('[data-notice]')?.textContent.includes('asked for changes')")
        .await;
    let own = page.text("#own-decision").await;
    assert!(own.contains("You requested changes") && own.contains("overlooked"), "{own}");
    let (turn, main) = (page.text("#progress").await, page.text("#main").await);
    assert!(turn.contains("Waits for Ann Author") && turn.contains("You requested changes"), "{turn}");
    assert!(!main.contains("more approval"), "no approval helps: {main}");
    page.assert_clean().await;
    page.assert_accessible().await;
}

#[tokio::test]
async fn a_phone_shows_the_fields_of_a_decision_when_they_are_needed() {
    let dashboard = Dashboard::start().await;
    let task = dashboard.propose(&risky_change("Three more workers", "workers 7\n")).await;
    let page = dashboard.window("carol", WindowOptions::phone()).await;
    page.goto(&dashboard.url("/inbox")).await;
    page.click("#queue a[data-open]").await;
    page.wait_until("location.search.includes('at=')").await;
    assert!(!page.is_visible("h1").await && !page.is_visible("#reason").await);
    assert!(page.is_visible("[data-approve]").await);
    page.goto(&dashboard.url(&format!("/tasks/{task}"))).await;
    page.wait_until("document.querySelector('[data-missing]').textContent.includes('reason')").await;
    assert!(!page.is_visible("#reason").await);
    page.click("[data-action=reject]").await;
    page.wait_until("document.activeElement.id === 'reason'").await;
    assert!(page.is_visible("#reason").await);
    assert_eq!(dashboard.state(&task).await, "REVIEWING", "nothing is sent without a reason");
    page.fill("#reason", "too many").await;
    page.click("[data-action=reject]").await;
    page.wait_until("document.querySelector('[data-notice]')?.textContent.includes('rejected')").await;
    assert_eq!(dashboard.state(&task).await, "REJECTED");
    page.assert_clean().await;

    let task = dashboard.propose(&playground_change("Eight workers", "workers 8\n")).await;
    let options = WindowOptions { has_javascript: false, ..WindowOptions::phone() };
    let page = dashboard.window("carol", options).await;
    page.goto(&dashboard.url(&format!("/tasks/{task}"))).await;
    assert!(page.is_visible("#reason").await, "nothing could show it");
}

#[tokio::test]
async fn what_is_decided_alone_cannot_be_selected() {
    let dashboard = Dashboard::start().await;
    for number in 0..2 {
        let _ = dashboard.propose(&note(&format!("Routine note {number}"))).await;
    }
    let page = dashboard.open("carol", "/inbox").await;
    let risky =
        "[...document.querySelectorAll('#queue [data-row]')].find((row) => row.textContent.includes('HIGH'))";
    let disabled =
        format!("return [{risky}.querySelector('input').disabled, {risky}.querySelector('input').title]");
    assert_eq!(page.eval(&disabled, &[]).await, json!([true, "HIGH is decided on its own"]));
    let all =
        "const all = document.querySelector('[data-select-all]'); return [all.checked, all.indeterminate]";
    page.eval(&format!("{}.querySelector('input').click()", row_with("Routine note 0")), &[]).await;
    assert_eq!(page.eval(all, &[]).await, json!([false, true]));
    page.click("[data-select-all]").await;
    assert_eq!(page.eval(all, &[]).await, json!([true, false]));
    let selected = page.text("[data-batch-count]").await;
    page.eval(&format!("{}.querySelector('input').click()", row_with("Routine note 0")), &[]).await;
    assert_eq!(page.eval(all, &[]).await, json!([false, true]), "after {selected}");
    page.assert_clean().await;
}

#[tokio::test]
async fn a_task_that_waits_for_several_is_one_row() {
    let dashboard = Dashboard::start().await;
    let _ = dashboard.propose(&note("Write down who is on call")).await;
    let page = dashboard.open("erin", "/inbox?view=others").await;
    says(&page, "Write down who is on call").await;
    let rows = page.texts("#queue [data-row]").await;
    let rows: Vec<&String> = rows.iter().filter(|row| row.contains("who is on call")).collect();
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert!(rows.iter().all(|row| row.contains("waits for") && row.contains(" more")), "{rows:?}");
}
