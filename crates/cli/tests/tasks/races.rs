//! People and servers at the same time, on both records: one decision, never for something else than was seen, a batch that
//! is whole or not at all, each escalation once, and nobody who left is still waited for.

use std::collections::BTreeMap;
use std::time::Duration;

use ade_domain::people::{AUTHOR, REVIEWER};
use ade_domain::task::MOST_ESCALATIONS;
use ade_testkit::api::{Answer, Api};
use ade_testkit::people::text;
use ade_testkit::wait::until;
use ade_testkit::{House, Office, Person};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const LONG: Duration = Duration::from_secs(60);
/// Callers who answer at the same time.
const REVIEWERS: usize = 16;
const ROUNDS: usize = 4;
/// As many as a batch may have.
const MANY: usize = 500;

struct Stage {
    office: Office,
    doors: Vec<Api>,
    pat: Person,
}

impl Stage {
    /// With people of its own: those of earlier scenes have left.
    async fn of(house: &House, scene: &str) -> Self {
        let office = house.office().await;
        let known = office.admin.get("/users?limit=200").await.expect(200);
        for user in known["items"].as_array().expect("items") {
            let id = text(user, "user_id");
            if user["active"] == true && id != "admin" {
                let leave = json!({ "active": false });
                let _ = office.admin.patch(&format!("/users/{id}"), &leave).await.expect(200);
            }
        }
        let pat = office.person(&format!("pat-{scene}"), &[AUTHOR]).await;
        Self { office, doors: house.doors().await, pat }
    }

    /// Somebody, at one of the servers.
    fn at(&self, who: &Person, n: usize) -> Person {
        who.at(self.doors.get(n % self.doors.len()).expect("one at least"))
    }
}

async fn all<T>(tasks: Vec<JoinHandle<T>>) -> Vec<T> {
    let mut found = Vec::with_capacity(tasks.len());
    for task in tasks {
        found.push(task.await.expect("no panic"));
    }
    found
}

async fn many_answer_and_one_decides(stage: &Stage) {
    let mut reviewers = Vec::new();
    for n in 0..REVIEWERS {
        reviewers.push(stage.office.person(&format!("rex-{n:02}"), &[REVIEWER]).await);
    }
    for round in 0..ROUNDS {
        let id = stage.pat.submitted(json!({})).await;
        let requests = stage.office.requests(&id).await;
        assert_eq!(requests.len(), REVIEWERS);
        let answers = reviewers.iter().enumerate().map(|(n, reviewer)| {
            let own = requests.iter().find(|one| text(one, "reviewer_id") == reviewer.id).expect("asked");
            let (request, reviewer) = (text(own, "approval_id"), stage.at(reviewer, n + round));
            let how = if n % 2 == 0 { "approve" } else { "reject" };
            tokio::spawn(async move { (how, reviewer.answers(&request, how).await) })
        });
        let answers = all(answers.collect()).await;
        let state = text(&stage.office.task(&id).await, "state");
        let (won, late): (Vec<_>, Vec<_>) = answers.iter().partition(|(_, answer)| answer.status == 200);
        let [(how, _)] = won.as_slice() else { panic!("{} decided", won.len()) };
        assert_eq!(state, if *how == "approve" { "APPROVED" } else { "REJECTED" });
        for (_, answer) in late {
            assert_eq!(answer.problem(409, "ALREADY_DECIDED")["state"], state);
        }
        let mut statuses: BTreeMap<String, usize> = BTreeMap::new();
        for one in stage.office.requests(&id).await {
            *statuses.entry(text(&one, "status")).or_default() += 1;
        }
        assert_eq!(statuses, BTreeMap::from([("CLOSED".to_owned(), REVIEWERS - 1), (state, 1)]));
    }
}

