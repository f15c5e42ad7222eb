//! Tests of the requests that the client sends, against a server that records them and sends canned responses.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;

use serde_json::json;

use super::*;
use crate::wire::{ReasonRequest, TokenRequest, UserPatch};

/// Serves one request per connection and returns all requests. For an empty response it closes the connection.
fn server(responses: &[&str]) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let responses: Vec<String> = responses.iter().map(|response| (*response).to_owned()).collect();
    let serve = move |response: String| {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut request = Vec::new();
        while !is_complete(&request) {
            let mut buffer = [0; 4_096];
            let count = stream.read(&mut buffer).expect("readable");
            request.extend_from_slice(&buffer[..count]);
        }
        stream.write_all(response.as_bytes()).expect("writable");
        String::from_utf8(request).expect("text")
    };
    (url, std::thread::spawn(move || responses.into_iter().map(serve).collect()))
}

fn is_complete(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = header(head, "content-length").map_or(0, |length| length.parse().expect("a number"));
    body.len() >= length
}

fn header<'a>(request: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = request.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(header, _)| header.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

fn response(status: &str, headers: &str, body: &serde_json::Value) -> String {
    let body = body.to_string();
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

fn user() -> serde_json::Value {
    json!({ "user_id": "ann", "name": "Ann", "roles": ["author"], "manager_id": null, "team": null, "active": true, "revision": 7 })
}

#[tokio::test]
async fn repeats_a_request_with_the_same_key_after_a_broken_connection() {
    let comment = json!({ "comment_id": "1", "task_id": "t", "author_id": "ann", "text": "hello", "created_at": "2026-01-01T00:00:00Z" });
    let (url, requests) = server(&["", &response("201 Created", "", &comment)]);
    let client = Client::new(&url, "secret").expect("a client");
    assert_eq!(client.create_comment("t", "hello").await.expect("a response").text, "hello");
    let requests = requests.join().expect("served");
    let keys: Vec<_> = requests.iter().map(|request| header(request, "idempotency-key")).collect();
    assert!(keys[0].is_some_and(|key| key.len() == 36), "{keys:?}");
    assert_eq!(keys[0], keys[1]);
    assert!(requests[0].starts_with("POST /api/v1/tasks/t/comments "), "{}", requests[0]);
    assert_eq!(header(&requests[0], "authorization"), Some("Bearer secret"));
}

#[tokio::test]
async fn update_sends_the_revision_and_encodes_ids_in_the_path() {
    let (url, requests) = server(&[&response("200 OK", "", &user())]);
    let client = Client::new(&url, "secret").expect("a client");
    let patch = UserPatch { name: Some("Ann".to_owned()), ..UserPatch::default() };
    client.update_user("../admin", Some(7), &patch).await.expect("updated");
    let requests = requests.join().expect("served");
    assert_eq!(header(&requests[0], "if-match"), Some("\"7\""));
    assert!(requests[0].starts_with("PATCH /api/v1/users/..%2Fadmin "), "{}", requests[0]);
}

#[tokio::test]
async fn session_sends_its_cookie_and_csrf_token() {
    let session = json!({ "user": user(), "agent_id": null, "scopes": ["read"], "expires_at": null, "csrf_token": "csrf" });
    let cookie = "set-cookie: theme=dark\r\nset-cookie: ade_session=abc; HttpOnly; SameSite=Strict\r\n";
    let token = json!({ "token_id": "1", "token": "ade_x", "name": "n", "scopes": ["read"], "expires_at": "2026-01-01T00:00:00Z", "revoked_at": null, "created_by": "ann", "created_at": "2026-01-01T00:00:00Z" });
    let responses = [
        response("201 Created", cookie, &session),
        response("201 Created", "", &token),
        response("204 No Content", "", &json!(null)).replace("null", ""),
    ];
    let responses: Vec<&str> = responses.iter().map(String::as_str).collect();
    let (url, requests) = server(&responses);
    let signed_in = Client::sign_in(&url, "ann", "open sesame").await.expect("signed in");
    let created =
        signed_in.create_token(&TokenRequest { name: "n".to_owned(), ..TokenRequest::default() }).await;
    assert_eq!(created.expect("created").token.as_deref(), Some("ade_x"));
    assert!(!format!("{signed_in:?}").contains("ade_session"));
    drop(signed_in.sign_out().await);
    let requests = requests.join().expect("served");
    assert_eq!(header(&requests[0], "authorization"), None);
    assert!(requests[1].starts_with("POST /api/v1/users/ann/tokens "), "{}", requests[1]);
    for request in &requests[1..] {
        assert_eq!(header(request, "cookie"), Some("ade_session=abc"));
        assert_eq!(header(request, "x-csrf-token"), Some("csrf"));
    }
}

#[tokio::test]
async fn does_not_follow_redirects() {
    let (url, requests) =
        server(&[&response("307 Temporary Redirect", "location: http://127.0.0.1:1/\r\n", &json!(null))]);
    let client = Client::new(&url, "secret").expect("a client");
    let error = client.cancel_task("t", &ReasonRequest::default()).await.expect_err("a redirect");
    assert!(matches!(error, Error::UnexpectedResponse { status: Some(307), .. }), "{error}");
    assert_eq!(requests.join().expect("served").len(), 1);
}
