//! What followers receive, by every transport: every event once and in order, as far as it matches.

use std::time::Duration;

use ade_client::EventTransport::{Polling, Stream, WebSocket};
use ade_client::FollowError;
use ade_domain::people::{AUTHOR, REVIEWER};
use ade_testkit::wait::until;
use ade_testkit::{AdeServer, Cli, Deployment};
use serde_json::{Value, json};
use sqlx::Connection;

use super::socket::Socket;
use super::{TIMEOUT, all_events, client_of, comment, head, ids, names, next_events};

const ADE: &str = env!("CARGO_BIN_EXE_ade");

#[tokio::test]
async fn every_transport_yields_the_same_events_in_order() {
    let deployment = Deployment::embedded(ADE);
    let (ade, org) = (deployment.server(), deployment.admin().await);
    let pat = org.create_user("pat", &[AUTHOR]).await;
    let _ = org.create_user("rex", &[REVIEWER]).await;
    let task = pat.create_submitted(json!({})).await;
    comment(&pat, &task).await;
    let client = ade.client().expect("a client");
    let last = head(&org.api).await;
    for transport in [WebSocket, Stream, Polling] {
        let mut all = client.follow_events().after(0).transports([transport]);
        let events = next_events(&mut all, usize::try_from(last).expect("small")).await;
        assert_eq!(ids(&events), (1..=last).collect::<Vec<u64>>());
        assert_eq!(all.transport(), Some(transport));
        let of_task = client.follow_events().after(0).transports([transport]).task(&task);
        let mut of_task = of_task.events(["task:*"]);
        let events = next_events(&mut of_task, 4).await;
        assert_eq!(
            names(&events),
            ["task:created", "task:submitted", "task:state_changed", "task:commented"]
        );
        assert_eq!(events[1].payload["from"], "DRAFT");
        assert_eq!(events[0].payload["who"]["user_id"], "pat");
        // From now on, and woken by the next one.
        let mut live = client.follow_events().transports([transport]).topics(["approval", "task"]);
        live.connect().await.expect("connected");
        let _ = org.create_user(&format!("user-{transport:?}"), &[]).await;
        comment(&pat, &task).await;
        assert_eq!(names(&next_events(&mut live, 1).await), ["task:commented"]);
    }
}

#[tokio::test]
async fn pages_say_where_they_end_and_wait_for_events() {
    let deployment = Deployment::embedded(ADE);
    let org = deployment.admin().await;
    let pat = org.create_user("pat", &[AUTHOR]).await;
    let task = pat.create_draft(json!({})).await;
    let end = head(&org.api).await;
    // Nothing matches: the cursor moves all the same.
    let page = org.api.get("/events?after=0&topics=lock").await.expect_status(200);
    assert_eq!((&page["items"], &page["next_cursor"]), (&json!([]), &json!(end.to_string())));
    let page = org.api.get("/events?after=0&limit=2").await.expect_status(200);
    assert_eq!(page["next_cursor"], "2");
    let waiting = {
        let api = org.api.clone();
        tokio::spawn(async move { api.get(&format!("/events?after={end}&wait=30&events=task:comm*")).await })
    };
    let _ = org.create_user("noise", &[]).await;
    comment(&pat, &task).await;
    let page = waiting.await.expect("runs").expect_status(200);
    assert_eq!(page["items"][0]["event"], "task:commented");
    let cursor = page["next_cursor"].as_str().expect("a cursor").parse::<u64>().expect("a number");
    assert!(cursor >= end + 2);
    for invalid in ["after=x", "limit=0", "limit=201", "wait=61", "topics=tasks", "after=999999", "nothing=1"]
    {
        let _ = org.api.get(&format!("/events?{invalid}")).await.expect_problem(422, "INVALID_REQUEST");
    }
    let _ = org.api.get("/events/stream?last_event_id=999999").await.expect_problem(422, "INVALID_REQUEST");
    let headers = [("last-event-id", "x")];
    let refused = org.api.request_with_headers("GET", "/events/stream", &headers, "").await;
    let _ = refused.expect_problem(422, "INVALID_REQUEST");
    let _ = org.api.get("/ws").await.expect_problem(426, "UPGRADE_REQUIRED");
}

