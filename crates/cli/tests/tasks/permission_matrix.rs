//! Who may do what, through HTTP: every cell of the matrix, every scope of a token, every route without a valid token, and
//! who sees a task.
//!
//! The part `system` is the service itself, which nobody calls as. A user with the role `system` stands for it here: what the
//! matrix gives it, giving up and looking, it may do to tasks whose authors it belongs to, and nothing else.

use std::time::Duration;

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER, SYSTEM};
use ade_domain::permission::{ACTOR_ROLES, ActorRole, MATRIX, Permission, Scope};
use ade_testkit::api::{Answer, fill};
use ade_testkit::people::text;
use ade_testkit::wait::until;
use ade_testkit::{House, Office, Person};
use serde_json::{Value, json};

/// No task, no request, no policy.
const NOTHING: &str = "00000000-0000-7000-8000-000000000000";

const fn role(part: ActorRole) -> &'static str {
    match part {
        ActorRole::Author => AUTHOR,
        ActorRole::Reviewer => REVIEWER,
        ActorRole::Admin => ADMIN,
        ActorRole::System => SYSTEM,
    }
}

/// The scope that an act needs of a token.
const fn scope(act: Permission) -> Scope {
    match act {
        Permission::CreateTask | Permission::Submit | Permission::Cancel => Scope::Propose,
        Permission::Decide | Permission::ForceApply | Permission::Override => Scope::Decide,
        Permission::ViewAudit => Scope::Read,
    }
}

/// What a task lists of an act.
const fn verb(act: Permission) -> Option<&'static str> {
    match act {
        Permission::Submit => Some("submit"),
        Permission::Decide => Some("approve"),
        Permission::ForceApply => Some("force_apply"),
        Permission::Cancel => Some("cancel"),
        Permission::Override => Some("override"),
        Permission::CreateTask | Permission::ViewAudit => None,
    }
}

struct Stage {
    _house: House,
    office: Office,
    /// Proposes.
    pat: Person,
    /// Reviews.
    rex: Person,
}

impl Stage {
    async fn new() -> Self {
        let house = House::embedded(env!("CARGO_BIN_EXE_ade"));
        let office = house.office().await;
        let (pat, rex) = (office.person("pat", &[AUTHOR]).await, office.person("rex", &[REVIEWER]).await);
        Self { _house: house, office, pat, rex }
    }

    /// Something to which an act can be done, with somebody among its authors.
    async fn prepared(&self, act: Permission, sponsor: Option<&str>) -> String {
        let more = json!({ "lineage": { "sponsor_id": sponsor } });
        match act {
            Permission::CreateTask | Permission::Submit => self.pat.draft(more).await,
            Permission::Decide | Permission::Cancel | Permission::Override | Permission::ViewAudit => {
                self.pat.submitted(more).await
            }
            Permission::ForceApply => {
                let id = self.pat.submitted(more).await;
                let request = self.office.request(&id, "rex").await;
                let _ = self.rex.answers(&request, "approve").await.expect(200);
                id
            }
        }
    }

    /// Somebody does it, to that.
    async fn done(&self, act: Permission, task: &str, by: &Person) -> Answer {
        let on = |verb: &str| format!("/tasks/{task}/{verb}");
        let why = json!({ "reason": "because" });
        match act {
            Permission::CreateTask => by.post("/tasks", &ade_testkit::people::task(json!({}))).await,
            Permission::Submit => by.post(&on("submit"), &json!({})).await,
            Permission::Decide => {
                let all = self.office.requests(task).await;
                // One's own, if one is asked.
                let own = all.iter().find(|one| text(one, "reviewer_id") == by.id).or_else(|| all.first());
                by.answers(&text(own.expect("somebody is asked"), "approval_id"), "approve").await
            }
            Permission::ForceApply => by.post(&on("force-apply"), &why).await,
            Permission::Cancel => by.post(&on("cancel"), &why).await,
            Permission::Override => {
                let body = json!({ "reason": "because", "incident_ticket": "INC-1" });
                by.post(&on("override"), &body).await
            }
            Permission::ViewAudit => by.get(&on("audit")).await,
        }
    }
}

