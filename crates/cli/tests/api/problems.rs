//! What must not be asked of locks: every wrong request gets a 4xx with a code and the place of the fault, and nothing
//! changes.

use ade_testkit::{Ade, Api};
use serde_json::{Value, json};

/// A server with a lock that is held by `a` and waited for by `b`, and what the list says of it.
async fn server() -> (Ade, Api, u64, String) {
    let ade = Ade::start(env!("CARGO_BIN_EXE_ade")).expect("starts");
    let api = Api::of(&ade).await;
    let ask = |agent: &str, queue: bool| json!({ "agent_id": agent, "queue": queue, "locks": [{ "lock": "task:1" }] });
    let granted = api.post("/locks/acquire", &ask("a", false)).await.expect(200);
    let _ = api.post("/locks/acquire", &ask("b", true)).await.expect(202);
    let token = granted["grants"][0]["fencing_token"].as_u64().expect("a token");
    let locks = api.get("/locks").await.text();
    (ade, api, token, locks)
}

#[tokio::test]
async fn what_is_not_json_is_malformed() {
    let (_ade, api, token, before) = server().await;
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
            let answer = api.call("POST", &format!("/locks/{route}"), body).await;
            let start: String = body.chars().take(60).collect();
            assert!(matches!(answer.status, 400 | 422), "{route} {start}: {}", answer.text());
            if body.len() < 1000 && !body.starts_with('[') && route == "acquire" {
                let _ = answer.problem(400, "MALFORMED_JSON");
            }
        }
    }
    let mut bytes = b"{\"locks\":[{\"lock\":\"task:".to_vec();
    bytes.extend([0xff, 0xfe]);
    bytes.extend(b"\"}]}");
    let authorization = format!("Bearer {}", ade_testkit::ade::TOKEN);
    let answer = api.send("POST", "/api/v1/locks/acquire", &[("authorization", &authorization)], bytes).await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert_eq!(api.get("/locks").await.text(), before);
    let held = json!({ "lock": "task:1", "fencing_token": token });
    let _ = api.post("/locks/verify", &held).await.expect(200);
}

