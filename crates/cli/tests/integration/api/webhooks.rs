//! Webhooks of a running server: signatures that an independent library verifies, inbound messages over HTTP, and the command line.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::Command;
use std::time::Duration;

use ade_testkit::deployment::text_field;
use ade_testkit::wait::until;
use ade_testkit::webhook_receiver::ReceivedRequest;
use ade_testkit::{AdeServer, ApiClient, Cli, Deployment, WebhookReceiver};
use serde_json::{Value, json};

use crate::api::start_server_with;

/// Far longer than anything takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(30);

async fn server(receiver: &WebhookReceiver) -> (AdeServer, ApiClient) {
    start_server_with(&format!("[webhooks]\nallowed_private_hosts = [{:?}]\n", receiver.host())).await
}

fn verify(secret: &str, request: &ReceivedRequest) -> bool {
    let mut headers = reqwest::header::HeaderMap::new();
    for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        headers.insert(name, request.header(name).parse().expect("a header"));
    }
    let library = standardwebhooks::Webhook::new(secret).expect("a secret");
    library.verify(request.body.as_bytes(), &headers).is_ok()
}

/// What the Python function of docs/webhooks.md says about a request.
fn verify_as_documented(secret: &str, request: &ReceivedRequest) -> bool {
    let guide = include_str!("../../../../../docs/webhooks.md");
    let (_, example) = guide.split_once("```python\n").expect("an example");
    let (example, _) = example.split_once("```").expect("an end");
    let names = ["webhook-id", "webhook-timestamp", "webhook-signature"];
    let headers = names.map(|name| (name.to_owned(), json!(request.header(name))));
    let headers = Value::Object(headers.into_iter().collect());
    let script = format!(
        "{example}\nimport json, sys\nprint(is_genuine(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3].encode()))"
    );
    let arguments = ["-c", &script, secret, &headers.to_string(), &request.body];
    let output = Command::new("python3").args(arguments).output().expect("runs");
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(said == "True" || said == "False", "{}", String::from_utf8_lossy(&output.stderr));
    said == "True"
}

#[tokio::test]
async fn sends_events_that_the_independent_library_verifies() {
    let mut receiver = WebhookReceiver::start().await;
    let (ade, api) = server(&receiver).await;
    let body = json!({ "name": "ci", "url": receiver.url("/hook?key=topsecret"), "events": ["user:*"] });
    let created = api.post("/webhooks", &body).await.expect_status(201);
    let (id, secret) =
        (created["webhook_id"].as_str().expect("an id"), created["secret"].as_str().expect("shown once"));
    let _ = api.post("/users", &json!({ "user_id": "zoe" })).await.expect_status(201);
    let request = receiver.next_request().await;
    assert!(verify(secret, &request), "{request:?}");
    assert_eq!(
        (&request.json()["type"], &request.json()["data"]["user_id"]),
        (&json!("user:created"), &json!("zoe"))
    );

    let rotated = api.post(&format!("/webhooks/{id}/rotate"), &json!({})).await.expect_status(200);
    let new = rotated["secret"].as_str().expect("shown once");
    let _ = api.post(&format!("/webhooks/{id}/test"), &json!({})).await.expect_status(202);
    let request = receiver.next_request().await;
    assert!(verify(secret, &request) && verify(new, &request), "{request:?}");
    assert!(verify_as_documented(secret, &request) && verify_as_documented(new, &request));
    assert!(!verify_as_documented("whsec_AAAA", &request));

    // Shown once: not in lists, the audit log, events or the log of the server.
    let shown = [
        api.get("/webhooks").await.text(),
        api.get(&format!("/webhooks/{id}")).await.text(),
        api.get(&format!("/webhooks/{id}/deliveries")).await.text(),
        api.get("/audit").await.text(),
        ade.process().log_lines_with("").join("\n"),
    ];
    for text in &shown {
        for hidden in [secret, new, "topsecret"] {
            assert!(!text.contains(hidden.trim_start_matches("whsec_")), "{hidden} in {text}");
        }
    }
    assert!(shown[0].contains("/hook?***"));
}

