//! Invariants that hold between two rounds: the audit log contains exactly the executed commands, every task reached its state
//! by permitted transitions, and lists agree with single objects.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ade_testkit::api::encode_segment;
use ade_testkit::wait::until;
use serde_json::{Value, json};

use super::history::History;
use super::{Model, items, text};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Transitions that the server makes as a consequence. They have no actor.
const AUTOMATIC: [&str; 8] = [
    "task.assign",
    "task.approve",
    "task.reject",
    "approval.follow",
    "approval.request",
    "approval.reassign",
    "approval.lapse",
    "approval.resolve",
];

/// An audit entry in the form in which the model expects it.
enum EntryKind {
    Counted(String),
    Once(String),
    Automatic,
}

fn classify(entry: &Value) -> EntryKind {
    let (action, id) = (text(&entry["action"]), text(&entry["object_id"]));
    let (by, revision) = (text(&entry["who"]["user_id"]), &entry["revision"]);
    if AUTOMATIC.contains(&action.as_str()) {
        assert!(by.is_empty(), "an automatic transition has an actor: {entry}");
        return EntryKind::Automatic;
    }
    match action.split_once('.').expect("a dot") {
        // An option of a decision that is counted itself.
        ("task", "apply_first") => EntryKind::Automatic,
        ("task", "comment") => {
            EntryKind::Counted(format!("{action} {id} {}", text(&entry["details"]["comment_id"])))
        }
        ("task", "delete" | "resubmit") | ("approval", _) => {
            EntryKind::Counted(format!("{action} {id} by {by}"))
        }
        ("task", _) => EntryKind::Counted(format!("{action} {id} r{revision} by {by}")),
        ("policy" | "delegation" | "resource", "delete") | ("token" | "agent", _) => {
            EntryKind::Counted(format!("{action} {id}"))
        }
        (kind, _) => EntryKind::Once(format!("{kind} {id} r{revision}")),
    }
}

/// The audit log contains all expected entries and no others.
fn compare_audit_log(model: &Model, entries: &[Value]) -> Result<(), String> {
    let (mut found, mut found_once) = (BTreeMap::new(), BTreeSet::new());
    for entry in entries {
        match classify(entry) {
            EntryKind::Counted(name) => *found.entry(name).or_insert(0_u64) += 1,
            EntryKind::Once(name) => {
                found_once.insert(name);
            }
            EntryKind::Automatic => {}
        }
    }
    let state = model.state();
    let all = |each: &BTreeMap<String, u64>, once: &BTreeSet<String>| -> BTreeSet<String> {
        each.iter().map(|(name, count)| format!("{name} x{count}")).chain(once.iter().cloned()).collect()
    };
    let (found, expected) = (all(&found, &found_once), all(&state.expected, &state.expected_once));
    let missing: Vec<&String> = expected.difference(&found).take(5).collect();
    let extra: Vec<&String> = found.difference(&expected).take(5).collect();
    if missing.is_empty() && extra.is_empty() {
        return Ok(());
    }
    Err(format!("missing in the audit log: {missing:?}; not expected in the audit log: {extra:?}"))
}

/// Tasks, their approval requests and the audit log, read at a time when nothing changes.
struct Snapshot {
    tasks: BTreeMap<String, Value>,
    approvals: BTreeMap<String, Vec<Value>>,
    entries: Vec<Value>,
}

/// Fails while the servers still make automatic changes, such as reassignments, or number audit entries.
async fn read_snapshot(model: &Model) -> Result<Snapshot, String> {
    let before = model.all_pages("/tasks").await;
    let mut approvals: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for task in &before {
        let id = text(&task["task_id"]);
        let found = items(&model.get(&format!("/tasks/{id}/approvals")).await.expect_status(200));
        approvals.insert(id, found);
    }
    let entries = model.all_pages("/audit").await;
    if model.all_pages("/tasks").await != before {
        return Err("tasks are still changing".to_owned());
    }
    compare_audit_log(model, &entries)?;
    let tasks: BTreeMap<String, Value> =
        before.into_iter().map(|task| (text(&task["task_id"]), task)).collect();
    for (id, task) in &tasks {
        let adds_revision = |entry: &&Value| {
            entry["task_id"] == id.as_str()
                && !matches!(text(&entry["action"]).as_str(), "task.comment" | "task.delete")
        };
        let (entry_count, revision) =
            (entries.iter().filter(adds_revision).count() as u64, &task["revision"]);
        if revision.as_u64() != Some(entry_count) {
            return Err(format!("{id} has revision {revision}, but {entry_count} audit entries"));
        }
    }
    Ok(Snapshot { tasks, approvals, entries })
}

