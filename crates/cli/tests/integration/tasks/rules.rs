//! Rules over HTTP: policies, the resource registry, settings and feature flags; simulations, which predict a submission; and
//! replays, which list the tasks that a policy would have treated differently.

use std::collections::BTreeSet;

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_testkit::api::encode_segment;
use ade_testkit::deployment::{task, text_field};
use ade_testkit::{AdminClient, Deployment, TestUser};
use serde_json::{Value, json};

use crate::tasks::{UNKNOWN_ID, all_pages};

struct Fixture {
    _deployment: Deployment,
    org: AdminClient,
    pat: TestUser,
    rex: TestUser,
    ada: TestUser,
}

impl Fixture {
    async fn new() -> Self {
        let deployment = Deployment::embedded(env!("CARGO_BIN_EXE_ade"));
        let org = deployment.admin().await;
        Self {
            pat: org.create_user("pat", &[AUTHOR]).await,
            rex: org.create_user("rex", &[REVIEWER]).await,
            ada: org.create_user("ada", &[ADMIN]).await,
            org,
            _deployment: deployment,
        }
    }

    /// The policies that apply to a new task.
    async fn policies_for(&self, kind: &str) -> Vec<String> {
        let id = self.pat.create_submitted(json!({ "type": kind })).await;
        let task = self.org.task_request(&id).await;
        task["requirements"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|requirement| text_field(requirement, "policy"))
            .collect()
    }
}

fn policy_path(policy: &Value) -> String {
    format!("/policies/{}", text_field(policy, "policy_id"))
}

#[tokio::test]
async fn policy_applies_only_while_active() {
    let fixture = Fixture::new().await;
    let ada = &fixture.ada;
    let rules = json!({ "name": "strict", "task_types": ["deploy"], "reviewers": ["rex", "ada"] });
    let created = ada.post("/policies", &rules).await.expect_status(201);
    assert_eq!((&created["active"], &created["draft"]), (&json!(false), &Value::Null));
    assert_eq!(fixture.policies_for("deploy").await, ["default"], "the policy is a draft");
    let path = policy_path(&created);
    let active = ada.post(&format!("{path}/activate"), &json!({})).await.expect_status(200);
    assert_eq!((&active["active"], &active["draft"]), (&json!(true), &Value::Null));
    assert_eq!(fixture.policies_for("deploy").await, ["strict"]);
    assert_eq!(fixture.policies_for("note").await, ["default"]);
    // Activating without a draft changes nothing.
    assert_eq!(ada.post(&format!("{path}/activate"), &json!({})).await.expect_status(200), active);
    // A change is a draft; the active version stays.
    let changed = ada.patch(&path, &json!({ "min_approvers": 2 })).await.expect_status(200);
    assert_eq!((&changed["min_approvers"], &changed["draft"]["min_approvers"]), (&json!(1), &json!(2)));
    let required_count = |id: String| {
        let org = fixture.org.clone();
        async move { org.task_request(&id).await["required_count"].clone() }
    };
    let before = fixture.pat.create_submitted(json!({ "type": "deploy" })).await;
    assert_eq!(required_count(before.clone()).await, 1);
    let _ = ada.post(&format!("{path}/activate"), &json!({})).await.expect_status(200);
    let after = fixture.pat.create_submitted(json!({ "type": "deploy" })).await;
    assert_eq!(
        (required_count(before).await, required_count(after).await),
        (json!(1), json!(2)),
        "an open review keeps its requirements"
    );
    // Deactivated, activated again, deleted.
    let _ = ada.patch(&path, &json!({ "active": false })).await.expect_status(200);
    assert_eq!(fixture.policies_for("deploy").await, ["default"]);
    let _ = ada.patch(&path, &json!({ "active": true })).await.expect_status(200);
    assert_eq!(fixture.policies_for("deploy").await, ["strict"]);
    assert_eq!(ada.delete(&path).await.status, 204);
    assert_eq!(fixture.policies_for("deploy").await, ["default"]);
    let _ = ada.get(&path).await.expect_problem(404, "POLICY_NOT_FOUND");
    let _ = ada.delete(&path).await.expect_problem(404, "POLICY_NOT_FOUND");
    assert_eq!(ada.get("/policies").await.expect_status(200)["items"], json!([]));
    // The default policy can be replaced.
    fixture.org.create_policy(json!({ "name": "default", "required_roles": ["admin"] })).await;
    let task = fixture.org.task_request(&fixture.pat.create_submitted(json!({})).await).await;
    assert_eq!(task["requirements"][0]["policy"], "default");
    let reviewers: Vec<String> = fixture
        .org
        .approvals(&text_field(&task, "task_id"))
        .await
        .iter()
        .map(|item| text_field(item, "reviewer_id"))
        .collect();
    assert_eq!(reviewers, ["ada", "admin"]);
}

