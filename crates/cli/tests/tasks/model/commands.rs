//! What people do, at random: mostly what they may, sometimes what they may not. Whatever is answered well is remembered.

use std::collections::BTreeSet;

use ade_domain::task::{State, allowed};
use ade_testkit::Dice;
use ade_testkit::api::segment;
use serde_json::{Value, json};

use super::{Behind, Call, Known, Token, World, items, text};

const TYPES: [&str; 3] = ["deploy", "migrate", "cleanup"];
const RESOURCES: [&str; 5] = ["users", "orders", "web", "prod-1", "prod-2"];
const ROLES: [&str; 4] = ["author", "reviewer", "dba", "auditor"];

fn any<T: Clone>(dice: &mut Dice, from: &[T]) -> T {
    dice.pick(from).cloned().expect("there are some")
}

fn one_in(dice: &mut Dice, many: u64) -> bool {
    dice.below(many) == 0
}

/// Somebody: usually one for whom `fits` holds.
fn somebody(known: &Known, dice: &mut Dice, fits: impl Fn(&Token) -> bool) -> Token {
    let fitting: Vec<&Token> = known.tokens.iter().filter(|token| fits(token)).collect();
    match dice.pick(&fitting) {
        Some(token) if !one_in(dice, 5) => (*token).clone(),
        _ => any(dice, &known.tokens),
    }
}

fn person(dice: &mut Dice) -> String {
    format!("u{}", dice.below(super::PEOPLE))
}

/// One of the last tasks, as it is now.
async fn task(world: &World, dice: &mut Dice) -> Option<Value> {
    let id = {
        let known = world.known();
        let from = known.tasks.len().saturating_sub(25);
        dice.pick(&known.tasks[from..])?.clone()
    };
    let answer = world.see(&format!("/tasks/{id}")).await;
    (answer.status == 200).then(|| answer.json())
}

fn if_match(dice: &mut Dice, seen: &Value) -> Option<String> {
    match dice.below(12) {
        0 => Some("\"999999\"".to_owned()),
        1 => seen["revision"].as_u64().map(|revision| format!("\"{revision}\"")),
        2 => Some("*".to_owned()),
        _ => None,
    }
}

fn proposal(dice: &mut Dice) -> Value {
    let mut body =
        json!({ "type": any(dice, &TYPES), "description": format!("change {}", dice.below(1_000_000)) });
    let mut resources = Vec::new();
    for id in RESOURCES {
        if one_in(dice, 4) {
            resources.push(json!({ "type": "db", "id": id, "mode": any(dice, &["exclusive", "shared"]) }));
        }
    }
    body["resources"] = json!(resources);
    body["priority"] = json!(dice.below(101));
    match dice.below(3) {
        0 => body["executor"] = json!("noop"),
        1 => {
            body["executor"] = json!("agent");
            let kind = |dice: &mut Dice| any(dice, &["create", "update", "delete"]);
            let changes: Vec<Value> =
                (0..dice.below(6)).map(|n| json!({ "kind": kind(dice), "what": n.to_string() })).collect();
            body["preview"] = json!({ "changes": changes });
        }
        _ => body["executor"] = json!("agent"),
    }
    if one_in(dice, 5) {
        body["lineage"] = json!({ "sponsor_id": person(dice) });
    }
    body
}

/// Whoever stands behind what a token proposes: an agent names nobody but its own sponsor, whatever it says.
fn behind(token: &Token, body: &Value) -> Behind {
    let acted = [Some(token.user.clone()), token.maker.clone()].into_iter().flatten().collect();
    let named = if token.agent.is_some() {
        Some(BTreeSet::new())
    } else {
        body["lineage"]["sponsor_id"].as_str().map(|named| BTreeSet::from([named.to_owned()]))
    };
    Behind { acted, named }
}

fn note_task(known: &mut Known, action: &str, by: &str, told: &Value) {
    let (id, revision) = (text(&told["task_id"]), told["revision"].as_u64().expect("a revision"));
    known.expect(format!("{action} {id} r{revision} by {by}"));
    let digests = known.digests.entry(id).or_default();
    let digest = text(&told["digest"]);
    if !digests.contains(&digest) {
        digests.push(digest);
    }
    known.count(action);
}

async fn create(world: &World, dice: &mut Dice) {
    let (token, body) = (somebody(&world.known(), dice, |_| true), proposal(dice));
    let authors = behind(&token, &body);
    let by = token.user.clone();
    let call = Call { token: Some(token), method: "POST", path: "/tasks".to_owned(), body, if_match: None };
    if let Ok(told) = world.perform(dice, call).await {
        let mut known = world.known();
        note_task(&mut known, "task.create", &by, &told);
        known.authors.insert((text(&told["task_id"]), 1), authors);
        known.tasks.push(text(&told["task_id"]));
    }
}

