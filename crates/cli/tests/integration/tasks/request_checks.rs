//! Checks that every request passes: If-Match, Idempotency-Key, body size and fields, sessions and CSRF tokens, rate limits.
//! Secrets must not appear in responses, logs or stored data.

use std::fs;
use std::path::Path;

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_domain::permission::Scope;
use ade_testkit::api::{ApiResponse, fill_path};
use ade_testkit::deployment::text_field;
use ade_testkit::session::{SessionClient, sign_in};
use ade_testkit::{AdminClient, Deployment, TestUser};
use serde_json::{Value, json};

use crate::tasks::UNKNOWN_ID;

const PASSWORD: &str = "correct horse battery staple";

/// Take signed messages of other systems, without a session or token.
const SIGNED_ROUTES: [(&str, &str); 2] = [("POST", "/hooks/{id}"), ("POST", "/hooks/slack/{id}")];

/// The headers of their messages, signed by nobody.
const SIGNATURES: [(&str, &str); 6] = [
    ("content-type", "application/x-www-form-urlencoded"),
    ("webhook-id", "m1"),
    ("webhook-timestamp", "1"),
    ("webhook-signature", "v1,AAAA"),
    ("x-slack-request-timestamp", "1"),
    ("x-slack-signature", "v0=00"),
];

fn deployment() -> Deployment {
    let config = "[webhooks]\nallowed_private_hosts = [\"127.0.0.1:9\"]\n";
    Deployment::embedded_with_config(env!("CARGO_BIN_EXE_ade"), config)
}

/// Users with one role each, and factories for the objects that a route needs.
struct Fixture {
    org: AdminClient,
    pat: TestUser,
    rex: TestUser,
    ada: TestUser,
    abe: TestUser,
}

impl Fixture {
    async fn new(deployment: &Deployment) -> Self {
        let org = deployment.admin().await;
        Self {
            pat: org.create_user("pat", &[AUTHOR]).await,
            rex: org.create_user("rex", &[REVIEWER]).await,
            ada: org.create_user("ada", &[ADMIN]).await,
            abe: org.create_user("abe", &[ADMIN]).await,
            org,
        }
    }

    async fn approved(&self) -> String {
        let id = self.pat.create_submitted(json!({})).await;
        let _ = self.rex.decide(&self.org.approval_id(&id, "rex").await, "approve").await.expect_status(200);
        id
    }

    /// A task that an agent has claimed.
    async fn applying(&self) -> String {
        let bot = self.org.create_agent("bot", &self.pat).await;
        let fields = json!({ "executor": "agent", "parameters": { "agent": "bot" } });
        let id = self.pat.create_submitted(fields).await;
        let _ = self.rex.decide(&self.org.approval_id(&id, "rex").await, "approve").await.expect_status(200);
        let _ = bot.post("/tasks/claim", &json!({})).await.expect_status(200);
        id
    }

