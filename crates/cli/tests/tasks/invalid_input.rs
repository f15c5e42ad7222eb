//! Strange names, texts and numbers, through HTTP and on both records: each is taken or refused with a described answer, the
//! same on either record, and nothing that was taken makes anything unreadable.

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_testkit::House;
use ade_testkit::api::Api;
use ade_testkit::people::{task, text};
use serde_json::{Value, json};

/// So deep that it can be sent, but hardly deeper.
fn nested(depth: usize) -> Value {
    (0..depth).fold(json!(1), |inner, _| json!({ "a": inner }))
}

/// Sends everything, and tells the statuses.
async fn sent(house: &House) -> Vec<(String, u16)> {
    let office = house.office().await;
    let ada = office.person("ada", &[ADMIN, AUTHOR]).await;
    let rex = office.person("rex", &[REVIEWER]).await;
    let mut told = Vec::new();
    let mut tell = |what: String, answer: ade_testkit::api::Answer| {
        assert!(answer.status < 500, "{what}: {}", answer.text());
        told.push((what, answer.status));
        answer
    };
    // Where a path has a name.
    let long = "x".repeat(5_000);
    let names = ["%00", "a%00b", "%ff", "%C3%BC", "..%2F..", "%20", "me", "*", "name:default", long.as_str()];
    for (method, path, _) in office.admin.operations() {
        if !path.contains('{') {
            continue;
        }
        for name in names {
            let parts = path.split('/').map(|part| if part.starts_with('{') { name } else { part });
            let place = parts.collect::<Vec<_>>().join("/");
            let short: String = place.chars().take(80).collect();
            let answer = ada.call(&method, &place, "{}").await;
            // It is the one who asks that `me` names.
            if name != "me" {
                tell(format!("{method} {short}"), answer);
            }
        }
    }
    // Where a list is asked for something.
    for (method, path, operation) in office.admin.operations() {
        if method != "GET" || path.contains('{') || path.starts_with("/locks") {
            continue;
        }
        let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
        let mut queries: Vec<String> = vec!["no_such=1".to_owned()];
        for name in parameters.iter().map(|one| text(one, "name")) {
            queries.extend(
                ["%00", "%FF", "", "-1", "x", "99999999999999999999"].map(|value| format!("{name}={value}")),
            );
        }
        for query in queries {
            let answer = ada.get(&format!("{path}?{query}")).await;
            tell(format!("GET {path}?{query}"), answer);
        }
    }
    // Where something is said.
    for silly in ["a\u{0}b", "\u{feff}", "\u{202e}", "\u{10ffff}", " "] {
        let shown: String = silly.escape_default().collect();
        let mut bodies = vec![
            ("/users", json!({ "user_id": silly })),
            ("/users", json!({ "user_id": format!("u{}", silly.len()), "name": silly })),
            ("/users", json!({ "user_id": format!("r{}", silly.len()), "roles": [silly] })),
            ("/users", json!({ "user_id": format!("m{}", silly.len()), "manager_id": silly })),
            ("/users/ada/tokens", json!({ "name": silly })),
            ("/policies", json!({ "name": silly })),
            (
                "/policies",
                json!({ "name": format!("p {shown}"), "task_types": [silly], "reviewers": [silly], "required_roles": [silly] }),
            ),
            ("/policies", json!({ "name": format!("w {shown}"), "window": { "time_zone": silly } })),
            ("/resources", json!({ "pattern": silly, "criticality": 1 })),
            ("/delegations", json!({ "owner_id": silly, "delegate_to": "rex" })),
            (
                "/delegations",
                json!({ "owner_id": "ada", "delegate_to": "rex", "active": false, "conditions": { "task_types": [silly] } }),
            ),
            ("/agents", json!({ "agent_id": silly })),
            (
                "/agents",
                json!({ "agent_id": format!("a{}", silly.len()), "name": silly, "config": { "a": silly } }),
            ),
            ("/sessions", json!({ "user_id": silly, "password": silly })),
            ("/simulations", json!({ "task": task(json!({ "description": silly })) })),
        ];
        for part in [
            json!({ "type": silly }),
            json!({ "description": silly }),
            json!({ "parameters": { "a": silly } }),
            json!({ "parameters": { silly: 1 } }),
            json!({ "resources": [{ "type": silly, "id": "a" }] }),
            json!({ "resources": [{ "type": "a", "id": silly }] }),
            json!({ "tags": [silly] }),
            json!({ "team": silly }),
            json!({ "lineage": { "agent_id": silly } }),
            json!({ "executor": "agent", "preview": { "warnings": [silly] } }),
        ] {
            bodies.push(("/tasks", task(part)));
        }
        for (path, body) in bodies {
            let answer = ada.post(path, &body).await;
            tell(format!("POST {path} {body}").escape_default().to_string(), answer);
        }
        let id = ada.submitted(json!({})).await;
        let request = office.request(&id, "rex").await;
        let answer = ada.post(&format!("/tasks/{id}/comments"), &json!({ "text": silly })).await;
        tell(format!("comment {shown}"), answer);
        let answer = rex.post(&format!("/approvals/{request}/delegate"), &json!({ "to": silly })).await;
        tell(format!("delegate {shown}"), answer);
        let answer = rex.post(&format!("/approvals/{request}/reject"), &json!({ "reason": silly })).await;
        tell(format!("reject {shown}"), answer);
    }
    // How deep, and how large.
    for depth in [60, 62, 63, 100, 120, 126, 130] {
        let answer = ada.post("/tasks", &task(json!({ "parameters": nested(depth) }))).await;
        tell(format!("{depth} deep"), answer);
    }
    for number in
        ["-0.0", "1e300", "1e400", "123456789012345678901234567890", "0.1", "1E2", "9007199254740993"]
    {
        let body =
            format!(r#"{{"type":"n","description":"n","executor":"noop","parameters":{{"n":{number}}}}}"#);
        let answer = ada.call("POST", "/tasks", &body).await;
        let answer = tell(format!("the number {number}"), answer);
        if answer.status == 201 {
            // What is stored is what was sent, and has the digest that was told.
            let made = answer.json();
            let shown = office.task(&text(&made, "task_id")).await;
            assert_eq!((&shown["digest"], &shown["config"]), (&made["digest"], &made["config"]), "{number}");
        }
    }
    // A lock may have any name: it is held, shown, broken and told of.
    let (lock, agent) = ("task:a\u{0}b", "agent \u{0}");
    let body = json!({ "agent_id": agent, "purpose": agent, "locks": [{ "lock": lock }] });
    let answer = ada.post("/locks/acquire", &body).await;
    tell("an agent in the record has no such name".to_owned(), answer);
    let _ = office.admin.post("/locks/acquire", &body).await.expect(200);
    let place = format!("/locks/{}", ade_testkit::api::segment(lock));
    let shown = office.admin.get(&place).await.expect(200);
    assert_eq!((&shown["lock"], &shown["holders"][0]["agent_id"]), (&json!(lock), &json!(agent)));
    let _ = office.admin.get(&format!("/agents/{}", ade_testkit::api::segment(agent))).await.expect(200);
    let broken = office.admin.delete(&format!("{place}?reason=a%00b")).await.expect(200);
    assert_eq!(broken["lock"], lock);
    everything_can_be_read(&office.admin).await;
    told
}

/// Every list can still be read to its end.
async fn everything_can_be_read(api: &Api) {
    for path in [
        "/tasks",
        "/users",
        "/policies",
        "/delegations",
        "/resources",
        "/agents",
        "/audit",
        "/approvals?reviewer=*",
    ] {
        let mut cursor = String::new();
        loop {
            let mark = if path.contains('?') { '&' } else { '?' };
            let place = format!("{path}{mark}limit=7&cursor={}", ade_testkit::api::segment(&cursor));
            let page = api.get(&place).await.expect(200);
            for one in page["items"].as_array().expect("items") {
                if path == "/tasks" {
                    let id = text(one, "task_id");
                    let _ = api.get(&format!("/tasks/{id}")).await.expect(200);
                }
            }
            match page["next_cursor"].as_str() {
                Some(next) => next.clone_into(&mut cursor),
                None => break,
            }
        }
    }
    let export = api.get("/audit/export?format=csv").await;
    assert_eq!(export.status, 200);
    assert_eq!(api.get("/audit/verify").await.expect(200)["valid"], true);
}

#[tokio::test]
async fn both_records_take_and_refuse_the_same() {
    let (embedded, distributed) =
        (House::embedded(env!("CARGO_BIN_EXE_ade")), House::distributed(env!("CARGO_BIN_EXE_ade"), 1));
    let (left, right) = (sent(&embedded).await, sent(&distributed).await);
    assert_eq!(left.len(), right.len());
    for (left, right) in left.iter().zip(&right) {
        assert_eq!(left, right);
    }
}