#[tokio::test]
async fn a_subscription_can_be_replaced_and_bad_messages_are_refused() {
    let deployment = Deployment::embedded(ADE);
    let (ade, org) = (deployment.server(), deployment.admin().await);
    let pat = org.create_user("pat", &[AUTHOR]).await;
    let mut socket = Socket::with_token(ade, &pat.token).await;
    for (message, code) in [
        (json!({ "type": "nonsense" }), "INVALID_MESSAGE"),
        (json!({ "type": "subscribe", "unknown": 1 }), "INVALID_MESSAGE"),
        (json!({ "type": "subscribe", "topics": ["tasks"] }), "INVALID_REQUEST"),
        (json!({ "type": "subscribe", "last_event_id": "x" }), "INVALID_REQUEST"),
        (json!({ "type": "subscribe", "last_event_id": "999999" }), "INVALID_REQUEST"),
    ] {
        socket.send(&message).await;
        let refused = socket.receive().await.expect("open");
        assert_eq!((&refused["type"], &refused["code"]), (&json!("error"), &json!(code)), "{refused}");
    }
    socket.send(&json!({ "type": "ping" })).await;
    assert_eq!(socket.receive().await.expect("open"), json!({ "type": "pong" }));
    let end = head(&org.api).await.to_string();
    let subscribed = socket.subscribe(json!({ "topics": ["approval"] })).await;
    assert_eq!(subscribed, json!({ "type": "subscribed", "head": end, "last_event_id": end }));
    let _ = pat.create_draft(json!({})).await;
    let subscribed = socket.subscribe(json!({ "topics": ["task"] })).await;
    assert_eq!(subscribed["type"], "subscribed", "nothing of the first subscription came");
    let _ = pat.create_draft(json!({})).await;
    assert_eq!(socket.names_until("task:created").await, Ok(vec!["task:created".to_owned()]));
}

#[tokio::test]
async fn lock_events_have_a_sequence_and_move_no_cursor() {
    let deployment = Deployment::embedded(ADE);
    let (ade, org) = (deployment.server(), deployment.admin().await);
    let (pat, sue) = (org.create_user("pat", &[AUTHOR]).await, org.create_user("sue", &[AUTHOR]).await);
    let task = pat.create_draft(json!({})).await;
    let mut of_pat = client_of(&ade.url(), &pat).follow_events().topics(["lock"]);
    of_pat.connect().await.expect("connected");
    let mut of_sue = client_of(&ade.url(), &sue).follow_events().topics(["lock"]).transports([Stream]);
    of_sue.connect().await.expect("connected");
    for lock in [format!("task:{task}"), "resource:db:main".to_owned()] {
        let request = json!({ "agent_id": "bot", "locks": [{ "lock": lock }] });
        let granted = pat.post("/locks/acquire", &request).await.expect_status(200);
        let token = &granted["grants"][0]["fencing_token"];
        let held = json!({ "agent_id": "bot", "locks": [{ "lock": lock, "fencing_token": token }] });
        let _ = pat.post("/locks/release", &held).await.expect_status(200);
    }
    let events = next_events(&mut of_pat, 4).await;
    let found: Vec<_> = events.iter().map(|event| (event.event.as_str(), event.sequence)).collect();
    let one = [("lock:acquired", Some(1)), ("lock:released", Some(2))];
    assert_eq!(found, [one, one].concat());
    assert!(events.iter().all(|event| event.id.is_none()));
    assert_eq!(events[0].payload["lock_id"], format!("task:{task}"));
    assert_eq!(events[0].payload["agent_id"], "bot");
    // The task is not visible to others, hence neither is its lock.
    let events = next_events(&mut of_sue, 2).await;
    assert!(events.iter().all(|event| event.payload["lock_id"] == "resource:db:main"), "{events:?}");
}

/// Deletes the events up to a number, as cleanup does when they are old.
async fn delete_events(ade: &AdeServer, up_to: u64) {
    let path = ade.data().join("ade.sqlite3");
    let mut database =
        sqlx::SqliteConnection::connect(&format!("sqlite://{}", path.display())).await.expect("opened");
    let sql = format!(
        "DELETE FROM events WHERE event_id IN (SELECT entry_id FROM audit WHERE number <= {up_to}); \
         UPDATE event_retention SET deleted_up_to = {up_to}"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut database).await.expect("deleted");
}

#[tokio::test]
async fn an_id_that_is_too_old_is_answered_with_the_oldest() {
    let deployment = Deployment::embedded(ADE);
    let (ade, org) = (deployment.server(), deployment.admin().await);
    for user in ["ann", "ben", "cleo", "dan"] {
        let _ = org.create_user(user, &[]).await;
    }
    let end = head(&org.api).await;
    delete_events(ade, 5).await;
    for path in ["/events?after=4", "/events/stream?last_event_id=4"] {
        let problem = org.api.get(path).await.expect_problem(410, "EVENTS_EXPIRED");
        assert_eq!(problem["oldest"], "6");
    }
    let client = ade.client().expect("a client");
    for transport in [WebSocket, Stream, Polling] {
        let mut follower = client.follow_events().after(4).transports([transport]);
        let expired = follower.next().await.expect_err("too old");
        assert!(matches!(expired, FollowError::Expired { oldest: 6 }), "{expired:?}");
        let mut follower = client.follow_events().after(5).transports([transport]);
        let rest = next_events(&mut follower, usize::try_from(end - 5).expect("small")).await;
        assert_eq!(ids(&rest), (6..=end).collect::<Vec<u64>>());
    }
}