    /// Prepares a request that the route accepts: the caller, the path, the body, and the path that shows the revision.
    async fn for_route(&self, method: &str, path: &str) -> (TestUser, String, Value, String) {
        let (caller, id, body) = match (method, path) {
            ("PATCH", "/tasks/{id}") => {
                (&self.pat, self.pat.create_draft(json!({})).await, json!({ "description": "b" }))
            }
            ("DELETE", "/tasks/{id}") | ("POST", "/tasks/{id}/submit") => {
                (&self.pat, self.pat.create_draft(json!({})).await, json!({}))
            }
            (_, "/tasks/{id}/comments") => {
                (&self.pat, self.pat.create_draft(json!({})).await, json!({ "text": "b" }))
            }
            (_, "/tasks/{id}/cancel") => (&self.pat, self.pat.create_draft(json!({})).await, json!({})),
            (_, "/tasks/{id}/archive") => {
                let id = self.pat.create_draft(json!({})).await;
                let _ = self.pat.post(&format!("/tasks/{id}/cancel"), &json!({})).await.expect_status(200);
                (&self.pat, id, json!({}))
            }
            (_, "/tasks/{id}/resubmit") => {
                let id = self.pat.create_submitted(json!({})).await;
                let _ = self
                    .rex
                    .decide(&self.org.approval_id(&id, "rex").await, "reject")
                    .await
                    .expect_status(200);
                (&self.pat, id, json!({}))
            }
            (_, "/tasks/{id}/revoke" | "/tasks/{id}/force-apply") => {
                (&self.ada, self.approved().await, json!({ "reason": "b" }))
            }
            (_, "/tasks/{id}/stop") => (&self.ada, self.applying().await, json!({ "reason": "b" })),
            (_, "/tasks/{id}/override") => {
                let body = json!({ "reason": "b", "incident_ticket": "INC-1" });
                (&self.ada, self.pat.create_submitted(json!({})).await, body)
            }
            (_, "/tasks/{id}/override/confirm") => {
                let id = self.pat.create_submitted(json!({})).await;
                let body = json!({ "reason": "b", "incident_ticket": "INC-1" });
                let _ = self.abe.post(&format!("/tasks/{id}/override"), &body).await.expect_status(200);
                (&self.ada, id, json!({}))
            }
            (_, decision) if decision.starts_with("/approvals/{id}/") => {
                let id = self.pat.create_submitted(json!({})).await;
                let body = if decision.ends_with("delegate") {
                    json!({ "to": "abe" })
                } else {
                    json!({ "reason": "b" })
                };
                (&self.rex, self.org.approval_id(&id, "rex").await, body)
            }
            (_, policy) if policy.starts_with("/policies/{id}") => {
                let name = format!("policy of {method} {path}");
                let created = self
                    .ada
                    .post("/policies", &json!({ "name": name, "task_types": ["none"] }))
                    .await
                    .expect_status(201);
                let body = if method == "PATCH" { json!({ "min_approvers": 2 }) } else { json!({}) };
                (&self.ada, text_field(&created, "policy_id"), body)
            }
            (_, "/delegations/{id}") => {
                let body = json!({ "delegate_to": "abe", "active": false });
                let created = self.rex.post("/delegations", &body).await.expect_status(201);
                (&self.rex, text_field(&created, "delegation_id"), json!({ "cascade": false }))
            }
            (_, "/resources/{pattern}") => {
                let pattern = format!("{method}:a/*");
                let body = json!({ "pattern": pattern, "criticality": 1 });
                let _ = self.ada.post("/resources", &body).await.expect_status(201);
                (&self.ada, pattern, json!({ "criticality": 2 }))
            }
            (_, webhook) if webhook.starts_with("/webhooks/{id}") => {
                let body = json!({ "name": "ci", "url": "http://127.0.0.1:9/", "events": ["archive:*"] });
                let created = self.ada.post("/webhooks", &body).await.expect_status(201);
                let body = if method == "PATCH" { json!({ "name": "other" }) } else { json!({}) };
                (&self.ada, text_field(&created, "webhook_id"), body)
            }
            (_, hook) if hook.starts_with("/hooks/{id}") => {
                let template = json!({ "type": "deploy", "description": "Deploy" });
                let body = json!({ "name": "deploys", "owner_id": "pat", "template": template });
                let created = self.ada.post("/hooks", &body).await.expect_status(201);
                let body = if method == "PATCH" { json!({ "name": "other" }) } else { json!({}) };
                (&self.ada, text_field(&created, "hook_id"), body)
            }
            (_, "/agents/{id}") => {
                let id = format!("revised-{}", method.to_lowercase());
                let _ = self.org.create_agent(&id, &self.pat).await;
                (&self.pat, id, json!({ "version": "2" }))
            }
            (_, "/users/{id}") => (&self.ada, "pat".to_owned(), json!({ "name": "Pat" })),
            (_, "/config/{name}") => (&self.ada, "approval:validity".to_owned(), json!({ "value": 500 })),
            (_, "/features/{flag}") => (&self.ada, "batch_approvals".to_owned(), json!({ "enabled": true })),
            other => panic!("{other:?} responds with 412: prepare a request for it here"),
        };
        let resource_path = path.split('/').take(3).collect::<Vec<_>>().join("/");
        (caller.clone(), fill_path(path, &id), body, fill_path(&resource_path, &id))
    }
}

