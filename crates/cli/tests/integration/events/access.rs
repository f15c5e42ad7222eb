//! Nobody receives an event of something that they may not see, also after a change while they are connected.

use ade_domain::people::{AUDITOR, AUTHOR, REVIEWER};
use ade_domain::permission::Scope;
use ade_testkit::deployment::text_field;
use ade_testkit::session::SessionClient;
use ade_testkit::{Deployment, TestUser};
use serde_json::{Value, json};

use super::socket::{Closed, Socket, open};
use super::{all_events, comment, events_backward};

const ADE: &str = env!("CARGO_BIN_EXE_ade");

fn unauthenticated() -> Closed {
    Closed { code: 1008, reason: "unauthenticated".to_owned() }
}

/// Whether a caller sees events of a task.
async fn sees(caller: &TestUser, task: &str) -> bool {
    let events = all_events(caller, 0, "topics=task,approval").await;
    let of_task: Vec<&Value> = events.iter().filter(|event| event["payload"]["task_id"] == task).collect();
    let in_order = all_events(caller, 0, &format!("task_id={task}")).await;
    assert_eq!(of_task.len(), in_order.len());
    let mut newest_first = events_backward(caller, &format!("task_id={task}")).await;
    newest_first.reverse();
    assert_eq!(newest_first, in_order, "the same in both directions");
    !of_task.is_empty()
}

#[tokio::test]
async fn events_of_a_task_are_seen_by_those_who_see_the_task() {
    let deployment = Deployment::embedded(ADE);
    let org = deployment.admin().await;
    let (pat, sue) = (org.create_user("pat", &[AUTHOR]).await, org.create_user("sue", &[AUTHOR]).await);
    let rex = org.create_user("rex", &[REVIEWER, AUTHOR]).await;
    let roy = org.create_user("roy", &[REVIEWER]).await;
    let aud = org.create_user("aud", &[AUDITOR]).await;
    org.create_policy(json!({ "name": "rex alone", "reviewers": ["rex"] })).await;
    let (bot, rexbot) = (org.create_agent("bot", &pat).await, org.create_agent("rexbot", &rex).await);
    let suebot = org.create_agent("suebot", &sue).await;
    let draft = pat.create_draft(json!({})).await;
    let reviewed = pat.create_submitted(json!({})).await;
    let deleted = pat.create_draft(json!({})).await;
    let _ = pat.delete(&format!("/tasks/{deleted}")).await.expect_status(204);
    let claimed = pat
        .create_submitted(json!({ "executor": "agent", "parameters": { "agent": "bot" }, "resources": [] }))
        .await;
    let request = org.approval_id(&claimed, "rex").await;
    let _ = rex.decide(&request, "approve").await.expect_status(200);
    let _ = bot.post("/tasks/claim", &json!({ "wait_seconds": 10.0 })).await.expect_status(200);
    let callers = [&pat, &bot, &sue, &suebot, &rex, &rexbot, &roy, &aud];
    for task in [&draft, &reviewed, &claimed] {
        for caller in callers {
            let is_visible = caller.get(&format!("/tasks/{task}")).await.status == 200;
            assert_eq!(sees(caller, task).await, is_visible, "{} and {task}", caller.id);
        }
    }
    assert!(sees(&rex, &reviewed).await && !sees(&roy, &reviewed).await && !sees(&rex, &draft).await);
    // Of a deleted task the actor keeps what only names it.
    for (caller, is_visible) in [(&pat, true), (&aud, true), (&bot, false), (&rex, false), (&sue, false)] {
        assert_eq!(sees(caller, &deleted).await, is_visible, "{}", caller.id);
    }
    for (caller, name, is_visible) in [
        (&sue, "policy:created", true),
        (&sue, "agent:created", true),
        (&sue, "user:created", false),
        (&roy, "token:created", false),
        (&aud, "token:created", true),
    ] {
        let events = all_events(caller, 0, &format!("events={name}")).await;
        let of_others = events.iter().any(|event| event["payload"]["user_id"] != caller.id.as_str());
        assert_eq!(of_others, is_visible, "{name} and {}", caller.id);
    }
}