fn sign(secret: &str, id: &str, seconds: i64, body: &str) -> String {
    let library = standardwebhooks::Webhook::new(secret).expect("a secret");
    library.sign(id, seconds, body.as_bytes()).expect("signed")
}

#[tokio::test]
async fn inbound_messages_need_a_fresh_signature() {
    let receiver = WebhookReceiver::start().await;
    let (_ade, api) = server(&receiver).await;
    for (user, role) in [("pat", "author"), ("rex", "reviewer")] {
        let _ = api.post("/users", &json!({ "user_id": user, "roles": [role] })).await.expect_status(201);
    }
    let template = json!({
        "type": "deploy", "description": "Deploy {version}", "executor": "noop",
        "inputs": { "version": { "type": "string", "max_length": 20 } },
    });
    let body = json!({ "name": "deploys", "owner_id": "pat", "template": template });
    let hook = api.post("/hooks", &body).await.expect_status(201);
    let (id, secret) =
        (hook["hook_id"].as_str().expect("an id"), hook["secret"].as_str().expect("shown once"));
    let path = format!("/api/v1/hooks/{id}");
    let message = json!({ "type": "release", "data": { "version": "1.2" } }).to_string();
    // The time of the server.
    let created: jiff::Timestamp = text_field(&hook, "created_at").parse().expect("a time");
    let now = created.as_second();
    let send = async |message_id: &str, at: i64, signature: &str, body: String| {
        let at = at.to_string();
        let headers = [
            ("webhook-id", message_id),
            ("webhook-timestamp", at.as_str()),
            ("webhook-signature", signature),
        ];
        api.send_raw("POST", &path, &headers, body).await
    };
    let signature = sign(secret, "m1", now, &message);
    let accepted = send("m1", now, &signature, message.clone()).await.expect_status(201);
    assert_eq!((&accepted["state"], &accepted["submit_error"]), (&json!("REVIEWING"), &Value::Null));
    let task =
        api.get(&format!("/tasks/{}", accepted["task_id"].as_str().expect("an id"))).await.expect_status(200);
    assert_eq!(
        (&task["config"]["description"], &task["metadata"]["author_id"]),
        (&json!("Deploy 1.2"), &json!("pat"))
    );
    let _ = send("m1", now, &signature, message.clone()).await.expect_problem(409, "REPLAYED");
    let _ = send("m2", now, &signature, message.clone()).await.expect_problem(401, "UNAUTHENTICATED");
    let old = now - 400;
    let late = sign(secret, "m3", old, &message);
    let _ = send("m3", old, &late, message.clone()).await.expect_problem(401, "UNAUTHENTICATED");
    let wrong = json!({ "data": { "version": 3 } }).to_string();
    let problem =
        send("m4", now, &sign(secret, "m4", now, &wrong), wrong).await.expect_problem(422, "INVALID_REQUEST");
    assert_eq!(problem["errors"][0]["pointer"], "/data/version");
    let large = " ".repeat(65_537);
    let _ = send("m5", now, "v1,x", large).await.expect_problem(413, "BODY_TOO_LARGE");
    assert_eq!(api.get("/tasks").await.expect_status(200)["items"].as_array().map(Vec::len), Some(1));
}

const SLACK_SECRET: &str = "0123456789abcdef0123456789abcdef";

