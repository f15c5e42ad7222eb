//! The pages of locks: what is wrong, the table, the graph that shows a deadlock while there is one, breaking a lock with a reason, and
//! ten thousand locks.

use std::time::Duration;

use ade_testkit::api::{ApiClient, encode_segment};
use ade_testkit::browser::{Page, WindowOptions};
use ade_testkit::effort;
use ade_testkit::wait::until;
use serde_json::{Value, json};

use super::Dashboard;

const SCRIPT: &str = "</td><script>document.title = 'taken'</script>\u{202e}";
/// Only a hang reaches it, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Largest size of a page.
const MAX_PAGE_BYTES: usize = 150 << 10;

/// Takes locks as an agent of the operator, and holds them for minutes.
async fn take(api: &ApiClient, agent: &str, lock: &str, purpose: &str) {
    let body =
        json!({ "agent_id": agent, "locks": [{ "lock": lock }], "ttl_seconds": 290, "purpose": purpose });
    let _ = api.post("/locks/acquire", &body).await.expect_status(200);
}

async fn queue(api: &ApiClient, agent: &str, lock: &str) {
    let body = json!({ "agent_id": agent, "locks": [{ "lock": lock }], "ttl_seconds": 290, "wait_seconds": 290, "queue": true });
    let _ = api.post("/locks/acquire", &body).await.expect_status(202);
}

/// How many elements there are, also of a drawing.
async fn count(page: &Page, css: &str) -> u64 {
    let found = page.eval("return document.querySelectorAll(arguments[0]).length", &[json!(css)]).await;
    found.as_u64().expect("a number")
}

async fn set_detection(dashboard: &Dashboard, enabled: bool) {
    let body = json!({ "enabled": enabled }).to_string();
    let changed = dashboard.api.request("PUT", "/features/deadlock_detection", &body).await;
    let _ = changed.expect_status(200);
}

#[tokio::test]
async fn a_deadlock_appears_and_vanishes_in_the_graph_of_an_open_page() {
    let dashboard = Dashboard::start_with("").await;
    let api = &dashboard.api;
    set_detection(&dashboard, false).await;
    let page = dashboard.open("carol", "/locks").await;
    page.wait_for("#connection[data-state=live]").await;
    let _ = page.eval("window.wasNeverReloaded = true", &[]).await;
    assert!(page.text("#wrong").await.contains("Nobody waits for a lock"));
    take(api, "one", "resource:db:a", "migrate").await;
    take(api, "two", "resource:db:b", "report").await;
    queue(api, "one", "resource:db:b").await;
    page.wait_for("#graph .box.lock").await;
    let wrong = page.wait_until("document.querySelector('#wrong .blockers')?.textContent").await;
    let wrong = wrong.as_str().unwrap_or_default().to_owned();
    assert!(wrong.contains("blocks 1") && wrong.contains("two") && wrong.contains("report"), "{wrong}");
    assert_eq!(count(&page, "#graph .box.cycle").await, 0);

    queue(api, "two", "resource:db:a").await;
    page.wait_for("#graph .box.cycle").await;
    page.wait_until("document.querySelector('#wrong').textContent.includes('Deadlock of 2')").await;
    let marked = "return [...document.querySelectorAll('#graph text.sub')].filter(text => text.textContent.startsWith('deadlock')).length";
    assert_eq!(page.eval(marked, &[]).await, json!(4), "by a word, not only by colour");
    let wrong = page.texts("#wrong .callout a.mono").await;
    assert_eq!(wrong, ["resource:db:b", "resource:db:a"], "what can be broken");
    // A phone shows the table instead of the drawing.
    page.set_size(360, 740).await;
    assert!(!page.is_visible("#graph .graph-scroll").await && page.is_visible("#waits-table table").await);
    page.set_size(1_280, 900).await;
    page.click("#waits-table > summary").await;
    let cells = page.texts("#waits-table td[data-label=Deadlock]").await;
    assert_eq!(cells, ["deadlock", "deadlock"], "the table says the same");

    // Detection finds it, aborts the younger one, and the other goes on.
    set_detection(&dashboard, true).await;
    page.wait_until("!document.querySelector('#graph')").await;
    page.wait_until("document.querySelector('#deadlocks') || !document.querySelector('#wrong .callout')")
        .await;
    let is_same = page.eval("return window.wasNeverReloaded === true", &[]).await;
    assert_eq!(is_same, Value::Bool(true), "the page was refreshed in place");
    page.assert_clean().await;
    // Administrators see it in the log, and therefore on the page.
    let logged = || async {
        let found = dashboard.api.get("/audit?action=lock.deadlock").await.json();
        if found["items"].as_array().is_some_and(|items| !items.is_empty()) {
            Ok(())
        } else {
            Err(found.to_string())
        }
    };
    until("the deadlock in the audit log", TIMEOUT, logged).await.expect("in time");
    let page = dashboard.open("erin", "/locks").await;
    page.wait_for("#deadlocks").await;
    page.click("#deadlocks > summary").await;
    let resolved = page.text("#deadlocks").await;
    assert!(resolved.contains("was the victim") && resolved.contains("waits for resource:db:"), "{resolved}");
    page.assert_clean().await;
}

