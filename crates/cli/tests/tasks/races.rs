//! Concurrent clients and servers on both databases: a task is decided once and only for the digest that the reviewer saw, a
//! batch is atomic, each escalation happens once, and requests of deactivated users are reassigned.

use std::collections::BTreeMap;
use std::time::Duration;

use ade_domain::people::{AUTHOR, REVIEWER};
use ade_domain::task::MAX_ESCALATIONS;
use ade_testkit::api::{ApiClient, ApiResponse};
use ade_testkit::deployment::text_field;
use ade_testkit::wait::until;
use ade_testkit::{AdminClient, Deployment, TestUser};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const TIMEOUT: Duration = Duration::from_secs(60);
/// Reviewers who decide concurrently.
const REVIEWERS: usize = 16;
const ROUNDS: usize = 4;
/// The maximum size of a batch.
const MAX_BATCH: usize = 500;

struct Fixture {
    org: AdminClient,
    servers: Vec<ApiClient>,
    pat: TestUser,
}

impl Fixture {
    /// Deactivates the users of earlier scenarios and creates an author.
    async fn new(deployment: &Deployment, scenario: &str) -> Self {
        let org = deployment.admin().await;
        let known = org.api.get("/users?limit=200").await.expect_status(200);
        for user in known["items"].as_array().expect("items") {
            let id = text_field(user, "user_id");
            if user["active"] == true && id != "admin" {
                let deactivate = json!({ "active": false });
                let _ = org.api.patch(&format!("/users/{id}"), &deactivate).await.expect_status(200);
            }
        }
        let pat = org.create_user(&format!("pat-{scenario}"), &[AUTHOR]).await;
        Self { org, servers: deployment.api_clients().await, pat }
    }

    /// The same user on the n-th server, counted round-robin.
    fn at(&self, user: &TestUser, n: usize) -> TestUser {
        user.at_server(self.servers.get(n % self.servers.len()).expect("a server"))
    }
}

async fn join_all<T>(tasks: Vec<JoinHandle<T>>) -> Vec<T> {
    let mut found = Vec::with_capacity(tasks.len());
    for task in tasks {
        found.push(task.await.expect("no panic"));
    }
    found
}

async fn concurrent_decisions_decide_once(fixture: &Fixture) {
    let mut reviewers = Vec::new();
    for n in 0..REVIEWERS {
        reviewers.push(fixture.org.create_user(&format!("rex-{n:02}"), &[REVIEWER]).await);
    }
    for round in 0..ROUNDS {
        let id = fixture.pat.create_submitted(json!({})).await;
        let requests = fixture.org.approvals(&id).await;
        assert_eq!(requests.len(), REVIEWERS);
        let decisions = reviewers.iter().enumerate().map(|(n, reviewer)| {
            let own = requests
                .iter()
                .find(|request| text_field(request, "reviewer_id") == reviewer.id)
                .expect("a request");
            let (request, reviewer) = (text_field(own, "approval_id"), fixture.at(reviewer, n + round));
            let decision = if n % 2 == 0 { "approve" } else { "reject" };
            tokio::spawn(async move { (decision, reviewer.decide(&request, decision).await) })
        });
        let decisions = join_all(decisions.collect()).await;
        let state = text_field(&fixture.org.task_request(&id).await, "state");
        let (successful, late): (Vec<_>, Vec<_>) =
            decisions.iter().partition(|(_, response)| response.status == 200);
        let [(decision, _)] = successful.as_slice() else { panic!("{} requests decided", successful.len()) };
        assert_eq!(state, if *decision == "approve" { "APPROVED" } else { "REJECTED" });
        for (_, response) in late {
            assert_eq!(response.expect_problem(409, "ALREADY_DECIDED")["state"], state);
        }
        let mut statuses: BTreeMap<String, usize> = BTreeMap::new();
        for request in fixture.org.approvals(&id).await {
            *statuses.entry(text_field(&request, "status")).or_default() += 1;
        }
        assert_eq!(statuses, BTreeMap::from([("CLOSED".to_owned(), REVIEWERS - 1), (state, 1)]));
    }
}

