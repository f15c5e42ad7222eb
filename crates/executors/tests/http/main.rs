//! HTTP calls go only where they may, carry what they should, and say honestly what they may have changed.

#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "helpers of tests fail like tests")]

mod refused;
mod server;

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use ade_domain::task::{ChangeKind, PreviewStatus};
use ade_executors::call::Caller;
use ade_executors::guard::{Guard, Resolve};
use ade_executors::{Changed, Executor, Fence, Halt, Halted, Http, Output, Run, Secrets, Work};
use bytes::Bytes;
use hyper::Method;
use hyper::header::HeaderMap;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use server::{How, Server, ok, status};

pub(crate) fn http(hosts: &[&str]) -> Http {
    with_secrets(hosts, &[])
}

pub(crate) fn with_secrets(hosts: &[&str], secrets: &[(&str, &str, &str)]) -> Http {
    Http::new(guard(hosts), secrets.iter().copied()).expect("usable")
}

pub(crate) fn guard(hosts: &[&str]) -> Guard {
    Guard::new(&hosts.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>()).expect("readable")
}

/// The second attempt of a task, and who could end it.
pub(crate) fn run(parameters: Value) -> (watch::Sender<Option<Halt>>, Run) {
    let Value::Object(parameters) = parameters else { unreachable!("it is an object") };
    let (halt, halted) = Halted::new();
    let run = Run {
        approved: None,
        task_id: "t-1".to_owned(),
        attempt: 2,
        parameters,
        tokens: vec![("task:t-1".to_owned(), 7), ("resource:a:b".to_owned(), 41)],
        output: Output::new(Secrets::default(), None),
        halted,
    };
    (halt, run)
}

fn said(run: &Run) -> String {
    run.output.finish().expect("no file").0
}

