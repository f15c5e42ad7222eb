//! What reviews are decided by, as it is changed through HTTP: policies, the registry of resources, settings, flags. And what
//! would happen if: a simulation says what submitting does, and a replay names what would have gone another way.

use std::collections::BTreeSet;

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_testkit::api::segment;
use ade_testkit::people::{task, text};
use ade_testkit::{House, Office, Person};
use serde_json::{Value, json};

struct Stage {
    _house: House,
    office: Office,
    pat: Person,
    rex: Person,
    ada: Person,
}

impl Stage {
    async fn new() -> Self {
        let house = House::embedded(env!("CARGO_BIN_EXE_ade"));
        let office = house.office().await;
        Self {
            pat: office.person("pat", &[AUTHOR]).await,
            rex: office.person("rex", &[REVIEWER]).await,
            ada: office.person("ada", &[ADMIN]).await,
            office,
            _house: house,
        }
    }

    /// The policies that a new task must satisfy.
    async fn asks(&self, kind: &str) -> Vec<String> {
        let id = self.pat.submitted(json!({ "type": kind })).await;
        let task = self.office.task(&id).await;
        task["requirements"].as_array().expect("a list").iter().map(|one| text(one, "policy")).collect()
    }
}

fn id_of(policy: &Value) -> String {
    format!("/policies/{}", text(policy, "policy_id"))
}

#[tokio::test]
async fn a_policy_counts_when_it_is_in_force_and_not_before() {
    let stage = Stage::new().await;
    let ada = &stage.ada;
    let rules = json!({ "name": "strict", "task_types": ["deploy"], "reviewers": ["rex", "ada"] });
    let made = ada.post("/policies", &rules).await.expect(201);
    assert_eq!((&made["active"], &made["draft"]), (&json!(false), &Value::Null));
    assert_eq!(stage.asks("deploy").await, ["default"], "it is a draft");
    let place = id_of(&made);
    let active = ada.post(&format!("{place}/activate"), &json!({})).await.expect(200);
    assert_eq!((&active["active"], &active["draft"]), (&json!(true), &Value::Null));
    assert_eq!(stage.asks("deploy").await, ["strict"]);
    assert_eq!(stage.asks("note").await, ["default"]);
    // Nothing is drafted: nothing changes.
    assert_eq!(ada.post(&format!("{place}/activate"), &json!({})).await.expect(200), active);
    // A change is a draft beside what is in force.
    let changed = ada.patch(&place, &json!({ "min_approvers": 2 })).await.expect(200);
    assert_eq!((&changed["min_approvers"], &changed["draft"]["min_approvers"]), (&json!(1), &json!(2)));
    let needed = |id: String| {
        let office = stage.office.clone();
        async move { office.task(&id).await["required_count"].clone() }
    };
    let before = stage.pat.submitted(json!({ "type": "deploy" })).await;
    assert_eq!(needed(before.clone()).await, 1);
    let _ = ada.post(&format!("{place}/activate"), &json!({})).await.expect(200);
    let after = stage.pat.submitted(json!({ "type": "deploy" })).await;
    assert_eq!(
        (needed(before).await, needed(after).await),
        (json!(1), json!(2)),
        "a review goes on as it began"
    );
    // Out of force, and gone.
    let _ = ada.patch(&place, &json!({ "active": false })).await.expect(200);
    assert_eq!(stage.asks("deploy").await, ["default"]);
    let _ = ada.patch(&place, &json!({ "active": true })).await.expect(200);
    assert_eq!(stage.asks("deploy").await, ["strict"]);
    assert_eq!(ada.delete(&place).await.status, 204);
    assert_eq!(stage.asks("deploy").await, ["default"]);
    let _ = ada.get(&place).await.problem(404, "POLICY_NOT_FOUND");
    let _ = ada.delete(&place).await.problem(404, "POLICY_NOT_FOUND");
    assert_eq!(ada.get("/policies").await.expect(200)["items"], json!([]));
    // The one that counts if no other does can be another.
    stage.office.policy(json!({ "name": "default", "required_roles": ["admin"] })).await;
    let task = stage.office.task(&stage.pat.submitted(json!({})).await).await;
    assert_eq!(task["requirements"][0]["policy"], "default");
    let asked: Vec<String> = stage
        .office
        .requests(&text(&task, "task_id"))
        .await
        .iter()
        .map(|one| text(one, "reviewer_id"))
        .collect();
    assert_eq!(asked, ["ada", "admin"]);
}

