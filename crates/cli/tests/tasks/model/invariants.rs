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
const BY_ITSELF: [&str; 6] = [
    "task.assign",
    "task.approve",
    "task.reject",
    "task.apply_first",
    "approval.request",
    "approval.reassign",
];

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

/// What the servers say about tasks at one moment.
struct Seen {
    tasks: BTreeMap<String, Value>,
    approvals: BTreeMap<String, Vec<Value>>,
    entries: Vec<Value>,
}

/// The servers do some things by themselves, such as asking others in the place of those who left, and number entries a moment
/// later: what is read must belong together.
async fn look(world: &World) -> Result<Seen, String> {
    let before = world.all("/tasks").await;
    let mut approvals: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for task in &before {
        let id = text(&task["task_id"]);
        let found = items(&world.see(&format!("/tasks/{id}/approvals")).await.expect(200));
        approvals.insert(id, found);
    }
    let entries = world.all("/audit").await;
    if world.all("/tasks").await != before {
        return Err("tasks are still changing".to_owned());
    }
    account(world, &entries)?;
    let tasks: BTreeMap<String, Value> =
        before.into_iter().map(|task| (text(&task["task_id"]), task)).collect();
    for (id, task) in &tasks {
        let makes_one = |entry: &&Value| {
            entry["task_id"] == id.as_str()
                && !matches!(text(&entry["action"]).as_str(), "task.comment" | "task.delete")
        };
        let (made, revision) = (entries.iter().filter(makes_one).count() as u64, &task["revision"]);
        if revision.as_u64() != Some(made) {
            return Err(format!("one entry makes one revision, but {made} made {revision} of {id}"));
        }
    }
    Ok(Seen { tasks, approvals, entries })
}

/// Holds everything that the servers say against what those who acted know. Nobody acts meanwhile.
pub(crate) async fn everything(world: &World) {
    // The last entry of all: when this one has its number, every other has.
    let marked = world.boss("PATCH", "/users/u0", json!({ "team": "marked" })).await.expect(200);
    world.known().expected_once.insert(format!("user u0 r{}", marked["revision"]));
    let seen = until("the audit log says what was done", LONG, || look(world)).await.expect("in time");
    for (number, entry) in (1_u64..).zip(&seen.entries) {
        assert_eq!(entry["number"].as_u64(), Some(number), "a gap: {entry}");
    }
    let verdict = world.see("/audit/verify").await.expect(200);
    assert_eq!(verdict["valid"], json!(true), "{verdict}");
    assert!(verdict["entries"].as_u64() >= Some(seen.entries.len() as u64), "{verdict}");
    histories(world, &seen);
    until("lists say the same as looking at one", LONG, || lists(world)).await.expect("in time");
}

/// Every task came to where it is by steps that are allowed.
fn histories(world: &World, seen: &Seen) {
    let mut of_task: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for entry in &seen.entries {
        if let Some(id) = entry["task_id"].as_str() {
            of_task.entry(id).or_default().push(entry);
        }
    }
    let known = world.known();
    assert_eq!(of_task.len(), known.tasks.len(), "a task that nobody made");
    let mut authors: BTreeMap<&String, BTreeSet<String>> = BTreeMap::new();
    for id in &known.tasks {
        let task = seen.tasks.get(id);
        assert_eq!(
            task.is_none(),
            known.deleted.contains(id),
            "{id} is there although it was deleted, or not"
        );
        let approvals = seen.approvals.get(id).map_or([].as_slice(), Vec::as_slice);
        let inherited =
            known.predecessors.get(id).and_then(|old| authors.get(old)).cloned().unwrap_or_default();
        let mut history = History::new(&known, approvals, inherited);
        of_task.get(id.as_str()).expect("it was made").iter().for_each(|entry| history.step(entry));
        authors.insert(id, history.end(task));
    }
}

/// Lists, each with what one of its items is looked at by.
async fn lists(world: &World) -> Result<(), String> {
    let mut states: BTreeMap<String, u64> = BTreeMap::new();
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
            if item != single {
                return Err(format!("{list} lists {item}, which is {single}"));
            }
            if id == "task_id" {
                *states.entry(text(&item["state"])).or_default() += 1;
            }
        }
        let known = world.known();
        let all: BTreeSet<String> = match id {
            "policy_id" => known.policies.iter().cloned().collect(),
            "delegation_id" => known.delegations.iter().cloned().collect(),
            _ => continue,
        };
        assert_eq!(ids, all, "{list}");
    }
    let overview = world.see("/stats/overview").await.expect(200);
    if overview["tasks"] != json!(states) {
        return Err(format!("{} are counted, {states:?} are listed", overview["tasks"]));
    }
    Ok(())
}
