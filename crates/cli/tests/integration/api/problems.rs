//! Invalid lock requests: each is refused with a 4xx problem, a code and a JSON pointer, and changes nothing.

use ade_testkit::{AdeServer, ApiClient};
use serde_json::{Value, json};

use crate::api::start_server;

/// A server with a lock that `a` holds and `b` waits for; its fencing token, and the list of locks.
async fn server_with_held_lock() -> (AdeServer, ApiClient, u64, String) {
    let (ade, api) = start_server().await;
    let acquire_body = |agent: &str, queue: bool| json!({ "agent_id": agent, "queue": queue, "locks": [{ "lock": "task:1" }] });
    let granted = api.post("/locks/acquire", &acquire_body("a", false)).await.expect_status(200);
    let _ = api.post("/locks/acquire", &acquire_body("b", true)).await.expect_status(202);
    let token = granted["grants"][0]["fencing_token"].as_u64().expect("a token");
    let locks = api.get("/locks").await.text();
    (ade, api, token, locks)
}

#[tokio::test]
async fn rejects_malformed_json() {
    let (_ade, api, token, before) = server_with_held_lock().await;
    let mut bodies: Vec<String> = [
        "",
        " ",
        "{",
        "}",
        "{]",
        "nul",
        "'x'",
        "{\"locks\":[{\"lock\":\"task:2\"}]",
        "{\"locks\":[{\"lock\":\"task:2\"}]} x",
        "{\"locks\":[{\"lock\":\"task:2\"}]}{}",
        "{\"locks\":[{\"lock\":\"task:2\"},]}",
        "{locks:[]}",
        "{\"locks\":[{\"lock\":\"task:2\"}],\"ttl_seconds\":NaN}",
        "{\"locks\":[{\"lock\":\"task:2\"}],\"ttl_seconds\":Infinity}",
        "{\"locks\":[{\"lock\":\"task:2\"}],\"ttl_seconds\":-}",
        "{\"locks\":[{\"lock\":\"task:2\"}],\"ttl_seconds\":01}",
        "{\"locks\":[{\"lock\":\"task:\u{0}\"}]}",
        "{\"locks\":[{\"lock\":\"task:\\ud800\"}]}",
        "\u{feff}{\"locks\":[{\"lock\":\"task:2\"}]}",
    ]
    .map(str::to_owned)
    .to_vec();
    bodies.push("[".repeat(100_000));
    bodies.push(format!("{{\"locks\":{}", "[".repeat(100_000)));
    for route in ["acquire", "heartbeat", "release", "downgrade", "verify"] {
        for body in &bodies {
            let response = api.request("POST", &format!("/locks/{route}"), body).await;
            let start: String = body.chars().take(60).collect();
            assert!(matches!(response.status, 400 | 422), "{route} {start}: {}", response.text());
            if body.len() < 1000 && !body.starts_with('[') && route == "acquire" {
                let _ = response.expect_problem(400, "MALFORMED_JSON");
            }
        }
    }
    let mut bytes = b"{\"locks\":[{\"lock\":\"task:".to_vec();
    bytes.extend([0xff, 0xfe]);
    bytes.extend(b"\"}]}");
    let authorization = format!("Bearer {}", ade_testkit::server::BOOTSTRAP_TOKEN);
    let response =
        api.send_raw("POST", "/api/v1/locks/acquire", &[("authorization", &authorization)], bytes).await;
    assert_eq!(response.status, 400, "{}", response.text());
    assert_eq!(api.get("/locks").await.text(), before);
    let held = json!({ "lock": "task:1", "fencing_token": token });
    let _ = api.post("/locks/verify", &held).await.expect_status(200);
}

