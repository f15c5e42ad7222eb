//! Fuzzes the server with Schemathesis, which generates requests from the served OpenAPI description. Every response must be
//! documented there, and none may be a server error.

use std::path::Path;
use std::process::Command;

use ade_testkit::server::{BOOTSTRAP_TOKEN, ServerBuilder};
use ade_testkit::{AdeServer, ApiClient, effort};
use serde_json::json;

fn fuzz(ade: &AdeServer, token: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/schemathesis/run");
    let target = Path::new(env!("CARGO_BIN_EXE_ade")).ancestors().nth(2).expect("a target folder");
    let (examples, seed) = (effort::rounds(4, 150).to_string(), effort::seed().to_string());
    // Coverage repeats each request with every wrong value of every field, which takes most of the time.
    let phases =
        if effort::is_soak() { "examples,coverage,fuzzing,stateful" } else { "examples,fuzzing,stateful" };
    let output = Command::new(script)
        .args([ade.url().as_str(), token, "--max-examples", &examples, "--seed", &seed])
        .args(["--phases", phases, "--no-color"])
        .env("CARGO_TARGET_DIR", target)
        .output()
        .expect("runs");
    let report = String::from_utf8_lossy(&output.stdout);
    println!(
        "{}",
        report.lines().rev().take(12).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n")
    );
    assert!(output.status.success(), "{report}\n{}", String::from_utf8_lossy(&output.stderr));
    let errors = ade.process().log_lines_with("ERROR");
    assert!(errors.is_empty(), "{errors:?}");
}

fn unlimited_server() -> AdeServer {
    let config = "[limit]\nrequests_per_minute = 10000000\nsign_ins_per_minute = 10000000\n";
    ServerBuilder::new(env!("CARGO_BIN_EXE_ade")).config(config).start().expect("starts")
}

#[tokio::test]
async fn responses_match_description() {
    let ade = unlimited_server();
    let api = ApiClient::connect(&ade).await;
    let body = json!({ "user_id": "chief", "roles": ["admin", "author", "reviewer", "auditor"] });
    let _ = api.post("/users", &body).await.expect_status(201);
    for reviewer in ["rita", "ron"] {
        let _ = api
            .post("/users", &json!({ "user_id": reviewer, "roles": ["reviewer"] }))
            .await
            .expect_status(201);
    }
    let body = json!({ "name": "all", "scopes": ["read", "propose", "lock", "decide", "admin"] });
    let created = api.post("/users/chief/tokens", &body).await.expect_status(201);
    fuzz(&ade, created["token"].as_str().expect("a token"));
    if effort::is_soak() {
        // Mostly the same requests once more.
        fuzz(&unlimited_server(), BOOTSTRAP_TOKEN);
    }
}
