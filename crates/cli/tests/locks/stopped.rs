//! How a server ends and begins: gracefully on SIGTERM, alone on its folder, never on a damaged journal, and without
//! losing an answer when the disk is full.

use std::fs;
use std::path::{Path, PathBuf};

use crate::server::{PATIENCE, Server, folder, serve};
use ade_client::wire::{AcquireRequest, Lock, LockAsk};
use ade_client::{Acquired, Client};
use rustix::process::{Resource, Rlimit, Signal, prlimit};

fn ask(who: &str, locks: &[&str]) -> AcquireRequest {
    AcquireRequest {
        locks: locks.iter().map(|lock| LockAsk { lock: (*lock).to_owned(), mode: None }).collect(),
        agent_id: Some(who.to_owned()),
        ttl_seconds: Some(300.0),
        request_id: Some(format!("of-{who}-for-{}", locks.join("+"))),
        ..AcquireRequest::default()
    }
}

async fn lock(client: &Client, name: &str) -> Lock {
    client.lock(name).await.expect("answers")
}

/// The segment of the journal that is written to.
fn journal(data: &Path) -> PathBuf {
    let files = fs::read_dir(data.join("coordination")).expect("readable");
    let files = files.map(|file| file.expect("readable").path());
    files.filter(|file| file.to_string_lossy().contains("/journal-")).max().expect("a journal")
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_tells_who_waits_and_keeps_everything() {
    let (_folder, data) = folder();
    let mut server = Server::start(&data);
    let client = server.client();
    let many = ["task:1", "resource:db:p", "resource:db:q"];
    client.acquire(&ask("ann", &many)).await.expect("granted");
    let ticket = AcquireRequest { queue: true, wait_seconds: Some(300.0), ..ask("ben", &["task:1"]) };
    let Acquired::Ticket(ticket) = client.acquire(&ticket).await.expect("queued") else {
        panic!("not a ticket")
    };
    let open = AcquireRequest { wait_seconds: Some(300.0), ..ask("cem", &["task:1"]) };
    let waiting = tokio::spawn({
        let (client, open) = (client.clone(), open.clone());
        async move { client.acquire(&open).await }
    });
    let queued = async { while lock(&client, "task:1").await.queue.len() < 2 {} };
    tokio::time::timeout(PATIENCE, queued).await.expect("it waits");
    let before = (lock(&client, "task:1").await.holders, lock(&client, "resource:db:q").await);
    server.process.send(Signal::TERM);
    let told = waiting.await.expect("ran").expect_err("the server stops");
    assert_eq!(told.code(), Some("STOPPING"), "{told}");
    assert_eq!(server.process.end().code(), Some(0));
    drop(server);

    let server = Server::start(&data);
    let client = server.client();
    assert_eq!((lock(&client, "task:1").await.holders, lock(&client, "resource:db:q").await), before);
    assert_eq!(client.ticket(&ticket.ticket).await.expect("still there").position, Some(1));
    let again = client.acquire(&ask("ann", &many)).await.expect("a repetition");
    let Acquired::Granted(again) = again else { panic!("granted before") };
    assert_eq!(
        again.grants.first().map(|grant| grant.fencing_token),
        before.0.first().map(|by| by.fencing_token)
    );
}

#[tokio::test]
async fn a_folder_belongs_to_one_server() {
    let (_folder, data) = folder();
    let server = Server::start(&data);
    let (code, error) = serve(&data).code_and_error();
    assert_eq!(code, 5, "{error}");
    assert!(error.contains("is used by another ade process"), "{error}");
    assert!(error.contains("stop it, or choose another folder with --data"), "what to do next: {error}");
    server.client().acquire(&ask("ann", &["task:1"])).await.expect("the first one goes on");
    server.kill();
    let server = Server::start(&data);
    assert_eq!(lock(&server.client(), "task:1").await.holders.len(), 1, "a kill leaves the folder free");
}

#[tokio::test]
async fn a_damaged_journal_is_refused() {
    let (_folder, data) = folder();
    let server = Server::start(&data);
    for n in 0..5 {
        server.client().acquire(&ask("ann", &[&format!("task:{n}")])).await.expect("granted");
    }
    server.kill();
    let file = journal(&data);
    let whole = fs::read(&file).expect("readable");
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    *damaged.get_mut(middle).expect("long enough") ^= 0x40;
    fs::write(&file, &damaged).expect("written");
    let (code, error) = serve(&data).code_and_error();
    assert_eq!(code, 5, "{error}");
    assert!(error.contains("is damaged at line") && error.contains("restore the folder"), "{error}");
    assert_eq!(fs::read(&file).expect("readable"), damaged, "it is left as it is");
    fs::write(&file, &whole).expect("written");
    let server = Server::start(&data);
    assert_eq!(server.client().locks(&[]).await.expect("answers").items.len(), 5, "the copy is whole");
}

/// A full disk, by the limit on the size of files; the last bytes that fit are written, so a line is cut.
#[tokio::test]
async fn a_full_disk_refuses_and_loses_nothing() {
    let (_folder, data) = folder();
    let server = Server::start(&data);
    let client = server.client();
    client.acquire(&ask("ann", &["task:1"])).await.expect("granted");
    let before = lock(&client, "task:1").await;
    let limit = |to: Option<u64>| {
        let limit = Rlimit { current: to, maximum: None };
        prlimit(Some(server.process.pid()), Resource::Fsize, limit).expect("limited");
    };
    let size = fs::metadata(journal(&data)).expect("there").len();
    limit(Some(size + 40));
    let refused = client.acquire(&ask("ben", &["task:2"])).await.expect_err("it cannot be written");
    assert_eq!(refused.code(), Some("UNAVAILABLE"), "{refused}");
    let refused = client.lock("task:2").await.expect_err("nor shown");
    assert_eq!(refused.code(), Some("UNAVAILABLE"), "{refused}");
    limit(None);
    let granted = client.acquire(&ask("ben", &["task:2"])).await.expect("there is room again");
    assert_eq!(lock(&client, "task:1").await, before);
    let Acquired::Granted(granted) = granted else { panic!("not granted") };

    let size = fs::metadata(journal(&data)).expect("there").len();
    limit(Some(size + 40));
    client.acquire(&ask("cem", &["task:3"])).await.expect_err("it cannot be written");
    server.kill();
    let server = Server::start(&data);
    let client = server.client();
    assert_eq!(lock(&client, "task:1").await, before);
    let holders = lock(&client, "task:2").await.holders;
    assert_eq!(holders.first().map(|by| by.fencing_token), granted.grants.first().map(|g| g.fencing_token));
    client.acquire(&ask("cem", &["task:3"])).await.expect("a repetition of what was not answered");
}

#[test]
fn a_folder_that_cannot_be_used_is_named() {
    let (folder, _) = folder();
    let data = folder.path().join("file");
    fs::write(&data, "not a folder").expect("written");
    let (code, error) = serve(&data).code_and_error();
    assert_eq!(code, 5, "{error}");
    assert!(error.contains(&data.display().to_string()), "{error}");
    assert_eq!(fs::read_to_string(&data).expect("readable"), "not a folder");
}
