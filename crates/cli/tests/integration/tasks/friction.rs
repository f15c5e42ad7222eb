//! Friction on the wire and on the command line: what lacks is refused with everything that is needed, commands name the flags, and
//! risky tasks are held before anybody gets them.

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_testkit::deployment::{approval_body, text_field};
use ade_testkit::{AdminClient, Cli, Deployment, TestUser};
use serde_json::{Value, json};

const ADE: &str = env!("CARGO_BIN_EXE_ade");
const PASSWORD: &str = "correct horse battery staple";

struct Fixture {
    deployment: Deployment,
    org: AdminClient,
    pat: TestUser,
    rex: TestUser,
    ada: TestUser,
    bot: TestUser,
}

impl Fixture {
    async fn new() -> Self {
        let deployment = Deployment::embedded(ADE);
        let org = deployment.admin().await;
        let (pat, rex) = (org.create_user("pat", &[AUTHOR]).await, org.create_user("rex", &[REVIEWER]).await);
        let (ada, bot) = (org.create_user("ada", &[ADMIN]).await, org.create_agent("bot", &pat).await);
        Self { deployment, org, pat, rex, ada, bot }
    }

    /// A submitted task for the agent, of level HIGH, or of level CRITICAL with this resource.
    async fn submitted(&self, resource: Option<&str>) -> (String, String) {
        let resources: Vec<Value> = resource.iter().map(|id| json!({ "type": "db", "id": id })).collect();
        let body = json!({ "executor": "agent", "parameters": { "agent": "bot" }, "resources": resources });
        let task = self.pat.create_submitted(body).await;
        let request = self.org.approval_id(&task, "rex").await;
        (task, request)
    }

    async fn make_critical(&self) {
        let thresholds = json!({ "medium": 10, "high": 20, "critical": 30 });
        self.org.set_config("risk:thresholds", thresholds).await;
    }
}

#[tokio::test]
async fn answers_say_everything_that_lacks() {
    let fixture = Fixture::new().await;
    fixture.make_critical().await;
    let Fixture { org, rex, ada, .. } = &fixture;
    let (task, request) = fixture.submitted(Some("prod")).await;
    let shown = org.task_request(&task).await;
    assert_eq!(shown["risk"]["level"], "CRITICAL");
    assert_eq!(shown["approve_needs"], json!(["digest", "scope_digest", "reason", "confirm", "password"]));
    let path = format!("/approvals/{request}/approve");
    let full = approval_body(&shown);
    assert_eq!(full["confirm"], "prod");
    let lacks = async |by: &TestUser, path: &str, body: &Value| {
        let refused = by.post(path, body).await.expect_problem(422, "FRICTION_REQUIRED");
        assert_eq!(refused["level"], "CRITICAL");
        assert!(text_field(&refused, "detail").contains("send the answer again with"), "{refused}");
        refused["needs"].clone()
    };
    let without = |part: &str, other: Value| {
        let mut body = full.clone();
        body[part] = other;
        body
    };
    // Also for an administrator in place of the reviewer.
    for by in [rex, ada] {
        let all = lacks(by, &path, &json!({})).await;
        assert_eq!(all, json!(["digest", "scope_digest", "reason", "confirm"]));
        assert_eq!(lacks(by, &path, &without("reason", json!(" "))).await, json!(["reason"]));
        for wrong in ["PROD", "prod ", "db:PROD", "files:prod", &task[..8]] {
            assert_eq!(
                lacks(by, &path, &without("confirm", json!(wrong))).await,
                json!(["confirm"]),
                "{wrong}"
            );
        }
        let _ = by
            .post(&path, &without("digest", json!("0".repeat(64))))
            .await
            .expect_problem(409, "DIGEST_MISMATCH");
    }
    // The confirmation of an override asks for the same.
    let abe = org.create_user("abe", &[ADMIN]).await;
    let ask = json!({ "reason": "outage", "incident_ticket": "INC-1" });
    let _ = ada.post(&format!("/tasks/{task}/override"), &ask).await.expect_status(200);
    let confirm = format!("/tasks/{task}/override/confirm");
    assert_eq!(
        lacks(&abe, &confirm, &json!({ "reason": "yes" })).await,
        json!(["digest", "scope_digest", "confirm", "revision"])
    );
    assert_eq!(org.task_request(&task).await["state"], "REVIEWING");
    // In a session, the password is a few seconds old.
    let eve = org.join_and_sign_in("eve", &[ADMIN], PASSWORD).await;
    let full = without("confirm", json!("db:prod"));
    // Without the revision, it could be about an older preview.
    let refused = eve.post(&confirm, &full).await.expect_problem(422, "FRICTION_REQUIRED");
    assert_eq!(refused["needs"], json!(["revision"]));
    let revision = org.task_request(&task).await["revision"].to_string();
    let mut headers = eve.headers(Some(&eve.csrf_token));
    headers.push(("if-match", &revision));
    let confirmed = org.api.send_raw("POST", &format!("/api/v1{confirm}"), &headers, full.to_string()).await;
    let confirmed = confirmed.expect_status(200);
    assert_eq!((&confirmed["state"], &confirmed["approve_needs"]), (&json!("APPROVED"), &json!([])));
    let (_, request) = fixture.submitted(None).await;
    let rejected = rex.decide(&request, "reject").await.expect_status(200);
    assert_eq!(rejected["task_state"], "REJECTED", "a reason suffices");
}