async fn modify(world: &World, dice: &mut Dice) {
    let Some(seen) = task(world, dice).await else { return };
    let author = text(&seen["metadata"]["author_id"]);
    let token = somebody(&world.known(), dice, |token| token.user == author);
    let mut body = proposal(dice);
    if one_in(dice, 3) {
        // Nothing about what is to be done.
        body = json!({ "tags": [format!("tag-{}", dice.below(5))] });
    }
    let (authors, by) = (behind(&token, &body), token.user.clone());
    let path = format!("/tasks/{}", text(&seen["task_id"]));
    let call = Call { token: Some(token), method: "PATCH", path, body, if_match: if_match(dice, &seen) };
    if let Ok(told) = world.perform(dice, call).await {
        let mut known = world.known();
        note_task(&mut known, "task.modify", &by, &told);
        let revision = told["revision"].as_u64().expect("a revision");
        known.authors.insert((text(&told["task_id"]), revision), authors);
    }
}

/// What is done to a task as a whole, by whom usually.
async fn deed(world: &World, dice: &mut Dice, route: &str, action: &str, by_admin: bool) {
    let Some(mut seen) = task(world, dice).await else { return };
    // A few tries for a task to which it can be done at all.
    let verb = action.trim_start_matches("task.");
    for _ in 0..4 {
        let state: State = serde_json::from_value(seen["state"].clone()).expect("a state");
        if allowed(state).iter().any(|one| one.word() == verb) {
            break;
        }
        match task(world, dice).await {
            Some(other) => seen = other,
            None => return,
        }
    }
    let author = text(&seen["metadata"]["author_id"]);
    let token = {
        let known = world.known();
        somebody(&known, dice, |token| {
            if by_admin {
                token.agent.is_none() && known.has_role(&token.user, "admin")
            } else {
                token.user == author
            }
        })
    };
    let body = match route {
        "override" => json!({ "reason": "it burns", "incident_ticket": "INC-1" }),
        "cancel" | "revoke" | "force-apply" => json!({ "reason": "because" }),
        _ => Value::Null,
    };
    let (id, if_match) = (text(&seen["task_id"]), if_match(dice, &seen));
    let first = token.user.clone();
    act(world, dice, &id, (route, action), token, body, if_match).await;
    if route == "override" {
        // Usually somebody is there to confirm it.
        let second = {
            let known = world.known();
            let is_second = |token: &Token| token.user != first && known.has_role(&token.user, "admin");
            somebody(&known, dice, |token| token.agent.is_none() && is_second(token))
        };
        let confirm = ("override/confirm", "task.confirm_override");
        act(world, dice, &id, confirm, second, Value::Null, None).await;
    }
}

async fn act(
    world: &World,
    dice: &mut Dice,
    id: &str,
    (route, action): (&str, &str),
    token: Token,
    body: Value,
    if_match: Option<String>,
) {
    let (by, path) = (token.user.clone(), format!("/tasks/{id}/{route}"));
    let call = Call { token: Some(token.clone()), method: "POST", path, body, if_match };
    let Ok(told) = world.perform(dice, call).await else { return };
    let mut known = world.known();
    if route == "resubmit" {
        known.expect(format!("task.resubmit {id} by {by}"));
        let new = text(&told["task_id"]);
        note_task(&mut known, "task.create", &by, &told);
        known.authors.insert((new.clone(), 1), behind(&token, &Value::Null));
        known.predecessors.insert(new.clone(), id.to_owned());
        known.tasks.push(new);
        known.count("task.resubmit");
    } else {
        note_task(&mut known, action, &by, &told);
    }
}

async fn comment(world: &World, dice: &mut Dice) {
    let Some(seen) = task(world, dice).await else { return };
    let token = somebody(&world.known(), dice, |_| true);
    let id = text(&seen["task_id"]);
    let call = Call {
        token: Some(token),
        method: "POST",
        path: format!("/tasks/{id}/comments"),
        body: json!({ "text": "hm" }),
        if_match: if_match(dice, &seen),
    };
    if let Ok(told) = world.perform(dice, call).await {
        let mut known = world.known();
        known.expect(format!("task.comment {id} {}", text(&told["comment_id"])));
        known.count("task.comment");
    }
}