#[tokio::test]
async fn a_call_carries_its_body_its_token_and_its_secret() {
    let mut server = Server::start(ok("made, with the token s3cret of yours")).await;
    let http = with_secrets(&[&server.host()], &[("key", &server.host(), "Bearer s3cret")]);
    let (_halt, run) = run(json!({
        "method": "PUT",
        "url": server.url("/things/1?a=b#c"),
        "headers": { "Authorization": { "secret": "key" }, "X-Kind": "a" },
        "body": { "worth": 3 },
    }));
    http.check(&run.parameters).expect("allowed");
    http.apply(&run, &[]).await.expect("done");
    let asked = server.next().await;
    let (head, body) = asked.split_once("\r\n\r\n").expect("whole");
    assert!(head.starts_with("PUT /things/1?a=b HTTP/1.1\r\n"), "{head}");
    assert_eq!(body, r#"{"worth":3}"#);
    let host = format!("host: {}", server.host());
    for line in [
        host.as_str(),
        "authorization: Bearer s3cret",
        "x-kind: a",
        "user-agent: ade",
        "content-type: application/json",
        "idempotency-key: ade-t-1",
        "ade-task-id: t-1",
        "ade-attempt: 2",
        "ade-fencing-token: 41",
    ] {
        assert!(head.lines().any(|one| one == line), "{line} is missing in {head}");
    }
    let said = said(&run);
    assert!(said.ends_with(": 200 OK\nmade, with the token *** of yours\n"), "{said}");
    assert!(!format!("{http:?}").contains("s3cret"));
    assert!(http.secrets().contains(&"s3cret".to_owned()));
    assert_eq!((http.fence(), http.can_roll_back(&run.parameters)), (Fence::Open, false));
    assert_eq!(http.stash(&run).await, Ok(Vec::new()));
    assert!(http.settle(&run, &[]).await.is_err());
}

#[tokio::test]
async fn what_an_answer_means() {
    for (line, changed, again) in [
        ("408 Request Timeout", Changed::Unknown, false),
        ("400 Bad Request", Changed::Nothing, false),
        ("404 Not Found", Changed::Nothing, false),
        ("429 Too Many Requests", Changed::Nothing, true),
        ("500 Internal Server Error", Changed::Unknown, false),
        ("503 Service Unavailable", Changed::Unknown, false),
        ("304 Not Modified", Changed::Unknown, false),
    ] {
        let server = Server::start(status(line)).await;
        let http = http(&[&server.host()]);
        let (_halt, run) = run(json!({ "method": "POST", "url": server.url("/") }));
        let failure = http.apply(&run, &[]).await.expect_err("not done");
        assert_eq!((failure.changed, failure.again), (changed, again), "{line}");
        assert!(failure.message.contains(line), "{failure}");
    }
    let server = Server::start(status("408 Request Timeout")).await;
    let (_halt, repeatable) = run(json!({ "method": "PUT", "url": server.url("/") }));
    let failure = http(&[&server.host()]).apply(&repeatable, &[]).await.expect_err("not done");
    assert_eq!((failure.changed, failure.again), (Changed::Nothing, true), "it may be sent twice");
    let server = Server::start(status("500 Internal Server Error")).await;
    let (url, back) = (server.url("/"), server.url("/back"));
    let (_halt, run) = run(json!({ "method": "POST", "url": url, "rollback_url": back }));
    let failure = http(&[&server.host()]).apply(&run, &[]).await.expect_err("not done");
    assert_eq!(failure.changed, Changed::Something, "there is a way back");
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let mut other = Server::start(ok("")).await;
    let redirect = format!("302 Found\r\nLocation: {}", other.url("/"));
    let server = Server::start(status(&redirect)).await;
    let http = http(&[&server.host(), &other.host()]);
    let (_halt, run) =
        run(json!({ "method": "GET", "url": server.url("/"), "preview_url": server.url("/") }));
    let failure = http.apply(&run, &[]).await.expect_err("not followed");
    assert!(failure.message.contains("redirects are not followed"), "{failure}");
    let preview = http.preview(&run.parameters).await.expect("answered");
    assert_eq!(preview.errors.len(), 1);
    assert!(!other.was_asked());
}

#[tokio::test]
async fn of_a_long_answer_only_the_beginning_is_read() {
    let mut server = Server::start(How::Endless).await;
    let http = http(&[&server.host()]);
    let (_halt, run) =
        run(json!({ "method": "POST", "url": server.url("/"), "preview_url": server.url("/") }));
    http.apply(&run, &[]).await.expect("done");
    // What the system holds for both sides is taken as well.
    let taken = server.taken.recv().await.expect("somebody hung up");
    assert!(taken < 64 * 1_048_576, "{taken} bytes were taken");
    let preview = http.preview(&run.parameters).await.expect("answered");
    assert_eq!(preview.changes[0].diff.as_ref().map(String::len), Some(65_536));
    assert_eq!(preview.warnings.len(), 1);
    assert!(run.output.finish().expect("no file").1 < 66_000);
}

#[tokio::test]
async fn whoever_is_halted_says_whether_anything_was_sent() {
    let mut server = Server::start(How::Never).await;
    let http = http(&[&server.host()]);
    let (halt, sent) = run(json!({ "method": "POST", "url": server.url("/") }));
    let (failure, ()) = tokio::join!(http.apply(&sent, &[]), async {
        server.next().await;
        halt.send_replace(Some(Halt::TimedOut));
    });
    let failure = failure.expect_err("halted");
    assert_eq!((failure.changed, failure.halted), (Changed::Unknown, Some(Halt::TimedOut)));
    let (halt, early) = run(json!({ "method": "POST", "url": server.url("/") }));
    halt.send_replace(Some(Halt::Stopped));
    let failure = http.apply(&early, &[]).await.expect_err("halted");
    assert_eq!((failure.changed, failure.halted), (Changed::Nothing, Some(Halt::Stopped)));
    assert!(!server.was_asked());
}

#[tokio::test]
async fn how_it_went_is_known_before_the_answer_ends() {
    let stuck = Server::start(How::Head).await;
    let pinned = guard(&[&stuck.host()]).resolve(&stuck.url("/")).await.expect("listed");
    let open = Caller::default().open(pinned).await.expect("connects");
    let begun = open.send(Method::GET, HeaderMap::new(), Bytes::new()).await.expect("answered");
    assert_eq!(begun.status.as_u16(), 200);
    let half = "HTTP/1.1 201 Created\r\nContent-Length: 10\r\n\r\nhalf";
    let server = Server::start(How::Say(half.to_owned())).await;
    let (_halt, run) = run(json!({ "method": "POST", "url": server.url("/") }));
    http(&[&server.host()]).apply(&run, &[]).await.expect("it was done");
    let said = said(&run);
    assert!(said.contains("201 Created\nhalf\n(the answer broke off"), "{said}");
}

#[tokio::test]
async fn who_is_not_there_was_not_sent_anything_and_who_hangs_up_was() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("bound");
    let (_halt, absent) = run(json!({ "method": "POST", "url": format!("http://{nobody}/") }));
    let failure = http(&[&nobody.to_string()]).apply(&absent, &[]).await.expect_err("nobody is there");
    assert_eq!((failure.changed, failure.again), (Changed::Nothing, true), "{failure}");
    let server = Server::start(How::HangUp).await;
    let (_halt, cut) = run(json!({ "method": "POST", "url": server.url("/") }));
    let failure = http(&[&server.host()]).apply(&cut, &[]).await.expect_err("it hung up");
    assert_eq!((failure.changed, failure.again), (Changed::Unknown, false), "{failure}");
}

