//! Random commands: mostly permitted, sometimes forbidden. Successful responses update the model.

use std::collections::BTreeSet;

use ade_domain::task::{TaskState, commands_for};
use ade_testkit::SeededRng;
use ade_testkit::api::encode_segment;
use serde_json::{Value, json};

use super::{ApiCall, ChangeAuthors, Model, ModelState, Token, items, text};

const TYPES: [&str; 3] = ["deploy", "migrate", "cleanup"];
const RESOURCES: [&str; 5] = ["users", "orders", "web", "prod-1", "prod-2"];
const ROLES: [&str; 4] = ["author", "reviewer", "dba", "auditor"];

fn pick<T: Clone>(rng: &mut SeededRng, from: &[T]) -> T {
    rng.pick(from).cloned().expect("not empty")
}

fn one_in(rng: &mut SeededRng, n: u64) -> bool {
    rng.below(n) == 0
}

/// Usually a token that fits, in one of five cases any token.
fn pick_token(state: &ModelState, rng: &mut SeededRng, fits: impl Fn(&Token) -> bool) -> Token {
    let candidates: Vec<&Token> = state.tokens.iter().filter(|token| fits(token)).collect();
    match rng.pick(&candidates) {
        Some(token) if !one_in(rng, 5) => (*token).clone(),
        _ => pick(rng, &state.tokens),
    }
}

fn pick_user(rng: &mut SeededRng) -> String {
    format!("u{}", rng.below(super::USERS))
}

/// One of the last tasks, in its present state.
async fn pick_task(model: &Model, rng: &mut SeededRng) -> Option<Value> {
    let id = {
        let state = model.state();
        let from = state.tasks.len().saturating_sub(25);
        rng.pick(&state.tasks[from..])?.clone()
    };
    let response = model.get(&format!("/tasks/{id}")).await;
    (response.status == 200).then(|| response.json())
}

fn if_match(rng: &mut SeededRng, current: &Value) -> Option<String> {
    match rng.below(12) {
        0 => Some("\"999999\"".to_owned()),
        1 => current["revision"].as_u64().map(|revision| format!("\"{revision}\"")),
        2 => Some("*".to_owned()),
        _ => None,
    }
}

fn proposal(rng: &mut SeededRng) -> Value {
    let mut body =
        json!({ "type": pick(rng, &TYPES), "description": format!("change {}", rng.below(1_000_000)) });
    let mut resources = Vec::new();
    for id in RESOURCES {
        if one_in(rng, 4) {
            resources.push(json!({ "type": "db", "id": id, "mode": pick(rng, &["exclusive", "shared"]) }));
        }
    }
    body["resources"] = json!(resources);
    body["priority"] = json!(rng.below(101));
    match rng.below(3) {
        0 => body["executor"] = json!("noop"),
        1 => {
            body["executor"] = json!("agent");
            let kind = |rng: &mut SeededRng| pick(rng, &["create", "update", "delete"]);
            let changes: Vec<Value> =
                (0..rng.below(6)).map(|n| json!({ "kind": kind(rng), "what": n.to_string() })).collect();
            body["preview"] = json!({ "changes": changes });
        }
        _ => body["executor"] = json!("agent"),
    }
    if one_in(rng, 5) {
        body["lineage"] = json!({ "sponsor_id": pick_user(rng) });
    }
    body
}

/// The authors of a change made with this token. Only its user can be named as sponsor.
fn change_authors(token: &Token, body: &Value) -> ChangeAuthors {
    let actors = [Some(token.user.clone()), token.creator.clone()].into_iter().flatten().collect();
    let sponsor = body["lineage"]["sponsor_id"].as_str();
    let sponsors = sponsor.map(|_| BTreeSet::from([token.user.clone()]));
    ChangeAuthors { actors, sponsors }
}

fn update_task(state: &mut ModelState, action: &str, by: &str, task: &Value) {
    let (id, revision) = (text(&task["task_id"]), task["revision"].as_u64().expect("a revision"));
    state.expect_entry(format!("{action} {id} r{revision} by {by}"));
    let digests = state.digests.entry(id).or_default();
    let digest = text(&task["digest"]);
    if !digests.contains(&digest) {
        digests.push(digest);
    }
    state.count_event(action);
}

