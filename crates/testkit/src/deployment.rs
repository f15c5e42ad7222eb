//! A deployment of ADE servers for tests, embedded or distributed, and users with their own tokens who propose and decide.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::ops::Deref;
use std::time::Duration;

use ade_domain::people::{AUTHOR, REVIEWER};
use ade_domain::permission::Scope;
use serde_json::{Value, json};

use crate::api::{ApiClient, ApiResponse};
use crate::server::{AdeServer, ServerBuilder};
use crate::wait::until;
use crate::{Postgres, Redis, WorkerProcess};

/// No slots: the server applies no task by itself.
const NO_WORKER: (&str, &str) = ("ADE_WORKER_SLOTS", "0");

/// Far longer than anything takes, also on a busy machine.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Servers that share one database, with the servers they depend on.
#[derive(Debug)]
pub struct Deployment {
    // Dropped first: stops before its database and Redis.
    pub servers: Vec<AdeServer>,
    /// None with SQLite in the data folder.
    pub postgres: Option<Postgres>,
    /// None with embedded locks.
    pub redis: Option<Redis>,
}

impl Deployment {
    /// One server with SQLite and embedded locks, without a worker.
    #[must_use]
    pub fn embedded(binary: &str) -> Self {
        Self::embedded_with_config(binary, "")
    }

    /// `config` is the content of the configuration file.
    #[must_use]
    pub fn embedded_with_config(binary: &str, config: &str) -> Self {
        let server =
            ServerBuilder::new(binary).env(NO_WORKER.0, NO_WORKER.1).config(config).start().expect("starts");
        Self { servers: vec![server], postgres: None, redis: None }
    }

    /// One embedded server that also applies approved tasks. `config` is the content of the configuration file.
    #[must_use]
    pub fn with_worker(binary: &str, config: &str) -> Self {
        let server = ServerBuilder::new(binary).config(config).start().expect("starts");
        Self { servers: vec![server], postgres: None, redis: None }
    }

    /// Several servers on one PostgreSQL and one Redis, without workers.
    #[must_use]
    pub fn distributed(binary: &str, servers: usize) -> Self {
        Self::distributed_with_config(binary, servers, "")
    }

    /// `config` is the content of the configuration file of each server.
    #[must_use]
    pub fn distributed_with_config(binary: &str, servers: usize, config: &str) -> Self {
        let (redis, postgres) = (Redis::start().expect("starts"), Postgres::start().expect("starts"));
        let database = postgres.create_database("ade").expect("created");
        let setup = ServerBuilder::new(binary).env(NO_WORKER.0, NO_WORKER.1).config(config);
        let setup = setup.arg("--redis").arg(&redis.url());
        let servers = setup.arg("--postgres").arg(&database).start_many(servers).expect("start");
        Self { servers, postgres: Some(postgres), redis: Some(redis) }
    }

    /// Starts a worker process. `config` is the content of its configuration file, without a `[server]` section.
    #[must_use]
    pub fn start_worker(&self, binary: &str, config: &str) -> WorkerProcess {
        let redis = self.redis.as_ref().expect("distributed").url();
        let postgres = self.postgres.as_ref().expect("distributed").url("ade");
        let config = format!("[server]\nblobs = {:?}\n{config}", self.server().blobs());
        WorkerProcess::start(binary, &config, &redis, &postgres).expect("starts")
    }

    #[must_use]
    pub fn server(&self) -> &AdeServer {
        self.servers.first().expect("at least one server")
    }

    /// The administrator at the first server.
    pub async fn admin(&self) -> AdminClient {
        AdminClient::without_hold(ApiClient::connect(self.server()).await).await
    }

    /// A client of every server, with the bootstrap token.
    pub async fn api_clients(&self) -> Vec<ApiClient> {
        let mut clients = Vec::new();
        for server in &self.servers {
            clients.push(ApiClient::connect(server).await);
        }
        clients
    }
}

/// Creates users, tokens and agents with the bootstrap token, which belongs to no user.
#[derive(Debug, Clone)]
pub struct AdminClient {
    pub api: ApiClient,
}

/// A user or an agent with its own token.
#[derive(Debug, Clone)]
pub struct TestUser {
    pub id: String,
    pub token: String,
    api: ApiClient,
    /// Approves what this user submits.
    approver: Option<Box<TestUser>>,
}

impl Deref for TestUser {
    type Target = ApiClient;