#[tokio::test]
async fn policy_names_are_unique() {
    let fixture = Fixture::new().await;
    let ada = &fixture.ada;
    let first = ada.post("/policies", &json!({ "name": "a" })).await.expect_status(201);
    let second = ada.post("/policies", &json!({ "name": "b", "active": true })).await.expect_status(201);
    let named = |name: &str| json!({ "name": name });
    for active in [false, true] {
        let body = json!({ "name": "a", "active": active });
        let _ = ada.post("/policies", &body).await.expect_problem(409, "ALREADY_EXISTS");
    }
    let _ = ada.patch(&policy_path(&second), &named("a")).await.expect_problem(409, "ALREADY_EXISTS");
    assert_eq!(ada.get(&policy_path(&second)).await.expect_status(200), second);
    // While a new name is a draft, both names are taken.
    let _ = ada.patch(&policy_path(&second), &named("c")).await.expect_status(200);
    for name in ["b", "c"] {
        let _ = ada.post("/policies", &named(name)).await.expect_problem(409, "ALREADY_EXISTS");
    }
    let _ = ada.post(&format!("{}/activate", policy_path(&second)), &json!({})).await.expect_status(200);
    let _ = ada.post("/policies", &named("b")).await.expect_status(201);
    assert_eq!(ada.delete(&policy_path(&first)).await.status, 204);
    let _ = ada.post("/policies", &named("a")).await.expect_status(201);
    // Of concurrent requests with the same name, one succeeds.
    let calls = (0..8).map(|_| {
        let ada = ada.clone();
        tokio::spawn(async move { ada.post("/policies", &json!({ "name": "contended" })).await.status })
    });
    let mut statuses = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        statuses.push(call.await.expect("no panic"));
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 409, 409, 409, 409, 409, 409, 409]);
    // A name is not an id, and a name reservation is not a policy.
    for id in ["name:a", "a"] {
        let _ = ada
            .get(&format!("/policies/{}", encode_segment(id)))
            .await
            .expect_problem(404, "POLICY_NOT_FOUND");
        assert_eq!(ada.delete(&format!("/policies/{}", encode_segment(id))).await.status, 404);
    }
}