async fn create(model: &Model, rng: &mut SeededRng) {
    let (token, body) = (pick_token(&model.state(), rng, |_| true), proposal(rng));
    let authors = change_authors(&token, &body);
    let by = token.user.clone();
    let call =
        ApiCall { token: Some(token), method: "POST", path: "/tasks".to_owned(), body, if_match: None };
    if let Some(created) = model.execute(rng, call).await {
        let mut state = model.state();
        update_task(&mut state, "task.create", &by, &created);
        state.authors.insert((text(&created["task_id"]), 1), authors);
        state.tasks.push(text(&created["task_id"]));
    }
}

async fn modify(model: &Model, rng: &mut SeededRng) {
    let Some(current) = pick_task(model, rng).await else { return };
    let author = text(&current["metadata"]["author_id"]);
    let token = pick_token(&model.state(), rng, |token| token.user == author);
    let mut body = proposal(rng);
    if one_in(rng, 3) {
        // A change of the tags alone.
        body = json!({ "tags": [format!("tag-{}", rng.below(5))] });
    }
    let (authors, by) = (change_authors(&token, &body), token.user.clone());
    let path = format!("/tasks/{}", text(&current["task_id"]));
    let call = ApiCall { token: Some(token), method: "PATCH", path, body, if_match: if_match(rng, &current) };
    if let Some(modified) = model.execute(rng, call).await {
        let mut state = model.state();
        update_task(&mut state, "task.modify", &by, &modified);
        let revision = modified["revision"].as_u64().expect("a revision");
        state.authors.insert((text(&modified["task_id"]), revision), authors);
    }
}

/// A command on a whole task, usually sent by an administrator or the author.
async fn change_state(model: &Model, rng: &mut SeededRng, route: &str, action: &str, by_admin: bool) {
    let Some(mut current) = pick_task(model, rng).await else { return };
    // Try a few tasks until one is in a state that allows the command.
    let command = action.trim_start_matches("task.");
    for _ in 0..4 {
        let state: TaskState = serde_json::from_value(current["state"].clone()).expect("a state");
        if commands_for(state).iter().any(|allowed| allowed.to_string() == command) {
            break;
        }
        match pick_task(model, rng).await {
            Some(other) => current = other,
            None => return,
        }
    }
    let author = text(&current["metadata"]["author_id"]);
    let token = {
        let state = model.state();
        pick_token(&state, rng, |token| {
            if by_admin {
                token.agent.is_none() && state.has_role(&token.user, "admin")
            } else {
                token.user == author
            }
        })
    };
    let (seen, scope_seen) = (&current["digest"], &current["scope_digest"]);
    let confirmation = json!({ "reason": "outage", "digest": seen, "scope_digest": scope_seen });
    let body = match route {
        "override/confirm" => confirmation.clone(),
        "override" => json!({ "reason": "outage", "incident_ticket": "INC-1" }),
        "cancel" | "revoke" | "force-apply" => json!({ "reason": "because" }),
        _ => Value::Null,
    };
    let (id, if_match) = (text(&current["task_id"]), if_match(rng, &current));
    let first = token.user.clone();
    post_to_task(model, rng, &id, (route, action), token, body, if_match).await;
    if route == "override" {
        // Usually a second administrator confirms it.
        let second = {
            let state = model.state();
            let is_second = |token: &Token| token.user != first && state.has_role(&token.user, "admin");
            pick_token(&state, rng, |token| token.agent.is_none() && is_second(token))
        };
        let confirm = ("override/confirm", "task.confirm_override");
        post_to_task(model, rng, &id, confirm, second, confirmation, None).await;
    }
}

