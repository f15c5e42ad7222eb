//! `ade agent`: an agent is registered, gets a capability and a token, works with it, and loses both again.

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_testkit::{Cli, Deployment};
use serde_json::{Value, json};

const ADE: &str = env!("CARGO_BIN_EXE_ade");

#[tokio::test]
async fn agent_is_registered_works_with_its_token_and_is_removed() {
    let deployment = Deployment::embedded(ADE);
    let office = deployment.admin().await;
    let (ann, eve) = (office.create_user("ann", &[AUTHOR]).await, office.create_user("eve", &[ADMIN]).await);
    let rev = office.create_user("rev", &[REVIEWER]).await;
    let lea = office.create_user("lea", &[AUTHOR]).await;
    let approved_task = async |author: &ade_testkit::TestUser| {
        let work = json!({ "executor": "agent", "parameters": { "capability": "deploy" } });
        let task = author.create_submitted(work).await;
        let request = office.approval_id(&task, "rev").await;
        let _ = rev.decide(&request, "approve").await.expect_status(200);
        task
    };
    let (cli, admin) = (Cli::new(ADE, deployment.server(), &ann), Cli::new(ADE, deployment.server(), &eve));
    let registered = cli
        .run_ok(&[
            "agent",
            "register",
            "bot",
            "--name",
            "Bot",
            "--model",
            "large",
            "--version",
            "2",
            "--max-tasks",
            "9",
        ])
        .await;
    for part in ["Bot (bot)", "ann", "large", "0 of at most 9", "none: it claims only tasks that name it"] {
        assert!(registered.contains(part), "{part:?} is missing in\n{registered}");
    }
    assert!(cli.run_ok(&["agent", "ls"]).await.contains("bot"));

    // The capability of the sponsor counts for tasks of the sponsor.
    let granted = cli.json(&["agent", "grant", "bot", "deploy", "test"]).await;
    let scopes = |agent: &Value| {
        let grants = agent["grants"].as_array().cloned().unwrap_or_default();
        grants.iter().map(|grant| (grant["capability"].clone(), grant["scope"].clone())).collect::<Vec<_>>()
    };
    let of = |name: &str, scope: &str| (json!(name), json!(scope));
    assert_eq!(scopes(&granted), [of("deploy", "sponsor"), of("test", "sponsor")]);
    let output = cli.run(&["agent", "token", "bot", "--ttl", "8h"]).await;
    assert!(output.stderr.contains("shown only once"), "{}", output.stderr);
    let bot = office.user_with_token("bot", &json!({ "token": output.stdout.trim() }));
    let as_bot = Cli::new(ADE, deployment.server(), &bot);
    let held = as_bot.json(&["lock", "acquire", "resource:database:prod"]).await;
    let token = held[0]["fencing_token"].to_string();
    let shown = cli.json(&["lock", "show", "resource:database:prod"]).await;
    assert_eq!(shown["holders"][0]["agent_id"], "bot", "an agent holds locks itself");
    as_bot.run_ok(&["lock", "release", "resource:database:prod", "--fencing-token", &token]).await;
    as_bot.run_ok(&["lock", "hold", "resource:database:prod", "--", "true"]).await;
    let (own, of_lea) = (approved_task(&ann).await, approved_task(&lea).await);
    let claim = async |task: &str| bot.post("/tasks/claim", &json!({ "task_id": task })).await;
    assert_eq!(claim(&own).await.expect_status(200)["task"]["task_id"], json!(own));
    assert_eq!(claim(&of_lea).await.status, 404, "of an author whom it does not serve");

    // An administrator widens one of them; the other stays as it is.
    let refused = cli.run(&["agent", "grant", "bot", "deploy", "--scope", "accepted"]).await;
    assert!(refused.stderr.contains("only an administrator"), "{}", refused.stderr);
    let granted = admin.json(&["agent", "grant", "bot", "deploy", "--scope", "accepted"]).await;
    assert_eq!(scopes(&granted), [of("deploy", "accepted"), of("test", "sponsor")]);
    admin.run_ok(&["agent", "set", "bot", "--accepts", "user:lea,role:dba"]).await;
    let shown = cli.run_ok(&["agent", "show", "bot"]).await;
    assert!(shown.contains("user:lea, role:dba") && shown.contains("everybody whom it accepts"), "{shown}");
    assert_eq!(claim(&of_lea).await.expect_status(200)["task"]["task_id"], json!(of_lea));

    // A drained agent gets nothing; without the capability it may not claim.
    let later = approved_task(&ann).await;
    assert_eq!(cli.json(&["agent", "set", "bot", "--drain"]).await["status"], "draining");
    assert_eq!(claim(&later).await.status, 204);
    cli.run_ok(&["agent", "set", "bot", "--resume"]).await;
    let revoked = cli.json(&["agent", "revoke", "bot", "deploy"]).await;
    assert_eq!(scopes(&revoked), [of("test", "sponsor")], "a grant of an administrator, too");
    assert_eq!(claim(&later).await.expect_problem(403, "FORBIDDEN")["status"], 403);
    let missing = cli.run(&["agent", "revoke", "bot", "deploy"]).await;
    assert!(missing.stderr.contains("does not have the capability deploy"), "{}", missing.stderr);
    let nothing = cli.run(&["agent", "set", "bot"]).await;
    assert!(nothing.stderr.contains("nothing to change"), "{}", nothing.stderr);

    // Tokens are revoked one by one, or with the agent.
    let second = cli.json(&["agent", "token", "bot", "--name", "second", "--scope", "read"]).await;
    let reader = office.user_with_token("bot", &second);
    let _ = reader.get("/agents/bot").await.expect_status(200);
    cli.run_ok(&["agent", "revoke-token", "bot", second["token_id"].as_str().expect("an id")]).await;
    assert_eq!(reader.get("/agents/bot").await.status, 401);
    for task in [&own, &of_lea] {
        let report = json!({ "attempt": 1, "result": "success" });
        let _ = bot.post(&format!("/tasks/{task}/complete"), &report).await.expect_status(200);
    }
    cli.run_ok(&["agent", "rm", "bot"]).await;
    assert_eq!(bot.get("/agents/bot").await.status, 401);
    let gone = cli.run(&["agent", "show", "bot"]).await;
    assert_ne!(gone.exit_code, Some(0));
}
