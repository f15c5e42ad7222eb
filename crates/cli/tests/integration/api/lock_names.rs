//! Lock names and agent ids over HTTP: all characters are preserved wherever they appear, and lists are complete, sorted and
//! paginated.

use ade_testkit::api::encode_segment;
use serde_json::{Value, json};

use crate::api::start_server;

const SPECIAL_NAMES: [&str; 14] = [
    "plain",
    "a:b:c",
    "{id}",
    "100%",
    "%2f%25",
    "a/b",
    "../../etc",
    "two words",
    " ",
    "line\nline\r\n\ttab",
    "für 🔒 日本",
    "\u{0}\u{1}\u{7f}",
    "?x=1&y=2#z+",
    "\"quoted\\\" 'x' <b>",
];

fn texts(list: &Value, field: &str) -> Vec<String> {
    let all = list.as_array().expect("a list").iter();
    all.map(|item| item[field].as_str().expect("text").to_owned()).collect()
}

#[tokio::test]
async fn special_characters_are_preserved() {
    let (ade, api) = start_server().await;
    for id in SPECIAL_NAMES {
        for lock in [format!("task:{id}"), format!("resource:{}:{id}", id.replace(':', "_"))] {
            let body = json!({ "agent_id": id, "holder_id": format!("h {id}"), "purpose": id, "request_id": lock,
                "locks": [{ "lock": lock }] });
            let granted = api.post("/locks/acquire", &body).await.expect_status(200);
            let grant = &granted["grants"][0];
            assert_eq!(grant["lock"], lock.as_str());
            assert_eq!(api.post("/locks/acquire", &body).await.expect_status(200), granted);
            // In a path: fully percent-encoded, and as the client encodes it.
            let shown = api.get(&format!("/locks/{}", encode_segment(&lock))).await.expect_status(200);
            let client = ade.client().expect("a client");
            assert_eq!(serde_json::to_value(client.lock(&lock).await.expect("shown")).expect("JSON"), shown);
            let holder = &shown["holders"][0];
            assert_eq!(
                (&shown["lock"], &holder["agent_id"], &holder["holder_id"], &holder["purpose"]),
                (&json!(lock), &json!(id), &json!(format!("h {id}")), &json!(id))
            );
            // In the queue, the wait-for graph and a refusal.
            let other = json!({ "agent_id": format!("w{id}"), "holder_id": id, "queue": true, "locks": [{ "lock": lock }] });
            let ticket = api.post("/locks/acquire", &other).await.expect_status(202);
            assert_eq!(ticket["waiting_for"], lock.as_str());
            let graph = api.get("/locks/graph").await.expect_status(200);
            assert_eq!(texts(&graph["waits"], "waits_for"), [lock.as_str()]);
            assert_eq!(texts(&graph["waits"][0]["holders"], "agent_id"), [id]);
            assert_eq!(texts(&graph["waits"], "holder_id"), [id]);
            let refused =
                api.post("/locks/acquire", &json!({ "agent_id": "x", "locks": [{ "lock": lock }] })).await;
            assert_eq!(refused.expect_problem(423, "LOCK_HELD")["holders"][0]["agent_id"], id);
            // In list filters and agent routes.
            let listed = client.locks(&[("agent", id)]).await.expect("listed");
            assert_eq!(
                listed.items.iter().map(|item| item.lock.as_str()).collect::<Vec<_>>(),
                [lock.as_str()]
            );
            let agent = api.get(&format!("/agents/{}", encode_segment(id))).await.expect_status(200);
            assert_eq!((&agent["agent_id"], &agent["name"]), (&json!(id), &json!(id)));
            let of_agent = api.get(&format!("/agents/{}/locks", encode_segment(id))).await.expect_status(200);
            assert_eq!(texts(&of_agent["items"], "lock"), [lock.as_str()]);
            // In heartbeats, verification and breaking.
            let held = json!({ "agent_id": id, "holder_id": format!("h {id}"),
                "locks": [{ "lock": lock, "fencing_token": grant["fencing_token"] }] });
            let heartbeat = api.post("/locks/heartbeat", &held).await.expect_status(200);
            assert_eq!(heartbeat["results"][0]["lock"], lock.as_str());
            let verify = json!({ "lock": lock, "fencing_token": grant["fencing_token"] });
            assert_eq!(api.post("/locks/verify", &verify).await.expect_status(200)["holder"]["agent_id"], id);
            assert_eq!(client.break_lock(&lock, id.trim()).await.is_ok(), !id.trim().is_empty());
            let broken =
                api.delete(&format!("/locks/{}?reason=x", encode_segment(&lock))).await.expect_status(200);
            assert_eq!(broken["lock"], lock.as_str());
            assert_eq!(
                api.delete(&format!("/locks/tickets/{}", ticket["ticket"].as_str().expect("text")))
                    .await
                    .status,
                204
            );
            let _ =
                api.delete(&format!("/locks/{}?reason=x", encode_segment(&lock))).await.expect_status(200);
        }
    }
    assert_eq!(api.get("/locks").await.expect_status(200)["items"], json!([]));
}

