//! A company in which anything may happen: people with roles, agents, tokens, and everything that was done, as far as those
//! who did it were told. What the servers say about it is held against this.

pub(crate) mod checks;
pub(crate) mod deeds;
pub(crate) mod history;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ade_testkit::api::Answer;
use ade_testkit::{Ade, Api, Dice};
use serde_json::{Value, json};

/// Commands that are told when something fails.
const KEPT: usize = 60;
const PEOPLE: u64 = 8;

/// What somebody acts with.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    secret: String,
    pub(crate) user: String,
    /// Who made it; nobody for the bootstrap token.
    pub(crate) maker: Option<String>,
    pub(crate) agent: Option<String>,
}

/// What those who acted know.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Roles as they were last seen.
    pub(crate) roles: BTreeMap<String, BTreeSet<String>>,
    /// Whoever was an administrator at any time.
    pub(crate) admins: BTreeSet<String>,
    /// What can be acted with now.
    pub(crate) tokens: Vec<Token>,
    /// Who made each token there ever was.
    pub(crate) makers: BTreeMap<String, Option<String>>,
    /// Tasks, in the order in which they were made.
    pub(crate) tasks: Vec<String>,
    pub(crate) deleted: BTreeSet<String>,
    /// Digests that a task has had.
    pub(crate) digests: BTreeMap<String, Vec<String>>,
    /// Who joined the authors of a task with which of its revisions.
    pub(crate) authors: BTreeMap<(String, u64), Behind>,
    pub(crate) predecessors: BTreeMap<String, String>,
    pub(crate) policies: Vec<String>,
    pub(crate) delegations: Vec<String>,
    /// What the audit log must say, and how often.
    pub(crate) expected: BTreeMap<String, u64>,
    /// What it must say once, however often it was answered.
    pub(crate) expected_once: BTreeSet<String>,
    pub(crate) tally: BTreeMap<String, u64>,
    commands: VecDeque<String>,
    numbers: u64,
}

/// Who stands behind a change.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    /// Who made it, and with whose token: they stay.
    pub(crate) acted: BTreeSet<String>,
    /// Who is named to answer for it, if the change says that: in the place of whom a draft named before.
    pub(crate) named: Option<BTreeSet<String>>,
}

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// Nobody for the bootstrap token.
    pub(crate) token: Option<Token>,
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) body: Value,
    pub(crate) if_match: Option<String>,
}

/// The company, and the servers that it asks.
#[derive(Debug)]
pub(crate) struct World {
    apis: Vec<Api>,
    known: Mutex<Known>,
    seed: u64,
}

/// Tells what happened last when the test fails.
impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the seed is {}; the last commands were:", self.seed);
            self.known().commands.iter().for_each(|line| println!("  {line}"));
        }
    }
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

pub(crate) fn items(value: &Value) -> Vec<Value> {
    value["items"].as_array().cloned().expect("a list")
}

impl Known {
    /// A number that nobody else gets.
    pub(crate) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(crate) fn expect(&mut self, entry: String) {
        *self.expected.entry(entry).or_default() += 1;
    }

    pub(crate) fn count(&mut self, what: &str) {
        *self.tally.entry(what.to_owned()).or_default() += 1;
    }

    pub(crate) fn has_role(&self, user: &str, role: &str) -> bool {
        self.roles.get(user).is_some_and(|roles| roles.contains(role))
    }

    fn note_user(&mut self, user: &Value) {
        let (id, roles) = (text(&user["user_id"]), user["roles"].as_array().cloned().unwrap_or_default());
        let roles: BTreeSet<String> = roles.iter().map(text).collect();
        if roles.contains("admin") {
            self.admins.insert(id.clone());
        }
        self.roles.insert(id, roles);
    }
}

