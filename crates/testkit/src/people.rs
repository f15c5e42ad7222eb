//! A deployment of ADE servers for tests, embedded or distributed, and users with their own tokens who propose and decide.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::ops::Deref;
use std::time::Duration;

use ade_domain::permission::Scope;
use serde_json::{Value, json};

use crate::ade::{Ade, Setup};
use crate::api::{Answer, Api};
use crate::wait::until;
use crate::{Postgres, Redis, Worker};

/// No slots: the server applies no task by itself.
const NO_WORKER: (&str, &str) = ("ADE_WORKER_SLOTS", "0");

/// Far longer than anything takes, also on a busy machine.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Servers that share one database, with the servers they depend on.
#[derive(Debug)]
pub struct House {
    // Dropped first: stops before its database and Redis.
    pub servers: Vec<Ade>,
    /// None with SQLite in the data folder.
    pub postgres: Option<Postgres>,
    /// None with embedded locks.
    pub redis: Option<Redis>,
}

impl House {
    /// One server with SQLite and embedded locks, without a worker.
    #[must_use]
    pub fn embedded(binary: &str) -> Self {
        Self::embedded_with(binary, "")
    }

    /// `config` is the content of the configuration file.
    #[must_use]
    pub fn embedded_with(binary: &str, config: &str) -> Self {
        let server =
            Setup::new(binary).variable(NO_WORKER.0, NO_WORKER.1).config(config).start().expect("starts");
        Self { servers: vec![server], postgres: None, redis: None }
    }

    /// One embedded server that also applies approved tasks. `config` is the content of the configuration file.
    #[must_use]
    pub fn working(binary: &str, config: &str) -> Self {
        let server = Setup::new(binary).config(config).start().expect("starts");
        Self { servers: vec![server], postgres: None, redis: None }
    }

    /// Several servers on one PostgreSQL and one Redis, without workers.
    #[must_use]
    pub fn distributed(binary: &str, servers: usize) -> Self {
        let (redis, postgres) = (Redis::start().expect("starts"), Postgres::start().expect("starts"));
        let database = postgres.create_database("ade").expect("created");
        let setup = Setup::new(binary).variable(NO_WORKER.0, NO_WORKER.1);
        let setup = setup.argument("--redis").argument(&redis.url());
        let servers = setup.argument("--postgres").argument(&database).start_many(servers).expect("start");
        Self { servers, postgres: Some(postgres), redis: Some(redis) }
    }

    /// Starts a worker process. `config` is the content of its configuration file, without a `[server]` section.
    #[must_use]
    pub fn worker(&self, binary: &str, config: &str) -> Worker {
        let redis = self.redis.as_ref().expect("distributed").url();
        let postgres = self.postgres.as_ref().expect("distributed").url("ade");
        let config = format!("[server]\nblobs = {:?}\n{config}", self.ade().blobs());
        Worker::start(binary, &config, &redis, &postgres).expect("starts")
    }

    #[must_use]
    pub fn ade(&self) -> &Ade {
        self.servers.first().expect("at least one server")
    }

    /// The administrator at the first server.
    pub async fn office(&self) -> Office {
        Office { admin: Api::of(self.ade()).await }
    }

    /// A client of every server, with the bootstrap token.
    pub async fn doors(&self) -> Vec<Api> {
        let mut clients = Vec::new();
        for server in &self.servers {
            clients.push(Api::of(server).await);
        }
        clients
    }
}

/// Creates users, tokens and agents with the bootstrap token, which belongs to no user.
#[derive(Debug, Clone)]
pub struct Office {
    pub admin: Api,
}

/// A user or an agent with its own token.
#[derive(Debug, Clone)]
pub struct Person {
    pub id: String,
    pub token: String,
    api: Api,
}

impl Deref for Person {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

impl Office {
    /// Creates a user and a token with all scopes.
    pub async fn person(&self, id: &str, roles: &[&str]) -> Person {
        self.made(json!({ "user_id": id, "roles": roles })).await
    }

    /// Creates a user from a request body, and a token with all scopes.
    pub async fn made(&self, user: Value) -> Person {
        let created = self.admin.post("/users", &user).await.expect(201);
        let id = created.get("user_id").and_then(Value::as_str).expect("an id").to_owned();
        self.with_scopes(&id, &Scope::ALL).await
    }