async fn approval_counts_only_for_seen_digest(fixture: &Fixture) {
    let bea = fixture.org.create_user("bea", &[REVIEWER]).await;
    for round in 0..ROUNDS * 3 {
        let id = fixture.pat.create_submitted(json!({})).await;
        let seen = text_field(&fixture.org.task_request(&id).await, "digest");
        let request = fixture.org.approval_id(&id, "bea").await;
        let (author, reviewer) = (fixture.at(&fixture.pat, round), fixture.at(&bea, round + 1));
        let (path, has_digest) = (format!("/tasks/{id}"), round % 2 == 0);
        let change =
            tokio::spawn(async move { author.patch(&path, &json!({ "description": "changed" })).await });
        let digest = seen.clone();
        let approval = tokio::spawn(async move {
            let body = if has_digest { json!({ "digest": digest }) } else { json!({}) };
            reviewer.post(&format!("/approvals/{request}/approve"), &body).await
        });
        let (changed, approval) = (change.await.expect("no panic"), approval.await.expect("no panic"));
        let changed = changed.expect_status(200);
        assert_ne!(text_field(&changed, "digest"), seen);
        // Either the approval came first and was invalidated, or it came too late.
        if approval.status == 200 {
            assert_eq!(text_field(&approval.json(), "digest"), seen);
        } else {
            let _ =
                approval.expect_problem(409, if has_digest { "DIGEST_MISMATCH" } else { "NOT_ANSWERABLE" });
        }
        assert_eq!(
            text_field(&fixture.org.task_request(&id).await, "state"),
            "REVIEWING",
            "the new digest was never approved"
        );
        let statuses: Vec<String> =
            fixture.org.approvals(&id).await.iter().map(|request| text_field(request, "status")).collect();
        assert_eq!(statuses, ["INVALIDATED", "PENDING"]);
    }
}

async fn batch_is_atomic(fixture: &Fixture, size: usize) {
    let cid = fixture.org.create_user("cid", &[REVIEWER]).await;
    let created = (0..8).map(|n| {
        let pat = fixture.at(&fixture.pat, n);
        tokio::spawn(async move {
            let mut created = Vec::new();
            for _ in (n..size).step_by(8) {
                created.push(pat.create_submitted(json!({})).await);
            }
            created
        })
    });
    let tasks: Vec<String> = join_all(created.collect()).await.concat();
    let mut requests: BTreeMap<String, String> = BTreeMap::new();
    let mut cursor = String::new();
    while requests.len() < size {
        let page =
            cid.get(&format!("/approvals?status=PENDING&limit=200&cursor={cursor}")).await.expect_status(200);
        for request in page["items"].as_array().expect("items") {
            requests.insert(text_field(request, "task_id"), text_field(request, "approval_id"));
        }
        cursor = text_field(&page, "next_cursor");
    }
    let ids: Vec<&String> = requests.values().collect();
    let batch = |ids: &[&String]| json!({ "approval_ids": ids, "action": "approve" });
    let approved = |org: AdminClient| async move {
        let counts = org.api.get("/stats/overview").await.expect_status(200);
        counts["tasks"]["APPROVED"].as_u64().unwrap_or(0)
    };
    let before = approved(fixture.org.clone()).await;
    let too_many: Vec<&String> = ids.iter().copied().cycle().take(MAX_BATCH + 1).collect();
    let _ = cid.post("/approvals/batch", &batch(&too_many)).await.expect_problem(422, "INVALID_REQUEST");
    // A batch of all requests, while one of the tasks is cancelled.
    let (cancelled, first) = (tasks.first().expect("a task").clone(), fixture.at(&cid, 1));
    let body = batch(&ids);
    let batch_call = tokio::spawn(async move { first.post("/approvals/batch", &body).await });
    let cancel = fixture.pat.post(&format!("/tasks/{cancelled}/cancel"), &json!({})).await.expect_status(200);
    let response: ApiResponse = batch_call.await.expect("no panic");
    let count = approved(fixture.org.clone()).await - before;
    if response.status == 200 {
        // The task was cancelled after the batch.
        assert_eq!(response.json()["items"].as_array().map(Vec::len), Some(size));
        assert_eq!(count, size as u64 - 1);
        assert!(cancel["metadata"]["since"].get("APPROVED").is_some());
        return;
    }
    let refused = response.expect_problem(409, "BATCH_REFUSED");
    let items = refused["items"].as_array().expect("items");
    assert_eq!(items.len(), 1, "{refused}");
    assert_eq!(items.first().map(|item| text_field(item, "code")), Some("ALREADY_DECIDED".to_owned()));
    assert_eq!(items.first().map(|item| text_field(item, "approval_id")), requests.get(&cancelled).cloned());
    assert_eq!(count, 0, "a refused batch changes nothing");
    // The batch without that task succeeds.
    let rest: Vec<&String> =
        requests.iter().filter(|(task, _)| **task != cancelled).map(|(_, id)| id).collect();
    let done = cid.post("/approvals/batch", &batch(&rest)).await.expect_status(200);
    assert_eq!(done["items"].as_array().map(Vec::len), Some(size - 1));
    assert_eq!(approved(fixture.org.clone()).await - before, size as u64 - 1);
}

