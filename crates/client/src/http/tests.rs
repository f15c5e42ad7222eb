//! What goes over the line, against a server of the least kind: it keeps what it was sent and answers what it was told.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;

use serde_json::json;

use super::*;
use crate::wire::{Reason, TokenRequest, UserPatch};

/// Answers one request per connection; an empty answer hangs up instead.
fn server(answers: &[&str]) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let answers: Vec<String> = answers.iter().map(|answer| (*answer).to_owned()).collect();
    let serve = move |answer: String| {
        let (mut stream, _) = listener.accept().expect("a caller");
        let mut request = Vec::new();
        while !is_whole(&request) {
            let mut piece = [0; 4_096];
            let many = stream.read(&mut piece).expect("readable");
            request.extend_from_slice(&piece[..many]);
        }
        stream.write_all(answer.as_bytes()).expect("writable");
        String::from_utf8(request).expect("text")
    };
    (url, std::thread::spawn(move || answers.into_iter().map(serve).collect()))
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = header(head, "content-length").map_or(0, |length| length.parse().expect("a number"));
    body.len() >= length
}

fn header<'a>(request: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = request.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(of, _)| of.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

fn answer(status: &str, headers: &str, body: &serde_json::Value) -> String {
    let body = body.to_string();
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

fn user() -> serde_json::Value {
    json!({ "user_id": "ann", "name": "Ann", "roles": ["author"], "manager_id": null, "team": null, "active": true, "revision": 7 })
}

#[tokio::test]
async fn a_command_whose_connection_broke_is_sent_again_under_the_same_key() {
    let comment = json!({ "comment_id": "1", "task_id": "t", "author_id": "ann", "text": "hello", "created_at": "2026-01-01T00:00:00Z" });
    let (url, heard) = server(&["", &answer("201 Created", "", &comment)]);
    let client = Client::new(&url, "secret").expect("a client");
    assert_eq!(client.comment("t", "hello").await.expect("answered").text, "hello");
    let heard = heard.join().expect("served");
    let keys: Vec<_> = heard.iter().map(|request| header(request, "idempotency-key")).collect();
    assert!(keys[0].is_some_and(|key| key.len() == 36), "{keys:?}");
    assert_eq!(keys[0], keys[1]);
    assert!(heard[0].starts_with("POST /api/v1/tasks/t/comments "), "{}", heard[0]);
    assert_eq!(header(&heard[0], "authorization"), Some("Bearer secret"));
}

#[tokio::test]
async fn a_change_names_the_revision_that_was_seen_and_ids_cannot_leave_their_place() {
    let (url, heard) = server(&[&answer("200 OK", "", &user())]);
    let client = Client::new(&url, "secret").expect("a client");
    let patch = UserPatch { name: Some("Ann".to_owned()), ..UserPatch::default() };
    client.change_user("../admin", Some(7), &patch).await.expect("changed");
    let heard = heard.join().expect("served");
    assert_eq!(header(&heard[0], "if-match"), Some("\"7\""));
    assert!(heard[0].starts_with("PATCH /api/v1/users/..%2Fadmin "), "{}", heard[0]);
}

#[tokio::test]
async fn a_session_carries_its_cookie_and_its_word_against_forgery() {
    let session = json!({ "user": user(), "agent_id": null, "scopes": ["read"], "expires_at": null, "csrf_token": "word" });
    let cookie = "set-cookie: theme=dark\r\nset-cookie: ade_session=abc; HttpOnly; SameSite=Strict\r\n";
    let token = json!({ "token_id": "1", "token": "ade_x", "name": "n", "scopes": ["read"], "expires_at": "2026-01-01T00:00:00Z", "revoked_at": null, "made_by": "ann", "created_at": "2026-01-01T00:00:00Z" });
    let answers = [
        answer("201 Created", cookie, &session),
        answer("201 Created", "", &token),
        answer("204 No Content", "", &json!(null)).replace("null", ""),
    ];
    let answers: Vec<&str> = answers.iter().map(String::as_str).collect();
    let (url, heard) = server(&answers);
    let signed_in = Client::sign_in(&url, "ann", "open sesame").await.expect("signed in");
    let made = signed_in.make_token(&TokenRequest { name: "n".to_owned(), ..TokenRequest::default() }).await;
    assert_eq!(made.expect("made").token.as_deref(), Some("ade_x"));
    assert!(!format!("{signed_in:?}").contains("ade_session"));
    drop(signed_in.sign_out().await);
    let heard = heard.join().expect("served");
    assert_eq!(header(&heard[0], "authorization"), None);
    assert!(heard[1].starts_with("POST /api/v1/users/ann/tokens "), "{}", heard[1]);
    for request in &heard[1..] {
        assert_eq!(header(request, "cookie"), Some("ade_session=abc"));
        assert_eq!(header(request, "x-csrf-token"), Some("word"));
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let (url, heard) =
        server(&[&answer("307 Temporary Redirect", "location: http://127.0.0.1:1/\r\n", &json!(null))]);
    let client = Client::new(&url, "secret").expect("a client");
    let error = client.cancel_task("t", &Reason::default()).await.expect_err("not an answer");
    assert!(matches!(error, Error::Foreign { status: Some(307), .. }), "{error}");
    assert_eq!(heard.join().expect("served").len(), 1);
}