#[tokio::test]
async fn every_cell_of_the_matrix_is_as_drawn() {
    let stage = Stage::new().await;
    for (act, permitted) in MATRIX {
        // Who gives up and submits belongs to the authors; who decides must not, and sees the task as auditor. Neither gives
        // any other right.
        let own = matches!(act, Permission::Submit | Permission::Cancel | Permission::ViewAudit);
        for part in ACTOR_ROLES {
            let id = format!("{act:?}-{part:?}");
            let roles = [role(part), "auditor"];
            let who = stage.office.person(&id, if own { &roles[..1] } else { &roles }).await;
            let task = stage.prepared(act, own.then_some(id.as_str())).await;
            let before = stage.office.task(&task).await;
            if let Some(verb) = verb(act) {
                let seen = who.get(&format!("/tasks/{task}")).await.expect(200);
                let told = seen["allowed"].as_array().is_some_and(|all| all.iter().any(|one| one == verb));
                assert_eq!(told, permitted.contains(&part), "{part:?} is told that it may {verb}: {seen}");
            }
            let answer = stage.done(act, &task, &who).await;
            if permitted.contains(&part) {
                assert!(answer.status < 300, "{part:?} may {act:?}: {}", answer.text());
            } else {
                let _ = answer.problem(403, "FORBIDDEN");
                assert_eq!(stage.office.task(&task).await, before, "{part:?} {act:?}");
            }
            // Nobody is asked about the next one but who is meant to be.
            let _ = stage
                .office
                .admin
                .patch(&format!("/users/{id}"), &json!({ "active": false }))
                .await
                .expect(200);
        }
    }
}

#[tokio::test]
async fn roles_add_up_and_nobody_without_one_does_anything() {
    let stage = Stage::new().await;
    let both = stage.office.person("both", &[AUTHOR, REVIEWER, "dba"]).await;
    let none = stage.office.person("none", &[]).await;
    // As author, and as reviewer of another's, and never of its own.
    let own = both.submitted(json!({})).await;
    let asked: Vec<String> =
        stage.office.requests(&own).await.iter().map(|one| text(one, "reviewer_id")).collect();
    assert_eq!(asked, ["rex"]);
    let _ = stage.done(Permission::Decide, &own, &both).await.problem(403, "OWN_TASK");
    let other = stage.prepared(Permission::Decide, None).await;
    let _ = stage.done(Permission::Decide, &other, &both).await.expect(200);
    // Nothing, also not to what it would see if it had a role.
    for (act, _) in MATRIX {
        let task = stage.prepared(act, None).await;
        let answer = stage.done(act, &task, &none).await;
        match act {
            Permission::CreateTask => drop(answer.problem(403, "FORBIDDEN")),
            _ => drop(answer.problem(
                404,
                if act == Permission::Decide { "APPROVAL_NOT_FOUND" } else { "TASK_NOT_FOUND" },
            )),
        }
    }
    for act in [Permission::Submit, Permission::Cancel] {
        let task = stage.prepared(act, Some("none")).await;
        let _ = stage.done(act, &task, &none).await.problem(403, "FORBIDDEN");
    }
    let seen = none.get("/audit").await.expect(200);
    assert_eq!(seen["items"], json!([]), "what it did, which is nothing");
    assert_eq!(
        none.get("/tasks").await.expect(200)["items"].as_array().map(Vec::len),
        Some(2),
        "it answers for two"
    );
}