async fn an_approval_counts_for_what_was_seen(stage: &Stage) {
    let bea = stage.office.person("bea", &[REVIEWER]).await;
    for round in 0..ROUNDS * 3 {
        let id = stage.pat.submitted(json!({})).await;
        let seen = text(&stage.office.task(&id).await, "digest");
        let request = stage.office.request(&id, "bea").await;
        let (author, reviewer) = (stage.at(&stage.pat, round), stage.at(&bea, round + 1));
        let (place, names) = (format!("/tasks/{id}"), round % 2 == 0);
        let change =
            tokio::spawn(
                async move { author.patch(&place, &json!({ "description": "something else" })).await },
            );
        let digest = seen.clone();
        let yes = tokio::spawn(async move {
            let body = if names { json!({ "digest": digest }) } else { json!({}) };
            reviewer.post(&format!("/approvals/{request}/approve"), &body).await
        });
        let (changed, yes) = (change.await.expect("no panic"), yes.await.expect("no panic"));
        let changed = changed.expect(200);
        assert_ne!(text(&changed, "digest"), seen);
        // Before the change, and then for nothing; or too late.
        if yes.status == 200 {
            assert_eq!(text(&yes.json(), "digest"), seen);
        } else {
            let _ = yes.problem(409, if names { "DIGEST_MISMATCH" } else { "NOT_ANSWERABLE" });
        }
        assert_eq!(
            text(&stage.office.task(&id).await, "state"),
            "REVIEWING",
            "what it is now was never approved"
        );
        let statuses: Vec<String> =
            stage.office.requests(&id).await.iter().map(|one| text(one, "status")).collect();
        assert_eq!(statuses, ["INVALIDATED", "PENDING"]);
    }
}

async fn a_batch_is_whole_or_nothing(stage: &Stage, many: usize) {
    let cid = stage.office.person("cid", &[REVIEWER]).await;
    let made = (0..8).map(|n| {
        let pat = stage.at(&stage.pat, n);
        tokio::spawn(async move {
            let mut made = Vec::new();
            for _ in (n..many).step_by(8) {
                made.push(pat.submitted(json!({})).await);
            }
            made
        })
    });
    let tasks: Vec<String> = all(made.collect()).await.concat();
    let mut requests: BTreeMap<String, String> = BTreeMap::new();
    let mut cursor = String::new();
    while requests.len() < many {
        let page = cid.get(&format!("/approvals?status=PENDING&limit=200&cursor={cursor}")).await.expect(200);
        for one in page["items"].as_array().expect("items") {
            requests.insert(text(one, "task_id"), text(one, "approval_id"));
        }
        cursor = text(&page, "next_cursor");
    }
    let ids: Vec<&String> = requests.values().collect();
    let batch = |ids: &[&String]| json!({ "approval_ids": ids, "action": "approve" });
    let approved = |office: Office| async move {
        let counts = office.admin.get("/stats/overview").await.expect(200);
        counts["tasks"]["APPROVED"].as_u64().unwrap_or(0)
    };
    let before = approved(stage.office.clone()).await;
    let too_many: Vec<&String> = ids.iter().copied().cycle().take(MANY + 1).collect();
    let _ = cid.post("/approvals/batch", &batch(&too_many)).await.problem(422, "INVALID_REQUEST");
    // All at once, while one of them is given up.
    let (lost, first) = (tasks.first().expect("many").clone(), stage.at(&cid, 1));
    let body = batch(&ids);
    let whole = tokio::spawn(async move { first.post("/approvals/batch", &body).await });
    let cancel = stage.pat.post(&format!("/tasks/{lost}/cancel"), &json!({})).await.expect(200);
    let whole: Answer = whole.await.expect("no panic");
    let count = approved(stage.office.clone()).await - before;
    if whole.status == 200 {
        // Cancelled afterwards.
        assert_eq!(whole.json()["items"].as_array().map(Vec::len), Some(many));
        assert_eq!(count, many as u64 - 1);
        assert!(cancel["metadata"]["since"].get("APPROVED").is_some());
        return;
    }
    let refused = whole.problem(409, "BATCH_REFUSED");
    let items = refused["items"].as_array().expect("items");
    assert_eq!(items.len(), 1, "{refused}");
    assert_eq!(items.first().map(|one| text(one, "code")), Some("ALREADY_DECIDED".to_owned()));
    assert_eq!(items.first().map(|one| text(one, "approval_id")), requests.get(&lost).cloned());
    assert_eq!(count, 0, "nothing happened to any");
    // Without it, all of them.
    let rest: Vec<&String> = requests.iter().filter(|(task, _)| **task != lost).map(|(_, id)| id).collect();
    let done = cid.post("/approvals/batch", &batch(&rest)).await.expect(200);
    assert_eq!(done["items"].as_array().map(Vec::len), Some(many - 1));
    assert_eq!(approved(stage.office.clone()).await - before, many as u64 - 1);
}

