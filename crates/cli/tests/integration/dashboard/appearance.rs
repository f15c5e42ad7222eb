//! Every page in light and dark, wide and on a phone: no serious problem of accessibility, nothing to scroll sideways, and nothing
//! that the browser complains about.

use ade_testkit::browser::{Page, WindowOptions};
use ade_testkit::effort;
use serde_json::{Value, json};

use super::{Dashboard, PASSWORD};

/// Pages for everybody; the first task of the demo is added.
const PAGES: &[&str] = &[
    "/agents",
    "/agents?view=grid",
    "/agents/new",
    "/agents/schema-migrator",
    "/locks",
    "/locks/resource%3Adatabase%3Aprod-orders",
    "/inbox",
    "/inbox?view=others",
    "/inbox?view=decided",
    "/tasks",
    "/tasks?state=DRAFT",
    "/password",
    "/reauthenticate",
];

async fn check(page: &Page, dashboard: &Dashboard, path: &str, name: &str) {
    page.goto(&dashboard.url(path)).await;
    page.wait_for("main h1").await;
    page.assert_accessible().await;
    let overflow = page
        .eval("return document.documentElement.scrollWidth - document.documentElement.clientWidth", &[])
        .await;
    assert_eq!(overflow, json!(0), "{path} scrolls sideways on {name}");
    page.pictures(name, &[]).await;
}

/// Every page as a user sees it: light and wide, dark and on a phone; in a long run also the other way round.
pub(super) async fn check_all(dashboard: &Dashboard, user: &str, paths: &[impl AsRef<str>]) {
    let phone = WindowOptions { width: 360, height: 740, ..WindowOptions::default() };
    for (options, name, is_phone) in [(WindowOptions::default(), "wide", false), (phone, "phone", true)] {
        let page = dashboard.window(user, options).await;
        for is_dark in [false, true] {
            if is_dark != is_phone && !effort::is_soak() {
                continue;
            }
            page.set_dark(is_dark).await;
            for path in paths {
                check(&page, dashboard, path.as_ref(), name).await;
            }
        }
        page.assert_clean().await;
    }
}

async fn paths(dashboard: &Dashboard) -> Vec<String> {
    let tasks = dashboard.session("carol").await.get("/tasks?limit=200").await.expect_status(200);
    let tasks = tasks["items"].as_array().expect("a list").clone();
    let mut states: Vec<&Value> = Vec::new();
    let mut paths: Vec<String> = PAGES.iter().map(|path| (*path).to_owned()).collect();
    for task in &tasks {
        if !states.contains(&&task["state"]) {
            states.push(&task["state"]);
            paths.push(format!("/tasks/{}", task["task_id"].as_str().expect("an id")));
        }
    }
    paths
}

#[tokio::test]
async fn pages_are_accessible_and_fit() {
    let dashboard = Dashboard::start().await;
    let paths = paths(&dashboard).await;
    check_all(&dashboard, "carol", &paths).await;
    let page = dashboard.browser.window(WindowOptions::default()).await;
    for path in ["/nothing/here", "/sign-in", "/join", "/tasks"] {
        check(&page, &dashboard, path, "anonymous").await;
    }
    assert!(page.text("body").await.contains(PASSWORD), "the demo says how to sign in");
}

#[tokio::test]
async fn pages_that_do_not_exist_keep_the_navigation() {
    let dashboard = Dashboard::start().await;
    let page = dashboard.open("carol", "/nothing/here").await;
    assert!(page.is_visible(".nav a[href='/tasks']").await);
    assert_eq!(page.text("main [role=alert] b").await, "There is no page at this address");
    // What is not visible is not found, and its list is a click away.
    page.goto(&dashboard.url("/tasks/01900000-0000-7000-8000-000000000000")).await;
    assert_eq!(page.text(".nav [aria-current]").await, "Tasks");
    page.click_through("main a.primary").await;
    assert_eq!(page.text("h1").await, "Tasks");
}

#[tokio::test]
async fn narrow_screens_fold_filters_and_mark_where_the_visitor_is() {
    let dashboard = Dashboard::start().await;
    let page = dashboard.window("carol", WindowOptions::phone()).await;
    page.goto(&dashboard.url("/tasks?state=DRAFT&type=deploy")).await;
    assert_eq!(page.text(".filter-label").await, "Filter (2)");
    assert!(!page.is_visible("[name=author]").await);
    page.click(".filter-label").await;
    assert!(page.is_visible("[name=author]").await);
    page.goto(&dashboard.url("/audit")).await;
    let weight = "return getComputedStyle(document.querySelector('.more > summary')).fontWeight";
    assert_eq!(page.eval(weight, &[]).await, json!("600"), "the page is behind More");
    page.set_size(1_024, 800).await;
    assert!(
        page.is_visible(".nav > a[href='/audit']").await
            && !page.is_visible(".nav > a[href='/keyspace']").await
    );
    assert_eq!(page.eval(weight, &[]).await, json!("400"));
    assert!(!page.is_visible(".filter-label").await && page.is_visible("[name=actor]").await);
}

/// Agents of the demo at work: two hold locks, and others wait for them.
async fn lock_scene(dashboard: &Dashboard) {
    let acquire = async |agent: &str, lock: &str, purpose: &str, status: u16| {
        let body = json!({
            "agent_id": agent, "locks": [{ "lock": lock }], "ttl_seconds": 290, "wait_seconds": 290, "queue": true, "purpose": purpose,
        });
        let _ = dashboard.api.post("/locks/acquire", &body).await.expect_status(status);
    };
    acquire("schema-migrator", "resource:database:prod-orders", "rebuild an index", 200).await;
    acquire("release-bot", "resource:service:checkout", "roll out checkout 2.14.0", 200).await;
    acquire("report-writer", "resource:bucket:monthly-reports", "write the report of November", 200).await;
    acquire("release-bot", "resource:database:prod-orders", "check the schema before the rollout", 202).await;
    acquire("report-writer", "resource:database:prod-orders", "read the orders of November", 202).await;
    acquire("smoke-tester", "resource:service:checkout", "test the checkout", 202).await;
    let _ = dashboard.api.request("POST", "/agents/smoke-tester/drain", "").await.expect_status(200);
}

/// The pictures of the README cannot be old: they are made here.
#[tokio::test]
async fn readme_shows_the_pages_as_they_are() {
    let dashboard = Dashboard::start().await;
    let options = WindowOptions { width: 1280, height: 860, ..WindowOptions::default() };
    let page = dashboard.window("carol", options).await;
    let task = dashboard.session("carol").await.get("/tasks?state=REVIEWING").await.expect_status(200);
    let task = task["items"][0]["task_id"].as_str().expect("a task").to_owned();
    let task = format!("/tasks/{task}");
    lock_scene(&dashboard).await;
    let pages = [
        ("/inbox", "inbox", 980),
        (task.as_str(), "task", 1_180),
        ("/locks", "locks", 860),
        ("/agents?view=grid", "agents", 640),
    ];
    for (path, name, height) in pages {
        page.set_size(1_280, height).await;
        page.goto(&dashboard.url(path)).await;
        page.wait_until("document.querySelector('#connection')?.dataset.state === 'live'").await;
        // What may be pressed, or why not yet.
        let settled = "(button => !button || button.getAttribute('aria-disabled') === 'false' || \
                       document.querySelector('[data-missing]').textContent !== '')";
        page.wait_until(&format!("{settled}(document.querySelector('[data-approve]'))")).await;
        page.readme_picture(name).await;
    }
}
