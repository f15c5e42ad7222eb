//! Keys, clicks, waiting, windows and pictures work as for a user.

use std::time::Duration;

use ade_testkit::WindowOptions;
use ade_testkit::browser::keys;
use serde_json::json;

use super::site::{STRICT_POLICY, Site};
use super::{html, open};

#[tokio::test]
async fn keys_and_clicks_are_real() {
    let body = "<label>Name <input id=name></label> <button id=b>Send</button><ul id=log></ul>\
                <script src='/page.js'></script>";
    let script = "for (const kind of ['keydown', 'click']) document.addEventListener(kind, event => {
            const item = document.createElement('li');
            item.textContent = [event.type, event.key, event.ctrlKey, event.isTrusted].join(' ');
            log.append(item);
        })";
    let site = Site::start(STRICT_POLICY, &[("/", &html(body)), ("/page.js", script)]).await;
    let (_browser, page) = open(WindowOptions::default()).await;
    page.goto(&site.url("/")).await;
    page.type_keys("j?").await;
    page.chord(&[keys::CONTROL, keys::ENTER]).await;
    let pressed = ["keydown j false true", "keydown ? false true", "keydown Control true true"];
    assert_eq!(page.texts("#log li").await, [&pressed[..], &["keydown Enter true true"]].concat());
    page.click("#b").await;
    assert_eq!(page.text("#log li:last-child").await, "click false true");
    page.hover("#name").await;
    page.wait_until("document.querySelector('#name').matches(':hover')").await;

    page.fill("#name", "old").await;
    page.fill("#name", "jkarx").await;
    assert_eq!(page.eval("return document.getElementById('name').value", &[]).await, "jkarx");
    page.reload().await;
    assert_eq!(page.tab_order().await, ["input#name \"\"", "button#b \"Send\""]);
    page.assert_clean().await;
}

#[tokio::test]
async fn waiting_observes_changes_and_navigation() {
    let body = "<button id=b>Start</button><a id=next href='/next'>Next</a><script src='/page.js'></script>";
    let script = "b.onclick = () => setTimeout(() => b.textContent = 'Started', 50);";
    let next = html("<p id=arrived>Here</p>");
    let site =
        Site::start(STRICT_POLICY, &[("/", &html(body)), ("/page.js", script), ("/next", &next)]).await;
    let (_browser, page) = open(WindowOptions::default()).await;
    page.goto(&site.url("/")).await;
    page.click("#b").await;
    assert_eq!(page.wait_until("b.textContent === 'Started' && b.textContent").await, "Started");
    // The page is replaced while its condition is observed.
    page.eval("setTimeout(() => location.href = '/next', 100)", &[]).await;
    assert_eq!(page.text("#arrived").await, "Here");
    assert_eq!(page.url().await, site.url("/next"));
    page.back().await;
    page.click("#next").await;
    assert_eq!(page.text("#arrived").await, "Here");
}

#[tokio::test]
async fn waiting_in_vain_shows_the_page() {
    let body = "<p>Visible text</p><p hidden>Hidden text</p><script src='/page.js'></script>";
    let script = "console.log('planted line')";
    let site = Site::start(STRICT_POLICY, &[("/", &html(body)), ("/page.js", script)]).await;
    let (_browser, page) = open(WindowOptions::default()).await;
    page.goto(&site.url("/")).await;
    let limit = Duration::from_millis(300);
    let message =
        page.try_wait_until("document.querySelector('#absent').id", limit).await.expect_err("in vain");
    for part in ["#absent", &site.url("/"), "A test", "Visible text", "planted line", "null"] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    assert!(!message.contains("Hidden text"), "{message}");
    let message = page.try_wait_until("this is no expression", limit).await.expect_err("invalid");
    assert!(message.contains("SyntaxError"), "{message}");
}

