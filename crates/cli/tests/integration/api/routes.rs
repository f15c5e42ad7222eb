//! Behaviour that all routes share. The routes are taken from the OpenAPI description that the server serves.

use std::collections::BTreeSet;

use ade_testkit::api::fill_path;
use ade_testkit::server::BOOTSTRAP_TOKEN;
use ade_testkit::{AdeServer, ApiClient};
use serde_json::{Value, json};

use crate::api::start_server;

const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];

/// Every path with example parameters, and its methods.
fn paths(api: &ApiClient) -> Vec<(String, Vec<String>)> {
    let paths = api.openapi()["paths"].as_object().expect("paths");
    let filled = |path: &String| {
        let path = path.replace("{lock}", "resource:a:b").replace("{ticket}", &"0".repeat(32));
        fill_path(&path, "nobody")
    };
    let methods =
        |item: &Value| item.as_object().expect("an item").keys().map(|m| m.to_uppercase()).collect();
    let found: Vec<_> = paths.iter().map(|(path, item)| (filled(path), methods(item))).collect();
    assert!(found.len() >= 18 && found.iter().all(|(path, _)| !path.contains('{')), "{found:?}");
    found
}

fn operations(api: &ApiClient) -> Vec<(String, String)> {
    let expand = |(path, methods): (String, Vec<String>)| {
        methods.into_iter().map(move |method| (method, path.clone()))
    };
    paths(api).into_iter().flat_map(expand).collect()
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

/// The end of the path that uses an invitation.
const INVITATION_ROUTE: &str = "/users/invitations/accept";

#[tokio::test]
async fn every_route_rejects_malformed_authorization() {
    let (_ade, api) = start_server().await;
    let truncated = &BOOTSTRAP_TOKEN[..BOOTSTRAP_TOKEN.len() - 1];
    let extended = format!("{BOOTSTRAP_TOKEN}x");
    let invalid_headers = [
        "",
        "Bearer",
        "Bearer ",
        &bearer(truncated),
        &bearer(&extended),
        &format!("Basic {BOOTSTRAP_TOKEN}"),
        BOOTSTRAP_TOKEN,
        "Bearer ü",
    ];
    // Signing in and using an invitation need no token.
    let needs_token = |path: &str| {
        path.starts_with("/api/v1/") && path != "/api/v1/sessions" && !path.ends_with(INVITATION_ROUTE)
    };
    for (method, path) in operations(&api).iter().filter(|(_, path)| needs_token(path)) {
        let mut tries: Vec<Vec<(&str, &str)>> = vec![vec![]];
        tries.extend(invalid_headers.iter().map(|value| vec![("authorization", *value)]));
        for headers in tries {
            // The token is checked before the body and the query.
            let response = api.send_raw(method, &format!("{path}?unknown=1"), &headers, "{").await;
            let _ = response.expect_problem(401, "UNAUTHENTICATED");
            assert_eq!(response.header("www-authenticate"), "Bearer");
        }
    }
    assert_eq!(api.get("/locks").await.expect_status(200)["items"], json!([]));
    assert_eq!(api.get("/agents").await.expect_status(200)["items"], json!([]));
}

#[tokio::test]
async fn bearer_scheme_is_case_insensitive() {
    let (_ade, api) = start_server().await;
    for scheme in ["Bearer", "bearer", "BEARER"] {
        let authorization = format!("{scheme} {BOOTSTRAP_TOKEN}");
        let response = api.send_raw("GET", "/api/v1/locks", &[("authorization", &authorization)], "").await;
        assert_eq!(response.status, 200);
    }
}

#[tokio::test]
async fn serves_exactly_the_documented_routes() {
    let (_ade, api) = start_server().await;
    let authorization = bearer(BOOTSTRAP_TOKEN);
    let headers = [("authorization", authorization.as_str())];
    for (path, methods) in paths(&api) {
        for method in METHODS {
            let response = api.send_raw(method, &path, &headers, "{}").await;
            if methods.contains(&method.to_owned()) {
                // `Api` checks that the status and code of every response are documented.
                assert!(
                    response.status != 405 && response.code() != "NOT_FOUND",
                    "{method} {path} is not served"
                );
                assert_ne!(response.status, 500, "{method} {path}");
            } else {
                let _ = response.expect_problem(405, "METHOD_NOT_ALLOWED");
                let allowed: BTreeSet<String> =
                    response.header("allow").split(',').map(str::to_owned).collect();
                let mut expected: BTreeSet<String> = methods.iter().cloned().collect();
                if expected.contains("GET") {
                    expected.insert("HEAD".to_owned());
                }
                assert_eq!(allowed, expected, "{method} {path}");
            }
        }
    }
    for path in [
        "/api",
        "/api/v1",
        "/api/v1/",
        "/api/v1/nothing",
        "/api/v2/locks",
        "/api/v1/locks/a/b",
        "/docs/no.js",
    ] {
        for method in METHODS {
            let _ = api.send_raw(method, path, &headers, "").await.expect_problem(404, "NOT_FOUND");
            let _ = api.send_raw(method, path, &[], "").await.expect_problem(404, "NOT_FOUND");
        }
    }
}

#[tokio::test]
async fn description_is_complete() {
    let (_ade, api) = start_server().await;
    let description = api.openapi();
    assert!(description["openapi"].as_str().is_some_and(|version| version.starts_with("3.")));
    let mut ids = BTreeSet::new();
    for (path, item) in description["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("an item") {
            assert!(operation["summary"].as_str().is_some_and(|text| !text.is_empty()), "{method} {path}");
            let id = operation["operationId"].as_str().expect("an id");
            assert!(ids.insert(id.to_owned()), "the operation id {id} is used twice");
            let statuses = operation["responses"].as_object().expect("responses");
            let authenticates = path.starts_with("/api/v1/") && !path.ends_with(INVITATION_ROUTE);
            assert_eq!(statuses.contains_key("401"), authenticates, "{method} {path}");
            if operation.get("requestBody").is_some() {
                for status in ["400", "413", "422"] {
                    assert!(
                        statuses.contains_key(status),
                        "{method} {path} has a body but does not document {status}"
                    );
                }
            }
        }
    }
    // All references resolve.
    let text = description.to_string();
    for reference in text.split(r#""$ref":""#).skip(1) {
        let pointer = reference.split('"').next().expect("quoted").trim_start_matches('#');
        assert!(description.pointer(pointer).is_some(), "{pointer} does not resolve");
    }
    assert_eq!(description["components"]["securitySchemes"]["token"]["scheme"], "bearer");
}