async fn post_to_task(
    model: &Model,
    rng: &mut SeededRng,
    id: &str,
    (route, action): (&str, &str),
    token: Token,
    body: Value,
    if_match: Option<String>,
) {
    let (by, path) = (token.user.clone(), format!("/tasks/{id}/{route}"));
    let call = ApiCall { token: Some(token.clone()), method: "POST", path, body, if_match };
    let Some(task) = model.execute(rng, call).await else { return };
    let mut state = model.state();
    if route == "resubmit" {
        state.expect_entry(format!("task.resubmit {id} by {by}"));
        let new = text(&task["task_id"]);
        update_task(&mut state, "task.create", &by, &task);
        state.authors.insert((new.clone(), 1), change_authors(&token, &Value::Null));
        state.predecessors.insert(new.clone(), id.to_owned());
        state.tasks.push(new);
        state.count_event("task.resubmit");
    } else {
        update_task(&mut state, action, &by, &task);
        if route == "submit" {
            let revision = task["revision"].as_u64().expect("a revision");
            state.authors.insert((id.to_owned(), revision), change_authors(&token, &Value::Null));
        }
    }
}

async fn comment(model: &Model, rng: &mut SeededRng) {
    let Some(current) = pick_task(model, rng).await else { return };
    let token = pick_token(&model.state(), rng, |_| true);
    let id = text(&current["task_id"]);
    let call = ApiCall {
        token: Some(token),
        method: "POST",
        path: format!("/tasks/{id}/comments"),
        body: json!({ "text": "hm" }),
        if_match: if_match(rng, &current),
    };
    if let Some(comment) = model.execute(rng, call).await {
        let mut state = model.state();
        state.expect_entry(format!("task.comment {id} {}", text(&comment["comment_id"])));
        state.count_event("task.comment");
    }
}

async fn delete(model: &Model, rng: &mut SeededRng) {
    let Some(current) = pick_task(model, rng).await else { return };
    let (id, author) = (text(&current["task_id"]), text(&current["metadata"]["author_id"]));
    let token = pick_token(&model.state(), rng, |token| token.user == author);
    let (path, by) = (format!("/tasks/{id}"), token.user.clone());
    let if_match = if_match(rng, &current);
    let call = ApiCall { token: Some(token), method: "DELETE", path, body: Value::Null, if_match };
    if model.execute(rng, call).await.is_some() {
        let mut state = model.state();
        state.expect_entry(format!("task.delete {id} by {by}"));
        state.deleted.insert(id);
        state.count_event("task.delete");
    }
}

/// Pending approval requests of all reviewers.
async fn pending_requests(model: &Model) -> Vec<Value> {
    items(&model.get("/approvals?reviewer=*&status=PENDING&limit=200").await.expect_status(200))
}

async fn decide(model: &Model, rng: &mut SeededRng) {
    let open = match rng.below(10) {
        0 => items(&model.get("/approvals?reviewer=*&limit=200").await.expect_status(200)),
        1 => items(
            &model.get("/approvals?reviewer=*&status=CHANGES_REQUESTED&limit=200").await.expect_status(200),
        ),
        _ => pending_requests(model).await,
    };
    let Some(request) = rng.pick(&open).cloned() else { return };
    let (id, reviewer) = (text(&request["approval_id"]), text(&request["reviewer_id"]));
    let token = {
        let state = model.state();
        let as_admin = one_in(rng, 6);
        pick_token(&state, rng, |token| {
            let fits = if as_admin { state.has_role(&token.user, "admin") } else { token.user == reviewer };
            fits && token.agent.is_none() && token.creator.is_none()
        })
    };
    let (route, action) = match rng.below(14) {
        0 => ("reject", "approval.reject"),
        1 | 2 => ("request-changes", "approval.request_changes"),
        3..6 => ("delegate", "approval.delegate"),
        _ => ("approve", "approval.approve"),
    };
    let (seen, scope_seen) = (&request["digest"], &request["scope_digest"]);
    let mut body = json!({ "reason": "well", "digest": seen, "scope_digest": scope_seen });
    if route == "delegate" {
        // Usually to a user who has no request about this task.
        let is_asked = |user: &String| {
            open.iter()
                .any(|item| item["task_id"] == request["task_id"] && item["reviewer_id"] == user.as_str())
        };
        let free: Vec<String> =
            (0..super::USERS).map(|n| format!("u{n}")).filter(|user| !is_asked(user)).collect();
        body = json!({ "to": rng.pick(&free).cloned().unwrap_or_else(|| reviewer.clone()) });
    }
    let mut digest = None;
    if route != "delegate" && one_in(rng, 3) {
        let state = model.state();
        let digests = state.digests.get(&text(&request["task_id"])).cloned().unwrap_or_default();
        digest = rng.pick(&digests).cloned();
        if let Some(digest) = &digest {
            body["digest"] = json!(digest);
        }
    }
    let by = token.user.clone();
    let path = format!("/approvals/{id}/{route}");
    let call = ApiCall { token: Some(token), method: "POST", path, body, if_match: if_match(rng, &request) };
    if let Some(decided) = model.execute(rng, call).await {
        if let Some(digest) = digest {
            assert_eq!(decided["digest"], json!(digest), "decision for another digest: {decided}");
        }
        let mut state = model.state();
        state.expect_entry(format!("{action} {id} by {by}"));
        state.count_event(action);
    }
}

