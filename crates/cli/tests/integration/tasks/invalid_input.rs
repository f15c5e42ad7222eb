//! Unusual and invalid names, texts and numbers over HTTP. Both databases accept and refuse the same input with a documented
//! status, and accepted input never breaks a list.

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_testkit::Deployment;
use ade_testkit::api::ApiClient;
use ade_testkit::deployment::{task, text_field};
use serde_json::{Value, json};

use crate::tasks::all_pages;

fn nested(depth: usize) -> Value {
    (0..depth).fold(json!(1), |inner, _| json!({ "a": inner }))
}

/// Sends all input and returns the status of each request.
async fn send_all(deployment: &Deployment) -> Vec<(String, u16)> {
    let org = deployment.admin().await;
    let ada = org.create_user("ada", &[ADMIN, AUTHOR]).await;
    let rex = org.create_user("rex", &[REVIEWER]).await;
    let mut statuses = Vec::new();
    let mut record = |what: String, response: ade_testkit::api::ApiResponse| {
        assert!(response.status < 500, "{what}: {}", response.text());
        statuses.push((what, response.status));
        response
    };
    // Names in paths.
    let long = "x".repeat(5_000);
    let names = ["%00", "a%00b", "%ff", "%C3%BC", "..%2F..", "%20", "me", "*", "name:default", long.as_str()];
    for (method, path, _) in org.api.operations() {
        if !path.contains('{') {
            continue;
        }
        for name in names {
            let parts = path.split('/').map(|part| if part.starts_with('{') { name } else { part });
            let path_with_name = parts.collect::<Vec<_>>().join("/");
            let shortened: String = path_with_name.chars().take(80).collect();
            let response = ada.request(&method, &path_with_name, "{}").await;
            // `me` is the caller, so the status depends on their state.
            if name != "me" {
                record(format!("{method} {shortened}"), response);
            }
        }
    }
    // Query parameters of lists.
    for (method, path, operation) in org.api.operations() {
        if method != "GET" || path.contains('{') || path.starts_with("/locks") {
            continue;
        }
        let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
        let mut queries: Vec<String> = vec!["no_such=1".to_owned()];
        for name in parameters.iter().map(|parameter| text_field(parameter, "name")) {
            queries.extend(
                ["%00", "%FF", "", "-1", "x", "99999999999999999999"].map(|value| format!("{name}={value}")),
            );
        }
        for query in queries {
            let response = ada.get(&format!("{path}?{query}")).await;
            record(format!("GET {path}?{query}"), response);
        }
    }
    // Texts in bodies.
    for unusual in ["a\u{0}b", "\u{feff}", "\u{202e}", "\u{10ffff}", " "] {
        let escaped: String = unusual.escape_default().collect();
        let mut bodies = vec![
            ("/users", json!({ "user_id": unusual })),
            ("/users", json!({ "user_id": format!("u{}", unusual.len()), "name": unusual })),
            ("/users", json!({ "user_id": format!("r{}", unusual.len()), "roles": [unusual] })),
            ("/users", json!({ "user_id": format!("m{}", unusual.len()), "manager_id": unusual })),
            ("/users/ada/tokens", json!({ "name": unusual })),
            ("/policies", json!({ "name": unusual })),
            (
                "/policies",
                json!({ "name": format!("p {escaped}"), "task_types": [unusual], "reviewers": [unusual], "required_roles": [unusual] }),
            ),
            ("/policies", json!({ "name": format!("w {escaped}"), "window": { "time_zone": unusual } })),
            ("/resources", json!({ "pattern": unusual, "criticality": 1 })),
            ("/delegations", json!({ "owner_id": unusual, "delegate_to": "rex" })),
            (
                "/delegations",
                json!({ "owner_id": "ada", "delegate_to": "rex", "active": false, "conditions": { "task_types": [unusual] } }),
            ),
            ("/agents", json!({ "agent_id": unusual })),
            (
                "/agents",
                json!({ "agent_id": format!("a{}", unusual.len()), "name": unusual, "config": { "a": unusual } }),
            ),
            ("/sessions", json!({ "user_id": unusual, "password": unusual })),
            ("/simulations", json!({ "task": task(json!({ "description": unusual })) })),
        ];
        for fields in [
            json!({ "type": unusual }),
            json!({ "description": unusual }),
            json!({ "parameters": { "a": unusual } }),
            json!({ "parameters": { unusual: 1 } }),
            json!({ "resources": [{ "type": unusual, "id": "a" }] }),
            json!({ "resources": [{ "type": "a", "id": unusual }] }),
            json!({ "tags": [unusual] }),
            json!({ "team": unusual }),
            json!({ "lineage": { "agent_id": unusual } }),
            json!({ "executor": "agent", "preview": { "warnings": [unusual] } }),
        ] {
            bodies.push(("/tasks", task(fields)));
        }
        for (path, body) in bodies {
            let response = ada.post(path, &body).await;
            record(format!("POST {path} {body}").escape_default().to_string(), response);
        }
        let id = ada.create_submitted(json!({})).await;
        let request = org.approval_id(&id, "rex").await;
        let response = ada.post(&format!("/tasks/{id}/comments"), &json!({ "text": unusual })).await;
        record(format!("comment {escaped}"), response);
        let response = rex.post(&format!("/approvals/{request}/delegate"), &json!({ "to": unusual })).await;
        record(format!("delegate {escaped}"), response);
        let response = rex.post(&format!("/approvals/{request}/reject"), &json!({ "reason": unusual })).await;
        record(format!("reject {escaped}"), response);
    }
    // Nesting depth and number range.
    for depth in [60, 62, 63, 100, 120, 126, 130] {
        let response = ada.post("/tasks", &task(json!({ "parameters": nested(depth) }))).await;
        record(format!("{depth} deep"), response);
    }
    for number in
        ["-0.0", "1e300", "1e400", "123456789012345678901234567890", "0.1", "1E2", "9007199254740993"]
    {
        let body =
            format!(r#"{{"type":"n","description":"n","executor":"noop","parameters":{{"n":{number}}}}}"#);
        let response = ada.request("POST", "/tasks", &body).await;
        let response = record(format!("the number {number}"), response);
        if response.status == 201 {
            // The stored number is the one that was sent.
            let created = response.json();
            let stored = org.task_request(&text_field(&created, "task_id")).await;
            assert_eq!(
                (&stored["digest"], &stored["config"]),
                (&created["digest"], &created["config"]),
                "{number}"
            );
        }
    }
    // A lock may have any name.
    let (lock, agent) = ("task:a\u{0}b", "agent \u{0}");
    let body = json!({ "agent_id": agent, "purpose": agent, "locks": [{ "lock": lock }] });
    let response = ada.post("/locks/acquire", &body).await;
    record("lock request by an unregistered agent".to_owned(), response);
    let _ = org.api.post("/locks/acquire", &body).await.expect_status(200);
    let lock_path = format!("/locks/{}", ade_testkit::api::encode_segment(lock));
    let held = org.api.get(&lock_path).await.expect_status(200);
    assert_eq!((&held["lock"], &held["holders"][0]["agent_id"]), (&json!(lock), &json!(agent)));
    let _ =
        org.api.get(&format!("/agents/{}", ade_testkit::api::encode_segment(agent))).await.expect_status(200);
    let broken = org.api.delete(&format!("{lock_path}?reason=a%00b")).await.expect_status(200);
    assert_eq!(broken["lock"], lock);
    check_lists(&org.api).await;
    statuses
}

/// All lists can be read completely.
async fn check_lists(api: &ApiClient) {
    for path in [
        "/tasks",
        "/users",
        "/policies",
        "/delegations",
        "/resources",
        "/agents",
        "/audit",
        "/approvals?reviewer=*",
    ] {
        for item in all_pages(api, path, 7).await {
            if path == "/tasks" {
                let _ = api.get(&format!("/tasks/{}", text_field(&item, "task_id"))).await.expect_status(200);
            }
        }
    }
    let export = api.get("/audit/export?format=csv").await;
    assert_eq!(export.status, 200);
    assert_eq!(api.verify_audit().await["valid"], true);
}

#[tokio::test]
async fn both_databases_accept_and_refuse_the_same_input() {
    let (embedded, distributed) = (
        Deployment::embedded(env!("CARGO_BIN_EXE_ade")),
        Deployment::distributed(env!("CARGO_BIN_EXE_ade"), 1),
    );
    let (sqlite, postgres) = (send_all(&embedded).await, send_all(&distributed).await);
    assert_eq!(sqlite.len(), postgres.len());
    for (sqlite, postgres) in sqlite.iter().zip(&postgres) {
        assert_eq!(sqlite, postgres);
    }
}
