//! Pages that change while they are open: what others do appears within a second, nothing moves under pointer or focus, and a server
//! that was restarted is followed again.

use std::time::Duration;

use ade_testkit::browser::keys;
use serde_json::json;
use tokio::time::Instant;

use super::{Dashboard, note, playground_change, row_with};

const IS_LIVE: &str = "document.querySelector('#connection')?.dataset.state === 'live'";

#[tokio::test]
async fn second_browser_sees_changes_without_reloading() {
    let dashboard = Dashboard::start().await;
    let inbox = dashboard.open("carol", "/inbox").await;
    let tasks = dashboard.open("ann", "/tasks").await;
    inbox.wait_until(IS_LIVE).await;
    tasks.wait_until(IS_LIVE).await;
    inbox.eval("window.loadedOnce = true", &[]).await;
    let started = Instant::now();
    let _ = dashboard.propose(&note("Rename the on-call channel")).await;
    let row = row_with("Rename the on-call channel");
    inbox.wait_until(&format!("{row} !== undefined")).await;
    tasks
        .wait_until("document.querySelector('#tasks').textContent.includes('Rename the on-call channel')")
        .await;
    println!("a new task was in both pages after {:?}", started.elapsed());
    assert!(started.elapsed() < Duration::from_secs(10), "far more than a second, also on a busy machine");
    assert_eq!(inbox.eval("return window.loadedOnce", &[]).await, json!(true), "the page was not reloaded");
    inbox.assert_clean().await;
}

#[tokio::test]
async fn nothing_moves_under_the_pointer() {
    let dashboard = Dashboard::start().await;
    let page = dashboard.open("carol", "/inbox").await;
    page.wait_until(IS_LIVE).await;
    page.hover("#queue [data-row]:last-child a").await;
    let before = page
        .eval("return [...document.querySelectorAll('#queue [data-row]')].map((row) => row.dataset.row)", &[])
        .await;
    let _ = dashboard.propose(&note("Order new badges")).await;
    page.wait_until("document.querySelector('[data-js-waiting]')?.textContent.includes('1 new')").await;
    let held = page
        .eval("return [...document.querySelectorAll('#queue [data-row]')].map((row) => row.dataset.row)", &[])
        .await;
    assert_eq!(held, before);
    page.type_keys(".").await;
    page.wait_until(&format!("{} !== undefined", row_with("Order new badges"))).await;
    page.wait_until("document.querySelector('[data-js-waiting]') === null").await;
    page.assert_clean().await;
}

#[tokio::test]
async fn typed_text_survives_updates() {
    let dashboard = Dashboard::start().await;
    let task = dashboard.propose(&playground_change("Six workers", "workers 6\n")).await;
    let page = dashboard.open("carol", &format!("/tasks/{task}")).await;
    page.wait_until(IS_LIVE).await;
    page.fill("#reason", "half a sen").await;
    let ann = dashboard.ann().await;
    for number in 0..5 {
        let comment = json!({ "text": format!("comment {number}") });
        let _ = ann.post(&format!("/tasks/{task}/comments"), &comment).await.expect_status(201);
        page.wait_until(&format!(
            "document.querySelector('#comments').textContent.includes('comment {number}')"
        ))
        .await;
    }
    page.type_keys("tence").await;
    let state =
        page.eval("return [document.querySelector('#reason').value, document.activeElement.id]", &[]).await;
    assert_eq!(state, json!(["half a sentence", "reason"]), "text, focus and place of the cursor stay");
}

#[tokio::test]
async fn restarted_server_is_followed_again() {
    let dashboard = Dashboard::start().await;
    let page = dashboard.open("carol", "/inbox").await;
    page.wait_until(IS_LIVE).await;
    page.fill("#reason", "typed before the crash").await;
    dashboard.server.kill().expect("killed");
    page.wait_until("!document.querySelector('#banner').hidden").await;
    assert!(page.text("#banner").await.contains("cannot be reached"));
    dashboard.server.start_again().expect("starts");
    page.wait_until(IS_LIVE).await;
    page.wait_until("document.querySelector('#banner').hidden").await;
    let _ = dashboard.propose(&note("After the restart")).await;
    page.wait_until("document.querySelector('#waiting').textContent === '5'").await;
    let reason = page.eval("return document.querySelector('#reason').value", &[]).await;
    assert_eq!(reason, json!("typed before the crash"));
    page.type_keys(keys::ESCAPE).await;
}

/// Browsers allow six connections to one server: a hidden tab gives its own back.
#[tokio::test]
async fn many_open_tabs_do_not_starve_each_other() {
    let dashboard = Dashboard::start().await;
    let page = dashboard.open("carol", "/inbox").await;
    for _ in 0..7 {
        page.open_tab(&dashboard.url("/tasks")).await;
    }
    page.wait_until(IS_LIVE).await;
}
