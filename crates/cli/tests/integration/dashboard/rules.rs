//! Policies and delegations in real Chromium: from a sentence to a simulation, a replay and into force, by administrators who do not
//! get in each other's way.

use ade_domain::people::{ADMIN, REVIEWER};
use ade_testkit::Deployment;
use ade_testkit::browser::Browser;
use ade_testkit::deployment::text_field;
use serde_json::json;

use super::appearance::check_all;
use super::{Dashboard, note, says, window};

const HOSTILE: &str = "<script>alert(1)</script>\"'\u{202e}x";

/// The path of the page of a policy.
async fn policy(dashboard: &Dashboard, name: &str) -> String {
    let policies = dashboard.api.get("/policies").await.expect_status(200);
    let mut policies = policies["items"].as_array().expect("a list").iter();
    let found = policies.find(|policy| policy["name"] == name).expect("a policy of the demo");
    format!("/policies/{}", text_field(found, "policy_id"))
}

#[tokio::test]
async fn a_policy_is_edited_simulated_replayed_and_put_in_force() {
    let dashboard = Dashboard::start().await;
    let page = dashboard.open("erin", "/policies").await;
    says(&page, "2 different people with the role dba or reviewer must approve").await;
    let path = policy(&dashboard, "production databases").await;
    page.goto(&dashboard.url(&path)).await;
    page.fill("[name=min_approvers]", "3").await;
    page.click("#editor button[type=submit]").await;
    page.wait_for("[data-notice]").await;
    assert!(page.text("#in-force").await.contains("2 different people"), "a draft is not active");
    assert!(page.text("#draft").await.contains("3 different people"));
    assert_eq!(page.texts("#differences tbody td").await, ["2 people", "3 people"]);

    let task = "type: migration\ndescription: Add a column\nresources:\n  - { type: database, id: prod-x }\n";
    page.fill("#simulate textarea", task).await;
    page.click("#simulate button").await;
    says(&page, "3 approvals would be needed").await;
    says(&page, "By the active rules: 2 approvals would be needed").await;
    says(&page, "Why not automatically").await;

    page.goto(&dashboard.url(&path)).await;
    page.click("form[action$='/replay'] button").await;
    says(&page, "Activate: 1 of 9 decisions would change").await;
    page.click("form[action$='/activate'] button").await;
    page.wait_for("[data-notice]").await;
    assert!(page.text("#in-force").await.contains("3 different people"));
    // What cannot be undone takes a step that says its effect.
    assert!(!page.is_visible("form[action$='/deactivate'] button").await);
    page.click("#deactivate > summary").await;
    page.click("form[action$='/deactivate'] button").await;
    says(&page, "draft only").await;
    assert!(!page.is_visible("form[action$='/delete'] button").await);
    page.click("#delete summary").await;
    page.click("form[action$='/delete'] button").await;
    says(&page, "It was deleted.").await;
    assert!(!page.text("#policies").await.contains("production databases"));
    page.assert_clean().await;
}

#[tokio::test]
async fn what_cannot_be_read_changes_nothing_and_is_kept() {
    let dashboard = Dashboard::start().await;
    let path = policy(&dashboard, "docs").await;
    let page = dashboard.open("erin", &path).await;
    // Somebody else is faster.
    let erin = dashboard.session("erin").await;
    let _ = erin.patch(&path, &json!({ "min_approvers": 2 })).await.expect_status(200);
    page.fill("[name=task_types]", "docs").await;
    page.click("#editor button[type=submit]").await;
    says(&page, "Somebody else changed this policy").await;
    assert_eq!(
        page.eval("return document.querySelector('[name=task_types]').value", &[]).await,
        json!("docs")
    );
    assert!(
        page.text("#draft").await.contains("2 different reviewers"),
        "what the other one saved is beside it"
    );
    page.click("#editor button[type=submit]").await;
    page.wait_for("[data-notice]").await;
    page.fill("#simulate textarea", "type: docs\nbogus: 1\n").await;
    page.click("#simulate button").await;
    says(&page, "unknown field `bogus`").await;
    assert!(
        page.eval("return document.querySelector('#simulate textarea').value", &[])
            .await
            .to_string()
            .contains("bogus")
    );
}