#[tokio::test]
async fn slack_links_users_who_then_decide() {
    let mut receiver = WebhookReceiver::start().await;
    let config = format!("[webhooks]\nallowed_private_hosts = [{:?}]\n", receiver.host());
    let deployment = Deployment::embedded_with_config(env!("CARGO_BIN_EXE_ade"), &config);
    let org = deployment.admin().await;
    let rex = org.join_and_sign_in("rex", &["reviewer"], "a password of my own").await;
    let body = json!({
        "name": "chat", "format": "slack", "url": receiver.url("/api/chat.postMessage"), "channel": "C1",
        "credential": "xoxb-1", "events": ["archive:*"], "signing_secret": SLACK_SECRET,
    });
    let created = org.api.post("/webhooks", &body).await.expect_status(201);
    assert_eq!(created["decisions"], true);
    assert!(!created.to_string().contains(SLACK_SECRET));
    let path = format!("/api/v1/hooks/slack/{}", text_field(&created, "webhook_id"));
    // The time of the server.
    let now: jiff::Timestamp = text_field(&created, "created_at").parse().expect("a time");
    let at = now.as_second().to_string();
    let sign = |body: &str| {
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, SLACK_SECRET.as_bytes());
        let tag = ring::hmac::sign(&key, format!("v0:{at}:{body}").as_bytes());
        format!("v0={}", hex::encode(tag))
    };
    let form = |fields: &[(&str, &str)]| {
        url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
    };
    let send_as = async |media_type: &str, signature: &str, body: String| {
        let signed = [("x-slack-request-timestamp", at.as_str()), ("x-slack-signature", signature)];
        let headers = [signed[0], signed[1], ("content-type", media_type)];
        org.api.send_raw("POST", &path, &headers, body).await
    };
    let form_type = "application/x-www-form-urlencoded";
    let send = async |signature: &str, body: String| send_as(form_type, signature, body).await;
    let code = rex.post("/users/me/slack-link", &json!({})).await.expect_status(201);
    let text = format!("link {}", text_field(&code, "code"));
    let link = form(&[("command", "/ade"), ("team_id", "T1"), ("user_id", "U1"), ("text", &text)]);
    let forged = format!("v0={}", "0".repeat(64));
    let _ = send(&forged, link.clone()).await.expect_problem(401, "UNAUTHENTICATED");
    let _ = send("", link.clone()).await.expect_problem(401, "UNAUTHENTICATED");
    let _ = send(&forged, " ".repeat(65_537)).await.expect_problem(413, "BODY_TOO_LARGE");
    let nothing = form(&[("text", "unlink")]);
    let _ = send(&sign(&nothing), nothing.clone()).await.expect_problem(422, "INVALID_REQUEST");
    for media_type in ["application/json", "", "application/x-www-form-urlencodedx"] {
        let refused = send_as(media_type, &sign(&link), link.clone()).await;
        let _ = refused.expect_problem(415, "UNSUPPORTED_MEDIA_TYPE");
    }
    for twice in [form(&[("payload", "{}"), ("payload", "{}")]), format!("{link}&text=unlink")] {
        let _ = send(&sign(&twice), twice.clone()).await.expect_problem(400, "BAD_BODY");
    }
    let linked =
        send_as("application/x-www-form-urlencoded; charset=utf-8", &sign(&link), link.clone()).await;
    let linked = linked.expect_status(200);
    assert_eq!(linked["response_type"], "ephemeral");
    assert!(text_field(&linked, "text").contains("linked with rex"), "{linked}");
    let _ = send(&sign(&link), link.clone()).await.expect_problem(409, "REPLAYED");

    let value = json!({ "task_id": "00000000-0000-7000-8000-000000000000", "digest": "0".repeat(64), "scope_digest": null });
    let payload = json!({
        "type": "block_actions", "team": { "id": "T1" }, "user": { "id": "U1" },
        "actions": [{ "action_id": "ade_approve", "value": value.to_string() }],
        "response_url": receiver.url("/answer"),
    });
    let press = form(&[("payload", &payload.to_string())]);
    let refused = send(&sign(&press), press.clone()).await.expect_status(200);
    assert!(text_field(&refused, "text").contains("not the message"), "{refused}");
    assert_eq!(receiver.next_request().await.json(), refused);
}

