//! The pages of agents: health, configuration, tokens, and the wizard from nothing to an agent that proposes over HTTP with the
//! commands that it shows.

use std::process::Command;

use ade_testkit::api::ApiClient;
use ade_testkit::browser::{Page, WindowOptions};
use serde_json::json;

use super::Dashboard;

const SCRIPT: &str = "<script>document.title = 'taken'</script>\u{202e}";

async fn next(page: &Page, step: usize) {
    page.click("form button.primary").await;
    page.wait_until(&format!("new URL(location).searchParams.get('step') === '{step}'")).await;
}

#[tokio::test]
async fn the_wizard_makes_an_agent_whose_commands_propose_a_task() {
    let dashboard = Dashboard::start_with("").await;
    let page = dashboard.open("ann", "/agents").await;
    page.click("a[href='/agents/new']").await;
    page.wait_for("input[name=agent_id]").await;
    page.fill("input[name=agent_id]", "schema-migrator").await;
    // The name is taken: the API says so, on the step where it is typed.
    page.click("form button.primary").await;
    page.wait_for("[data-alert]").await;
    assert!(page.text("[data-alert]").await.contains("AGENT_EXISTS"));
    assert!(page.text("h1").await.contains("Identity"));
    page.fill("input[name=agent_id]", "docs-bot").await;
    page.fill("input[name=name]", SCRIPT).await;
    next(&page, 2).await;
    page.fill("textarea[name=capabilities]", "docs.write").await;
    next(&page, 3).await;
    page.fill("textarea[name=config]", "not json").await;
    page.click("form button.primary").await;
    page.wait_for("[data-alert]").await;
    assert!(page.text("[data-alert]").await.contains("must be a JSON object"));
    page.fill("textarea[name=config]", "{\"region\": \"eu\"}").await;
    next(&page, 4).await;
    page.fill("input[name=type]", "docs.publish").await;
    page.fill("input[name=description]", "Publish it's page").await;
    page.fill("textarea[name=resources]", "database:prod-orders").await;
    page.click_through("button[value='4']").await;
    page.wait_for("#simulation").await;
    let simulation = page.text("#simulation").await;
    assert!(simulation.contains("approval") && simulation.contains("Risk"), "{simulation}");
    page.assert_accessible().await;
    assert_eq!(
        page.eval("return document.querySelector('[name=type]').value", &[]).await,
        json!("docs.publish")
    );
    page.click("button[value='3']").await;
    page.wait_for("textarea[name=config]").await;
    let config = page.eval("return document.querySelector('[name=config]').value", &[]).await;
    assert_eq!(config, json!("{\"region\": \"eu\"}"));
    next(&page, 4).await;
    // A link runs nothing: only the form of the page does.
    assert!(!page.text("main").await.contains("Such a task would"));
    page.click_through("form button.primary").await;
    page.wait_for("form[method=post][action='/agents/new']").await;
    assert!(page.text("#simulation").await.contains("Risk"));
    let review = page.text("main").await;
    assert!(
        review.contains("docs-bot") && review.contains("docs.write") && review.contains("⟦U+202E⟧"),
        "{review}"
    );
    page.assert_clean().await;
    page.click("form[method=post][action='/agents/new'] button").await;
    page.wait_for("#snippet").await;
    page.assert_accessible().await;
    let snippet = page.text("#snippet").await;
    assert!(snippet.contains(&dashboard.server.url()), "the address that the visitor used: {snippet}");

    let run = Command::new("sh").args(["-c", &snippet]).output().expect("runs");
    let output = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success(), "{output}{}", String::from_utf8_lossy(&run.stderr));
    let id = output.trim().rsplit('/').next().expect("an id").to_owned();
    assert!(output.starts_with("proposed http"), "{output}");
    let task = dashboard.api.get(&format!("/tasks/{id}")).await.expect_status(200);
    assert_eq!(task["metadata"]["lineage"]["agent_id"], "docs-bot");
    assert_eq!(task["config"]["description"], "Publish it's page");
    assert_ne!(task["state"], "DRAFT");
    let found = dashboard.api.get("/tasks?agent=docs-bot").await.expect_status(200);
    assert_eq!(found["items"][0]["task_id"], id.as_str());

    // The secret is gone with the page, and the token can be revoked.
    let secret = page.text("#token").await;
    page.goto(&dashboard.url("/agents/docs-bot")).await;
    assert!(!page.text("main").await.contains(&secret));
    assert!(page.text("#tasks").await.contains("Publish it's page"));
    assert_eq!(dashboard.api.with_token(&secret).get("/tasks").await.status, 200);
    page.click("#tokens .danger-button").await;
    page.wait_for("[data-notice]").await;
    assert_eq!(dashboard.api.with_token(&secret).get("/tasks").await.status, 401);
    page.assert_accessible().await;
    page.assert_clean().await;
}