async fn each_escalation_happens_once(fixture: &Fixture) {
    let org = &fixture.org;
    let _ = org.create_user("mia", &[]).await;
    let _ = org.create_user_from(json!({ "user_id": "gus", "roles": [REVIEWER], "manager_id": "mia" })).await;
    org.set_config("approval:default_timeout", json!(1)).await;
    let id = fixture.pat.create_submitted(json!({})).await;
    let last_level = u64::from(MAX_ESCALATIONS) + 1;
    let check = || async {
        let requests = org.approvals(&id).await;
        let is_done = requests.iter().all(|request| request["escalation_level"].as_u64() == Some(last_level));
        if is_done { Ok(requests) } else { Err(format!("{requests:?}")) }
    };
    let requests = until("all requests to reach the last level", TIMEOUT, check).await.expect("in time");
    // The manager first, then the built-in administrator.
    let reviewers: Vec<String> = requests.iter().map(|request| text_field(request, "reviewer_id")).collect();
    assert_eq!(reviewers, ["gus", "mia", "admin"]);
    assert!(
        requests.iter().all(|request| text_field(request, "status") == "PENDING"),
        "every reviewer can still decide"
    );
    let escalations = |entries: &[Value]| {
        let mut escalations: BTreeMap<String, u64> = BTreeMap::new();
        for entry in entries.iter().filter(|entry| {
            matches!(text_field(entry, "action").as_str(), "approval.escalate" | "approval.unanswered")
        }) {
            *escalations.entry(text_field(entry, "object_id")).or_default() += 1;
        }
        escalations
    };
    // Each request starts one level above the one that escalated to it.
    let expected: BTreeMap<String, u64> = requests
        .iter()
        .zip(0..)
        .map(|(request, level)| (text_field(request, "approval_id"), last_level - level))
        .collect();
    let check = || async {
        let found = escalations(&org.audit_entries(&format!("task={id}")).await);
        let (actual, total) = (found.values().sum::<u64>(), expected.values().sum::<u64>());
        if actual >= total { Ok(found) } else { Err(format!("{found:?}")) }
    };
    let found = until("all escalations in the audit log", TIMEOUT, check).await.expect("in time");
    assert_eq!(found, expected);
}

async fn requests_of_deactivated_user_are_reassigned(fixture: &Fixture) {
    let org = &fixture.org;
    let (boss, leaver) = (org.create_user("boss", &[]).await, "leaver");
    let _ =
        org.create_user_from(json!({ "user_id": leaver, "roles": [REVIEWER], "manager_id": "boss" })).await;
    let mut tasks = Vec::new();
    for _ in 0..20 {
        tasks.push(fixture.pat.create_submitted(json!({})).await);
    }
    // A reader that sees the user deactivated never sees a pending request of theirs.
    let server = fixture.servers.last().expect("a server").clone();
    let watch = tokio::spawn(async move {
        loop {
            let user = server.get("/users/leaver").await.expect_status(200);
            let pending = server.get("/approvals?reviewer=leaver&status=PENDING").await.expect_status(200);
            if user["active"] == false {
                return pending;
            }
        }
    });
    let _ = org.api.patch("/users/leaver", &json!({ "active": false })).await.expect_status(200);
    assert_eq!(watch.await.expect("no panic")["items"], json!([]));
    for task in &tasks {
        let requests = org.approvals(task).await;
        let found: Vec<(String, String)> = requests
            .iter()
            .map(|request| (text_field(request, "reviewer_id"), text_field(request, "status")))
            .collect();
        let expected = [("leaver", "DELEGATED"), ("boss", "PENDING")]
            .map(|(user, status)| (user.to_owned(), status.to_owned()));
        assert_eq!(found, expected);
    }
    let request = org.approval_id(tasks.first().expect("20 tasks"), "boss").await;
    assert_eq!(boss.decide(&request, "approve").await.expect_status(200)["task_state"], "APPROVED");
}

