//! Policies that name agents: they are asked about every task that such an agent may claim, and an agent that matches one later
//! does not get what was approved without it.

use ade_domain::people::{AUTHOR, REVIEWER};
use ade_testkit::deployment::text_field;
use ade_testkit::{AdminClient, Deployment, TestUser};
use serde_json::{Value, json};

struct Fixture {
    office: AdminClient,
    ann: TestUser,
    rev: TestUser,
    pia: TestUser,
}

impl Fixture {
    async fn new(house: &Deployment) -> Self {
        let office = house.admin().await;
        let ann = office.create_user("ann", &[AUTHOR]).await;
        let rev = office.create_user("rev", &[REVIEWER]).await;
        // Without the role that the default policy asks for.
        let pia = office.create_user("pia", &["prod-owner"]).await;
        let policy = json!({ "name": "prod", "targets": ["agent:prod-*"], "required_roles": ["prod-owner"] });
        office.create_policy(policy).await;
        Self { office, ann, rev, pia }
    }

    async fn agent(&self, id: &str) -> TestUser {
        let agent = self.office.create_agent(id, &self.ann).await;
        self.grant(id, &["deploy"]).await;
        agent
    }

    async fn grant(&self, id: &str, capabilities: &[&str]) {
        let change = json!({ "capabilities": capabilities });
        let _ = self.ann.patch(&format!("/agents/{id}"), &change).await.expect_status(200);
    }

    async fn submitted(&self) -> String {
        self.ann.create_submitted(work()).await
    }

    /// The policies of a task, and who is asked.
    async fn review(&self, task: &str) -> (Vec<String>, Vec<String>) {
        let shown = self.office.api.get(&format!("/tasks/{task}")).await.expect_status(200);
        let requirements = shown["requirements"].as_array().cloned().unwrap_or_default();
        let policies = requirements.iter().map(|requirement| text_field(requirement, "policy")).collect();
        let open = self.office.approvals(task).await.into_iter().filter(|one| one["status"] == "PENDING");
        let mut reviewers: Vec<String> = open.map(|one| text_field(&one, "reviewer_id")).collect();
        reviewers.sort();
        (policies, reviewers)
    }

    async fn approve(&self, task: &str, reviewer: &TestUser, name: &str) {
        let open = self.office.approvals(task).await.into_iter();
        let mut open = open.filter(|one| one["status"] == "PENDING" && one["reviewer_id"] == name);
        let request = text_field(&open.next().expect("an open request"), "approval_id");
        let _ = reviewer.decide(&request, "approve").await.expect_status(200);
    }

    async fn state(&self, task: &str) -> String {
        text_field(&self.office.api.get(&format!("/tasks/{task}")).await.expect_status(200), "state")
    }
}

fn work() -> Value {
    json!({ "executor": "agent", "parameters": { "capability": "deploy" } })
}

async fn claim(agent: &TestUser, request: Value) -> (u16, Value) {
    let response = agent.post("/tasks/claim", &request).await;
    (response.status, if response.status == 204 { Value::Null } else { response.json() })
}

#[tokio::test]
async fn policies_that_name_agents_follow_who_may_claim() {
    let house = Deployment::embedded(env!("CARGO_BIN_EXE_ade"));
    policies_follow_claimants(&Fixture::new(&house).await).await;
}

#[tokio::test]
async fn policies_that_name_agents_follow_who_may_claim_on_postgres() {
    let house = Deployment::distributed(env!("CARGO_BIN_EXE_ade"), 1);
    policies_follow_claimants(&Fixture::new(&house).await).await;
}

#[tokio::test]
async fn registered_agents_raise_the_risk_of_what_they_may_claim() {
    let house = Deployment::embedded(env!("CARGO_BIN_EXE_ade"));
    let fixture = Fixture::new(&house).await;
    let Fixture { office, rev, .. } = &fixture;
    let entry = json!({ "pattern": "agent:big-*", "criticality": 100 });
    let _ = office.api.post("/resources", &entry).await.expect_status(201);
    let test = fixture.agent("test-1").await;
    let early = fixture.submitted().await;
    fixture.approve(&early, rev, "rev").await;
    let big = fixture.agent("big-1").await;
    let late = fixture.submitted().await;
    let risk = async |task: &str| {
        let shown = office.api.get(&format!("/tasks/{task}")).await.expect_status(200);
        (shown["risk"]["score"].as_u64().expect("a score"), shown["risk"].to_string())
    };
    let ((low, _), (high, why)) = (risk(&early).await, risk(&late).await);
    assert!(low < high && why.contains("agent:big-1 is the most critical"), "{low} {high} {why}");
    // Approved at the lower risk, it is not for the agent that a policy for the higher one concerns.
    office.create_policy(json!({ "name": "risky", "risk_threshold": high })).await;
    let (status, problem) = claim(&big, json!({ "task_id": early })).await;
    assert_eq!((status, &problem["policy"]), (409, &json!("risky")), "{problem}");
    let (status, claimed) = claim(&test, json!({ "task_id": early })).await;
    assert_eq!(status, 200, "{claimed}");
}

