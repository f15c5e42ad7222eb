//! Planted faults are found, in pages with a content security policy as strict as that of ADE.

use ade_testkit::WindowOptions;
use ade_testkit::browser::{Page, Problem, ProblemKind};

use super::site::{STRICT_POLICY, Site};
use super::{html, open};

/// The problems of a page whose script sets the class `done` at the end.
async fn problems_of(script: &str) -> Vec<Problem> {
    let page = html("<script src='/page.js'></script>");
    let site = Site::start(STRICT_POLICY, &[("/", &page), ("/page.js", script)]).await;
    let (_browser, page) = open(WindowOptions::default()).await;
    page.goto(&site.url("/")).await;
    page.wait_for("body.done").await;
    page.problems().await
}

fn assert_found(problems: &[Problem], kind: ProblemKind, text: &str) {
    let is_found = |problem: &Problem| problem.kind == kind && problem.text.contains(text);
    assert!(problems.iter().any(is_found), "no {kind:?} with {text:?} in {problems:#?}");
}

#[tokio::test]
async fn page_without_faults_is_clean() {
    let body = "<p>Text</p><button id=a>Send</button><script src='/page.js'></script>";
    let script = "console.info('fine'); fetch('/data').then(() => document.body.className = 'done')";
    let site =
        Site::start(STRICT_POLICY, &[("/", &html(body)), ("/page.js", script), ("/data", "data")]).await;
    let (_browser, page) = open(WindowOptions::default()).await;
    page.goto(&site.url("/")).await;
    page.wait_for("body.done").await;
    page.assert_clean().await;
    page.assert_accessible().await;
    // The policy applies to neither the checks nor the other scripts of tests.
    page.assert_clean().await;
}

#[tokio::test]
async fn console_errors_and_exceptions_are_found() {
    let script = "console.error('planted error'); console.warn('planted warning');
        Promise.reject(new Error('planted rejection'));
        const done = () => document.body.className = 'done';
        setTimeout(() => { setTimeout(done); throw new Error('planted exception') });";
    let problems = problems_of(script).await;
    assert_found(&problems, ProblemKind::Console, "planted error");
    assert_found(&problems, ProblemKind::Console, "planted warning");
    assert_found(&problems, ProblemKind::Exception, "planted rejection");
    assert_found(&problems, ProblemKind::Exception, "planted exception");
}

#[tokio::test]
async fn violations_of_the_policy_are_found() {
    let body = "<p style='color: red'>x</p><script>planted()</script><script src='/page.js'></script>";
    let script =
        "document.addEventListener('securitypolicyviolation', () => document.body.className = 'done');
                  try { document.querySelector('p').innerHTML = '<b>planted</b>' } catch {}";
    let site = Site::start(STRICT_POLICY, &[("/", &html(body)), ("/page.js", script)]).await;
    let (_browser, page) = open(WindowOptions::default()).await;
    page.goto(&site.url("/")).await;
    page.wait_for("body.done").await;
    let problems = page.problems().await;
    assert_found(&problems, ProblemKind::Security, "style-src");
    assert_found(&problems, ProblemKind::Security, "script-src");
    assert_found(&problems, ProblemKind::Security, "TrustedHTML");
    assert_eq!(page.problems().await, [], "each is reported once");
}

#[tokio::test]
async fn requests_to_other_origins_are_found() {
    let other = Site::start("default-src 'none'", &[("/", "")]).await;
    let body = format!("<img id=a alt='' src='{}'><img alt='' src='http://example.com/b'>", other.url("/"));
    let site = Site::start("default-src *", &[("/", &html(&body))]).await;
    let (browser, page) = open(WindowOptions::default()).await;
    page.goto(&site.url("/")).await;
    let problems = page.problems().await;
    assert_found(&problems, ProblemKind::ForeignRequest, &other.url("/"));
    assert_found(&problems, ProblemKind::ForeignRequest, "http://example.com/b");
    // It did not leave this machine.
    assert_found(&problems, ProblemKind::FailedRequest, "http://example.com/b: net::ERR_NAME_NOT_RESOLVED");

    let options = WindowOptions { allowed_origins: vec![other.url("")], ..WindowOptions::default() };
    let page = browser.window(options).await;
    page.goto(&site.url("/")).await;
    let problems = page.problems().await;
    let is_foreign = |problem: &&Problem| problem.kind == ProblemKind::ForeignRequest;
    assert_eq!(problems.iter().filter(is_foreign).count(), 1, "{problems:#?}");
}

#[tokio::test]
async fn failed_requests_are_found_once() {
    let site = Site::start("", &[("/", &html("<img alt='' src='/absent'>"))]).await;
    let (_browser, page) = open(WindowOptions::default()).await;
    page.goto(&site.url("/")).await;
    let expected = Problem {
        kind: ProblemKind::FailedRequest,
        text: format!("GET {}: status 404", site.url("/absent")),
    };
    assert_eq!(page.problems().await, [expected]);

    page.set_offline(true).await;
    page.eval("return fetch('/', { cache: 'no-store' }).catch(() => 0)", &[]).await;
    assert_found(&page.problems().await, ProblemKind::FailedRequest, "ERR_INTERNET_DISCONNECTED");
    page.set_offline(false).await;
    let status = page.eval("return fetch('/', { cache: 'no-store' }).then(r => r.status)", &[]).await;
    assert_eq!(status, 200);
    page.assert_clean().await;
}

#[tokio::test]
async fn accessibility_faults_are_found() {
    let policy = "default-src 'none'; style-src 'unsafe-inline'; require-trusted-types-for 'script'";
    let body = "<p style='color: #bbb; background: #fff'>Pale</p><input id=name><button id=empty></button>";
    let site = Site::start(policy, &[("/", &html(body))]).await;
    let (_browser, page) = open(WindowOptions::default()).await;
    page.goto(&site.url("/")).await;
    let violations = page.axe().await;
    for (rule, selector) in [("color-contrast", "p"), ("label", "#name"), ("button-name", "#empty")] {
        let violation = violations.iter().find(|violation| violation.rule == rule);
        let violation = violation.unwrap_or_else(|| panic!("no {rule} in {violations:#?}"));
        assert!(violation.elements[0].starts_with(&format!("[\"{selector}\"]")), "{violation}");
    }
    page.assert_clean().await;
}

#[tokio::test]
async fn assertions_fail_with_the_problems() {
    let site = Site::start("", &[("/", &html("<img src='/absent'>"))]).await;
    let (_browser, page) = open(WindowOptions::default()).await;
    page.goto(&site.url("/")).await;
    let page = std::sync::Arc::new(page);
    let failure = async |checked: fn(std::sync::Arc<Page>) -> tokio::task::JoinHandle<()>| {
        let error = checked(std::sync::Arc::clone(&page)).await.expect_err("fails");
        error.into_panic().downcast_ref::<String>().expect("a message").clone()
    };
    let message = failure(|page| tokio::spawn(async move { page.assert_clean().await })).await;
    assert!(message.contains("1 problems") && message.contains("/absent: status 404"), "{message}");
    let message = failure(|page| tokio::spawn(async move { page.assert_accessible().await })).await;
    assert!(message.contains("image-alt (critical)"), "{message}");
}
