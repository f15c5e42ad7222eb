//! The browser harness finds what it must find, in pages planted with faults, and acts as a user does.

mod acting;
mod faults;
mod site;

use ade_testkit::{Browser, Page, WindowOptions};

/// A browser with one window.
async fn open(options: WindowOptions) -> (Browser, Page) {
    let browser = Browser::start().await.expect("starts");
    let page = browser.window(options).await;
    (browser, page)
}

/// A page without faults whose body is given.
fn html(body: &str) -> String {
    format!(
        "<!doctype html><html lang=en><head><title>A test</title><meta name=viewport \
         content='width=device-width, initial-scale=1'></head><body><main><h1>Heading</h1>{body}</main></body></html>"
    )
}
