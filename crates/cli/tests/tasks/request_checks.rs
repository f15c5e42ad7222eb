//! Checks that every request passes: If-Match, Idempotency-Key, body size and fields, sessions and CSRF tokens, rate limits.
//! Secrets must not appear in responses, logs or stored data.

use std::fs;
use std::path::Path;

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_domain::permission::Scope;
use ade_testkit::api::{Answer, Api, fill};
use ade_testkit::people::text;
use ade_testkit::{House, Office, Person};
use serde_json::{Value, json};

use crate::UNKNOWN_ID;

const PASSWORD: &str = "correct horse battery staple";

fn deployment() -> House {
    House::embedded(env!("CARGO_BIN_EXE_ade"))
}

/// A signed-in user.
struct Session {
    api: Api,
    cookie: String,
    csrf_token: String,
}

impl Session {
    async fn new(api: &Api, user: &str, password: &str) -> Self {
        let response = sign_in(api, user, password).await;
        let csrf_token = text(&response.expect(201), "csrf_token");
        let cookie = response.header("set-cookie").to_owned();
        for part in ["HttpOnly", "SameSite=Strict", "Path=/"] {
            assert!(cookie.contains(part), "{cookie}");
        }
        let cookie = cookie.split(';').next().expect("a pair").to_owned();
        Self { api: api.clone(), cookie, csrf_token }
    }

    async fn call(&self, method: &str, path: &str, csrf_token: Option<&str>, body: &Value) -> Answer {
        let mut headers = vec![("cookie", self.cookie.as_str())];
        headers.extend(csrf_token.map(|csrf_token| ("x-csrf-token", csrf_token)));
        self.api.send(method, &format!("/api/v1{path}"), &headers, body.to_string()).await
    }

    async fn status(&self) -> u16 {
        self.call("GET", "/sessions/current", None, &json!({})).await.status
    }
}

async fn sign_in(api: &Api, user: &str, password: &str) -> Answer {
    let body = json!({ "user_id": user, "password": password });
    api.send("POST", "/api/v1/sessions", &[], body.to_string()).await
}

/// Users with one role each, and factories for the objects that a route needs.
struct Fixture {
    org: Office,
    pat: Person,
    rex: Person,
    ada: Person,
    abe: Person,
}

impl Fixture {
    async fn new(deployment: &House) -> Self {
        let org = deployment.office().await;
        Self {
            pat: org.person("pat", &[AUTHOR]).await,
            rex: org.person("rex", &[REVIEWER]).await,
            ada: org.person("ada", &[ADMIN]).await,
            abe: org.person("abe", &[ADMIN]).await,
            org,
        }
    }

    async fn approved(&self) -> String {
        let id = self.pat.submitted(json!({})).await;
        let _ = self.rex.answers(&self.org.request(&id, "rex").await, "approve").await.expect(200);
        id
    }

    /// A task that an agent has claimed.
    async fn applying(&self) -> String {
        let bot = self.org.agent("bot", &self.pat).await;
        let fields = json!({ "executor": "agent", "parameters": { "agent": "bot" } });
        let id = self.pat.submitted(fields).await;
        let _ = self.rex.answers(&self.org.request(&id, "rex").await, "approve").await.expect(200);
        let _ = bot.post("/tasks/claim", &json!({})).await.expect(200);
        id
    }

