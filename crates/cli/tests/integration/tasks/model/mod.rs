//! The model: users with roles, agents, tokens, and everything that the responses say was done. It must not read the state of
//! the servers to update itself.

pub(crate) mod commands;
pub(crate) mod history;
pub(crate) mod invariants;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ade_testkit::api::ApiResponse;
use ade_testkit::{AdeServer, ApiClient, SeededRng};
use serde_json::{Value, json};

/// The last calls are printed when the test fails.
const MAX_LOGGED_CALLS: usize = 60;
const USERS: u64 = 8;

#[derive(Debug, Clone)]
pub(crate) struct Token {
    secret: String,
    pub(crate) user: String,
    /// `None` if the bootstrap token created it.
    pub(crate) creator: Option<String>,
    pub(crate) agent: Option<String>,
}

/// What follows from the responses.
#[derive(Debug, Default)]
pub(crate) struct ModelState {
    /// Roles of each user in the last response about it.
    pub(crate) roles: BTreeMap<String, BTreeSet<String>>,
    /// Users who had the admin role at any time.
    pub(crate) ever_admins: BTreeSet<String>,
    /// Tokens that are valid now.
    pub(crate) tokens: Vec<Token>,
    /// The creator of every token, by token id.
    pub(crate) token_creators: BTreeMap<String, Option<String>>,
    /// In order of creation.
    pub(crate) tasks: Vec<String>,
    pub(crate) deleted: BTreeSet<String>,
    /// All digests that a task has had.
    pub(crate) digests: BTreeMap<String, Vec<String>>,
    /// By task and revision.
    pub(crate) authors: BTreeMap<(String, u64), ChangeAuthors>,
    pub(crate) predecessors: BTreeMap<String, String>,
    pub(crate) policies: Vec<String>,
    pub(crate) delegations: Vec<String>,
    /// Audit entries that must exist, and how many of each.
    pub(crate) expected: BTreeMap<String, u64>,
    /// Audit entries that must exist once, however often the response was received.
    pub(crate) expected_once: BTreeSet<String>,
    pub(crate) tally: BTreeMap<String, u64>,
    last_calls: VecDeque<String>,
    last_number: u64,
}

/// The authors that a change adds to its task.
#[derive(Debug, Default)]
pub(crate) struct ChangeAuthors {
    /// The user who made it and the creator of the token. They stay authors.
    pub(crate) actors: BTreeSet<String>,
    /// Sponsors named by the change. They replace the sponsors that a draft named before.
    pub(crate) sponsors: Option<BTreeSet<String>>,
}

#[derive(Debug, Clone)]
pub(crate) struct ApiCall {
    /// `None` for the bootstrap token.
    pub(crate) token: Option<Token>,
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) body: Value,
    pub(crate) if_match: Option<String>,
}

/// The model, and the servers under test.
#[derive(Debug)]
pub(crate) struct Model {
    apis: Vec<ApiClient>,
    state: Mutex<ModelState>,
    seed: u64,
}

/// Prints the last calls when the test fails.
impl Drop for Model {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("seed {}, last calls:", self.seed);
            self.state().last_calls.iter().for_each(|line| println!("  {line}"));
        }
    }
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

pub(crate) fn items(value: &Value) -> Vec<Value> {
    value["items"].as_array().cloned().expect("a list")
}

impl ModelState {
    pub(crate) fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub(crate) fn expect_entry(&mut self, entry: String) {
        *self.expected.entry(entry).or_default() += 1;
    }

    pub(crate) fn count_event(&mut self, event: &str) {
        *self.tally.entry(event.to_owned()).or_default() += 1;
    }

    pub(crate) fn has_role(&self, user: &str, role: &str) -> bool {
        self.roles.get(user).is_some_and(|roles| roles.contains(role))
    }

    fn update_user(&mut self, user: &Value) {
        let (id, roles) = (text(&user["user_id"]), user["roles"].as_array().cloned().unwrap_or_default());
        let roles: BTreeSet<String> = roles.iter().map(text).collect();
        if roles.contains("admin") {
            self.ever_admins.insert(id.clone());
        }
        self.roles.insert(id, roles);
    }
}