/// Checks all invariants. No client may send commands meanwhile.
pub(crate) async fn check_all(model: &Model) {
    // A last entry: when it is numbered, all earlier entries are.
    let last_change =
        model.call_as_bootstrap("PATCH", "/users/u0", json!({ "team": "marked" })).await.expect_status(200);
    model.state().expected_once.insert(format!("user u0 r{}", last_change["revision"]));
    let snapshot = until("the audit log to contain all executed commands", TIMEOUT, || read_snapshot(model))
        .await
        .expect("in time");
    for (number, entry) in (1_u64..).zip(&snapshot.entries) {
        assert_eq!(entry["number"].as_u64(), Some(number), "a gap in the audit log: {entry}");
        check_actor(entry);
    }
    let verdict = model.verify_audit().await;
    assert_eq!(verdict["valid"], json!(true), "{verdict}");
    assert!(verdict["entries"].as_u64() >= Some(snapshot.entries.len() as u64), "{verdict}");
    check_histories(model, &snapshot);
    until("lists to agree with single objects", TIMEOUT, || compare_lists(model)).await.expect("in time");
}

/// Every entry says who: a user, an agent or a token, or the part of the service that acted by itself, where and why.
pub(crate) fn check_actor(entry: &Value) {
    let who = &entry["who"];
    let has = |field: &str| who[field].as_str().is_some_and(|text| !text.is_empty());
    let is_caller = ["user_id", "agent_id", "token_id"].into_iter().any(has);
    let is_service = ["service", "instance", "trigger"].into_iter().all(has);
    // A sign-in that was refused has only an address.
    let is_anonymous = entry["action"] == "session.refuse" && has("ip");
    assert!(is_caller != is_service || is_anonymous, "who did this? {entry}");
    let has_no_state = ["task.create", "task.preview"].contains(&text(&entry["action"]).as_str());
    assert!(
        entry["task_id"].is_null() || entry["from"].is_null() == has_no_state,
        "from which state? {entry}"
    );
}

/// Every task reached its state by permitted transitions.
fn check_histories(model: &Model, snapshot: &Snapshot) {
    let mut of_task: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for entry in &snapshot.entries {
        if let Some(id) = entry["task_id"].as_str() {
            of_task.entry(id).or_default().push(entry);
        }
    }
    let state = model.state();
    assert_eq!(of_task.len(), state.tasks.len(), "a task was created without a response");
    let mut authors: BTreeMap<&String, BTreeSet<String>> = BTreeMap::new();
    for id in &state.tasks {
        let task = snapshot.tasks.get(id);
        assert_eq!(
            task.is_none(),
            state.deleted.contains(id),
            "{id}: deleted tasks must not be listed, others must"
        );
        let approvals = snapshot.approvals.get(id).map_or([].as_slice(), Vec::as_slice);
        let inherited = state
            .predecessors
            .get(id)
            .and_then(|predecessor| authors.get(predecessor))
            .cloned()
            .unwrap_or_default();
        let mut history = History::new(&state, approvals, inherited);
        of_task.get(id.as_str()).expect("audit entries").iter().for_each(|entry| history.apply(entry));
        authors.insert(id, history.finish(task));
    }
}

/// Compares each item of each list with the object itself.
async fn compare_lists(model: &Model) -> Result<(), String> {
    let mut states: BTreeMap<String, u64> = BTreeMap::new();
    for (list, prefix, id) in [
        ("/tasks", "/tasks/", "task_id"),
        ("/approvals?reviewer=*", "/approvals/", "approval_id"),
        ("/policies", "/policies/", "policy_id"),
        ("/delegations", "/delegations/", "delegation_id"),
        ("/resources", "/resources/", "pattern"),
        ("/users", "/users/", "user_id"),
    ] {
        let listed = model.all_pages(list).await;
        let ids: BTreeSet<String> = listed.iter().map(|item| text(&item[id])).collect();
        assert_eq!(ids.len(), listed.len(), "{list} contains an item twice");
        for item in listed {
            let mut single =
                model.get(&format!("{prefix}{}", encode_segment(&text(&item[id])))).await.expect_status(200);
            single.as_object_mut().expect("an object").remove("task_state");
            if item != single {
                return Err(format!("{list} contains {item}, but the object is {single}"));
            }
            if id == "task_id" {
                *states.entry(text(&item["state"])).or_default() += 1;
            }
        }
        let state = model.state();
        let expected: BTreeSet<String> = match id {
            "policy_id" => state.policies.iter().cloned().collect(),
            "delegation_id" => state.delegations.iter().cloned().collect(),
            _ => continue,
        };
        assert_eq!(ids, expected, "{list}");
    }
    let overview = model.get("/stats/overview").await.expect_status(200);
    if overview["tasks"] != json!(states) {
        return Err(format!("the overview counts {}, the list contains {states:?}", overview["tasks"]));
    }
    Ok(())
}
