//! Settings in real Chromium: a webhook from its creation to its deletion, and a flag that waits for a second administrator.

use std::time::Duration;

use ade_domain::people::ADMIN;
use ade_domain::permission::Scope;
use ade_domain::webhook::delivery::CIRCUIT_THRESHOLD;
use ade_testkit::browser::Browser;
use ade_testkit::deployment::text_field;
use ade_testkit::wait::until;
use ade_testkit::webhook_receiver::Reply;
use ade_testkit::{Deployment, WebhookReceiver};
use serde_json::json;

use super::{Dashboard, says, window};

/// Only a hang reaches it, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
const PASSWORD: &str = "correct horse battery staple";

#[tokio::test]
async fn webhook_is_created_tested_and_its_secret_shown_once() {
    let mut receiver = WebhookReceiver::start().await;
    let config = format!("[webhooks]\nallowed_private_hosts = [\"{}\"]\n", receiver.host());
    let dashboard = Dashboard::start_with(&config).await;
    let page = dashboard.open("erin", "/settings/webhooks/new").await;
    page.fill("[name=name]", "ci").await;
    page.fill("[name=url]", &receiver.url("/hook")).await;
    page.fill("[name=events]", "user:created").await;
    page.click("main form[data-native] button[type=submit]").await;
    let secret = page.text("#new-secret").await;
    assert!(secret.starts_with("whsec_"), "{secret}");
    page.click("a.button").await;
    page.click("form[action$='/test'] button").await;
    says(&page, "webhook:test").await;
    assert_eq!(receiver.next_request().await.json()["type"], "webhook:test");
    says(&page, "delivered").await;
    let html = page.eval("return document.documentElement.innerHTML", &[]).await.to_string();
    assert!(!html.contains(&secret), "the secret is shown once");
    page.click("form[action$='/rotate'] button").await;
    let rotated = page.text("#new-secret").await;
    assert!(rotated.starts_with("whsec_") && rotated != secret);
    page.click("a.button").await;
    says(&page, "signs too, for another").await;
    page.click(".danger-button").await;
    page.click("form[action$='/delete'] button").await;
    says(&page, "It was deleted.").await;
    page.assert_clean().await;
}

#[tokio::test]
async fn webhook_that_fails_looks_so_and_says_until_when_it_is_paused() {
    let receiver = WebhookReceiver::start().await;
    receiver.reply_with(Reply::Status(500));
    let config = format!("[webhooks]\nallowed_private_hosts = [\"{}\"]\n", receiver.host());
    let dashboard = Dashboard::start_with(&config).await;
    let webhook = json!({ "name": "ci", "url": receiver.url("/hook"), "format": "standard", "events": ["user:created"] });
    let webhook = dashboard.api.post("/webhooks", &webhook).await.expect_status(201);
    let path = format!("/webhooks/{}", text_field(&webhook, "webhook_id"));
    let test = async || {
        let _ = dashboard.api.post(&format!("{path}/test"), &json!({})).await.expect_status(202);
    };
    for _ in 0..CIRCUIT_THRESHOLD {
        test().await;
    }
    let is_open = || async {
        let webhook = dashboard.api.get(&path).await.expect_status(200);
        if webhook["circuit"] == "open" { Ok(()) } else { Err(webhook.to_string()) }
    };
    until("an open circuit", TIMEOUT, is_open).await.expect("opens");
    test().await;
    let page = dashboard.open("erin", &format!("/settings{path}")).await;
    let trouble = page.text("#trouble").await;
    for part in ["paused after several failures", "Nothing is sent for another", "6 deliveries wait.", "500"]
    {
        assert!(trouble.contains(part), "{part}: {trouble}");
    }
    let chips = page.texts("#deliveries .chip").await;
    assert_eq!(chips.iter().filter(|chip| chip.contains("retrying")).count(), 5, "{chips:?}");
    assert!(chips[0].contains("waits, destination paused"), "the newest was never sent: {chips:?}");
    assert!(!page.text("#deliveries").await.contains("next try"), "nothing is tried while it is paused");
    page.assert_accessible().await;
    page.assert_clean().await;
}

#[tokio::test]
async fn flag_waits_for_a_second_administrator() {
    let browser = Browser::start().await.expect("starts");
    let config = "[security]\ndual_control = true\nbootstrap_decides = true\n";
    let deployment = Deployment::embedded_with_config(env!("CARGO_BIN_EXE_ade"), config);
    let (org, url) = (deployment.admin().await, deployment.server().url());
    let erin = org.join_and_sign_in("erin", &[ADMIN], PASSWORD).await;
    // The first installation has an administrator.
    let admin = org.issue_token("admin", &Scope::ALL).await;
    let is_on = async || {
        let flags = erin.get("/features").await.expect_status(200);
        let flag =
            flags["items"].as_array().expect("a list").iter().find(|flag| flag["flag"] == "batch_approvals");
        flag.expect("the flag")["enabled"] == json!(true)
    };
    let before = is_on().await;
    let page = window(&browser, &url, &erin, "/settings/features").await;
    page.click("tr[data-row=batch_approvals] button").await;
    says(&page, "The change waits for a second administrator.").await;
    says(&page, "You proposed it").await;
    assert!(!page.is_visible("form[action$='/confirm']").await);
    assert_eq!(is_on().await, before, "it is not effective");
    let waiting = admin.get("/changes").await.expect_status(200);
    let confirm = format!("/changes/{}/confirm", text_field(&waiting["items"][0], "change_id"));
    let _ = admin.post(&confirm, &json!({})).await.expect_status(200);
    says(&page, "Nothing waits").await;
    assert_ne!(is_on().await, before);
    page.assert_clean().await;
}