async fn approve_batch(model: &Model, rng: &mut SeededRng) {
    let open = pending_requests(model).await;
    let Some(first) = rng.pick(&open) else { return };
    let reviewer = text(&first["reviewer_id"]);
    let token = pick_token(&model.state(), rng, |token| {
        token.user == reviewer && token.agent.is_none() && token.creator.is_none()
    });
    let own = |request: &&Value| request["reviewer_id"] == token.user.as_str();
    let mut chosen: Vec<&Value> = open.iter().filter(own).take(3).collect();
    if one_in(rng, 4) {
        chosen.push(first);
    }
    let ids: Vec<String> = chosen.iter().map(|item| text(&item["approval_id"])).collect();
    let item = |item: &&Value| {
        let (digest, scope_digest) = (&item["digest"], &item["scope_digest"]);
        json!({ "approval_id": item["approval_id"], "digest": digest, "scope_digest": scope_digest })
    };
    let items_with_digests: Vec<Value> = chosen.iter().map(item).collect();
    let body = json!({ "items": items_with_digests, "action": "approve" });
    let by = token.user.clone();
    let path = "/approvals/batch".to_owned();
    let call = ApiCall { token: Some(token), method: "POST", path, body, if_match: None };
    if let Some(decided) = model.execute(rng, call).await {
        assert_eq!(items(&decided).len(), ids.len(), "{decided}");
        let mut state = model.state();
        ids.iter().for_each(|id| state.expect_entry(format!("approval.approve {id} by {by}")));
        state.count_event("batch");
    }
}

/// Usually an administrator, sometimes another user or the bootstrap token (`None`).
fn pick_admin(model: &Model, rng: &mut SeededRng) -> Option<Token> {
    let state = model.state();
    let admin = |token: &Token| {
        token.agent.is_none() && token.creator.is_none() && state.has_role(&token.user, "admin")
    };
    let token = pick_token(&state, rng, admin);
    (!one_in(rng, 4)).then_some(token)
}

async fn change_user(model: &Model, rng: &mut SeededRng) {
    let id = pick_user(rng);
    let current = model.get(&format!("/users/{id}")).await.expect_status(200);
    let is_active = current["active"] == json!(true);
    let body = if !is_active {
        json!({ "active": true })
    } else if one_in(rng, 2) {
        json!({ "active": false })
    } else {
        let mut roles: Vec<&str> = ROLES.into_iter().filter(|_| one_in(rng, 2)).collect();
        // Keep some administrators and reviewers.
        roles.extend(matches!(id.as_str(), "u0" | "u1" | "u2").then_some("admin"));
        roles.extend(matches!(id.as_str(), "u6" | "u7").then_some("reviewer"));
        json!({ "roles": roles })
    };
    let is_reactivation = body["active"] == json!(true);
    let token = pick_admin(model, rng);
    let path = format!("/users/{id}");
    let call = ApiCall { token, method: "PATCH", path, body, if_match: if_match(rng, &current) };
    let Some(user) = model.execute(rng, call).await else { return };
    {
        let mut state = model.state();
        state.expected_once.insert(format!("user {id} r{}", user["revision"]));
        state.update_user(&user);
        state.count_event("user.update");
        if user["active"] == json!(false) {
            // The tokens of the user and of their agents are revoked. Agent tokens stay in the model to test the refusal.
            state.tokens.retain(|token| token.user != id || token.agent.is_some());
            state.count_event("user.deactivate");
        }
    }
    if is_reactivation {
        model.issue_full_token(&id).await;
    }
}

