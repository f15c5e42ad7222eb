//! Permissions over HTTP: every cell of the permission matrix, every token scope, every route without a valid token, and the
//! visibility of tasks.
//!
//! The role `system` belongs to the service itself. Here a user with that role represents it: it can cancel and view tasks of
//! which it is an author, and nothing else.

use std::time::Duration;

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER, SYSTEM};
use ade_domain::permission::{ACTOR_ROLES, ActorRole, PERMISSION_MATRIX, Permission, Scope};
use ade_testkit::api::{ApiResponse, fill_path};
use ade_testkit::deployment::text_field;
use ade_testkit::wait::until;
use ade_testkit::{AdminClient, Deployment, TestUser};
use serde_json::{Value, json};

use crate::tasks::UNKNOWN_ID;

const fn role_name(role: ActorRole) -> &'static str {
    match role {
        ActorRole::Author => AUTHOR,
        ActorRole::Reviewer => REVIEWER,
        ActorRole::Admin => ADMIN,
        ActorRole::System => SYSTEM,
    }
}

/// The token scope that a permission needs.
const fn scope(permission: Permission) -> Scope {
    match permission {
        Permission::CreateTask | Permission::Submit | Permission::Cancel => Scope::Propose,
        Permission::Decide | Permission::ForceApply | Permission::Override => Scope::Decide,
        Permission::ViewAudit => Scope::Read,
    }
}

/// The name of a permission in the `allowed` list of a task.
const fn allowed_action(permission: Permission) -> Option<&'static str> {
    match permission {
        Permission::Submit => Some("submit"),
        Permission::Decide => Some("approve"),
        Permission::ForceApply => Some("force_apply"),
        Permission::Cancel => Some("cancel"),
        Permission::Override => Some("override"),
        Permission::CreateTask | Permission::ViewAudit => None,
    }
}

struct Fixture {
    _deployment: Deployment,
    org: AdminClient,
    /// An author.
    pat: TestUser,
    /// A reviewer.
    rex: TestUser,
}

impl Fixture {
    async fn new() -> Self {
        let config = "[webhooks]\nallowed_private_hosts = [\"127.0.0.1:9\"]\n";
        let deployment = Deployment::embedded_with_config(env!("CARGO_BIN_EXE_ade"), config);
        let org = deployment.admin().await;
        let (pat, rex) = (org.create_user("pat", &[AUTHOR]).await, org.create_user("rex", &[REVIEWER]).await);
        Self { _deployment: deployment, org, pat, rex }
    }

    /// A task of pat in a state in which the permission applies.
    async fn task_for(&self, permission: Permission) -> String {
        self.task_of(&self.pat, permission).await
    }

    /// The same of another author.
    async fn task_of(&self, author: &TestUser, permission: Permission) -> String {
        match permission {
            Permission::CreateTask | Permission::Submit => author.create_draft(json!({})).await,
            Permission::Decide | Permission::Cancel | Permission::Override | Permission::ViewAudit => {
                author.create_submitted(json!({})).await
            }
            Permission::ForceApply => {
                let id = author.create_submitted(json!({})).await;
                let request = self.org.approval_id(&id, "rex").await;
                let _ = self.rex.decide(&request, "approve").await.expect_status(200);
                id
            }
        }
    }

    /// A task of a user who has these roles afterwards.
    async fn task_of_former_author(
        &self,
        author: &TestUser,
        permission: Permission,
        roles: &[&str],
    ) -> String {
        let path = format!("/users/{}", author.id);
        let change = async |roles: &[&str]| {
            let _ = self.org.api.patch(&path, &json!({ "roles": roles })).await.expect_status(200);
        };
        change(&[AUTHOR]).await;
        let task = self.task_of(author, permission).await;
        change(roles).await;
        task
    }