#[tokio::test]
async fn rejects_stale_if_match_on_every_documented_route() {
    let deployment = deployment();
    let fixture = Fixture::new(&deployment).await;
    let mut checked = 0;
    for (method, path, operation) in fixture.org.api.operations() {
        // A rollback needs a task that a worker applied; the apply tests cover it.
        if operation["responses"].get("412").is_none() || path == "/tasks/{id}/rollback" {
            continue;
        }
        let (caller, target, body, resource_path) = fixture.for_route(&method, &path).await;
        let before = fixture.org.api.get(&resource_path).await.expect_status(200);
        let revision = before["revision"].as_u64().expect("a revision");
        let stale = [format!("\"{}\"", revision + 1), (revision + 7).to_string()];
        for etag in &stale {
            let headers = [("if-match", etag.as_str())];
            let refused = caller
                .request_with_headers(&method, &target, &headers, &body.to_string())
                .await
                .expect_problem(412, "STALE");
            assert_eq!(refused["revision"], revision, "{method} {path}");
        }
        for invalid in ["x", "\"\"", "W/\"1\"", "-1"] {
            let response = caller
                .request_with_headers(&method, &target, &[("if-match", invalid)], &body.to_string())
                .await;
            let _ = response.expect_problem(422, "INVALID_REQUEST");
        }
        assert_eq!(fixture.org.api.get(&resource_path).await.expect_status(200), before, "{method} {path}");
        let etag = if checked % 2 == 0 { format!("\"{revision}\"") } else { "*".to_owned() };
        let response =
            caller.request_with_headers(&method, &target, &[("if-match", &etag)], &body.to_string()).await;
        assert!(response.status < 300, "{method} {path}: {}", response.text());
        checked += 1;
    }
    assert!(checked >= 24, "{checked}");
    // GET ignores If-Match.
    for (method, path, _) in fixture.org.api.operations() {
        if method == "GET" {
            let target = fill_path(&path, "pat");
            let response = fixture.ada.request_with_headers("GET", &target, &[("if-match", "x")], "").await;
            assert!(!matches!(response.status, 412 | 500), "{path}: {}", response.text());
        }
    }
}

#[tokio::test]
async fn replays_response_for_repeated_idempotency_key() {
    let deployment = deployment();
    let fixture = Fixture::new(&deployment).await;
    let (pat, rex) = (&fixture.pat, &fixture.rex);
    let key = [("idempotency-key", "k-1")];
    let body = ade_testkit::deployment::task(json!({})).to_string();
    let first = pat.request_with_headers("POST", "/tasks", &key, &body).await;
    let created = first.expect_status(201);
    assert_eq!(first.header("idempotency-replayed"), "");
    for restarted in [false, true] {
        if restarted {
            deployment.server().kill_and_restart().expect("restarts");
        }
        let again = pat.request_with_headers("POST", "/tasks", &key, &body).await;
        assert_eq!(again.expect_status(201), created);
        assert_eq!(
            (again.header("idempotency-replayed"), again.header("etag")),
            ("true", first.header("etag"))
        );
        let other = ade_testkit::deployment::task(json!({ "description": "other" })).to_string();
        let _ = pat
            .request_with_headers("POST", "/tasks", &key, &other)
            .await
            .expect_problem(422, "IDEMPOTENCY_KEY_REUSED");
        let elsewhere = pat
            .request_with_headers(
                "POST",
                &format!("/tasks/{}/submit", text_field(&created, "task_id")),
                &key,
                &body,
            )
            .await;
        let _ = elsewhere.expect_problem(422, "IDEMPOTENCY_KEY_REUSED");
    }
    assert_eq!(pat.get("/tasks").await.expect_status(200)["items"].as_array().map(Vec::len), Some(1));
    // Keys are scoped to the caller: a user, an agent, the bootstrap token.
    let bot = fixture.org.create_agent("bot", pat).await;
    for caller in [&*bot, &*fixture.ada] {
        let response = caller.request_with_headers("POST", "/tasks", &key, &body).await;
        assert_eq!(response.header("idempotency-replayed"), "");
        assert_ne!(text_field(&response.expect_status(201), "task_id"), text_field(&created, "task_id"));
    }
    // A decision is replayed even after the task has changed.
    let id = pat.create_submitted(json!({})).await;
    let request = fixture.org.approval_id(&id, "rex").await;
    let path = format!("/approvals/{request}/approve");
    let first = rex.request_with_headers("POST", &path, &key, "{}").await.expect_status(200);
    let _ = pat.post(&format!("/tasks/{id}/cancel"), &json!({})).await.expect_status(200);
    let again = rex.request_with_headers("POST", &path, &key, "{}").await;
    assert_eq!(again.expect_status(200), first);
    let _ = rex.request_with_headers("POST", &path, &[], "{}").await.expect_problem(409, "ALREADY_DECIDED");
    // A refusal is not stored: the same key can succeed later.
    let second_key = [("idempotency-key", "k-2")];
    let draft = pat.create_draft(json!({ "type": "strict" })).await;
    fixture
        .org
        .create_policy(json!({ "name": "strict", "task_types": ["strict"], "required_roles": ["dba"] }))
        .await;
    let path = format!("/tasks/{draft}/submit");
    let _ = pat.request_with_headers("POST", &path, &second_key, "").await.expect_problem(422, "NO_QUORUM");
    let _ = fixture.org.create_user("dan", &["dba"]).await;
    let _ = pat.request_with_headers("POST", &path, &second_key, "").await.expect_status(202);
    // A replayed response does not contain the new token.
    let body = json!({ "name": "t" }).to_string();
    let first = pat.request_with_headers("POST", "/users/me/tokens", &second_key, &body).await;
    let _ = first.expect_problem(422, "IDEMPOTENCY_KEY_REUSED");
    let third_key = [("idempotency-key", "k-3")];
    let first =
        pat.request_with_headers("POST", "/users/me/tokens", &third_key, &body).await.expect_status(201);
    let again =
        pat.request_with_headers("POST", "/users/me/tokens", &third_key, &body).await.expect_status(201);
    assert_eq!((first["token_id"].clone(), Value::Null), (again["token_id"].clone(), again["token"].clone()));
    let long = "x".repeat(256);
    for invalid in ["", long.as_str()] {
        let response =
            pat.request_with_headers("POST", "/tasks", &[("idempotency-key", invalid)], "{}").await;
        let _ = response.expect_problem(422, "INVALID_REQUEST");
    }
}

