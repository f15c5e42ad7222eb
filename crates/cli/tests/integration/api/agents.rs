//! Agents over HTTP: registration, changes, draining, removal, and invalid requests.

use ade_testkit::ApiClient;
use serde_json::{Value, json};

use crate::api::start_server;

async fn patch(api: &ApiClient, path: &str, body: &Value) -> ade_testkit::api::ApiResponse {
    api.request("PATCH", path, &body.to_string()).await
}

#[tokio::test]
async fn agent_is_registered_changed_and_removed() {
    let (ade, api) = start_server().await;
    let body = json!({ "agent_id": "a", "name": "Ada", "model": "m", "version": "1", "capabilities": ["x", "y"],
        "max_tasks": 7, "config": { "deep": { "er": [1, 2.5, null] } } });
    let made = api.post("/agents", &body).await.expect_status(201);
    for field in ["agent_id", "name", "model", "version", "capabilities", "max_tasks", "config"] {
        assert_eq!(made[field], body[field], "{field}");
    }
    assert_eq!(
        (&made["status"], &made["active_tasks"], &made["queued_tasks"]),
        (&json!("active"), &json!(0), &json!(0))
    );
    assert!(made["last_heartbeat"].is_string());
    let _ = api.post("/agents", &body).await.expect_problem(409, "AGENT_EXISTS");
    let minimal = api.post("/agents", &json!({ "agent_id": "b" })).await.expect_status(201);
    assert_eq!(
        (&minimal["name"], &minimal["config"], &minimal["capabilities"]),
        (&json!("b"), &json!({}), &json!([]))
    );
    // Fields that are not given stay unchanged.
    let changed =
        patch(&api, "/agents/a", &json!({ "name": "Grace", "max_tasks": 1 })).await.expect_status(200);
    assert_eq!(
        (&changed["name"], &changed["max_tasks"], &changed["model"]),
        (&json!("Grace"), &json!(1), &json!("m"))
    );
    assert_eq!(changed["config"], body["config"]);
    let same = patch(&api, "/agents/a", &json!({ "agent_id": "a", "config": {}, "capabilities": [] }))
        .await
        .expect_status(200);
    assert_eq!((&same["config"], &same["capabilities"]), (&json!({}), &json!([])));
    let heartbeat = api.request("POST", "/agents/a/heartbeat", "").await.expect_status(200);
    assert!(heartbeat["last_heartbeat"].as_str() > made["last_heartbeat"].as_str());
    assert_eq!(api.request("POST", "/agents/a/drain", "").await.expect_status(200)["status"], "draining");
    ade.kill_and_restart().expect("starts again");
    let restarted = api.get("/agents/a").await.expect_status(200);
    assert_eq!((&restarted["status"], &restarted["name"]), (&json!("draining"), &json!("Grace")));
    assert_eq!(api.delete("/agents/a").await.status, 204);
    let _ = api.delete("/agents/a").await.expect_problem(404, "AGENT_NOT_FOUND");
    let _ = api.post("/agents", &body).await.expect_status(201);
}

#[tokio::test]
async fn unknown_agent_is_not_found() {
    let (_ade, api) = start_server().await;
    for (method, path) in [
        ("GET", ""),
        ("PATCH", ""),
        ("DELETE", ""),
        ("POST", "/heartbeat"),
        ("POST", "/drain"),
        ("GET", "/locks"),
    ] {
        let _ = api
            .request(method, &format!("/agents/nobody{path}"), "{}")
            .await
            .expect_problem(404, "AGENT_NOT_FOUND");
        let response = api.request(method, &format!("/agents/%FF{path}"), "{}").await;
        let _ = response.expect_problem(422, "INVALID_REQUEST");
    }
    assert_eq!(api.get("/agents").await.expect_status(200)["items"], json!([]));
}