#[tokio::test]
async fn an_agent_is_drained_and_edited_and_a_stale_edit_says_so() {
    let dashboard = Dashboard::start_with("").await;
    let page = dashboard.open("ann", "/agents/schema-migrator").await;
    page.click("form[action$='/drain'] button").await;
    page.wait_for("form[action$='/resume']").await;
    assert!(page.text(".byline").await.contains("draining"));
    page.click("form[action$='/resume'] button").await;
    page.wait_for("form[action$='/drain']").await;

    // Somebody else changes it while Ann types.
    page.fill("#configuration input[name=model]", "model-2").await;
    let other = dashboard.session("erin").await;
    let _ = other.patch("/agents/schema-migrator", &json!({ "version": "9" })).await.expect_status(200);
    page.click("#configuration button").await;
    page.wait_for("#configuration [data-alert]").await;
    let told = page.text("#configuration").await;
    assert!(told.contains("Somebody else changed this agent"), "{told}");
    let typed = page.eval("return document.querySelector('[name=model]').value", &[]).await;
    assert_eq!(typed, json!("model-2"), "what was typed is kept");
    let now = dashboard.api.get("/agents/schema-migrator").await.expect_status(200);
    assert_eq!((&now["model"], &now["version"]), (&json!(null), &json!("9")));
    page.goto(&dashboard.url("/agents/schema-migrator")).await;
    page.fill("#configuration input[name=model]", "model-2").await;
    page.click("#configuration button").await;
    page.wait_for("[data-notice]").await;
    let now = dashboard.api.get("/agents/schema-migrator").await.expect_status(200);
    assert_eq!((&now["model"], &now["version"]), (&json!("model-2"), &json!("9")));

    // Others see it, and change nothing.
    let page = dashboard.open("carol", "/agents/schema-migrator").await;
    assert_eq!(page.texts("#configuration form, #tokens, #messages, form[action$='/drain']").await.len(), 0);
    page.assert_clean().await;
}

#[tokio::test]
async fn agents_that_need_attention_are_first_with_words_for_their_outcomes() {
    let dashboard = Dashboard::start_with("").await;
    let api = &dashboard.api;
    for id in ["a-active", "z-draining"] {
        let body = json!({ "agent_id": id, "name": format!("{id}{SCRIPT}"), "sponsor_id": "ann" });
        let _ = api.post("/agents", &body).await.expect_status(201);
    }
    let _ = api.request("POST", "/agents/z-draining/drain", "").await.expect_status(200);
    let ids = async |query: &str| {
        let page = api.get(&format!("/stats/agents{query}")).await.expect_status(200);
        let items = page["items"].as_array().cloned().unwrap_or_default();
        items
            .iter()
            .map(|item| item["agent"]["agent_id"].as_str().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(ids("?sponsor=ann&text=-").await, ["z-draining", "a-active", "schema-migrator"]);
    assert_eq!(ids("?status=draining").await, ["z-draining"]);
    let first = api.get("/stats/agents?limit=1").await.expect_status(200);
    let cursor = first["next_cursor"].as_str().expect("more");
    assert!(
        !ids(&format!("?cursor={}", ade_testkit::api::encode_segment(cursor)))
            .await
            .contains(&"z-draining".to_owned())
    );
    let _ = api.get("/stats/agents?status=ill").await.expect_problem(422, "INVALID_REQUEST");
    let _ = api.get("/stats/agents?cursor=ill").await.expect_problem(422, "INVALID_REQUEST");
    for view in ["list", "grid"] {
        let page = dashboard.open("carol", &format!("/agents?view={view}")).await;
        let rows = page.texts("[data-list] > [data-row]").await;
        assert!(rows[0].contains("draining") && rows[0].contains("⟦U+202E⟧"), "{rows:?}");
        assert!(
            rows.iter().all(|row| row.contains("completed")
                || row.contains("no task has ended")
                || row.contains("failed")),
            "{rows:?}"
        );
        page.assert_accessible().await;
        page.assert_clean().await;
    }
    let page = dashboard.window("carol", WindowOptions::phone()).await;
    page.goto(&dashboard.url("/agents?view=list")).await;
    let width = page.eval("return document.documentElement.scrollWidth - innerWidth", &[]).await;
    assert_eq!(width, json!(0), "no sideways scrolling");
}

#[tokio::test]
async fn a_trial_registration_is_refused_like_a_real_one_and_changes_nothing() {
    let dashboard = Dashboard::start_with("").await;
    let api: &ApiClient = &dashboard.api;
    let made = api
        .post("/agents?dry_run=true", &json!({ "agent_id": "trial", "max_tasks": 3 }))
        .await
        .expect_status(200);
    assert_eq!((&made["agent_id"], &made["max_tasks"]), (&json!("trial"), &json!(3)));
    let _ = api.get("/agents/trial").await.expect_problem(404, "AGENT_NOT_FOUND");
    for (body, status, code) in [
        (json!({ "agent_id": "schema-migrator" }), 409, "AGENT_EXISTS"),
        (json!({ "agent_id": "trial", "max_tasks": 0 }), 422, "INVALID_REQUEST"),
        (json!({ "agent_id": "trial", "parent_agent_id": "nobody" }), 422, "INVALID_REQUEST"),
        (json!({ "agent_id": "trial", "accepts": ["nonsense"] }), 422, "INVALID_REQUEST"),
    ] {
        let trial = api.post("/agents?dry_run=true", &body).await.expect_problem(status, code);
        let real = api.post("/agents", &body).await.expect_problem(status, code);
        assert_eq!(trial["detail"], real["detail"], "{body}");
    }
}