impl World {
    /// Hires everybody.
    pub(crate) async fn new(servers: &[Ade], seed: u64) -> Self {
        let mut apis = Vec::new();
        for server in servers {
            apis.push(Api::of(server).await);
        }
        let world = Self { apis, known: Mutex::default(), seed };
        world.known().expected_once.insert("user admin r1".to_owned());
        let mut dice = Dice::new(seed, u64::MAX);
        for n in 0..PEOPLE {
            let mut roles = BTreeSet::from(["author"]);
            roles.extend(["reviewer", "dba", "auditor"].into_iter().filter(|_| dice.below(2) == 0));
            roles.extend((n < 3).then_some("admin"));
            roles.extend((n > 2).then_some("reviewer"));
            let manager = if n == 0 { Value::Null } else { json!(format!("u{}", dice.below(n))) };
            let body = json!({ "user_id": format!("u{n}"), "roles": roles, "manager_id": manager });
            let user = world.boss("POST", "/users", body).await.expect(201);
            let mut known = world.known();
            known.expected_once.insert(format!("user u{n} r1"));
            known.note_user(&user);
        }
        for n in 0..PEOPLE {
            world.hand_out(&format!("u{n}")).await;
        }
        for (agent, sponsor) in [("robot-1", "u4"), ("robot-2", "u5")] {
            let body = json!({ "agent_id": agent, "sponsor_id": sponsor });
            let _ = world.boss("POST", "/agents", body).await.expect(201);
            world.known().expect(format!("agent.create {agent}"));
        }
        // By its sponsor, and by an administrator, who belongs to the authors of what it proposes.
        for (agent, sponsor, maker) in [("robot-1", "u4", "u4"), ("robot-2", "u5", "u1")] {
            world.make_token(maker, sponsor, Some(agent)).await;
        }
        for (user, maker) in [("u3", "u0"), ("u6", "u2")] {
            world.make_token(maker, user, None).await;
        }
        for round in 0..4 {
            deeds::policy(&world, &mut Dice::new(seed, u64::MAX - 1 - round), true).await;
        }
        world
    }

    pub(crate) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As the bootstrap token.
    pub(crate) async fn boss(&self, method: &'static str, path: &str, body: Value) -> Answer {
        let call = Call { token: None, method, path: path.to_owned(), body, if_match: None };
        self.send(0, &call, None).await
    }

    /// What the bootstrap token sees, which is everything.
    pub(crate) async fn see(&self, path: &str) -> Answer {
        self.boss("GET", path, Value::Null).await
    }

    /// Every item of a list, page by page.
    pub(crate) async fn all(&self, path: &str) -> Vec<Value> {
        let (mut found, mut cursor) = (Vec::new(), String::new());
        let join = if path.contains('?') { '&' } else { '?' };
        loop {
            let page = self.see(&format!("{path}{join}limit=97&cursor={cursor}")).await.expect(200);
            found.extend(items(&page));
            match page["next_cursor"].as_str() {
                Some(next) => cursor = ade_testkit::api::segment(next),
                None => return found,
            }
        }
    }

    /// A token that is good for everything its user may do, made by the bootstrap token.
    pub(crate) async fn hand_out(&self, user: &str) {
        let body = json!({ "name": "all", "scopes": ["read", "propose", "lock", "decide", "admin"] });
        let answer = self.boss("POST", &format!("/users/{user}/tokens"), body).await;
        // Somebody may have left again meanwhile.
        if answer.status != 403 {
            self.keep(&answer.expect(201), user, None, None);
        }
    }

    async fn make_token(&self, maker: &str, user: &str, agent: Option<&str>) {
        let token = self.known().tokens.iter().find(|token| token.user == maker).cloned().expect("a token");
        let path =
            agent.map_or_else(|| format!("/users/{user}/tokens"), |agent| format!("/agents/{agent}/tokens"));
        let body = json!({ "name": "to propose" });
        let call = Call { token: Some(token), method: "POST", path, body, if_match: None };
        let made = self.send(0, &call, None).await.expect(201);
        self.keep(&made, user, Some(maker), agent);
    }

    fn keep(&self, made: &Value, user: &str, maker: Option<&str>, agent: Option<&str>) {
        let (token_id, secret) = (text(&made["token_id"]), text(&made["token"]));
        let maker = maker.map(str::to_owned);
        let mut known = self.known();
        known.expect(format!("token.create {token_id}"));
        known.makers.insert(token_id, maker.clone());
        let (user, agent) = (user.to_owned(), agent.map(str::to_owned));
        known.tokens.push(Token { secret, user, maker, agent });
    }

