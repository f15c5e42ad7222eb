//! Lists of tasks, approval requests and audit entries over HTTP: filters, order and pagination.

use std::time::Duration;

use ade_domain::people::{AUTHOR, REVIEWER};
use ade_testkit::ApiClient;
use ade_testkit::deployment::text_field;
use ade_testkit::wait::until;
use ade_testkit::{AdminClient, Deployment};
use serde_json::{Value, json};

use crate::tasks::all_pages;

/// The ids of a list, which must be the same with small and large pages.
async fn ids(api: &ApiClient, path: &str, field: &str) -> Vec<String> {
    let small_pages: Vec<String> =
        all_pages(api, path, 3).await.iter().map(|item| text_field(item, field)).collect();
    let large_pages: Vec<String> =
        all_pages(api, path, 200).await.iter().map(|item| text_field(item, field)).collect();
    assert_eq!(small_pages, large_pages, "{path} page by page");
    small_pages
}

#[tokio::test]
async fn lists_are_filtered_sorted_and_paginated() {
    let deployment = Deployment::embedded(env!("CARGO_BIN_EXE_ade"));
    let org = &deployment.admin().await;
    let pat = org.create_user("pat", &[AUTHOR]).await;
    let pia = org.create_user("pia", &[AUTHOR]).await;
    let rex = org.create_user("rex", &[REVIEWER]).await;
    let mut created = Vec::new();
    for n in 0..10 {
        let author = if n % 3 == 0 { &pia } else { &pat };
        let kind = if n % 2 == 0 { "deploy" } else { "note" };
        let name = if n < 4 { "prod 1" } else { "prod 2" };
        let tags = json!([format!("t{}", n % 4), "all", "100%_"]);
        let resources =
            json!([{ "type": "db", "id": name, "mode": "shared" }, { "type": "net", "id": format!("{n}") }]);
        let fields = json!({ "type": kind, "tags": tags, "resources": resources });
        created.push((
            n,
            if n < 8 { author.create_submitted(fields).await } else { author.create_draft(fields).await },
        ));
    }
    // Newest first.
    let expected = |matches: &dyn Fn(i32) -> bool| -> Vec<String> {
        created.iter().rev().filter(|(n, _)| matches(*n)).map(|(_, id)| id.clone()).collect()
    };
    let admin = &org.api;
    for (query, matches) in [
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
        assert_eq!(ids(admin, &format!("/tasks{query}"), "task_id").await, expected(matches), "{query}");
    }
    // Authors see their own tasks, a reviewer those with a request to them.
    assert_eq!(ids(&pat, "/tasks", "task_id").await, expected(&|n| n % 3 != 0));
    assert_eq!(ids(&rex, "/tasks", "task_id").await, expected(&|n| n < 8));
    for invalid in ["state=draft", "state=", "cursor=x", "limit=0", "limit=201", "colour=red"] {
        let _ = admin.get(&format!("/tasks?{invalid}")).await.expect_problem(422, "INVALID_REQUEST");
    }
    // Requests are ordered by score, then by creation.
    org.create_policy(json!({ "name": "urgent", "task_types": ["fire"], "priority": "URGENT" })).await;
    org.create_policy(json!({ "name": "low", "task_types": ["dust"], "priority": "LOW" })).await;
    let dust = pat.create_submitted(json!({ "type": "dust" })).await;
    let fire = pat.create_submitted(json!({ "type": "fire", "description": "put it out\nall of it" })).await;
    let listed = all_pages(&rex, "/approvals?reviewer=me&status=PENDING", 3).await;
    // Without a reviewer, a list has the requests of all tasks that the caller may see.
    assert_eq!(listed, all_pages(admin, "/approvals?status=PENDING", 200).await, "rex is the only reviewer");
    assert_eq!(listed, all_pages(&rex, "/approvals?status=PENDING", 200).await);
    let own = ids(&pat, "/tasks?state=REVIEWING", "task_id").await;
    let mut of_pat = ids(&pat, "/approvals?status=PENDING", "task_id").await;
    of_pat.sort_by(|a, b| b.cmp(a));
    assert_eq!(of_pat, own, "pat is the author");
    assert!(ids(&pat, "/approvals?reviewer=me", "task_id").await.is_empty());
    assert_eq!(listed, all_pages(admin, "/approvals?reviewer=rex&status=PENDING", 4).await);
    assert_eq!(listed.first().map(|item| text_field(item, "task_id")), Some(fire.clone()));
    assert_eq!(listed.last().map(|item| text_field(item, "task_id")), Some(dust));
    assert_eq!(
        listed.first().map(|item| text_field(item, "task_description")).as_deref(),
        Some("put it out")
    );
    let scores: Vec<(i64, String)> = listed
        .iter()
        .map(|item| (-item["score"].as_i64().expect("a score"), text_field(item, "approval_id")))
        .collect();
    assert!(scores.is_sorted(), "{scores:?}");
    let task = org.task_request(&fire).await;
    let risk = task["risk"]["score"].as_i64().expect("a score");
    assert_eq!(scores.first().map(|item| -item.0), Some(risk * 10 + 1_000));
    let _ = rex.decide(&org.approval_id(&fire, "rex").await, "approve").await.expect_status(200);
    assert_eq!(ids(&rex, "/approvals?status=APPROVED", "task_id").await, [fire.as_str()]);
    assert_eq!(all_pages(&rex, "/approvals?status=PENDING", 200).await.len(), listed.len() - 1);
    for invalid in ["status=OPEN", "cursor=x", "cursor=5-x"] {
        let _ = rex.get(&format!("/approvals?{invalid}")).await.expect_problem(422, "INVALID_REQUEST");
    }
    check_audit_lists(org, &fire).await;
}