#[tokio::test]
async fn rejects_invalid_agent_fields() {
    let (_ade, api) = start_server().await;
    let _ = api.post("/agents", &json!({ "agent_id": "known" })).await.expect_status(201);
    let before = api.get("/agents").await.text();
    for name in ["two words", "a\u{200b}", "a\u{202e}b", "a\nb", "..", "new", "me"] {
        let response = api.post("/agents", &json!({ "agent_id": name })).await;
        let _ = response.expect_problem(422, "INVALID_REQUEST");
        assert_eq!(response.error_pointers(), ["/agent_id"], "{name:?}");
    }
    let (long, many) = ("x".repeat(257), vec!["x"; 101]);
    for (field, value, pointer) in [
        ("surprise", json!(1), "/surprise"),
        ("status", json!("active"), "/status"),
        ("name", json!(""), "/name"),
        ("name", json!(long), "/name"),
        ("name", json!(1), "/name"),
        ("model", json!(long), "/model"),
        ("version", json!(long), "/version"),
        ("capabilities", json!(many), "/capabilities"),
        ("capabilities", json!([""]), "/capabilities"),
        ("capabilities", json!([long]), "/capabilities"),
        ("capabilities", json!("x"), "/capabilities"),
        ("capabilities", json!(["x", 1]), "/capabilities/1"),
        ("max_tasks", json!(0), "/max_tasks"),
        ("max_tasks", json!(1001), "/max_tasks"),
        ("max_tasks", json!(-1), "/max_tasks"),
        ("max_tasks", json!(1.5), "/max_tasks"),
        ("max_tasks", json!(1_u64 << 40), "/max_tasks"),
        ("config", json!([]), "/config"),
        ("config", json!({ "x": "x".repeat(65_536) }), "/config"),
    ] {
        for method in ["POST", "PATCH"] {
            let mut body = json!({ "agent_id": if method == "POST" { "fresh" } else { "known" } });
            body[field] = value.clone();
            let path = if method == "POST" { "/agents" } else { "/agents/known" };
            let response = api.request(method, path, &body.to_string()).await;
            let _ = response.expect_problem(422, "INVALID_REQUEST");
            assert_eq!(response.error_pointers(), [pointer], "{method} {field}: {}", response.text());
            assert_eq!(api.get("/agents").await.text(), before, "{method} {field}");
        }
    }
    for (body, pointer) in [
        (json!({}), "/agent_id"),
        (json!({ "agent_id": "" }), "/agent_id"),
        (json!({ "agent_id": long }), "/agent_id"),
        (json!({ "agent_id": null }), "/agent_id"),
    ] {
        let response = api.post("/agents", &body).await;
        let _ = response.expect_problem(422, "INVALID_REQUEST");
        assert_eq!(response.error_pointers(), [pointer]);
        if body["agent_id"].is_string() {
            // Claiming a task checks the id as well.
            assert_eq!(api.post("/tasks/claim", &body).await.error_pointers(), [pointer]);
        }
    }
    assert_eq!(
        patch(&api, "/agents/known", &json!({ "agent_id": "other" })).await.error_pointers(),
        ["/agent_id"]
    );
    for body in ["", "{", "[]x", "{\"agent_id\":\"n\",}"] {
        for (method, path) in [("POST", "/agents"), ("PATCH", "/agents/known")] {
            let response = api.request(method, path, body).await;
            assert!(matches!(response.status, 400 | 422), "{}", response.text());
        }
    }
    assert_eq!(api.get("/agents").await.text(), before);
}

#[tokio::test]
async fn busy_agent_cannot_be_removed_but_can_be_registered() {
    let (_ade, api) = start_server().await;
    let acquire_body = |agent: &str, queue: bool| json!({ "agent_id": agent, "queue": queue, "locks": [{ "lock": "task:1" }] });
    let granted =
        api.post("/locks/acquire", &acquire_body("a", false)).await.expect_status(200)["grants"][0].clone();
    let _ = api.post("/locks/acquire", &acquire_body("b", true)).await.expect_status(202);
    for busy in ["a", "b"] {
        let _ = api.delete(&format!("/agents/{busy}")).await.expect_problem(409, "AGENT_BUSY");
        let locks = api.get(&format!("/agents/{busy}/locks")).await.expect_status(200);
        assert_eq!((&locks["items"][0]["lock"], &locks["next_cursor"]), (&json!("task:1"), &Value::Null));
    }
    // An unregistered agent can be registered while it holds locks.
    let made = api.post("/agents", &json!({ "agent_id": "a", "name": "Ada" })).await.expect_status(201);
    assert_eq!(made["name"], "Ada");
    let _ = api.post("/agents", &json!({ "agent_id": "a" })).await.expect_problem(409, "AGENT_EXISTS");
    let body = json!({ "agent_id": "a", "locks": [{ "lock": "task:1", "fencing_token": granted["fencing_token"] }] });
    let _ = api.post("/locks/release", &body).await.expect_status(200);
    assert_eq!(api.delete("/agents/a").await.status, 204);
}

#[tokio::test]
async fn agent_list_is_sorted_and_paginated() {
    let (ade, api) = start_server().await;
    let mut ids: Vec<String> = (0..60).map(|n| format!("agent-{n}")).collect();
    for id in &ids {
        let _ = api.post("/agents", &json!({ "agent_id": id })).await.expect_status(201);
    }
    ids.sort();
    let first = api.get("/agents").await.expect_status(200);
    assert_eq!(first["items"].as_array().map(Vec::len), Some(50), "the default page size is 50");
    let client = ade.client().expect("a client");
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = client.agents(&[("limit", "7"), ("cursor", &cursor)]).await.expect("a page");
        found.extend(page.items.into_iter().map(|agent| agent.agent_id));
        match page.next_cursor {
            Some(next) => cursor = next,
            None => break,
        }
    }
    assert_eq!(found, ids);
    for invalid in ["limit=0", "limit=201"] {
        let _ = api.get(&format!("/agents?{invalid}")).await.expect_problem(422, "INVALID_REQUEST");
    }
}