#[tokio::test]
async fn two_servers_show_the_same_events() {
    let deployment = Deployment::distributed(ADE, 2);
    let apis = deployment.api_clients().await;
    let org = deployment.admin().await;
    let pat = org.create_user("pat", &[AUTHOR]).await;
    let other = deployment.servers[1].url();
    let mut follower = client_of(&other, &pat).follow_events().topics(["task"]);
    follower.connect().await.expect("connected");
    let task = pat.at_server(&apis[0]).create_draft(json!({})).await;
    let [created] = next_events(&mut follower, 1).await.try_into().expect("one");
    assert_eq!((created.event.as_str(), &created.payload["task_id"]), ("task:created", &json!(task)));
    // A server that has not seen the last event yet does not refuse who has.
    let last = created.id.expect("an id");
    let _ = apis[1].get(&format!("/events?after={last}")).await.expect_status(200);
    let caught_up = || async {
        let heads = [head(&apis[0]).await, head(&apis[1]).await];
        if heads[0] == heads[1] { Ok(()) } else { Err(format!("{heads:?}")) }
    };
    until("both servers to be at the end", TIMEOUT, caught_up).await.expect("in time");
    let pages: Vec<Vec<Value>> =
        [all_events(&apis[0], 0, "").await, all_events(&apis[1], 0, "").await].into();
    assert!(pages[0] == pages[1] && !pages[0].is_empty());
}

#[tokio::test]
async fn the_command_line_lists_and_follows_events() {
    let deployment = Deployment::embedded(ADE);
    let (ade, org) = (deployment.server(), deployment.admin().await);
    let pat = org.create_user("pat", &[AUTHOR]).await;
    let _ = org.create_user("rex", &[REVIEWER]).await;
    let task = pat.create_submitted(json!({})).await;
    let cli = Cli::new(ADE, ade, &pat);
    let table = cli.run_ok(&["events", "--filter", "task:*"]).await;
    assert!(table.contains("task:submitted") && table.contains("DRAFT → SUBMITTED"), "{table}");
    assert!(table.contains(&task[..13]) && !table.contains(&task) && table.contains("pat"), "{table}");
    let latest = cli.run_ok(&["events", "--limit", "1", "--full-ids"]).await;
    assert!(latest.contains(&task) && !latest.contains("task:created"), "{latest}");
    let lines = cli.run_ok(&["events", "--after", "0", "--task", &task, "--topic", "task", "--json"]).await;
    let events: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(events.len(), 3, "{lines}");
    let mut following = cli.spawn(&["events", "--follow", "--filter", "task:commented", "--json"]);
    following.wait_for_stderr("following events").await;
    comment(&pat, &task).await;
    let line = following.next_stdout_line().await;
    let event: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(event["event"], "task:commented");
    let mut following = cli.spawn(&["events", "--follow", "--task", &task]);
    following.wait_for_stderr("following events").await;
    comment(&pat, &task).await;
    let line = following.next_stdout_line().await;
    assert!(line.contains("task:commented") && line.contains(&task[..13]) && line.contains("pat"), "{line}");
    delete_events(ade, 2).await;
    let refused = cli.run(&["events", "--after", "0"]).await;
    assert_eq!(refused.exit_code, Some(1), "{}", refused.stderr);
}

#[tokio::test]
async fn a_stopping_server_ends_its_streams() {
    let deployment = Deployment::embedded(ADE);
    let (ade, org) = (deployment.server(), deployment.admin().await);
    let pat = org.create_user("pat", &[AUTHOR]).await;
    let mut socket = Socket::with_token(ade, &pat.token).await;
    let _ = socket.subscribe(json!({})).await;
    let stream = reqwest::Client::new()
        .get(format!("{}/api/v1/events/stream", ade.url()))
        .bearer_auth(&pat.token)
        .send()
        .await
        .expect("a response");
    ade.stop().expect("stops in time");
    let closed = socket.receive().await.expect_err("closed");
    assert_eq!((closed.code, closed.reason.as_str()), (1001, "stopping"));
    let text =
        tokio::time::timeout(Duration::from_secs(10), stream.text()).await.expect("ends").expect("whole");
    assert!(text.contains("event: dropped\ndata: {") && text.contains("stopping"), "{text}");
}