async fn delete(world: &World, dice: &mut Dice) {
    let Some(seen) = task(world, dice).await else { return };
    let (id, author) = (text(&seen["task_id"]), text(&seen["metadata"]["author_id"]));
    let token = somebody(&world.known(), dice, |token| token.user == author);
    let (path, by) = (format!("/tasks/{id}"), token.user.clone());
    let if_match = if_match(dice, &seen);
    let call = Call { token: Some(token), method: "DELETE", path, body: Value::Null, if_match };
    if world.perform(dice, call).await.is_ok() {
        let mut known = world.known();
        known.expect(format!("task.delete {id} by {by}"));
        known.deleted.insert(id);
        known.count("task.delete");
    }
}

/// Requests that wait, as everybody together sees them.
async fn waiting(world: &World) -> Vec<Value> {
    items(&world.see("/approvals?reviewer=*&status=PENDING&limit=200").await.expect(200))
}

async fn respond(world: &World, dice: &mut Dice) {
    let open = match dice.below(10) {
        0 => items(&world.see("/approvals?reviewer=*&limit=200").await.expect(200)),
        1 => items(&world.see("/approvals?reviewer=*&status=CHANGES_REQUESTED&limit=200").await.expect(200)),
        _ => waiting(world).await,
    };
    let Some(request) = dice.pick(&open).cloned() else { return };
    let (id, reviewer) = (text(&request["approval_id"]), text(&request["reviewer_id"]));
    let token = {
        let known = world.known();
        let for_another = one_in(dice, 6);
        somebody(&known, dice, |token| {
            let fits =
                if for_another { known.has_role(&token.user, "admin") } else { token.user == reviewer };
            fits && token.agent.is_none() && token.maker.is_none()
        })
    };
    let (route, action) = match dice.below(14) {
        0 => ("reject", "approval.reject"),
        1 | 2 => ("request-changes", "approval.request_changes"),
        3..6 => ("delegate", "approval.delegate"),
        _ => ("approve", "approval.approve"),
    };
    let mut body = json!({ "reason": "well" });
    if route == "delegate" {
        // Usually to somebody who is not asked already.
        let asked = |who: &String| {
            open.iter().any(|one| one["task_id"] == request["task_id"] && one["reviewer_id"] == who.as_str())
        };
        let free: Vec<String> =
            (0..super::PEOPLE).map(|n| format!("u{n}")).filter(|who| !asked(who)).collect();
        body = json!({ "to": dice.pick(&free).cloned().unwrap_or_else(|| reviewer.clone()) });
    }
    let mut said = None;
    if route != "delegate" && one_in(dice, 3) {
        let known = world.known();
        let digests = known.digests.get(&text(&request["task_id"])).cloned().unwrap_or_default();
        said = dice.pick(&digests).cloned();
        if let Some(said) = &said {
            body["digest"] = json!(said);
        }
    }
    let by = token.user.clone();
    let path = format!("/approvals/{id}/{route}");
    let call = Call { token: Some(token), method: "POST", path, body, if_match: if_match(dice, &request) };
    if let Ok(told) = world.perform(dice, call).await {
        if let Some(said) = said {
            assert_eq!(told["digest"], json!(said), "answered for another digest: {told}");
        }
        let mut known = world.known();
        known.expect(format!("{action} {id} by {by}"));
        known.count(action);
    }
}

async fn batch(world: &World, dice: &mut Dice) {
    let open = waiting(world).await;
    let Some(first) = dice.pick(&open) else { return };
    let reviewer = text(&first["reviewer_id"]);
    let token = somebody(&world.known(), dice, |token| {
        token.user == reviewer && token.agent.is_none() && token.maker.is_none()
    });
    let own = |request: &&Value| request["reviewer_id"] == token.user.as_str();
    let mut ids: Vec<String> = open.iter().filter(own).take(3).map(|one| text(&one["approval_id"])).collect();
    if one_in(dice, 4) {
        ids.push(text(&first["approval_id"]));
    }
    let body = json!({
        "approval_ids": ids, "action": "approve", "options": { "apply_immediately": one_in(dice, 2) },
    });
    let by = token.user.clone();
    let path = "/approvals/batch".to_owned();
    let call = Call { token: Some(token), method: "POST", path, body, if_match: None };
    if let Ok(told) = world.perform(dice, call).await {
        assert_eq!(items(&told).len(), ids.len(), "{told}");
        let mut known = world.known();
        ids.iter().for_each(|id| known.expect(format!("approval.approve {id} by {by}")));
        known.count("batch");
    }
}