/// Servers on one database share idempotency keys, tokens, settings and rate limits.
async fn servers_share_state(fixture: &Fixture) {
    let org = &fixture.org;
    for round in 0..ROUNDS {
        let key = format!("k-{round}");
        let calls = (0..12).map(|n| {
            let (pat, key) = (fixture.at(&fixture.pat, n), key.clone());
            let body = ade_testkit::deployment::task(json!({ "tags": [key] })).to_string();
            tokio::spawn(async move {
                pat.request_with_headers("POST", "/tasks", &[("idempotency-key", &key)], &body).await
            })
        });
        let mut created = Vec::new();
        for response in join_all(calls.collect()).await {
            match response.status {
                201 => created.push(text_field(&response.json(), "task_id")),
                _ => drop(response.expect_problem(409, "IN_FLIGHT")),
            }
        }
        created.dedup();
        let listed = org.api.get(&format!("/tasks?tag={key}")).await.expect_status(200);
        let listed: Vec<String> = listed["items"]
            .as_array()
            .expect("items")
            .iter()
            .map(|task| text_field(task, "task_id"))
            .collect();
        assert_eq!((created.len(), listed), (1, created.clone()));
    }
    let deactivated = org.create_user("gone", &[AUTHOR, REVIEWER]).await;
    for n in 0..fixture.servers.len() {
        let _ = fixture.at(&deactivated, n).get("/tasks").await.expect_status(200);
    }
    let _ = org.api.patch("/users/gone", &json!({ "active": false })).await.expect_status(200);
    org.set_config("approval:default_timeout", json!(77)).await;
    for (n, server) in fixture.servers.iter().enumerate() {
        let _ = fixture.at(&deactivated, n).get("/tasks").await.expect_problem(401, "UNAUTHENTICATED");
        assert_eq!(server.get("/config/approval:default_timeout").await.expect_status(200)["value"], 77);
    }
    // Ten sign-in attempts per user name, counted over all servers.
    let mut refused = 0;
    for n in 0..13 {
        let server = fixture.servers.get(n % fixture.servers.len()).expect("a server");
        let body = json!({ "user_id": fixture.pat.id, "password": "wrong password" }).to_string();
        let response = server.send_raw("POST", "/api/v1/sessions", &[], body).await;
        refused += usize::from(response.status == 429);
    }
    assert_eq!(refused, 3);
}

/// An administrator who decides two requests of others counts once.
async fn each_user_counts_once(fixture: &Fixture) {
    let org = &fixture.org;
    let ada = org.create_user("ada", &["admin"]).await;
    let eli = org.create_user("eli", &[REVIEWER]).await;
    let _ = org.create_user("roy", &[REVIEWER]).await;
    org.create_policy(
        json!({ "name": "two", "task_types": ["twice"], "min_approvers": 2, "required_roles": [REVIEWER] }),
    )
    .await;
    let id = fixture.pat.create_submitted(json!({ "type": "twice" })).await;
    let (first, second) = (org.approval_id(&id, "eli").await, org.approval_id(&id, "roy").await);
    for request in [&first, &second] {
        let decided = ada.decide(request, "approve").await.expect_status(200);
        assert_eq!(
            (text_field(&decided, "reviewed_by"), text_field(&decided, "task_state")),
            ("ada".to_owned(), "REVIEWING".to_owned())
        );
    }
    let task = org.task_request(&id).await;
    assert_eq!(
        (&task["requirements"][0]["needed"], &task["requirements"][0]["approved_by"]),
        (&json!(1), &json!(["ada"]))
    );
    // The reviewers can still decide: the last decision counts.
    assert_eq!(text_field(&eli.decide(&first, "approve").await.expect_status(200), "task_state"), "APPROVED");
    let approved = org.task_request(&id).await;
    assert_eq!(approved["requirements"][0]["approved_by"], json!(["ada", "eli"]));
}

#[tokio::test]
async fn races_on_sqlite() {
    let deployment = Deployment::embedded(env!("CARGO_BIN_EXE_ade"));
    run_all(&deployment, MAX_BATCH).await;
}

#[tokio::test]
async fn races_on_postgres() {
    let deployment = Deployment::distributed(env!("CARGO_BIN_EXE_ade"), 3);
    // A smaller batch, because creating the tasks takes long; the SQLite test covers the maximum.
    run_all(&deployment, 100).await;
}

/// Runs all scenarios one after the other on the same servers.
async fn run_all(deployment: &Deployment, size: usize) {
    concurrent_decisions_decide_once(&Fixture::new(deployment, "a").await).await;
    approval_counts_only_for_seen_digest(&Fixture::new(deployment, "b").await).await;
    batch_is_atomic(&Fixture::new(deployment, "c").await, size).await;
    requests_of_deactivated_user_are_reassigned(&Fixture::new(deployment, "d").await).await;
    each_user_counts_once(&Fixture::new(deployment, "e").await).await;
    servers_share_state(&Fixture::new(deployment, "f").await).await;
    each_escalation_happens_once(&Fixture::new(deployment, "g").await).await;
}
