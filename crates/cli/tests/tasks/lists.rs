//! Lists of tasks, requests and entries through HTTP, on both records: filters, order and pages.

use std::time::Duration;

use ade_domain::people::{AUTHOR, REVIEWER};
use ade_testkit::api::{Api, segment};
use ade_testkit::people::text;
use ade_testkit::wait::until;
use ade_testkit::{House, Office};
use serde_json::{Value, json};

/// All of a list, a few at a time.
async fn all(api: &Api, path: &str, limit: usize) -> Vec<Value> {
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let mark = if path.contains('?') { '&' } else { '?' };
        let place = format!("{path}{mark}limit={limit}&cursor={}", segment(&cursor));
        let page = api.get(&place).await.expect(200);
        let items = page["items"].as_array().expect("items");
        assert!(items.len() <= limit);
        found.extend(items.iter().cloned());
        match page["next_cursor"].as_str() {
            Some(next) => next.clone_into(&mut cursor),
            None => return found,
        }
    }
}

async fn ids(api: &Api, path: &str, field: &str) -> Vec<String> {
    let found: Vec<String> = all(api, path, 3).await.iter().map(|one| text(one, field)).collect();
    let whole: Vec<String> = all(api, path, 200).await.iter().map(|one| text(one, field)).collect();
    assert_eq!(found, whole, "{path} page by page");
    found
}

async fn tasks_and_requests(office: &Office) {
    let pat = office.person("pat", &[AUTHOR]).await;
    let pia = office.person("pia", &[AUTHOR]).await;
    let rex = office.person("rex", &[REVIEWER]).await;
    let mut made = Vec::new();
    for n in 0..10 {
        let author = if n % 3 == 0 { &pia } else { &pat };
        let kind = if n % 2 == 0 { "deploy" } else { "note" };
        let name = if n < 4 { "prod 1" } else { "prod 2" };
        let tags = json!([format!("t{}", n % 4), "all", "100%_"]);
        let resources =
            json!([{ "type": "db", "id": name, "mode": "shared" }, { "type": "net", "id": format!("{n}") }]);
        let more = json!({ "type": kind, "tags": tags, "resources": resources });
        made.push((n, if n < 8 { author.submitted(more).await } else { author.draft(more).await }));
    }
    // The newest first.
    let expected = |holds: &dyn Fn(i32) -> bool| -> Vec<String> {
        made.iter().rev().filter(|(n, _)| holds(*n)).map(|(_, id)| id.clone()).collect()
    };
    let admin = &office.admin;
    for (query, holds) in [
        ("", &(|_| true) as &dyn Fn(i32) -> bool),
        ("?state=DRAFT", &|n| n >= 8),
        ("?state=REVIEWING", &|n| n < 8),
        ("?state=APPROVED", &|_| false),
        ("?author=pia", &|n| n % 3 == 0),
        ("?author=nobody", &|_| false),
        ("?type=deploy", &|n| n % 2 == 0),
        ("?type=dep", &|_| false),
        ("?tag=t1", &|n| n % 4 == 1),
        ("?tag=100%25_", &|_| true),
        ("?tag=100%25", &|_| false),
        ("?resource=db:prod%201", &|n| n < 4),
        ("?resource=net:7", &|n| n == 7),
        ("?resource=db:prod", &|_| false),
        ("?author=pat&type=note&tag=t1&state=REVIEWING&resource=db:prod%202", &|n| n == 5),
    ] {
        assert_eq!(ids(admin, &format!("/tasks{query}"), "task_id").await, expected(holds), "{query}");
    }
    // Everybody sees its own, and the reviewer what it is asked about.
    assert_eq!(ids(&pat, "/tasks", "task_id").await, expected(&|n| n % 3 != 0));
    assert_eq!(ids(&rex, "/tasks", "task_id").await, expected(&|n| n < 8));
    for wrong in ["state=draft", "state=", "cursor=x", "limit=0", "limit=201", "colour=red"] {
        let _ = admin.get(&format!("/tasks?{wrong}")).await.problem(422, "INVALID_REQUEST");
    }
    // Requests by score, then in the order in which they were made.
    office.policy(json!({ "name": "urgent", "task_types": ["fire"], "priority": "URGENT" })).await;
    office.policy(json!({ "name": "low", "task_types": ["dust"], "priority": "LOW" })).await;
    let dust = pat.submitted(json!({ "type": "dust" })).await;
    let fire = pat.submitted(json!({ "type": "fire", "description": "put it out\nall of it" })).await;
    let listed = all(&rex, "/approvals?status=PENDING", 3).await;
    assert_eq!(listed, all(&rex, "/approvals?reviewer=me&status=PENDING", 200).await);
    assert_eq!(listed, all(admin, "/approvals?reviewer=rex&status=PENDING", 4).await);
    assert_eq!(listed.first().map(|one| text(one, "task_id")), Some(fire.clone()));
    assert_eq!(listed.last().map(|one| text(one, "task_id")), Some(dust));
    assert_eq!(listed.first().map(|one| text(one, "task_description")).as_deref(), Some("put it out"));
    let scores: Vec<(i64, String)> = listed
        .iter()
        .map(|one| (-one["score"].as_i64().expect("a score"), text(one, "approval_id")))
        .collect();
    assert!(scores.is_sorted(), "{scores:?}");
    let task = office.task(&fire).await;
    let risk = task["risk"]["score"].as_i64().expect("a score");
    assert_eq!(scores.first().map(|one| -one.0), Some(risk * 10 + 1_000));
    let _ = rex.answers(&office.request(&fire, "rex").await, "approve").await.expect(200);
    assert_eq!(ids(&rex, "/approvals?status=APPROVED", "task_id").await, [fire.as_str()]);
    assert_eq!(all(&rex, "/approvals?status=PENDING", 200).await.len(), listed.len() - 1);
    for wrong in ["status=OPEN", "cursor=x", "cursor=5-x"] {
        let _ = rex.get(&format!("/approvals?{wrong}")).await.problem(422, "INVALID_REQUEST");
    }
    entries(office, &fire).await;
}