#[tokio::test]
async fn rules_are_validated_and_changed_by_admins_only() {
    let fixture = Fixture::new().await;
    let ada = &fixture.ada;
    for (invalid, pointer) in [
        (json!({}), "/name"),
        (json!({ "name": " " }), "/name"),
        (json!({ "name": "p", "min_approvers": 0 }), "/min_approvers"),
        (json!({ "name": "p", "reject_threshold": 0 }), "/reject_threshold"),
        (json!({ "name": "p", "risk_threshold": 101 }), "/risk_threshold"),
        (json!({ "name": "p", "reviewers": ["rex"], "min_approvers": 2 }), "/min_approvers"),
        (json!({ "name": "p", "reviewers": ["rex", "rex"], "min_approvers": 2 }), "/min_approvers"),
    ] {
        let response = ada.post("/policies", &invalid).await;
        let _ = response.expect_problem(422, "INVALID_REQUEST");
        assert_eq!(response.error_pointers(), [pointer], "{invalid}");
    }
    let policy = ada.post("/policies", &json!({ "name": "p" })).await.expect_status(201);
    let _ = ada.post("/resources", &json!({ "pattern": "db:*", "criticality": 1 })).await.expect_status(201);
    for caller in [&fixture.pat, &fixture.rex] {
        for (method, path, body) in [
            ("POST", "/policies".to_owned(), json!({ "name": "q" })),
            ("PATCH", policy_path(&policy), json!({ "min_approvers": 2 })),
            ("DELETE", policy_path(&policy), json!({})),
            ("POST", format!("{}/activate", policy_path(&policy)), json!({})),
            ("POST", format!("{}/replay", policy_path(&policy)), json!({})),
            ("POST", "/resources".to_owned(), json!({ "pattern": "q", "criticality": 1 })),
            ("PATCH", "/resources/db:*".to_owned(), json!({ "criticality": 2 })),
            ("DELETE", "/resources/db:*".to_owned(), json!({})),
            ("PUT", "/config/approval:validity".to_owned(), json!({ "value": 5 })),
            ("PUT", "/features/batch_approvals".to_owned(), json!({ "enabled": false })),
        ] {
            let _ = caller.request(method, &path, &body.to_string()).await.expect_problem(403, "FORBIDDEN");
        }
        let _ = caller.get(&policy_path(&policy)).await.expect_status(200);
    }
    assert_eq!(ada.get(&policy_path(&policy)).await.expect_status(200), policy);
}

#[tokio::test]
async fn resource_registry_sets_criticality() {
    let fixture = Fixture::new().await;
    let ada = &fixture.ada;
    let patterns = ["db:*", "db:prod/eu-*", "db:prod/eu-1"];
    for (pattern, criticality) in patterns.iter().zip([20, 90, 10]) {
        let body = json!({ "pattern": pattern, "criticality": criticality, "dependents": ["app:shop"] });
        let created = ada.post("/resources", &body).await.expect_status(201);
        assert_eq!((&created["pattern"], &created["revision"]), (&json!(pattern), &json!(1)));
        let _ = ada.post("/resources", &body).await.expect_problem(409, "ALREADY_EXISTS");
        let stored = ada.get(&format!("/resources/{}", encode_segment(pattern))).await.expect_status(200);
        assert_eq!(stored, created);
    }
    let risk_values = |id: &'static str| {
        let fixture = &fixture;
        async move {
            let resources = json!([{ "type": "db", "id": id, "mode": "exclusive" }]);
            let created =
                fixture.pat.post("/tasks", &task(json!({ "resources": resources }))).await.expect_status(201);
            let factors = created["risk"]["factors"].as_array().expect("factors").clone();
            let factor = |name: &str| {
                factors.iter().find(|item| text_field(item, "name").contains(name)).expect("a factor").clone()
            };
            (factor("criticality")["value"].as_f64(), factor("blast")["value"].as_f64())
        }
    };
    // The highest criticality that matches; the resource and its dependent count for the blast radius.
    assert_eq!(risk_values("prod/eu-1").await, (Some(90.0), Some(20.0)));
    assert_eq!(risk_values("test").await, (Some(20.0), Some(20.0)));
    let path = format!("/resources/{}", encode_segment("db:prod/eu-*"));
    let _ = ada.patch(&path, &json!({ "criticality": 95, "dependents": [] })).await.expect_status(200);
    assert_eq!(risk_values("prod/eu-1").await, (Some(95.0), Some(20.0)));
    let _ = ada.patch(&path, &json!({ "pattern": "other" })).await.expect_problem(422, "INVALID_REQUEST");
    assert_eq!(ada.delete(&path).await.status, 204);
    assert_eq!(risk_values("prod/eu-1").await.0, Some(20.0));
    let _ = ada.get(&path).await.expect_problem(404, "RESOURCE_NOT_FOUND");
    for invalid in [
        json!({ "pattern": "x" }),
        json!({ "criticality": 1 }),
        json!({ "pattern": "x", "criticality": 101 }),
        json!({ "pattern": "x", "criticality": 1, "dependents": ["app"] }),
    ] {
        let _ = ada.post("/resources", &invalid).await.expect_problem(422, "INVALID_REQUEST");
    }
    let found: Vec<String> =
        all_pages(ada, "/resources", 1).await.iter().map(|item| text_field(item, "pattern")).collect();
    assert_eq!(found, ["db:*", "db:prod/eu-1"]);
}

