//! Projections from outside: after every command of the lifecycle, each key of the schema is in Redis as the catalog says; `ade rebuild`
//! makes them again; `ade doctor` finds what differs.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use ade_catalog::model::EntryKind;
use ade_keyspace::ade::ids;
use ade_testkit::api::ApiClient;
use ade_testkit::cli::Cli;
use ade_testkit::deployment::{AdminClient, TestUser, task, text_field};
use ade_testkit::effort;
use ade_testkit::server::{SECRET, ServerBuilder};
use ade_testkit::session::SessionClient;
use ade_testkit::wait::until;
use ade_testkit::{AdeServer, Postgres, WorkerProcess};
use serde_json::{Value, json};

use crate::redis::key_inspector::{Coverage, KeyInspector, catalog};
use crate::redis::key_tools;
use crate::redis::servers::{RedisBackend, TIMEOUT};

const BINARY: &str = env!("CARGO_BIN_EXE_ade");
/// What workers may run: one command that writes more than a record keeps, and one that fails and can be rolled back.
const TEMPLATES: &str = r#"
[executors.command.templates.loud]
argv = ["sh", "-c", "yes loud | head -c 100000"]

[executors.command.templates.fail]
argv = ["sh", "-c", "echo no; exit 7"]
rollback_argv = ["true"]
"#;
/// Fields that are there only while an object is written.
const TRANSIENT: &str = "pending";
/// Settings of single processes, which are in no database.
const PROCESS_SETTINGS: [&str; 3] = ["lock:max_queue", "lock:max_clock_skew", "lock:min_replica_acks"];

struct Installation {
    servers: Vec<AdeServer>,
    redis: RedisBackend,
    postgres: Postgres,
}

impl Installation {
    fn start(redis: RedisBackend) -> Self {
        let postgres = Postgres::start().expect("starts");
        let database = postgres.create_database("ade").expect("created");
        let setup = ServerBuilder::new(BINARY).env("ADE_WORKER_SLOTS", "0").config(TEMPLATES);
        let setup = setup.arg("--redis").arg(&redis.url()).arg("--postgres").arg(&database);
        Self { servers: setup.start_many(2).expect("start"), redis, postgres }
    }

    fn start_worker(&self) -> WorkerProcess {
        let config = format!("[server]\nblobs = {:?}\n{TEMPLATES}", self.servers[0].blobs());
        WorkerProcess::start(BINARY, &config, &self.redis.url(), &self.postgres.url("ade")).expect("starts")
    }

