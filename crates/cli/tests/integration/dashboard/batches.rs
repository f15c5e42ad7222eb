//! The same decision about many requests: 20 with one that is too risky, and one that has changed meanwhile.

use serde_json::json;

use super::{Dashboard, READY, note};

#[tokio::test]
async fn twenty_are_decided_together_without_the_risky_one() {
    let dashboard = Dashboard::start().await;
    let mut tasks = Vec::new();
    for number in 0..19 {
        tasks.push(dashboard.propose(&note(&format!("Routine note {number}"))).await);
    }
    let page = dashboard.open("carol", "/inbox").await;
    let chosen = "const rows = [...document.querySelectorAll('#queue [data-row]')]; \
                  const routine = rows.filter((row) => row.textContent.includes('Routine note')); \
                  for (const row of routine) row.querySelector('input').click(); return routine.length";
    assert_eq!(page.eval(chosen, &[]).await, json!(19));
    page.wait_until("document.querySelector('[data-batch-count]').textContent === '19 selected'").await;
    // The first of the demo is HIGH. The list does not offer it, but an address can.
    let address = "const rows = [...document.querySelectorAll('#queue [data-row]')]; \
                   const chosen = rows.filter((row) => /HIGH|Routine note/.test(row.textContent)); \
                   const risky = chosen.find((row) => row.textContent.includes('HIGH')); \
                   const items = [risky, ...chosen.filter((row) => row.textContent.includes('Routine'))]; \
                   const query = new URLSearchParams(items.map((row) => ['item', row.querySelector('input').value])); \
                   return `/inbox/batch?${query}`";
    let address = page.eval(address, &[]).await;
    page.goto(&dashboard.url(address.as_str().expect("an address"))).await;
    page.wait_until("document.querySelector('h1').textContent.includes('19 requests together, 1 must be decided on its own')")
        .await;
    assert!(page.text("#main").await.contains("HIGH must be decided on its own"));
    page.wait_until(READY).await;
    page.click("#batch .approve").await;
    page.wait_until("document.querySelector('[data-notice]')?.textContent.includes('All selected')").await;
    for task in &tasks {
        assert_ne!(dashboard.state(task).await, "REVIEWING");
    }
    page.assert_clean().await;
}

#[tokio::test]
async fn one_that_changed_stops_all_and_is_named() {
    let dashboard = Dashboard::start().await;
    let (first, second) =
        (dashboard.propose(&note("Stays as it is")).await, dashboard.propose(&note("Will change")).await);
    let page = dashboard.open("carol", "/inbox").await;
    let chosen = "for (const row of document.querySelectorAll('#queue [data-row]')) \
                  if (/Stays as it is|Will change/.test(row.textContent)) row.querySelector('input').click()";
    page.eval(chosen, &[]).await;
    page.click("[data-batch-bar] button").await;
    page.wait_until("document.querySelector('h1').textContent.includes('2 requests together')").await;
    let ann = dashboard.ann().await;
    let changed = json!({ "description": "Has changed" });
    let _ = ann.patch(&format!("/tasks/{second}"), &changed).await.expect_status(200);
    page.wait_until(READY).await;
    page.click("#batch .approve").await;
    let failures = page.text("ul.alert").await;
    assert!(failures.contains("Has changed:") && !failures.contains("Stays as it is"), "{failures}");
    assert_eq!(dashboard.state(&first).await, "REVIEWING", "none is decided");
}

/// Authors declare equal previews for tasks that do different things: the page shows what each of them does.
#[tokio::test]
async fn declared_previews_do_not_hide_parameters() {
    let dashboard = Dashboard::start().await;
    let declared = |step: &str| {
        json!({
            "type": "note", "description": format!("Routine {step}"), "executor": "agent",
            "parameters": { "capability": "schema", "step": step },
            "preview": { "changes": [{ "kind": "update", "what": "README", "diff": "-teh\n+the" }] },
        })
    };
    let routine = json!({ "pattern": "capability:*", "criticality": 5 });
    let _ = dashboard.api.post("/resources", &routine).await.expect_status(201);
    for step in ["fix a typo", "drop everything"] {
        let _ = dashboard.propose(&declared(step)).await;
    }
    let page = dashboard.open("carol", "/inbox").await;
    let chosen = "for (const row of document.querySelectorAll('#queue [data-row]')) \
                  if (/Routine/.test(row.textContent)) row.querySelector('input').click()";
    page.eval(chosen, &[]).await;
    page.click("[data-batch-bar] button").await;
    page.wait_until("document.querySelector('h1').textContent.includes('Decide 2 requests together')").await;
    let shown = page.text("#main").await;
    for part in ["\"step\": \"fix a typo\"", "\"step\": \"drop everything\"", "could not verify this preview"]
    {
        assert!(shown.contains(part), "{part} is missing in {shown}");
    }
    assert!(!shown.contains("the same effects"), "{shown}");
    page.assert_clean().await;
}