#[tokio::test]
async fn no_two_policies_have_one_name() {
    let stage = Stage::new().await;
    let ada = &stage.ada;
    let first = ada.post("/policies", &json!({ "name": "a" })).await.expect(201);
    let second = ada.post("/policies", &json!({ "name": "b", "active": true })).await.expect(201);
    let taken = |name: &str| json!({ "name": name });
    for active in [false, true] {
        let body = json!({ "name": "a", "active": active });
        let _ = ada.post("/policies", &body).await.problem(409, "ALREADY_EXISTS");
    }
    let _ = ada.patch(&id_of(&second), &taken("a")).await.problem(409, "ALREADY_EXISTS");
    assert_eq!(ada.get(&id_of(&second)).await.expect(200), second);
    // While a new name is drafted, both are taken.
    let _ = ada.patch(&id_of(&second), &taken("c")).await.expect(200);
    for name in ["b", "c"] {
        let _ = ada.post("/policies", &taken(name)).await.problem(409, "ALREADY_EXISTS");
    }
    let _ = ada.post(&format!("{}/activate", id_of(&second)), &json!({})).await.expect(200);
    let _ = ada.post("/policies", &taken("b")).await.expect(201);
    assert_eq!(ada.delete(&id_of(&first)).await.status, 204);
    let _ = ada.post("/policies", &taken("a")).await.expect(201);
    // Of many who want one at the same time, one has it.
    let calls = (0..8).map(|_| {
        let ada = ada.clone();
        tokio::spawn(async move { ada.post("/policies", &json!({ "name": "wanted" })).await.status })
    });
    let mut statuses = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        statuses.push(call.await.expect("no panic"));
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 409, 409, 409, 409, 409, 409, 409]);
    // A name is not an id, and what takes a name is no policy.
    for id in ["name:a", "a"] {
        let _ = ada.get(&format!("/policies/{}", segment(id))).await.problem(404, "POLICY_NOT_FOUND");
        assert_eq!(ada.delete(&format!("/policies/{}", segment(id))).await.status, 404);
    }
}

#[tokio::test]
async fn rules_are_checked_and_changed_by_administrators_alone() {
    let stage = Stage::new().await;
    let ada = &stage.ada;
    for (wrong, pointer) in [
        (json!({}), "/name"),
        (json!({ "name": " " }), "/name"),
        (json!({ "name": "p", "min_approvers": 0 }), "/min_approvers"),
        (json!({ "name": "p", "reject_threshold": 0 }), "/reject_threshold"),
        (json!({ "name": "p", "risk_threshold": 101 }), "/risk_threshold"),
        (json!({ "name": "p", "reviewers": ["rex"], "min_approvers": 2 }), "/min_approvers"),
        (json!({ "name": "p", "reviewers": ["rex", "rex"], "min_approvers": 2 }), "/min_approvers"),
    ] {
        let answer = ada.post("/policies", &wrong).await;
        let _ = answer.problem(422, "INVALID_REQUEST");
        assert_eq!(answer.pointers(), [pointer], "{wrong}");
    }
    let policy = ada.post("/policies", &json!({ "name": "p" })).await.expect(201);
    let _ = ada.post("/resources", &json!({ "pattern": "db:*", "criticality": 1 })).await.expect(201);
    for who in [&stage.pat, &stage.rex] {
        for (method, path, body) in [
            ("POST", "/policies".to_owned(), json!({ "name": "q" })),
            ("PATCH", id_of(&policy), json!({ "min_approvers": 2 })),
            ("DELETE", id_of(&policy), json!({})),
            ("POST", format!("{}/activate", id_of(&policy)), json!({})),
            ("POST", format!("{}/replay", id_of(&policy)), json!({})),
            ("POST", "/resources".to_owned(), json!({ "pattern": "q", "criticality": 1 })),
            ("PATCH", "/resources/db:*".to_owned(), json!({ "criticality": 2 })),
            ("DELETE", "/resources/db:*".to_owned(), json!({})),
            ("PUT", "/config/approval:validity".to_owned(), json!({ "value": 5 })),
            ("PUT", "/features/batch_approvals".to_owned(), json!({ "enabled": false })),
        ] {
            let _ = who.call(method, &path, &body.to_string()).await.problem(403, "FORBIDDEN");
        }
        let _ = who.get(&id_of(&policy)).await.expect(200);
    }
    assert_eq!(ada.get(&id_of(&policy)).await.expect(200), policy);
}