/// The name of a policy encodes its quorum, which never changes. Everything else does.
pub(crate) async fn change_policy(model: &Model, rng: &mut SeededRng, is_initial: bool) {
    let token = if is_initial { None } else { pick_admin(model, rng) };
    let ids = model.state().policies.clone();
    let existing = rng.pick(&ids).cloned().filter(|_| !is_initial && !one_in(rng, 5));
    let scope = |rng: &mut SeededRng| {
        json!({
            "task_types": if one_in(rng, 2) { vec![pick(rng, &TYPES)] } else { Vec::new() },
            "resource_patterns": pick(rng, &[Vec::new(), vec!["prod-*"], vec!["db:users", "db:orders"]]),
            "risk_threshold": pick(rng, &[0, 0, 30, 50]),
            "priority": pick(rng, &["LOW", "NORMAL", "HIGH", "URGENT"]),
        })
    };
    let (method, path, body, current) = match existing {
        Some(id) => {
            let found = model.get(&format!("/policies/{id}")).await;
            if found.status == 404 {
                return;
            }
            let current = found.expect_status(200);
            let path = format!("/policies/{id}");
            match rng.below(6) {
                0 => ("DELETE", path, Value::Null, current),
                1 => ("PATCH", path, json!({ "active": false }), current),
                2 | 3 => ("POST", format!("{path}/activate"), Value::Null, current),
                _ => ("PATCH", path, scope(rng), current),
            }
        }
        None => {
            let mut body = scope(rng);
            let (min_approvers, reject_threshold) = (1 + rng.below(3), 1 + rng.below(2));
            let auto = one_in(rng, 4);
            let roles = pick(rng, &[vec![], vec![], vec!["dba"], vec!["reviewer", "dba"]]);
            let number = model.state().next_number();
            let kind = if auto { "auto" } else { "asks" };
            body["name"] = json!(format!(
                "p{number} min{min_approvers} no{reject_threshold} {kind} {}",
                roles.join("+")
            ));
            body["min_approvers"] = json!(min_approvers);
            body["reject_threshold"] = json!(reject_threshold);
            body["required_roles"] = json!(roles);
            if one_in(rng, 4) {
                body["reviewers"] = json!(["u3", "u5", "u6", "u7"]);
            }
            if auto {
                body["resource_patterns"] = json!(["db:*"]);
                body["auto_approve_if"] = json!({ "risk_below": 40 });
            }
            body["active"] = json!(!one_in(rng, 3));
            ("POST", "/policies".to_owned(), body, Value::Null)
        }
    };
    let if_match = if current.is_null() { None } else { if_match(rng, &current) };
    let call = ApiCall { token, method, path, body, if_match };
    if let Some(changed) = model.execute(rng, call).await {
        let mut state = model.state();
        if method == "DELETE" {
            let id = text(&current["policy_id"]);
            state.expect_entry(format!("policy.delete {id}"));
            state.policies.retain(|other| *other != id);
        } else {
            let id = text(&changed["policy_id"]);
            state.expected_once.insert(format!("policy {id} r{}", changed["revision"]));
            // A changed one was listed before: another client may have deleted it since.
            if current.is_null() {
                state.policies.push(id);
            }
        }
        state.count_event("policy");
    }
}

