//! Concurrent clients of three servers on one database: a batch is atomic, and all servers share their state. Which of two
//! concurrent decisions wins is tested with the services.

use std::collections::BTreeMap;

use ade_domain::people::{AUTHOR, REVIEWER};
use ade_testkit::api::{ApiClient, ApiResponse};
use ade_testkit::deployment::text_field;
use ade_testkit::{AdminClient, Deployment, TestUser};
use serde_json::json;
use tokio::task::JoinHandle;

const ROUNDS: usize = 4;
const BATCH: usize = 24;
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

async fn batch_is_atomic(fixture: &Fixture) {
    let size = BATCH;
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

/// Idempotency keys, tokens, settings and rate limits.
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
async fn servers_on_one_database_act_as_one() {
    let deployment = Deployment::distributed(env!("CARGO_BIN_EXE_ade"), 3);
    batch_is_atomic(&Fixture::new(&deployment, "a").await).await;
    each_user_counts_once(&Fixture::new(&deployment, "b").await).await;
    servers_share_state(&Fixture::new(&deployment, "c").await).await;
}
