//! Every page in light and dark, wide and on a phone: no serious problem of accessibility, nothing to scroll sideways, and nothing
//! that the browser complains about.

use ade_testkit::browser::{Page, WindowOptions};
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
    let phone = WindowOptions { width: 360, height: 740, ..WindowOptions::default() };
    for (options, name) in [(WindowOptions::default(), "wide"), (phone, "phone")] {
        let page = dashboard.window("carol", options).await;
        for is_dark in [false, true] {
            page.set_dark(is_dark).await;
            for path in &paths {
                check(&page, &dashboard, path, name).await;
            }
        }
        page.assert_clean().await;
    }
    let page = dashboard.browser.window(WindowOptions::default()).await;
    for path in ["/sign-in", "/join", "/tasks"] {
        check(&page, &dashboard, path, "anonymous").await;
    }
    assert!(page.text("body").await.contains(PASSWORD), "the demo says how to sign in");
}

/// The pictures of the README cannot be old: they are made here. Every window has the same size.
#[tokio::test]
async fn readme_shows_the_pages_as_they_are() {
    let dashboard = Dashboard::start().await;
    let options = WindowOptions { width: 1280, height: 860, ..WindowOptions::default() };
    let page = dashboard.window("carol", options).await;
    let task = dashboard.session("carol").await.get("/tasks?state=REVIEWING").await.expect_status(200);
    let task = task["items"][0]["task_id"].as_str().expect("a task").to_owned();
    for (path, name) in [("/inbox", "inbox"), (format!("/tasks/{task}").as_str(), "task")] {
        page.goto(&dashboard.url(path)).await;
        page.wait_until("document.querySelector('#connection')?.dataset.state === 'live'").await;
        page.readme_picture(name).await;
    }
}