    /// Prepares a request that the route accepts: the caller, the path, the body, and the path that shows the revision.
    async fn for_route(&self, method: &str, path: &str) -> (Person, String, Value, String) {
        let (caller, id, body) = match (method, path) {
            ("PATCH", "/tasks/{id}") => {
                (&self.pat, self.pat.draft(json!({})).await, json!({ "description": "b" }))
            }
            ("DELETE", "/tasks/{id}") | ("POST", "/tasks/{id}/submit") => {
                (&self.pat, self.pat.draft(json!({})).await, json!({}))
            }
            (_, "/tasks/{id}/comments") => {
                (&self.pat, self.pat.draft(json!({})).await, json!({ "text": "b" }))
            }
            (_, "/tasks/{id}/cancel") => (&self.pat, self.pat.draft(json!({})).await, json!({})),
            (_, "/tasks/{id}/resubmit") => {
                let id = self.pat.submitted(json!({})).await;
                let _ = self.rex.answers(&self.org.request(&id, "rex").await, "reject").await.expect(200);
                (&self.pat, id, json!({}))
            }
            (_, "/tasks/{id}/revoke" | "/tasks/{id}/force-apply") => {
                (&self.ada, self.approved().await, json!({ "reason": "b" }))
            }
            (_, "/tasks/{id}/stop") => (&self.ada, self.applying().await, json!({ "reason": "b" })),
            (_, "/tasks/{id}/override") => {
                let body = json!({ "reason": "b", "incident_ticket": "INC-1" });
                (&self.ada, self.pat.submitted(json!({})).await, body)
            }
            (_, "/tasks/{id}/override/confirm") => {
                let id = self.pat.submitted(json!({})).await;
                let body = json!({ "reason": "b", "incident_ticket": "INC-1" });
                let _ = self.abe.post(&format!("/tasks/{id}/override"), &body).await.expect(200);
                (&self.ada, id, json!({}))
            }
            (_, decision) if decision.starts_with("/approvals/{id}/") => {
                let id = self.pat.submitted(json!({})).await;
                let body = if decision.ends_with("delegate") {
                    json!({ "to": "abe" })
                } else {
                    json!({ "reason": "b" })
                };
                (&self.rex, self.org.request(&id, "rex").await, body)
            }
            (_, policy) if policy.starts_with("/policies/{id}") => {
                let name = format!("policy of {method} {path}");
                let created = self
                    .ada
                    .post("/policies", &json!({ "name": name, "task_types": ["none"] }))
                    .await
                    .expect(201);
                let body = if method == "PATCH" { json!({ "min_approvers": 2 }) } else { json!({}) };
                (&self.ada, text(&created, "policy_id"), body)
            }
            (_, "/delegations/{id}") => {
                let body = json!({ "delegate_to": "abe", "active": false });
                let created = self.rex.post("/delegations", &body).await.expect(201);
                (&self.rex, text(&created, "delegation_id"), json!({ "cascade": false }))
            }
            (_, "/resources/{pattern}") => {
                let pattern = format!("{method}:a/*");
                let body = json!({ "pattern": pattern, "criticality": 1 });
                let _ = self.ada.post("/resources", &body).await.expect(201);
                (&self.ada, pattern, json!({ "criticality": 2 }))
            }
            (_, "/users/{id}") => (&self.ada, "pat".to_owned(), json!({ "name": "Pat" })),
            (_, "/config/{name}") => (&self.ada, "approval:validity".to_owned(), json!({ "value": 500 })),
            (_, "/features/{flag}") => (&self.ada, "batch_approvals".to_owned(), json!({ "enabled": true })),
            other => panic!("{other:?} responds with 412: prepare a request for it here"),
        };
        let resource_path = path.split('/').take(3).collect::<Vec<_>>().join("/");
        (caller.clone(), fill(path, &id), body, fill(&resource_path, &id))
    }
}