    /// Sends the request that uses the permission.
    async fn attempt(&self, permission: Permission, task: &str, by: &TestUser) -> ApiResponse {
        let path = |action: &str| format!("/tasks/{task}/{action}");
        let reason = json!({ "reason": "because" });
        match permission {
            Permission::CreateTask => by.post("/tasks", &ade_testkit::deployment::task(json!({}))).await,
            Permission::Submit => by.post(&path("submit"), &json!({})).await,
            Permission::Decide => {
                let all = self.org.approvals(task).await;
                // The caller's own request, if there is one.
                let request =
                    all.iter().find(|item| text_field(item, "reviewer_id") == by.id).or_else(|| all.first());
                by.decide(&text_field(request.expect("a request"), "approval_id"), "approve").await
            }
            Permission::ForceApply => by.post(&path("force-apply"), &reason).await,
            Permission::Cancel => by.post(&path("cancel"), &reason).await,
            Permission::Override => {
                let body = json!({ "reason": "because", "incident_ticket": "INC-1" });
                by.post(&path("override"), &body).await
            }
            Permission::ViewAudit => by.get(&path("audit")).await,
        }
    }
}

#[tokio::test]
async fn enforces_every_cell_of_permission_matrix() {
    let fixture = Fixture::new().await;
    for (permission, permitted) in PERMISSION_MATRIX {
        // Authors submit and cancel; deciders must not be authors and see the task as auditors. Neither adds other
        // permissions.
        let is_author = matches!(permission, Permission::Submit | Permission::Cancel | Permission::ViewAudit);
        // Nobody can be granted the role of the service itself.
        for role in ACTOR_ROLES.into_iter().filter(|role| *role != ActorRole::System) {
            let id = format!("{permission:?}-{role:?}");
            let roles = [role_name(role), "auditor"];
            let caller = fixture.org.create_user(&id, if is_author { &roles[..1] } else { &roles }).await;
            let task = if is_author {
                fixture.task_of_former_author(&caller, permission, &roles[..1]).await
            } else {
                fixture.task_for(permission).await
            };
            let before = fixture.org.task_request(&task).await;
            if let Some(action) = allowed_action(permission) {
                let seen = caller.get(&format!("/tasks/{task}")).await.expect_status(200);
                let is_listed =
                    seen["allowed"].as_array().is_some_and(|all| all.iter().any(|item| item == action));
                assert_eq!(
                    is_listed,
                    permitted.contains(&role),
                    "{role:?}: {action} in the allowed actions: {seen}"
                );
            }
            let response = fixture.attempt(permission, &task, &caller).await;
            if permitted.contains(&role) {
                assert!(response.status < 300, "{role:?} may {permission:?}: {}", response.text());
            } else {
                let _ = response.expect_problem(403, "FORBIDDEN");
                assert_eq!(fixture.org.task_request(&task).await, before, "{role:?} {permission:?}");
            }
            // The user must not become a reviewer of the next task.
            let _ = fixture
                .org
                .api
                .patch(&format!("/users/{id}"), &json!({ "active": false }))
                .await
                .expect_status(200);
        }
    }
}