async fn change_delegation(model: &Model, rng: &mut SeededRng) {
    let ids = model.state().delegations.clone();
    let existing = rng.pick(&ids).cloned().filter(|_| !one_in(rng, 2));
    let owner = pick_user(rng);
    let token = pick_token(&model.state(), rng, |token| token.user == owner && token.agent.is_none());
    let (method, path, body, current) = match existing {
        Some(id) => {
            let found = model.get(&format!("/delegations/{id}")).await;
            if found.status == 404 {
                return;
            }
            let path = format!("/delegations/{id}");
            let current = found.expect_status(200);
            match rng.below(3) {
                0 => ("DELETE", path, Value::Null, current),
                1 => ("PATCH", path, json!({ "active": one_in(rng, 2) }), current),
                _ => ("PATCH", path, json!({ "delegate_to": pick_user(rng) }), current),
            }
        }
        None => {
            let mut body =
                json!({ "owner_id": owner, "delegate_to": pick_user(rng), "cascade": one_in(rng, 2) });
            body["kind"] = json!(pick(rng, &["delegate", "follow"]));
            match rng.below(4) {
                0 => body["conditions"] = json!({ "task_types": [pick(rng, &TYPES)] }),
                1 => body["conditions"] = json!({ "risk_above": 40 }),
                2 => body["conditions"] = json!({ "resource_patterns": ["prod-*"] }),
                _ => {}
            }
            ("POST", "/delegations".to_owned(), body, Value::Null)
        }
    };
    let token = if one_in(rng, 3) { pick_admin(model, rng) } else { Some(token) };
    let if_match = if current.is_null() { None } else { if_match(rng, &current) };
    let call = ApiCall { token, method, path, body, if_match };
    if let Some(changed) = model.execute(rng, call).await {
        let mut state = model.state();
        if method == "DELETE" {
            let id = text(&current["delegation_id"]);
            state.expect_entry(format!("delegation.delete {id}"));
            state.delegations.retain(|other| *other != id);
        } else {
            let id = text(&changed["delegation_id"]);
            state.expected_once.insert(format!("delegation {id} r{}", changed["revision"]));
            if current.is_null() {
                state.delegations.push(id);
            }
        }
        state.count_event("delegation");
    }
}

async fn change_resource(model: &Model, rng: &mut SeededRng) {
    let pattern = pick(rng, &["prod-*", "db:users", "db:*"]);
    let token = pick_admin(model, rng);
    let criticality = json!({ "pattern": pattern, "criticality": rng.below(101), "dependents": ["svc:web"] });
    let path = format!("/resources/{}", encode_segment(pattern));
    let (method, path, body) = match rng.below(4) {
        0 => ("POST", "/resources".to_owned(), criticality),
        1 => ("DELETE", path, Value::Null),
        _ => ("PATCH", path, criticality),
    };
    let call = ApiCall { token, method, path, body, if_match: None };
    if let Some(changed) = model.execute(rng, call).await {
        let mut state = model.state();
        if method == "DELETE" {
            // Revisions start again at 1 when a pattern is registered again, so deletions are counted.
            state.expect_entry(format!("resource.delete {pattern}"));
        } else {
            state.expected_once.insert(format!("resource {pattern} r{}", changed["revision"]));
        }
        state.count_event("resource");
    }
}

pub(crate) async fn execute_random(model: &Model, rng: &mut SeededRng) {
    match rng.below(100) {
        0..14 => create(model, rng).await,
        14..22 => modify(model, rng).await,
        22..38 => change_state(model, rng, "submit", "task.submit", false).await,
        38..64 => decide(model, rng).await,
        64..68 => approve_batch(model, rng).await,
        68..71 => change_state(model, rng, "revoke", "task.revoke", true).await,
        71..73 => change_state(model, rng, "cancel", "task.cancel", false).await,
        73..79 => change_state(model, rng, "override", "task.override", true).await,
        79..82 => change_state(model, rng, "override/confirm", "task.confirm_override", true).await,
        82..84 => change_state(model, rng, "force-apply", "task.force_apply", true).await,
        84..86 => comment(model, rng).await,
        86..89 => change_state(model, rng, "resubmit", "task.resubmit", false).await,
        89..90 => delete(model, rng).await,
        90..93 => change_user(model, rng).await,
        93..96 => change_policy(model, rng, false).await,
        96..99 => change_delegation(model, rng).await,
        _ => change_resource(model, rng).await,
    }
}