#[tokio::test]
async fn rejects_unknown_hosts() {
    let config = "[server]\nhosts = [\"ade.example\"]\n";
    let ade = AdeServer::start_with(env!("CARGO_BIN_EXE_ade"), config).expect("starts");
    let api = ApiClient::connect(&ade).await;
    let allowed_hosts =
        ["localhost", "LOCALHOST:8300", "127.0.0.1", "127.0.0.1:1", "[::1]:8300", "[::1]", "10.1.2.3"];
    for host in allowed_hosts.iter().chain(&["ade.example", "ADE.example:443"]) {
        for path in ["/healthz", "/docs", "/openapi.json"] {
            assert_eq!(api.send_raw("GET", path, &[("host", host)], "").await.status, 200, "{host}");
        }
    }
    let authorization = bearer(BOOTSTRAP_TOKEN);
    for host in [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:80",
        "xade.example",
        "a.ade.example",
    ] {
        for path in ["/healthz", "/docs", "/", "/nothing", "/api/v1/locks"] {
            let headers = [("host", host), ("authorization", authorization.as_str())];
            let _ = api.send_raw("GET", path, &headers, "").await.expect_problem(421, "HOST_NOT_ALLOWED");
        }
    }
}

#[tokio::test]
async fn every_response_has_request_id() {
    let (_ade, api) = start_server().await;
    let longest = "x".repeat(128);
    for id in ["a", "7f3c/b:{}%", longest.as_str()] {
        for path in ["/healthz", "/api/v1/locks", "/nothing"] {
            let response = api.send_raw("GET", path, &[("x-request-id", id)], "").await;
            assert_eq!(response.header("x-request-id"), id);
        }
    }
    let mut seen = BTreeSet::new();
    let long = "x".repeat(129);
    for invalid in [None, Some(""), Some("a b"), Some("a\tb"), Some("ü"), Some(long.as_str())] {
        let headers: Vec<(&str, &str)> = invalid.iter().map(|id| ("x-request-id", *id)).collect();
        let response = api.send_raw("GET", "/healthz", &headers, "").await;
        let id = response.header("x-request-id").to_owned();
        assert_eq!(id.len(), 36, "{invalid:?} became {id}");
        assert!(seen.insert(id), "{invalid:?}");
    }
}

#[tokio::test]
async fn every_response_has_security_headers() {
    let (_ade, api) = start_server().await;
    let big = " ".repeat((1 << 20) + 1);
    let authorization = bearer(BOOTSTRAP_TOKEN);
    let token = [("authorization", authorization.as_str())];
    let foreign_host = [("host", "evil.example")];
    for (method, path, headers, body) in [
        ("GET", "/", &[][..], ""),
        ("GET", "/docs", &[], ""),
        ("GET", "/docs/page.js", &[], ""),
        ("GET", "/openapi.json", &[], ""),
        ("GET", "/healthz", &[], ""),
        ("GET", "/metrics", &[], ""),
        ("GET", "/nothing", &[], ""),
        ("PUT", "/healthz", &[], ""),
        ("GET", "/healthz", &foreign_host, ""),
        ("GET", "/api/v1/locks", &[], ""),
        ("GET", "/api/v1/locks", &token, ""),
        ("POST", "/api/v1/locks/acquire", &token, "{"),
        ("POST", "/api/v1/locks/acquire", &token, &big),
    ] {
        let response = api.send_raw(method, path, headers, body).await;
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "same-origin"),
            ("x-frame-options", "DENY"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
            ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
            ("strict-transport-security", ""),
            // The sign-in page, to which the first path leads, is kept and asked for again.
            ("cache-control", if path == "/" { "private, no-cache" } else { "no-store" }),
        ] {
            assert_eq!(response.header(name), value, "{name} of {method} {path}");
        }
        assert!(response.header("content-security-policy").starts_with("default-src 'none'"), "{path}");
    }
}