#[tokio::test]
async fn roles_add_up_and_users_without_role_can_do_nothing() {
    let fixture = Fixture::new().await;
    let both = fixture.org.create_user("both", &[AUTHOR, REVIEWER, "dba"]).await;
    let none = fixture.org.create_user("none", &[]).await;
    // A user is an author and a reviewer, but never of the same task.
    let own = both.create_submitted(json!({})).await;
    let reviewers: Vec<String> =
        fixture.org.approvals(&own).await.iter().map(|item| text_field(item, "reviewer_id")).collect();
    assert_eq!(reviewers, ["rex"]);
    let _ = fixture.attempt(Permission::Decide, &own, &both).await.expect_problem(403, "OWN_TASK");
    let other = fixture.task_for(Permission::Decide).await;
    let _ = fixture.attempt(Permission::Decide, &other, &both).await.expect_status(200);
    // A user without a role.
    for (permission, _) in PERMISSION_MATRIX {
        let task = fixture.task_for(permission).await;
        let response = fixture.attempt(permission, &task, &none).await;
        match permission {
            Permission::CreateTask => drop(response.expect_problem(403, "FORBIDDEN")),
            _ => drop(response.expect_problem(
                404,
                if permission == Permission::Decide { "APPROVAL_NOT_FOUND" } else { "TASK_NOT_FOUND" },
            )),
        }
    }
    for permission in [Permission::Submit, Permission::Cancel] {
        let task = fixture.task_of_former_author(&none, permission, &[]).await;
        let _ = fixture.attempt(permission, &task, &none).await.expect_problem(403, "FORBIDDEN");
    }
    let seen = none.get("/audit").await.expect_status(200);
    let actors: Vec<&Value> =
        seen["items"].as_array().expect("a list").iter().map(|entry| &entry["who"]["user_id"]).collect();
    assert!(actors.iter().all(|actor| **actor == "none"), "only actions of this user: {actors:?}");
    assert_eq!(
        none.get("/tasks").await.expect_status(200)["items"].as_array().map(Vec::len),
        Some(2),
        "it is the author of two tasks"
    );
}

#[tokio::test]
async fn token_is_limited_to_its_scopes() {
    let fixture = Fixture::new().await;
    let _ = fixture.org.create_user("ada", &[ADMIN]).await;
    for (permission, _) in PERMISSION_MATRIX {
        let task = fixture.task_for(permission).await;
        let before = fixture.org.task_request(&task).await;
        let needed = scope(permission);
        let others: Vec<Scope> = Scope::ALL.into_iter().filter(|item| *item != needed).collect();
        let mut lacking: Vec<Vec<Scope>> = others.iter().map(|item| vec![*item]).collect();
        lacking.push(others);
        for scopes in lacking {
            let caller = fixture.org.issue_token("ada", &scopes).await;
            let refused =
                fixture.attempt(permission, &task, &caller).await.expect_problem(403, "SCOPE_MISSING");
            assert_eq!(refused["scope"], needed.as_str(), "{permission:?} with {scopes:?}");
        }
        // An administrator needs the admin scope, too, for tasks of others.
        if !matches!(permission, Permission::CreateTask | Permission::ViewAudit) {
            let caller = fixture.org.issue_token("ada", &[needed]).await;
            let response = fixture.attempt(permission, &task, &caller).await;
            assert!(
                matches!(response.status, 403 | 404),
                "{permission:?} with {needed:?}: {}",
                response.text()
            );
        }
        assert_eq!(fixture.org.task_request(&task).await, before, "{permission:?}");
        let own = [needed, Scope::Admin];
        let caller = fixture.org.issue_token("ada", &own).await;
        let response = fixture.attempt(permission, &task, &caller).await;
        assert!(response.status < 300, "{permission:?} with {own:?}: {}", response.text());
    }
}

#[tokio::test]
async fn token_cannot_create_token_with_more_scopes() {
    let fixture = Fixture::new().await;
    let ada = fixture.org.create_user("ada", &[ADMIN]).await;
    let token_request =
        |scopes: &[Scope], ttl: u64| json!({ "name": "more", "scopes": scopes, "ttl_seconds": ttl });
    for has in Scope::ALL {
        let caller = fixture.org.issue_token("ada", &[has]).await;
        for wants in Scope::ALL {
            let response = caller.post("/users/me/tokens", &token_request(&[wants], 60)).await;
            match (has == wants, wants) {
                // Only a session can create these tokens.
                (_, Scope::Decide | Scope::Admin) => drop(response.expect_problem(403, "FORBIDDEN")),
                (true, _) => drop(response.expect_status(201)),
                (false, _) => drop(response.expect_problem(403, "SCOPE_MISSING")),
            }
        }
    }
    // An administrator cannot create tokens with these scopes for other users.
    for scope in [Scope::Decide, Scope::Admin] {
        let _ = ada
            .post("/users/rex/tokens", &token_request(&[scope], 60))
            .await
            .expect_problem(403, "FORBIDDEN");
    }
    let _ = ada.post("/users/rex/tokens", &token_request(&[Scope::Read], 60)).await.expect_status(201);
    let _ = fixture
        .pat
        .post("/users/rex/tokens", &token_request(&[Scope::Read], 60))
        .await
        .expect_problem(403, "FORBIDDEN");
    // The bootstrap token can, for at most 8 hours.
    let hours = 8 * 3_600;
    let admin = &fixture.org.api;
    let _ = admin.post("/users/rex/tokens", &token_request(&[Scope::Decide], hours)).await.expect_status(201);
    let refused = admin.post("/users/rex/tokens", &token_request(&[Scope::Decide], hours + 1)).await;
    let _ = refused.expect_problem(422, "INVALID_REQUEST");
    // The bootstrap token itself cannot decide.
    let task = fixture.task_for(Permission::Decide).await;
    let request = fixture.org.approval_id(&task, "rex").await;
    let response = admin.post(&format!("/approvals/{request}/approve"), &json!({})).await;
    let _ = response.expect_problem(403, "SCOPE_MISSING");
}

