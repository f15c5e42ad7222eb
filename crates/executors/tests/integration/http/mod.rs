//! The HTTP executor calls only allowed hosts, sends the expected headers, and reports which effects a failed call may have.

mod invalid_parameters;
mod server;

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use ade_domain::task::{ChangeKind, PreviewStatus};
use ade_executors::client::HttpClient;
use ade_executors::egress::{EgressPolicy, Resolver};
use ade_executors::{
    Executor, Fencing, HttpExecutor, Run, RunOutput, Secrets, SideEffects, StopReason, StopSignal,
};
use async_trait::async_trait;
use bytes::Bytes;
use hyper::Method;
use hyper::header::HeaderMap;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use server::{Reply, Server, ok, status};

pub(crate) fn http(hosts: &[&str]) -> HttpExecutor {
    with_secrets(hosts, &[])
}

pub(crate) fn with_secrets(hosts: &[&str], secrets: &[(&str, &str, &str)]) -> HttpExecutor {
    HttpExecutor::new(egress(hosts), secrets.iter().copied()).expect("valid")
}

pub(crate) fn egress(hosts: &[&str]) -> EgressPolicy {
    EgressPolicy::new(&hosts.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>()).expect("valid")
}

/// The second attempt of a task, with the sender of its stop signal.
pub(crate) fn run(parameters: Value) -> (watch::Sender<Option<StopReason>>, Run) {
    let Value::Object(parameters) = parameters else { unreachable!("it is an object") };
    let (stop_sender, stop) = StopSignal::new();
    let run = Run {
        approved_fingerprint: None,
        task_id: "t-1".to_owned(),
        attempt: 2,
        parameters,
        fencing_tokens: vec![("task:t-1".to_owned(), 7), ("resource:a:b".to_owned(), 41)],
        output: RunOutput::new(Secrets::default(), None),
        stop,
    };
    (stop_sender, run)
}

fn output_of(run: &Run) -> String {
    run.output.finish().expect("no file").0
}

#[tokio::test]
async fn sends_body_fencing_token_and_secret() {
    let mut server = Server::start(ok("created with the token s3cret")).await;
    let http = with_secrets(&[&server.host()], &[("key", &server.host(), "Bearer s3cret")]);
    let (_stop, run) = run(json!({
        "method": "PUT",
        "url": server.url("/things/1?a=b#c"),
        "headers": { "Authorization": { "secret": "key" }, "X-Kind": "a" },
        "body": { "worth": 3 },
    }));
    http.validate(&run.parameters).expect("allowed");
    http.apply(&run, &[]).await.expect("applied");
    let request = server.next_request().await;
    let (head, body) = request.split_once("\r\n\r\n").expect("complete");
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
        assert!(head.lines().any(|other| other == line), "{line} is missing in {head}");
    }
    let output = output_of(&run);
    assert!(output.ends_with(": 200 OK\ncreated with the token ***\n"), "{output}");
    assert!(!format!("{http:?}").contains("s3cret"));
    assert!(http.secrets().contains(&"s3cret".to_owned()));
    assert_eq!((http.fencing(), http.can_roll_back(&run.parameters)), (Fencing::Unfenced, false));
    assert_eq!(http.prepare_rollback(&run).await, Ok(Vec::new()));
    assert!(http.resolve_outcome(&run, &[]).await.is_err());
}