#[tokio::test]
async fn a_preview_shows_what_is_there_without_secrets() {
    let mut server = Server::start(ok("worth: 3\n")).await;
    let http = with_secrets(&[&server.host()], &[("key", &server.host(), "s3cret")]);
    let parameters = json!({
        "method": "DELETE",
        "url": server.url("/things/1"),
        "preview_url": server.url("/things/1/preview"),
        "headers": { "X-Key": { "secret": "key" }, "Accept": "text/plain" },
    });
    let (_halt, asking) = run(parameters);
    let preview = http.preview(&asking.parameters).await.expect("answered");
    assert_eq!(preview.status, PreviewStatus::Ready);
    let change = &preview.changes[0];
    assert_eq!(
        (change.kind, change.what.clone()),
        (ChangeKind::Update, format!("DELETE {}", server.url("/things/1")))
    );
    assert_eq!(change.diff.as_deref(), Some("worth: 3\n"));
    assert_eq!(change.before.as_ref().map(String::len), Some(64));
    let asked = server.next().await;
    assert!(
        asked.starts_with("GET /things/1/preview HTTP/1.1\r\n") && asked.contains("accept: text/plain"),
        "{asked}"
    );
    assert!(!asked.contains("s3cret") && !asked.contains("idempotency-key"), "{asked}");
    let (_halt, silent) = run(json!({ "method": "POST", "url": server.url("/") }));
    assert_eq!(http.preview(&silent.parameters).await.expect("none").status, PreviewStatus::None);
    let gone = Server::start(status("404 Not Found")).await;
    let (_halt, run) = run(json!({ "method": "POST", "url": gone.url("/"), "preview_url": gone.url("/") }));
    let preview = self::http(&[&gone.host()]).preview(&run.parameters).await.expect("answered");
    assert!(preview.errors[0].contains("404"), "{:?}", preview.errors);
}

#[tokio::test]
async fn the_way_back_is_another_call() {
    let mut server = Server::start(ok("")).await;
    let http = http(&[&server.host()]);
    let (url, back) = (server.url("/do"), server.url("/undo"));
    let (_halt, run) = run(json!({ "method": "POST", "url": url, "rollback_url": back, "body": "text" }));
    assert!(http.can_roll_back(&run.parameters));
    let stash = http.stash(&run).await.expect("kept");
    assert!(!stash.is_empty());
    http.roll_back(&run, &stash).await.expect("undone");
    let asked = server.next().await;
    assert!(asked.starts_with("POST /undo HTTP/1.1\r\n"), "{asked}");
    assert!(asked.ends_with("\r\n\r\n{\"attempt\":2,\"task_id\":\"t-1\"}"), "{asked}");
    assert!(
        asked.contains("idempotency-key: ade-t-1-undo\r\n") && asked.contains("application/json"),
        "{asked}"
    );
}

/// Answers one after the other, and counts.
struct Moving(Mutex<Vec<&'static str>>, AtomicUsize);

impl Resolve for Moving {
    fn resolve<'a>(&'a self, name: &'a str) -> Work<'a, io::Result<Vec<IpAddr>>> {
        assert_eq!(name, "api.test");
        self.1.fetch_add(1, Ordering::SeqCst);
        let address = self.0.lock().expect("nobody failed").remove(0).parse().expect("an address");
        Box::pin(async move { Ok(vec![address]) })
    }
}

#[tokio::test]
async fn a_name_is_resolved_once_for_each_call_and_looked_at_each_time() {
    let mut server = Server::start(ok("")).await;
    let host = format!("api.test:{}", server.port);
    let moving =
        Arc::new(Moving(Mutex::new(vec!["127.0.0.1", "169.254.169.254", "127.0.0.1"]), AtomicUsize::new(0)));
    let inside = format!("{host}+private");
    let http = Http::new(guard(&[&inside]).resolved_by(moving.clone()), []).expect("usable");
    let (_halt, run) = run(json!({ "method": "POST", "url": format!("http://{host}/") }));
    http.apply(&run, &[]).await.expect("done");
    assert!(server.next().await.contains(&format!("host: {host}\r\n")));
    assert_eq!(moving.1.load(Ordering::SeqCst), 1);
    let failure = http.apply(&run, &[]).await.expect_err("it has moved");
    assert_eq!((failure.changed, failure.again), (Changed::Nothing, false), "{failure}");
    let outside = Http::new(guard(&[&host]).resolved_by(moving), []).expect("usable");
    let failure = outside.apply(&run, &[]).await.expect_err("it is inside");
    assert!(failure.message.contains("127.0.0.1, which is not public"), "{failure}");
    assert!(!server.was_asked());
}

#[tokio::test]
async fn certificates_are_checked() {
    let folder = tempfile::tempdir().expect("a folder");
    let made = std::process::Command::new("openssl")
        .args(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key -out certificate -days 2 \
             -subj /CN=ade -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE"
                .split(' ')
                .filter(|part| !part.is_empty()),
        )
        .current_dir(folder.path())
        .output()
        .expect("runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let certificate = CertificateDer::from_pem_file(folder.path().join("certificate")).expect("readable");
    let key = PrivateKeyDer::from_pem_file(folder.path().join("key")).expect("readable");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("known")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .expect("usable");
    let mut server = Server::start_with(ok("safe"), Some(TlsAcceptor::from(Arc::new(config)))).await;
    let (_halt, run) = run(json!({ "method": "POST", "url": format!("https://{}/", server.host()) }));
    let failure = http(&[&server.host()]).apply(&run, &[]).await.expect_err("nobody vouches for it");
    assert_eq!(failure.changed, Changed::Nothing, "{failure}");
    assert!(failure.message.contains("certificate") && !server.was_asked(), "{failure}");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).expect("usable");
    let http = http(&[&server.host()]).calling_by(Caller::trusting(roots));
    http.apply(&run, &[]).await.expect("done");
    assert!(said(&run).ends_with("safe\n"));
}