#[tokio::test]
async fn settings_and_feature_flags_apply_to_next_request() {
    let fixture = Fixture::new().await;
    let ada = &fixture.ada;
    let all = ada.get("/config").await.expect_status(200);
    let settings = all["items"].as_array().expect("items");
    assert!(settings.len() >= 6, "{all}");
    // The deployment has set this one, so that no task is held.
    let settings: Vec<&Value> =
        settings.iter().filter(|item| item["name"] != "approval:apply_hold").collect();
    assert!(settings.iter().all(|item| item["revision"] == 0), "{all}");
    // Some belong to the configuration of each server and are read-only here.
    let of_servers = ["lock:max_queue", "security:dual_control"];
    let (read_only, settings): (Vec<&Value>, Vec<&Value>) =
        settings.into_iter().partition(|item| of_servers.contains(&text_field(item, "name").as_str()));
    for setting in read_only {
        let path = format!("/config/{}", text_field(setting, "name"));
        let response = ada.put(&path, &json!({ "value": setting["value"] })).await;
        assert!((400..500).contains(&response.status), "{}", response.text());
    }
    assert!(settings.iter().all(|item| item["is_default"] == true), "{all}");
    for setting in settings {
        let name = text_field(setting, "name");
        let path = format!("/config/{name}");
        assert_eq!(ada.get(&path).await.expect_status(200), *setting);
        for invalid in [json!(-1), json!("soon"), json!(1.5), json!(null), json!([1, 2, 3]), json!(u64::MAX)]
        {
            let _ = ada.put(&path, &json!({ "value": invalid })).await.expect_problem(422, "INVALID_REQUEST");
        }
        // A setting can be set to its default.
        let set = ada.put(&path, &json!({ "value": setting["value"] })).await.expect_status(200);
        assert_eq!(set["value"], setting["value"]);
    }
    for (method, body) in [("GET", json!({})), ("PUT", json!({ "value": 1 }))] {
        let _ = ada
            .request(method, "/config/no:such", &body.to_string())
            .await
            .expect_problem(404, "SETTING_NOT_FOUND");
    }
    for (method, body) in [("GET", json!({})), ("PUT", json!({ "enabled": true }))] {
        let _ = ada
            .request(method, "/features/none", &body.to_string())
            .await
            .expect_problem(404, "FEATURE_NOT_FOUND");
    }
    // Risk thresholds.
    let level = || async {
        text_field(
            &fixture.org.task_request(&fixture.pat.create_draft(json!({})).await).await["risk"],
            "level",
        )
    };
    assert_eq!(level().await, "LOW");
    let risky = json!({ "resources": [{ "type": "db", "id": "a", "mode": "shared" }] });
    let id = fixture.pat.create_draft(risky.clone()).await;
    assert_eq!(text_field(&fixture.org.task_request(&id).await["risk"], "level"), "LOW");
    fixture.org.set_config("risk:thresholds", json!({ "medium": 1, "high": 2, "critical": 3 })).await;
    let id = fixture.pat.create_draft(risky).await;
    assert_eq!(text_field(&fixture.org.task_request(&id).await["risk"], "level"), "CRITICAL");
    // The default timeout is never above the maximum timeout.
    fixture.org.set_config("approval:default_timeout", json!(60)).await;
    fixture.org.set_config("approval:max_timeout", json!(60)).await;
    let above = ada.put("/config/approval:default_timeout", &json!({ "value": 61 })).await;
    let _ = above.expect_problem(422, "INVALID_REQUEST");
    let request = fixture.org.approvals(&fixture.pat.create_submitted(json!({})).await).await.remove(0);
    let time = |field: &str| text_field(&request, field).parse::<jiff::Timestamp>().expect("a time");
    assert_eq!(time("due_at").duration_since(time("created_at")).as_secs(), 60);
    // Batch approvals can be disabled.
    let id = fixture.pat.create_submitted(json!({})).await;
    let item = fixture.org.batch_item(&id, "rex").await;
    let batch = json!({ "items": [item], "action": "approve" });
    let flag = ada.put("/features/batch_approvals", &json!({ "enabled": false })).await.expect_status(200);
    assert_eq!((&flag["enabled"], &flag["revision"]), (&json!(false), &json!(1)));
    let refused = fixture.rex.post("/approvals/batch", &batch).await.expect_problem(403, "FEATURE_DISABLED");
    assert_eq!(refused["feature"], "batch_approvals");
    assert_eq!(text_field(&fixture.org.task_request(&id).await, "state"), "REVIEWING");
    let _ = ada.put("/features/batch_approvals", &json!({ "enabled": true })).await.expect_status(200);
    let done = fixture.rex.post("/approvals/batch", &batch).await.expect_status(200);
    assert_eq!(done["items"][0]["task_state"], "APPROVED");
    // The audit log names the actor.
    let entries = fixture.org.audit_entries("action=feature.set").await;
    assert!(entries.iter().all(|item| item["who"]["user_id"] == "ada"), "{entries:?}");
}