#[tokio::test]
async fn the_registry_says_how_critical_something_is() {
    let stage = Stage::new().await;
    let ada = &stage.ada;
    let patterns = ["db:*", "db:prod/eu-*", "db:prod/eu-1"];
    for (pattern, criticality) in patterns.iter().zip([20, 90, 10]) {
        let body = json!({ "pattern": pattern, "criticality": criticality, "dependents": ["app:shop"] });
        let made = ada.post("/resources", &body).await.expect(201);
        assert_eq!((&made["pattern"], &made["revision"]), (&json!(pattern), &json!(1)));
        let _ = ada.post("/resources", &body).await.problem(409, "ALREADY_EXISTS");
        let shown = ada.get(&format!("/resources/{}", segment(pattern))).await.expect(200);
        assert_eq!(shown, made);
    }
    let value = |id: &'static str| {
        let stage = &stage;
        async move {
            let resources = json!([{ "type": "db", "id": id, "mode": "exclusive" }]);
            let made = stage.pat.post("/tasks", &task(json!({ "resources": resources }))).await.expect(201);
            let factors = made["risk"]["factors"].as_array().expect("factors").clone();
            let of = |name: &str| {
                factors.iter().find(|one| text(one, "name").contains(name)).expect("a factor").clone()
            };
            (of("criticality")["value"].as_f64(), of("blast")["value"].as_f64())
        }
    };
    // The highest that matches; the resource and its one dependent.
    assert_eq!(value("prod/eu-1").await, (Some(90.0), Some(20.0)));
    assert_eq!(value("test").await, (Some(20.0), Some(20.0)));
    let place = format!("/resources/{}", segment("db:prod/eu-*"));
    let _ = ada.patch(&place, &json!({ "criticality": 95, "dependents": [] })).await.expect(200);
    assert_eq!(value("prod/eu-1").await, (Some(95.0), Some(20.0)));
    let _ = ada.patch(&place, &json!({ "pattern": "other" })).await.problem(422, "INVALID_REQUEST");
    assert_eq!(ada.delete(&place).await.status, 204);
    assert_eq!(value("prod/eu-1").await.0, Some(20.0));
    let _ = ada.get(&place).await.problem(404, "RESOURCE_NOT_FOUND");
    for wrong in [
        json!({ "pattern": "x" }),
        json!({ "criticality": 1 }),
        json!({ "pattern": "x", "criticality": 101 }),
        json!({ "pattern": "x", "criticality": 1, "dependents": ["app"] }),
    ] {
        let _ = ada.post("/resources", &wrong).await.problem(422, "INVALID_REQUEST");
    }
    // Page by page.
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = ada.get(&format!("/resources?limit=1&cursor={}", segment(&cursor))).await.expect(200);
        found.extend(page["items"].as_array().expect("items").iter().map(|one| text(one, "pattern")));
        cursor = text(&page, "next_cursor");
        if cursor.is_empty() {
            break;
        }
    }
    assert_eq!(found, ["db:*", "db:prod/eu-1"]);
}