/// An administrator, or the bootstrap token, or somebody who may not.
fn administrator(world: &World, dice: &mut Dice) -> Option<Token> {
    let known = world.known();
    let admin = |token: &Token| {
        token.agent.is_none() && token.maker.is_none() && known.has_role(&token.user, "admin")
    };
    let token = somebody(&known, dice, admin);
    (!one_in(dice, 4)).then_some(token)
}

async fn person_changes(world: &World, dice: &mut Dice) {
    let id = person(dice);
    let seen = world.see(&format!("/users/{id}")).await.expect(200);
    let is_active = seen["active"] == json!(true);
    let body = if !is_active {
        json!({ "active": true })
    } else if one_in(dice, 2) {
        json!({ "active": false })
    } else {
        let mut roles: Vec<&str> = ROLES.into_iter().filter(|_| one_in(dice, 2)).collect();
        // Somebody must be left who can do something.
        roles.extend(matches!(id.as_str(), "u0" | "u1" | "u2").then_some("admin"));
        roles.extend(matches!(id.as_str(), "u6" | "u7").then_some("reviewer"));
        json!({ "roles": roles })
    };
    let back = body["active"] == json!(true);
    let token = administrator(world, dice);
    let path = format!("/users/{id}");
    let call = Call { token, method: "PATCH", path, body, if_match: if_match(dice, &seen) };
    let Ok(told) = world.perform(dice, call).await else { return };
    {
        let mut known = world.known();
        known.expected_once.insert(format!("user {id} r{}", told["revision"]));
        known.note_user(&told);
        known.count("user.update");
        if told["active"] == json!(false) {
            // Its tokens are ended, also those of its agents; the last of all stays for trying.
            known.tokens.retain(|token| token.user != id || token.agent.is_some());
            known.count("left");
        }
    }
    if back {
        world.hand_out(&id).await;
    }
}

/// Policies say in their names what they ask for: that never changes, everything else does.
pub(crate) async fn policy(world: &World, dice: &mut Dice, new: bool) {
    let token = if new { None } else { administrator(world, dice) };
    let ids = world.known().policies.clone();
    let existing = dice.pick(&ids).cloned().filter(|_| !new && !one_in(dice, 5));
    let scope = |dice: &mut Dice| {
        json!({
            "task_types": if one_in(dice, 2) { vec![any(dice, &TYPES)] } else { Vec::new() },
            "resource_patterns": any(dice, &[Vec::new(), vec!["prod-*"], vec!["db:users", "db:orders"]]),
            "risk_threshold": any(dice, &[0, 0, 30, 50]),
            "priority": any(dice, &["LOW", "NORMAL", "HIGH", "URGENT"]),
        })
    };
    let (method, path, body, seen) = match existing {
        Some(id) => {
            let found = world.see(&format!("/policies/{id}")).await;
            if found.status == 404 {
                return;
            }
            let seen = found.expect(200);
            let path = format!("/policies/{id}");
            match dice.below(6) {
                0 => ("DELETE", path, Value::Null, seen),
                1 => ("PATCH", path, json!({ "active": false }), seen),
                2 | 3 => ("POST", format!("{path}/activate"), Value::Null, seen),
                _ => ("PATCH", path, scope(dice), seen),
            }
        }
        None => {
            let mut body = scope(dice);
            let (min, no) = (1 + dice.below(3), 1 + dice.below(2));
            let auto = one_in(dice, 4);
            let roles = any(dice, &[vec![], vec![], vec!["dba"], vec!["reviewer", "dba"]]);
            let number = world.known().number();
            let kind = if auto { "auto" } else { "asks" };
            body["name"] = json!(format!("p{number} min{min} no{no} {kind} {}", roles.join("+")));
            body["min_approvers"] = json!(min);
            body["reject_threshold"] = json!(no);
            body["required_roles"] = json!(roles);
            if one_in(dice, 4) {
                body["reviewers"] = json!(["u3", "u5", "u6", "u7"]);
            }
            if auto {
                body["auto_approve_if"] = json!({ "risk_below": 40 });
            }
            body["active"] = json!(!one_in(dice, 3));
            ("POST", "/policies".to_owned(), body, Value::Null)
        }
    };
    let if_match = if seen.is_null() { None } else { if_match(dice, &seen) };
    let call = Call { token, method, path, body, if_match };
    if let Ok(told) = world.perform(dice, call).await {
        let mut known = world.known();
        if method == "DELETE" {
            let id = text(&seen["policy_id"]);
            known.expect(format!("policy.delete {id}"));
            known.policies.retain(|other| *other != id);
        } else {
            let id = text(&told["policy_id"]);
            known.expected_once.insert(format!("policy {id} r{}", told["revision"]));
            if !known.policies.contains(&id) {
                known.policies.push(id);
            }
        }
        known.count("policy");
    }
}