#[tokio::test]
async fn rejects_concurrent_requests_with_one_idempotency_key() {
    let deployment = deployment();
    let org = deployment.admin().await;
    let mut in_flight = 0;
    // Password hashing is slow, so the first request is still in progress when the others arrive.
    for n in 0..8 {
        let key = format!("k-{n}");
        let body = json!({ "user_id": format!("user-{n}"), "password": PASSWORD }).to_string();
        let calls = (0..6).map(|_| {
            let (api, key, body) = (org.api.clone(), key.clone(), body.clone());
            tokio::spawn(async move {
                api.request_with_headers("POST", "/users", &[("idempotency-key", &key)], &body).await
            })
        });
        let mut created = 0;
        for call in calls.collect::<Vec<_>>() {
            let response = call.await.expect("no panic");
            match response.status {
                201 if response.header("idempotency-replayed").is_empty() => created += 1,
                201 => {}
                _ => {
                    let _ = response.expect_problem(409, "IN_FLIGHT");
                    assert_eq!(response.header("retry-after"), "1");
                    in_flight += 1;
                }
            }
        }
        assert_eq!(created, 1, "exactly one request created the user");
        let replayed =
            org.api.request_with_headers("POST", "/users", &[("idempotency-key", &key)], &body).await;
        let _ = replayed.expect_status(201);
        assert_eq!(replayed.header("idempotency-replayed"), "true");
    }
    assert!(in_flight > 0, "no request was refused with IN_FLIGHT in eight rounds of six");
}