#[tokio::test]
async fn a_lock_is_broken_with_a_reason_and_only_by_administrators() {
    let dashboard = Dashboard::start_with("").await;
    let api = &dashboard.api;
    let lock = format!("resource:db:{SCRIPT}");
    take(api, "holder", &lock, SCRIPT).await;
    queue(api, "next", &lock).await;
    let path = format!("/locks/{}", encode_segment(&lock));

    let page = dashboard.open("carol", &path).await;
    let text = page.text("#break").await;
    assert!(text.contains("Only an administrator can break a lock"), "{text}");
    assert_eq!(page.texts("#break form").await.len(), 0);
    page.assert_clean().await;

    let page = dashboard.open("erin", "/locks").await;
    page.click("tbody a.row-link").await;
    page.wait_for("#break textarea").await;
    let text = page.text("#break").await;
    assert!(text.contains("holder, which uses it for") && text.contains("Then next gets it"), "{text}");
    assert!(text.contains("⟦U+202E⟧") && !text.contains('\u{202e}'), "hidden characters are shown: {text}");
    // The API refuses a reason of spaces, in its own words and in place.
    page.fill("#break textarea", "   ").await;
    page.click("#break button").await;
    page.wait_for("#break [data-alert]").await;
    assert!(page.text("#break [data-alert]").await.contains("is required"));
    page.fill("#break textarea", "it hangs since noon").await;
    page.click("#break button").await;
    page.wait_for("[data-notice]").await;
    page.wait_until("document.querySelector('#break')?.textContent.includes('next')").await;
    let shown = lock.replace('\u{202e}', "⟦U+202E⟧");
    assert_eq!(page.title().await, format!("{shown} · ADE"), "no script changed it");
    page.assert_accessible().await;
    let problems = page.problems().await;
    assert!(problems.iter().all(|problem| problem.text.contains("/break: status 422")), "{problems:?}");
    let inbox = api.get("/agents/holder/inbox").await.expect_status(200);
    assert_eq!(inbox["items"][0]["data"]["reason"], "it hangs since noon");
    assert_eq!(inbox["items"][0]["data"]["by"], "erin");
}

#[tokio::test]
async fn filters_are_in_the_url_and_work_without_scripts() {
    let dashboard = Dashboard::start_with("").await;
    let api = &dashboard.api;
    take(api, "one", "resource:database:prod-orders", "").await;
    take(api, "two", "resource:service:checkout", "").await;
    let options = WindowOptions { has_javascript: false, ..WindowOptions::default() };
    let page = dashboard.window("carol", options).await;
    for (query, expected) in [
        ("", vec!["resource:database:prod-orders", "resource:service:checkout"]),
        ("?name=PROD-orders", vec!["resource:database:prod-orders"]),
        ("?resource_type=service", vec!["resource:service:checkout"]),
        ("?agent=one", vec!["resource:database:prod-orders"]),
        ("?kind=task", vec![]),
    ] {
        page.goto(&dashboard.url(&format!("/locks{query}"))).await;
        assert_eq!(page.texts("td[data-label=Lock]").await, expected, "{query}");
    }
    page.goto(&dashboard.url("/locks?kind=none")).await;
    assert!(page.text("[data-alert]").await.contains("must be task or resource"));
    page.goto(&dashboard.url("/locks")).await;
    page.fill("input[name=name]", "checkout").await;
    page.click_through(".filters button").await;
    assert!(page.url().await.contains("name=checkout"), "{}", page.url().await);
    assert_eq!(page.texts("td[data-label=Lock]").await, ["resource:service:checkout"]);
    page.assert_clean().await;
}

#[tokio::test]
async fn many_locks_are_paged_and_each_page_is_small() {
    let (requests, waiters) = (effort::rounds(15, 100), effort::rounds(150, 1_000));
    let dashboard = Dashboard::start_with("").await;
    let api = &dashboard.api;
    for part in 0..requests {
        let locks: Vec<Value> =
            (0..100).map(|at| json!({ "lock": format!("resource:shard:{:05}", part * 100 + at) })).collect();
        let body = json!({ "agent_id": format!("bulk-{part:03}"), "locks": locks, "ttl_seconds": 290, "purpose": "x".repeat(256) });
        let _ = api.post("/locks/acquire", &body).await.expect_status(200);
    }
    for part in 0..waiters {
        queue(api, &format!("waiter-{part:04}"), &format!("resource:shard:{part:05}")).await;
    }
    let page = dashboard.open("carol", "/locks").await;
    assert_eq!(page.texts("tbody[data-list] tr").await.len(), 50);
    assert!((1..=120).contains(&count(&page, "#graph rect").await));
    page.assert_accessible().await;
    page.click("a[rel=next]").await;
    page.wait_until("location.search.includes('cursor')").await;
    let rows = page.texts("td[data-label=Lock]").await;
    assert_eq!((rows.len(), rows[0].as_str()), (50, "resource:shard:00050"));
    page.goto(&dashboard.url("/locks?name=shard:012")).await;
    assert_eq!(page.texts("td[data-label=Lock]").await[0], "resource:shard:01200");
    page.assert_clean().await;
    let carol = dashboard.session("carol").await;
    for path in ["/locks", "/agents", "/agents?view=grid"] {
        let size =
            api.send_raw("GET", path, &[("cookie", carol.cookie.as_str())], String::new()).await.text().len();
        assert!(size < MAX_PAGE_BYTES, "{path} has {size} bytes");
    }
}