    fn deref(&self) -> &ApiClient {
        &self.api
    }
}

impl AdminClient {
    /// The administrator of an installation in which risky tasks are not held after their approval: tests of the hold set it.
    pub async fn without_hold(api: ApiClient) -> Self {
        let admin = Self { api };
        let hold = admin.api.get("/config/approval:apply_hold").await.expect_status(200);
        if hold.get("revision").and_then(Value::as_u64) == Some(0) {
            admin.set_config("approval:apply_hold", json!(0)).await;
        }
        admin
    }

    /// Creates a user and a token with all scopes.
    pub async fn create_user(&self, id: &str, roles: &[&str]) -> TestUser {
        self.create_user_from(json!({ "user_id": id, "roles": roles })).await
    }

    /// Creates a user from a request body, and a token with all scopes.
    pub async fn create_user_from(&self, user: Value) -> TestUser {
        let created = self.api.post("/users", &user).await.expect_status(201);
        let id = created.get("user_id").and_then(Value::as_str).expect("an id").to_owned();
        self.issue_token(&id, &Scope::ALL).await
    }

    /// Issues a token for an existing user.
    pub async fn issue_token(&self, id: &str, scopes: &[Scope]) -> TestUser {
        let body = json!({ "name": "test", "scopes": scopes });
        let created = self.api.post(&format!("/users/{id}/tokens"), &body).await.expect_status(201);
        self.user_with_token(id, &created)
    }

    /// A user with the token of a response body.
    #[must_use]
    pub fn user_with_token(&self, id: &str, response: &Value) -> TestUser {
        let token = response.get("token").and_then(Value::as_str).expect("a token").to_owned();
        TestUser { id: id.to_owned(), api: self.api.with_token(&token), token, approver: None }
    }

    /// Creates an author, and a reviewer who approves at once what that author submits.
    pub async fn create_approved_author(&self, id: &str) -> TestUser {
        let author = self.create_user(id, &[AUTHOR]).await;
        let approver = self.create_user(&format!("approver-of-{id}"), &[REVIEWER]).await;
        TestUser { approver: Some(Box::new(approver)), ..author }
    }

    /// Registers an agent of a sponsor, with a token that the sponsor issues.
    pub async fn create_agent(&self, id: &str, sponsor: &TestUser) -> TestUser {
        let _ = sponsor.post("/agents", &json!({ "agent_id": id })).await.expect_status(201);
        let created = sponsor.post(&format!("/agents/{id}/tokens"), &json!({ "name": "test" })).await;
        self.user_with_token(id, &created.expect_status(201))
    }

    /// Creates an active policy.
    pub async fn create_policy(&self, policy: Value) -> Value {
        let mut policy = policy;
        policy.as_object_mut().expect("an object").insert("active".to_owned(), Value::Bool(true));
        self.api.post("/policies", &policy).await.expect_status(201)
    }

    /// Changes a setting.
    pub async fn set_config(&self, name: &str, value: Value) {
        let _ = self.api.put(&format!("/config/{name}"), &json!({ "value": value })).await.expect_status(200);
    }

    pub async fn task_request(&self, id: &str) -> Value {
        self.api.get(&format!("/tasks/{id}")).await.expect_status(200)
    }

    /// All approval requests of a task.
    pub async fn approvals(&self, task: &str) -> Vec<Value> {
        let found = self.api.get(&format!("/tasks/{task}/approvals")).await.expect_status(200);
        found.get("items").and_then(Value::as_array).expect("items").clone()
    }

    /// The id of the latest approval request of a task for a reviewer.
    pub async fn approval_id(&self, task: &str, reviewer: &str) -> String {
        let approvals = self.approvals(task).await;
        let found = approvals.iter().rev().find(|approval| text_field(approval, "reviewer_id") == reviewer);
        found.map(|approval| text_field(approval, "approval_id")).expect("a request for the reviewer")
    }

    /// The item of a batch that decides a task as a reviewer.
    pub async fn batch_item(&self, task: &str, reviewer: &str) -> Value {
        let (approval_id, task) = (self.approval_id(task, reviewer).await, self.task_request(task).await);
        let digests = ["digest", "scope_digest"].map(|name| task.get(name).cloned().unwrap_or_default());
        json!({ "approval_id": approval_id, "digest": digests[0], "scope_digest": digests[1] })
    }

