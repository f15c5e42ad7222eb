//! Who may use each route: every route of the OpenAPI description, as every kind of caller and with every scope missing. A route
//! without a row in the table fails, so that nobody adds one without deciding who may use it.

mod table;

use std::collections::{BTreeMap, BTreeSet};

use ade_domain::people::{ADMIN, AUDITOR, AUTHOR, REVIEWER};
use ade_domain::permission::Scope;
use ade_testkit::api::{ApiClient, ApiResponse, fill_path};
use ade_testkit::deployment::{task, text_field};
use ade_testkit::{AdminClient, Deployment, TestUser};
use serde_json::{Value, json};

use crate::tasks::UNKNOWN_ID;
use table::{CALLERS, ROUTES};

/// What an agent reports about the task that it has claimed.
const REPORTS: [(&str, &str); 3] =
    [("POST", "/tasks/{id}/complete"), ("POST", "/tasks/{id}/heartbeat"), ("POST", "/tasks/{id}/logs")];

const WEBSOCKET_HEADERS: [(&str, &str); 4] = [
    ("connection", "upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
];

/// The users of a deployment, and objects for the routes.
struct Fixture {
    org: AdminClient,
    callers: Vec<ApiClient>,
    pat: TestUser,
    rex: TestUser,
    bot: TestUser,
}

impl Fixture {
    async fn new(deployment: &Deployment) -> Self {
        let org = deployment.admin().await;
        let pat = org.create_user("pat", &[AUTHOR]).await;
        let rex = org.create_user("rex", &[REVIEWER]).await;
        // Not asked to review: the policy names the reviewer.
        let ada = org.create_user("ada", &[ADMIN]).await;
        org.create_policy(json!({ "name": "rex alone", "reviewers": ["rex"] })).await;
        let agent = json!({ "agent_id": "bot", "max_tasks": 100 });
        let _ = pat.post("/agents", &agent).await.expect_status(201);
        let token = pat.post("/agents/bot/tokens", &json!({ "name": "test" })).await.expect_status(201);
        let bot = org.user_with_token("bot", &token);
        let users = [
            org.create_user("nil", &[]).await,
            org.create_user("sue", &[AUTHOR]).await,
            pat.clone(),
            bot.clone(),
            rex.clone(),
            org.create_user("aud", &[AUDITOR]).await,
            ada,
        ];
        let mut callers = vec![org.api.with_token("nothing")];
        callers.extend(users.iter().map(|user| (**user).clone()));
        callers.push(org.api.clone());
        assert_eq!(callers.len(), CALLERS.len());
        Self { org, callers, pat, rex, bot }
    }

    /// A task that the agent has claimed.
    async fn claimed_task(&self) -> String {
        let task = json!({ "executor": "agent", "parameters": { "agent": "bot" }, "resources": [] });
        let id = self.pat.create_submitted(task).await;
        let request = self.org.approval_id(&id, "rex").await;
        let _ = self.rex.decide(&request, "approve").await.expect_status(200);
        // Another route may have drained it.
        let _ = self.pat.patch("/agents/bot", &json!({ "draining": false })).await.expect_status(200);
        let claim = self.bot.post("/tasks/claim", &json!({ "wait_seconds": 10.0 })).await.expect_status(200);
        assert_eq!(text_field(&claim["task"], "task_id"), id);
        id
    }

    /// The id of a new object that the route applies to.
    async fn new_object(&self, method: &str, path: &str) -> String {
        let mut segments = path.split('/').skip(1);
        let (noun, last) = (segments.next().unwrap_or_default(), path.rsplit('/').next().unwrap_or_default());
        let created = |response: ApiResponse, field: &str| text_field(&response.expect_status(201), field);
        match noun {
            "tasks" if last == "submit" || method == "DELETE" || method == "PATCH" => {
                self.pat.create_draft(json!({})).await
            }
            "tasks" if path == "/tasks/{id}/execution" || REPORTS.contains(&(method, path)) => {
                self.claimed_task().await
            }
            "tasks" => {
                let id = self.pat.create_submitted(json!({})).await;
                let decision = match last {
                    "revoke" | "force-apply" => Some("approve"),
                    "resubmit" => Some("reject"),
                    _ => None,
                };
                if let Some(decision) = decision {
                    let request = self.org.approval_id(&id, "rex").await;
                    let _ = self.rex.decide(&request, decision).await.expect_status(200);
                }
                id
            }
            "approvals" => {
                let id = self.pat.create_submitted(json!({})).await;
                self.org.approval_id(&id, "rex").await
            }
            "policies" => {
                let name = format!("policy {}", uuid::Uuid::new_v4());
                created(self.org.api.post("/policies", &json!({ "name": name })).await, "policy_id")
            }
            "delegations" => {
                let body = json!({ "delegate_to": "ada", "active": false });
                created(self.rex.post("/delegations", &body).await, "delegation_id")
            }
            "resources" => {
                let body = json!({ "pattern": format!("db:{}", uuid::Uuid::new_v4()), "criticality": 9 });
                created(self.org.api.post("/resources", &body).await, "pattern")
            }
            "agents" if method == "DELETE" => {
                let body = json!({ "agent_id": format!("bot-{}", uuid::Uuid::new_v4()) });
                created(self.pat.post("/agents", &body).await, "agent_id")
            }
            "agents" => "bot".to_owned(),
            "stats" if path.contains("/agents/") => "bot".to_owned(),
            "users" if path.contains("{token_id}") => {
                created(self.org.api.post("/users/pat/tokens", &json!({ "name": "t" })).await, "token_id")
            }
            "users" if last == "accept" => {
                let body = json!({ "user_id": format!("user-{}", uuid::Uuid::new_v4()) });
                created(self.org.api.post("/users/invitations", &body).await, "code")
            }
            "users" | "stats" => "pat".to_owned(),
            "webhooks" if path.contains("{delivery}") => {
                let id = created(self.org.api.post("/webhooks", &webhook()).await, "webhook_id");
                let sent =
                    self.org.api.post(&format!("/webhooks/{id}/test"), &json!({})).await.expect_status(202);
                format!("{id}/{}", text_field(&sent, "delivery_id"))
            }
            "webhooks" => created(self.org.api.post("/webhooks", &webhook()).await, "webhook_id"),
            "hooks" => created(self.org.api.post("/hooks", &hook()).await, "hook_id"),
            "config" => "approval:validity".to_owned(),
            "features" => "batch_approvals".to_owned(),
            "locks" if path.contains("{ticket}") => {
                let lock = json!([{ "lock": format!("resource:a:{}", uuid::Uuid::new_v4()) }]);
                let held = json!({ "agent_id": "holder", "locks": lock });
                let _ = self.org.api.post("/locks/acquire", &held).await.expect_status(200);
                let queued = json!({ "agent_id": "bot", "locks": lock, "queue": true });
                text_field(&self.pat.post("/locks/acquire", &queued).await.expect_status(202), "ticket")
            }
            "locks" => "resource:a:b".to_owned(),
            _ => UNKNOWN_ID.to_owned(),
        }
    }
}

/// A webhook to a port where nobody listens.
fn webhook() -> Value {
    json!({ "name": "ci", "url": "http://127.0.0.1:9/hook", "events": ["archive:*"] })
}

fn hook() -> Value {
    json!({ "name": "deploys", "owner_id": "pat", "template": { "type": "deploy", "description": "Deploy" } })
}

/// A valid body, so that nothing but the permission decides.
fn body(method: &str, path: &str, id: &str) -> Value {
    let held = json!({ "agent_id": "bot", "locks": [{ "lock": "resource:a:b", "fencing_token": 1 }] });
    match (method, path) {
        ("POST", "/tasks") => task(json!({})),
        ("PATCH", "/tasks/{id}") => json!({ "description": "changed" }),
        (_, "/tasks/claim") => json!({ "agent_id": "bot" }),
        (_, "/tasks/{id}/comments") => json!({ "text": "look" }),
        ("POST", "/tasks/{id}/logs") => json!({ "attempt": 1, "text": "line" }),
        (_, "/tasks/{id}/heartbeat") => json!({ "attempt": 1 }),
        (_, "/tasks/{id}/complete") => json!({ "attempt": 1, "result": "success" }),
        (_, "/tasks/{id}/override") => json!({ "reason": "because", "incident_ticket": "INC-1" }),
        ("POST", "/tasks/{id}/resubmit" | "/tasks/{id}/submit" | "/tasks/{id}/override/confirm") => json!({}),
        (_, "/approvals/batch") => json!({ "approval_ids": [id], "action": "approve" }),
        (_, "/approvals/{id}/approve") => json!({}),
        (_, "/approvals/{id}/delegate") => json!({ "to": "ada" }),
        ("POST", "/users" | "/users/invitations") => {
            json!({ "user_id": format!("user-{}", uuid::Uuid::new_v4()) })
        }
        ("PATCH", "/users/{id}") => json!({ "team": "blue" }),
        ("POST", "/users/{id}/tokens" | "/agents/{id}/tokens") => json!({ "name": "t" }),
        ("POST", "/agents") => json!({ "agent_id": format!("bot-{}", uuid::Uuid::new_v4()) }),
        ("PATCH", "/agents/{id}") => json!({ "version": "2" }),
        ("POST", "/agents/{id}/drain" | "/agents/{id}/heartbeat") => json!({}),
        ("POST", "/webhooks") => webhook(),
        ("POST", "/hooks") => hook(),
        ("PATCH", "/webhooks/{id}" | "/hooks/{id}") => json!({ "name": "other" }),
        ("POST", "/policies") => json!({ "name": format!("policy {}", uuid::Uuid::new_v4()) }),
        ("PATCH", "/policies/{id}") => json!({ "min_approvers": 2 }),
        ("POST", "/policies/{id}/activate" | "/policies/{id}/replay") => json!({}),
        ("POST", "/delegations") => json!({ "owner_id": "rex", "delegate_to": "ada", "active": false }),
        ("PATCH", "/delegations/{id}") => json!({ "active": false }),
        ("POST", "/resources") => {
            json!({ "pattern": format!("db:{}", uuid::Uuid::new_v4()), "criticality": 9 })
        }
        ("PATCH", "/resources/{pattern}") => json!({ "criticality": 8 }),
        ("PUT", "/config/{name}") => json!({ "value": 604_800 }),
        ("PUT", "/features/{flag}") => json!({ "enabled": true }),
        (_, "/simulations") => json!({ "task": task(json!({})) }),
        (_, "/sessions/reauthenticate") => json!({ "password": "wrong password" }),
        (_, "/users/invitations/accept") => json!({ "code": id, "password": "a password of my own" }),
        (_, "/sessions") => json!({ "user_id": uuid::Uuid::new_v4(), "password": "wrong password" }),
        (_, "/locks/acquire") => {
            json!({ "agent_id": "bot", "locks": [{ "lock": format!("resource:a:{}", uuid::Uuid::new_v4()) }] })
        }
        (_, "/locks/heartbeat" | "/locks/release" | "/locks/downgrade") => held,
        (_, "/locks/verify") => json!({ "lock": "resource:a:b", "fencing_token": 1 }),
        ("POST", path) if path.starts_with("/tasks/") || path.starts_with("/approvals/") => {
            json!({ "reason": "because" })
        }
        _ => Value::Null,
    }
}

async fn send(api: &ApiClient, method: &str, path: &str, id: &str) -> ApiResponse {
    let target = match path {
        "/users/{id}/tokens/{token_id}" => format!("/users/pat/tokens/{id}"),
        "/webhooks/{id}/deliveries/{delivery}/redeliver" => {
            let (webhook, delivery) = id.split_once('/').unwrap_or((id, id));
            format!("/webhooks/{webhook}/deliveries/{delivery}/redeliver")
        }
        "/keys/explain" => format!("{path}?key=ade:lock:task:{id}"),
        "/keys/{catalog}/{name}" => "/keys/ade/lock.task".to_owned(),
        "/locks/{lock}" if method == "DELETE" => format!("{}?reason=because", fill_path(path, id)),
        _ => fill_path(path, id),
    };
    if path == "/ws" {
        return api.request_with_headers(method, path, &WEBSOCKET_HEADERS, "").await;
    }
    let body = body(method, path, id);
    let body = if body.is_null() { String::new() } else { body.to_string() };
    api.request(method, &target, &body).await
}

/// Routes that find their object before they check the scope.
fn checks_object_first(path: &str) -> bool {
    path.contains("{ticket}")
        || path.contains("{lock}")
        || path.starts_with("/agents/")
        || ["/complete", "/heartbeat", "/logs", "/comments"].iter().any(|end| path.ends_with(end))
}

fn letter(response: &ApiResponse) -> char {
    // A batch refuses each of its items.
    let code = response.code();
    let refused_item = response.json()["items"][0]["code"].as_str().unwrap_or_default().to_owned();
    match (response.status, code.as_str(), refused_item.as_str()) {
        (401, ..) => 'u',
        (403, ..) | (_, "BATCH_REFUSED", "FORBIDDEN" | "NOT_A_REVIEWER") => 'n',
        (404, ..) | (_, "BATCH_REFUSED", "APPROVAL_NOT_FOUND") => 'h',
        (101 | 200..=299 | 409 | 423, ..) => 'y',
        // The request is wrong, which says nothing about the caller.
        (status, ..) => {
            println!("{status}: {}", response.text());
            '?'
        }
    }
}

#[tokio::test]
async fn every_route_is_open_to_exactly_its_callers_and_scopes() {
    let deployment = Deployment::embedded_with_config(
        env!("CARGO_BIN_EXE_ade"),
        "[worker]\nlease_seconds = 300\n[webhooks]\nallowed_private_hosts = [\"127.0.0.1:9\"]\n",
    );
    let fixture = Fixture::new(&deployment).await;
    let operations = fixture.org.api.operations();
    let expected: BTreeMap<&str, (&str, &str)> =
        ROUTES.iter().map(|(route, callers, scopes)| (*route, (*callers, *scopes))).collect();
    let served: BTreeSet<String> =
        operations.iter().map(|(method, path, _)| format!("{method} {path}")).collect();
    let gone: Vec<&&str> = expected.keys().filter(|route| !served.contains(**route)).collect();
    assert!(gone.is_empty(), "routes that are not served any more: {gone:?}");
    // All roles, so that only the missing scope can be the reason.
    let _ = fixture.org.create_user("eve", &[ADMIN, AUTHOR, REVIEWER, AUDITOR]).await;
    let mut without = Vec::new();
    for scope in Scope::ALL {
        let others: Vec<Scope> = Scope::ALL.into_iter().filter(|other| *other != scope).collect();
        without.push((scope, fixture.org.issue_token("eve", &others).await));
    }
    let mut wrong = Vec::new();
    for (method, path, _) in &operations {
        let shared = if method == "GET" { Some(fixture.new_object(method, path).await) } else { None };
        let mut callers = String::new();
        for caller in &fixture.callers {
            let id = match &shared {
                Some(id) => id.clone(),
                None => fixture.new_object(method, path).await,
            };
            callers.push(letter(&send(caller, method, path, &id).await));
        }
        let mut scopes = Vec::new();
        for (scope, caller) in &without {
            let id = match &shared {
                Some(id) => id.clone(),
                // Nothing is changed without the scope; the other requests need no object of their own.
                None if checks_object_first(path) => fixture.new_object(method, path).await,
                None => UNKNOWN_ID.to_owned(),
            };
            let response = send(caller, method, path, &id).await;
            if response.code() == "SCOPE_MISSING" {
                assert_eq!(response.json()["scope"], scope.as_str(), "{method} {path}");
                scopes.push(scope.as_str());
            }
        }
        let (route, scopes) = (format!("{method} {path}"), scopes.join(" "));
        if expected.get(route.as_str()) != Some(&(callers.as_str(), scopes.as_str())) {
            wrong.push(format!("    ({route:?}, {callers:?}, {scopes:?}),"));
        }
    }
    assert!(
        wrong.is_empty(),
        "these routes are open to others than the table says, or have no row. Decide who may use them ({}), then correct the \
         route or the table:\n{}",
        CALLERS.join(", "),
        wrong.join("\n")
    );
}