#[tokio::test]
async fn rejects_invalid_fields_with_pointer() {
    let (_ade, api, _, before) = server_with_held_lock().await;
    let valid = || json!({ "agent_id": "z", "locks": [{ "lock": "task:2" }] });
    let many: Vec<Value> = (0..101).map(|n| json!({ "lock": format!("resource:x:{n}") })).collect();
    let long = "x".repeat(600);
    let invalid_fields: Vec<(&str, Value, &str)> = vec![
        ("surprise", json!(1), "/surprise"),
        ("locks", json!(null), "/locks"),
        ("locks", json!("task:2"), "/locks"),
        ("locks", json!([]), "/locks"),
        ("locks", json!(many), "/locks"),
        ("locks", json!([1]), "/locks/0"),
        ("locks", json!([{}]), "/locks/0"),
        ("locks", json!([["task:2", null]]), "/locks/0"),
        ("locks", json!([{ "lock": 5 }]), "/locks/0/lock"),
        ("locks", json!([{ "lock": "task:2", "surprise": 1 }]), "/locks/0/surprise"),
        ("locks", json!([{ "lock": "" }]), "/locks/0/lock"),
        ("locks", json!([{ "lock": "task:2" }, { "lock": "task:" }]), "/locks/1/lock"),
        ("locks", json!([{ "lock": "resource:x" }]), "/locks/0/lock"),
        ("locks", json!([{ "lock": "resource::x" }]), "/locks/0/lock"),
        ("locks", json!([{ "lock": "resource:x:" }]), "/locks/0/lock"),
        ("locks", json!([{ "lock": "Task:2" }]), "/locks/0/lock"),
        ("locks", json!([{ "lock": "agent:a" }]), "/locks/0/lock"),
        ("locks", json!([{ "lock": format!("task:{long}") }]), "/locks/0/lock"),
        ("locks", json!([{ "lock": "task:2" }, { "lock": "task:2" }]), "/locks/1/lock"),
        (
            "locks",
            json!([{ "lock": "resource:x:1", "mode": "shared" }, { "lock": "resource:x:1" }]),
            "/locks/1/lock",
        ),
        ("locks", json!([{ "lock": "task:2", "mode": "shared" }]), "/locks/0/mode"),
        ("locks", json!([{ "lock": "task:2", "mode": "SHARED" }]), "/locks/0/mode"),
        ("locks", json!([{ "lock": "task:2", "mode": "" }]), "/locks/0/mode"),
        ("agent_id", json!(""), "/agent_id"),
        ("agent_id", json!(7), "/agent_id"),
        ("agent_id", json!(long), "/agent_id"),
        ("holder_id", json!(""), "/holder_id"),
        ("holder_id", json!(long), "/holder_id"),
        ("ttl_seconds", json!(0), "/ttl_seconds"),
        ("ttl_seconds", json!(-1), "/ttl_seconds"),
        ("ttl_seconds", json!(0.0001), "/ttl_seconds"),
        ("ttl_seconds", json!(300.1), "/ttl_seconds"),
        ("ttl_seconds", json!(1e300), "/ttl_seconds"),
        ("ttl_seconds", json!(u64::MAX), "/ttl_seconds"),
        ("ttl_seconds", json!("NaN"), "/ttl_seconds"),
        ("ttl_seconds", json!("30"), "/ttl_seconds"),
        ("wait_seconds", json!(-0.5), "/wait_seconds"),
        ("wait_seconds", json!(3600.5), "/wait_seconds"),
        ("wait_seconds", json!(-1e300), "/wait_seconds"),
        ("wait_seconds", json!([]), "/wait_seconds"),
        ("queue", json!("yes"), "/queue"),
        ("priority", json!(1_i64 << 31), "/priority"),
        ("priority", json!(-(1_i64 << 31) - 1), "/priority"),
        ("priority", json!(1.5), "/priority"),
        ("priority", json!(u64::MAX), "/priority"),
        ("purpose", json!("x".repeat(257)), "/purpose"),
        ("purpose", json!(1), "/purpose"),
        ("request_id", json!(""), "/request_id"),
        ("request_id", json!("x".repeat(257)), "/request_id"),
        ("request_id", json!(1), "/request_id"),
    ];
    for (field, value, pointer) in invalid_fields {
        let mut body = valid();
        body[field] = value.clone();
        let response = api.post("/locks/acquire", &body).await;
        let problem = response.expect_problem(422, "INVALID_REQUEST");
        assert_eq!(response.error_pointers(), [pointer], "{field} = {value}: {problem}");
        assert!(problem["errors"][0]["detail"].as_str().is_some_and(|text| !text.is_empty()));
        assert_eq!(api.get("/locks").await.text(), before, "{field} = {value} changed the locks");
    }
    let several =
        json!({ "locks": [{ "lock": "x" }, { "lock": "task:" }], "ttl_seconds": 0, "priority": 1_i64 << 40 });
    let response = api.post("/locks/acquire", &several).await;
    assert_eq!(response.error_pointers(), ["/locks/0/lock", "/locks/1/lock", "/ttl_seconds", "/priority"]);
    let agents = api.get("/agents").await.expect_status(200);
    assert_eq!(
        agents["items"].as_array().map(Vec::len),
        Some(2),
        "an invalid request registered an agent: {agents}"
    );
}