#[tokio::test]
async fn a_token_is_good_for_its_scopes_and_nothing_else() {
    let stage = Stage::new().await;
    let _ = stage.office.person("ada", &[ADMIN]).await;
    for (act, _) in MATRIX {
        let task = stage.prepared(act, None).await;
        let before = stage.office.task(&task).await;
        let needed = scope(act);
        let others: Vec<Scope> = Scope::ALL.into_iter().filter(|one| *one != needed).collect();
        let mut lacking: Vec<Vec<Scope>> = others.iter().map(|one| vec![*one]).collect();
        lacking.push(others);
        for scopes in lacking {
            let who = stage.office.with_scopes("ada", &scopes).await;
            let refused = stage.done(act, &task, &who).await.problem(403, "SCOPE_MISSING");
            assert_eq!(refused["scope"], needed.word(), "{act:?} with {scopes:?}");
        }
        // What one does as administrator to another's task needs the scope of administrators as well.
        if !matches!(act, Permission::CreateTask | Permission::ViewAudit) {
            let who = stage.office.with_scopes("ada", &[needed]).await;
            let answer = stage.done(act, &task, &who).await;
            assert!(matches!(answer.status, 403 | 404), "{act:?} with {needed:?}: {}", answer.text());
        }
        assert_eq!(stage.office.task(&task).await, before, "{act:?}");
        let own = [needed, Scope::Admin];
        let who = stage.office.with_scopes("ada", &own).await;
        let answer = stage.done(act, &task, &who).await;
        assert!(answer.status < 300, "{act:?} with {own:?}: {}", answer.text());
    }
}

#[tokio::test]
async fn what_a_token_gives_is_never_more_than_what_it_has() {
    let stage = Stage::new().await;
    let ada = stage.office.person("ada", &[ADMIN]).await;
    let ask = |scopes: &[Scope], ttl: u64| json!({ "name": "more", "scopes": scopes, "ttl_seconds": ttl });
    for has in Scope::ALL {
        let who = stage.office.with_scopes("ada", &[has]).await;
        for wants in Scope::ALL {
            let answer = who.post("/users/me/tokens", &ask(&[wants], 60)).await;
            match (has == wants, wants) {
                // They are given to whoever has signed in: a token does not make the next one.
                (_, Scope::Decide | Scope::Admin) => drop(answer.problem(403, "FORBIDDEN")),
                (true, _) => drop(answer.expect(201)),
                (false, _) => drop(answer.problem(403, "SCOPE_MISSING")),
            }
        }
    }
    // An administrator makes no token that decides or administers in another's name.
    for scope in [Scope::Decide, Scope::Admin] {
        let _ = ada.post("/users/rex/tokens", &ask(&[scope], 60)).await.problem(403, "FORBIDDEN");
    }
    let _ = ada.post("/users/rex/tokens", &ask(&[Scope::Read], 60)).await.expect(201);
    let _ = stage.pat.post("/users/rex/tokens", &ask(&[Scope::Read], 60)).await.problem(403, "FORBIDDEN");
    // The bootstrap token may, for 8 hours.
    let hours = 8 * 3_600;
    let admin = &stage.office.admin;
    let _ = admin.post("/users/rex/tokens", &ask(&[Scope::Decide], hours)).await.expect(201);
    let refused = admin.post("/users/rex/tokens", &ask(&[Scope::Decide], hours + 1)).await;
    let _ = refused.problem(422, "INVALID_REQUEST");
    // It decides nothing itself.
    let task = stage.prepared(Permission::Decide, None).await;
    let request = stage.office.request(&task, "rex").await;
    let answer = admin.post(&format!("/approvals/{request}/approve"), &json!({})).await;
    let _ = answer.problem(403, "SCOPE_MISSING");
}