impl Model {
    /// Creates users, agents, tokens and policies.
    pub(crate) async fn new(servers: &[AdeServer], seed: u64) -> Self {
        let mut apis = Vec::new();
        for server in servers {
            apis.push(ApiClient::connect(server).await);
        }
        let model = Self { apis, state: Mutex::default(), seed };
        model.state().expected_once.insert("user admin r1".to_owned());
        let mut rng = SeededRng::new(seed, u64::MAX);
        for n in 0..USERS {
            let mut roles = BTreeSet::from(["author"]);
            roles.extend(["reviewer", "dba", "auditor"].into_iter().filter(|_| rng.below(2) == 0));
            roles.extend((n < 3).then_some("admin"));
            roles.extend((n > 2).then_some("reviewer"));
            let manager = if n == 0 { Value::Null } else { json!(format!("u{}", rng.below(n))) };
            let body = json!({ "user_id": format!("u{n}"), "roles": roles, "manager_id": manager });
            let user = model.call_as_bootstrap("POST", "/users", body).await.expect_status(201);
            let mut state = model.state();
            state.expected_once.insert(format!("user u{n} r1"));
            state.update_user(&user);
        }
        for n in 0..USERS {
            model.issue_full_token(&format!("u{n}")).await;
        }
        for (agent, sponsor) in [("robot-1", "u4"), ("robot-2", "u5")] {
            let body = json!({ "agent_id": agent, "sponsor_id": sponsor });
            let _ = model.call_as_bootstrap("POST", "/agents", body).await.expect_status(201);
            model.state().expect_entry(format!("agent.create {agent}"));
        }
        // One token is created by the sponsor, one by an administrator, who becomes an author of what the agent proposes.
        for (agent, sponsor, creator) in [("robot-1", "u4", "u4"), ("robot-2", "u5", "u1")] {
            model.create_token(creator, sponsor, Some(agent)).await;
        }
        for (user, creator) in [("u3", "u0"), ("u6", "u2")] {
            model.create_token(creator, user, None).await;
        }
        for round in 0..4 {
            commands::change_policy(&model, &mut SeededRng::new(seed, u64::MAX - 1 - round), true).await;
        }
        model
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, ModelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) async fn call_as_bootstrap(
        &self,
        method: &'static str,
        path: &str,
        body: Value,
    ) -> ApiResponse {
        let call = ApiCall { token: None, method, path: path.to_owned(), body, if_match: None };
        self.send(0, &call, None).await
    }

    /// Reads with the bootstrap token, which sees everything.
    pub(crate) async fn get(&self, path: &str) -> ApiResponse {
        self.call_as_bootstrap("GET", path, Value::Null).await
    }

    /// The verdict about the audit log, with a checkpoint.
    pub(crate) async fn verify_audit(&self) -> Value {
        self.apis[0].verify_audit().await
    }

    pub(crate) async fn all_pages(&self, path: &str) -> Vec<Value> {
        crate::tasks::all_pages(&self.apis[0], path, 97).await
    }

    /// Creates a token with all scopes, with the bootstrap token.
    pub(crate) async fn issue_full_token(&self, user: &str) {
        let body = json!({ "name": "all", "scopes": ["read", "propose", "lock", "decide", "admin"] });
        let response = self.call_as_bootstrap("POST", &format!("/users/{user}/tokens"), body).await;
        // The user may have been deactivated by another client.
        if response.status != 403 {
            self.add_token(&response.expect_status(201), user, None, None);
        }
    }

    async fn create_token(&self, creator: &str, user: &str, agent: Option<&str>) {
        let token = self.state().tokens.iter().find(|token| token.user == creator).cloned().expect("a token");
        let path =
            agent.map_or_else(|| format!("/users/{user}/tokens"), |agent| format!("/agents/{agent}/tokens"));
        let body = json!({ "name": "to propose" });
        let call = ApiCall { token: Some(token), method: "POST", path, body, if_match: None };
        let created = self.send(0, &call, None).await.expect_status(201);
        self.add_token(&created, user, Some(creator), agent);
    }

    fn add_token(&self, created: &Value, user: &str, creator: Option<&str>, agent: Option<&str>) {
        let (token_id, secret) = (text(&created["token_id"]), text(&created["token"]));
        let creator = creator.map(str::to_owned);
        let mut state = self.state();
        state.expect_entry(format!("token.create {token_id}"));
        state.token_creators.insert(token_id, creator.clone());
        let (user, agent) = (user.to_owned(), agent.map(str::to_owned));
        state.tokens.push(Token { secret, user, creator, agent });
    }

