//! The dashboard in real Chromium, on the demo organisation: what reviewers do with mouse, keys and phone, what a second browser sees
//! meanwhile, and that nothing that others wrote becomes more than text.

mod activity;
mod agents;
mod appearance;
mod batches;
mod decisions;
mod forms;
mod live;
mod locks;
mod many_tasks;
mod operations;
mod review;
mod rules;
mod sessions;
mod settings;

use ade_testkit::AdeServer;
use ade_testkit::api::ApiClient;
use ade_testkit::browser::{Browser, Page, WindowOptions};
use ade_testkit::deployment::text_field;
use ade_testkit::server::ServerBuilder;
use ade_testkit::session::SessionClient;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// The password of every user of the demo.
pub(crate) const PASSWORD: &str = "demo-demo";

/// A server with the demo organisation, and a browser.
pub(crate) struct Dashboard {
    pub(crate) browser: Browser,
    pub(crate) server: AdeServer,
    pub(crate) api: ApiClient,
    /// Sign-ins are limited.
    ann: OnceCell<SessionClient>,
}

impl Dashboard {
    pub(crate) async fn start() -> Self {
        Self::start_with("").await
    }

    /// `config` is the content of the configuration file.
    pub(crate) async fn start_with(config: &str) -> Self {
        let browser = Browser::start().await.expect("starts");
        let setup = ServerBuilder::new(env!("CARGO_BIN_EXE_ade")).config(config).arg("--demo");
        let server = setup.start().expect("starts");
        let api = ApiClient::connect(&server).await;
        Self { browser, server, api, ann: OnceCell::new() }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.server.url())
    }

    /// A user of the demo, who sends requests as a browser does.
    pub(crate) async fn session(&self, user: &str) -> SessionClient {
        SessionClient::sign_in(&self.api, user, PASSWORD).await
    }

    /// A window of a user who has signed in.
    pub(crate) async fn window(&self, user: &str, options: WindowOptions) -> Page {
        let session = self.session(user).await;
        let page = self.browser.window(options).await;
        page.set_cookie(&self.server.url(), &session.cookie).await;
        page
    }

    /// A page as a user sees it, on a wide screen.
    pub(crate) async fn open(&self, user: &str, path: &str) -> Page {
        let page = self.window(user, WindowOptions::default()).await;
        page.goto(&self.url(path)).await;
        page
    }

    pub(crate) async fn ann(&self) -> &SessionClient {
        self.ann.get_or_init(|| self.session("ann")).await
    }

    /// Submits a task of Ann's and returns its id.
    pub(crate) async fn propose(&self, task: &Value) -> String {
        let ann = self.ann().await;
        let draft = ann.post("/tasks", task).await.expect_status(201);
        let id = text_field(&draft, "task_id");
        let _ = ann.post(&format!("/tasks/{id}/submit"), &json!({})).await.expect_status(202);
        id
    }

    pub(crate) async fn task(&self, id: &str) -> Value {
        self.api.get(&format!("/tasks/{id}")).await.expect_status(200)
    }

    pub(crate) async fn state(&self, id: &str) -> String {
        text_field(&self.task(id).await, "state")
    }
}

/// Waits until a page has a text.
pub(crate) async fn says(page: &Page, text: &str) {
    page.wait_until(&format!("document.getElementById('main').textContent.includes({})", json!(text))).await;
}

/// A window of a user with this session.
pub(crate) async fn window(browser: &Browser, url: &str, session: &SessionClient, path: &str) -> Page {
    let page = browser.window(WindowOptions::default()).await;
    page.set_cookie(url, &session.cookie).await;
    page.goto(&format!("{url}{path}")).await;
    page
}

/// A change of the demo's playground: MEDIUM risk, with a preview that ADE made.
pub(crate) fn playground_change(description: &str, content: &str) -> Value {
    json!({
        "type": "config",
        "description": description,
        "executor": "files",
        "parameters": { "root": "playground", "files": [{ "path": "app.conf", "content": content }] },
        "resources": [{ "type": "service", "id": "app" }],
    })
}

/// A change of the demo's playground that touches a production database: HIGH risk.
pub(crate) fn risky_change(description: &str, content: &str) -> Value {
    let mut task = playground_change(description, content);
    task["resources"] = json!([{ "type": "database", "id": "prod-orders" }]);
    task
}

/// Waits until the approve button may be pressed.
pub(crate) const READY: &str =
    "document.querySelector('[data-approve]')?.getAttribute('aria-disabled') === 'false'";

/// A task without effects: LOW risk.
pub(crate) fn note(description: &str) -> Value {
    json!({ "type": "note", "description": description, "executor": "noop" })
}

/// The row of a task in the inbox.
pub(crate) fn row_with(title: &str) -> String {
    format!(
        "[...document.querySelectorAll('#queue [data-row]')].find((row) => row.textContent.includes({title:?}))"
    )
}