async fn delegation(world: &World, dice: &mut Dice) {
    let ids = world.known().delegations.clone();
    let existing = dice.pick(&ids).cloned().filter(|_| !one_in(dice, 2));
    let owner = person(dice);
    let token = somebody(&world.known(), dice, |token| token.user == owner && token.agent.is_none());
    let (method, path, body, seen) = match existing {
        Some(id) => {
            let found = world.see(&format!("/delegations/{id}")).await;
            if found.status == 404 {
                return;
            }
            let path = format!("/delegations/{id}");
            let seen = found.expect(200);
            match dice.below(3) {
                0 => ("DELETE", path, Value::Null, seen),
                1 => ("PATCH", path, json!({ "active": one_in(dice, 2) }), seen),
                _ => ("PATCH", path, json!({ "delegate_to": person(dice) }), seen),
            }
        }
        None => {
            let mut body =
                json!({ "owner_id": owner, "delegate_to": person(dice), "cascade": one_in(dice, 2) });
            body["kind"] = json!(any(dice, &["delegate", "follow"]));
            match dice.below(4) {
                0 => body["conditions"] = json!({ "task_types": [any(dice, &TYPES)] }),
                1 => body["conditions"] = json!({ "risk_above": 40 }),
                2 => body["conditions"] = json!({ "resource_patterns": ["prod-*"] }),
                _ => {}
            }
            ("POST", "/delegations".to_owned(), body, Value::Null)
        }
    };
    let token = if one_in(dice, 3) { administrator(world, dice) } else { Some(token) };
    let if_match = if seen.is_null() { None } else { if_match(dice, &seen) };
    let call = Call { token, method, path, body, if_match };
    if let Ok(told) = world.perform(dice, call).await {
        let mut known = world.known();
        if method == "DELETE" {
            let id = text(&seen["delegation_id"]);
            known.expect(format!("delegation.delete {id}"));
            known.delegations.retain(|other| *other != id);
        } else {
            let id = text(&told["delegation_id"]);
            known.expected_once.insert(format!("delegation {id} r{}", told["revision"]));
            if !known.delegations.contains(&id) {
                known.delegations.push(id);
            }
        }
        known.count("delegation");
    }
}

async fn resource(world: &World, dice: &mut Dice) {
    let pattern = any(dice, &["prod-*", "db:users", "db:*"]);
    let token = administrator(world, dice);
    let criticality =
        json!({ "pattern": pattern, "criticality": dice.below(101), "dependents": ["svc:web"] });
    let path = format!("/resources/{}", segment(pattern));
    let (method, path, body) = match dice.below(4) {
        0 => ("POST", "/resources".to_owned(), criticality),
        1 => ("DELETE", path, Value::Null),
        _ => ("PATCH", path, criticality),
    };
    let call = Call { token, method, path, body, if_match: None };
    if let Ok(told) = world.perform(dice, call).await {
        let mut known = world.known();
        if method == "DELETE" {
            // Registered and deleted again and again, it has the same numbers each time.
            known.expect(format!("resource.delete {pattern}"));
        } else {
            known.expected_once.insert(format!("resource {pattern} r{}", told["revision"]));
        }
        known.count("resource");
    }
}

/// Anything.
pub(crate) async fn anything(world: &World, dice: &mut Dice) {
    match dice.below(100) {
        0..14 => create(world, dice).await,
        14..22 => modify(world, dice).await,
        22..38 => deed(world, dice, "submit", "task.submit", false).await,
        38..64 => respond(world, dice).await,
        64..68 => batch(world, dice).await,
        68..71 => deed(world, dice, "revoke", "task.revoke", true).await,
        71..73 => deed(world, dice, "cancel", "task.cancel", false).await,
        73..79 => deed(world, dice, "override", "task.override", true).await,
        79..82 => deed(world, dice, "override/confirm", "task.confirm_override", true).await,
        82..84 => deed(world, dice, "force-apply", "task.force_apply", true).await,
        84..86 => comment(world, dice).await,
        86..89 => deed(world, dice, "resubmit", "task.resubmit", false).await,
        89..90 => delete(world, dice).await,
        90..93 => person_changes(world, dice).await,
        93..96 => policy(world, dice, false).await,
        96..99 => delegation(world, dice).await,
        _ => resource(world, dice).await,
    }
}
