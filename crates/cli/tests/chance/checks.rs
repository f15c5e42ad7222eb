//! What must hold whenever nobody acts: the audit log says exactly what was done, every task came to where it is by steps that
//! are allowed, and lists say the same as looking at one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ade_testkit::api::segment;
use ade_testkit::wait::until;
use serde_json::{Value, json};

use super::history::History;
use super::{World, items, text};

const LONG: Duration = Duration::from_secs(30);

/// What follows from what people do by itself: nobody's act.
const BY_ITSELF: [&str; 5] =
    ["task.assign", "task.approve", "task.reject", "approval.request", "approval.reassign"];

/// An entry as whoever did it expects it: how often, or once.
enum Told {
    Each(String),
    Once(String),
    ByItself,
}

fn told(entry: &Value) -> Told {
    let (action, id) = (text(&entry["action"]), text(&entry["object_id"]));
    let (by, revision) = (text(&entry["who"]["user_id"]), &entry["revision"]);
    if BY_ITSELF.contains(&action.as_str()) {
        assert!(by.is_empty(), "somebody did what follows by itself: {entry}");
        return Told::ByItself;
    }
    match action.split_once('.').expect("a dot") {
        ("task", "comment") => Told::Each(format!("{action} {id} {}", text(&entry["details"]["comment_id"]))),
        ("task", "delete" | "resubmit") | ("approval", _) => Told::Each(format!("{action} {id} by {by}")),
        ("task", _) => Told::Each(format!("{action} {id} r{revision} by {by}")),
        ("policy" | "delegation" | "resource", "delete") | ("token" | "agent", _) => {
            Told::Each(format!("{action} {id}"))
        }
        (kind, _) => Told::Once(format!("{kind} {id} r{revision}")),
    }
}

/// Everything that the audit log must say, and nothing else.
fn account(world: &World, entries: &[Value]) -> Result<(), String> {
    let (mut found, mut found_once) = (BTreeMap::new(), BTreeSet::new());
    for entry in entries {
        match told(entry) {
            Told::Each(what) => *found.entry(what).or_insert(0_u64) += 1,
            Told::Once(what) => {
                found_once.insert(what);
            }
            Told::ByItself => {}
        }
    }
    let known = world.known();
    let all = |each: &BTreeMap<String, u64>, once: &BTreeSet<String>| -> BTreeSet<String> {
        each.iter().map(|(what, many)| format!("{what} x{many}")).chain(once.iter().cloned()).collect()
    };
    let (found, expected) = (all(&found, &found_once), all(&known.expected, &known.expected_once));
    let missing: Vec<&String> = expected.difference(&found).take(5).collect();
    let extra: Vec<&String> = found.difference(&expected).take(5).collect();
    if missing.is_empty() && extra.is_empty() {
        return Ok(());
    }
    Err(format!("answered and not recorded: {missing:?}; recorded and not answered: {extra:?}"))
}

/// Holds everything that the servers say against what those who acted know. Nobody acts meanwhile.
pub(crate) async fn everything(world: &World) {
    // The last entry of all: when this one has its number, every other has.
    let marked = world.boss("PATCH", "/users/u0", json!({ "team": "marked" })).await.expect(200);
    world.known().expected_once.insert(format!("user u0 r{}", marked["revision"]));
    let read = || async {
        let entries = world.all("/audit").await;
        account(world, &entries).map(|()| entries)
    };
    // Entries get their numbers a moment later.
    let entries = until("the audit log says what was done", LONG, read).await.expect("in time");
    for (number, entry) in (1_u64..).zip(&entries) {
        assert_eq!(entry["number"].as_u64(), Some(number), "a gap: {entry}");
    }
    let verdict = world.see("/audit/verify").await.expect(200);
    assert_eq!(
        (&verdict["valid"], verdict["entries"].as_u64()),
        (&Value::Bool(true), Some(entries.len() as u64))
    );
    tasks(world, &entries).await;
    lists(world).await;
}

async fn tasks(world: &World, entries: &[Value]) {
    let mut of_task: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
    for entry in entries {
        if let Some(id) = entry["task_id"].as_str() {
            of_task.entry(id.to_owned()).or_default().push(entry);
        }
    }
    let ids = world.known().tasks.clone();
    assert_eq!(of_task.len(), ids.len(), "a task that nobody made");
    let mut authors: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut states: BTreeMap<String, u64> = BTreeMap::new();
    for id in ids {
        let deleted = world.known().deleted.contains(&id);
        let (task, approvals) = if deleted {
            let _ = world.see(&format!("/tasks/{id}")).await.problem(404, "TASK_NOT_FOUND");
            (None, Vec::new())
        } else {
            let approvals = items(&world.see(&format!("/tasks/{id}/approvals")).await.expect(200));
            (Some(world.see(&format!("/tasks/{id}")).await.expect(200)), approvals)
        };
        let known = world.known();
        let inherited =
            known.predecessors.get(&id).and_then(|old| authors.get(old)).cloned().unwrap_or_default();
        let mut history = History::new(&known, &approvals, inherited);
        of_task.get(&id).expect("it was made").iter().for_each(|entry| history.step(entry));
        authors.insert(id, history.end(task.as_ref()));
        *states.entry(history.state.clone()).or_default() += 1;
    }
    let overview = world.see("/stats/overview").await.expect(200);
    let deleted = world.known().deleted.len() as u64;
    let drafts = states.entry("DRAFT".to_owned()).or_default();
    *drafts -= deleted;
    let counted: BTreeMap<String, u64> =
        serde_json::from_value(overview["tasks"].clone()).expect("numbers by state");
    states.retain(|_, many| *many > 0);
    assert_eq!(counted, states);
}

/// Lists, each with what one of its items is looked at by.
async fn lists(world: &World) {
    for (list, one, id) in [
        ("/tasks", "/tasks/", "task_id"),
        ("/approvals?reviewer=*", "/approvals/", "approval_id"),
        ("/policies", "/policies/", "policy_id"),
        ("/delegations", "/delegations/", "delegation_id"),
        ("/resources", "/resources/", "pattern"),
        ("/users", "/users/", "user_id"),
    ] {
        let listed = world.all(list).await;
        let ids: BTreeSet<String> = listed.iter().map(|item| text(&item[id])).collect();
        assert_eq!(ids.len(), listed.len(), "{list} lists something twice");
        for item in listed {
            let mut single = world.see(&format!("{one}{}", segment(&text(&item[id])))).await.expect(200);
            single.as_object_mut().expect("an object").remove("task_state");
            assert_eq!(item, single, "{list}");
        }
        let known = world.known();
        let all: BTreeSet<String> = match id {
            "task_id" => known.tasks.iter().filter(|task| !known.deleted.contains(*task)).cloned().collect(),
            "policy_id" => known.policies.iter().cloned().collect(),
            "delegation_id" => known.delegations.iter().cloned().collect(),
            _ => continue,
        };
        assert_eq!(ids, all, "{list}");
    }
}