async fn each_escalation_happens_once(stage: &Stage) {
    let office = &stage.office;
    let _ = office.person("mia", &[]).await;
    let _ = office.made(json!({ "user_id": "gus", "roles": [REVIEWER], "manager_id": "mia" })).await;
    office.set("approval:default_timeout", json!(1)).await;
    let id = stage.pat.submitted(json!({})).await;
    let over = u64::from(MOST_ESCALATIONS) + 1;
    let look = || async {
        let requests = office.requests(&id).await;
        let at_the_end = requests.iter().all(|one| one["escalation_level"].as_u64() == Some(over));
        if at_the_end { Ok(requests) } else { Err(format!("{requests:?}")) }
    };
    let requests = until("everything has escalated", LONG, look).await.expect("it does");
    // The manager first, then the administrator whom every server has.
    let asked: Vec<String> = requests.iter().map(|one| text(one, "reviewer_id")).collect();
    assert_eq!(asked, ["gus", "mia", "admin"]);
    assert!(requests.iter().all(|one| text(one, "status") == "PENDING"), "each can still answer");
    let steps = |entries: &[Value]| {
        let mut steps: BTreeMap<String, u64> = BTreeMap::new();
        for one in entries
            .iter()
            .filter(|one| matches!(text(one, "action").as_str(), "approval.escalate" | "approval.unanswered"))
        {
            *steps.entry(text(one, "object_id")).or_default() += 1;
        }
        steps
    };
    // Each begins one level above the one in whose place it is.
    let expected: BTreeMap<String, u64> =
        requests.iter().zip(0..).map(|(one, level)| (text(one, "approval_id"), over - level)).collect();
    let look = || async {
        let found = steps(&office.audit(&format!("task={id}")).await);
        let (some, all) = (found.values().sum::<u64>(), expected.values().sum::<u64>());
        if some >= all { Ok(found) } else { Err(format!("{found:?}")) }
    };
    let found = until("each step has its number", LONG, look).await.expect("they have");
    assert_eq!(found, expected);
}

async fn nobody_waits_for_who_left(stage: &Stage) {
    let office = &stage.office;
    let (boss, leaver) = (office.person("boss", &[]).await, "leaver");
    let _ = office.made(json!({ "user_id": leaver, "roles": [REVIEWER], "manager_id": "boss" })).await;
    let mut tasks = Vec::new();
    for _ in 0..20 {
        tasks.push(stage.pat.submitted(json!({})).await);
    }
    // Whoever sees that somebody left never sees that it is still asked.
    let door = stage.doors.last().expect("one at least").clone();
    let watch = tokio::spawn(async move {
        loop {
            let user = door.get("/users/leaver").await.expect(200);
            let open = door.get("/approvals?reviewer=leaver&status=PENDING").await.expect(200);
            if user["active"] == false {
                return open;
            }
        }
    });
    let _ = office.admin.patch("/users/leaver", &json!({ "active": false })).await.expect(200);
    assert_eq!(watch.await.expect("no panic")["items"], json!([]));
    for task in &tasks {
        let requests = office.requests(task).await;
        let told: Vec<(String, String)> =
            requests.iter().map(|one| (text(one, "reviewer_id"), text(one, "status"))).collect();
        let expected =
            [("leaver", "DELEGATED"), ("boss", "PENDING")].map(|(who, how)| (who.to_owned(), how.to_owned()));
        assert_eq!(told, expected);
    }
    let request = office.request(tasks.first().expect("twenty"), "boss").await;
    assert_eq!(boss.answers(&request, "approve").await.expect(200)["task_state"], "APPROVED");
}