#[tokio::test]
async fn rejects_oversized_bodies_and_unknown_fields() {
    let deployment = deployment();
    let fixture = Fixture::new(&deployment).await;
    let admin = &fixture.org.api;
    let big = format!("{{\"no_such_field\": \"{}\"}}", "x".repeat(1 << 20));
    for (method, path, operation) in admin.operations() {
        let target = format!("/api/v1{}", fill_path(&path, UNKNOWN_ID));
        // Their callers sign the message instead: a token is nothing there. The tests of connections check how much is read.
        if SIGNED_ROUTES.contains(&(method.as_str(), path.as_str())) {
            let authorization = format!("Bearer {}", fixture.ada.token);
            let token = [("authorization", authorization.as_str())];
            for body in ["{", "{\"no_such_field\": 1}"] {
                let response = admin.send_raw(&method, &target, &token, body).await;
                let _ = response.expect_problem(401, "UNAUTHENTICATED");
            }
            continue;
        }
        let authorization = format!("Bearer {}", fixture.ada.token);
        let headers = [("authorization", authorization.as_str())];
        if operation.get("requestBody").is_some() {
            let _ = admin
                .send_raw(&method, &target, &headers, big.clone())
                .await
                .expect_problem(413, "BODY_TOO_LARGE");
            let _ =
                admin.send_raw(&method, &target, &headers, "{").await.expect_problem(400, "MALFORMED_JSON");
            for body in ["{\"no_such_field\": 1}", "[]", "7"] {
                let _ = admin
                    .send_raw(&method, &target, &headers, body)
                    .await
                    .expect_problem(422, "INVALID_REQUEST");
            }
        } else if operation["responses"].get("413").is_some() {
            // A route with an optional body rejects unknown fields, too.
            let _ = admin
                .send_raw(&method, &target, &headers, big.clone())
                .await
                .expect_problem(413, "BODY_TOO_LARGE");
            let body = "{\"no_such_field\": 1}";
            let _ =
                admin.send_raw(&method, &target, &headers, body).await.expect_problem(422, "INVALID_REQUEST");
        }
    }
    // Nested objects reject unknown fields, too.
    let mut nested = vec![];
    for fields in [
        json!({ "resources": [{ "type": "a", "id": "b", "odd": 1 }] }),
        json!({ "lineage": { "odd": 1 } }),
        json!({ "executor": "agent", "preview": { "odd": 1 } }),
    ] {
        nested.push(("/tasks", ade_testkit::deployment::task(fields)));
    }
    nested.push((
        "/approvals/batch",
        json!({ "approval_ids": [], "action": "approve", "options": { "odd": 1 } }),
    ));
    nested.push(("/policies", json!({ "name": "p", "auto_approve_if": { "odd": 1 } })));
    nested.push(("/policies", json!({ "name": "p", "window": { "odd": 1 } })));
    nested.push(("/delegations", json!({ "delegate_to": "rex", "conditions": { "odd": 1 } })));
    nested.push(("/simulations", json!({ "task": { "odd": 1 } })));
    nested.push(("/simulations", json!({ "policies": [{ "odd": 1 }] })));
    for (path, body) in nested {
        let _ = fixture.ada.post(path, &body).await.expect_problem(422, "INVALID_REQUEST");
    }
}

