//! The load of a campaign: agents that acquire locks in every way, and authors and a reviewer who bring tasks through their lifecycle, at
//! any server that answers. They record what servers acknowledged, and accept every refusal.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ade_testkit::deployment::{task, text_field};
use ade_testkit::lock_history::{LockHistory, ObservedGrant};
use ade_testkit::{SeededRng, effort};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

/// Locks that all agents compete for.
const LOCKS: u64 = 3;
/// Between two polls of a ticket, and after a refusal.
const PAUSE: Duration = Duration::from_millis(50);
/// Each task has previews, which are limited per user and minute.
const TASK_INTERVAL: Duration = Duration::from_millis(500);
/// Far above what anything takes.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Of tickets: some end by it.
const WAIT_SECONDS: u64 = 20;

/// How a ticket that was stored ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TicketEnd {
    Granted,
    TimedOut,
    Cancelled,
    /// Redis lost it with its data, or it was not claimed in time.
    Lost,
}

/// What servers acknowledged.
#[derive(Debug, Default)]
pub(super) struct Acknowledged {
    pub(super) locks: LockHistory,
    /// Tickets that were stored, and how they ended.
    pub(super) stored: Mutex<BTreeMap<String, Option<TicketEnd>>>,
    pub(super) stored_releases: AtomicU64,
    /// Tasks with the last step that was acknowledged.
    pub(super) tasks: Mutex<BTreeMap<String, &'static str>>,
    /// Acquired and released, since the start.
    pub(super) lock_cycles: AtomicU64,
}

impl Acknowledged {
    /// Tickets that were stored and have not ended.
    pub(super) fn open_tickets(&self) -> Vec<String> {
        let stored = self.stored.lock().expect("not poisoned");
        stored.iter().filter(|(_, end)| end.is_none()).map(|(ticket, _)| ticket.clone()).collect()
    }
}

/// Requests to any of several servers. No response is no error: the server may have been killed.
#[derive(Debug, Clone)]
struct AnyServer {
    http: reqwest::Client,
    urls: Arc<[String]>,
    token: String,
}

impl AnyServer {
    async fn send(&self, server: u64, method: Method, path: &str, body: &Value) -> Option<(u16, Value)> {
        let at = usize::try_from(server).ok()? % self.urls.len();
        let url = format!("{}/api/v1{path}", self.urls[at]);
        let request = self.http.request(method, url).bearer_auth(&self.token).timeout(RESPONSE_TIMEOUT);
        let response = request.json(body).send().await.ok()?;
        let status = response.status().as_u16();
        let body = response.bytes().await.ok()?;
        Some((status, serde_json::from_slice(&body).unwrap_or_default()))
    }
}

/// Stops with [`stop`](Self::stop): every client ends what it has begun.
pub(super) struct Load {
    pub(super) acknowledged: Arc<Acknowledged>,
    is_stopped: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
}

/// Who the load acts for.
pub(super) struct Callers {
    pub(super) urls: Vec<String>,
    pub(super) bootstrap: String,
    pub(super) author: String,
    pub(super) reviewer: String,
}

impl Load {
    pub(super) fn start(callers: &Callers, agents: u64) -> Self {
        // Every request opens a connection, so that none is stale after a server was killed.
        let http = reqwest::Client::builder().pool_max_idle_per_host(0).build().expect("a client");
        let at_any = |token: &str| AnyServer {
            http: http.clone(),
            urls: callers.urls.clone().into(),
            token: token.to_owned(),
        };
        let (acknowledged, is_stopped) =
            (Arc::new(Acknowledged::default()), Arc::new(AtomicBool::new(false)));
        let mut clients = Vec::new();
        for number in 0..agents {
            let agent = LockAgent {
                servers: at_any(&callers.bootstrap),
                name: format!("agent-{number}"),
                rng: SeededRng::new(effort::seed(), number),
                acknowledged: acknowledged.clone(),
            };
            clients.push(tokio::spawn(agent.run(is_stopped.clone())));
        }
        let people = People {
            author: at_any(&callers.author),
            reviewer: at_any(&callers.reviewer),
            reviewer_id: "rev".to_owned(),
            rng: SeededRng::new(effort::seed(), agents),
            acknowledged: acknowledged.clone(),
        };
        clients.push(tokio::spawn(people.run(is_stopped.clone())));
        Self { acknowledged, is_stopped, clients }
    }