/// Servers that share a record share keys, sessions, tokens, settings and limits.
async fn servers_are_one(stage: &Stage) {
    let office = &stage.office;
    for round in 0..ROUNDS {
        let key = format!("k-{round}");
        let calls = (0..12).map(|n| {
            let (pat, key) = (stage.at(&stage.pat, n), key.clone());
            let body = ade_testkit::people::task(json!({ "tags": [key] })).to_string();
            tokio::spawn(
                async move { pat.call_with("POST", "/tasks", &[("idempotency-key", &key)], &body).await },
            )
        });
        let mut made = Vec::new();
        for answer in all(calls.collect()).await {
            match answer.status {
                201 => made.push(text(&answer.json(), "task_id")),
                _ => drop(answer.problem(409, "IN_FLIGHT")),
            }
        }
        made.dedup();
        let listed = office.admin.get(&format!("/tasks?tag={key}")).await.expect(200);
        let listed: Vec<String> =
            listed["items"].as_array().expect("items").iter().map(|one| text(one, "task_id")).collect();
        assert_eq!((made.len(), listed), (1, made.clone()));
    }
    let gone = office.person("gone", &[AUTHOR, REVIEWER]).await;
    for n in 0..stage.doors.len() {
        let _ = stage.at(&gone, n).get("/tasks").await.expect(200);
    }
    let _ = office.admin.patch("/users/gone", &json!({ "active": false })).await.expect(200);
    office.set("approval:default_timeout", json!(77)).await;
    for (n, door) in stage.doors.iter().enumerate() {
        let _ = stage.at(&gone, n).get("/tasks").await.problem(401, "UNAUTHENTICATED");
        assert_eq!(door.get("/config/approval:default_timeout").await.expect(200)["value"], 77);
    }
    // Ten tries to sign in by one name, whichever servers they are sent to.
    let mut refused = 0;
    for n in 0..13 {
        let door = stage.doors.get(n % stage.doors.len()).expect("one at least");
        let body = json!({ "user_id": stage.pat.id, "password": "wrong password" }).to_string();
        let answer = door.send("POST", "/api/v1/sessions", &[], body).await;
        refused += usize::from(answer.status == 429);
    }
    assert_eq!(refused, 3);
}

/// An administrator who answers for two counts once.
async fn each_person_counts_once(stage: &Stage) {
    let office = &stage.office;
    let ada = office.person("ada", &["admin"]).await;
    let eli = office.person("eli", &[REVIEWER]).await;
    let _ = office.person("roy", &[REVIEWER]).await;
    office.policy(json!({ "name": "two", "task_types": ["twice"], "min_approvers": 2, "required_roles": [REVIEWER] })).await;
    let id = stage.pat.submitted(json!({ "type": "twice" })).await;
    let (first, second) = (office.request(&id, "eli").await, office.request(&id, "roy").await);
    for request in [&first, &second] {
        let answered = ada.answers(request, "approve").await.expect(200);
        assert_eq!(
            (text(&answered, "reviewed_by"), text(&answered, "task_state")),
            ("ada".to_owned(), "REVIEWING".to_owned())
        );
    }
    let task = office.task(&id).await;
    assert_eq!(
        (&task["requirements"][0]["needed"], &task["requirements"][0]["approved_by"]),
        (&json!(1), &json!(["ada"]))
    );
    // Who was asked may still answer: the last answer counts.
    assert_eq!(text(&eli.answers(&first, "approve").await.expect(200), "task_state"), "APPROVED");
    let approved = office.task(&id).await;
    assert_eq!(approved["requirements"][0]["approved_by"], json!(["ada", "eli"]));
}

#[tokio::test]
async fn embedded() {
    let house = House::embedded(env!("CARGO_BIN_EXE_ade"));
    everything(&house, MANY).await;
}

#[tokio::test]
async fn on_postgres() {
    let house = House::distributed(env!("CARGO_BIN_EXE_ade"), 3);
    // Making the tasks is what takes the time; that 500 fit is seen above.
    everything(&house, 100).await;
}

/// One scene after the other, each with people of its own, at the same servers.
async fn everything(house: &House, many: usize) {
    many_answer_and_one_decides(&Stage::of(house, "a").await).await;
    an_approval_counts_for_what_was_seen(&Stage::of(house, "b").await).await;
    a_batch_is_whole_or_nothing(&Stage::of(house, "c").await, many).await;
    nobody_waits_for_who_left(&Stage::of(house, "d").await).await;
    each_person_counts_once(&Stage::of(house, "e").await).await;
    servers_are_one(&Stage::of(house, "f").await).await;
    each_escalation_happens_once(&Stage::of(house, "g").await).await;
}
