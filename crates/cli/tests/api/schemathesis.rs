//! The served description against the server: Schemathesis makes requests of it, good and bad, and every answer must be one
//! that is described there, and never a failure of the server.

use std::path::Path;
use std::process::Command;

use ade_testkit::ade::{Setup, TOKEN};
use ade_testkit::{Ade, Api, effort};
use serde_json::json;

/// The tool could not be fetched.
const UNAVAILABLE: i32 = 69;

fn fuzz(ade: &Ade, token: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/schemathesis/run");
    let target = Path::new(env!("CARGO_BIN_EXE_ade")).ancestors().nth(2).expect("a target folder");
    let (examples, seed) = (effort::rounds(5, 150).to_string(), effort::seed().to_string());
    let output = Command::new(script)
        .args([ade.url().as_str(), token, "--max-examples", &examples, "--seed", &seed])
        .args(["--phases", "examples,coverage,fuzzing,stateful", "--no-color"])
        .env("CARGO_TARGET_DIR", target)
        .output()
        .expect("runs");
    let told = String::from_utf8_lossy(&output.stdout);
    if output.status.code() == Some(UNAVAILABLE) {
        println!("not fuzzed: the tool cannot be fetched: {}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    println!(
        "{}",
        told.lines().rev().take(12).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n")
    );
    assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
    let errors = ade.process().lines_with("ERROR");
    assert!(errors.is_empty(), "{errors:?}");
}

fn server() -> Ade {
    let config = "[limit]\nrequests_per_minute = 10000000\nsign_ins_per_minute = 10000000\n";
    Setup::new(env!("CARGO_BIN_EXE_ade")).config(config).start().expect("starts")
}

#[tokio::test]
async fn an_administrator_is_answered_as_described() {
    let ade = server();
    let api = Api::of(&ade).await;
    let body = json!({ "user_id": "chief", "roles": ["admin", "author", "reviewer", "auditor"] });
    let _ = api.post("/users", &body).await.expect(201);
    for reviewer in ["rita", "ron"] {
        let _ = api.post("/users", &json!({ "user_id": reviewer, "roles": ["reviewer"] })).await.expect(201);
    }
    let body = json!({ "name": "all", "scopes": ["read", "propose", "lock", "decide", "admin"] });
    let made = api.post("/users/chief/tokens", &body).await.expect(201);
    fuzz(&ade, made["token"].as_str().expect("a token"));
}

#[test]
fn the_bootstrap_token_is_answered_as_described() {
    // The same requests by nobody: long campaigns alone.
    if effort::rounds(0, 1) > 0 {
        fuzz(&server(), TOKEN);
    }
}
