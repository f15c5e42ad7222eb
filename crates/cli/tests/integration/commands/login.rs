//! `ade login` and `ade logout` against a stub server that records requests and sends prepared responses.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;

use serde_json::{Value, json};

const USER: &str = r#"{ "user_id": "ann", "name": "Ann", "roles": ["author"], "manager_id": null, "team": null, "active": true, "revision": 7 }"#;

/// Serves one request per connection, one for each response, and returns the recorded requests.
fn stub_server(responses: Vec<(&'static str, &'static str, Value)>) -> (u16, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let serve = move |(status, headers, body): (&str, &str, Value)| {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut request = Vec::new();
        while !is_complete(&request) {
            let mut chunk = [0; 4_096];
            let length = stream.read(&mut chunk).expect("readable");
            request.extend_from_slice(&chunk[..length]);
        }
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let head = format!(
            "HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).expect("writable");
        String::from_utf8(request).expect("text")
    };
    (port, std::thread::spawn(move || responses.into_iter().map(serve).collect()))
}

fn is_complete(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length =
        head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ").map(str::to_owned));
    body.len() >= length.map_or(0, |length| length.parse().expect("a number"))
}

fn ade(home: &tempfile::TempDir, arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ade"));
    command.args(arguments).env("XDG_CONFIG_HOME", home.path().join("config")).current_dir(home.path());
    command.env_remove("ADE_TOKEN").env_remove("ADE_SERVER").env_remove("ADE_CONFIG").env("NO_COLOR", "1");
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("runs");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("writable");
    child.wait_with_output().expect("ends")
}

#[test]
fn login_stores_token_for_one_server_until_logout() {
    let user: Value = serde_json::from_str(USER).expect("JSON");
    let session = json!({ "user": user, "agent_id": null, "scopes": ["read"], "expires_at": null, "csrf_token": "word" });
    let token = json!({
        "token_id": "tok-1", "token": "ade_secret", "name": "n", "scopes": ["read", "propose", "lock", "admin"],
        "expires_at": "2199-01-01T00:00:00Z", "revoked_at": null, "created_by": "ann", "created_at": "2026-01-01T00:00:00Z",
    });
    let cookie = "set-cookie: ade_session=abc; HttpOnly\r\n";
    let (port, requests) = stub_server(vec![
        ("201 Created", cookie, session.clone()),
        ("201 Created", "", token),
        ("204 No Content", "", Value::Null),
        ("200 OK", "", session),
        ("204 No Content", "", Value::Null),
    ]);
    let home = tempfile::tempdir().expect("a folder");
    let url = format!("http://127.0.0.1:{port}");

    let login =
        ade(&home, &["login", "ann", "--admin", "--password-stdin", "--server", &url], "open sesame\n");
    let (told, warnings) = (String::from_utf8_lossy(&login.stdout), String::from_utf8_lossy(&login.stderr));
    assert!(login.status.success(), "{warnings}");
    assert!(
        told.starts_with(&format!(
            "signed in at {url} as ann with the scopes read, propose, lock, admin, for "
        )),
        "{told}"
    );
    assert!(!told.contains("ade_secret") && !warnings.contains("ade_secret"), "the token is not printed");

    // Another host name is another server: the token is not sent to it.
    let other = format!("http://localhost:{port}");
    let refused = ade(&home, &["whoami", "--server", &other], "");
    assert_eq!(refused.status.code(), Some(2), "{}", String::from_utf8_lossy(&refused.stderr));

    let whoami = ade(&home, &["whoami", "--server", &url], "");
    assert!(String::from_utf8_lossy(&whoami.stdout).starts_with("Ann (ann)\n"));
    let logout = ade(&home, &["logout", "--server", &url], "");
    assert!(logout.status.success(), "{}", String::from_utf8_lossy(&logout.stderr));
    assert_eq!(ade(&home, &["logout", "--server", &url], "").status.code(), Some(1));

    let requests = requests.join().expect("served");
    assert!(requests[0].contains(r#"{"user_id":"ann","password":"open sesame"}"#));
    assert!(requests[1].contains(r#""scopes":["read","propose","lock","admin"]"#), "{}", requests[1]);
    assert!(requests[2].starts_with("DELETE /api/v1/sessions/current "), "{}", requests[2]);
    assert!(requests[3].contains("authorization: Bearer ade_secret"), "{}", requests[3]);
    assert!(requests[4].starts_with("DELETE /api/v1/users/ann/tokens/tok-1 "), "{}", requests[4]);
}

#[test]
fn wrong_password_fails_and_stores_nothing() {
    let problem = json!({ "type": "about:blank", "title": "Unauthorized", "status": 401, "detail": "user or password is wrong", "code": "UNAUTHENTICATED" });
    let (port, requests) = stub_server(vec![("401 Unauthorized", "", problem)]);
    let home = tempfile::tempdir().expect("a folder");
    let url = format!("http://127.0.0.1:{port}");
    let login = ade(&home, &["login", "ann", "--password-stdin", "--server", &url], "guess\n");
    assert_eq!(login.status.code(), Some(1));
    assert!(!home.path().join("config").exists());
    assert_eq!(requests.join().expect("served").len(), 1);
}
