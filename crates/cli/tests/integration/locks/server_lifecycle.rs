//! Startup and shutdown of a server: graceful stop on SIGTERM, exclusive use of the data folder, refusal of a corrupt
//! journal, and no lost grant when the disk is full.

use std::fs;
use std::path::{Path, PathBuf};

use crate::locks::server::{Server, TIMEOUT, data_folder, serve};
use ade_client::wire::{AcquireRequest, Lock, LockSpec};
use ade_client::{AcquireOutcome, Client};
use rustix::process::{Resource, Rlimit, Signal, prlimit};

fn request(agent: &str, locks: &[&str]) -> AcquireRequest {
    AcquireRequest {
        locks: locks.iter().map(|lock| LockSpec { lock: (*lock).to_owned(), mode: None }).collect(),
        agent_id: Some(agent.to_owned()),
        ttl_seconds: Some(300.0),
        request_id: Some(format!("of-{agent}-for-{}", locks.join("+"))),
        ..AcquireRequest::default()
    }
}

async fn lock(client: &Client, name: &str) -> Lock {
    client.lock(name).await.expect("answers")
}

/// The newest segment of the journal, to which the server appends.
fn journal_segment(data: &Path) -> PathBuf {
    let files = fs::read_dir(data.join("coordination")).expect("readable");
    let files = files.map(|file| file.expect("readable").path());
    files.filter(|file| file.to_string_lossy().contains("/journal-")).max().expect("a journal")
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_notifies_waiters_and_keeps_all_state() {
    let (_folder, data) = data_folder();
    let mut server = Server::start(&data);
    let client = server.client();
    let many = ["task:1", "resource:db:p", "resource:db:q"];
    client.acquire_locks(&request("ann", &many)).await.expect("granted");
    let ticket = AcquireRequest { queue: true, wait_seconds: Some(300.0), ..request("ben", &["task:1"]) };
    let AcquireOutcome::Queued(ticket) = client.acquire_locks(&ticket).await.expect("queued") else {
        panic!("not a ticket")
    };
    let open = AcquireRequest { wait_seconds: Some(300.0), ..request("cem", &["task:1"]) };
    let waiting = tokio::spawn({
        let (client, open) = (client.clone(), open.clone());
        async move { client.acquire_locks(&open).await }
    });
    let queued = async { while lock(&client, "task:1").await.queue.len() < 2 {} };
    tokio::time::timeout(TIMEOUT, queued).await.expect("both wait");
    let before = (lock(&client, "task:1").await.holders, lock(&client, "resource:db:q").await);
    server.process.send(Signal::TERM);
    let error = waiting.await.expect("ran").expect_err("the server stops");
    assert_eq!(error.code(), Some("STOPPING"), "{error}");
    assert_eq!(server.process.wait().code(), Some(0));
    drop(server);

    let server = Server::start(&data);
    let client = server.client();
    assert_eq!((lock(&client, "task:1").await.holders, lock(&client, "resource:db:q").await), before);
    assert_eq!(client.ticket(&ticket.ticket).await.expect("still there").position, Some(1));
    let again = client.acquire_locks(&request("ann", &many)).await.expect("retry of the same request");
    let AcquireOutcome::Granted(again) = again else { panic!("not granted") };
    assert_eq!(
        again.grants.first().map(|grant| grant.fencing_token),
        before.0.first().map(|holder| holder.fencing_token)
    );
}

#[tokio::test]
async fn rejects_second_server_on_same_data_folder() {
    let (_folder, data) = data_folder();
    let server = Server::start(&data);
    let (code, error) = serve(&data).code_and_error();
    assert_eq!(code, 5, "{error}");
    assert!(error.contains("is used by another ade process"), "{error}");
    assert!(error.contains("stop it, or choose another folder with --data"), "what to do next: {error}");
    server.client().acquire_locks(&request("ann", &["task:1"])).await.expect("the first server still works");
    server.kill();
    let server = Server::start(&data);
    assert_eq!(lock(&server.client(), "task:1").await.holders.len(), 1, "the folder is free after a kill");
}

#[tokio::test]
async fn refuses_to_start_on_corrupt_journal() {
    let (_folder, data) = data_folder();
    let server = Server::start(&data);
    for n in 0..5 {
        server.client().acquire_locks(&request("ann", &[&format!("task:{n}")])).await.expect("granted");
    }
    server.kill();
    let file = journal_segment(&data);
    let intact = fs::read(&file).expect("readable");
    let mut corrupt = intact.clone();
    let middle = corrupt.len() / 2;
    *corrupt.get_mut(middle).expect("long enough") ^= 0x40;
    fs::write(&file, &corrupt).expect("written");
    let (code, error) = serve(&data).code_and_error();
    assert_eq!(code, 5, "{error}");
    assert!(error.contains("is damaged at line") && error.contains("restore the folder"), "{error}");
    assert_eq!(fs::read(&file).expect("readable"), corrupt, "the journal is not modified");
    fs::write(&file, &intact).expect("written");
    let server = Server::start(&data);
    assert_eq!(
        server.client().locks(&[]).await.expect("answers").items.len(),
        5,
        "starts after the journal is restored"
    );
}

/// A file size limit simulates a full disk. The bytes that fit are written, so the last line is truncated.
#[tokio::test]
async fn full_disk_rejects_requests_and_loses_nothing() {
    let (_folder, data) = data_folder();
    let server = Server::start(&data);
    let client = server.client();
    client.acquire_locks(&request("ann", &["task:1"])).await.expect("granted");
    let before = lock(&client, "task:1").await;
    let limit = |to: Option<u64>| {
        let limit = Rlimit { current: to, maximum: None };
        prlimit(Some(server.process.pid()), Resource::Fsize, limit).expect("limited");
    };
    let size = fs::metadata(journal_segment(&data)).expect("there").len();
    limit(Some(size + 40));
    let rejected = client.acquire_locks(&request("ben", &["task:2"])).await.expect_err("the journal is full");
    assert_eq!(rejected.code(), Some("UNAVAILABLE"), "{rejected}");
    let rejected = client.lock("task:2").await.expect_err("the journal is full");
    assert_eq!(rejected.code(), Some("UNAVAILABLE"), "{rejected}");
    limit(None);
    let granted = client.acquire_locks(&request("ben", &["task:2"])).await.expect("the limit is lifted");
    assert_eq!(lock(&client, "task:1").await, before);
    let AcquireOutcome::Granted(granted) = granted else { panic!("not granted") };

    let size = fs::metadata(journal_segment(&data)).expect("there").len();
    limit(Some(size + 40));
    client.acquire_locks(&request("cem", &["task:3"])).await.expect_err("the journal is full");
    server.kill();
    let server = Server::start(&data);
    let client = server.client();
    assert_eq!(lock(&client, "task:1").await, before);
    let holders = lock(&client, "task:2").await.holders;
    assert_eq!(
        holders.first().map(|holder| holder.fencing_token),
        granted.grants.first().map(|g| g.fencing_token)
    );
    client.acquire_locks(&request("cem", &["task:3"])).await.expect("retry of the rejected request");
}

#[test]
fn startup_error_names_unusable_data_folder() {
    let (folder, _) = data_folder();
    let data = folder.path().join("file");
    fs::write(&data, "not a folder").expect("written");
    let (code, error) = serve(&data).code_and_error();
    assert_eq!(code, 5, "{error}");
    assert!(error.contains(&data.display().to_string()), "{error}");
    assert_eq!(fs::read_to_string(&data).expect("readable"), "not a folder");
}
