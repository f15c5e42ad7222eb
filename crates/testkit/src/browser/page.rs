//! A page in a window: navigation, reading, and acting as a user does, with real mouse and keyboard events.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use super::driver::{DriverError, Session, reference};
use super::keys;
use super::problems::Collected;
use super::{Driver, WindowOptions};

/// Presses of Tab after which [`Page::tab_order`] gives up.
const MAX_TAB_STOPS: usize = 300;

/// A window and its current page.
#[derive(Debug)]
pub struct Page {
    pub(super) session: Session,
    options: Mutex<WindowOptions>,
    pub(super) collected: Mutex<Collected>,
    driver: Arc<Driver>,
}

/// Returns the value, or fails the test with what the browser could not do.
pub(super) fn must<T>(result: Result<T, DriverError>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

impl Page {
    pub(super) async fn new(driver: Arc<Driver>, session: Session, options: WindowOptions) -> Self {
        let collected = Mutex::new(Collected::new(&options.allowed_origins));
        let page = Self { session, options: Mutex::new(options), collected, driver };
        page.apply_options().await;
        page
    }

    /// The options as they are now.
    #[must_use]
    pub fn options(&self) -> WindowOptions {
        self.locked_options().clone()
    }

    fn locked_options(&self) -> MutexGuard<'_, WindowOptions> {
        self.options.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The main process of Chromium.
    #[must_use]
    pub fn chromium_pid(&self) -> i32 {
        self.session.chromium_pid
    }

    async fn apply_options(&self) {
        let WindowOptions { width, height, is_dark, is_phone, has_javascript, .. } = self.options();
        let screen = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone });
        let scheme =
            json!({ "name": "prefers-color-scheme", "value": if is_dark { "dark" } else { "light" } });
        self.cdp("Emulation.setDeviceMetricsOverride", &screen).await;
        self.cdp("Emulation.setEmulatedMedia", &json!({ "features": [scheme] })).await;
        self.cdp("Emulation.setTouchEmulationEnabled", &json!({ "enabled": is_phone })).await;
        self.cdp("Emulation.setScriptExecutionDisabled", &json!({ "value": !has_javascript })).await;
    }

    /// Runs a command of the DevTools protocol, such as `Emulation.setEmulatedVisionDeficiency` with `{"type":"achromatopsia"}`.
    pub async fn cdp(&self, command: &str, parameters: &Value) -> Value {
        must(self.session.cdp(command, parameters).await)
    }

    /// Opens a URL and waits until the page is loaded. Its origin is allowed from now on.
    pub async fn goto(&self, url: &str) {
        self.collected().allow(url);
        must(self.session.post("url", &json!({ "url": url })).await);
    }

    pub async fn reload(&self) {
        must(self.session.post("refresh", &json!({})).await);
    }

    pub async fn back(&self) {
        must(self.session.post("back", &json!({})).await);
    }

    pub async fn url(&self) -> String {
        self.text_of("url").await
    }

    pub async fn title(&self) -> String {
        self.text_of("title").await
    }

    async fn text_of(&self, path: &str) -> String {
        must(self.session.get(path).await).as_str().unwrap_or_default().to_owned()
    }

    /// Opens a tab with the cookies of this window and a URL, and continues in it.
    pub async fn open_tab(&self, url: &str) {
        let tab = must(self.session.post("window/new", &json!({ "type": "tab" })).await);
        let handle = tab.get("handle").cloned().unwrap_or_default();
        must(self.session.post("window", &json!({ "handle": handle })).await);
        self.apply_options().await;
        self.goto(url).await;
    }

    /// Continues in the tab with this number, in the order of opening.
    pub async fn switch_to_tab(&self, number: usize) {
        let handles = must(self.session.get("window/handles").await);
        let handle = handles.get(number).unwrap_or_else(|| panic!("no tab {number} among {handles}"));
        must(self.session.post("window", &json!({ "handle": handle })).await);
    }

    /// Sets a cookie (`name=value`) for the host of a URL, such as that of a session from the API.
    pub async fn set_cookie(&self, url: &str, cookie: &str) {
        let (name, value) = cookie.split_once('=').expect("name=value");
        let cookie =
            json!({ "name": name, "value": value, "url": url, "httpOnly": true, "sameSite": "Strict" });
        self.cdp("Network.setCookie", &cookie).await;
    }

    /// Runs JavaScript, which gets `arguments`, and returns what it returns or what its promise resolves to.
    pub async fn eval(&self, script: &str, arguments: &[Value]) -> Value {
        must(self.session.execute(script, &json!(arguments)).await)
    }

    /// The displayed text of the first element that matches; waits for it.
    pub async fn text(&self, css: &str) -> String {
        let element = self.find(css).await;
        self.text_of(&format!("element/{element}/text")).await
    }

    /// The displayed texts of all displayed elements that match now.
    pub async fn texts(&self, css: &str) -> Vec<String> {
        let script = "return [...document.querySelectorAll(arguments[0])]
                          .filter(element => element.checkVisibility()).map(element => element.innerText.trim())";
        let texts = self.eval(script, &[json!(css)]).await;
        serde_json::from_value(texts).expect("texts")
    }

    pub async fn is_visible(&self, css: &str) -> bool {
        !self.texts(css).await.is_empty()
    }

    /// A reference, for the WebDriver protocol, to the first element that matches; waits until one is displayed.
    async fn find(&self, css: &str) -> String {
        self.wait_for(css).await;
        must(self.session.element(css).await)
    }

    /// Clicks the middle of an element, which it waits for. On a phone, taps it. It may return before a page that this loads:
    /// [`Self::click_through`] waits for that page.
    pub async fn click(&self, css: &str) {
        let element = self.find(css).await;
        if !self.options().is_phone {
            must(self.session.post(&format!("element/{element}/click"), &json!({})).await);
            return;
        }
        let press = json!({ "type": "pointerDown", "button": 0 });
        let release = json!({ "type": "pointerUp", "button": 0 });
        self.perform_pointer("touch", &element, &[press, release]).await;
    }

    /// Replaces the text of a field, with keystrokes.
    pub async fn fill(&self, css: &str, text: &str) {
        let element = self.find(css).await;
        must(self.session.post(&format!("element/{element}/clear"), &json!({})).await);
        must(self.session.post(&format!("element/{element}/value"), &json!({ "text": text })).await);
    }

    /// Moves the pointer over an element.
    pub async fn hover(&self, css: &str) {
        let element = self.find(css).await;
        self.perform_pointer("mouse", &element, &[]).await;
    }

    /// Performs actions of a pointer on an element, which is scrolled into view.
    async fn perform_pointer(&self, kind: &str, element: &str, actions: &[Value]) {
        let script = "arguments[0].scrollIntoView({ block: 'nearest', behavior: 'instant' })";
        self.eval(script, &[reference(element)]).await;
        let moved =
            json!({ "type": "pointerMove", "duration": 0, "origin": reference(element), "x": 0, "y": 0 });
        let actions = [&[moved], actions].concat();
        let parameters = json!({ "pointerType": kind });
        self.perform(&json!({ "type": "pointer", "id": kind, "parameters": parameters, "actions": actions }))
            .await;
    }

    /// Types into the focused element, or onto the page if none has focus: text, and special [`keys`].
    pub async fn type_keys(&self, text: impl ToString) {
        let text = text.to_string();
        let strokes = text.chars().flat_map(|key| [key_event("keyDown", key), key_event("keyUp", key)]);
        self.perform_keys(strokes.collect()).await;
    }

    /// Presses keys together, such as `[keys::CONTROL, keys::ENTER]`.
    pub async fn chord(&self, keys: &[char]) {
        let pressed = keys.iter().map(|key| key_event("keyDown", *key));
        let released = keys.iter().rev().map(|key| key_event("keyUp", *key));
        self.perform_keys(pressed.chain(released).collect()).await;
    }

    async fn perform_keys(&self, actions: Vec<Value>) {
        self.perform(&json!({ "type": "key", "id": "keyboard", "actions": actions })).await;
    }

    async fn perform(&self, source: &Value) {
        must(self.session.post("actions", &json!({ "actions": [source] })).await);
    }

    /// The elements that Tab reaches from here, such as `button#send "Send"`, until it leaves the page or returns to the first.
    pub async fn tab_order(&self) -> Vec<String> {
        let describe = "const element = document.activeElement;
            if (!element || element === document.body || element === document.documentElement) return '';
            const name = (element.getAttribute('aria-label') || element.innerText || element.name || '').trim().slice(0, 60);
            return element.localName + (element.id ? '#' + element.id : '') + ` \"${name}\"`";
        let (mut order, mut seen) = (Vec::new(), Vec::new());
        while order.len() < MAX_TAB_STOPS {
            self.type_keys(keys::TAB).await;
            let element = must(self.session.active_element().await);
            let description = self.eval(describe, &[]).await.as_str().unwrap_or_default().to_owned();
            if description.is_empty() || seen.contains(&element) {
                return order;
            }
            seen.push(element);
            order.push(description);
        }
        panic!("more than {MAX_TAB_STOPS} elements get focus: {order:?}");
    }

    /// Sets the size of the viewport.
    pub async fn set_size(&self, width: u32, height: u32) {
        {
            let mut options = self.locked_options();
            (options.width, options.height) = (width, height);
        }
        self.apply_options().await;
    }

    /// Sets whether the user prefers dark pages.
    pub async fn set_dark(&self, is_dark: bool) {
        self.locked_options().is_dark = is_dark;
        self.apply_options().await;
    }

    /// Cuts the connection of this tab, or restores it. Requests that failed meanwhile are problems.
    pub async fn set_offline(&self, is_offline: bool) {
        let network =
            json!({ "offline": is_offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1 });
        self.cdp("Network.emulateNetworkConditions", &network).await;
    }

    /// Writes a picture of the viewport.
    pub async fn screenshot(&self, file: &Path) {
        std::fs::write(file, self.picture(false).await).expect("a picture is written");
    }

    /// Writes a picture of the whole page.
    pub async fn screenshot_full(&self, file: &Path) {
        std::fs::write(file, self.picture(true).await).expect("a picture is written");
    }

    /// Closes the window. Without this it stays open until the browser is dropped.
    pub async fn close(self) {
        must(self.session.delete("").await);
        self.driver.windows.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn collected(&self) -> MutexGuard<'_, Collected> {
        self.collected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key_event(kind: &str, key: char) -> Value {
    json!({ "type": kind, "value": key.to_string() })
}