fn select(value: &Value, fields: &[&str]) -> Vec<Value> {
    fields.iter().map(|field| value[*field].clone()).collect()
}

#[tokio::test]
async fn simulation_predicts_submission() {
    let fixture = Fixture::new().await;
    let org = &fixture.org;
    let _ = org.create_user("dan", &["dba"]).await;
    let eve = org.create_user("eve", &["dba"]).await;
    let _ = eve
        .post("/delegations", &json!({ "delegate_to": "rex", "conditions": { "task_types": ["db"] } }))
        .await
        .expect_status(201);
    org.create_policy(
        json!({ "name": "dbas", "task_types": ["db"], "required_roles": ["dba"], "min_approvers": 2 }),
    )
    .await;
    org.create_policy(json!({ "name": "prod", "resource_patterns": ["prod-*"], "required_roles": [REVIEWER], "priority": "URGENT" })).await;
    org.create_policy(json!({ "name": "trusted", "resource_patterns": ["docs:*"], "auto_approve_if": { "author_has_role": [AUTHOR] } })).await;
    org.create_policy(json!({ "name": "nobody", "task_types": ["none"], "required_roles": ["astronaut"] }))
        .await;
    let _ = org
        .api
        .post("/resources", &json!({ "pattern": "prod-*", "criticality": 100 }))
        .await
        .expect_status(201);
    let prod = json!([{ "type": "db", "id": "prod-1", "mode": "exclusive" }]);
    let docs = json!([{ "type": "docs", "id": "wiki", "mode": "exclusive" }]);
    let mut outcomes = BTreeSet::new();
    for task_fields in [
        json!({}),
        json!({ "type": "db" }),
        json!({ "type": "db", "resources": prod }),
        json!({ "type": "note", "executor": "agent", "resources": prod }),
        json!({ "resources": docs }),
        json!({ "resources": [docs[0], prod[0]] }),
        json!({ "type": "none" }),
        json!({ "lineage": { "sponsor_id": "pat" } }),
    ] {
        let overview = org.api.get("/stats/overview").await.expect_status(200)["tasks"].clone();
        let simulated = fixture
            .pat
            .post("/simulations", &json!({ "task": task(task_fields.clone()) }))
            .await
            .expect_status(200);
        assert_eq!(
            org.api.get("/stats/overview").await.expect_status(200)["tasks"],
            overview,
            "a simulation changes nothing"
        );
        let id = fixture.pat.create_draft(task_fields.clone()).await;
        let draft = org.task_request(&id).await;
        let simulated_draft =
            fixture.pat.post("/simulations", &json!({ "task_id": id })).await.expect_status(200);
        assert_eq!(org.task_request(&id).await, draft, "a simulation does not change the draft");
        let fields = [
            "outcome",
            "why",
            "policies",
            "requirements",
            "required_count",
            "reviewers",
            "skipped_reviewers",
            "lock_preview",
            "not_automatic",
        ];
        assert_eq!(select(&simulated, &fields), select(&simulated_draft, &fields));
        let submitted = fixture.pat.post(&format!("/tasks/{id}/submit"), &json!({})).await;
        let outcome = text_field(&simulated, "outcome");
        outcomes.insert(outcome.clone());
        if outcome == "no_quorum" {
            let refused = submitted.expect_problem(422, "NO_QUORUM");
            assert_eq!(
                (&simulated["why"], &simulated["skipped_reviewers"]),
                (&refused["detail"], &refused["skipped_reviewers"])
            );
            continue;
        }
        let now = submitted.expect_status(202);
        assert_eq!(
            text_field(&now, "state"),
            if outcome == "reviewing" { "REVIEWING" } else { "APPROVED" },
            "{task_fields}"
        );
        let fields = ["policies", "skipped_reviewers", "required_count", "not_automatic"];
        assert_eq!(select(&simulated, &fields), select(&now, &fields), "{task_fields}");
        // A simulated task has no lock of its own.
        let mut locks = now["lock_preview"].as_array().expect("a list").clone();
        locks.retain(|item| text_field(item, "lock") != format!("task:{id}"));
        assert_eq!(simulated["lock_preview"], json!(locks));
        assert_eq!(simulated["why"], now["auto_approved"]);
        let fields = ["score", "level", "factors", "auto_approvable", "assessed_by"];
        assert_eq!(select(&simulated["risk"], &fields), select(&now["risk"], &fields), "{task_fields}");
        let requests = org.approvals(&id).await;
        let fields = ["reviewer_id", "policies", "delegation_chain", "why"];
        let selected = |all: &[Value]| all.iter().map(|item| select(item, &fields)).collect::<Vec<_>>();
        assert_eq!(
            selected(simulated["reviewers"].as_array().expect("a list")),
            selected(&requests),
            "{task_fields}"
        );
        let names = |list: &Value| -> Vec<String> {
            list.as_array().expect("a list").iter().map(|item| text_field(item, "policy")).collect()
        };
        assert_eq!(names(&simulated["requirements"]), names(&now["requirements"]));
    }
    assert_eq!(outcomes, ["auto_approved", "no_quorum", "reviewing"].map(str::to_owned).into());
    // With policies given in the request.
    let strict = json!({ "name": "strict", "min_approvers": 1, "required_roles": ["dba"] });
    let body = json!({ "task": task(json!({})), "policies": [strict] });
    let simulated = fixture.pat.post("/simulations", &body).await.expect_status(200);
    let reviewers: Vec<String> = simulated["reviewers"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|item| text_field(item, "reviewer_id"))
        .collect();
    assert_eq!(reviewers, ["dan", "eve"]);
    // At a given time.
    let weekend =
        json!({ "name": "weekend", "window": { "weekdays": ["sat"], "time_zone": "Europe/Berlin" } });
    org.create_policy(weekend).await;
    for (at, applies) in [
        ("2026-11-13T22:59:59Z", false),
        ("2026-11-13T23:00:00Z", true),
        ("2026-11-14T22:59:59Z", true),
        ("2026-11-14T23:00:00Z", false),
    ] {
        let body = json!({ "task": task(json!({})), "at": at });
        let simulated = fixture.pat.post("/simulations", &body).await.expect_status(200);
        let policy = if applies { "weekend" } else { "default" };
        assert_eq!(simulated["requirements"][0]["policy"], policy, "{at}");
    }
    for invalid in [json!({}), json!({ "task": {} }), json!({ "task": task(json!({})), "task_id": "x" })] {
        let _ = fixture.pat.post("/simulations", &invalid).await.expect_problem(422, "INVALID_REQUEST");
    }
    let invalid = json!({ "task": task(json!({})), "policies": [{ "name": "p" }, { "name": "q", "min_approvers": 0 }] });
    let response = fixture.pat.post("/simulations", &invalid).await;
    let _ = response.expect_problem(422, "INVALID_REQUEST");
    assert_eq!(response.error_pointers(), ["/policies/1/min_approvers"]);
}