    /// Runs `ade rebuild`, and returns what it printed.
    fn rebuild(&self) -> String {
        let mut command = Command::new(BINARY);
        let folder = self.servers[0].folder();
        command.args(["rebuild", "--data", "rebuild", "--redis", &self.redis.url()]).current_dir(folder);
        command.args(["--postgres", &self.postgres.url("ade")]).env("ADE_SECRET", SECRET);
        let output = command.output().expect("runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn empty_redis(&self) {
        for redis in self.redis.primaries() {
            let _: String = redis.query(&["FLUSHALL"]).expect("emptied");
        }
    }

    /// Runs a command whose key is its second word, or its third one if the second is a subcommand.
    fn redis_command(&self, words: &[&str]) -> redis::Value {
        let key = words.iter().find(|word| word.starts_with("ade:")).expect("a key");
        let slot = ade_catalog::slot::slot_of(key.as_bytes());
        let server = match &self.redis {
            RedisBackend::Standalone(redis) => redis,
            RedisBackend::Cluster(cluster) => cluster.slot_owner(slot, &[]).expect("an owner"),
        };
        server.query(words).expect("a reply")
    }

    /// Waits until the stream of locks has an event of the database.
    async fn expect_stored_lock_event(&self, number: &str) {
        let has_it = || async {
            let entries = format!("{:?}", self.redis_command(&["XRANGE", "ade:events:lock", "-", "+"]));
            if entries.contains(&format!("{:?}", number)) { Ok(()) } else { Err(entries) }
        };
        until("the stream of locks has the event", TIMEOUT, has_it).await.expect("in time");
    }

    /// Waits until the group of webhooks shows that every event of tasks was read. Other groups are left to others.
    async fn expect_acknowledged(&self) {
        let stream = "ade:events:task";
        let are_read = || async {
            let groups = self.redis_command(&["XINFO", "GROUPS", stream]);
            let groups: Vec<BTreeMap<String, redis::Value>> =
                redis::from_redis_value(groups).expect("groups");
            let text = |value: &redis::Value| redis::from_redis_value::<String>(value.clone()).expect("text");
            let read: BTreeMap<String, u64> = groups
                .iter()
                .map(|group| (text(&group["name"]), number_of(&text(&group["last-delivered-id"]))))
                .collect();
            let last = self.redis_command(&["XREVRANGE", stream, "+", "-", "COUNT", "1"]);
            let last: Vec<(String, Vec<String>)> = redis::from_redis_value(last).expect("entries");
            assert_eq!((read["notification-service"], read["audit-logger"]), (0, 0));
            let is_read = read["webhook-dispatcher"] >= number_of(&last[0].0);
            if is_read { Ok(()) } else { Err(format!("{read:?} of {last:?}")) }
        };
        until("the group of webhooks is up to date", TIMEOUT, are_read).await.expect("in time");
    }

    /// Leaves an object that the database does not have and a guard of another type, without the marks that everything is there.
    fn plant_and_lose_marks(&self, task: &str) {
        let is_cluster = self.redis.is_cluster();
        let metadata = |id: &str| {
            if is_cluster { format!("ade:{{task:{id}}}:metadata") } else { format!("ade:task:{id}:metadata") }
        };
        self.redis_command(&["HSET", &metadata("0192f6c0-5a7e-7cc0-8c7b-2f0f6d3f8f11"), "revision", "1"]);
        self.redis_command(&["SET", &metadata(task), "text"]);
        for server in self.redis.primaries() {
            for mark in server.query::<Vec<String>>(&["KEYS", "ade:events:relay:*"]).expect("keys") {
                let _: u64 = server.query(&["DEL", &mark]).expect("deleted");
            }
        }
    }

    /// The content of all projections and streams.
    fn snapshot(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut contents = BTreeMap::new();
        for server in self.redis.primaries() {
            for key in server.query::<Vec<String>>(&["KEYS", "ade:*"]).expect("keys") {
                let entry = &catalog().find(&key).expect("in the catalog").entry.name;
                let is_projection =
                    ["task.", "approval.", "session.", "config.", "feature.", "events.stream"];
                if !is_projection.iter().any(|prefix| entry.starts_with(prefix)) {
                    continue;
                }
                let kind: String = server.query(&["TYPE", &key]).expect("a type");
                let content: redis::Value = match kind.as_str() {
                    "hash" => server.query(&["HGETALL", &key]),
                    "string" => server.query(&["GET", &key]),
                    "set" => server.query(&["SMEMBERS", &key]),
                    "zset" => server.query(&["ZRANGE", &key, "0", "-1", "WITHSCORES"]),
                    // The ids of the stream of locks are times.
                    "stream" if key.ends_with("lock") => continue,
                    _ => server.query(&["XRANGE", &key, "-", "+"]),
                }
                .expect("content");
                let lines = match content {
                    redis::Value::Array(items) if kind == "hash" => {
                        items.chunks(2).map(|pair| format!("{pair:?}")).collect()
                    }
                    redis::Value::Array(items) => items.iter().map(|item| format!("{item:?}")).collect(),
                    other => BTreeSet::from([format!("{other:?}")]),
                };
                // Statistics are as of the last event that was counted.
                let lines: BTreeSet<String> = lines;
                let is_stable = |line: &&String| entry != "approval.user_stats" || !line.contains("revision");
                contents.insert(key, lines.iter().filter(is_stable).cloned().collect());
            }
        }
        contents
    }
}

/// The number of an event, by the id of its entry in a stream.
fn number_of(id: &str) -> u64 {
    id.split('-').next().expect("a number").parse().expect("a number")
}

struct People {
    org: AdminClient,
    pat: TestUser,
    rex: TestUser,
    ada: TestUser,
    abe: TestUser,
    ray: TestUser,
    bot: TestUser,
}

impl People {
    async fn join(installation: &Installation) -> Self {
        let org = AdminClient::without_hold(ApiClient::connect(&installation.servers[0]).await).await;
        let pat = org.create_user("pat", &["author"]).await;
        let [rex, ray] =
            [org.create_user("rex", &["reviewer"]).await, org.create_user("ray", &["reviewer"]).await];
        let [ada, abe] = [org.create_user("ada", &["admin"]).await, org.create_user("abe", &["admin"]).await];
        let bot = org.create_agent("bot", &pat).await;
        org.create_policy(json!({ "name": "rex decides", "reviewers": ["rex"], "min_approvers": 1 })).await;
        Self { org, pat, rex, ada, abe, ray, bot }
    }

    async fn decide(&self, task: &str, decision: &str) {
        let request = self.org.approval_id(task, "rex").await;
        let _ = self.rex.decide(&request, decision).await.expect_status(200);
    }