#[tokio::test]
async fn maps_status_to_effects_and_retry() {
    for (line, side_effects, is_retryable) in [
        ("408 Request Timeout", SideEffects::Unknown, false),
        ("400 Bad Request", SideEffects::None, false),
        ("404 Not Found", SideEffects::None, false),
        ("429 Too Many Requests", SideEffects::None, true),
        ("500 Internal Server Error", SideEffects::Unknown, false),
        ("503 Service Unavailable", SideEffects::Unknown, false),
        ("304 Not Modified", SideEffects::Unknown, false),
    ] {
        let server = Server::start(status(line)).await;
        let http = http(&[&server.host()]);
        let (_stop, run) = run(json!({ "method": "POST", "url": server.url("/") }));
        let failure = http.apply(&run, &[]).await.expect_err("rejected");
        assert_eq!((failure.side_effects, failure.is_retryable), (side_effects, is_retryable), "{line}");
        assert!(failure.message.contains(line), "{failure}");
    }
    let server = Server::start(status("408 Request Timeout")).await;
    let (_stop, idempotent) = run(json!({ "method": "PUT", "url": server.url("/") }));
    let failure = http(&[&server.host()]).apply(&idempotent, &[]).await.expect_err("rejected");
    assert_eq!((failure.side_effects, failure.is_retryable), (SideEffects::None, true), "it may be repeated");
    let server = Server::start(status("500 Internal Server Error")).await;
    let (url, rollback_url) = (server.url("/"), server.url("/back"));
    let (_stop, run) = run(json!({ "method": "POST", "url": url, "rollback_url": rollback_url }));
    let failure = http(&[&server.host()]).apply(&run, &[]).await.expect_err("rejected");
    assert_eq!(failure.side_effects, SideEffects::Remaining, "it can be rolled back");
}

#[tokio::test]
async fn does_not_follow_redirects() {
    let mut other = Server::start(ok("")).await;
    let redirect = format!("302 Found\r\nLocation: {}", other.url("/"));
    let server = Server::start(status(&redirect)).await;
    let http = http(&[&server.host(), &other.host()]);
    let (_stop, run) =
        run(json!({ "method": "GET", "url": server.url("/"), "preview_url": server.url("/") }));
    let failure = http.apply(&run, &[]).await.expect_err("not followed");
    assert!(failure.message.contains("redirects are not followed"), "{failure}");
    let preview = http.preview(&run.parameters).await.expect("answered");
    assert_eq!(preview.errors.len(), 1);
    assert!(!other.was_called());
}

#[tokio::test]
async fn reads_limited_part_of_long_response() {
    let mut server = Server::start(Reply::EndlessBody).await;
    let http = http(&[&server.host()]);
    let (_stop, run) =
        run(json!({ "method": "POST", "url": server.url("/"), "preview_url": server.url("/") }));
    http.apply(&run, &[]).await.expect("applied");
    // The socket buffers of both sides are included.
    let sent = server.sent_bytes.recv().await.expect("the client has closed the connection");
    assert!(sent < 64 * 1_048_576, "{sent} bytes were sent");
    let preview = http.preview(&run.parameters).await.expect("answered");
    assert_eq!(preview.changes[0].diff.as_ref().map(String::len), Some(65_536));
    assert_eq!(preview.warnings.len(), 1);
    assert!(run.output.finish().expect("no file").1 < 66_000);
}

#[tokio::test]
async fn reports_whether_stopped_call_was_sent() {
    let mut server = Server::start(Reply::None).await;
    let http = http(&[&server.host()]);
    let (stop, sent) = run(json!({ "method": "POST", "url": server.url("/") }));
    let (failure, ()) = tokio::join!(http.apply(&sent, &[]), async {
        server.next_request().await;
        stop.send_replace(Some(StopReason::TimedOut));
    });
    let failure = failure.expect_err("stopped");
    assert_eq!(
        (failure.side_effects, failure.stop_reason),
        (SideEffects::Unknown, Some(StopReason::TimedOut))
    );
    let (stop, early) = run(json!({ "method": "POST", "url": server.url("/") }));
    stop.send_replace(Some(StopReason::Stopped));
    let failure = http.apply(&early, &[]).await.expect_err("stopped");
    assert_eq!((failure.side_effects, failure.stop_reason), (SideEffects::None, Some(StopReason::Stopped)));
    assert!(!server.was_called());
}