#[tokio::test]
async fn names_survive_restart() {
    let (ade, api) = start_server().await;
    for id in SPECIAL_NAMES {
        let body = json!({ "agent_id": id, "purpose": id, "locks": [{ "lock": format!("task:{id}") }], "ttl_seconds": 300 });
        let _ = api.post("/locks/acquire", &body).await.expect_status(200);
    }
    let before = api.get("/locks").await.expect_status(200);
    ade.kill_and_restart().expect("starts again");
    assert_eq!(api.get("/locks").await.expect_status(200), before);
    let mut agents: Vec<String> = SPECIAL_NAMES.map(str::to_owned).to_vec();
    agents.sort();
    assert_eq!(texts(&api.get("/agents").await.expect_status(200)["items"], "agent_id"), agents);
}

#[tokio::test]
async fn lock_list_is_sorted_and_paginated() {
    let (ade, api) = start_server().await;
    let mut names: Vec<String> = SPECIAL_NAMES.iter().map(|id| format!("resource:x:{id}")).collect();
    names.extend((0..20).map(|n| format!("task:{n}")));
    for (n, name) in names.iter().enumerate() {
        let body = json!({ "agent_id": format!("a{}", n % 2), "locks": [{ "lock": name }] });
        let _ = api.post("/locks/acquire", &body).await.expect_status(200);
    }
    names.sort_by_key(|name| (name.starts_with("resource:"), name.clone()));
    let client = ade.client().expect("a client");
    for limit in ["1", "7", "200"] {
        let (mut found, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let mut filters = vec![("limit", limit)];
            filters.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
            let page = client.locks(&filters).await.expect("a page");
            assert!(page.items.len() <= limit.parse().expect("a number"));
            found.extend(page.items.into_iter().map(|item| item.lock));
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(found, names, "with pages of {limit}");
    }
    let list = async |query: &str| {
        texts(&api.get(&format!("/locks?{query}")).await.expect_status(200)["items"], "lock")
    };
    assert_eq!(list("kind=task").await.len(), 20);
    assert_eq!(list("kind=resource").await.len(), SPECIAL_NAMES.len());
    assert_eq!(list("resource_type=x").await.len(), SPECIAL_NAMES.len());
    assert_eq!(list("resource_type=y").await.len(), 0);
    assert_eq!(list("agent=a0&kind=task").await.len(), 10);
    assert_eq!(list("agent=nobody").await.len(), 0);
}

#[tokio::test]
async fn list_shows_twenty_waiters_and_single_lock_shows_all() {
    let (_ade, api) = start_server().await;
    let acquire_body = |agent: &str, queue: bool| json!({ "agent_id": agent, "queue": queue, "locks": [{ "lock": "task:1" }] });
    let _ = api.post("/locks/acquire", &acquire_body("a", false)).await.expect_status(200);
    let waiters: Vec<String> = (0..25).map(|n| format!("w{n}")).collect();
    for waiter in &waiters {
        let _ = api.post("/locks/acquire", &acquire_body(waiter, true)).await.expect_status(202);
    }
    let listed = api.get("/locks").await.expect_status(200)["items"][0].clone();
    assert_eq!((listed["queue"].as_array().map(Vec::len), &listed["queue_length"]), (Some(20), &json!(25)));
    let shown = api.get("/locks/task%3A1").await.expect_status(200);
    assert_eq!(texts(&shown["queue"], "agent_id"), waiters);
    let free = api.get("/locks/task%3Afree").await.expect_status(200);
    assert_eq!(
        free,
        json!({ "lock": "task:free", "mode": null, "holders": [], "queue": [], "queue_length": 0 })
    );
}