    async fn command(&self, by: &TestUser, task: &str, action: &str, body: Value) -> Value {
        let response = by.post(&format!("/tasks/{task}/{action}"), &body).await;
        assert!((200..300).contains(&response.status), "{action}: {}", response.text());
        response.json()
    }

    /// Takes one task through one of the paths of the lifecycle. Returns its id and the state in which it ends once workers run.
    async fn live_through(&self, number: u64) -> (String, &'static str) {
        let because = || json!({ "reason": "because" });
        let fields = json!({
            "description": format!("task {number}"), "team": "core", "ticket_ref": "T-1", "tags": ["nightly"],
            "resources": [{ "type": "service", "id": format!("s{}", number % 5) }],
        });
        let mut fields = task(fields);
        if number % 10 == 7 {
            fields["executor"] = json!("agent");
            fields["parameters"] = json!({ "agent": "bot" });
            fields["preview"] = json!({ "changes": [{ "kind": "update", "what": "it" }] });
        }
        if let 8 | 9 = number % 10 {
            fields["executor"] = json!("command");
            fields["rollback_strategy"] = json!("manual");
            let template = if number % 10 == 8 { "loud" } else { "fail" };
            fields["parameters"] = json!({ "template": template, "arguments": {} });
        }
        let id = text_field(&self.pat.post("/tasks", &fields).await.expect_status(201), "task_id");
        if number % 10 == 4 {
            if number % 20 == 4 {
                self.command(&self.pat, &id, "cancel", because()).await;
                return (id, "CANCELLED");
            }
            let deleted = self.pat.create_draft(json!({})).await;
            assert_eq!(self.pat.delete(&format!("/tasks/{deleted}")).await.status, 204);
            return (id, "DRAFT");
        }
        self.command(&self.pat, &id, "submit", json!({})).await;
        self.command(&self.pat, &id, "comments", json!({ "text": "please" })).await;
        match number % 10 {
            1 => {
                self.decide(&id, "reject").await;
                self.command(&self.pat, &id, "resubmit", json!({})).await;
                return (id, "REJECTED");
            }
            2 => {
                self.decide(&id, "request-changes").await;
                let change = json!({ "description": "better" });
                let _ = self.pat.patch(&format!("/tasks/{id}"), &change).await.expect_status(200);
                self.decide(&id, "approve").await;
            }
            3 => {
                self.decide(&id, "approve").await;
                self.command(&self.rex, &id, "revoke", because()).await;
                return (id, "REJECTED");
            }
            5 => {
                let request = self.org.approval_id(&id, "rex").await;
                let path = format!("/approvals/{request}/delegate");
                let _ = self.rex.post(&path, &json!({ "to": "ray" })).await.expect_status(200);
                let request = self.org.approval_id(&id, "ray").await;
                let _ = self.ray.decide(&request, "approve").await.expect_status(200);
                self.command(&self.ada, &id, "force-apply", because()).await;
            }
            6 => {
                let body = json!({ "reason": "outage", "incident_ticket": "INC-1" });
                self.command(&self.ada, &id, "override", body).await;
                let _ = self.abe.confirm_override(&id).await.expect_status(200);
            }
            7 => {
                self.decide(&id, "approve").await;
                let body = json!({ "task_id": id, "wait_seconds": 20 });
                let claimed = self.bot.post("/tasks/claim", &body).await.expect_status(200);
                let result = if number % 20 == 7 { "success" } else { "failure" };
                let body = json!({ "attempt": claimed["attempt"], "result": result, "output": "done", "error": "failed" });
                self.command(&self.bot, &id, "complete", body).await;
                return (id, if result == "success" { "COMPLETED" } else { "FAILED" });
            }
            _ => self.decide(&id, "approve").await,
        }
        (id, if number % 10 == 9 { "FAILED" } else { "COMPLETED" })
    }
}

/// Entries and fields of the schema that nobody wrote.
fn unwritten(coverage: &Coverage, observed_in_other_tests: &[&str]) -> Vec<String> {
    let mut unwritten = Vec::new();
    for entry in &catalog().entries {
        let EntryKind::Key(shape) = &entry.kind else { continue };
        if observed_in_other_tests.iter().any(|prefix| entry.name.starts_with(prefix)) {
            continue;
        }
        let Some(seen) = coverage.get(&entry.name) else {
            unwritten.push(entry.name.clone());
            continue;
        };
        let fields = shape.fields.iter().filter(|_| shape.value_type.as_str() == "hash");
        let fields = fields.filter(|field| field.name != TRANSIENT && !seen.contains(&field.name));
        unwritten.extend(fields.map(|field| format!("{} {}", entry.name, field.name)));
    }
    unwritten
}

async fn doctor(cli: &Cli) -> Vec<String> {
    let output = cli.run(&["doctor", "--full", "--json"]).await;
    let findings: Vec<Value> = serde_json::from_str(&output.stdout).expect("JSON");
    let of_projections = findings.iter().filter(|finding| finding["check"] == "projections");
    let problems = of_projections.filter(|finding| finding["result"] == "problem");
    problems.map(|finding| text_field(finding, "detail")).collect()
}

async fn every_key_is_written_rebuilt_and_compared(redis: RedisBackend) {
    let installation = Installation::start(redis);
    let mut inspector = KeyInspector::connect(&installation.redis);
    let people = People::join(&installation).await;
    let session: SessionClient =
        people.org.join_and_sign_in("sam", &["reviewer"], "correct horse battery").await;
    let password = json!({ "user_id": "sam", "password": "correct horse battery" }).to_string();
    let headers = [("user-agent", "a browser")];
    let again = people.org.api.send_raw("POST", "/api/v1/sessions", &headers, password).await;
    assert_eq!(again.status, 201, "{}", again.text());
    let delegation =
        json!({ "owner_id": "sam", "delegate_to": "ray", "valid_until": "2090-01-01T00:00:00Z" });
    let _ = people.ada.post("/delegations", &delegation).await.expect_status(201);
    people.org.set_config("lock:default_ttl", json!(31)).await;
    let webhook = json!({ "name": "archives", "url": "https://93.184.215.14/ade", "events": ["archive:*"] });
    let _ = people.ada.post("/webhooks", &webhook).await.expect_status(201);
    let mut expected = Vec::new();
    for number in 0..effort::rounds(60, 200) {
        expected.push(people.live_through(number).await);
        if number % 10 < 2 {
            inspector.check_all();
        }
    }
    // One request stays open, so that its queues are seen.
    let open = people.pat.create_submitted(json!({ "description": "undecided" })).await;
    let worker = installation.start_worker();
    for (id, state) in &expected {
        let what = format!("task {id} is {state}");
        people.org.wait_for_task(&what, id, |task| task["state"] == *state).await;
    }
    for (id, state) in &expected {
        let failed = people.org.task_request(id).await;
        if *state == "FAILED" && failed["config"]["executor"] == "command" {
            people.command(&people.ada, id, "rollback", json!({ "reason": "because" })).await;
            people
                .org
                .wait_for_task("rolled back", id, |task| task["execution"]["rolled_back"] == true)
                .await;
        }
    }
    let cli = Cli::new(BINARY, &installation.servers[0], &people.ada);
    let settled = || async {
        let found = doctor(&cli).await;
        if found.is_empty() { Ok(()) } else { Err(found.join("\n")) }
    };
    until("Redis has what the database says", TIMEOUT, settled).await.expect("in time");
    let relayed = || async {
        let metrics = people.org.api.send_raw("GET", "/metrics", &[], "").await.text();
        if metrics.contains("\nade_relay_unread_events 0\n") { Ok(()) } else { Err(metrics) }
    };
    until("the relay has read every event", TIMEOUT, relayed).await.expect("in time");
    inspector.check_all();
    assert_eq!(unwritten(&inspector.coverage, &["lock.", "agent.", "ratelimit.lock"]), [""; 0]);
    key_tools::check_filled(&installation.redis.url(), installation.redis.is_cluster());
    let keys = installation.snapshot();
    let has = |key: &str| keys.contains_key(key);
    assert_eq!(people.org.task_request(&open).await["state"], "REVIEWING");
    for state in ["DRAFT", "REVIEWING", "REJECTED", "CANCELLED", "COMPLETED", "FAILED"] {
        assert!(has(&format!("ade:task:index:state:{state}")), "{state}");
    }
    let names = ids::ConfigName::all().iter().map(|name| name.as_written());
    for name in names.filter(|name| !PROCESS_SETTINGS.contains(name)) {
        assert!(has(&format!("ade:config:{name}")), "{name}");
    }
    for name in ids::FlagName::all() {
        assert!(has(&format!("ade:feature:{}", name.as_written())), "{name:?}");
    }
    assert_eq!(session.status().await, 200);
    drop(worker);

    let held = json!({ "agent_id": "holder", "locks": [{ "lock": "resource:service:broken" }] });
    let _ = people.org.api.post("/locks/acquire", &held).await.expect_status(200);
    let path = "/locks/resource%3Aservice%3Abroken?reason=because";
    assert_eq!(people.org.api.delete(path).await.status, 200);
    let numbered = || async {
        let found = people.org.api.get("/events?after=0&topics=lock").await.expect_status(200);
        let of_locks = found["items"].as_array().expect("events").last().cloned();
        of_locks.ok_or_else(|| found.to_string())
    };
    let broken = until("the break is an event", TIMEOUT, numbered).await.expect("in time");
    let broken = text_field(&broken, "id");

    // After the loss of all data, the relay writes everything again by itself.
    installation.empty_redis();
    until("Redis has everything again", TIMEOUT, settled).await.expect("in time");
    installation.expect_stored_lock_event(&broken).await;
    installation.expect_acknowledged().await;

    // A server that lost its last writes may have what was removed in them, and anything else.
    installation.plant_and_lose_marks(&expected[0].0);
    until("Redis has nothing else", TIMEOUT, settled).await.expect("in time");

    // Without servers, `ade rebuild` does, and the content is the same.
    let before = installation.snapshot();
    installation.servers.iter().for_each(|server| server.kill().expect("killed"));
    installation.empty_redis();
    let printed = installation.rebuild();
    assert!(printed.starts_with("wrote "), "{printed}");
    let after = installation.snapshot();
    let keys = |snapshot: &BTreeMap<String, _>| snapshot.keys().cloned().collect::<BTreeSet<String>>();
    assert_eq!(keys(&after), keys(&before));
    for (key, content) in &before {
        assert_eq!(after.get(key), Some(content), "{key}");
    }
    // The servers create the group again: then they have started, and repair nothing more by themselves.
    installation.redis_command(&["XGROUP", "DESTROY", "ade:events:agent", "audit-logger"]);
    installation.servers.iter().for_each(|server| server.start_again().expect("starts"));
    until("nothing differs", TIMEOUT, settled).await.expect("in time");

    let completed = &expected.iter().find(|(_, state)| *state == "COMPLETED").expect("one").0;
    plant_and_find(&installation, &cli, completed).await;
    installation.rebuild();
    assert_eq!(doctor(&cli).await, [""; 0]);
}

/// Plants differences; each must be named.
async fn plant_and_find(installation: &Installation, cli: &Cli, task: &str) {
    let key = |plain: &str, tagged: &str| {
        if installation.redis.is_cluster() { tagged.to_owned() } else { plain.to_owned() }
    };
    let of_task =
        |part: &str| key(&format!("ade:task:{task}:{part}"), &format!("ade:{{task:{task}}}:{part}"));
    let nobody = "0192f6c0-5a7e-7cc0-8c7b-2f0f6d3f8f11";
    let orphan = key(&format!("ade:task:{nobody}:state"), &format!("ade:{{task:{nobody}}}:state"));
    let (state, config, metadata, risk, execution) =
        (of_task("state"), of_task("config"), of_task("metadata"), of_task("risk"), of_task("execution"));
    let by_author = key("ade:task:index:author:pat", "ade:task:index:author:{user:pat}");
    let planted: [(&[&str], &str); 11] = [
        (&["SET", &state, "DRAFT", "KEEPTTL"], "has another value"),
        (&["DEL", &config], "is missing"),
        (&["HDEL", &metadata, "author_id"], "lacks the field author_id"),
        (&["PERSIST", &risk], "has no TTL"),
        (&["SET", &execution, "text"], "is a string instead of a hash"),
        (&["ZREM", &by_author, task], "is not a member of its index"),
        (
            &["ZADD", "ade:task:index:state:DRAFT", "1", task],
            "is a member of an index that it does not belong to",
        ),
        (&["SET", &orphan, "DRAFT"], "the database does not have it"),
        (
            &["XGROUP", "DESTROY", "ade:events:approval", "audit-logger"],
            "lacks the consumer group audit-logger",
        ),
        (&["SET", "ade:feature:batch_approvals", "perhaps"], "has another value"),
        (
            &["ZADD", "ade:approval:queue:global", "1", nobody],
            "is a member of an index that it does not belong to",
        ),
    ];
    for (command, _) in &planted {
        installation.redis_command(command);
    }
    let found = doctor(cli).await;
    for (command, expected) in &planted {
        let key = command.iter().find(|word| word.starts_with("ade:")).expect("a key");
        // A key of an object that does not exist is named by the object.
        let subject = if *key == orphan { nobody } else { key };
        let is_named = found.iter().any(|detail| detail.contains(subject) && detail.contains(expected));
        assert!(is_named, "{command:?}: {found:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_key_is_written_rebuilt_and_compared_on_standalone() {
    every_key_is_written_rebuilt_and_compared(RedisBackend::standalone()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_key_is_written_rebuilt_and_compared_on_a_cluster() {
    every_key_is_written_rebuilt_and_compared(RedisBackend::cluster()).await;
}