async fn policies_follow_claimants(fixture: &Fixture) {
    let Fixture { office, ann, rev, pia } = fixture;
    let test = fixture.agent("test-1").await;
    let default = (vec!["default".to_owned()], vec!["rev".to_owned()]);
    let early = fixture.submitted().await;
    assert_eq!(fixture.review(&early).await, default, "only test-1 may claim it");
    fixture.approve(&early, rev, "rev").await;

    // An agent of somebody whose grants do not count for ann changes nothing.
    let mal = office.create_user("mal", &[AUTHOR]).await;
    let _ = office.create_agent("prod-x", &mal).await;
    let _ = mal.patch("/agents/prod-x", &json!({ "capabilities": ["deploy"] })).await.expect_status(200);
    assert_eq!(fixture.review(&fixture.submitted().await).await, default);

    // One that may claim it asks for its policy, besides the default policy.
    let prod = fixture.agent("prod-1").await;
    let late = fixture.submitted().await;
    let both = (vec!["prod".to_owned(), "default".to_owned()], vec!["pia".to_owned(), "rev".to_owned()]);
    assert_eq!(fixture.review(&late).await, both);
    let simulated = ann.post("/simulations", &json!({ "task": ade_testkit::deployment::task(work()) })).await;
    let simulated = simulated.expect_status(200);
    let considered = simulated["policies"].as_array().cloned().unwrap_or_default();
    let of_prod = considered.iter().find(|policy| policy["policy"] == "prod");
    let why = of_prod.map(|policy| (policy["applies"].clone(), text_field(policy, "why")));
    assert!(
        why.as_ref().is_some_and(|(applies, why)| *applies == true && why.contains("agent:prod-1")),
        "{simulated}"
    );
    fixture.approve(&late, rev, "rev").await;
    assert_eq!(fixture.state(&late).await, "REVIEWING");
    fixture.approve(&late, pia, "pia").await;

    // It does not get what was approved without its policy: not by name, and not as its next work.
    let (status, problem) = claim(&prod, json!({ "task_id": early })).await;
    assert_eq!(
        (status, &problem["code"], &problem["policy"]),
        (409, &json!("REVIEW_REQUIRED"), &json!("prod"))
    );
    assert!(text_field(&problem, "detail").contains("approved without it"), "{problem}");
    assert_eq!(fixture.state(&early).await, "APPROVED");
    let (status, claimed) = claim(&prod, json!({})).await;
    assert_eq!((status, &claimed["task"]["task_id"]), (200, &json!(late)), "the later one");
    assert_eq!(claim(&prod, json!({ "wait_seconds": 1 })).await.0, 204);
    for unknown in ["ea000000-0000-7000-8000-000000000000", "nonsense"] {
        assert_eq!(claim(&prod, json!({ "task_id": unknown })).await.0, 404, "{unknown}");
    }

    // Reviewed again, it is for both.
    let change = json!({ "description": "with prod-1" });
    let _ = ann.patch(&format!("/tasks/{early}"), &change).await.expect_status(200);
    assert_eq!(fixture.review(&early).await, both);
    for (reviewer, name) in [(rev, "rev"), (pia, "pia")] {
        fixture.approve(&early, reviewer, name).await;
    }
    let (status, claimed) = claim(&prod, json!({ "task_id": early })).await;
    assert_eq!((status, &claimed["task"]["task_id"]), (200, &json!(early)));

    // Others are not concerned.
    fixture.grant("prod-1", &[]).await;
    let third = fixture.submitted().await;
    assert_eq!(fixture.review(&third).await, default);
    fixture.approve(&third, rev, "rev").await;
    fixture.grant("prod-1", &["deploy"]).await;
    assert_eq!(claim(&prod, json!({})).await.0, 204);
    let (status, claimed) = claim(&test, json!({ "types": [] })).await;
    assert_eq!((status, &claimed["task"]["task_id"]), (200, &json!(third)));
    assert_eq!(claim(&test, json!({ "task_id": late })).await.0, 204, "claimed by prod-1");
}