#[tokio::test]
async fn settings_and_flags_count_from_the_next_request_on() {
    let stage = Stage::new().await;
    let ada = &stage.ada;
    let all = ada.get("/config").await.expect(200);
    let settings = all["items"].as_array().expect("items");
    assert!(settings.len() >= 6, "{all}");
    assert!(settings.iter().all(|one| one["revision"] == 0), "{all}");
    // Those of locks are in the configuration of each server, and are only shown.
    let (of_locks, settings): (Vec<&Value>, Vec<&Value>) =
        settings.iter().partition(|one| text(one, "name").starts_with("lock:"));
    for setting in of_locks {
        let place = format!("/config/{}", text(setting, "name"));
        let answer = ada.put(&place, &json!({ "value": setting["value"] })).await;
        assert!((400..500).contains(&answer.status), "{}", answer.text());
    }
    assert!(settings.iter().all(|one| one["is_default"] == true), "{all}");
    for setting in settings {
        let name = text(setting, "name");
        let place = format!("/config/{name}");
        assert_eq!(ada.get(&place).await.expect(200), *setting);
        for wrong in [json!(-1), json!("soon"), json!(1.5), json!(null), json!([1, 2, 3]), json!(u64::MAX)] {
            let _ = ada.put(&place, &json!({ "value": wrong })).await.problem(422, "INVALID_REQUEST");
        }
        // What has its default can be set to the same.
        let set = ada.put(&place, &json!({ "value": setting["value"] })).await.expect(200);
        assert_eq!(set["value"], setting["value"]);
    }
    for (method, body) in [("GET", json!({})), ("PUT", json!({ "value": 1 }))] {
        let _ =
            ada.call(method, "/config/no:such", &body.to_string()).await.problem(404, "SETTING_NOT_FOUND");
    }
    for (method, body) in [("GET", json!({})), ("PUT", json!({ "enabled": true }))] {
        let _ = ada.call(method, "/features/none", &body.to_string()).await.problem(404, "FEATURE_NOT_FOUND");
    }
    // What the words for risks mean.
    let level =
        || async { text(&stage.office.task(&stage.pat.draft(json!({})).await).await["risk"], "level") };
    assert_eq!(level().await, "LOW");
    let risky = json!({ "resources": [{ "type": "db", "id": "a", "mode": "shared" }] });
    let id = stage.pat.draft(risky.clone()).await;
    assert_eq!(text(&stage.office.task(&id).await["risk"], "level"), "LOW");
    stage.office.set("risk:thresholds", json!({ "medium": 1, "high": 2, "critical": 3 })).await;
    let id = stage.pat.draft(risky).await;
    assert_eq!(text(&stage.office.task(&id).await["risk"], "level"), "CRITICAL");
    // How long people have, but never longer than anybody has.
    stage.office.set("approval:default_timeout", json!(1_000)).await;
    stage.office.set("approval:max_timeout", json!(60)).await;
    let request = stage.office.requests(&stage.pat.submitted(json!({})).await).await.remove(0);
    let moment = |field: &str| text(&request, field).parse::<jiff::Timestamp>().expect("a time");
    assert_eq!(moment("due_at").duration_since(moment("created_at")).as_secs(), 60);
    // Many at once, or not.
    let id = stage.pat.submitted(json!({})).await;
    let batch = json!({ "approval_ids": [stage.office.request(&id, "rex").await], "action": "approve" });
    let flag = ada.put("/features/batch_approvals", &json!({ "enabled": false })).await.expect(200);
    assert_eq!((&flag["enabled"], &flag["revision"]), (&json!(false), &json!(1)));
    let refused = stage.rex.post("/approvals/batch", &batch).await.problem(403, "FEATURE_DISABLED");
    assert_eq!(refused["feature"], "batch_approvals");
    assert_eq!(text(&stage.office.task(&id).await, "state"), "REVIEWING");
    let _ = ada.put("/features/batch_approvals", &json!({ "enabled": true })).await.expect(200);
    let done = stage.rex.post("/approvals/batch", &batch).await.expect(200);
    assert_eq!(done["items"][0]["task_state"], "APPROVED");
    // The audit log says who set what.
    let entry = stage.office.audit("action=feature.set").await;
    assert!(entry.iter().all(|one| one["who"]["user_id"] == "ada"), "{entry:?}");
}

/// What somebody is told before and after.
fn told(of: &Value, fields: &[&str]) -> Vec<Value> {
    fields.iter().map(|field| of[*field].clone()).collect()
}