    pub(super) async fn stop(self) -> Arc<Acknowledged> {
        self.is_stopped.store(true, Ordering::SeqCst);
        for client in self.clients {
            client.await.expect("a client got an unexpected response");
        }
        self.acknowledged
    }

    pub(super) fn check_running(&self) {
        assert!(self.clients.iter().all(|client| !client.is_finished()), "a client ended early");
    }
}

struct LockAgent {
    servers: AnyServer,
    name: String,
    rng: SeededRng,
    acknowledged: Arc<Acknowledged>,
}

impl LockAgent {
    async fn run(mut self, is_stopped: Arc<AtomicBool>) {
        let mut round = 0;
        while !is_stopped.load(Ordering::SeqCst) {
            round += 1;
            let lock = format!("resource:item:{}", self.rng.below(LOCKS));
            let mut body = json!({
                "agent_id": self.name, "locks": [{ "lock": lock }], "ttl_seconds": 30,
                "request_id": format!("{}-{round}", self.name),
            });
            match self.rng.below(4) {
                0 => {}
                1 => body["wait_seconds"] = json!(2),
                _ => (body["queue"], body["wait_seconds"]) = (json!(true), json!(WAIT_SECONDS)),
            }
            let requested_at = Instant::now();
            let granted = match self.acquire(&body).await {
                (200, granted) => Some((requested_at, granted)),
                (202, ticket) => self.wait_for_ticket(&ticket).await,
                _ => None,
            };
            match granted {
                Some((requested_at, granted)) => self.hold(&lock, requested_at, &granted).await,
                None => sleep(PAUSE).await,
            }
        }
    }

    /// Repeats a request whose response was lost, under the same id, at any server: it may have been granted, and would then keep its
    /// lock from others until it expires.
    async fn acquire(&mut self, body: &Value) -> (u16, Value) {
        let started = Instant::now();
        loop {
            let server = self.rng.any();
            if let Some(answer) = self.servers.send(server, Method::POST, "/locks/acquire", body).await {
                return answer;
            }
            assert!(started.elapsed() < Duration::from_secs(180), "no server answers");
            sleep(PAUSE).await;
        }
    }

    /// Polls a ticket until it is granted or has ended; now and then it is cancelled.
    async fn wait_for_ticket(&mut self, ticket: &Value) -> Option<(Instant, Value)> {
        let (id, is_stored) = (text_field(ticket, "ticket"), ticket["stored"] == json!(true));
        let path = format!("/locks/tickets/{id}");
        if is_stored {
            self.acknowledged.stored.lock().expect("not poisoned").insert(id.clone(), None);
        }
        let is_cancelled = self.rng.below(6) == 0;
        let started = Instant::now();
        let (end, granted) = loop {
            let requested_at = Instant::now();
            let server = self.rng.any();
            let answer = if is_cancelled {
                self.servers.send(server, Method::DELETE, &path, &Value::Null).await
            } else {
                let claim = format!("{path}/claim");
                self.servers.send(server, Method::POST, &claim, &json!({})).await
            };
            match answer {
                Some((200, granted)) => break (TicketEnd::Granted, Some((requested_at, granted))),
                Some((204, _)) => break (TicketEnd::Cancelled, None),
                Some((409, problem)) if problem["code"] == "CANCELLED" => break (TicketEnd::Cancelled, None),
                Some((423, _)) => break (TicketEnd::TimedOut, None),
                Some((status @ (404 | 409), problem)) => {
                    eprintln!(
                        "ticket {id}, stored {is_stored}, after {:?}: {status} {problem}",
                        started.elapsed()
                    );
                    break (TicketEnd::Lost, None);
                }
                // It waits, or nobody knows at the moment.
                Some((202 | 503, _)) | None => {
                    assert!(started.elapsed() < Duration::from_secs(180), "ticket {id} never ends");
                    sleep(PAUSE).await;
                }
                Some((status, body)) => panic!("{status} {body}"),
            }
        };
        if is_stored {
            self.acknowledged.stored.lock().expect("not poisoned").insert(id, Some(end));
        }
        granted
    }