#[tokio::test]
async fn agents_get_a_risky_task_after_its_hold() {
    let fixture = Fixture::new().await;
    let Fixture { org, pat, rex, bot, .. } = &fixture;
    let (first, _) = fixture.submitted(None).await;
    assert_eq!(org.task_request(&first).await["risk"]["level"], "HIGH");
    // So long that it cannot end during the test.
    org.set_config("approval:apply_hold", json!(3_600)).await;
    let approve = async |task: &str| {
        let request = org.approval_id(task, "rex").await;
        let _ = rex.decide(&request, "approve").await.expect_status(200);
    };
    approve(&first).await;
    let held = org.task_request(&first).await;
    let at =
        |value: &Value| value.as_str().and_then(|at| at.parse::<jiff::Timestamp>().ok()).expect("a time");
    let until = at(&held["held_until"]).duration_since(at(&held["metadata"]["since"]["APPROVED"]));
    assert_eq!(until.as_secs(), 3_600);
    for claim in [json!({}), json!({ "task_id": first })] {
        assert_eq!(bot.post("/tasks/claim", &claim).await.status, 204, "{claim}");
    }
    let revoke = json!({ "reason": "wrong" });
    let revoked = rex.post(&format!("/tasks/{first}/revoke"), &revoke).await.expect_status(200);
    assert_eq!((&revoked["state"], &revoked["held_until"]), (&json!("REJECTED"), &Value::Null));
    // A claim that waits gets the task when the hold is over, and not before.
    org.set_config("approval:apply_hold", json!(1)).await;
    let (second, _) = fixture.submitted(None).await;
    approve(&second).await;
    let claimed = bot.post("/tasks/claim", &json!({ "wait_seconds": 20 })).await.expect_status(200);
    let since = &claimed["task"]["metadata"]["since"];
    let waited = at(&since["APPLYING"]).duration_since(at(&since["APPROVED"]));
    assert!(waited >= jiff::SignedDuration::from_secs(1), "{waited}");
    assert_eq!(pat.get(&format!("/tasks/{second}")).await.expect_status(200)["held_until"], Value::Null);
}

#[tokio::test]
async fn commands_show_what_they_approve_and_name_the_flags() {
    let fixture = Fixture::new().await;
    fixture.make_critical().await;
    let Fixture { deployment, org, rex, ada, .. } = &fixture;
    let shell = |user: &TestUser| Cli::new(ADE, deployment.server(), user);
    let (rex, ada) = (shell(rex), shell(ada));
    org.set_config("approval:apply_hold", json!(3_600)).await;
    let (task, request) = fixture.submitted(Some("prod")).await;
    let approve = ["approval", "approve", &request];
    let refused = rex.run(&approve).await;
    assert_eq!(refused.exit_code, Some(2), "{}", refused.stderr);
    for part in [
        &*format!("approving {task}"),
        "risk CRITICAL",
        "db:prod",
        "agent:bot",
        "needs a reason",
        "--reason TEXT",
    ] {
        assert!(refused.stderr.contains(part), "{part} is missing in {}", refused.stderr);
    }
    let refused = rex.run(&[&approve[..], &["--reason", "read it"]].concat()).await;
    assert!(refused.stderr.contains("--confirm ID"), "{}", refused.stderr);
    let refused = rex.run(&[&approve[..], &["--reason", "read it", "--confirm", "staging"]].concat()).await;
    assert_eq!(refused.exit_code, Some(2));
    assert!(
        refused.stderr.contains("FRICTION_REQUIRED") && refused.stderr.contains("--confirm ID"),
        "{}",
        refused.stderr
    );
    let (_, other) = fixture.submitted(Some("prod")).await;
    let refused = rex.run(&["approval", "approve", &request, &other, "--reason", "both"]).await;
    assert!(
        refused.stderr.contains("NOT_IN_BATCH") && refused.stderr.contains(&*other),
        "{}",
        refused.stderr
    );
    assert_eq!(org.task_request(&task).await["state"], "REVIEWING");
    rex.run_ok(&[&approve[..], &["--reason", "read it", "--confirm", "prod"]].concat()).await;
    let page = rex.run_ok(&["task", "show", &task]).await;
    assert!(page.contains("ade task revoke"), "the hold is missing in {page}");
    // The second administrator of an override.
    let (task, _) = fixture.submitted(Some("prod")).await;
    let abe = shell(&org.create_user("abe", &[ADMIN]).await);
    ada.run_ok(&["task", "override", &task, "--reason", "outage", "--ticket", "INC-1"]).await;
    let confirm = ["task", "confirm", &task, "--reason", "outage"];
    let refused = abe.run(&confirm).await;
    assert!(refused.stderr.contains("--confirm ID"), "{}", refused.stderr);
    let confirmed = abe.run_ok(&[&confirm[..], &["--confirm", "agent:bot"]].concat()).await;
    assert!(confirmed.contains("APPROVED"), "{confirmed}");
}