#[tokio::test]
async fn knows_status_before_body_is_complete() {
    let stuck = Server::start(Reply::IncompleteBody).await;
    let pinned = egress(&[&stuck.host()]).resolve(&stuck.url("/")).await.expect("listed");
    let connection = HttpClient::default().connect(pinned).await.expect("connects");
    let head = connection.send(Method::GET, HeaderMap::new(), Bytes::new()).await.expect("answered");
    assert_eq!(head.status.as_u16(), 200);
    let incomplete = "HTTP/1.1 201 Created\r\nContent-Length: 10\r\n\r\nhalf";
    let server = Server::start(Reply::Bytes(incomplete.to_owned())).await;
    let (_stop, run) = run(json!({ "method": "POST", "url": server.url("/") }));
    http(&[&server.host()]).apply(&run, &[]).await.expect("applied");
    let output = output_of(&run);
    assert!(output.contains("201 Created\nhalf\n(the response broke off"), "{output}");
}

#[tokio::test]
async fn refused_connection_has_no_effects_and_dropped_one_may() {
    let unused = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("bound");
    let (_stop, unreachable) = run(json!({ "method": "POST", "url": format!("http://{unused}/") }));
    let failure = http(&[&unused.to_string()]).apply(&unreachable, &[]).await.expect_err("unreachable");
    assert_eq!((failure.side_effects, failure.is_retryable), (SideEffects::None, true), "{failure}");
    let server = Server::start(Reply::Close).await;
    let (_stop, dropped) = run(json!({ "method": "POST", "url": server.url("/") }));
    let failure = http(&[&server.host()]).apply(&dropped, &[]).await.expect_err("connection closed");
    assert_eq!((failure.side_effects, failure.is_retryable), (SideEffects::Unknown, false), "{failure}");
}

#[tokio::test]
async fn preview_sends_no_secrets() {
    let mut server = Server::start(ok("worth: 3\n")).await;
    let http = with_secrets(&[&server.host()], &[("key", &server.host(), "s3cret")]);
    let parameters = json!({
        "method": "DELETE",
        "url": server.url("/things/1"),
        "preview_url": server.url("/things/1/preview"),
        "headers": { "X-Key": { "secret": "key" }, "Accept": "text/plain" },
    });
    let (_stop, previewed) = run(parameters);
    let preview = http.preview(&previewed.parameters).await.expect("answered");
    assert_eq!(preview.status, PreviewStatus::Ready);
    let change = &preview.changes[0];
    assert_eq!(
        (change.kind, change.what.clone()),
        (ChangeKind::Update, format!("DELETE {}", server.url("/things/1")))
    );
    assert_eq!(change.diff.as_deref(), Some("worth: 3\n"));
    assert_eq!(change.before.as_ref().map(String::len), Some(64));
    let request = server.next_request().await;
    assert!(
        request.starts_with("GET /things/1/preview HTTP/1.1\r\n") && request.contains("accept: text/plain"),
        "{request}"
    );
    assert!(!request.contains("s3cret") && !request.contains("idempotency-key"), "{request}");
    let (_stop, without_preview) = run(json!({ "method": "POST", "url": server.url("/") }));
    assert_eq!(http.preview(&without_preview.parameters).await.expect("none").status, PreviewStatus::None);
    let not_found = Server::start(status("404 Not Found")).await;
    let (_stop, run) =
        run(json!({ "method": "POST", "url": not_found.url("/"), "preview_url": not_found.url("/") }));
    let preview = self::http(&[&not_found.host()]).preview(&run.parameters).await.expect("answered");
    assert!(preview.errors[0].contains("404"), "{:?}", preview.errors);
}