#[tokio::test]
async fn command_line_manages_webhooks() {
    let mut receiver = WebhookReceiver::start().await;
    let config = format!("[webhooks]\nallowed_private_hosts = [{:?}]\n", receiver.host());
    let deployment = Deployment::embedded_with_config(env!("CARGO_BIN_EXE_ade"), &config);
    let org = deployment.admin().await;
    let ada = org.create_user("ada", &["admin"]).await;
    let cli = Cli::new(env!("CARGO_BIN_EXE_ade"), deployment.server(), &ada);
    let url = receiver.url("/hook");
    let secret = cli.run_ok(&["webhook", "create", "ci", "--url", &url, "--event", "user:created"]).await;
    assert!(secret.starts_with("whsec_"), "{secret}");
    let listed = cli.json(&["webhook", "ls"]).await;
    let id = listed[0]["webhook_id"].as_str().expect("an id").to_owned();
    assert!(cli.run_ok(&["webhook", "ls"]).await.contains("user:created"));
    let _ = cli.run_ok(&["webhook", "test", &id]).await;
    let request = receiver.next_request().await;
    assert!(verify(secret.trim(), &request));
    let delivery = request.header("webhook-id").to_owned();
    let _ = cli.run_ok(&["webhook", "redeliver", &id, &delivery]).await;
    assert_eq!(receiver.next_request().await.header("webhook-id"), delivery);
    assert!(cli.run_ok(&["webhook", "deliveries", &id]).await.contains("webhook:test"));
    let rotated = cli.run_ok(&["webhook", "rotate", &id]).await;
    assert!(rotated.starts_with("whsec_") && rotated != secret);
    let page = cli.run_ok(&["webhook", "update", &id, "--deactivate", "--name", "old"]).await;
    assert!(page.contains("inactive") && page.contains("old secret until"), "{page}");
    let _ = cli.run_ok(&["webhook", "delete", &id]).await;
    assert_eq!(cli.run(&["webhook", "show", &id]).await.exit_code, Some(1));

    let _ = org.create_user("pat", &["author"]).await;
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(b"name: deploys\nowner_id: pat\nsubmit: false\ntemplate:\n  type: deploy\n  description: Deploy {version}\n  inputs:\n    version: { type: string }\n").expect("written");
    let path = file.path().to_str().expect("a path");
    let secret = cli.run_ok(&["webhook", "inbound", "create", "-f", path]).await;
    assert!(secret.starts_with("whsec_"), "{secret}");
    let hooks = cli.json(&["webhook", "inbound", "ls"]).await;
    let hook = hooks[0]["hook_id"].as_str().expect("an id");
    let page = cli.run_ok(&["webhook", "inbound", "show", hook]).await;
    assert!(page.contains("text; required") && page.contains("/api/v1/hooks/"), "{page}");
    let _ = cli.run_ok(&["webhook", "inbound", "delete", hook]).await;
}

#[tokio::test]
async fn two_servers_send_each_event_once() {
    const COUNT: usize = 12;
    let mut receiver = WebhookReceiver::start().await;
    let config = format!("[webhooks]\nallowed_private_hosts = [{:?}]\n", receiver.host());
    let deployment = Deployment::distributed_with_config(env!("CARGO_BIN_EXE_ade"), 2, &config);
    let servers = deployment.api_clients().await;
    let body = json!({ "name": "ci", "url": receiver.url("/hook"), "events": ["user:created"] });
    let created = servers[0].post("/webhooks", &body).await.expect_status(201);
    let id = text_field(&created, "webhook_id");
    for number in 0..COUNT {
        let user = json!({ "user_id": format!("user-{number}") });
        let _ = servers[number % 2].post("/users", &user).await.expect_status(201);
    }
    let mut received = BTreeSet::new();
    for _ in 0..COUNT {
        let request = receiver.next_request().await;
        assert!(verify(&text_field(&created, "secret"), &request));
        assert!(received.insert(request.header("webhook-id").to_owned()), "sent twice: {request:?}");
    }
    let delivered = || async {
        let page =
            servers[1].get(&format!("/webhooks/{id}/deliveries?status=delivered")).await.expect_status(200);
        let items = page["items"].as_array().expect("items").clone();
        if items.len() == COUNT { Ok(items) } else { Err(page.to_string()) }
    };
    // The server stores the answer after the receiver has sent it.
    let delivered = until("all deliveries are stored", LONG, delivered).await.expect("stored");
    assert!(delivered.iter().all(|delivery| delivery["attempts"] == 1), "{delivered:?}");
    assert_eq!(receiver.received(), None);
}
