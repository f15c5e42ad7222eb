//! What is done to others, through the whole system: a database whose answer is lost, a service that is called and called back.
//! Nothing is done twice, and what was done is known.

use std::time::Duration;

use ade_domain::people::AUTHOR;
use ade_testkit::people::text;
use ade_testkit::proxy::Cut;
use ade_testkit::wait::until;
use ade_testkit::{House, Office, Person, Postgres, Proxy};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

const ADE: &str = env!("CARGO_BIN_EXE_ade");
/// Far beyond what anything takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(60);
const MORE: &str = "UPDATE things SET worth = worth + 1";

async fn approving(house: &House) -> (Office, Person) {
    let office = house.office().await;
    // Nobody is asked: what is submitted is approved.
    office.policy(json!({ "name": "auto", "auto_approve_if": { "risk_below": 101 } })).await;
    let pat = office.person("pat", &[AUTHOR]).await;
    (office, pat)
}

fn is_over(task: &Value) -> bool {
    matches!(text(task, "state").as_str(), "COMPLETED" | "FAILED")
}

/// A shop, and a line to it that can be cut.
struct Shop {
    postgres: Postgres,
    line: Proxy,
}

impl Shop {
    async fn open() -> Self {
        let postgres = Postgres::start().expect("starts");
        let url = postgres.create_database("shop").expect("made");
        let table = "CREATE TABLE things (worth INTEGER NOT NULL); INSERT INTO things VALUES (10)";
        postgres.psql("shop", table).expect("made");
        Self { line: Proxy::start(&url).await, postgres }
    }

    fn config(&self) -> String {
        let url = self.line.url();
        format!("[worker]\nlease_seconds = 2\n[executors.sql.connections.shop]\nurl = \"{url}\"\n")
    }

    fn worth(&self) -> String {
        self.postgres.psql("shop", "SELECT worth FROM things").expect("answered")
    }
}

fn worth_more() -> Value {
    json!({ "executor": "sql", "parameters": { "connection": "shop", "statements": [MORE] } })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_lost_is_known_by_its_mark() {
    let shop = Shop::open().await;
    let house = House::working(ADE, &shop.config());
    let (office, pat) = approving(&house).await;
    shop.line.cut(Cut::Answer, false);
    let id = pat.submitted(worth_more()).await;
    let done = office.wait_for("it is done", &id, is_over).await;
    assert_eq!((text(&done, "state").as_str(), &done["execution"]["attempt"]), ("COMPLETED", &json!(1)));
    assert!(text(&done["execution"], "output").contains("the response to COMMIT was lost"), "{done}");
    assert_eq!(shop.worth(), "11");
    whoever_finds_out_may_be_killed_as_well(&shop, &house, &office, &pat).await;
}

/// Its worker is killed when everything is committed; whoever finds out cannot reach the database, and is killed as well: who comes
/// next looks for the mark of the first.
async fn whoever_finds_out_may_be_killed_as_well(shop: &Shop, house: &House, office: &Office, pat: &Person) {
    shop.line.cut(Cut::Answer, true);
    let id = pat.submitted(worth_more()).await;
    shop.line.was_cut().await;
    house.ade().kill().expect("killed");
    assert_eq!(shop.worth(), "12");
    house.ade().start_again().expect("starts");
    let taken_over = |task: &Value| task["execution"]["attempt"] == 2;
    let now = office.wait_for("somebody takes over", &id, taken_over).await;
    assert_eq!((&now["state"], &now["execution"]["phase"]), (&json!("APPLYING"), &json!("STARTED")));
    house.ade().kill_and_restart().expect("again");
    shop.line.come_back();
    let done = office.wait_for("it is found out", &id, is_over).await;
    assert_eq!((text(&done, "state").as_str(), &done["execution"]["attempt"]), ("COMPLETED", &json!(3)));
    assert_eq!(shop.worth(), "12", "done once");
}

/// A service that can be called: it answers by path, and remembers what it was asked.
struct Service {
    port: u16,
    asked: mpsc::UnboundedReceiver<String>,
}

impl Service {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let (asks, asked) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, asks.clone()));
            }
        });
        Self { port, asked }
    }

    /// Everything that it was asked so far, in order.
    fn all(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.asked.try_recv().ok()).collect()
    }
}

async fn serve(mut stream: TcpStream, asks: mpsc::UnboundedSender<String>) {
    let (mut all, mut part) = (Vec::new(), [0; 4_096]);
    let asked = loop {
        let text = String::from_utf8_lossy(&all).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let head = head.to_ascii_lowercase();
            let long = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
            if body.len() >= long.parse().unwrap_or(0) {
                break text;
            }
        }
        match stream.read(&mut part).await {
            Ok(read @ 1..) => all.extend_from_slice(&part[..read]),
            _ => return,
        }
    };
    let status = if asked.contains(" /broken ") { "500 Broken" } else { "200 OK" };
    // Whoever asked or listens may have gone.
    let _ = asks.send(asked);
    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 7\r\nConnection: close\r\n\r\nheard\r\n");
    let _ = stream.write_all(answer.as_bytes()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_is_called_once_and_called_back_if_that_failed() {
    let mut service = Service::start().await;
    let host = format!("127.0.0.1:{}", service.port);
    let config = format!(
        "[executors.http]\nhosts = [\"{host}\"]\n\
         [executors.http.secrets.deploy]\nhost = \"{host}\"\nvalue = \"Bearer hunter2-hunter2\"\n"
    );
    let house = House::working(ADE, &config);
    let (office, pat) = approving(&house).await;
    let call = |path: &str| {
        json!({
            "executor": "http",
            "parameters": {
                "method": "POST", "url": format!("http://{host}{path}"), "body": { "release": 7 },
                "headers": { "authorization": { "secret": "deploy" } }, "rollback_url": format!("http://{host}/undo"),
            },
        })
    };
    let id = pat.submitted(call("/deploy")).await;
    let done = office.wait_for("it is done", &id, is_over).await;
    assert_eq!(text(&done, "state"), "COMPLETED", "{done}");
    assert!(text(&done["execution"], "output").contains("heard"), "{done}");
    let asked = service.all();
    assert_eq!(asked.len(), 1, "{asked:?}");
    for words in ["POST /deploy ", "Bearer hunter2-hunter2", &format!("ade-{id}\r\n"), "{\"release\":7}"] {
        assert!(asked[0].contains(words), "{words} is missing in {}", asked[0]);
    }
    let id = pat.submitted(call("/broken")).await;
    let failed = office.wait_for("it failed", &id, is_over).await;
    assert_eq!(text(&failed, "state"), "FAILED", "{failed}");
    assert_eq!(failed["execution"]["rolled_back"], true, "{failed}");
    let asked = service.all();
    let paths: Vec<&str> = asked.iter().filter_map(|one| one.split(' ').nth(1)).collect();
    assert_eq!(paths, ["/broken", "/undo"]);
    assert!(asked[1].contains(&format!("ade-{id}-undo\r\n")), "{}", asked[1]);
    let heard = || async {
        let said = pat.get(&format!("/tasks/{id}/logs")).await.text();
        if said.contains("/undo: 200 OK") { Ok(said) } else { Err(said) }
    };
    let said = until("what was said is kept", LONG, heard).await.expect("it is");
    assert!(!said.contains("hunter2"), "{said}");
}