#[tokio::test]
async fn rollback_is_another_call() {
    let mut server = Server::start(ok("")).await;
    let http = http(&[&server.host()]);
    let (url, rollback_url) = (server.url("/do"), server.url("/undo"));
    let (_stop, run) =
        run(json!({ "method": "POST", "url": url, "rollback_url": rollback_url, "body": "text" }));
    assert!(http.can_roll_back(&run.parameters));
    let rollback_data = http.prepare_rollback(&run).await.expect("collected");
    assert!(!rollback_data.is_empty());
    http.roll_back(&run, &rollback_data).await.expect("rolled back");
    let request = server.next_request().await;
    assert!(request.starts_with("POST /undo HTTP/1.1\r\n"), "{request}");
    assert!(request.ends_with("\r\n\r\n{\"attempt\":2,\"task_id\":\"t-1\"}"), "{request}");
    assert!(
        request.contains("idempotency-key: ade-t-1-undo\r\n") && request.contains("application/json"),
        "{request}"
    );
}

/// Returns the given addresses one after the other, and counts calls.
#[derive(Debug)]
struct ChangingResolver {
    addresses: Mutex<Vec<&'static str>>,
    calls: AtomicUsize,
}

#[async_trait]
impl Resolver for ChangingResolver {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        assert_eq!(name, "api.test");
        self.calls.fetch_add(1, Ordering::SeqCst);
        let mut addresses = self.addresses.lock().expect("not poisoned");
        Ok(vec![addresses.remove(0).parse().expect("an address")])
    }
}

#[tokio::test]
async fn resolves_and_checks_name_once_per_call() {
    let mut server = Server::start(ok("")).await;
    let host = format!("api.test:{}", server.port);
    let addresses = Mutex::new(vec!["127.0.0.1", "169.254.169.254", "127.0.0.1"]);
    let resolver = Arc::new(ChangingResolver { addresses, calls: AtomicUsize::new(0) });
    let private_host = format!("{host}+private");
    let http =
        HttpExecutor::new(egress(&[&private_host]).with_resolver(resolver.clone()), []).expect("valid");
    let (_stop, run) = run(json!({ "method": "POST", "url": format!("http://{host}/") }));
    http.apply(&run, &[]).await.expect("applied");
    assert!(server.next_request().await.contains(&format!("host: {host}\r\n")));
    assert_eq!(resolver.calls.load(Ordering::SeqCst), 1);
    let failure = http.apply(&run, &[]).await.expect_err("the address is reserved");
    assert_eq!((failure.side_effects, failure.is_retryable), (SideEffects::None, false), "{failure}");
    let public_only = HttpExecutor::new(egress(&[&host]).with_resolver(resolver), []).expect("valid");
    let failure = public_only.apply(&run, &[]).await.expect_err("the address is private");
    assert!(failure.message.contains("127.0.0.1, which is not public"), "{failure}");
    assert!(!server.was_called());
}

#[tokio::test]
async fn verifies_certificates() {
    let dir = tempfile::tempdir().expect("a directory");
    let openssl = std::process::Command::new("openssl")
        .args(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key -out certificate -days 2 \
             -subj /CN=ade -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE"
                .split(' ')
                .filter(|part| !part.is_empty()),
        )
        .current_dir(dir.path())
        .output()
        .expect("runs");
    assert!(openssl.status.success(), "{}", String::from_utf8_lossy(&openssl.stderr));
    let certificate = CertificateDer::from_pem_file(dir.path().join("certificate")).expect("parsed");
    let key = PrivateKeyDer::from_pem_file(dir.path().join("key")).expect("parsed");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("supported")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .expect("valid");
    let mut server = Server::start_with(ok("safe"), Some(TlsAcceptor::from(Arc::new(config)))).await;
    let (_stop, run) = run(json!({ "method": "POST", "url": format!("https://{}/", server.host()) }));
    let failure = http(&[&server.host()]).apply(&run, &[]).await.expect_err("untrusted certificate");
    assert_eq!(failure.side_effects, SideEffects::None, "{failure}");
    assert!(failure.message.contains("certificate") && !server.was_called(), "{failure}");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).expect("valid");
    let http = http(&[&server.host()]).with_client(HttpClient::with_roots(roots));
    http.apply(&run, &[]).await.expect("applied");
    assert!(output_of(&run).ends_with("safe\n"));
}