#[tokio::test]
async fn agent_proposes_for_sponsor_and_cannot_decide() {
    let fixture = Fixture::new().await;
    let boss = fixture.org.create_user("boss", &[AUTHOR, REVIEWER, ADMIN]).await;
    let bot = fixture.org.create_agent("bot", &boss).await;
    for scope in [Scope::Decide, Scope::Admin] {
        let body = json!({ "name": "more", "scopes": [scope] });
        let _ = boss.post("/agents/bot/tokens", &body).await.expect_problem(422, "INVALID_REQUEST");
    }
    let _ = bot.post("/agents/bot/tokens", &json!({ "name": "more" })).await.expect_problem(403, "FORBIDDEN");
    let _ =
        bot.post("/users/boss/tokens", &json!({ "name": "more" })).await.expect_problem(403, "SCOPE_MISSING");
    for lineage in
        [json!({ "sponsor_id": "rex" }), json!({ "agent_id": "other" }), json!({ "parent_agent_id": "x" })]
    {
        let refused = bot.post("/tasks", &ade_testkit::deployment::task(json!({ "lineage": lineage }))).await;
        let _ = refused.expect_problem(422, "INVALID_REQUEST");
    }
    let own = bot.create_submitted(json!({})).await;
    let task = fixture.org.task_request(&own).await;
    let lineage = &task["metadata"]["lineage"];
    assert_eq!(
        (&lineage["agent_id"], &lineage["sponsor_id"]),
        (&json!("bot"), &json!("boss")),
        "an agent has no other identity"
    );
    assert_eq!(task["metadata"]["author_id"], "boss");
    let _ = fixture.attempt(Permission::Decide, &own, &boss).await.expect_problem(403, "OWN_TASK");
    let _ = fixture.attempt(Permission::Cancel, &own, &bot).await.expect_status(200);
    // An agent has only the author role of its sponsor.
    let foreign = fixture.task_for(Permission::ForceApply).await;
    let _ = fixture.attempt(Permission::Cancel, &foreign, &bot).await.expect_problem(404, "TASK_NOT_FOUND");
    for permission in [Permission::Decide, Permission::ForceApply, Permission::Override] {
        let task = fixture.task_for(permission).await;
        let before = fixture.org.task_request(&task).await;
        let _ = fixture.attempt(permission, &task, &bot).await.expect_problem(403, "SCOPE_MISSING");
        assert_eq!(fixture.org.task_request(&task).await, before);
    }
    let _ = bot.post("/users", &json!({ "user_id": "new" })).await.expect_problem(403, "SCOPE_MISSING");
    for query in ["?actor=pat", "?actor=boss", ""] {
        let _ = bot.get(&format!("/audit{query}")).await.expect_problem(403, "FORBIDDEN");
    }
}