    /// Sends it to one of the servers.
    pub(crate) async fn send(&self, server: u64, call: &Call, key: Option<&str>) -> Answer {
        let secret = call.token.as_ref().map_or(ade_testkit::ade::TOKEN, |token| token.secret.as_str());
        let bearer = format!("Bearer {secret}");
        let mut headers = vec![("authorization", bearer.as_str()), ("content-type", "application/json")];
        headers.extend(call.if_match.as_deref().map(|revision| ("if-match", revision)));
        headers.extend(key.map(|key| ("idempotency-key", key)));
        let body = if call.body.is_null() { String::new() } else { call.body.to_string() };
        let at = usize::try_from(server).expect("small") % self.apis.len();
        let path = format!("/api/v1{}", call.path);
        let answer = self.apis[at].send(call.method, &path, &headers, body).await;
        // Whoever leaves takes all its requests along in one transaction, which others may keep from ending: it is tried again.
        let is_overtaken = answer.code() == "CONTENTION" && call.path.starts_with("/users/");
        assert!(answer.status < 500 || is_overtaken, "{call:?}: {}", answer.text());
        answer
    }

    /// Sends it, perhaps with a key and more than once: the one answer that did something, or else the last refusal.
    pub(crate) async fn perform(&self, dice: &mut Dice, call: Call) -> Result<Value, Answer> {
        let server = dice.below(8);
        let key = format!("key {}", self.known().number());
        let key = (call.method == "POST" && dice.below(10) > 3).then_some(key);
        let mut answers = match (&key, dice.below(5)) {
            (Some(key), 0) => {
                let (one, other) = tokio::join!(
                    self.send(server, &call, Some(key)),
                    self.send(server + 1, &call, Some(key))
                );
                vec![one, other]
            }
            (Some(key), 1) => {
                vec![self.send(server, &call, Some(key)).await, self.send(server + 1, &call, Some(key)).await]
            }
            _ => vec![self.send(server, &call, key.as_deref()).await],
        };
        let is_done = |answer: &Answer| answer.status < 300;
        if let (Some(key), true, 0) = (&key, answers.iter().any(is_done), dice.below(3)) {
            answers.push(self.send(server + 1, &call, Some(key)).await);
            let other = Call { body: json!({ "something": "else" }), ..call.clone() };
            let reused = self.send(server, &other, Some(key)).await;
            let told = (reused.status, reused.code());
            // Whoever left meanwhile is not known any more.
            assert!(
                told == (422, "IDEMPOTENCY_KEY_REUSED".to_owned()) || reused.status == 401,
                "{call:?}: {}",
                reused.text()
            );
        }
        self.note(&call, &answers);
        let is_new = |answer: &&Answer| is_done(answer) && answer.header("idempotency-replayed").is_empty();
        let new: Vec<&Answer> = answers.iter().filter(is_new).collect();
        assert!(new.len() <= 1, "done twice with one key: {call:?}: {answers:?}");
        let Some(done) = new.first() else {
            assert!(!answers.iter().any(is_done), "replayed and never done: {call:?}: {answers:?}");
            return Err(answers.remove(answers.len() - 1));
        };
        for answer in answers.iter().filter(|answer| is_done(answer)) {
            assert_eq!(
                (answer.status, answer.json()),
                (done.status, done.json()),
                "replayed otherwise: {call:?}"
            );
        }
        if answers.len() > 1 {
            self.known().count("repeated");
        }
        let wrong = call.if_match.as_deref() == Some("\"999999\"");
        assert!(!wrong, "done although it was changed meanwhile: {call:?}");
        Ok(done.json())
    }

    fn note(&self, call: &Call, answers: &[Answer]) {
        let who = call.token.as_ref().map_or("bootstrap", |token| token.user.as_str());
        let told: Vec<String> =
            answers.iter().map(|answer| format!("{} {}", answer.status, answer.code())).collect();
        let Call { method, path, body, if_match, .. } = call;
        let if_match = if_match.as_deref().unwrap_or_default();
        let line = format!("{who}: {method} {path} {body} {if_match} -> {}", told.join(", "));
        let mut known = self.known();
        known.count("commands");
        known.commands.push_back(line);
        if known.commands.len() > KEPT {
            known.commands.pop_front();
        }
    }
}
