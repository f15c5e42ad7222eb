//! Effects on external systems, end to end: a database commit whose response is lost, and an HTTP service with a rollback
//! call. Nothing is applied twice, and the outcome is known.

use std::time::Duration;

use ade_testkit::deployment::text_field;
use ade_testkit::postgres_proxy::CommitFault;
use ade_testkit::wait::until;
use ade_testkit::{AdminClient, Deployment, Postgres, PostgresProxy, TestUser};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

const ADE: &str = env!("CARGO_BIN_EXE_ade");
/// Generous: only a hang reaches it, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
const INCREMENT: &str = "UPDATE things SET worth = worth + 1";

async fn set_up_approval(house: &Deployment) -> (AdminClient, TestUser) {
    let office = house.admin().await;
    let pat = office.create_approved_author("pat").await;
    (office, pat)
}

fn is_finished(task: &Value) -> bool {
    matches!(text_field(task, "state").as_str(), "COMPLETED" | "FAILED")
}

/// A target database behind a proxy that can cut the connection.
struct TargetDatabase {
    postgres: Postgres,
    proxy: PostgresProxy,
}

impl TargetDatabase {
    async fn start() -> Self {
        let postgres = Postgres::start().expect("starts");
        let url = postgres.create_database("shop").expect("created");
        let table = "CREATE TABLE things (worth INTEGER NOT NULL); INSERT INTO things VALUES (10)";
        postgres.psql("shop", table).expect("created");
        Self { proxy: PostgresProxy::start(&url).await, postgres }
    }

    fn config(&self) -> String {
        let url = self.proxy.url();
        format!("[worker]\nlease_seconds = 2\n[executors.sql.connections.shop]\nurl = \"{url}\"\n")
    }

    fn worth(&self) -> String {
        self.postgres.psql("shop", "SELECT worth FROM things").expect("answered")
    }
}

fn increment_task() -> Value {
    json!({ "executor": "sql", "parameters": { "connection": "shop", "statements": [INCREMENT] } })
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_commit_response_is_resolved_by_marker() {
    let target = TargetDatabase::start().await;
    let house = Deployment::with_worker(ADE, &target.config());
    let (office, pat) = set_up_approval(&house).await;
    target.proxy.inject_fault(CommitFault::LoseResponse, false);
    let id = pat.create_submitted(increment_task()).await;
    let done = office.wait_for_task("the task finishes", &id, is_finished).await;
    assert_eq!(
        (text_field(&done, "state").as_str(), &done["execution"]["attempt"]),
        ("COMPLETED", &json!(1))
    );
    assert!(text_field(&done["execution"], "output").contains("the response to COMMIT was lost"), "{done}");
    assert_eq!(target.worth(), "11");
    recovery_survives_second_kill(&target, &house, &office, &pat).await;
}

/// The worker is killed after the commit. The recovering worker cannot reach the database and is killed as well. The third
/// one finds the marker of the first.
async fn recovery_survives_second_kill(
    target: &TargetDatabase,
    house: &Deployment,
    office: &AdminClient,
    pat: &TestUser,
) {
    target.proxy.inject_fault(CommitFault::LoseResponse, true);
    let id = pat.create_submitted(increment_task()).await;
    target.proxy.wait_for_fault().await;
    house.server().kill().expect("killed");
    assert_eq!(target.worth(), "12");
    house.server().start_again().expect("starts");
    let taken_over = |task: &Value| task["execution"]["attempt"] == 2;
    let task = office.wait_for_task("another attempt takes over", &id, taken_over).await;
    assert_eq!((&task["state"], &task["execution"]["phase"]), (&json!("APPLYING"), &json!("STARTED")));
    house.server().kill_and_restart().expect("restarted");
    target.proxy.reconnect();
    let done = office.wait_for_task("the outcome is resolved", &id, is_finished).await;
    assert_eq!(
        (text_field(&done, "state").as_str(), &done["execution"]["attempt"]),
        ("COMPLETED", &json!(3))
    );
    assert_eq!(target.worth(), "12", "applied once");
}

/// An HTTP service that responds by path and records its requests.
struct RecordingService {
    port: u16,
    requests: mpsc::UnboundedReceiver<String>,
}

impl RecordingService {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let (sender, requests) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, sender.clone()));
            }
        });
        Self { port, requests }
    }

    /// Takes the requests received so far, in order.
    fn take_requests(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.requests.try_recv().ok()).collect()
    }
}

async fn serve(mut stream: TcpStream, sender: mpsc::UnboundedSender<String>) {
    let (mut received, mut buffer) = (Vec::new(), [0; 4_096]);
    let request = loop {
        let text = String::from_utf8_lossy(&received).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let head = head.to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
            if body.len() >= length.parse().unwrap_or(0) {
                break text;
            }
        }
        match stream.read(&mut buffer).await {
            Ok(read @ 1..) => received.extend_from_slice(&buffer[..read]),
            _ => return,
        }
    };
    let status = if request.contains(" /broken ") { "500 Broken" } else { "200 OK" };
    // The test or the client may be gone already.
    let _ = sender.send(request);
    let response = format!("HTTP/1.1 {status}\r\nContent-Length: 7\r\nConnection: close\r\n\r\nheard\r\n");
    let _ = stream.write_all(response.as_bytes()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn http_call_is_sent_once_and_rolled_back_on_failure() {
    let mut service = RecordingService::start().await;
    let host = format!("127.0.0.1:{}", service.port);
    let config = format!(
        "[executors.http.hosts.api]\nhost = \"{host}\"\n\
         [executors.http.secrets.deploy]\nhost = \"{host}\"\nvalue = \"Bearer hunter2-hunter2\"\n"
    );
    let house = Deployment::with_worker(ADE, &config);
    let (office, pat) = set_up_approval(&house).await;
    let call = |path: &str| {
        json!({
            "executor": "http",
            "parameters": {
                "method": "POST", "url": format!("http://{host}{path}"), "body": { "release": 7 },
                "headers": { "authorization": { "secret": "deploy" } }, "rollback_url": format!("http://{host}/undo"),
            },
        })
    };
    let id = pat.create_submitted(call("/deploy")).await;
    let done = office.wait_for_task("the task finishes", &id, is_finished).await;
    assert_eq!(text_field(&done, "state"), "COMPLETED", "{done}");
    assert!(text_field(&done["execution"], "output").contains("heard"), "{done}");
    let requests = service.take_requests();
    assert_eq!(requests.len(), 1, "{requests:?}");
    for words in ["POST /deploy ", "Bearer hunter2-hunter2", &format!("ade-{id}\r\n"), "{\"release\":7}"] {
        assert!(requests[0].contains(words), "{words} is missing in {}", requests[0]);
    }
    let id = pat.create_submitted(call("/broken")).await;
    let failed = office.wait_for_task("the task fails", &id, is_finished).await;
    assert_eq!(text_field(&failed, "state"), "FAILED", "{failed}");
    assert_eq!(failed["execution"]["rolled_back"], true, "{failed}");
    let requests = service.take_requests();
    let paths: Vec<&str> = requests.iter().filter_map(|request| request.split(' ').nth(1)).collect();
    assert_eq!(paths, ["/broken", "/undo"]);
    assert!(requests[1].contains(&format!("ade-{id}-undo\r\n")), "{}", requests[1]);
    let observe = || async {
        let said = pat.get(&format!("/tasks/{id}/logs")).await.text();
        if said.contains("/undo: 200 OK") { Ok(said) } else { Err(said) }
    };
    let said = until("the logs are stored", TIMEOUT, observe).await.expect("in time");
    assert!(!said.contains("hunter2"), "{said}");
}