#[tokio::test]
async fn windows_have_separate_cookies() {
    let site = Site::start("", &[("/", &html(""))]).await;
    let (browser, first) = open(WindowOptions::default()).await;
    let second = browser.window(WindowOptions::default()).await;
    first.set_cookie(&site.url("/"), "a=1").await;
    for page in [&first, &second] {
        page.goto(&site.url("/")).await;
        page.eval("document.cookie = 'b=' + document.cookie.length", &[]).await;
    }
    let cookies = "return document.cookie";
    assert_eq!(first.eval(cookies, &[]).await, "b=0", "a is hidden from scripts");
    let sent = first.cdp("Network.getCookies", &json!({ "urls": [site.url("/")] })).await;
    assert_eq!(sent["cookies"].as_array().expect("a list").len(), 2);
    let sent = second.cdp("Network.getCookies", &json!({ "urls": [site.url("/")] })).await;
    assert_eq!(sent["cookies"].as_array().expect("a list").len(), 1);
    first.open_tab(&site.url("/")).await;
    assert_eq!(first.eval(cookies, &[]).await, "b=0", "tabs share them");
    first.switch_to_tab(0).await;
    second.close().await;
}

#[tokio::test]
async fn window_is_as_its_options_say() {
    let body = "<p id=p>text</p><noscript><p id=off>No scripts</p></noscript><script src='/page.js'></script>\
                <a id=next href='/'>Next</a>";
    let script = "p.textContent = 'changed by script'";
    let site = Site::start(STRICT_POLICY, &[("/", &html(body)), ("/page.js", script)]).await;
    let (browser, page) = open(WindowOptions { is_dark: true, ..WindowOptions::phone() }).await;
    let media = "return ['(prefers-color-scheme: dark)', '(pointer: coarse)', '(hover: none)']
                     .map(query => matchMedia(query).matches).concat(innerWidth, innerHeight)";
    page.goto(&site.url("/")).await;
    assert_eq!(page.eval(media, &[]).await, json!([true, true, true, 360, 740]));
    page.set_dark(false).await;
    page.set_size(400, 600).await;
    page.reload().await;
    assert_eq!(page.eval(media, &[]).await, json!([false, true, true, 400, 600]));
    page.eval("p.addEventListener('click', event => p.textContent = event.pointerType)", &[]).await;
    page.click("#p").await;
    page.wait_until("p.textContent === 'touch'").await;

    let page = browser.window(WindowOptions { has_javascript: false, ..WindowOptions::default() }).await;
    page.goto(&site.url("/")).await;
    assert_eq!(page.text("#off").await, "No scripts");
    page.click("#next").await;
    assert_eq!(page.text("#p").await, "text");
    let message = page.try_wait_until("document.querySelector('#absent')", Duration::from_millis(100)).await;
    assert!(message.expect_err("in vain").contains("No scripts"));

    let options = WindowOptions { hosts: vec!["other.test".to_owned()], ..WindowOptions::default() };
    let page = browser.window(options).await;
    page.goto(&site.url_at("other.test", "/")).await;
    assert_eq!(page.text("#p").await, "changed by script");
    page.assert_clean().await;
}

#[tokio::test]
async fn pictures_have_the_size_of_page_and_viewport() {
    let folder = tempfile::tempdir().expect("created");
    let site = Site::start(
        "",
        &[("/", &html("<div style='height: 3000px; width: 10px; color-scheme: light dark'></div>"))],
    )
    .await;
    let (_browser, page) = open(WindowOptions { width: 500, height: 300, ..WindowOptions::default() }).await;
    page.goto(&site.url("/")).await;
    let size = |name: &str| {
        let png = std::fs::read(folder.path().join(name)).expect("written");
        let number = |start: usize| u32::from_be_bytes(png[start..start + 4].try_into().expect("four bytes"));
        (number(16), number(20))
    };
    page.screenshot(&folder.path().join("a.png")).await;
    assert_eq!(size("a.png"), (500, 300));
    page.screenshot_full(&folder.path().join("b.png")).await;
    let (width, height) = size("b.png");
    assert!(width == 500 && height > 3000, "{width} × {height}");

    page.pictures_into(folder.path(), "page", &[360]).await;
    assert_eq!((size("page-360-light.png").0, size("page-360-dark.png").0), (360, 360));
    assert_eq!((page.options().width, page.options().is_dark), (500, false), "as before");

    let missing = page.check_or_write(folder.path(), "readme", false).await.expect_err("not committed");
    assert!(missing.contains("committed missing, made 500 × 300"), "{missing}");
    page.check_or_write(folder.path(), "readme", true).await.expect("written");
    page.check_or_write(folder.path(), "readme", false).await.expect("the same size");
    page.set_size(501, 300).await;
    page.check_or_write(folder.path(), "readme", false).await.expect_err("another size");
}