#[tokio::test]
async fn accepts_bodies_up_to_one_mebibyte() {
    let (_ade, api) = start_server().await;
    let limit = 1 << 20;
    let authorization = bearer(BOOTSTRAP_TOKEN);
    let headers = [("authorization", authorization.as_str())];
    let body = r#"{"locks":[{"lock":"task:1"}]}"#;
    let padded = |bytes: usize| format!("{body}{}", " ".repeat(bytes - body.len()));
    let response = api.send_raw("POST", "/api/v1/locks/acquire", &headers, padded(limit)).await;
    assert_eq!(response.expect_status(200)["grants"][0]["lock"], "task:1");
    let before = api.get("/locks").await.text();
    let paths = api.openapi()["paths"].as_object().expect("paths").clone();
    for (path, item) in &paths {
        for (method, operation) in item.as_object().expect("an item") {
            // Nothing of a message without a signature is read.
            let is_hook = method == "post"
                && ["/api/v1/hooks/{id}", "/api/v1/hooks/slack/{id}"].contains(&path.as_str());
            if operation.get("requestBody").is_some() && !is_hook {
                let (method, path) = (method.to_uppercase(), path.replace("{id}", "nobody"));
                let response = api.send_raw(&method, &path, &headers, padded(limit + 1)).await;
                let _ = response.expect_problem(413, "BODY_TOO_LARGE");
            }
        }
    }
    assert_eq!(api.get("/locks").await.text(), before);
}

#[tokio::test]
async fn health_readiness_and_metrics_need_no_token() {
    let (_ade, api) = start_server().await;
    assert_eq!(api.send_raw("GET", "/healthz", &[], "").await.expect_status(200), json!({ "status": "ok" }));
    assert_eq!(
        api.send_raw("GET", "/readyz", &[], "").await.expect_status(200),
        json!({ "status": "ready" })
    );
    let acquire_body = |agent: &str, queue: bool| json!({ "locks": [{ "lock": "task:1" }], "agent_id": agent, "queue": queue });
    let _ = api.post("/locks/acquire", &acquire_body("a", false)).await.expect_status(200);
    let _ = api.post("/locks/acquire", &acquire_body("b", true)).await.expect_status(202);
    let _ = api.post("/locks/acquire", &acquire_body("c", false)).await.expect_status(423);
    let _ = api.send_raw("GET", "/no/such/path", &[], "").await.expect_status(404);
    let response = api.send_raw("GET", "/metrics", &[], "").await;
    assert!(response.header("content-type").starts_with("text/plain; version=0.0.4"));
    let text = response.text();
    for line in [
        "ade_lock_held 1",
        "ade_lock_waiting 1",
        "ade_agents 3",
        r#"ade_lock_requests_total{outcome="granted"} 1"#,
        r#"ade_lock_requests_total{outcome="queued"} 1"#,
        r#"ade_lock_requests_total{outcome="LOCK_HELD"} 1"#,
        r#"ade_http_requests_total{method="POST",route="/api/v1/locks/acquire",status="423"} 1"#,
        r#"ade_webhook_deliveries_total{format="email",outcome="failed"} 0"#,
        r#"ade_webhook_circuits{state="open"} 0"#,
        r#"ade_webhook_overdue_seconds{format="slack"} 0"#,
        "ade_event_followers 0",
        // Unknown paths do not become labels.
        r#"ade_http_requests_total{method="GET",route="none",status="404"} 1"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing in:\n{text}");
    }
    assert!(!text.contains("no/such/path"));
}

#[tokio::test]
async fn documentation_page_loads_no_foreign_resources() {
    let (ade, api) = start_server().await;
    for (path, content_type, part) in [
        ("/docs", "text/html; charset=utf-8", "/docs/page.js"),
        ("/docs/page.js", "text/javascript; charset=utf-8", "/openapi.json"),
        ("/docs/page.css", "text/css; charset=utf-8", "{"),
    ] {
        let response = api.send_raw("GET", path, &[], "").await;
        assert_eq!((response.status, response.header("content-type")), (200, content_type));
        let text = response.text();
        assert!(text.contains(part), "{part} in {path}");
        for foreign in ["http://", "https://", "src=\"//", "href=\"//", "url(", "@import"] {
            assert!(!text.contains(foreign), "{foreign} in {path}");
        }
    }
    let client =
        reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().expect("a client");
    let response = client.get(format!("{}/", ade.url())).send().await.expect("a response");
    assert_eq!(response.headers().get("location").expect("a redirect"), "/sign-in?next=%2F");
}