/// The audit log by task, by actor, by action, by time; and as files.
async fn entries(office: &Office, task: &str) {
    let admin = &office.admin;
    let look = || async {
        let found = office.audit(&format!("task={task}")).await;
        let last = found.last().map(|one| text(one, "action")).unwrap_or_default();
        if last == "task.approve" { Ok(found) } else { Err(last) }
    };
    let found = until("every entry has its number", Duration::from_secs(60), look).await.expect("they have");
    let actions: Vec<String> = found.iter().map(|one| text(one, "action")).collect();
    let expected =
        ["task.create", "task.submit", "task.assign", "approval.request", "approval.approve", "task.approve"];
    assert_eq!(actions, expected);
    let who: Vec<Value> = found.iter().map(|one| one["who"]["user_id"].clone()).collect();
    assert_eq!(who, [json!("pat"), json!("pat"), Value::Null, Value::Null, json!("rex"), Value::Null]);
    assert_eq!(all(admin, &format!("/tasks/{task}/audit"), 2).await, found);
    assert_eq!(all(admin, &format!("/audit?task={task}"), 200).await, found);
    let of = |action: &str| format!("/audit?action={action}&task={task}");
    assert_eq!(all(admin, &of("task.submit"), 200).await.len(), 1);
    assert_eq!(all(admin, &of("task"), 200).await.len(), 0);
    assert_eq!(all(admin, &format!("/audit?actor=rex&task={task}"), 200).await.len(), 1);
    // From one time until before another.
    let at: Vec<String> = found.iter().map(|one| text(one, "at")).collect();
    let (from, to) = (at.first().expect("six"), at.last().expect("six"));
    let between = all(admin, &format!("/audit?task={task}&from={from}&to={to}"), 200).await;
    assert_eq!(between.len(), at.iter().filter(|moment| *moment < to).count());
    let whole = office.audit("").await;
    let numbers: Vec<u64> = whole.iter().map(|one| one["number"].as_u64().expect("a number")).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    let csv = admin.get("/audit/export?format=csv").await;
    assert!(csv.header("content-type").starts_with("text/csv"));
    assert!(csv.text().lines().count() > whole.len());
    let verdict = admin.get("/audit/verify").await.expect(200);
    assert_eq!(verdict["valid"], true);
}

#[tokio::test]
async fn lists_embedded() {
    let house = House::embedded(env!("CARGO_BIN_EXE_ade"));
    tasks_and_requests(&house.office().await).await;
}

#[tokio::test]
async fn lists_on_postgres() {
    let house = House::distributed(env!("CARGO_BIN_EXE_ade"), 1);
    tasks_and_requests(&house.office().await).await;
}
