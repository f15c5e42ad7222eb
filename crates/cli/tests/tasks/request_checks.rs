//! On which conditions requests are served: If-Match, Idempotency-Key, bodies, sessions and their protection against forgery,
//! limits; and that secrets are nowhere to be read.

use std::fs;
use std::path::Path;

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_domain::permission::Scope;
use ade_testkit::api::{Answer, Api, fill};
use ade_testkit::people::text;
use ade_testkit::{House, Office, Person};
use serde_json::{Value, json};

const PASSWORD: &str = "correct horse battery staple";
const NOTHING: &str = "00000000-0000-7000-8000-000000000000";

fn house() -> House {
    House::embedded(env!("CARGO_BIN_EXE_ade"))
}

/// Somebody who signed in: cookie and the word against forgery.
struct Session {
    api: Api,
    cookie: String,
    word: String,
}

impl Session {
    async fn new(api: &Api, user: &str, password: &str) -> Self {
        let answer = sign_in(api, user, password).await;
        let word = text(&answer.expect(201), "csrf_token");
        let cookie = answer.header("set-cookie").to_owned();
        for part in ["HttpOnly", "SameSite=Strict", "Path=/"] {
            assert!(cookie.contains(part), "{cookie}");
        }
        let cookie = cookie.split(';').next().expect("a pair").to_owned();
        Self { api: api.clone(), cookie, word }
    }