#[tokio::test]
async fn an_agent_proposes_for_its_sponsor_and_decides_nothing() {
    let stage = Stage::new().await;
    let boss = stage.office.person("boss", &[AUTHOR, REVIEWER, ADMIN]).await;
    let bot = stage.office.agent("bot", &boss).await;
    for scope in [Scope::Decide, Scope::Admin] {
        let body = json!({ "name": "more", "scopes": [scope] });
        let _ = boss.post("/agents/bot/tokens", &body).await.problem(422, "INVALID_REQUEST");
    }
    let _ = bot.post("/agents/bot/tokens", &json!({ "name": "more" })).await.problem(403, "FORBIDDEN");
    let _ = bot.post("/users/boss/tokens", &json!({ "name": "more" })).await.problem(403, "SCOPE_MISSING");
    let own = bot.submitted(json!({ "lineage": { "sponsor_id": "rex", "agent_id": "other" } })).await;
    let task = stage.office.task(&own).await;
    let lineage = &task["metadata"]["lineage"];
    assert_eq!(
        (&lineage["agent_id"], &lineage["sponsor_id"]),
        (&json!("bot"), &json!("boss")),
        "it does not pass as another"
    );
    assert_eq!(task["metadata"]["author_id"], "boss");
    let _ = stage.done(Permission::Decide, &own, &boss).await.problem(403, "OWN_TASK");
    let _ = stage.done(Permission::Cancel, &own, &bot).await.expect(200);
    // Not by its sponsor's other roles: it sees and changes what it would as author alone.
    let foreign = stage.prepared(Permission::ForceApply, None).await;
    let _ = stage.done(Permission::Cancel, &foreign, &bot).await.problem(403, "FORBIDDEN");
    for act in [Permission::Decide, Permission::ForceApply, Permission::Override] {
        let task = stage.prepared(act, None).await;
        let before = stage.office.task(&task).await;
        let _ = stage.done(act, &task, &bot).await.problem(403, "SCOPE_MISSING");
        assert_eq!(stage.office.task(&task).await, before);
    }
    let _ = bot.post("/users", &json!({ "user_id": "new" })).await.problem(403, "SCOPE_MISSING");
    let _ = bot.get("/audit?actor=pat").await.problem(403, "FORBIDDEN");
}

