//! People who propose and decide, at a server on either record: made by the bootstrap token, each with a token of its own.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::ops::Deref;
use std::time::Duration;

use ade_domain::permission::Scope;
use serde_json::{Value, json};

use crate::ade::{Ade, Setup};
use crate::api::{Answer, Api};
use crate::wait::until;
use crate::{Postgres, Redis, Worker};

/// Leaves what is approved to whoever asks for it: nothing is carried out behind a test's back.
const IDLE: (&str, &str) = ("ADE_WORKER_SLOTS", "0");

/// Far beyond what anything takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// Servers with one record, and what they need.
#[derive(Debug)]
pub struct House {
    /// The servers; they are stopped before what they stand on.
    pub servers: Vec<Ade>,
    /// The PostgreSQL of the record, if it is not in the data folder.
    pub postgres: Option<Postgres>,
    /// The Redis of the locks, if they are not in the process.
    pub redis: Option<Redis>,
}

impl House {
    /// One server with everything in its process and its data folder.
    #[must_use]
    pub fn embedded(binary: &str) -> Self {
        Self::embedded_with(binary, "")
    }

    /// The same with a configuration file of this text.
    #[must_use]
    pub fn embedded_with(binary: &str, config: &str) -> Self {
        let server = Setup::new(binary).variable(IDLE.0, IDLE.1).config(config).start().expect("starts");
        Self { servers: vec![server], postgres: None, redis: None }
    }

    /// One server that carries out what is approved, with a configuration file of this text.
    #[must_use]
    pub fn working(binary: &str, config: &str) -> Self {
        let server = Setup::new(binary).config(config).start().expect("starts");
        Self { servers: vec![server], postgres: None, redis: None }
    }

    /// So many servers on one PostgreSQL and one Redis.
    #[must_use]
    pub fn distributed(binary: &str, servers: usize) -> Self {
        let (redis, postgres) = (Redis::start().expect("starts"), Postgres::start().expect("starts"));
        let database = postgres.create_database("ade").expect("made");
        let setup = Setup::new(binary).variable(IDLE.0, IDLE.1);
        let setup = setup.argument("--redis").argument(&redis.url());
        let servers = setup.argument("--postgres").argument(&database).start_many(servers).expect("start");
        Self { servers, postgres: Some(postgres), redis: Some(redis) }
    }

    /// A worker of its own beside the servers, with a configuration file of this text, which says nothing about servers.
    #[must_use]
    pub fn worker(&self, binary: &str, config: &str) -> Worker {
        let redis = self.redis.as_ref().expect("one").url();
        let postgres = self.postgres.as_ref().expect("one").url("ade");
        let config = format!("[server]\nblobs = {:?}\n{config}", self.ade().blobs());
        Worker::start(binary, &config, &redis, &postgres).expect("starts")
    }

    /// The first server.
    #[must_use]
    pub fn ade(&self) -> &Ade {
        self.servers.first().expect("one at least")
    }

    /// Whoever administers, at the first server.
    pub async fn office(&self) -> Office {
        Office { admin: Api::of(self.ade()).await }
    }

    /// Callers of every server.
    pub async fn doors(&self) -> Vec<Api> {
        let mut doors = Vec::new();
        for server in &self.servers {
            doors.push(Api::of(server).await);
        }
        doors
    }
}

/// Makes people, tokens and agents through the bootstrap token, which is nobody.
#[derive(Debug, Clone)]
pub struct Office {
    /// Acts with the bootstrap token.
    pub admin: Api,
}

/// Somebody who calls with a token of its own: a person, or an agent.
#[derive(Debug, Clone)]
pub struct Person {
    /// What it is known by.
    pub id: String,
    /// Its token.
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
    /// Somebody with these roles, and a token that is good for everything.
    pub async fn person(&self, id: &str, roles: &[&str]) -> Person {
        self.made(json!({ "user_id": id, "roles": roles })).await
    }

    /// The same with everything else that can be said about a user.
    pub async fn made(&self, user: Value) -> Person {
        let made = self.admin.post("/users", &user).await.expect(201);
        let id = made.get("user_id").and_then(Value::as_str).expect("an id").to_owned();
        self.with_scopes(&id, &Scope::ALL).await
    }

