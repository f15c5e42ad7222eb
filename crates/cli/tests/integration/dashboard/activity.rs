//! Activity in real Chromium: events appear by themselves, older ones are a page away, and what happened is in the charts.

use serde_json::json;

use super::{Dashboard, note};

#[tokio::test]
async fn events_appear_by_themselves_and_move_nothing_under_the_pointer() {
    let dashboard = Dashboard::start().await;
    let page = dashboard.open("erin", "/activity?topics=task").await;
    page.wait_for("#connection[data-state=live]").await;
    let id = dashboard.propose(&note("<img src=x onerror=alert(1)>\u{202e}")).await;
    page.wait_until(&format!("document.querySelector('#events a[href=\"/tasks/{id}\"]')")).await;
    let text = page.text("#events").await;
    assert!(text.contains("<img src=x onerror=alert(1)>⟦U+202E⟧"), "{text}");
    assert!(!text.contains("signed in"), "only what the filter asks for");
    let first = page.text("#events li").await;
    page.hover("#events li").await;
    let _ = dashboard.propose(&note("another one")).await;
    page.wait_for("[data-js-waiting]").await;
    assert_eq!(page.text("#events li").await, first);
    page.click("[data-js-waiting]").await;
    page.wait_until("document.getElementById('events').textContent.includes('another one')").await;
    page.assert_clean().await;
}

#[tokio::test]
async fn older_events_are_on_further_pages() {
    let dashboard = Dashboard::start().await;
    let page = dashboard.open("erin", "/activity").await;
    let last = "return document.querySelector('#events li:last-child').dataset.row";
    let newest = page.eval(last, &[]).await;
    page.click(".paging a").await;
    page.wait_until("document.getElementById('main').textContent.includes('Older events.')").await;
    let older: u64 = page.eval(last, &[]).await.as_str().expect("a number").parse().expect("a number");
    assert!(older < newest.as_str().expect("a number").parse().expect("a number"));
    page.goto(&dashboard.url("/activity?task=nothing")).await;
    page.wait_until("document.getElementById('main').textContent.includes('No event matches')").await;
    page.assert_clean().await;
}

#[tokio::test]
async fn charts_show_what_ended_today() {
    let dashboard = Dashboard::start().await;
    // Before the first decision, carol has none.
    let page = dashboard.open("carol", "/activity?view=charts").await;
    assert!(page.text("#own").await.contains("you have decided nothing yet"));
    let stats = dashboard.api.get("/stats/overview").await.expect_status(200);
    // Of the demo: one task was rejected, and one that mia approved has failed or is about to.
    assert_eq!(stats["today"]["rejected"], json!(1));
    page.wait_until("document.querySelector('.chart title').textContent.startsWith('today')").await;
    let rows = page.eval("return document.querySelectorAll('details.change tbody tr').length", &[]).await;
    assert_eq!(rows, json!(stats["days"].as_array().expect("days").len() + 1));
    page.assert_clean().await;
}