    /// Holds a lock for a moment and releases it.
    async fn hold(&mut self, lock: &str, requested_at: Instant, granted: &Value) {
        let granted_at = Instant::now();
        let token = granted["grants"][0]["fencing_token"].as_u64().expect("a token");
        let held = json!({ "agent_id": self.name, "locks": [{ "lock": lock, "fencing_token": token }] });
        let mut held_until = None;
        for _ in 0..100 {
            let sent_at = Instant::now();
            let server = self.rng.any();
            match self.servers.send(server, Method::POST, "/locks/release", &held).await {
                Some((200, _)) => {
                    held_until = Some(sent_at);
                    self.acknowledged.lock_cycles.fetch_add(1, Ordering::SeqCst);
                    break;
                }
                Some((202, _)) => {
                    self.acknowledged.stored_releases.fetch_add(1, Ordering::SeqCst);
                    break;
                }
                Some((409, _)) => break,
                // It may have been released: then the next attempt says that it is not held.
                _ => sleep(PAUSE).await,
            }
        }
        let holder = self.name.clone();
        let lock = lock.to_owned();
        let grant = ObservedGrant { lock, holder, token, requested_at, granted_at, held_until };
        self.acknowledged.locks.record(grant);
    }
}

/// An author and a reviewer.
struct People {
    author: AnyServer,
    reviewer: AnyServer,
    reviewer_id: String,
    rng: SeededRng,
    acknowledged: Arc<Acknowledged>,
}

impl People {
    async fn run(mut self, is_stopped: Arc<AtomicBool>) {
        let (mut number, mut turns) = (0, interval(TASK_INTERVAL));
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !is_stopped.load(Ordering::SeqCst) {
            turns.tick().await;
            number += 1;
            if self.lifecycle(number).await.is_none() {
                sleep(PAUSE).await;
            }
        }
    }

    /// Brings a task to its approval. `None` if a step was not acknowledged; the task is left as it is.
    async fn lifecycle(&mut self, number: u64) -> Option<()> {
        let parameters = json!({ "template": "count", "arguments": { "number": number.to_string() } });
        let body =
            task(json!({ "executor": "command", "parameters": parameters, "rollback_strategy": "none" }));
        let server = self.rng.any();
        let created = self.author.send(server, Method::POST, "/tasks", &body).await;
        let id = text_field(&acknowledged(created, 201)?, "task_id");
        self.note(&id, "created");
        let path = format!("/tasks/{id}/submit");
        let submitted = self.author.send(self.rng.any(), Method::POST, &path, &json!({})).await;
        acknowledged(submitted, 202)?;
        self.note(&id, "submitted");
        let path = format!("/tasks/{id}/approvals");
        let found = self.reviewer.send(self.rng.any(), Method::GET, &path, &Value::Null).await;
        let found = acknowledged(found, 200)?;
        let requests = found["items"].as_array().expect("a list");
        let own = requests.iter().find(|request| text_field(request, "reviewer_id") == self.reviewer_id)?;
        let path = format!("/approvals/{}/approve", text_field(own, "approval_id"));
        let body =
            json!({ "reason": "tested", "digest": own["digest"], "scope_digest": own["scope_digest"] });
        let approved = self.reviewer.send(self.rng.any(), Method::POST, &path, &body).await;
        acknowledged(approved, 200)?;
        self.note(&id, "approved");
        Some(())
    }

    fn note(&self, id: &str, step: &'static str) {
        self.acknowledged.tasks.lock().expect("not poisoned").insert(id.to_owned(), step);
    }
}

/// The body of an expected response. Others must be refusals.
fn acknowledged(answer: Option<(u16, Value)>, expected: u16) -> Option<Value> {
    let (status, body) = answer?;
    assert!(status == expected || status == 503 || status == 409, "{status} {body}");
    (status == expected).then_some(body)
}