    /// Somebody who is there, with a new token that is good for this.
    pub async fn with_scopes(&self, id: &str, scopes: &[Scope]) -> Person {
        let body = json!({ "name": "test", "scopes": scopes });
        let made = self.admin.post(&format!("/users/{id}/tokens"), &body).await.expect(201);
        self.holder(id, &made)
    }

    /// Somebody with the token of an answer.
    #[must_use]
    pub fn holder(&self, id: &str, answer: &Value) -> Person {
        let token = answer.get("token").and_then(Value::as_str).expect("a token").to_owned();
        Person { id: id.to_owned(), api: self.admin.acting_with(&token), token }
    }

    /// An agent that somebody answers for, with a token that it made for it.
    pub async fn agent(&self, id: &str, sponsor: &Person) -> Person {
        let _ = sponsor.post("/agents", &json!({ "agent_id": id })).await.expect(201);
        let made = sponsor.post(&format!("/agents/{id}/tokens"), &json!({ "name": "test" })).await;
        self.holder(id, &made.expect(201))
    }

    /// A policy that is in force.
    pub async fn policy(&self, policy: Value) -> Value {
        let mut policy = policy;
        policy.as_object_mut().expect("an object").insert("active".to_owned(), Value::Bool(true));
        self.admin.post("/policies", &policy).await.expect(201)
    }

    /// A setting, from the next request on.
    pub async fn set(&self, name: &str, value: Value) {
        let _ = self.admin.put(&format!("/config/{name}"), &json!({ "value": value })).await.expect(200);
    }

    /// A task as it is now.
    pub async fn task(&self, id: &str) -> Value {
        self.admin.get(&format!("/tasks/{id}")).await.expect(200)
    }

    /// Every request about a task.
    pub async fn requests(&self, task: &str) -> Vec<Value> {
        let found = self.admin.get(&format!("/tasks/{task}/approvals")).await.expect(200);
        found.get("items").and_then(Value::as_array).expect("items").clone()
    }

    /// The request to somebody about a task that came last.
    pub async fn request(&self, task: &str, reviewer: &str) -> String {
        let all = self.requests(task).await;
        let found = all.iter().rev().find(|one| text(one, "reviewer_id") == reviewer);
        found.map(|one| text(one, "approval_id")).expect("is asked")
    }

    /// Waits until a task is as it should be.
    pub async fn wait_for(&self, what: &str, id: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let look = || async {
            let task = self.task(id).await;
            if holds(&task) { Ok(task) } else { Err(task.to_string()) }
        };
        until(what, LONG, look).await.expect("becomes so")
    }

    /// Every entry of the audit log so far, with a filter as `task=ID`; the log is read when all has its number.
    pub async fn audit(&self, filter: &str) -> Vec<Value> {
        let all = self.admin.get(&format!("/audit/export?{filter}")).await;
        assert_eq!(all.status, 200, "{}", all.text());
        all.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

impl Person {
    /// The same person at another server.
    #[must_use]
    pub fn at(&self, door: &Api) -> Self {
        Self { api: door.acting_with(&self.token), ..self.clone() }
    }

    /// A draft of this kind; what is not said is as in [`task`].
    pub async fn draft(&self, more: Value) -> String {
        let made = self.post("/tasks", &task(more)).await.expect(201);
        text(&made, "task_id")
    }

    /// The same, submitted.
    pub async fn submitted(&self, more: Value) -> String {
        let id = self.draft(more).await;
        let _ = self.post(&format!("/tasks/{id}/submit"), &json!({})).await.expect(202);
        id
    }

    /// Answers a request: `approve`, `reject`, `request-changes`.
    pub async fn answers(&self, request: &str, how: &str) -> Answer {
        let body = if how == "approve" { json!({}) } else { json!({ "reason": "because" }) };
        self.post(&format!("/approvals/{request}/{how}"), &body).await
    }
}

/// A task that nothing carries out, with some parts said.
#[must_use]
pub fn task(more: Value) -> Value {
    let mut task = json!({ "type": "note", "description": "try", "executor": "noop" });
    let (Value::Object(all), Value::Object(more)) = (&mut task, more) else { return task };
    all.extend(more);
    task
}

/// A text of an answer.
#[must_use]
pub fn text(of: &Value, field: &str) -> String {
    of.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
}
