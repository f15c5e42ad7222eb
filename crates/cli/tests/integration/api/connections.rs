//! What clients may use before they are authenticated: heads, bodies, connections, memory and time.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use ade_testkit::server::BOOTSTRAP_TOKEN;
use ade_testkit::wait::eventually;
use ade_testkit::{AdeServer, effort};
use serde_json::json;
use tokio::net::TcpSocket;

use crate::api::{start_server, start_server_with};

const TIMEOUT: Duration = Duration::from_secs(60);
const MAX_RESIDENT_KB: u64 = 200 * 1_024;

/// A connection from another address of this machine than that of the other clients.
async fn connect_from(source: &str, ade: &AdeServer) -> TcpStream {
    let server: SocketAddr = ade.url().trim_start_matches("http://").parse().expect("an address");
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(format!("{source}:0").parse().expect("an address")).expect("bound");
    let stream = socket.connect(server).await.expect("connected").into_std().expect("a stream");
    stream.set_nonblocking(false).expect("blocking");
    stream.set_read_timeout(Some(TIMEOUT)).expect("set");
    stream
}

/// The status of the response to a request that is sent as it is; 0 if there is none.
async fn status_of(ade: &AdeServer, request: &[u8]) -> u16 {
    let mut stream = connect_from("127.0.0.1", ade).await;
    // The server may respond and close the connection before it has read everything.
    let _ = stream.write_all(request);
    let mut head = [0; 12];
    match stream.read_exact(&mut head) {
        Ok(()) => str::from_utf8(&head[9..]).expect("text").parse().expect("a status"),
        Err(_) => 0,
    }
}

fn post(path: &str, token: Option<&str>, body_len: usize) -> Vec<u8> {
    let authorization = token.map_or(String::new(), |token| format!("authorization: Bearer {token}\r\n"));
    let head = format!(
        "POST /api/v1{path} HTTP/1.1\r\nhost: localhost\r\n{authorization}content-type: application/json\r\n\
         content-length: {body_len}\r\n\r\n"
    );
    head.into_bytes()
}

/// The most memory that the server has used so far.
fn peak_resident_kb(ade: &AdeServer) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", ade.process().pid())).expect("running");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

fn open_sockets(ade: &AdeServer) -> usize {
    let files = fs::read_dir(format!("/proc/{}/fd", ade.process().pid())).expect("running");
    let is_socket = |file: &fs::DirEntry| {
        fs::read_link(file.path()).is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
    };
    files.filter_map(Result::ok).filter(is_socket).count()
}

/// The messages of other systems, which say by their headers that they are signed.
#[tokio::test]
async fn bodies_of_signed_messages_are_bounded_before_they_are_read() {
    let (ade, _api) = start_server().await;
    let headers = [
        "webhook-id: m1\r\nwebhook-timestamp: 1\r\nwebhook-signature: v1,AAAA\r\n",
        "content-type: application/x-www-form-urlencoded\r\nx-slack-request-timestamp: 1\r\nx-slack-signature: v0=00\r\n",
    ];
    for (path, signature) in ["/hooks/nobody", "/hooks/slack/nobody"].into_iter().zip(headers) {
        // A token of an administrator allows no more.
        for token in [None, Some(BOOTSTRAP_TOKEN)] {
            let signed = |length: &str| {
                let authorization =
                    token.map_or(String::new(), |token| format!("authorization: Bearer {token}\r\n"));
                format!(
                    "POST /api/v1{path} HTTP/1.1\r\nhost: localhost\r\n{authorization}{signature}{length}\r\n\r\n"
                )
            };
            let with_length = |length: usize| signed(&format!("content-length: {length}"));
            // Nothing of the body is ever sent.
            for length in [65_537, 1 << 30] {
                let status = status_of(&ade, with_length(length).as_bytes()).await;
                assert_eq!(status, 413, "{path}: {length} bytes");
            }
            // The body has no end.
            let chunk = format!("{:x}\r\n{}\r\n", 40_000, " ".repeat(40_000));
            let endless = format!("{}{chunk}{chunk}", signed("transfer-encoding: chunked"));
            assert_eq!(status_of(&ade, endless.as_bytes()).await, 413, "{path}: chunks");
            let fits = with_length(65_536) + &" ".repeat(65_536);
            assert_eq!(status_of(&ade, fits.as_bytes()).await, 401, "{path}: it is not signed by anybody");
            // Without a signature nothing is read at all.
            let unsigned = with_length(1 << 30).replace(signature, "");
            assert_eq!(status_of(&ade, unsigned.as_bytes()).await, 401, "{path}: unsigned");
        }
    }
}

#[tokio::test]
async fn head_and_body_are_bounded_before_authentication() {
    let (ade, api) = start_server().await;
    for (filler, status) in [(30_000, 404), (33_000, 431), (400_000, 431)] {
        let head =
            format!("GET /nothing HTTP/1.1\r\nhost: localhost\r\nx-filler: {}\r\n\r\n", "x".repeat(filler));
        let found = status_of(&ade, head.as_bytes()).await;
        assert_eq!(found, status, "a head of {filler} bytes");
    }
    // Without authentication the size is refused before anything of the body arrives; in chunks, when there is too much.
    assert_eq!(status_of(&ade, &post("/sessions", None, 65_537)).await, 413);
    assert_eq!(status_of(&ade, &post("/tasks", None, 1_000_000)).await, 401);
    let chunk = format!("{:x}\r\n{}\r\n", 60_000, " ".repeat(60_000));
    let chunked = post("/sessions", None, 0);
    let chunked =
        String::from_utf8(chunked).expect("text").replace("content-length: 0", "transfer-encoding: chunked");
    assert_eq!(status_of(&ade, format!("{chunked}{chunk}{chunk}").as_bytes()).await, 413);
    let credentials = json!({ "user_id": "a", "password": "p".repeat(60_000) });
    let response = api.send_raw("POST", "/api/v1/sessions", &[], credentials.to_string()).await;
    let _ = response.expect_problem(401, "UNAUTHENTICATED");
    // With authentication there is room for 1 MiB.
    let large = json!({ "no_such_field": "x".repeat(1_000_000) });
    let _ = api.post("/tasks", &large).await.expect_problem(422, "INVALID_REQUEST");
    assert_eq!(status_of(&ade, &post("/tasks", Some(BOOTSTRAP_TOKEN), (1 << 20) + 1)).await, 413);
}