#[tokio::test]
async fn author_preview_is_unverifiable_and_does_not_lower_the_risk() {
    let Fixture { org, pat, .. } = &Fixture::new().await;
    let with_preview = |errors: &[&str]| {
        let change = json!({ "kind": "update", "what": "the table users" });
        let preview = json!({ "changes": [change], "warnings": [], "errors": errors });
        json!({ "executor": "agent", "preview": preview })
    };
    let magnitude = |task: &Value| {
        let factors = task["risk"]["factors"].as_array().expect("factors").clone();
        factors.into_iter().find(|item| item["name"] == "change_magnitude").expect("a factor")["value"]
            .clone()
    };
    let task = org.task_request(&pat.create_submitted(with_preview(&[])).await).await;
    assert_eq!((&task["state"], magnitude(&task)), (&json!("REVIEWING"), json!(100.0)));
    assert_eq!(task["preview"]["unverifiable"], true);
    let task = org.task_request(&pat.create_submitted(with_preview(&["permission denied"])).await).await;
    assert_eq!((&task["state"], magnitude(&task)), (&json!("REVIEWING"), json!(100.0)));
    assert_eq!(task["risk"]["auto_approvable"], false);
}

#[tokio::test]
async fn replay_lists_exactly_the_differing_tasks() {
    let fixture = Fixture::new().await;
    let mut expected = BTreeSet::new();
    for n in 0..6 {
        let kind = if n % 2 == 0 { "deploy" } else { "note" };
        let id = fixture.pat.create_submitted(json!({ "type": kind })).await;
        // Some are approved, some rejected, some stay open.
        let request = fixture.org.approval_id(&id, "rex").await;
        match n {
            0 | 1 => drop(fixture.rex.decide(&request, "approve").await.expect_status(200)),
            2 | 3 => drop(fixture.rex.decide(&request, "reject").await.expect_status(200)),
            _ => {}
        }
        if kind == "deploy" {
            expected.insert(id);
        }
    }
    let _ = fixture.pat.create_draft(json!({ "type": "deploy" })).await;
    let rules = json!({ "name": "strict", "task_types": ["deploy"], "reviewers": ["ada"] });
    let policy = fixture.ada.post("/policies", &rules).await.expect_status(201);
    let path = format!("{}/replay", policy_path(&policy));
    let auditor = fixture.org.create_user("ann", &["auditor"]).await;
    let before = fixture.org.api.get("/tasks").await.expect_status(200);
    for caller in [&fixture.ada, &auditor] {
        let replay = caller.post(&path, &json!({})).await.expect_status(200);
        let differs = replay["differs"].as_array().expect("a list");
        let found: BTreeSet<String> = differs.iter().map(|item| text_field(item, "task_id")).collect();
        assert_eq!(found, expected);
        for item in differs {
            assert_eq!(select(item, &["before", "after"]), ["1 of rex for default", "1 of ada for strict"]);
        }
    }
    assert_eq!(fixture.org.api.get("/tasks").await.expect_status(200), before);
    // After activation the tasks do not differ any more.
    let _ =
        fixture.ada.post(&format!("{}/activate", policy_path(&policy)), &json!({})).await.expect_status(200);
    assert_eq!(fixture.ada.post(&path, &json!({})).await.expect_status(200)["differs"], json!([]));
    let unknown = format!("/policies/{UNKNOWN_ID}/replay");
    let _ = fixture.ada.post(&unknown, &json!({})).await.expect_problem(404, "POLICY_NOT_FOUND");
}
