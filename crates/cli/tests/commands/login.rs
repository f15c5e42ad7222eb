//! Signing in from the command line, against a server of the least kind: it keeps what it was sent and answers what it was told.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;

use serde_json::{Value, json};

const USER: &str = r#"{ "user_id": "ann", "name": "Ann", "roles": ["author"], "manager_id": null, "team": null, "active": true, "revision": 7 }"#;

/// Answers one request per connection, then is gone.
fn server(answers: Vec<(&'static str, &'static str, Value)>) -> (u16, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let serve = move |(status, headers, body): (&str, &str, Value)| {
        let (mut stream, _) = listener.accept().expect("a caller");
        let mut request = Vec::new();
        while !is_whole(&request) {
            let mut piece = [0; 4_096];
            let many = stream.read(&mut piece).expect("readable");
            request.extend_from_slice(&piece[..many]);
        }
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let head = format!(
            "HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).expect("writable");
        String::from_utf8(request).expect("text")
    };
    (port, std::thread::spawn(move || answers.into_iter().map(serve).collect()))
}

fn is_whole(request: &[u8]) -> bool {
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
fn a_sign_in_becomes_a_token_of_one_server_until_it_is_taken_back() {
    let user: Value = serde_json::from_str(USER).expect("JSON");
    let session = json!({ "user": user, "agent_id": null, "scopes": ["read"], "expires_at": null, "csrf_token": "word" });
    let token = json!({
        "token_id": "tok-1", "token": "ade_secret", "name": "n", "scopes": ["read", "propose", "lock", "decide"],
        "expires_at": "2199-01-01T00:00:00Z", "revoked_at": null, "made_by": "ann", "created_at": "2026-01-01T00:00:00Z",
    });
    let cookie = "set-cookie: ade_session=abc; HttpOnly\r\n";
    let (port, heard) = server(vec![
        ("201 Created", cookie, session.clone()),
        ("201 Created", "", token),
        ("204 No Content", "", Value::Null),
        ("200 OK", "", session),
        ("204 No Content", "", Value::Null),
    ]);
    let home = tempfile::tempdir().expect("a folder");
    let url = format!("http://127.0.0.1:{port}");

    let login =
        ade(&home, &["login", "ann", "--decide", "--password-stdin", "--server", &url], "open sesame\n");
    let (told, noted) = (String::from_utf8_lossy(&login.stdout), String::from_utf8_lossy(&login.stderr));
    assert!(login.status.success(), "{noted}");
    assert!(
        told.starts_with(&format!(
            "signed in at {url} as ann with the scopes read, propose, lock, decide, for "
        )),
        "{told}"
    );
    assert!(!told.contains("ade_secret") && !noted.contains("ade_secret"), "the token stays in its file");

    // The same machine by another name is another server: nothing is sent to it.
    let other = format!("http://localhost:{port}");
    let refused = ade(&home, &["whoami", "--server", &other], "");
    assert_eq!(refused.status.code(), Some(2), "{}", String::from_utf8_lossy(&refused.stderr));

    let whoami = ade(&home, &["whoami", "--server", &url], "");
    assert!(String::from_utf8_lossy(&whoami.stdout).starts_with("Ann (ann)\n"));
    let logout = ade(&home, &["logout", "--server", &url], "");
    assert!(logout.status.success(), "{}", String::from_utf8_lossy(&logout.stderr));
    assert_eq!(ade(&home, &["logout", "--server", &url], "").status.code(), Some(1));

    let heard = heard.join().expect("served");
    assert!(heard[0].contains(r#"{"user_id":"ann","password":"open sesame"}"#));
    assert!(heard[1].contains(r#""scopes":["read","propose","lock","decide"]"#), "{}", heard[1]);
    assert!(heard[2].starts_with("DELETE /api/v1/sessions/current "), "{}", heard[2]);
    assert!(heard[3].contains("authorization: Bearer ade_secret"), "{}", heard[3]);
    assert!(heard[4].starts_with("DELETE /api/v1/users/ann/tokens/tok-1 "), "{}", heard[4]);
}

#[test]
fn a_wrong_password_is_a_no_and_nothing_is_kept() {
    let problem = json!({ "type": "about:blank", "title": "Unauthorized", "status": 401, "detail": "user or password is wrong", "code": "UNAUTHENTICATED" });
    let (port, heard) = server(vec![("401 Unauthorized", "", problem)]);
    let home = tempfile::tempdir().expect("a folder");
    let url = format!("http://127.0.0.1:{port}");
    let login = ade(&home, &["login", "ann", "--password-stdin", "--server", &url], "guess\n");
    assert_eq!(login.status.code(), Some(1));
    assert!(!home.path().join("config").exists());
    assert_eq!(heard.join().expect("served").len(), 1);
}