    async fn call(&self, method: &str, path: &str, word: Option<&str>, body: &Value) -> Answer {
        let mut headers = vec![("cookie", self.cookie.as_str())];
        headers.extend(word.map(|word| ("x-csrf-token", word)));
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

/// One thing of each kind, for requests that need one which is there.
struct Things {
    office: Office,
    pat: Person,
    rex: Person,
    ada: Person,
    abe: Person,
}

impl Things {
    async fn of(house: &House) -> Self {
        let office = house.office().await;
        Self {
            pat: office.person("pat", &[AUTHOR]).await,
            rex: office.person("rex", &[REVIEWER]).await,
            ada: office.person("ada", &[ADMIN]).await,
            abe: office.person("abe", &[ADMIN]).await,
            office,
        }
    }

    async fn approved(&self) -> String {
        let id = self.pat.submitted(json!({})).await;
        let _ = self.rex.answers(&self.office.request(&id, "rex").await, "approve").await.expect(200);
        id
    }

    /// A task that an agent carries out.
    async fn applying(&self) -> String {
        let bot = self.office.agent("bot", &self.pat).await;
        let of = json!({ "executor": "agent", "parameters": { "agent": "bot" } });
        let id = self.pat.submitted(of).await;
        let _ = self.rex.answers(&self.office.request(&id, "rex").await, "approve").await.expect(200);
        let _ = bot.post("/tasks/claim", &json!({})).await.expect(200);
        id
    }

    /// Something that a route can do something to: who may, where, with what, and where its revision is shown.
    async fn for_route(&self, method: &str, path: &str) -> (Person, String, Value, String) {
        let (who, id, body) = match (method, path) {
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
                let _ = self.rex.answers(&self.office.request(&id, "rex").await, "reject").await.expect(200);
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
            (_, answer) if answer.starts_with("/approvals/{id}/") => {
                let id = self.pat.submitted(json!({})).await;
                let body = if answer.ends_with("delegate") {
                    json!({ "to": "abe" })
                } else {
                    json!({ "reason": "b" })
                };
                (&self.rex, self.office.request(&id, "rex").await, body)
            }
            (_, policy) if policy.starts_with("/policies/{id}") => {
                let name = format!("policy of {method} {path}");
                let made = self
                    .ada
                    .post("/policies", &json!({ "name": name, "task_types": ["none"] }))
                    .await
                    .expect(201);
                let body = if method == "PATCH" { json!({ "min_approvers": 2 }) } else { json!({}) };
                (&self.ada, text(&made, "policy_id"), body)
            }
            (_, "/delegations/{id}") => {
                let body = json!({ "delegate_to": "abe", "active": false });
                let made = self.rex.post("/delegations", &body).await.expect(201);
                (&self.rex, text(&made, "delegation_id"), json!({ "cascade": false }))
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
            other => panic!("{other:?} answers 412: say here how"),
        };
        let shown = path.split('/').take(3).collect::<Vec<_>>().join("/");
        (who.clone(), fill(path, &id), body, fill(&shown, &id))
    }
}

#[tokio::test]
async fn every_route_that_says_so_refuses_what_was_changed_meanwhile() {
    let house = house();
    let things = Things::of(&house).await;
    let mut tried = 0;
    for (method, path, operation) in things.office.admin.operations() {
        // What a rollback needs is left by workers: see where files are changed.
        if operation["responses"].get("412").is_none() || path == "/tasks/{id}/rollback" {
            continue;
        }
        let (who, place, body, shown) = things.for_route(&method, &path).await;
        let before = things.office.admin.get(&shown).await.expect(200);
        let revision = before["revision"].as_u64().expect("a revision");
        let stale = [format!("\"{}\"", revision + 1), (revision + 7).to_string()];
        for tag in &stale {
            let headers = [("if-match", tag.as_str())];
            let refused =
                who.call_with(&method, &place, &headers, &body.to_string()).await.problem(412, "STALE");
            assert_eq!(refused["revision"], revision, "{method} {path}");
        }
        for silly in ["x", "\"\"", "W/\"1\"", "-1"] {
            let answer = who.call_with(&method, &place, &[("if-match", silly)], &body.to_string()).await;
            let _ = answer.problem(422, "INVALID_REQUEST");
        }
        assert_eq!(things.office.admin.get(&shown).await.expect(200), before, "{method} {path}");
        let tag = if tried % 2 == 0 { format!("\"{revision}\"") } else { "*".to_owned() };
        let answer = who.call_with(&method, &place, &[("if-match", &tag)], &body.to_string()).await;
        assert!(answer.status < 300, "{method} {path}: {}", answer.text());
        tried += 1;
    }
    assert!(tried >= 24, "{tried}");
    // Looking is not changing: what is said about a revision there is not looked at.
    for (method, path, _) in things.office.admin.operations() {
        if method == "GET" {
            let place = fill(&path, "pat");
            let answer = things.ada.call_with("GET", &place, &[("if-match", "x")], "").await;
            assert!(!matches!(answer.status, 412 | 500), "{path}: {}", answer.text());
        }
    }
}

#[tokio::test]
async fn a_repeated_request_is_answered_the_same_and_does_nothing() {
    let house = house();
    let things = Things::of(&house).await;
    let (pat, rex) = (&things.pat, &things.rex);
    let key = [("idempotency-key", "k-1")];
    let body = ade_testkit::people::task(json!({})).to_string();
    let first = pat.call_with("POST", "/tasks", &key, &body).await;
    let made = first.expect(201);
    assert_eq!(first.header("idempotency-replayed"), "");
    for restarted in [false, true] {
        if restarted {
            house.ade().kill_and_restart().expect("restarts");
        }
        let again = pat.call_with("POST", "/tasks", &key, &body).await;
        assert_eq!(again.expect(201), made);
        assert_eq!(
            (again.header("idempotency-replayed"), again.header("etag")),
            ("true", first.header("etag"))
        );
        let other = ade_testkit::people::task(json!({ "description": "other" })).to_string();
        let _ = pat.call_with("POST", "/tasks", &key, &other).await.problem(422, "IDEMPOTENCY_KEY_REUSED");
        let elsewhere =
            pat.call_with("POST", &format!("/tasks/{}/submit", text(&made, "task_id")), &key, &body).await;
        let _ = elsewhere.problem(422, "IDEMPOTENCY_KEY_REUSED");
    }
    assert_eq!(pat.get("/tasks").await.expect(200)["items"].as_array().map(Vec::len), Some(1));
    // Keys belong to whoever uses them: people, agents, the bootstrap token.
    let bot = things.office.agent("bot", pat).await;
    for who in [&*bot, &*things.ada] {
        let answer = who.call_with("POST", "/tasks", &key, &body).await;
        assert_eq!(answer.header("idempotency-replayed"), "");
        assert_ne!(text(&answer.expect(201), "task_id"), text(&made, "task_id"));
    }
    // An answer, given twice, after which the task has moved on.
    let id = pat.submitted(json!({})).await;
    let request = things.office.request(&id, "rex").await;
    let place = format!("/approvals/{request}/approve");
    let first = rex.call_with("POST", &place, &key, "{}").await.expect(200);
    let _ = pat.post(&format!("/tasks/{id}/cancel"), &json!({})).await.expect(200);
    let again = rex.call_with("POST", &place, &key, "{}").await;
    assert_eq!(again.expect(200), first);
    let _ = rex.call_with("POST", &place, &[], "{}").await.problem(409, "ALREADY_DECIDED");
    // What was refused is not kept: the same may go well later.
    let late = [("idempotency-key", "k-2")];
    let draft = pat.draft(json!({ "type": "strict" })).await;
    things
        .office
        .policy(json!({ "name": "strict", "task_types": ["strict"], "required_roles": ["dba"] }))
        .await;
    let place = format!("/tasks/{draft}/submit");
    let _ = pat.call_with("POST", &place, &late, "").await.problem(422, "NO_QUORUM");
    let _ = things.office.person("dan", &["dba"]).await;
    let _ = pat.call_with("POST", &place, &late, "").await.expect(202);
    // A token is told once.
    let body = json!({ "name": "t" }).to_string();
    let first = pat.call_with("POST", "/users/me/tokens", &late, &body).await;
    let _ = first.problem(422, "IDEMPOTENCY_KEY_REUSED");
    let third = [("idempotency-key", "k-3")];
    let first = pat.call_with("POST", "/users/me/tokens", &third, &body).await.expect(201);
    let again = pat.call_with("POST", "/users/me/tokens", &third, &body).await.expect(201);
    assert_eq!((first["token_id"].clone(), Value::Null), (again["token_id"].clone(), again["token"].clone()));
    let long = "x".repeat(256);
    for silly in ["", long.as_str()] {
        let answer = pat.call_with("POST", "/tasks", &[("idempotency-key", silly)], "{}").await;
        let _ = answer.problem(422, "INVALID_REQUEST");
    }
}

#[tokio::test]
async fn of_two_at_once_with_one_key_the_second_waits() {
    let house = house();
    let office = house.office().await;
    let mut busy = 0;
    // Hashing a password takes its time: that long the first one is under way.
    for n in 0..8 {
        let key = format!("k-{n}");
        let body = json!({ "user_id": format!("user-{n}"), "password": PASSWORD }).to_string();
        let calls = (0..6).map(|_| {
            let (api, key, body) = (office.admin.clone(), key.clone(), body.clone());
            tokio::spawn(
                async move { api.call_with("POST", "/users", &[("idempotency-key", &key)], &body).await },
            )
        });
        let mut first = 0;
        for call in calls.collect::<Vec<_>>() {
            let answer = call.await.expect("no panic");
            match answer.status {
                201 if answer.header("idempotency-replayed").is_empty() => first += 1,
                201 => {}
                _ => {
                    let _ = answer.problem(409, "IN_FLIGHT");
                    assert_eq!(answer.header("retry-after"), "1");
                    busy += 1;
                }
            }
        }
        assert_eq!(first, 1, "one of them made somebody");
        let again = office.admin.call_with("POST", "/users", &[("idempotency-key", &key)], &body).await;
        let _ = again.expect(201);
        assert_eq!(again.header("idempotency-replayed"), "true");
    }
    assert!(busy > 0, "nobody was told to wait in eight rounds of six");
}

#[tokio::test]
async fn bodies_are_of_a_size_and_say_nothing_unknown() {
    let house = house();
    let things = Things::of(&house).await;
    let admin = &things.office.admin;
    let big = format!("{{\"no_such_field\": \"{}\"}}", "x".repeat(1 << 20));
    for (method, path, operation) in admin.operations() {
        let place = format!("/api/v1{}", fill(&path, NOTHING));
        let authorization = format!("Bearer {}", things.ada.token);
        let headers = [("authorization", authorization.as_str())];
        if operation.get("requestBody").is_some() {
            let _ = admin.send(&method, &place, &headers, big.clone()).await.problem(413, "BODY_TOO_LARGE");
            let _ = admin.send(&method, &place, &headers, "{").await.problem(400, "MALFORMED_JSON");
            for body in ["{\"no_such_field\": 1}", "[]", "7"] {
                let _ = admin.send(&method, &place, &headers, body).await.problem(422, "INVALID_REQUEST");
            }
        } else if operation["responses"].get("413").is_some() {
            // One that may have no body has no fields either.
            let _ = admin.send(&method, &place, &headers, big.clone()).await.problem(413, "BODY_TOO_LARGE");
            let body = "{\"no_such_field\": 1}";
            let _ = admin.send(&method, &place, &headers, body).await.problem(422, "INVALID_REQUEST");
        }
    }
    // Inside, too.
    let mut odd = vec![];
    for part in [
        json!({ "resources": [{ "type": "a", "id": "b", "odd": 1 }] }),
        json!({ "lineage": { "odd": 1 } }),
        json!({ "executor": "agent", "preview": { "odd": 1 } }),
    ] {
        odd.push(("/tasks", ade_testkit::people::task(part)));
    }
    odd.push((
        "/approvals/batch",
        json!({ "approval_ids": [], "action": "approve", "options": { "odd": 1 } }),
    ));
    odd.push(("/policies", json!({ "name": "p", "auto_approve_if": { "odd": 1 } })));
    odd.push(("/policies", json!({ "name": "p", "window": { "odd": 1 } })));
    odd.push(("/delegations", json!({ "delegate_to": "rex", "conditions": { "odd": 1 } })));
    odd.push(("/simulations", json!({ "task": { "odd": 1 } })));
    odd.push(("/simulations", json!({ "policies": [{ "odd": 1 }] })));
    for (path, body) in odd {
        let _ = things.ada.post(path, &body).await.problem(422, "INVALID_REQUEST");
    }
}

#[tokio::test]
async fn a_cookie_alone_changes_nothing_and_ends_with_its_session() {
    let house = house();
    let office = house.office().await;
    let admin = &office.admin;
    let roles = [ADMIN, AUTHOR, REVIEWER];
    let _ = office.made(json!({ "user_id": "sam", "roles": roles, "password": PASSWORD })).await;
    let sam = Session::new(admin, "sam", PASSWORD).await;
    let other = Session::new(admin, "sam", PASSWORD).await;
    assert_eq!(sam.status().await, 200);
    let before = admin.get("/stats/overview").await.expect(200);
    for (method, path, _) in admin.operations() {
        if method == "GET" || path == "/sessions" {
            continue;
        }
        // Not without the word, not with a wrong one, and not with that of another session.
        for word in [None, Some(""), Some("wrong"), Some(other.word.as_str())] {
            let answer = sam.call(&method, &fill(&path, NOTHING), word, &json!({})).await;
            let _ = answer.problem(403, "CSRF");
        }
    }
    assert_eq!(admin.get("/stats/overview").await.expect(200)["tasks"], before["tasks"]);
    let task = ade_testkit::people::task(json!({}));
    let _ = sam.call("POST", "/tasks", Some(&sam.word), &task).await.expect(201);
    // A session decides, so it may make a token that does, for itself alone and for 8 hours.
    let token = json!({ "name": "t", "scopes": [Scope::Decide] });
    let made = sam.call("POST", "/users/me/tokens", Some(&sam.word), &token).await.expect(201);
    let _ = sam.call("POST", "/users/admin/tokens", Some(&sam.word), &token).await.problem(403, "FORBIDDEN");
    // It ends when one signs out, and no other does.
    let answer = sam.call("DELETE", "/sessions/current", Some(&sam.word), &json!({})).await;
    assert_eq!((answer.status, sam.status().await, other.status().await), (204, 401, 200));
    assert!(answer.header("set-cookie").contains("Max-Age=0"));
    let _ = admin
        .acting_with(&text(&made, "token"))
        .delete("/sessions/current")
        .await
        .problem(404, "SESSION_NOT_FOUND");
    // With a new password, all of them end; who does not administer changes its own, and nothing else.
    let _ = office.made(json!({ "user_id": "tom", "roles": [AUTHOR], "password": PASSWORD })).await;
    let tom = Session::new(admin, "tom", PASSWORD).await;
    let second = Session::new(admin, "tom", PASSWORD).await;
    for change in [json!({ "roles": [ADMIN] }), json!({ "password": "another one", "roles": [ADMIN] })] {
        let _ = tom.call("PATCH", "/users/me", Some(&tom.word), &change).await.problem(403, "FORBIDDEN");
    }
    let change = json!({ "password": "another one" });
    let _ = tom.call("PATCH", "/users/sam", Some(&tom.word), &change).await.problem(403, "FORBIDDEN");
    let _ = tom.call("PATCH", "/users/me", Some(&tom.word), &change).await.expect(200);
    assert_eq!((tom.status().await, second.status().await), (401, 401));
    let _ = sign_in(admin, "tom", PASSWORD).await.problem(401, "UNAUTHENTICATED");
    // When somebody leaves, too.
    let tom = Session::new(admin, "tom", "another one").await;
    let _ = admin.patch("/users/tom", &json!({ "active": false })).await.expect(200);
    assert_eq!(tom.status().await, 401);
    let _ = sign_in(admin, "tom", "another one").await.problem(401, "UNAUTHENTICATED");
    let _ = admin.patch("/users/tom", &json!({ "active": true })).await.expect(200);
    assert_eq!(tom.status().await, 401, "what has ended does not begin again");
}

#[tokio::test]
async fn who_asks_too_often_is_told_when_to_come_back() {
    let config = "[limit]\nrequests_per_minute = 5\nsign_ins_per_minute = 3\n";
    let house = House::embedded_with(env!("CARGO_BIN_EXE_ade"), config);
    let office = house.office().await;
    let pat = office.person("pat", &[AUTHOR]).await;
    let rex = office.person("rex", &[REVIEWER]).await;
    let told = |answer: &Answer, most: &str| {
        let problem = answer.problem(429, "RATE_LIMITED");
        let after: u64 = answer.header("retry-after").parse().expect("seconds");
        assert!((1..=60).contains(&after) && problem["retry_after"] == after, "{problem}");
        assert_eq!((answer.header("ratelimit-limit"), answer.header("ratelimit-remaining")), (most, "0"));
        assert_eq!(answer.header("ratelimit-reset"), answer.header("retry-after"));
        assert_eq!(answer.header("ratelimit-policy"), format!("{most};w=60"));
    };
    for n in 0..7 {
        let answer = pat.get("/tasks").await;
        if n < 5 { drop(answer.expect(200)) } else { told(&answer, "5") }
    }
    // Others, other endpoints, and the bootstrap token are counted by themselves, or not at all.
    let _ = rex.get("/tasks").await.expect(200);
    let _ = pat.get("/policies").await.expect(200);
    for _ in 0..10 {
        let _ = office.admin.get("/tasks").await.expect(200);
    }
    // Another token of the same person is the same person.
    let again = office.with_scopes("pat", &[Scope::Read]).await;
    told(&again.get("/tasks").await, "5");
    // Tries to sign in, right or wrong, whether there is somebody by that name or not.
    for name in ["pat", "nobody"] {
        for n in 0..4 {
            let answer = sign_in(&office.admin, name, "wrong password").await;
            if n < 3 { drop(answer.problem(401, "UNAUTHENTICATED")) } else { told(&answer, "3") }
        }
    }
    // And by one address, however many names it tries: 15, of which 8 are counted.
    for n in 8..17 {
        let answer = sign_in(&office.admin, &format!("name-{n}"), "wrong password").await;
        if n < 15 { drop(answer.problem(401, "UNAUTHENTICATED")) } else { told(&answer, "15") }
    }
}

/// Every byte below a folder.
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
async fn secrets_are_nowhere_to_be_read() {
    let house = house();
    let office = house.office().await;
    let admin = &office.admin;
    let mut said = String::new();
    let user = json!({ "user_id": "sam", "roles": [AUTHOR], "password": PASSWORD }).to_string();
    let key = [("idempotency-key", "k-1")];
    for _ in 0..2 {
        said.push_str(&admin.call_with("POST", "/users", &key, &user).await.text());
    }
    let sam = Session::new(admin, "sam", PASSWORD).await;
    let made =
        sam.call("POST", "/users/me/tokens", Some(&sam.word), &json!({ "name": "t" })).await.expect(201);
    let token = text(&made, "token");
    // Where people put it by mistake.
    for body in [
        json!({ "user_id": "sam", "password": format!("{PASSWORD}!") }),
        json!({ "user_id": PASSWORD, "password": "sam" }),
        json!({ "user_id": "sam", "pass": PASSWORD }),
        json!({ "user_id": "sam", "password": { "is": PASSWORD } }),
        json!({ "user_id": "sam", "password": [PASSWORD] }),
    ] {
        said.push_str(&admin.send("POST", "/api/v1/sessions", &[], body.to_string()).await.text());
    }
    let change = json!({ "password": format!("{PASSWORD} again") });
    said.push_str(&admin.patch("/users/sam", &change).await.text());
    said.push_str(&admin.patch("/users/sam", &json!({ "password": "short", "name": "Sam" })).await.text());
    for (method, path, _) in admin.operations() {
        if method == "GET" {
            said.push_str(&admin.get(&fill(&path, "sam")).await.text());
        }
    }
    let log = house.ade().process().lines_with("").join("\n");
    assert!(log.contains("listening on"), "{log}");
    house.ade().stop().expect("stops");
    let mut kept = Vec::new();
    bytes_below(&house.ade().data(), &mut kept);
    let kept = String::from_utf8_lossy(&kept);
    assert!(kept.contains("sam") && kept.contains("$argon2id$"), "the record was read");
    let session = sam.cookie.split_once('=').expect("a pair").1;
    for (name, secret) in
        [("password", PASSWORD), ("token", &token), ("session", session), ("word", &sam.word)]
    {
        assert!(secret.len() > 20);
        assert!(!said.contains(secret), "the {name} is in an answer");
        assert!(!log.contains(secret), "the {name} is in the log");
        assert!(!kept.contains(secret), "the {name} is in the data folder");
    }
    assert!(!said.contains("argon2"), "nor is what is made of it told");
}