#[tokio::test]
async fn changes_that_wait_are_explained_and_names_stay_text() {
    let browser = Browser::start().await.expect("starts");
    let config = "[security]\ndual_control = true\n";
    let deployment = Deployment::embedded_with_config(env!("CARGO_BIN_EXE_ade"), config);
    let (org, url) = (deployment.admin().await, deployment.server().url());
    // The first installation has an administrator: with erin, there are two.
    let carol = org.join_and_sign_in("carol", &[REVIEWER], "correct horse battery staple").await;
    let erin = org.join_and_sign_in("erin", &[ADMIN], "correct horse battery staple").await;
    let created = erin.post("/policies", &json!({ "name": HOSTILE, "reviewers": [HOSTILE] })).await;
    let path = format!("/policies/{}", text_field(&created.expect_status(201), "policy_id"));
    let page = window(&browser, &url, &erin, &path).await;
    page.click("form[action$='/replay'] button").await;
    says(&page, "Activate: none of 0 decisions would change").await;
    page.click("form[action$='/activate'] button").await;
    says(&page, "The change waits for a second administrator.").await;
    says(&page, "draft only").await;
    let list = window(&browser, &url, &erin, "/policies").await;
    // Reviewers see rules, but neither change them nor see what waits.
    let reviewer = window(&browser, &url, &carol, &path).await;
    assert_eq!(reviewer.texts("main button").await, ["Simulate"]);
    for (page, is_pending) in [(page, true), (list, true), (reviewer, false)] {
        let html = page.eval("return document.documentElement.innerHTML", &[]).await.to_string();
        assert!(!html.contains("<script>alert") && !html.contains("\\u202e"), "{html}");
        assert!(!page.title().await.contains('\u{202e}'));
        assert!(page.text("main").await.contains("<script>alert(1)</script>\"'⟦U+202E⟧x"));
        assert_eq!(page.is_visible("#pending").await, is_pending);
        page.assert_clean().await;
    }
}

#[tokio::test]
async fn delegations_are_drawn_checked_and_ended() {
    let dashboard = Dashboard::start().await;
    let page = dashboard.open("alice", "/delegations").await;
    assert_eq!(page.texts("#delegations .row-link").await, ["alice"], "the own ones only");
    page.click(".head a.button").await;
    page.fill("[name=delegate_to]", "mia").await;
    page.click("[value=follow]").await;
    page.fill("[name=task_types]", HOSTILE).await;
    page.click("main button[type=submit]").await;
    says(&page, "It was created.").await;
    assert_eq!(page.eval("return document.querySelectorAll('.arrow.follow').length", &[]).await, json!(1));
    page.fill("[name=type]", "infrastructure").await;
    page.fill("[name=resource]", "service:prod-lb").await;
    page.click("#check button").await;
    says(&page, "alice → bob → carol").await;
    assert_eq!(page.eval("return document.querySelectorAll('.arrow.taken').length", &[]).await, json!(1));
    // A second window sees at once that it ends.
    let second = dashboard.open("bob", "/delegations").await;
    assert_eq!(second.texts("#delegations .chip").await, ["✓ active", "✓ active"]);
    page.goto(&dashboard.url("/delegations")).await;
    page.click("#delegations .row-link").await;
    page.click("form[action$='/end'] button").await;
    says(&page, "– ended").await;
    second.wait_until("document.getElementById('delegations').textContent.includes('– ended')").await;
    for page in [page, second] {
        page.assert_clean().await;
    }
}

#[tokio::test]
async fn pages_of_rules_and_activity_are_accessible_and_fit() {
    let dashboard = Dashboard::start().await;
    let _ = dashboard.propose(&note(HOSTILE)).await;
    let mut paths: Vec<String> =
        ["/policies", "/policies/new", "/delegations", "/delegations/new", "/activity"]
            .iter()
            .map(|path| (*path).to_owned())
            .collect();
    paths.extend(["/activity?view=charts".to_owned(), "/activity?events=archive:*".to_owned()]);
    paths.push(policy(&dashboard, "docs").await);
    check_all(&dashboard, "erin", &paths).await;
}