#[tokio::test]
async fn a_simulation_says_what_submitting_does() {
    let stage = Stage::new().await;
    let office = &stage.office;
    let _ = office.person("dan", &["dba"]).await;
    let eve = office.person("eve", &["dba"]).await;
    let _ = eve
        .post("/delegations", &json!({ "delegate_to": "rex", "conditions": { "task_types": ["db"] } }))
        .await
        .expect(201);
    office
        .policy(
            json!({ "name": "dbas", "task_types": ["db"], "required_roles": ["dba"], "min_approvers": 2 }),
        )
        .await;
    office.policy(json!({ "name": "prod", "resource_patterns": ["prod-*"], "required_roles": [REVIEWER], "priority": "URGENT" })).await;
    office.policy(json!({ "name": "trusted", "task_types": ["trusted"], "auto_approve_if": { "author_has_role": [AUTHOR] } })).await;
    office.policy(json!({ "name": "nobody", "task_types": ["none"], "required_roles": ["astronaut"] })).await;
    let _ = office
        .admin
        .post("/resources", &json!({ "pattern": "prod-*", "criticality": 100 }))
        .await
        .expect(201);
    let prod = json!([{ "type": "db", "id": "prod-1", "mode": "exclusive" }]);
    let mut seen = BTreeSet::new();
    for more in [
        json!({}),
        json!({ "type": "db" }),
        json!({ "type": "db", "resources": prod }),
        json!({ "type": "note", "executor": "agent", "resources": prod }),
        json!({ "type": "trusted" }),
        json!({ "type": "trusted", "resources": prod }),
        json!({ "type": "none" }),
        json!({ "lineage": { "sponsor_id": "rex" } }),
    ] {
        let entries = office.admin.get("/stats/overview").await.expect(200)["tasks"].clone();
        let imagined =
            stage.pat.post("/simulations", &json!({ "task": task(more.clone()) })).await.expect(200);
        assert_eq!(
            office.admin.get("/stats/overview").await.expect(200)["tasks"],
            entries,
            "nothing happens"
        );
        let id = stage.pat.draft(more.clone()).await;
        let draft = office.task(&id).await;
        let of_draft = stage.pat.post("/simulations", &json!({ "task_id": id })).await.expect(200);
        assert_eq!(office.task(&id).await, draft, "nothing happens to it");
        let same = [
            "outcome",
            "why",
            "policies",
            "requirements",
            "required_count",
            "reviewers",
            "passed_by",
            "lock_preview",
        ];
        assert_eq!(told(&imagined, &same), told(&of_draft, &same));
        let submitted = stage.pat.post(&format!("/tasks/{id}/submit"), &json!({})).await;
        let outcome = text(&imagined, "outcome");
        seen.insert(outcome.clone());
        if outcome == "no_quorum" {
            let refused = submitted.problem(422, "NO_QUORUM");
            assert_eq!(
                (&imagined["why"], &imagined["passed_by"]),
                (&refused["detail"], &refused["passed_by"])
            );
            continue;
        }
        let now = submitted.expect(202);
        assert_eq!(
            text(&now, "state"),
            if outcome == "reviewing" { "REVIEWING" } else { "APPROVED" },
            "{more}"
        );
        let same = ["policies", "passed_by", "required_count"];
        assert_eq!(told(&imagined, &same), told(&now, &same), "{more}");
        // What is only imagined has no lock of its own.
        let mut locks = now["lock_preview"].as_array().expect("a list").clone();
        locks.retain(|one| text(one, "lock") != format!("task:{id}"));
        assert_eq!(imagined["lock_preview"], json!(locks));
        assert_eq!(imagined["why"], now["auto_approved"]);
        let same = ["score", "level", "factors", "auto_approvable", "assessed_by"];
        assert_eq!(told(&imagined["risk"], &same), told(&now["risk"], &same), "{more}");
        let requests = office.requests(&id).await;
        let fields = ["reviewer_id", "policies", "delegation_chain", "why"];
        let of = |all: &[Value]| all.iter().map(|one| told(one, &fields)).collect::<Vec<_>>();
        assert_eq!(of(imagined["reviewers"].as_array().expect("a list")), of(&requests), "{more}");
        let names = |list: &Value| -> Vec<String> {
            list.as_array().expect("a list").iter().map(|one| text(one, "policy")).collect()
        };
        assert_eq!(names(&imagined["requirements"]), names(&now["requirements"]));
    }
    assert_eq!(seen, ["auto_approved", "no_quorum", "reviewing"].map(str::to_owned).into());
    // With what is only drafted.
    let strict = json!({ "name": "strict", "min_approvers": 1, "required_roles": ["dba"] });
    let body = json!({ "task": task(json!({})), "policies": [strict] });
    let imagined = stage.pat.post("/simulations", &body).await.expect(200);
    let reviewers: Vec<String> = imagined["reviewers"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| text(one, "reviewer_id"))
        .collect();
    assert_eq!(reviewers, ["dan", "eve"]);
    // At another time.
    let weekend =
        json!({ "name": "weekend", "window": { "weekdays": ["sat"], "time_zone": "Europe/Berlin" } });
    office.policy(weekend).await;
    for (at, applies) in [
        ("2026-11-13T22:59:59Z", false),
        ("2026-11-13T23:00:00Z", true),
        ("2026-11-14T22:59:59Z", true),
        ("2026-11-14T23:00:00Z", false),
    ] {
        let body = json!({ "task": task(json!({})), "at": at });
        let imagined = stage.pat.post("/simulations", &body).await.expect(200);
        let policy = if applies { "weekend" } else { "default" };
        assert_eq!(imagined["requirements"][0]["policy"], policy, "{at}");
    }
    for wrong in [json!({}), json!({ "task": {} }), json!({ "task": task(json!({})), "task_id": "x" })] {
        let _ = stage.pat.post("/simulations", &wrong).await.problem(422, "INVALID_REQUEST");
    }
    let wrong = json!({ "task": task(json!({})), "policies": [{ "name": "p" }, { "name": "q", "min_approvers": 0 }] });
    let answer = stage.pat.post("/simulations", &wrong).await;
    let _ = answer.problem(422, "INVALID_REQUEST");
    assert_eq!(answer.pointers(), ["/policies/1/min_approvers"]);
}

