//! E-mail of a running server: who may set and see the address of a user, and a message about a task that waits for a reviewer.

use ade_domain::people::{ADMIN, AUDITOR, AUTHOR, REVIEWER};
use ade_domain::permission::Scope;
use ade_testkit::mail_receiver::MailReceiver;
use ade_testkit::{Cli, Deployment};
use serde_json::{Value, json};

const PASSWORD: &str = "a password of some length";

fn config(receiver: &MailReceiver) -> String {
    let port = receiver.port();
    format!(
        "[webhooks]\npublic_url = \"https://ade.test\"\n[webhooks.smtp]\nhost = \"127.0.0.1\"\nport = {port}\n\
         encryption = \"none\"\nfrom = \"ade@ade.test\"\n"
    )
}

#[tokio::test]
async fn reviewers_get_a_message_about_a_request() {
    let mut receiver = MailReceiver::start().await;
    let deployment = Deployment::embedded_with_config(env!("CARGO_BIN_EXE_ade"), &config(&receiver));
    let org = deployment.admin().await;
    let ann = org.create_user("ann", &[AUTHOR]).await;
    let _ = org.create_user("rex", &[REVIEWER]).await;
    let cli =
        Cli::new(env!("CARGO_BIN_EXE_ade"), deployment.server(), &org.create_user("boss", &[ADMIN]).await);
    let _ = cli.run_ok(&["user", "set", "rex", "--email", "rex@example.com"]).await;
    let create = ["webhook", "create", "reviewers", "--as", "email", "--event", "approval:requested"];
    let id = cli.run_ok(&create).await.trim().to_owned();
    let task = ann.create_submitted(json!({})).await;
    let mail = receiver.next_mail().await;
    assert_eq!(mail.header("To"), "rex@example.com");
    assert!(mail.data.contains(&format!("https://ade.test/tasks/{task}")), "{}", mail.data);
    assert_eq!(cli.json(&["webhook", "show", &id]).await["url"], "smtp:");
}

#[tokio::test]
async fn addresses_are_for_the_person_and_administrators() {
    let deployment = Deployment::embedded(env!("CARGO_BIN_EXE_ade"));
    let org = deployment.admin().await;
    let rex = org.join_and_sign_in("rex", &[REVIEWER], PASSWORD).await;
    let own = org.issue_token("rex", &[Scope::Read, Scope::Propose]).await;
    let ann = org.create_user("ann", &[AUTHOR, AUDITOR]).await;
    let boss = org.create_user("boss", &[ADMIN]).await;
    let address = |address: &str| json!({ "email": address });

    // The person, in a session and for nobody else, without other fields; administrators.
    let updated = rex.patch("/users/me", &address("rex@example.com")).await.expect_status(200);
    assert_eq!(updated["email"], "rex@example.com");
    let _ = own.patch("/users/rex", &address("thief@example.com")).await.expect_problem(403, "FORBIDDEN");
    let _ = rex.patch("/users/ann", &address("a@example.com")).await.expect_problem(403, "FORBIDDEN");
    let more = json!({ "email": "r@example.com", "roles": [ADMIN] });
    let _ = rex.patch("/users/me", &more).await.expect_problem(403, "FORBIDDEN");
    let _ = ann.patch("/users/rex", &address("a@example.com")).await.expect_problem(403, "FORBIDDEN");
    let refused = boss.patch("/users/rex", &address("a@b.test\r\nBcc: c@d.test")).await;
    let _ = refused.expect_problem(422, "INVALID_REQUEST");
    assert_eq!(refused.error_pointers(), ["/email"]);
    let _ = boss.patch("/users/ann", &address("ann@example.com")).await.expect_status(200);

    // Others do not see it, nor does the audit log, which auditors read.
    assert_eq!(boss.get("/users/rex").await.expect_status(200)["email"], "rex@example.com");
    assert_eq!(rex.get("/sessions/current").await.expect_status(200)["user"]["email"], "rex@example.com");
    assert_eq!(ann.get("/users/me").await.expect_status(200)["email"], "ann@example.com");
    for path in ["/users/rex", "/users", "/audit"] {
        let shown = ann.get(path).await;
        let _ = shown.expect_status(200);
        assert!(!shown.text().contains("rex@example.com"), "{path}: {}", shown.text());
    }
    assert!(ann.get("/audit").await.text().contains("\"email\":\"changed\""));
    let agent = org.create_agent("bot", &ann).await;
    assert!(!agent.get("/sessions/current").await.text().contains("ann@example.com"));
    let _ = agent.patch("/users/ann", &address("bot@example.com")).await.expect_problem(403, "SCOPE_MISSING");
    let _ = rex.patch("/users/me", &json!({ "email": null })).await.expect_status(200);
    assert_eq!(rex.get("/users/me").await.expect_status(200)["email"], Value::Null);
}