/// Clients that send one large body each, and clients that never finish theirs.
#[tokio::test]
async fn anonymous_bodies_take_little_memory_and_others_are_served() {
    let (ade, api) = start_server().await;
    let clients = effort::rounds(400, 2_000);
    let large = " ".repeat(1_000_000);
    let mut open = Vec::new();
    for number in 0..clients {
        let mut stream = connect_from("127.0.0.2", &ade).await;
        stream.set_nonblocking(true).expect("set");
        let body_len = if number % 2 == 0 { 1_000_000 } else { 65_000 };
        for bytes in [post("/sessions", None, body_len).as_slice(), &large.as_bytes()[..body_len - 1]] {
            // What the server does not read stays in the buffers of the connection.
            match stream.write_all(bytes) {
                Ok(()) => {}
                Err(error) => assert!(
                    matches!(
                        error.kind(),
                        ErrorKind::WouldBlock | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
                    ),
                    "{error}"
                ),
            }
        }
        open.push(stream);
        if number % 100 == 0 {
            let _ = api.get("/tasks").await.expect_status(200);
        }
    }
    // A client at another address signs in meanwhile.
    let body = json!({ "user_id": "nobody", "password": "wrong" }).to_string();
    let _ = api.send_raw("POST", "/api/v1/sessions", &[], body).await.expect_problem(401, "UNAUTHENTICATED");
    let peak = peak_resident_kb(&ade);
    println!("{peak} kB at most with {clients} connections");
    assert!(peak < MAX_RESIDENT_KB, "{peak} kB with {clients} connections");
}

/// Clients that use all turns and then send nothing more: after a response, within a head or within a body.
#[tokio::test]
async fn idle_and_slow_anonymous_connections_keep_nobody_out() {
    // Time ends none of them.
    let (ade, api) = start_server_with("[limit]\nread_timeout_seconds = 3600\n").await;
    let ping = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut open = Vec::new();
    for number in 0..4 * 256 {
        let mut stream = connect_from(&format!("127.0.0.{}", 2 + number / 256), &ade).await;
        let sent = match number % 3 {
            0 => ping.to_vec(),
            1 => ping[..20].to_vec(),
            _ => post("/sessions", None, 1_000),
        };
        stream.write_all(&sent).expect("open");
        if number % 3 == 0 {
            let mut response = [0; 4_096];
            assert!(stream.read(&mut response).expect("a response") > 0);
        }
        open.push(stream);
    }
    // From an address of its own, and from one that has no turn left.
    for source in ["127.0.0.1", "127.0.0.2"] {
        let mut stream = connect_from(source, &ade).await;
        stream.write_all(ping).expect("open");
        let mut status = [0; 12];
        stream.read_exact(&mut status).expect("a response");
        assert_eq!(&status, b"HTTP/1.1 200");
    }
    let _ = api.get("/tasks").await.expect_status(200);
}

#[tokio::test]
async fn clients_that_do_not_read_are_closed_and_others_stay() {
    let (ade, api) = start_server_with("[limit]\nwrite_timeout_seconds = 1\n").await;
    let authorization = format!("authorization: Bearer {BOOTSTRAP_TOKEN}");
    let mut idle = connect_from("127.0.0.1", &ade).await;
    let request = format!("GET /api/v1/tasks HTTP/1.1\r\nhost: localhost\r\n{authorization}\r\n\r\n");
    let mut exchange = || {
        idle.write_all(request.as_bytes()).expect("open");
        let mut response = [0; 4_096];
        let length = idle.read(&mut response).expect("open");
        assert!(response[..length].starts_with(b"HTTP/1.1 200"));
    };
    exchange();
    let before = open_sockets(&ade);
    let held = json!({ "agent_id": "ann", "locks": [{ "lock": "task:1" }] });
    let _ = api.post("/locks/acquire", &held).await.expect_status(200);
    let waits = json!({ "agent_id": "ben", "locks": [{ "lock": "task:1" }], "wait_seconds": 3 });
    let long_poll = {
        let api = api.clone();
        tokio::spawn(async move { api.post("/locks/acquire", &waits).await })
    };
    let clients = usize::try_from(effort::rounds(20, 300)).expect("small");
    let request = format!("GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n{authorization}\r\n\r\n");
    let mut deaf = Vec::new();
    for _ in 0..clients {
        let mut stream = connect_from("127.0.0.1", &ade).await;
        stream.write_all(request.repeat(50).as_bytes()).expect("open");
        deaf.push(stream);
    }
    let closed = || {
        let open = open_sockets(&ade);
        // The long poll may be among them.
        if open <= before + 1 { Ok(()) } else { Err(format!("{} of {clients} are open", open - before)) }
    };
    eventually("connections to be closed", TIMEOUT, closed).expect("in time");
    let _ = long_poll.await.expect("runs").expect_problem(423, "LOCK_HELD");
    exchange();
}