#[tokio::test]
async fn wrong_fields_are_refused_with_their_place() {
    let (_ade, api, _, before) = server().await;
    let good = || json!({ "agent_id": "z", "locks": [{ "lock": "task:2" }] });
    let many: Vec<Value> = (0..101).map(|n| json!({ "lock": format!("resource:x:{n}") })).collect();
    let long = "x".repeat(600);
    let faults: Vec<(&str, Value, &str)> = vec![
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
    for (field, value, pointer) in faults {
        let mut body = good();
        body[field] = value.clone();
        let answer = api.post("/locks/acquire", &body).await;
        let problem = answer.problem(422, "INVALID_REQUEST");
        assert_eq!(answer.pointers(), [pointer], "{field} = {value}: {problem}");
        assert!(problem["errors"][0]["detail"].as_str().is_some_and(|text| !text.is_empty()));
        assert_eq!(api.get("/locks").await.text(), before, "{field} = {value} changed something");
    }
    let several =
        json!({ "locks": [{ "lock": "x" }, { "lock": "task:" }], "ttl_seconds": 0, "priority": 1_i64 << 40 });
    let answer = api.post("/locks/acquire", &several).await;
    assert_eq!(answer.pointers(), ["/locks/0/lock", "/locks/1/lock", "/ttl_seconds", "/priority"]);
    let agents = api.get("/agents").await.expect(200);
    assert_eq!(
        agents["items"].as_array().map(Vec::len),
        Some(2),
        "nobody became known by a wrong request: {agents}"
    );
}

#[tokio::test]
async fn numbers_beyond_every_range_are_refused() {
    let (_ade, api, _, before) = server().await;
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
        let answer = api.call("POST", "/locks/acquire", &body).await;
        let _ = answer.problem(422, "INVALID_REQUEST");
        assert_eq!(answer.pointers(), [format!("/{field}")], "{}", answer.text());
    }
    for token in ["-1", "1.5", "1e400", "18446744073709551616", "\"5\"", "null", "true"] {
        let lock = format!(r#"{{"lock":"task:1","fencing_token":{token}}}"#);
        let answer = api.call("POST", "/locks/verify", &lock).await;
        let _ = answer.problem(422, "INVALID_REQUEST");
        assert_eq!(answer.pointers(), ["/fencing_token"], "{token}");
        for route in ["heartbeat", "release", "downgrade"] {
            let body = format!(r#"{{"agent_id":"a","locks":[{lock}]}}"#);
            let answer = api.call("POST", &format!("/locks/{route}"), &body).await;
            let _ = answer.problem(422, "INVALID_REQUEST");
            assert_eq!(answer.pointers(), ["/locks/0/fencing_token"], "{route} {token}");
        }
    }
    assert_eq!(api.get("/locks").await.text(), before);
}

#[tokio::test]
async fn the_largest_that_may_be_asked_for_is_granted() {
    let (_ade, api, ..) = server().await;
    let locks: Vec<Value> = (0..100).map(|n| json!({ "lock": format!("resource:x:{n}") })).collect();
    let body = json!({ "locks": locks, "agent_id": "x".repeat(256), "holder_id": "ü".repeat(128), "ttl_seconds": 300,
        "wait_seconds": 3600, "priority": i32::MIN, "purpose": "x".repeat(256), "request_id": "x".repeat(256) });
    let granted = api.post("/locks/acquire", &body).await.expect(200);
    assert_eq!(granted["grants"].as_array().map(Vec::len), Some(100));
    let name = format!("task:{}", "x".repeat(507));
    let granted =
        api.post("/locks/acquire", &json!({ "locks": [{ "lock": name }], "ttl_seconds": 0.001 })).await;
    assert_eq!(granted.expect(200)["grants"][0]["lock"], name);
}

#[tokio::test]
async fn holding_is_checked_like_taking() {
    let (_ade, api, token, before) = server().await;
    let good = |lock: &str| json!([{ "lock": lock, "fencing_token": token }]);
    let too_many: Vec<Value> =
        (0..1001).map(|n| json!({ "lock": format!("task:{n}"), "fencing_token": 1 })).collect();
    for route in ["heartbeat", "release", "downgrade"] {
        for (body, pointer) in [
            (json!({}), ""),
            (json!({ "locks": [] }), "/locks"),
            (json!({ "locks": too_many }), "/locks"),
            (json!({ "locks": good("agent:a") }), "/locks/0/lock"),
            (json!({ "locks": good("x") }), "/locks/0/lock"),
            (json!({ "locks": [{ "lock": "resource:t:1" }] }), "/locks/0"),
            (json!({ "locks": good("resource:t:1"), "agent_id": "" }), "/agent_id"),
            (json!({ "locks": good("resource:t:1"), "holder_id": "" }), "/holder_id"),
            (json!({ "locks": good("resource:t:1"), "agent_id": "a", "force": true }), "/force"),
        ] {
            let answer = api.post(&format!("/locks/{route}"), &body).await;
            let _ = answer.problem(422, "INVALID_REQUEST");
            assert_eq!(answer.pointers(), [pointer], "{route}");
        }
        // Whoever does not hold, or has another token, is told so.
        for (agent, holder, token) in
            [("b", "b", token), ("a", "b", token), ("a", "a", token + 1), ("a", "a", 0), ("a", "a", u64::MAX)]
        {
            let body = json!({ "agent_id": agent, "holder_id": holder, "locks": [{ "lock": "resource:t:1", "fencing_token": token }] });
            let _ = api.post(&format!("/locks/{route}"), &body).await.problem(409, "LOCK_LOST");
        }
        assert_eq!(api.get("/locks").await.text(), before, "{route}");
    }
    for extension in [json!(0), json!(-1), json!(301), json!("1")] {
        let body = json!({ "agent_id": "a", "locks": good("resource:t:1"), "ttl_extension": extension });
        let answer = api.post("/locks/heartbeat", &body).await;
        let _ = answer.problem(422, "INVALID_REQUEST");
        assert_eq!(answer.pointers(), ["/ttl_extension"]);
    }
    let body = json!({ "agent_id": "a", "locks": good("resource:t:1"), "timestamp": "yesterday" });
    assert_eq!(api.post("/locks/heartbeat", &body).await.pointers(), ["/timestamp"]);
    assert_eq!(api.get("/locks").await.text(), before);
}

#[tokio::test]
async fn lists_and_paths_are_checked() {
    let (_ade, api, ..) = server().await;
    for (query, pointer) in [
        ("limit=0", "?limit"),
        ("limit=201", "?limit"),
        ("kind=agent", "?kind"),
        ("kind=", "?kind"),
        ("cursor=x", "?cursor"),
    ] {
        let answer = api.get(&format!("/locks?{query}")).await;
        let _ = answer.problem(422, "INVALID_REQUEST");
        assert_eq!(answer.pointers(), [pointer], "{query}");
    }
    for query in ["limit=-1", "limit=x", "limit=1e400", "surprise=1", "limit=1&limit=2"] {
        let _ = api.get(&format!("/locks?{query}")).await.problem(422, "INVALID_REQUEST");
        let _ = api.get(&format!("/agents?{query}")).await.problem(422, "INVALID_REQUEST");
    }
    for name in ["x", "agent%3Aa", "task%3A", "resource%3Ax", "resource%3A%3Ax", "%FF", "task%3A%FF"] {
        let _ = api.get(&format!("/locks/{name}")).await.problem(422, "INVALID_REQUEST");
        let _ = api.delete(&format!("/locks/{name}?reason=x")).await.problem(422, "INVALID_REQUEST");
    }
    for ticket in ["x", "0", &"0".repeat(32), &"G".repeat(32), &"0".repeat(33), "%FF"] {
        for (method, path) in [("GET", ""), ("DELETE", ""), ("POST", "/claim")] {
            let answer = api.call(method, &format!("/locks/tickets/{ticket}{path}"), "").await;
            let _ = answer.problem(404, "TICKET_NOT_FOUND");
        }
    }
}