#[tokio::test]
async fn rejects_stale_if_match_on_every_documented_route() {
    let deployment = deployment();
    let fixture = Fixture::new(&deployment).await;
    let mut checked = 0;
    for (method, path, operation) in fixture.org.admin.operations() {
        // A rollback needs a task that a worker applied; the apply tests cover it.
        if operation["responses"].get("412").is_none() || path == "/tasks/{id}/rollback" {
            continue;
        }
        let (caller, target, body, resource_path) = fixture.for_route(&method, &path).await;
        let before = fixture.org.admin.get(&resource_path).await.expect(200);
        let revision = before["revision"].as_u64().expect("a revision");
        let stale = [format!("\"{}\"", revision + 1), (revision + 7).to_string()];
        for etag in &stale {
            let headers = [("if-match", etag.as_str())];
            let refused =
                caller.call_with(&method, &target, &headers, &body.to_string()).await.problem(412, "STALE");
            assert_eq!(refused["revision"], revision, "{method} {path}");
        }
        for invalid in ["x", "\"\"", "W/\"1\"", "-1"] {
            let response =
                caller.call_with(&method, &target, &[("if-match", invalid)], &body.to_string()).await;
            let _ = response.problem(422, "INVALID_REQUEST");
        }
        assert_eq!(fixture.org.admin.get(&resource_path).await.expect(200), before, "{method} {path}");
        let etag = if checked % 2 == 0 { format!("\"{revision}\"") } else { "*".to_owned() };
        let response = caller.call_with(&method, &target, &[("if-match", &etag)], &body.to_string()).await;
        assert!(response.status < 300, "{method} {path}: {}", response.text());
        checked += 1;
    }
    assert!(checked >= 24, "{checked}");
    // GET ignores If-Match.
    for (method, path, _) in fixture.org.admin.operations() {
        if method == "GET" {
            let target = fill(&path, "pat");
            let response = fixture.ada.call_with("GET", &target, &[("if-match", "x")], "").await;
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
    let body = ade_testkit::people::task(json!({})).to_string();
    let first = pat.call_with("POST", "/tasks", &key, &body).await;
    let created = first.expect(201);
    assert_eq!(first.header("idempotency-replayed"), "");
    for restarted in [false, true] {
        if restarted {
            deployment.ade().kill_and_restart().expect("restarts");
        }
        let again = pat.call_with("POST", "/tasks", &key, &body).await;
        assert_eq!(again.expect(201), created);
        assert_eq!(
            (again.header("idempotency-replayed"), again.header("etag")),
            ("true", first.header("etag"))
        );
        let other = ade_testkit::people::task(json!({ "description": "other" })).to_string();
        let _ = pat.call_with("POST", "/tasks", &key, &other).await.problem(422, "IDEMPOTENCY_KEY_REUSED");
        let elsewhere =
            pat.call_with("POST", &format!("/tasks/{}/submit", text(&created, "task_id")), &key, &body).await;
        let _ = elsewhere.problem(422, "IDEMPOTENCY_KEY_REUSED");
    }
    assert_eq!(pat.get("/tasks").await.expect(200)["items"].as_array().map(Vec::len), Some(1));
    // Keys are scoped to the caller: a user, an agent, the bootstrap token.
    let bot = fixture.org.agent("bot", pat).await;
    for caller in [&*bot, &*fixture.ada] {
        let response = caller.call_with("POST", "/tasks", &key, &body).await;
        assert_eq!(response.header("idempotency-replayed"), "");
        assert_ne!(text(&response.expect(201), "task_id"), text(&created, "task_id"));
    }
    // A decision is replayed even after the task has changed.
    let id = pat.submitted(json!({})).await;
    let request = fixture.org.request(&id, "rex").await;
    let path = format!("/approvals/{request}/approve");
    let first = rex.call_with("POST", &path, &key, "{}").await.expect(200);
    let _ = pat.post(&format!("/tasks/{id}/cancel"), &json!({})).await.expect(200);
    let again = rex.call_with("POST", &path, &key, "{}").await;
    assert_eq!(again.expect(200), first);
    let _ = rex.call_with("POST", &path, &[], "{}").await.problem(409, "ALREADY_DECIDED");
    // A refusal is not stored: the same key can succeed later.
    let second_key = [("idempotency-key", "k-2")];
    let draft = pat.draft(json!({ "type": "strict" })).await;
    fixture
        .org
        .policy(json!({ "name": "strict", "task_types": ["strict"], "required_roles": ["dba"] }))
        .await;
    let path = format!("/tasks/{draft}/submit");
    let _ = pat.call_with("POST", &path, &second_key, "").await.problem(422, "NO_QUORUM");
    let _ = fixture.org.person("dan", &["dba"]).await;
    let _ = pat.call_with("POST", &path, &second_key, "").await.expect(202);
    // A replayed response does not contain the new token.
    let body = json!({ "name": "t" }).to_string();
    let first = pat.call_with("POST", "/users/me/tokens", &second_key, &body).await;
    let _ = first.problem(422, "IDEMPOTENCY_KEY_REUSED");
    let third_key = [("idempotency-key", "k-3")];
    let first = pat.call_with("POST", "/users/me/tokens", &third_key, &body).await.expect(201);
    let again = pat.call_with("POST", "/users/me/tokens", &third_key, &body).await.expect(201);
    assert_eq!((first["token_id"].clone(), Value::Null), (again["token_id"].clone(), again["token"].clone()));
    let long = "x".repeat(256);
    for invalid in ["", long.as_str()] {
        let response = pat.call_with("POST", "/tasks", &[("idempotency-key", invalid)], "{}").await;
        let _ = response.problem(422, "INVALID_REQUEST");
    }
}

#[tokio::test]
async fn rejects_concurrent_requests_with_one_idempotency_key() {
    let deployment = deployment();
    let org = deployment.office().await;
    let mut in_flight = 0;
    // Password hashing is slow, so the first request is still in progress when the others arrive.
    for n in 0..8 {
        let key = format!("k-{n}");
        let body = json!({ "user_id": format!("user-{n}"), "password": PASSWORD }).to_string();
        let calls = (0..6).map(|_| {
            let (api, key, body) = (org.admin.clone(), key.clone(), body.clone());
            tokio::spawn(
                async move { api.call_with("POST", "/users", &[("idempotency-key", &key)], &body).await },
            )
        });
        let mut created = 0;
        for call in calls.collect::<Vec<_>>() {
            let response = call.await.expect("no panic");
            match response.status {
                201 if response.header("idempotency-replayed").is_empty() => created += 1,
                201 => {}
                _ => {
                    let _ = response.problem(409, "IN_FLIGHT");
                    assert_eq!(response.header("retry-after"), "1");
                    in_flight += 1;
                }
            }
        }
        assert_eq!(created, 1, "exactly one request created the user");
        let replayed = org.admin.call_with("POST", "/users", &[("idempotency-key", &key)], &body).await;
        let _ = replayed.expect(201);
        assert_eq!(replayed.header("idempotency-replayed"), "true");
    }
    assert!(in_flight > 0, "no request was refused with IN_FLIGHT in eight rounds of six");
}

#[tokio::test]
async fn rejects_oversized_bodies_and_unknown_fields() {
    let deployment = deployment();
    let fixture = Fixture::new(&deployment).await;
    let admin = &fixture.org.admin;
    let big = format!("{{\"no_such_field\": \"{}\"}}", "x".repeat(1 << 20));
    for (method, path, operation) in admin.operations() {
        let target = format!("/api/v1{}", fill(&path, UNKNOWN_ID));
        let authorization = format!("Bearer {}", fixture.ada.token);
        let headers = [("authorization", authorization.as_str())];
        if operation.get("requestBody").is_some() {
            let _ = admin.send(&method, &target, &headers, big.clone()).await.problem(413, "BODY_TOO_LARGE");
            let _ = admin.send(&method, &target, &headers, "{").await.problem(400, "MALFORMED_JSON");
            for body in ["{\"no_such_field\": 1}", "[]", "7"] {
                let _ = admin.send(&method, &target, &headers, body).await.problem(422, "INVALID_REQUEST");
            }
        } else if operation["responses"].get("413").is_some() {
            // A route with an optional body rejects unknown fields, too.
            let _ = admin.send(&method, &target, &headers, big.clone()).await.problem(413, "BODY_TOO_LARGE");
            let body = "{\"no_such_field\": 1}";
            let _ = admin.send(&method, &target, &headers, body).await.problem(422, "INVALID_REQUEST");
        }
    }
    // Nested objects reject unknown fields, too.
    let mut nested = vec![];
    for fields in [
        json!({ "resources": [{ "type": "a", "id": "b", "odd": 1 }] }),
        json!({ "lineage": { "odd": 1 } }),
        json!({ "executor": "agent", "preview": { "odd": 1 } }),
    ] {
        nested.push(("/tasks", ade_testkit::people::task(fields)));
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
        let _ = fixture.ada.post(path, &body).await.problem(422, "INVALID_REQUEST");
    }
}

#[tokio::test]
async fn session_writes_require_csrf_token_and_end_with_session() {
    let deployment = deployment();
    let org = deployment.office().await;
    let admin = &org.admin;
    let roles = [ADMIN, AUTHOR, REVIEWER];
    let _ = org.made(json!({ "user_id": "sam", "roles": roles, "password": PASSWORD })).await;
    let sam = Session::new(admin, "sam", PASSWORD).await;
    let other = Session::new(admin, "sam", PASSWORD).await;
    assert_eq!(sam.status().await, 200);
    let before = admin.get("/stats/overview").await.expect(200);
    for (method, path, _) in admin.operations() {
        if method == "GET" || path == "/sessions" {
            continue;
        }
        // A missing, empty, wrong or foreign CSRF token.
        for csrf_token in [None, Some(""), Some("wrong"), Some(other.csrf_token.as_str())] {
            let response = sam.call(&method, &fill(&path, UNKNOWN_ID), csrf_token, &json!({})).await;
            let _ = response.problem(403, "CSRF");
        }
    }
    assert_eq!(admin.get("/stats/overview").await.expect(200)["tasks"], before["tasks"]);
    let task = ade_testkit::people::task(json!({}));
    let _ = sam.call("POST", "/tasks", Some(&sam.csrf_token), &task).await.expect(201);
    // A session can create a token with the decide scope for its own user only.
    let token = json!({ "name": "t", "scopes": [Scope::Decide] });
    let created = sam.call("POST", "/users/me/tokens", Some(&sam.csrf_token), &token).await.expect(201);
    let _ = sam
        .call("POST", "/users/admin/tokens", Some(&sam.csrf_token), &token)
        .await
        .problem(403, "FORBIDDEN");
    // Signing out ends this session and no other.
    let response = sam.call("DELETE", "/sessions/current", Some(&sam.csrf_token), &json!({})).await;
    assert_eq!((response.status, sam.status().await, other.status().await), (204, 401, 200));
    assert!(response.header("set-cookie").contains("Max-Age=0"));
    let _ = admin
        .acting_with(&text(&created, "token"))
        .delete("/sessions/current")
        .await
        .problem(404, "SESSION_NOT_FOUND");
    // A new password ends all sessions of the user. A user without the admin role can change only their own password.
    let _ = org.made(json!({ "user_id": "tom", "roles": [AUTHOR], "password": PASSWORD })).await;
    let tom = Session::new(admin, "tom", PASSWORD).await;
    let second = Session::new(admin, "tom", PASSWORD).await;
    for change in [json!({ "roles": [ADMIN] }), json!({ "password": "another one", "roles": [ADMIN] })] {
        let _ =
            tom.call("PATCH", "/users/me", Some(&tom.csrf_token), &change).await.problem(403, "FORBIDDEN");
    }
    let change = json!({ "password": "another one" });
    let _ = tom.call("PATCH", "/users/sam", Some(&tom.csrf_token), &change).await.problem(403, "FORBIDDEN");
    let _ = tom.call("PATCH", "/users/me", Some(&tom.csrf_token), &change).await.expect(200);
    assert_eq!((tom.status().await, second.status().await), (401, 401));
    let _ = sign_in(admin, "tom", PASSWORD).await.problem(401, "UNAUTHENTICATED");
    // Deactivating a user ends their sessions.
    let tom = Session::new(admin, "tom", "another one").await;
    let _ = admin.patch("/users/tom", &json!({ "active": false })).await.expect(200);
    assert_eq!(tom.status().await, 401);
    let _ = sign_in(admin, "tom", "another one").await.problem(401, "UNAUTHENTICATED");
    let _ = admin.patch("/users/tom", &json!({ "active": true })).await.expect(200);
    assert_eq!(tom.status().await, 401, "reactivating the user does not restore the session");
}

#[tokio::test]
async fn rate_limits_requests_and_sign_ins() {
    let config = "[limit]\nrequests_per_minute = 5\nsign_ins_per_minute = 3\n";
    let deployment = House::embedded_with(env!("CARGO_BIN_EXE_ade"), config);
    let org = deployment.office().await;
    let pat = org.person("pat", &[AUTHOR]).await;
    let rex = org.person("rex", &[REVIEWER]).await;
    let assert_rate_limited = |response: &Answer, limit: &str| {
        let problem = response.problem(429, "RATE_LIMITED");
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
        if n < 5 { drop(response.expect(200)) } else { assert_rate_limited(&response, "5") }
    }
    // Users and endpoints are counted separately; the bootstrap token is not limited.
    let _ = rex.get("/tasks").await.expect(200);
    let _ = pat.get("/policies").await.expect(200);
    for _ in 0..10 {
        let _ = org.admin.get("/tasks").await.expect(200);
    }
    // All tokens of a user share one limit.
    let second_token = org.with_scopes("pat", &[Scope::Read]).await;
    assert_rate_limited(&second_token.get("/tasks").await, "5");
    // Sign-in attempts are limited per user name, whether the user exists or not.
    for name in ["pat", "nobody"] {
        for n in 0..4 {
            let response = sign_in(&org.admin, name, "wrong password").await;
            if n < 3 {
                drop(response.problem(401, "UNAUTHENTICATED"))
            } else {
                assert_rate_limited(&response, "3")
            }
        }
    }
    // They are also limited per address: 15, of which 8 are used up above.
    for n in 8..17 {
        let response = sign_in(&org.admin, &format!("name-{n}"), "wrong password").await;
        if n < 15 {
            drop(response.problem(401, "UNAUTHENTICATED"))
        } else {
            assert_rate_limited(&response, "15")
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
    let org = deployment.office().await;
    let admin = &org.admin;
    let mut responses = String::new();
    let user = json!({ "user_id": "sam", "roles": [AUTHOR], "password": PASSWORD }).to_string();
    let key = [("idempotency-key", "k-1")];
    for _ in 0..2 {
        responses.push_str(&admin.call_with("POST", "/users", &key, &user).await.text());
    }
    let sam = Session::new(admin, "sam", PASSWORD).await;
    let created = sam
        .call("POST", "/users/me/tokens", Some(&sam.csrf_token), &json!({ "name": "t" }))
        .await
        .expect(201);
    let token = text(&created, "token");
    // Secrets in wrong fields.
    for body in [
        json!({ "user_id": "sam", "password": format!("{PASSWORD}!") }),
        json!({ "user_id": PASSWORD, "password": "sam" }),
        json!({ "user_id": "sam", "pass": PASSWORD }),
        json!({ "user_id": "sam", "password": { "is": PASSWORD } }),
        json!({ "user_id": "sam", "password": [PASSWORD] }),
    ] {
        responses.push_str(&admin.send("POST", "/api/v1/sessions", &[], body.to_string()).await.text());
    }
    let change = json!({ "password": format!("{PASSWORD} again") });
    responses.push_str(&admin.patch("/users/sam", &change).await.text());
    responses
        .push_str(&admin.patch("/users/sam", &json!({ "password": "short", "name": "Sam" })).await.text());
    for (method, path, _) in admin.operations() {
        if method == "GET" {
            responses.push_str(&admin.get(&fill(&path, "sam")).await.text());
        }
    }
    let log = deployment.ade().process().lines_with("").join("\n");
    assert!(log.contains("listening on"), "{log}");
    deployment.ade().stop().expect("stops");
    let mut data = Vec::new();
    bytes_below(&deployment.ade().data(), &mut data);
    let data = String::from_utf8_lossy(&data);
    assert!(data.contains("sam") && data.contains("$argon2id$"), "the data folder contains the database");
    let session = sam.cookie.split_once('=').expect("a pair").1;
    for (name, secret) in
        [("password", PASSWORD), ("token", &token), ("session", session), ("CSRF token", &sam.csrf_token)]
    {
        assert!(secret.len() > 20);
        assert!(!responses.contains(secret), "the {name} is in a response");
        assert!(!log.contains(secret), "the {name} is in the log");
        assert!(!data.contains(secret), "the {name} is in the data folder");
    }
    assert!(!responses.contains("argon2"), "a password hash is in a response");
}