#[tokio::test]
async fn a_role_that_is_lost_while_connected_narrows_the_stream_at_once() {
    let deployment = Deployment::embedded(ADE);
    let (ade, org) = (deployment.server(), deployment.admin().await);
    let (pat, aud) = (org.create_user("pat", &[AUTHOR]).await, org.create_user("aud", &[AUDITOR]).await);
    let mut socket = Socket::with_token(ade, &aud.token).await;
    // Follows nothing but tasks: the change itself is not sent.
    let _ = socket.subscribe(json!({ "events": ["task:created", "user:updated"] })).await;
    let _ = pat.create_draft(json!({})).await;
    assert_eq!(socket.names_until("task:created").await, Ok(vec!["task:created".to_owned()]));
    for _ in 0..5 {
        let _ = org.api.patch("/users/aud", &json!({ "roles": [] })).await.expect_status(200);
        let _ = pat.create_draft(json!({})).await;
        let _ = org.api.patch("/users/aud", &json!({ "team": "blue" })).await.expect_status(200);
        let both = Ok(vec!["user:updated".to_owned()]);
        assert_eq!(socket.names_until("user:updated").await, both);
        assert_eq!(socket.names_until("user:updated").await, both, "nothing of the task in between");
        let _ = org.api.patch("/users/aud", &json!({ "roles": [AUDITOR] })).await.expect_status(200);
        let _ = pat.create_draft(json!({})).await;
        let regained = Ok(vec!["user:updated".to_owned(), "task:created".to_owned()]);
        assert_eq!(socket.names_until("task:created").await, regained, "the role is back");
    }
}

#[tokio::test]
async fn credentials_that_end_close_the_connection_with_the_reason() {
    let deployment = Deployment::embedded(ADE);
    let (ade, org) = (deployment.server(), deployment.admin().await);
    let (pat, sue) = (org.create_user("pat", &[AUTHOR]).await, org.create_user("sue", &[AUTHOR]).await);
    let bot = org.create_agent("bot", &sue).await;
    let token = org.api.post("/users/pat/tokens", &json!({ "name": "t" })).await.expect_status(201);
    let mut revoked = Socket::with_token(ade, &text_field(&token, "token")).await;
    let mut other = Socket::with_token(ade, &pat.token).await;
    let mut deactivated = Socket::with_token(ade, &sue.token).await;
    let mut of_agent = Socket::with_token(ade, &bot.token).await;
    for socket in [&mut revoked, &mut other, &mut deactivated, &mut of_agent] {
        let _ = socket.subscribe(json!({ "topics": ["task"] })).await;
    }
    let short = json!({ "name": "short", "ttl_seconds": 2 });
    let short = org.api.post("/users/pat/tokens", &short).await.expect_status(201);
    let mut expiring = Socket::with_token(ade, &text_field(&short, "token")).await;
    let _ = expiring.subscribe(json!({ "topics": ["task"] })).await;
    let path = format!("/users/pat/tokens/{}", text_field(&token, "token_id"));
    let _ = org.api.delete(&path).await.expect_status(204);
    assert_eq!(revoked.receive().await, Err(unauthenticated()));
    let _ = org.api.patch("/users/sue", &json!({ "active": false })).await.expect_status(200);
    assert_eq!(deactivated.receive().await, Err(unauthenticated()));
    assert_eq!(of_agent.receive().await, Err(unauthenticated()), "so is the agent of a sponsor who left");
    assert_eq!(expiring.receive().await, Err(unauthenticated()), "at its expiry");
    let task = pat.create_draft(json!({})).await;
    comment(&pat, &task).await;
    let names = vec!["task:created".to_owned(), "task:commented".to_owned()];
    assert_eq!(other.names_until("task:commented").await, Ok(names), "others stay");
    // A token without the scope to read follows nothing.
    let blind = org.issue_token("pat", &[Scope::Propose]).await;
    let authorization = format!("Bearer {}", blind.token);
    let refused = open(ade, &[("authorization", &authorization)], None).await;
    assert_eq!(refused.err(), Some((403, "SCOPE_MISSING".to_owned())));
}

#[tokio::test]
async fn sessions_are_followed_from_pages_of_this_server_only() {
    let deployment = Deployment::embedded(ADE);
    let (ade, org) = (deployment.server(), deployment.admin().await);
    let session: SessionClient = org.join_and_sign_in("pat", &[AUTHOR], "a password of my own").await;
    let (cookie, url) = (session.cookie.as_str(), ade.url());
    let refused = Some((403, "ORIGIN_NOT_ALLOWED".to_owned()));
    for origin in ["https://evil.example", "null", "http://127.0.0.1:1"] {
        let opened = open(ade, &[("cookie", cookie), ("origin", origin)], None).await;
        assert_eq!(opened.err(), refused, "{origin}");
    }
    assert_eq!(open(ade, &[("cookie", cookie)], None).await.err(), refused, "without an origin");
    let authorization = format!("Bearer {}", org.issue_token("pat", &[Scope::Read]).await.token);
    let foreign =
        open(ade, &[("authorization", &authorization), ("origin", "https://evil.example")], None).await;
    assert_eq!(foreign.err(), refused, "with a token");
    let opened = open(ade, &[("cookie", cookie), ("origin", &url)], None).await;
    let mut socket = opened.expect("a page of this server");
    let _ = socket.subscribe(json!({ "topics": ["task"] })).await;
    let _ = session
        .call("DELETE", "/sessions/current", Some(&session.csrf_token), &json!({}))
        .await
        .expect_status(204);
    assert_eq!(socket.receive().await, Err(unauthenticated()));
}