/// The audit log filtered by task, actor, action and time, and its export.
async fn check_audit_lists(org: &AdminClient, task: &str) {
    let admin = &org.api;
    let check = || async {
        let found = org.audit_entries(&format!("task={task}")).await;
        let last = found.last().map(|item| text_field(item, "action")).unwrap_or_default();
        if last == "task.approve" { Ok(found) } else { Err(last) }
    };
    let found = until("the approval to appear in the audit log", Duration::from_secs(60), check)
        .await
        .expect("in time");
    let actions: Vec<String> = found.iter().map(|item| text_field(item, "action")).collect();
    let expected =
        ["task.create", "task.submit", "task.assign", "approval.request", "approval.approve", "task.approve"];
    assert_eq!(actions, expected);
    let actors: Vec<Value> = found.iter().map(|item| item["who"]["user_id"].clone()).collect();
    assert_eq!(actors, [json!("pat"), json!("pat"), Value::Null, Value::Null, json!("rex"), Value::Null]);
    assert_eq!(all_pages(admin, &format!("/tasks/{task}/audit"), 2).await, found);
    assert_eq!(all_pages(admin, &format!("/audit?task={task}"), 200).await, found);
    let by_action = |action: &str| format!("/audit?action={action}&task={task}");
    assert_eq!(all_pages(admin, &by_action("task.submit"), 200).await.len(), 1);
    assert_eq!(all_pages(admin, &by_action("task"), 200).await.len(), 0);
    assert_eq!(all_pages(admin, &format!("/audit?actor=rex&task={task}"), 200).await.len(), 1);
    // `from` is inclusive, `to` is exclusive.
    let times: Vec<String> = found.iter().map(|item| text_field(item, "at")).collect();
    let (from, to) = (times.first().expect("six entries"), times.last().expect("six entries"));
    let between = all_pages(admin, &format!("/audit?task={task}&from={from}&to={to}"), 200).await;
    assert_eq!(between.len(), times.iter().filter(|time| *time < to).count());
    let entire_log = org.audit_entries("").await;
    let numbers: Vec<u64> =
        entire_log.iter().map(|item| item["number"].as_u64().expect("a number")).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    let csv = admin.get("/audit/export?format=csv").await;
    assert!(csv.header("content-type").starts_with("text/csv"));
    assert!(csv.text().lines().count() > entire_log.len());
    let verdict = admin.verify_audit().await;
    assert_eq!(verdict["valid"], true);
}
