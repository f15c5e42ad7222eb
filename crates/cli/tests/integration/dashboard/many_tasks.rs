//! The dashboard with ten thousand tasks in a long run, fewer otherwise: pages stay small, lists go on over pages, and reviewers decide as
//! they do with a few.

use ade_testkit::api::ApiClient;
use ade_testkit::browser::keys;
use ade_testkit::deployment::text_field;
use ade_testkit::effort;
use futures_util::future::join_all;
use serde_json::json;
use tokio::time::Instant;

use super::{Dashboard, READY};

/// Largest size of a page, before compression.
const MAX_PAGE_BYTES: usize = 150 * 1024;
/// Requests of the author at the same time.
const AUTHORS: u64 = 4;
const PAGES: [&str; 14] = [
    "/inbox",
    "/inbox?view=others",
    "/inbox?view=decided",
    "/tasks",
    "/tasks?state=REVIEWING&tag=t3",
    "/locks",
    "/agents",
    "/policies",
    "/delegations",
    "/activity",
    "/activity?view=charts",
    "/audit",
    "/keyspace",
    "/settings/users",
];

/// Tasks without effects, by several clients.
async fn propose_many(ann: &ApiClient, total: u64) {
    let propose = async |author: u64| {
        for number in (author..total).step_by(usize::try_from(AUTHORS).expect("fits")) {
            let task = json!({
                "type": "note", "description": format!("Bulk note {number:05}"), "executor": "noop",
                "tags": [format!("t{}", number % 7)], "resources": [{ "type": "docs", "id": format!("page-{}", number % 400) }],
            });
            let draft = ann.post("/tasks", &task).await.expect_status(201);
            let submit = format!("/tasks/{}/submit", text_field(&draft, "task_id"));
            let _ = ann.post(&submit, &json!({})).await.expect_status(202);
        }
    };
    join_all((0..AUTHORS).map(propose)).await;
}

#[tokio::test]
async fn many_tasks_are_listed_filtered_and_decided() {
    let dashboard = Dashboard::start().await;
    let token = json!({ "name": "bulk", "scopes": ["read", "propose"] });
    let token = dashboard.api.post("/users/ann/tokens", &token).await.expect_status(201);
    let total = effort::rounds(160, 10_000);
    propose_many(&dashboard.api.with_token(&text_field(&token, "token")), total).await;

    let carol = dashboard.session("carol").await;
    let erin = dashboard.session("erin").await;
    for (session, path) in PAGES.iter().flat_map(|path| [(&carol, path), (&erin, path)]) {
        let started = Instant::now();
        let page = dashboard.api.send_raw("GET", path, &[("cookie", session.cookie.as_str())], "").await;
        let (took, size) = (started.elapsed(), page.text().len());
        println!("{path}: {size} bytes in {took:?} with {total} tasks");
        assert_eq!(page.status, 200, "{path}");
        assert!(size < MAX_PAGE_BYTES, "{path} has {size} bytes");
    }

    let page = dashboard.open("carol", "/tasks?type=note&tag=t3").await;
    assert_eq!(page.texts("#tasks tr").await.len(), if total > 350 { 50 } else { 23 });
    page.goto(&dashboard.url("/tasks?type=note")).await;
    let first = page.texts("#tasks .row-link").await;
    assert_eq!(first.len(), 50);
    page.click_through(".paging a").await;
    let second = page.texts("#tasks .row-link").await;
    assert!(second.len() == 50 && second.iter().all(|title| !first.contains(title)), "{second:?}");
    page.click_through(".paging a").await;
    assert_eq!(page.texts("#tasks .row-link").await, first, "back at the first page");
    page.goto(&dashboard.url("/tasks?type=note&risk=LOW")).await;
    assert_eq!(page.texts("#tasks .level").await.len(), 50);
    page.goto(&dashboard.url("/tasks?type=note&risk=HIGH")).await;
    assert!(page.text("main").await.contains("No task matches"));

    // With keys alone, on the second page of the inbox.
    page.goto(&dashboard.url("/inbox")).await;
    page.click_through(".queue-foot a").await;
    let open = page.eval("return document.querySelector('[name=task_id]').value", &[]).await;
    let open = open.as_str().expect("an id").to_owned();
    page.wait_until(READY).await;
    page.type_keys("a").await;
    page.type_keys(keys::ENTER).await;
    page.wait_until("document.querySelector('[data-notice]')?.textContent.includes('approval was recorded')")
        .await;
    assert_ne!(dashboard.state(&open).await, "REVIEWING");

    page.goto(&dashboard.url("/inbox")).await;
    let chosen = "const rows = [...document.querySelectorAll('#queue [data-row]')]; \
                  const routine = rows.filter((row) => row.textContent.includes('Bulk note')).slice(0, 20); \
                  for (const row of routine) row.querySelector('input').click(); \
                  return routine.map((row) => row.textContent.match(/Bulk note \\d+/)[0])";
    let chosen = page.eval(chosen, &[]).await;
    assert_eq!(chosen.as_array().expect("titles").len(), 20);
    page.click_through("[data-batch-bar] button").await;
    page.wait_until(READY).await;
    page.click("#batch .approve").await;
    page.wait_until("document.querySelector('[data-notice]')?.textContent.includes('All selected')").await;
    page.assert_clean().await;
}