#[tokio::test]
async fn session_writes_require_csrf_token_and_end_with_session() {
    let deployment = deployment();
    let org = deployment.admin().await;
    let admin = &org.api;
    let roles = [ADMIN, AUTHOR, REVIEWER];
    org.join("sam", &roles, PASSWORD).await;
    let sam = SessionClient::sign_in(admin, "sam", PASSWORD).await;
    let other = SessionClient::sign_in(admin, "sam", PASSWORD).await;
    assert_eq!(sam.status().await, 200);
    let before = admin.get("/stats/overview").await.expect_status(200);
    let template = json!({ "type": "deploy", "description": "Deploy" });
    let hook = json!({ "name": "deploys", "owner_id": "sam", "template": template });
    let hook = text_field(&admin.post("/hooks", &hook).await.expect_status(201), "hook_id");
    let mut signed = 0;
    for (method, path, _) in admin.operations() {
        if SIGNED_ROUTES.contains(&(method.as_str(), path.as_str())) {
            // A session is nothing there, not even with its own CSRF token, nor that of the owner of the hook.
            for csrf_token in [None, Some(sam.csrf_token.as_str())] {
                let target = fill_path(&path, &hook);
                let response = sam.call(&method, &target, csrf_token, &json!({ "data": {} })).await;
                let _ = response.expect_problem(401, "UNAUTHENTICATED");
                let mut headers = sam.headers(csrf_token);
                headers.extend(SIGNATURES);
                let target = format!("/api/v1{target}");
                let response = admin.send_raw(&method, &target, &headers, "{\"data\": {}}").await;
                let _ = response.expect_problem(401, "UNAUTHENTICATED");
            }
            signed += 1;
            continue;
        }
        if method == "GET" || path == "/sessions" || path == "/users/invitations/accept" {
            continue;
        }
        // A missing, empty, wrong or foreign CSRF token.
        for csrf_token in [None, Some(""), Some("wrong"), Some(other.csrf_token.as_str())] {
            let response = sam.call(&method, &fill_path(&path, UNKNOWN_ID), csrf_token, &json!({})).await;
            let _ = response.expect_problem(403, "CSRF");
        }
    }
    assert_eq!(signed, SIGNED_ROUTES.len());
    assert_eq!(admin.get("/stats/overview").await.expect_status(200)["tasks"], before["tasks"]);
    let task = ade_testkit::deployment::task(json!({}));
    let _ = sam.call("POST", "/tasks", Some(&sam.csrf_token), &task).await.expect_status(201);
    // A session can create a token with the decide scope for its own user only.
    let token = json!({ "name": "t", "scopes": [Scope::Decide] });
    let created =
        sam.call("POST", "/users/me/tokens", Some(&sam.csrf_token), &token).await.expect_status(201);
    let _ = sam
        .call("POST", "/users/admin/tokens", Some(&sam.csrf_token), &token)
        .await
        .expect_problem(403, "FORBIDDEN");
    // Signing out ends this session and no other.
    let response = sam.call("DELETE", "/sessions/current", Some(&sam.csrf_token), &json!({})).await;
    assert_eq!((response.status, sam.status().await, other.status().await), (204, 401, 200));
    assert!(response.header("set-cookie").contains("Max-Age=0"));
    let _ = admin
        .with_token(&text_field(&created, "token"))
        .delete("/sessions/current")
        .await
        .expect_problem(404, "SESSION_NOT_FOUND");
    // A new password ends the other sessions of the user. A user without the admin role can change only their own password.
    org.join("tom", &[AUTHOR], PASSWORD).await;
    let tom = SessionClient::sign_in(admin, "tom", PASSWORD).await;
    let second = SessionClient::sign_in(admin, "tom", PASSWORD).await;
    for change in [json!({ "roles": [ADMIN] }), json!({ "password": "another one", "roles": [ADMIN] })] {
        let _ = tom
            .call("PATCH", "/users/me", Some(&tom.csrf_token), &change)
            .await
            .expect_problem(403, "FORBIDDEN");
    }
    let change = json!({ "password": "another one", "current_password": PASSWORD });
    let _ = tom
        .call("PATCH", "/users/sam", Some(&tom.csrf_token), &change)
        .await
        .expect_problem(403, "FORBIDDEN");
    let _ = tom.call("PATCH", "/users/me", Some(&tom.csrf_token), &change).await.expect_status(200);
    assert_eq!((tom.status().await, second.status().await), (200, 401));
    let _ = sign_in(admin, "tom", PASSWORD).await.expect_problem(401, "UNAUTHENTICATED");
    // Deactivating a user ends their sessions.
    let tom = SessionClient::sign_in(admin, "tom", "another one").await;
    let _ = admin.patch("/users/tom", &json!({ "active": false })).await.expect_status(200);
    assert_eq!(tom.status().await, 401);
    let _ = sign_in(admin, "tom", "another one").await.expect_problem(401, "UNAUTHENTICATED");
    let _ = admin.patch("/users/tom", &json!({ "active": true })).await.expect_status(200);
    assert_eq!(tom.status().await, 401, "reactivating the user does not restore the session");
}

#[tokio::test]
async fn rate_limits_requests_and_sign_ins() {
    let config = "[limit]\nrequests_per_minute = 4\nsign_ins_per_minute = 3\n";
    let deployment = Deployment::embedded_with_config(env!("CARGO_BIN_EXE_ade"), config);
    let org = deployment.admin().await;
    org.set_config("ratelimit:token", json!(5)).await;
    let pat = org.create_user("pat", &[AUTHOR]).await;
    let rex = org.create_user("rex", &[REVIEWER]).await;
    let assert_rate_limited = |response: &ApiResponse, limit: &str| {
        let problem = response.expect_problem(429, "RATE_LIMITED");
        let seconds: u64 = response.header("retry-after").parse().expect("seconds");
        assert!((1..=60).contains(&seconds) && problem["retry_after"] == seconds, "{problem}");
        assert_eq!(
            (response.header("ratelimit-limit"), response.header("ratelimit-remaining")),
            (limit, "0")
        );
        assert_eq!(response.header("ratelimit-reset"), response.header("retry-after"));
        assert_eq!(response.header("ratelimit-policy"), format!("{limit};w=60"));
    };
    for n in 0..7 {
        let response = pat.get("/tasks").await;
        if n < 5 { drop(response.expect_status(200)) } else { assert_rate_limited(&response, "5") }
    }
    // Users and endpoints are counted separately; the bootstrap token is not limited.
    let _ = rex.get("/tasks").await.expect_status(200);
    let _ = pat.get("/policies").await.expect_status(200);
    for _ in 0..10 {
        let _ = org.api.get("/tasks").await.expect_status(200);
    }
    // All tokens of a user share one limit.
    let second_token = org.issue_token("pat", &[Scope::Read]).await;
    assert_rate_limited(&second_token.get("/tasks").await, "5");
    // Sessions are counted apart from tokens, with a limit of their own.
    let session = org.join_and_sign_in("sue", &[AUTHOR], PASSWORD).await;
    for n in 0..5 {
        let response = session.call("GET", "/tasks", None, &json!({})).await;
        if n < 4 { drop(response.expect_status(200)) } else { assert_rate_limited(&response, "4") }
    }
    // Sign-in attempts are limited per user name, whether the user exists or not.
    for name in ["pat", "nobody"] {
        for n in 0..4 {
            let response = sign_in(&org.api, name, "wrong password").await;
            if n < 3 {
                drop(response.expect_problem(401, "UNAUTHENTICATED"));
            } else {
                assert_rate_limited(&response, "3");
            }
        }
    }
    // They are also limited per address: 15, of which 10 are used up above.
    for n in 10..17 {
        let response = sign_in(&org.api, &format!("name-{n}"), "wrong password").await;
        if n < 15 {
            drop(response.expect_problem(401, "UNAUTHENTICATED"));
        } else {
            assert_rate_limited(&response, "15");
        }
    }
}