#[tokio::test]
async fn auditor_reads_everything_and_changes_nothing() {
    let fixture = Fixture::new().await;
    let (org, admin) = (&fixture.org, &fixture.org.api);
    let auditor = org.create_user("ann", &["auditor"]).await;
    let task = fixture.task_for(Permission::Decide).await;
    let _ = fixture
        .pat
        .post(&format!("/tasks/{task}/comments"), &json!({ "text": "look" }))
        .await
        .expect_status(201);
    let request = org.approval_id(&task, "rex").await;
    let policy =
        text_field(&admin.post("/policies", &json!({ "name": "p" })).await.expect_status(201), "policy_id");
    let delegation = json!({ "delegate_to": "pat", "active": false });
    let delegation =
        text_field(&fixture.rex.post("/delegations", &delegation).await.expect_status(201), "delegation_id");
    let _ =
        admin.post("/resources", &json!({ "pattern": "db:*", "criticality": 9 })).await.expect_status(201);
    let token = text_field(
        &admin.post("/users/rex/tokens", &json!({ "name": "t" })).await.expect_status(201),
        "token_id",
    );
    let webhook = json!({ "name": "ci", "url": "http://127.0.0.1:9/", "events": ["archive:*"] });
    let webhook_id = text_field(&admin.post("/webhooks", &webhook).await.expect_status(201), "webhook_id");
    let test = format!("/webhooks/{webhook_id}/test");
    let delivery = text_field(&admin.post(&test, &json!({})).await.expect_status(202), "delivery_id");
    // What was sent is still tried while this test runs: only what people change is compared.
    let of_hooks = async || {
        let [webhooks, hooks] = ["/webhooks", "/hooks"].map(|path| admin.get(path));
        let deliveries = admin.get(&format!("/webhooks/{webhook_id}/deliveries")).await.expect_status(200);
        let count = deliveries["items"].as_array().map(Vec::len);
        (webhooks.await.expect_status(200), hooks.await.expect_status(200), count)
    };
    let template = json!({ "type": "deploy", "description": "Deploy" });
    let hook = json!({ "name": "deploys", "owner_id": "pat", "template": template });
    let hook_id = text_field(&admin.post("/hooks", &hook).await.expect_status(201), "hook_id");
    let hooks_before = of_hooks().await;
    let id = |path: &str| match path.split('/').nth(1).unwrap_or_default() {
        "webhooks" => webhook_id.clone(),
        "hooks" => hook_id.clone(),
        "tasks" => task.clone(),
        "approvals" => request.clone(),
        "policies" => policy.clone(),
        "delegations" => delegation.clone(),
        "resources" => "db:*".to_owned(),
        "users" | "stats" => "rex".to_owned(),
        "config" => "approval:validity".to_owned(),
        "features" => "batch_approvals".to_owned(),
        _ => UNKNOWN_ID.to_owned(),
    };
    let before = org.task_request(&task).await;
    let mut read = 0;
    for (method, path, _) in admin.operations() {
        let resource = path.split('/').nth(1).unwrap_or_default();
        // Locks and agents are tested elsewhere; a session belongs to its user, an invitation to who has the code.
        let is_tested_elsewhere =
            matches!(resource, "locks" | "agents" | "sessions" | "keys") || path.starts_with("/stats/agents");
        if is_tested_elsewhere || path == "/users/invitations/accept" {
            continue;
        }
        let target =
            fill_path(&path.replace("{token_id}", &token).replace("{delivery}", &delivery), &id(&path));
        if method == "GET" {
            let response = auditor.get(&target).await;
            let only_admin = matches!(path.as_str(), "/users/{id}/tokens" | "/projections/check");
            let status = match path.as_str() {
                _ if only_admin => 403,
                // The task was not applied, and no change waits.
                "/tasks/{id}/execution" | "/changes/{id}" => 404,
                // It is no WebSocket request.
                "/ws" => 426,
                _ => 200,
            };
            assert_eq!(response.status, status, "{path}: {}", response.text());
            read += 1;
            continue;
        }
        let body = match path.as_str() {
            "/tasks" => ade_testkit::deployment::task(json!({})),
            "/tasks/{id}/comments" => json!({ "text": "me too" }),
            "/approvals/batch" => json!({ "approval_ids": [request], "action": "approve" }),
            "/approvals/{id}/delegate" => json!({ "to": "pat" }),
            "/users" | "/users/invitations" => json!({ "user_id": "new" }),
            "/users/{id}/tokens" => json!({ "name": "new" }),
            "/delegations" => json!({ "owner_id": "rex", "delegate_to": "pat" }),
            "/resources" => json!({ "pattern": "x", "criticality": 1 }),
            "/config/{name}" => json!({ "value": 5 }),
            "/features/{flag}" => json!({ "enabled": false }),
            "/simulations" => json!({ "task_id": task }),
            "/webhooks" => webhook.clone(),
            "/hooks" => hook.clone(),
            "/webhooks/{id}" | "/hooks/{id}" if method == "PATCH" => json!({ "name": "other" }),
            "/tasks/{id}/heartbeat" => json!({ "attempt": 1 }),
            "/tasks/{id}/logs" => json!({ "attempt": 1, "text": "me too" }),
            "/tasks/{id}/complete" => json!({ "attempt": 1, "result": "success" }),
            _ => json!({}),
        };
        let response = auditor.request(&method, &target, &body.to_string()).await;
        // Simulations and replays change nothing.
        let is_simulation = matches!(path.as_str(), "/simulations" | "/policies/{id}/replay");
        if path == "/tasks/claim" {
            assert_eq!(response.status, 204, "no task to claim: {}", response.text());
            continue;
        }
        // Only a signature counts there.
        let is_signed = method == "POST" && matches!(path.as_str(), "/hooks/{id}" | "/hooks/slack/{id}");
        // NOT_PRESENT: the task is not being applied.
        let refused = response.status == if is_signed { 401 } else { 403 }
            || (response.status == 409 && response.code() == "NOT_PRESENT")
            || (path == "/approvals/batch" && response.json()["items"][0]["code"] == "FORBIDDEN");
        assert!(
            if is_simulation { response.status == 200 } else { refused },
            "{method} {path}: {}",
            response.text()
        );
    }
    assert!(read > 25, "{read}");
    assert_eq!(org.task_request(&task).await, before);
    assert_eq!(of_hooks().await, hooks_before);
    let comments = admin.get(&format!("/tasks/{task}/comments")).await.expect_status(200);
    assert_eq!(comments["items"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn task_is_visible_to_authors_reviewers_admins_and_auditors() {
    let fixture = Fixture::new().await;
    let org = &fixture.org;
    org.create_policy(json!({ "name": "rex alone", "reviewers": ["rex"] })).await;
    let visible_to = [
        org.create_user("ada", &[ADMIN]).await,
        org.create_user("ann", &["auditor"]).await,
        fixture.pat.clone(),
        fixture.rex.clone(),
        org.create_agent("bot", &fixture.pat).await,
    ];
    let other = org.create_user("other", &[AUTHOR, REVIEWER, "dba"]).await;
    let hidden_from = [org.create_agent("spy", &other).await, org.create_user("nobody", &[]).await, other];
    let task = fixture.task_for(Permission::Decide).await;
    let _ = fixture
        .pat
        .post(&format!("/tasks/{task}/comments"), &json!({ "text": "look" }))
        .await
        .expect_status(201);
    let request = org.approval_id(&task, "rex").await;
    let mut routes = vec![format!("/audit?task={task}"), format!("/audit/export?task={task}")];
    for (method, path, _) in org.api.operations() {
        match path.split('/').nth(1) {
            Some("tasks") if method == "GET" && path.contains('{') => routes.push(fill_path(&path, &task)),
            Some("approvals") if method == "GET" && path.contains('{') => {
                routes.push(fill_path(&path, &request));
            }
            _ => {}
        }
    }
    assert!(routes.len() >= 10, "{routes:?}");
    for route in &routes {
        for caller in &visible_to {
            let response = caller.get(route).await;
            if route.ends_with("/execution") {
                let _ = response.expect_problem(404, "NOT_EXECUTED");
            } else {
                let _ = response.expect_status(200);
            }
        }
        for caller in &hidden_from {
            let response = caller.get(route).await;
            assert_eq!(response.status, 404, "{} {route}: {}", caller.id, response.text());
            assert_ne!(response.code(), "NOT_EXECUTED", "{} {route}", caller.id);
        }
    }
    let listed = |found: Value| found["items"].as_array().map(Vec::len);
    for caller in &visible_to {
        assert_eq!(listed(caller.get("/tasks").await.expect_status(200)), Some(1), "{}", caller.id);
    }
    for caller in &hidden_from {
        assert_eq!(listed(caller.get("/tasks").await.expect_status(200)), Some(0), "{}", caller.id);
        assert_eq!(listed(caller.get("/approvals").await.expect_status(200)), Some(0), "{}", caller.id);
        for reviewer in ["rex", "*"] {
            let _ =
                caller.get(&format!("/approvals?reviewer={reviewer}")).await.expect_problem(403, "FORBIDDEN");
        }
        let body = json!({ "text": "I was here" });
        let _ = caller
            .post(&format!("/tasks/{task}/comments"), &body)
            .await
            .expect_problem(404, "TASK_NOT_FOUND");
        let _ = caller
            .post("/simulations", &json!({ "task_id": task }))
            .await
            .expect_problem(404, "TASK_NOT_FOUND");
    }
}

#[tokio::test]
async fn ended_tokens_are_rejected() {
    let fixture = Fixture::new().await;
    let (org, admin) = (&fixture.org, &fixture.org.api);
    let body = json!({ "name": "short", "ttl_seconds": 1 });
    let expired = text_field(&admin.post("/users/pat/tokens", &body).await.expect_status(201), "token");
    let body = json!({ "name": "revoked" });
    let revoked = admin.post("/users/pat/tokens", &body).await.expect_status(201);
    let path = format!("/users/pat/tokens/{}", text_field(&revoked, "token_id"));
    assert_eq!(admin.delete(&path).await.status, 204);
    let deactivated = org.create_user("gone", &[ADMIN, AUTHOR]).await;
    let bot = org.create_agent("bot", &deactivated).await;
    let removed_agent = org.create_agent("forgotten", &fixture.pat).await;
    assert_eq!(admin.delete("/agents/forgotten").await.status, 204);
    let _ = admin.patch("/users/gone", &json!({ "active": false })).await.expect_status(200);
    // Reactivating a user does not restore their tokens.
    let reactivated = org.create_user("back", &[ADMIN]).await;
    for active in [false, true] {
        let _ = admin.patch("/users/back", &json!({ "active": active })).await.expect_status(200);
    }
    let check = || async {
        let response = admin.with_token(&expired).get("/sessions/current").await;
        if response.status == 401 { Ok(()) } else { Err(response.text()) }
    };
    until("the token to expire", Duration::from_secs(60), check).await.expect("in time");
    let all = [
        text_field(&revoked, "token"),
        expired,
        deactivated.token.clone(),
        bot.token.clone(),
        removed_agent.token.clone(),
        reactivated.token.clone(),
        "ade_nothing".to_owned(),
    ];
    let mut headers: Vec<(&str, String)> =
        all.iter().map(|token| ("authorization", format!("Bearer {token}"))).collect();
    headers.push(("cookie", "ade_session=ades_nothing".to_owned()));
    headers.push(("x-nothing", String::new()));
    // Every route checks the token in the same way: the tests of routes send malformed ones to all.
    for (name, value) in &headers {
        let headers = [(*name, value.as_str())];
        let response = admin.send_raw("GET", "/api/v1/tasks", &headers, "").await;
        let _ = response.expect_problem(401, "UNAUTHENTICATED");
    }
}