#[tokio::test]
async fn rejects_numbers_out_of_range() {
    let (_ade, api, _, before) = server_with_held_lock().await;
    for (field, text) in [
        ("ttl_seconds", "1e400"),
        ("ttl_seconds", "-1e400"),
        ("wait_seconds", "1e400"),
        ("wait_seconds", "1e309"),
        ("priority", "1e400"),
        ("priority", "99999999999999999999999999"),
        ("priority", "-99999999999999999999999999"),
    ] {
        let body = format!(r#"{{"agent_id":"z","locks":[{{"lock":"task:2"}}],"{field}":{text}}}"#);
        let response = api.request("POST", "/locks/acquire", &body).await;
        let _ = response.expect_problem(422, "INVALID_REQUEST");
        assert_eq!(response.error_pointers(), [format!("/{field}")], "{}", response.text());
    }
    for token in ["-1", "1.5", "1e400", "18446744073709551616", "\"5\"", "null", "true"] {
        let lock = format!(r#"{{"lock":"task:1","fencing_token":{token}}}"#);
        let response = api.request("POST", "/locks/verify", &lock).await;
        let _ = response.expect_problem(422, "INVALID_REQUEST");
        assert_eq!(response.error_pointers(), ["/fencing_token"], "{token}");
        for route in ["heartbeat", "release", "downgrade"] {
            let body = format!(r#"{{"agent_id":"a","locks":[{lock}]}}"#);
            let response = api.request("POST", &format!("/locks/{route}"), &body).await;
            let _ = response.expect_problem(422, "INVALID_REQUEST");
            assert_eq!(response.error_pointers(), ["/locks/0/fencing_token"], "{route} {token}");
        }
    }
    assert_eq!(api.get("/locks").await.text(), before);
}

#[tokio::test]
async fn grants_request_at_all_limits() {
    let (_ade, api, ..) = server_with_held_lock().await;
    let locks: Vec<Value> = (0..100).map(|n| json!({ "lock": format!("resource:x:{n}") })).collect();
    let body = json!({ "locks": locks, "agent_id": "x".repeat(256), "holder_id": "ü".repeat(128), "ttl_seconds": 300,
        "wait_seconds": 3600, "priority": i32::MIN, "purpose": "x".repeat(256), "request_id": "x".repeat(256) });
    let granted = api.post("/locks/acquire", &body).await.expect_status(200);
    assert_eq!(granted["grants"].as_array().map(Vec::len), Some(100));
    let name = format!("task:{}", "x".repeat(507));
    let granted =
        api.post("/locks/acquire", &json!({ "locks": [{ "lock": name }], "ttl_seconds": 0.001 })).await;
    assert_eq!(granted.expect_status(200)["grants"][0]["lock"], name);
}

#[tokio::test]
async fn rejects_invalid_heartbeat_release_and_downgrade() {
    let (_ade, api, token, before) = server_with_held_lock().await;
    let valid = |lock: &str| json!([{ "lock": lock, "fencing_token": token }]);
    let too_many: Vec<Value> =
        (0..1001).map(|n| json!({ "lock": format!("task:{n}"), "fencing_token": 1 })).collect();
    for route in ["heartbeat", "release", "downgrade"] {
        for (body, pointer) in [
            (json!({}), ""),
            (json!({ "locks": [] }), "/locks"),
            (json!({ "locks": too_many }), "/locks"),
            (json!({ "locks": valid("agent:a") }), "/locks/0/lock"),
            (json!({ "locks": valid("x") }), "/locks/0/lock"),
            (json!({ "locks": [{ "lock": "resource:t:1" }] }), "/locks/0"),
            (json!({ "locks": valid("resource:t:1"), "agent_id": "" }), "/agent_id"),
            (json!({ "locks": valid("resource:t:1"), "holder_id": "" }), "/holder_id"),
            (json!({ "locks": valid("resource:t:1"), "agent_id": "a", "force": true }), "/force"),
        ] {
            let response = api.post(&format!("/locks/{route}"), &body).await;
            let _ = response.expect_problem(422, "INVALID_REQUEST");
            assert_eq!(response.error_pointers(), [pointer], "{route}");
        }
        // Another holder, or a wrong token.
        for (agent, holder, token) in
            [("b", "b", token), ("a", "b", token), ("a", "a", token + 1), ("a", "a", 0), ("a", "a", u64::MAX)]
        {
            let body = json!({ "agent_id": agent, "holder_id": holder, "locks": [{ "lock": "resource:t:1", "fencing_token": token }] });
            let _ = api.post(&format!("/locks/{route}"), &body).await.expect_problem(409, "LOCK_LOST");
        }
        assert_eq!(api.get("/locks").await.text(), before, "{route}");
    }
    for extension in [json!(0), json!(-1), json!(301), json!("1")] {
        let body = json!({ "agent_id": "a", "locks": valid("resource:t:1"), "ttl_extension": extension });
        let response = api.post("/locks/heartbeat", &body).await;
        let _ = response.expect_problem(422, "INVALID_REQUEST");
        assert_eq!(response.error_pointers(), ["/ttl_extension"]);
    }
    let body = json!({ "agent_id": "a", "locks": valid("resource:t:1"), "timestamp": "yesterday" });
    assert_eq!(api.post("/locks/heartbeat", &body).await.error_pointers(), ["/timestamp"]);
    assert_eq!(api.get("/locks").await.text(), before);
}

#[tokio::test]
async fn rejects_invalid_queries_and_paths() {
    let (_ade, api, ..) = server_with_held_lock().await;
    for (query, pointer) in [
        ("limit=0", "?limit"),
        ("limit=201", "?limit"),
        ("kind=agent", "?kind"),
        ("kind=", "?kind"),
        ("cursor=x", "?cursor"),
    ] {
        let response = api.get(&format!("/locks?{query}")).await;
        let _ = response.expect_problem(422, "INVALID_REQUEST");
        assert_eq!(response.error_pointers(), [pointer], "{query}");
    }
    for query in ["limit=-1", "limit=x", "limit=1e400", "surprise=1", "limit=1&limit=2"] {
        let _ = api.get(&format!("/locks?{query}")).await.expect_problem(422, "INVALID_REQUEST");
        let _ = api.get(&format!("/agents?{query}")).await.expect_problem(422, "INVALID_REQUEST");
    }
    for name in ["x", "agent%3Aa", "task%3A", "resource%3Ax", "resource%3A%3Ax", "%FF", "task%3A%FF"] {
        let _ = api.get(&format!("/locks/{name}")).await.expect_problem(422, "INVALID_REQUEST");
        let _ = api.delete(&format!("/locks/{name}?reason=x")).await.expect_problem(422, "INVALID_REQUEST");
    }
    for ticket in ["x", "0", &"0".repeat(32), &"G".repeat(32), &"0".repeat(33), "%FF"] {
        for (method, path) in [("GET", ""), ("DELETE", ""), ("POST", "/claim")] {
            let response = api.request(method, &format!("/locks/tickets/{ticket}{path}"), "").await;
            let _ = response.expect_problem(404, "TICKET_NOT_FOUND");
        }
    }
}
