//! What agents and authors write cannot control the terminal of its readers, nor show less or other text than there is.

use ade_domain::people::{AUTHOR, REVIEWER};
use ade_domain::text::is_shown;
use ade_testkit::{Cli, Deployment};
use serde_json::{Value, json};

const ADE: &str = env!("CARGO_BIN_EXE_ade");
/// Clears the screen, reverses text, hides text in tags and zero-width characters, and sets the title of the window.
const HOSTILE: &str = "ok\u{1b}[2J\u{9b}1m \u{202e}reversed\u{2066}\u{200b}\u{200d}\u{feff}\u{ad}\u{e0061}\u{e0100}\u{1b}]0;x\u{7f}";
/// The same without control characters, which many fields do not accept.
const HIDDEN: &str = "ok \u{202e}reversed\u{2066}\u{200b}\u{e0061}";

fn assert_shown(what: &str, text: &str) {
    let hidden: Vec<char> = text.chars().filter(|c| *c != '\n' && !is_shown(*c)).collect();
    assert!(hidden.is_empty(), "{what} prints {hidden:?}: {text:?}");
}

#[tokio::test]
async fn text_of_authors_and_agents_is_shown_as_it_is() {
    let deployment = Deployment::embedded(ADE);
    let org = deployment.admin().await;
    let ann =
        org.create_user_from(json!({ "user_id": "ann", "name": "Ann \u{202e}", "roles": [AUTHOR] })).await;
    let rex = org.create_user("rex", &[REVIEWER]).await;
    let bot = org.create_agent("bot", &ann).await;
    let task = bot
        .create_submitted(json!({
            "description": HOSTILE, "tags": [HIDDEN], "parameters": { "note": HOSTILE, HOSTILE: 1 },
            "resources": [{ "type": "docs", "id": HIDDEN }], "ticket_ref": HIDDEN,
        }))
        .await;
    let comment = json!({ "text": format!("first\n{HOSTILE}") });
    let _ = bot.post(&format!("/tasks/{task}/comments"), &comment).await.expect_status(201);
    let approval = org.approval_id(&task, "rex").await;
    let request = json!({ "agent_id": "bot", "locks": [{ "lock": "resource:a:b" }], "purpose": HOSTILE });
    let _ = bot.post("/locks/acquire", &request).await.expect_status(200);
    let cli = Cli::new(ADE, deployment.server(), &rex);
    let commands: [&[&str]; 9] = [
        &["task", "ls"],
        &["task", "show", &task],
        &["task", "comments", &task],
        &["task", "audit", &task],
        &["approval", "ls"],
        &["approval", "show", &approval],
        &["audit", "ls"],
        &["lock", "ls"],
        &["lock", "show", "resource:a:b"],
    ];
    let mut seen = 0;
    for command in commands {
        let output = cli.run(command).await;
        assert_eq!(output.exit_code, Some(0), "{command:?}: {}", output.stderr);
        assert_shown(&command.join(" "), &output.stdout);
        seen += usize::from(output.stdout.contains("\\u{202e}reversed\\u{2066}"));
        let json = cli.run_ok(&[command, &["--json"]].concat()).await;
        assert_shown(&command.join(" "), &json);
        assert!(serde_json::from_str::<Value>(&json).is_ok(), "{json}");
    }
    assert!(seen >= 4, "escapes are visible in {seen} commands");
    let shown = cli.json(&["task", "show", &task]).await;
    assert_eq!(shown["task"]["config"]["description"], HOSTILE, "JSON means the same");
    // Errors repeat what the server says.
    let refused = cli.run(&["task", "cancel", &format!("{HOSTILE}x")]).await;
    assert_ne!(refused.exit_code, Some(0));
    assert_shown("an error", &refused.stderr);
}