#[tokio::test]
async fn an_auditor_sees_everything_and_changes_nothing() {
    let stage = Stage::new().await;
    let (office, admin) = (&stage.office, &stage.office.admin);
    let auditor = office.person("ann", &["auditor"]).await;
    let task = stage.prepared(Permission::Decide, None).await;
    let _ = stage.pat.post(&format!("/tasks/{task}/comments"), &json!({ "text": "look" })).await.expect(201);
    let request = office.request(&task, "rex").await;
    let policy = text(&admin.post("/policies", &json!({ "name": "p" })).await.expect(201), "policy_id");
    let delegation = json!({ "delegate_to": "pat", "active": false });
    let delegation = text(&stage.rex.post("/delegations", &delegation).await.expect(201), "delegation_id");
    let _ = admin.post("/resources", &json!({ "pattern": "db:*", "criticality": 9 })).await.expect(201);
    let token = text(&admin.post("/users/rex/tokens", &json!({ "name": "t" })).await.expect(201), "token_id");
    let id = |path: &str| match path.split('/').nth(1).unwrap_or_default() {
        "tasks" => task.clone(),
        "approvals" => request.clone(),
        "policies" => policy.clone(),
        "delegations" => delegation.clone(),
        "resources" => "db:*".to_owned(),
        "users" | "stats" => "rex".to_owned(),
        "config" => "approval:validity".to_owned(),
        "features" => "batch_approvals".to_owned(),
        _ => NOTHING.to_owned(),
    };
    let before = office.task(&task).await;
    let mut seen = 0;
    for (method, path, _) in admin.operations() {
        let noun = path.split('/').nth(1).unwrap_or_default();
        // Locks and agents are no matter of reviews; a session is one's own.
        if matches!(noun, "locks" | "agents" | "sessions") {
            continue;
        }
        let place = fill(&path.replace("{token_id}", &token), &id(&path));
        if method == "GET" {
            let answer = auditor.get(&place).await;
            let only_admin = path == "/users/{id}/tokens";
            let status = match path.as_str() {
                _ if only_admin => 403,
                // Nobody began to carry it out.
                "/tasks/{id}/execution" => 404,
                _ => 200,
            };
            assert_eq!(answer.status, status, "{path}: {}", answer.text());
            seen += 1;
            continue;
        }
        let body = match path.as_str() {
            "/tasks" => ade_testkit::people::task(json!({})),
            "/tasks/{id}/comments" => json!({ "text": "me too" }),
            "/approvals/batch" => json!({ "approval_ids": [request], "action": "approve" }),
            "/approvals/{id}/delegate" => json!({ "to": "pat" }),
            "/users" => json!({ "user_id": "new" }),
            "/users/{id}/tokens" => json!({ "name": "new" }),
            "/delegations" => json!({ "owner_id": "rex", "delegate_to": "pat" }),
            "/resources" => json!({ "pattern": "x", "criticality": 1 }),
            "/config/{name}" => json!({ "value": 5 }),
            "/features/{flag}" => json!({ "enabled": false }),
            "/simulations" => json!({ "task_id": task }),
            "/tasks/{id}/heartbeat" => json!({ "attempt": 1 }),
            "/tasks/{id}/logs" => json!({ "attempt": 1, "text": "me too" }),
            "/tasks/{id}/complete" => json!({ "attempt": 1, "result": "success" }),
            _ => json!({}),
        };
        let answer = auditor.call(&method, &place, &body.to_string()).await;
        // What is only imagined changes nothing.
        let imagined = matches!(path.as_str(), "/simulations" | "/policies/{id}/replay");
        if path == "/tasks/claim" {
            assert_eq!(answer.status, 204, "there is no work for it: {}", answer.text());
            continue;
        }
        // Nobody carries the task out.
        let refused = answer.status == 403
            || (answer.status == 409 && answer.code() == "NOT_PRESENT")
            || (path == "/approvals/batch" && answer.json()["items"][0]["code"] == "FORBIDDEN");
        assert!(if imagined { answer.status == 200 } else { refused }, "{method} {path}: {}", answer.text());
    }
    assert!(seen > 25, "{seen}");
    assert_eq!(office.task(&task).await, before);
    let comments = admin.get(&format!("/tasks/{task}/comments")).await.expect(200);
    assert_eq!(comments["items"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn a_task_is_seen_by_its_authors_its_reviewers_administrators_and_auditors() {
    let stage = Stage::new().await;
    let office = &stage.office;
    office.policy(json!({ "name": "rex alone", "reviewers": ["rex"] })).await;
    let sees = [
        office.person("sponsor", &[]).await,
        office.person("ada", &[ADMIN]).await,
        office.person("ann", &["auditor"]).await,
        stage.pat.clone(),
        stage.rex.clone(),
        office.agent("bot", &stage.pat).await,
    ];
    let other = office.person("other", &[AUTHOR, REVIEWER, SYSTEM, "dba"]).await;
    let blind = [office.agent("spy", &other).await, office.person("nobody", &[]).await, other];
    let task = stage.prepared(Permission::Decide, Some("sponsor")).await;
    let _ = stage.pat.post(&format!("/tasks/{task}/comments"), &json!({ "text": "look" })).await.expect(201);
    let request = office.request(&task, "rex").await;
    let mut routes = vec![format!("/audit?task={task}"), format!("/audit/export?task={task}")];
    for (method, path, _) in office.admin.operations() {
        match path.split('/').nth(1) {
            Some("tasks") if method == "GET" && path.contains('{') => routes.push(fill(&path, &task)),
            Some("approvals") if method == "GET" && path.contains('{') => routes.push(fill(&path, &request)),
            _ => {}
        }
    }
    assert!(routes.len() >= 10, "{routes:?}");
    for route in &routes {
        for who in &sees {
            let answer = who.get(route).await;
            if route.ends_with("/execution") {
                let _ = answer.problem(404, "NOT_EXECUTED");
            } else {
                let _ = answer.expect(200);
            }
        }
        for who in &blind {
            let answer = who.get(route).await;
            assert_eq!(answer.status, 404, "{} {route}: {}", who.id, answer.text());
            assert_ne!(answer.code(), "NOT_EXECUTED", "{} {route}", who.id);
        }
    }
    let listed = |found: Value| found["items"].as_array().map(Vec::len);
    for who in &sees {
        assert_eq!(listed(who.get("/tasks").await.expect(200)), Some(1), "{}", who.id);
    }
    for who in &blind {
        assert_eq!(listed(who.get("/tasks").await.expect(200)), Some(0), "{}", who.id);
        assert_eq!(listed(who.get("/approvals").await.expect(200)), Some(0), "{}", who.id);
        for whose in ["rex", "*"] {
            let _ = who.get(&format!("/approvals?reviewer={whose}")).await.problem(403, "FORBIDDEN");
        }
        let body = json!({ "text": "I was here" });
        let _ = who.post(&format!("/tasks/{task}/comments"), &body).await.problem(404, "TASK_NOT_FOUND");
        let _ = who.post("/simulations", &json!({ "task_id": task })).await.problem(404, "TASK_NOT_FOUND");
    }
}

#[tokio::test]
async fn every_route_refuses_whoever_has_no_valid_token() {
    let stage = Stage::new().await;
    let (office, admin) = (&stage.office, &stage.office.admin);
    let short = json!({ "name": "short", "ttl_seconds": 1 });
    let expired = text(&admin.post("/users/pat/tokens", &short).await.expect(201), "token");
    let short = json!({ "name": "revoked" });
    let made = admin.post("/users/pat/tokens", &short).await.expect(201);
    let place = format!("/users/pat/tokens/{}", text(&made, "token_id"));
    assert_eq!(admin.delete(&place).await.status, 204);
    let gone = office.person("gone", &[ADMIN, AUTHOR]).await;
    let bot = office.agent("bot", &gone).await;
    let forgotten = office.agent("forgotten", &stage.pat).await;
    assert_eq!(admin.delete("/agents/forgotten").await.status, 204);
    let _ = admin.patch("/users/gone", &json!({ "active": false })).await.expect(200);
    // Whoever comes back has none of its old tokens.
    let back = office.person("back", &[ADMIN]).await;
    for active in [false, true] {
        let _ = admin.patch("/users/back", &json!({ "active": active })).await.expect(200);
    }
    let look = || async {
        let answer = admin.acting_with(&expired).get("/sessions/current").await;
        if answer.status == 401 { Ok(()) } else { Err(answer.text()) }
    };
    until("the token expires", Duration::from_secs(60), look).await.expect("expires");
    let all = [
        text(&made, "token"),
        expired,
        gone.token.clone(),
        bot.token.clone(),
        forgotten.token.clone(),
        back.token.clone(),
        "ade_nothing".to_owned(),
    ];
    let mut headers: Vec<(&str, String)> =
        all.iter().map(|token| ("authorization", format!("Bearer {token}"))).collect();
    headers.push(("cookie", "ade_session=ades_nothing".to_owned()));
    headers.push(("x-nothing", String::new()));
    let operations = admin.operations();
    assert!(operations.len() > 70, "{}", operations.len());
    let before = admin.get("/stats/overview").await.expect(200);
    for (method, path, _) in operations {
        // Whoever signs in has nothing yet.
        if (method.as_str(), path.as_str()) == ("POST", "/sessions") {
            continue;
        }
        let place = format!("/api/v1{}", fill(&path, NOTHING));
        for (name, value) in &headers {
            let _ =
                admin.send(&method, &place, &[(*name, value)], "{}").await.problem(401, "UNAUTHENTICATED");
        }
    }
    assert_eq!(admin.get("/stats/overview").await.expect(200)["tasks"], before["tasks"]);
}