    /// Issues a token for an existing user.
    pub async fn with_scopes(&self, id: &str, scopes: &[Scope]) -> Person {
        let body = json!({ "name": "test", "scopes": scopes });
        let created = self.admin.post(&format!("/users/{id}/tokens"), &body).await.expect(201);
        self.holder(id, &created)
    }

    /// A user with the token of a response body.
    #[must_use]
    pub fn holder(&self, id: &str, response: &Value) -> Person {
        let token = response.get("token").and_then(Value::as_str).expect("a token").to_owned();
        Person { id: id.to_owned(), api: self.admin.acting_with(&token), token }
    }

    /// Registers an agent of a sponsor, with a token that the sponsor issues.
    pub async fn agent(&self, id: &str, sponsor: &Person) -> Person {
        let _ = sponsor.post("/agents", &json!({ "agent_id": id })).await.expect(201);
        let created = sponsor.post(&format!("/agents/{id}/tokens"), &json!({ "name": "test" })).await;
        self.holder(id, &created.expect(201))
    }

    /// Creates an active policy.
    pub async fn policy(&self, policy: Value) -> Value {
        let mut policy = policy;
        policy.as_object_mut().expect("an object").insert("active".to_owned(), Value::Bool(true));
        self.admin.post("/policies", &policy).await.expect(201)
    }

    /// Changes a setting.
    pub async fn set(&self, name: &str, value: Value) {
        let _ = self.admin.put(&format!("/config/{name}"), &json!({ "value": value })).await.expect(200);
    }

    pub async fn task(&self, id: &str) -> Value {
        self.admin.get(&format!("/tasks/{id}")).await.expect(200)
    }

    /// All approval requests of a task.
    pub async fn requests(&self, task: &str) -> Vec<Value> {
        let found = self.admin.get(&format!("/tasks/{task}/approvals")).await.expect(200);
        found.get("items").and_then(Value::as_array).expect("items").clone()
    }

    /// The id of the latest approval request of a task for a reviewer.
    pub async fn request(&self, task: &str, reviewer: &str) -> String {
        let approvals = self.requests(task).await;
        let found = approvals.iter().rev().find(|approval| text(approval, "reviewer_id") == reviewer);
        found.map(|approval| text(approval, "approval_id")).expect("a request for the reviewer")
    }

    /// Waits until a task satisfies a condition.
    pub async fn wait_for(&self, what: &str, id: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let observe = || async {
            let task = self.task(id).await;
            if condition(&task) { Ok(task) } else { Err(task.to_string()) }
        };
        until(what, WAIT_TIMEOUT, observe).await.expect("in time")
    }

    /// All audit entries so far that match a query such as `task=ID`.
    pub async fn audit(&self, filter: &str) -> Vec<Value> {
        let export = self.admin.get(&format!("/audit/export?{filter}")).await;
        assert_eq!(export.status, 200, "{}", export.text());
        export.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

impl Person {
    /// The same user at another server.
    #[must_use]
    pub fn at(&self, server: &Api) -> Self {
        Self { api: server.acting_with(&self.token), ..self.clone() }
    }

    /// Creates a draft with the given fields; the others are as in [`task_request`].
    pub async fn draft(&self, fields: Value) -> String {
        let created = self.post("/tasks", &task(fields)).await.expect(201);
        text(&created, "task_id")
    }

    /// Creates and submits a task.
    pub async fn submitted(&self, fields: Value) -> String {
        let id = self.draft(fields).await;
        let _ = self.post(&format!("/tasks/{id}/submit"), &json!({})).await.expect(202);
        id
    }

    /// Decides an approval request: `approve`, `reject` or `request-changes`.
    pub async fn answers(&self, approval_id: &str, decision: &str) -> Answer {
        let body = if decision == "approve" { json!({}) } else { json!({ "reason": "because" }) };
        self.post(&format!("/approvals/{approval_id}/{decision}"), &body).await
    }
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
pub fn text(object: &Value, field: &str) -> String {
    object.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
}
