//! Pages that change while they are open: what others do appears within a second, nothing moves under pointer or focus, and a server
//! that was restarted is followed again.

use ade_testkit::browser::{WindowOptions, keys};
use serde_json::json;

use super::{Dashboard, note, playground_change, row_with};

pub(super) const IS_LIVE: &str = "document.querySelector('#connection')?.dataset.state === 'live'";

#[tokio::test]
async fn second_browser_sees_changes_without_reloading() {
    let dashboard = Dashboard::start().await;
    let (inbox, tasks) = (
        dashboard.window("carol", WindowOptions::default()).await,
        dashboard.window("ann", WindowOptions::default()).await,
    );
    for (page, path) in [(&inbox, "/inbox"), (&tasks, "/tasks")] {
        // Nothing but events renews the pages: they do not ask from time to time.
        page.cdp(
            "Page.addScriptToEvaluateOnNewDocument",
            &json!({ "source": "const every = window.setInterval; \
                                window.setInterval = (run, wait) => (wait >= 10_000 ? 0 : every(run, wait))" }),
        )
        .await;
        page.goto(&dashboard.url(path)).await;
        page.wait_until(IS_LIVE).await;
    }
    inbox.eval("window.loadedOnce = true", &[]).await;
    // The pages are renewed once after they begin to follow; the second task comes later.
    for title in ["Rename the on-call channel", "Archive the former channel"] {
        let _ = dashboard.propose(&note(title)).await;
        inbox.wait_until(&format!("{} !== undefined", row_with(title))).await;
        tasks.wait_until(&format!("document.querySelector('#tasks').textContent.includes({title:?})")).await;
    }
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

/// The row that was opened last is the one that is shown, whichever response arrives last.
#[tokio::test]
async fn fast_keys_open_the_last_row() {
    let dashboard = Dashboard::start().await;
    let page = dashboard.open("carol", "/inbox").await;
    page.wait_until(IS_LIVE).await;
    let hold_first = "const real = window.fetch; let opened = 0;
        window.fetch = async (url, options) => {
            const isFirst = String(url).includes('at=') && opened++ === 0;
            const response = real(url, options);
            response.catch(() => {});
            if (isFirst) await new Promise((resolve) => { window.release = resolve; });
            return response;
        }";
    page.eval(hold_first, &[]).await;
    page.type_keys("j").await;
    page.wait_until("document.querySelector('[data-js-opening]') !== null").await;
    // What is shown is not the row with the focus: no key leads to its form.
    page.type_keys("a").await;
    page.wait_until("document.activeElement.closest('#queue [data-row]') !== null").await;
    page.type_keys("j").await;
    let third = page.eval("return document.querySelectorAll('#queue [data-row]')[2].dataset.row", &[]).await;
    let third = format!("document.querySelector('#queue [data-row={third}]')");
    let is_third = format!("{third}.getAttribute('aria-current') === 'true'");
    page.wait_until(&is_third).await;
    page.eval("window.release()", &[]).await;
    // The response that was held has long arrived when an event has renewed the page.
    let waiting = page.text("#waiting").await;
    let _ = dashboard.propose(&note("Order new badges")).await;
    page.wait_until(&format!("document.querySelector('#waiting').textContent !== '{waiting}'")).await;
    let state = format!(
        "const id = {third}.dataset.row; return [{is_third}, new URL(location.href).searchParams.get('at') === id, \
         document.querySelector('#decision').action.includes(id), document.activeElement.closest('[data-row]').dataset.row === id, \
         document.querySelector('[data-js-opening]')]"
    );
    assert_eq!(page.eval(&state, &[]).await, json!([true, true, true, true, null]));
    page.assert_clean().await;
}

/// Rows that wait are shown with the next fetch, also if one is under way when they are asked for.
#[tokio::test]
async fn waiting_rows_are_shown_while_the_page_is_fetched() {
    let dashboard = Dashboard::start().await;
    let page = dashboard.open("carol", "/inbox").await;
    page.wait_until(IS_LIVE).await;
    page.hover("#queue [data-row]:last-child a").await;
    let _ = dashboard.propose(&note("Order new badges")).await;
    page.wait_until("document.querySelector('[data-js-waiting]')?.textContent.includes('1 new')").await;
    let hold_next = "const real = window.fetch;
        window.fetch = async (url, options) => {
            window.fetch = real;
            document.body.dataset.held = '';
            await new Promise((resolve) => { window.release = resolve; });
            return real(url, options);
        }";
    page.eval(hold_next, &[]).await;
    let _ = dashboard.propose(&note("Order new chairs")).await;
    page.wait_until("document.body.dataset.held !== undefined").await;
    page.type_keys(".").await;
    page.eval("window.release()", &[]).await;
    page.wait_until(&format!("{} !== undefined", row_with("Order new badges"))).await;
    page.assert_clean().await;
}

/// A proxy that cannot reach ADE for a moment: nothing is said until it lasts, and it is tried again until ADE answers.
#[tokio::test]
async fn interruption_is_announced_when_it_lasts_and_forgotten_when_it_ends() {
    let dashboard = Dashboard::start().await;
    let page = dashboard.window("carol", WindowOptions::default()).await;
    // Timers of the announcement that are pending, and no renewal from time to time.
    let timers = "{ window.pending = new Set(); const { setTimeout, clearTimeout, setInterval } = window; \
                  window.setTimeout = (run, wait, ...rest) => { const id = setTimeout(run, wait, ...rest); if (wait === 2500) window.pending.add(id); return id; }; \
                  window.clearTimeout = (id) => { window.pending.delete(id); clearTimeout(id); }; \
                  window.setInterval = (run, wait) => (wait >= 10_000 ? 0 : setInterval(run, wait)); }";
    page.cdp("Page.addScriptToEvaluateOnNewDocument", &json!({ "source": timers })).await;
    page.goto(&dashboard.url("/inbox")).await;
    page.wait_until(IS_LIVE).await;
    let fail = "window.real ??= window.fetch; window.fetch = async () => { document.body.dataset.failed = ''; \
                if (arguments[0]) window.fetch = window.real; return new Response('', { status: 503 }); }";
    page.eval(fail, &[json!(true)]).await;
    let _ = dashboard.propose(&note("Order new badges")).await;
    page.wait_until("document.body.dataset.failed !== undefined").await;
    page.wait_until(&format!("{} !== undefined", row_with("Order new badges"))).await;
    assert_eq!(page.eval("return window.pending.size", &[]).await, json!(0), "one failure is forgotten");
    assert!(!page.is_visible("#banner").await);

    page.eval(fail, &[json!(false)]).await;
    let _ = dashboard.propose(&note("Order new chairs")).await;
    page.wait_until("document.querySelector('#banner').textContent.includes('cannot be reached')").await;
    assert_eq!(page.text("#connection").await, "not connected");
    page.eval("window.fetch = window.real", &[]).await;
    page.wait_until(&format!("{} !== undefined", row_with("Order new chairs"))).await;
    page.wait_until("document.querySelector('#banner').hidden").await;
    page.wait_until(IS_LIVE).await;
}