    /// Waits until a task satisfies a condition.
    pub async fn wait_for_task(&self, what: &str, id: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let observe = || async {
            let task = self.task_request(id).await;
            if condition(&task) { Ok(task) } else { Err(task.to_string()) }
        };
        until(what, WAIT_TIMEOUT, observe).await.expect("in time")
    }

    /// All audit entries so far that match a query such as `task=ID`.
    pub async fn audit_entries(&self, filter: &str) -> Vec<Value> {
        let export = self.api.get(&format!("/audit/export?{filter}")).await;
        assert_eq!(export.status, 200, "{}", export.text());
        export.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

impl TestUser {
    /// The same user at another server.
    #[must_use]
    pub fn at_server(&self, server: &ApiClient) -> Self {
        Self { api: server.with_token(&self.token), ..self.clone() }
    }

    /// Creates a draft with the given fields; the others are as in the default task.
    pub async fn create_draft(&self, fields: Value) -> String {
        let created = self.post("/tasks", &task(fields)).await.expect_status(201);
        text_field(&created, "task_id")
    }

    /// Creates and submits a task.
    pub async fn create_submitted(&self, fields: Value) -> String {
        let id = self.create_draft(fields).await;
        let _ = self.post(&format!("/tasks/{id}/submit"), &json!({})).await.expect_status(202);
        self.approve_submitted(&id).await;
        id
    }

    /// Approves a submitted task as the reviewer of this author, if there is one.
    pub async fn approve_submitted(&self, id: &str) {
        let Some(approver) = &self.approver else { return };
        let found = approver.get(&format!("/tasks/{id}/approvals")).await.expect_status(200);
        let requests = found.get("items").and_then(Value::as_array).expect("items");
        let own = requests.iter().find(|request| text_field(request, "reviewer_id") == approver.id);
        let own = text_field(own.expect("a request"), "approval_id");
        let _ = approver.decide(&own, "approve").await.expect_status(200);
    }

    /// Decides an approval request: `approve`, with everything that the risk asks for, `reject` or `request-changes`.
    pub async fn decide(&self, approval_id: &str, decision: &str) -> ApiResponse {
        let body = match decision {
            "approve" => approval_body(&self.task_of(approval_id).await),
            _ => json!({ "reason": "because" }),
        };
        self.post(&format!("/approvals/{approval_id}/{decision}"), &body).await
    }

    /// Confirms an override, with everything that the risk asks for.
    pub async fn confirm_override(&self, task: &str) -> ApiResponse {
        let shown = self.get(&format!("/tasks/{task}")).await.json();
        let revision = shown.get("revision").unwrap_or(&Value::Null).to_string();
        let body = approval_body(&shown).to_string();
        let path = format!("/tasks/{task}/override/confirm");
        self.request_with_headers("POST", &path, &[("if-match", &revision)], &body).await
    }

    /// The task of an approval request; null if this user does not see it.
    async fn task_of(&self, approval_id: &str) -> Value {
        let request = self.get(&format!("/approvals/{approval_id}")).await.json();
        self.get(&format!("/tasks/{}", text_field(&request, "task_id"))).await.json()
    }
}

/// What an approval of a task must carry, and nothing else.
#[must_use]
pub fn approval_body(task: &Value) -> Value {
    let first = |pointer: &str| task.pointer(pointer).and_then(Value::as_str);
    let id = text_field(task, "task_id");
    let confirm = first("/config/resources/0/id")
        .or(first("/scope/0/resources/0/id"))
        .or(first("/scope/0/targets/0"))
        .unwrap_or(id.get(..8).unwrap_or_default());
    let needs = task.get("approve_needs").and_then(Value::as_array).into_iter().flatten();
    let part = |need: &str| match need {
        "digest" | "scope_digest" => Some(task.get(need)?.clone()),
        "reason" => Some(json!("looks right")),
        "confirm" => Some(json!(confirm)),
        _ => None,
    };
    needs.filter_map(Value::as_str).filter_map(|need| Some((need.to_owned(), part(need)?))).collect()
}

/// The request body of a no-op task with the given fields.
#[must_use]
pub fn task(fields: Value) -> Value {
    let mut task = json!({ "type": "note", "description": "try", "executor": "noop" });
    let (Value::Object(all), Value::Object(fields)) = (&mut task, fields) else { return task };
    all.extend(fields);
    task
}

/// A text field of a JSON object, or an empty text.
#[must_use]
pub fn text_field(object: &Value, field: &str) -> String {
    object.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
}