    /// Sends the call to one of the servers. Fails on every server error.
    pub(crate) async fn send(&self, server: u64, call: &ApiCall, key: Option<&str>) -> ApiResponse {
        let secret =
            call.token.as_ref().map_or(ade_testkit::server::BOOTSTRAP_TOKEN, |token| token.secret.as_str());
        let bearer = format!("Bearer {secret}");
        let mut headers = vec![("authorization", bearer.as_str()), ("content-type", "application/json")];
        headers.extend(call.if_match.as_deref().map(|revision| ("if-match", revision)));
        headers.extend(key.map(|key| ("idempotency-key", key)));
        let body = if call.body.is_null() { String::new() } else { call.body.to_string() };
        let index = usize::try_from(server).expect("small") % self.apis.len();
        let path = format!("/api/v1{}", call.path);
        let response = self.apis[index].send_raw(call.method, &path, &headers, body).await;
        // Deactivating a user reassigns all their requests in one transaction, which may conflict with other clients.
        let is_conflict = response.code() == "CONTENTION" && call.path.starts_with("/users/");
        assert!(response.status < 500 || is_conflict, "{call:?}: {}", response.text());
        response
    }

    /// Sends the call, sometimes repeatedly with an idempotency key. Returns the one response that was not replayed, or
    /// `None` if the call was refused.
    pub(crate) async fn execute(&self, rng: &mut SeededRng, call: ApiCall) -> Option<Value> {
        let server = rng.below(8);
        let key = format!("key {}", self.state().next_number());
        let key = (call.method == "POST" && rng.below(10) > 3).then_some(key);
        let mut responses = match (&key, rng.below(5)) {
            (Some(key), 0) => {
                let (first, second) = tokio::join!(
                    self.send(server, &call, Some(key)),
                    self.send(server + 1, &call, Some(key))
                );
                vec![first, second]
            }
            (Some(key), 1) => {
                vec![self.send(server, &call, Some(key)).await, self.send(server + 1, &call, Some(key)).await]
            }
            _ => vec![self.send(server, &call, key.as_deref()).await],
        };
        let is_success = |response: &ApiResponse| response.status < 300;
        if let (Some(key), true, 0) = (&key, responses.iter().any(is_success), rng.below(3)) {
            responses.push(self.send(server + 1, &call, Some(key)).await);
            let other = ApiCall { body: json!({ "something": "else" }), ..call.clone() };
            let reused = self.send(server, &other, Some(key)).await;
            let outcome = (reused.status, reused.code());
            // 401: the user was deactivated by another client.
            assert!(
                outcome == (422, "IDEMPOTENCY_KEY_REUSED".to_owned()) || reused.status == 401,
                "{call:?}: {}",
                reused.text()
            );
        }
        self.log_call(&call, &responses);
        let is_first_response = |response: &&ApiResponse| {
            is_success(response) && response.header("idempotency-replayed").is_empty()
        };
        let executed: Vec<&ApiResponse> = responses.iter().filter(is_first_response).collect();
        assert!(executed.len() <= 1, "executed twice with one key: {call:?}: {responses:?}");
        let Some(original) = executed.first() else {
            assert!(
                !responses.iter().any(is_success),
                "replayed but never executed: {call:?}: {responses:?}"
            );
            return None;
        };
        for response in responses.iter().filter(|response| is_success(response)) {
            assert_eq!(
                (response.status, response.json()),
                (original.status, original.json()),
                "replayed differently: {call:?}"
            );
        }
        if responses.len() > 1 {
            self.state().count_event("replayed");
        }
        let is_stale = call.if_match.as_deref() == Some("\"999999\"");
        assert!(!is_stale, "executed with a stale revision: {call:?}");
        Some(original.json())
    }

    fn log_call(&self, call: &ApiCall, responses: &[ApiResponse]) {
        let caller = call.token.as_ref().map_or("bootstrap", |token| token.user.as_str());
        let outcomes: Vec<String> =
            responses.iter().map(|response| format!("{} {}", response.status, response.code())).collect();
        let ApiCall { method, path, body, if_match, .. } = call;
        let if_match = if_match.as_deref().unwrap_or_default();
        let line = format!("{caller}: {method} {path} {body} {if_match} -> {}", outcomes.join(", "));
        let mut state = self.state();
        state.count_event("commands");
        state.last_calls.push_back(line);
        if state.last_calls.len() > MAX_LOGGED_CALLS {
            state.last_calls.pop_front();
        }
    }
}