#[tokio::test]
async fn what_an_author_foresees_is_marked_and_what_goes_wrong_in_it_is_looked_at() {
    let Stage { office, pat, .. } = &Stage::new().await;
    office.policy(json!({ "name": "auto", "auto_approve_if": { "author_has_role": [AUTHOR] } })).await;
    let foreseen = |errors: &[&str]| {
        let change = json!({ "kind": "update", "what": "the table users" });
        let preview = json!({ "changes": [change], "warnings": [], "errors": errors });
        json!({ "executor": "agent", "preview": preview })
    };
    let magnitude = |task: &Value| {
        let factors = task["risk"]["factors"].as_array().expect("factors").clone();
        factors.into_iter().find(|one| one["name"] == "change_magnitude").expect("weighed")["value"].clone()
    };
    let task = office.task(&pat.submitted(foreseen(&[])).await).await;
    assert_eq!((&task["state"], magnitude(&task)), (&json!("APPROVED"), json!(5.0)));
    assert_eq!(task["preview"]["unverifiable"], true);
    let task = office.task(&pat.submitted(foreseen(&["permission denied"])).await).await;
    assert_eq!((&task["state"], magnitude(&task)), (&json!("REVIEWING"), json!(100.0)));
    assert_eq!(task["risk"]["auto_approvable"], false);
}

#[tokio::test]
async fn a_replay_names_exactly_what_would_have_gone_another_way() {
    let stage = Stage::new().await;
    let mut expected = BTreeSet::new();
    for n in 0..6 {
        let kind = if n % 2 == 0 { "deploy" } else { "note" };
        let id = stage.pat.submitted(json!({ "type": kind })).await;
        // However it ended.
        let request = stage.office.request(&id, "rex").await;
        match n {
            0 | 1 => drop(stage.rex.answers(&request, "approve").await.expect(200)),
            2 | 3 => drop(stage.rex.answers(&request, "reject").await.expect(200)),
            _ => {}
        }
        if kind == "deploy" {
            expected.insert(id);
        }
    }
    let _ = stage.pat.draft(json!({ "type": "deploy" })).await;
    let rules = json!({ "name": "strict", "task_types": ["deploy"], "reviewers": ["ada"] });
    let policy = stage.ada.post("/policies", &rules).await.expect(201);
    let place = format!("{}/replay", id_of(&policy));
    let auditor = stage.office.person("ann", &["auditor"]).await;
    let before = stage.office.admin.get("/tasks").await.expect(200);
    for who in [&stage.ada, &auditor] {
        let replay = who.post(&place, &json!({})).await.expect(200);
        let differs = replay["differs"].as_array().expect("a list");
        let found: BTreeSet<String> = differs.iter().map(|one| text(one, "task_id")).collect();
        assert_eq!(found, expected);
        for one in differs {
            assert_eq!(told(one, &["was", "would_be"]), ["1 of rex for default", "1 of ada for strict"]);
        }
    }
    assert_eq!(stage.office.admin.get("/tasks").await.expect(200), before);
    // In force, it changes nothing any more.
    let _ = stage.ada.post(&format!("{}/activate", id_of(&policy)), &json!({})).await.expect(200);
    assert_eq!(stage.ada.post(&place, &json!({})).await.expect(200)["differs"], json!([]));
    let unknown = format!("/policies/{}/replay", "00000000-0000-7000-8000-000000000000");
    let _ = stage.ada.post(&unknown, &json!({})).await.problem(404, "POLICY_NOT_FOUND");
}