/// Appends the content of all files below `folder`.
fn bytes_below(folder: &Path, found: &mut Vec<u8>) {
    for entry in fs::read_dir(folder).expect("readable") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            bytes_below(&path, found);
        } else {
            found.extend(fs::read(&path).expect("readable"));
        }
    }
}

#[tokio::test]
async fn secrets_never_appear_in_responses_logs_or_data() {
    let deployment = deployment();
    let org = deployment.admin().await;
    let admin = &org.api;
    let mut responses = String::new();
    let user = json!({ "user_id": "sam", "roles": [AUTHOR], "password": PASSWORD }).to_string();
    let key = [("idempotency-key", "k-1")];
    for _ in 0..2 {
        responses.push_str(&admin.request_with_headers("POST", "/users", &key, &user).await.text());
    }
    let sam = SessionClient::sign_in(admin, "sam", PASSWORD).await;
    let own = json!({ "password": format!("own {PASSWORD}"), "current_password": PASSWORD });
    responses.push_str(&sam.patch("/users/me", &own).await.text());
    let created = sam
        .call("POST", "/users/me/tokens", Some(&sam.csrf_token), &json!({ "name": "t" }))
        .await
        .expect_status(201);
    let token = text_field(&created, "token");
    // Secrets in wrong fields.
    for body in [
        json!({ "user_id": "sam", "password": format!("{PASSWORD}!") }),
        json!({ "user_id": PASSWORD, "password": "sam" }),
        json!({ "user_id": "sam", "pass": PASSWORD }),
        json!({ "user_id": "sam", "password": { "is": PASSWORD } }),
        json!({ "user_id": "sam", "password": [PASSWORD] }),
    ] {
        responses.push_str(&admin.send_raw("POST", "/api/v1/sessions", &[], body.to_string()).await.text());
    }
    let change = json!({ "password": format!("{PASSWORD} again") });
    responses.push_str(&admin.patch("/users/sam", &change).await.text());
    let invited = admin.post("/users/invitations", &json!({ "user_id": "ivy" })).await.expect_status(201);
    let code = text_field(&invited, "code");
    responses
        .push_str(&admin.patch("/users/sam", &json!({ "password": "short", "name": "Sam" })).await.text());
    for (method, path, _) in admin.operations() {
        if method == "GET" {
            responses.push_str(&admin.get(&fill_path(&path, "sam")).await.text());
        }
    }
    let log = deployment.server().process().log_lines_with("").join("\n");
    assert!(log.contains("listening on"), "{log}");
    deployment.server().stop().expect("stops");
    let mut data = Vec::new();
    bytes_below(&deployment.server().data(), &mut data);
    let data = String::from_utf8_lossy(&data);
    assert!(data.contains("sam") && data.contains("$argon2id$"), "the data folder contains the database");
    let session = sam.cookie.split_once('=').expect("a pair").1;
    for (name, secret) in [
        ("password", PASSWORD),
        ("token", &token),
        ("session", session),
        ("CSRF token", &sam.csrf_token),
        ("invitation", &code),
    ] {
        assert!(secret.len() > 20);
        assert!(!responses.contains(secret), "the {name} is in a response");
        assert!(!log.contains(secret), "the {name} is in the log");
        assert!(!data.contains(secret), "the {name} is in the data folder");
    }
    assert!(!responses.contains("argon2"), "a password hash is in a response");
}
