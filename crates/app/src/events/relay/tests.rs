//! The relay with a real Redis: where it begins, and how far it moves the groups of ADE's own work.

use ade_domain::audit::{AuditActor, AuditBody};
use ade_domain::event::Event;
use ade_domain::webhook::Webhook;
use ade_store::database::{Commit, Versioned, WEBHOOK_CONSUMER, Write};
use ade_testkit::{ManualClock, Redis, test_keys};
use serde_json::{Map, json};
use tempfile::TempDir;
use uuid::Uuid;

use super::*;

const LOCKS: &str = "ade:events:lock";
const GROUP: &str = "webhook-dispatcher";

struct Fixture {
    relay: Relay,
    redis: Redis,
    _folder: TempDir,
}

impl Fixture {
    async fn new() -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let redis = Redis::start().expect("server starts");
        let url = redis.url().parse().expect("a URL");
        let relay = Relay {
            database: Database::open_sqlite(folder.path(), test_keys()).await.expect("opens"),
            clock: Arc::new(ManualClock::new(now().timestamp())),
            tail: EventTail::default(),
            projections: RedisProjections::open(&url).await.expect("connected"),
            name: "one".to_owned(),
        };
        Self { relay, redis, _folder: folder }
    }

    /// Writes an event of locks to the database, and returns its number.
    async fn break_lock(&self) -> u64 {
        let entry = AuditBody {
            entry_id: Uuid::now_v7().to_string(),
            at: now(),
            who: AuditActor::default().into(),
            action: "lock.break".to_owned(),
            object_type: "lock".to_owned(),
            object_id: "resource:service:a".to_owned(),
            task_id: None,
            from: None,
            to: None,
            revision: None,
            digest: None,
            reviewed: None,
            reason: None,
            ticket: None,
            details: Map::new(),
        };
        let events = vec![Event::of(&entry, Vec::new())];
        let (database, audit) = (&self.relay.database, vec![entry]);
        database.commit(Commit { audit, events, ..Commit::default() }).await.expect("written");
        while database.number_entries(now(), 10).await.expect("numbered").has_more {}
        database.audit_head().await.expect("read").number
    }

    /// An event of locks that is not in the database.
    async fn acquire_lock(&self) {
        let entry = StreamEntry {
            number: None,
            event: "lock:acquired".to_owned(),
            at: now(),
            payload: "{}".to_owned(),
            source: "test".to_owned(),
            sequence: Some(1),
        };
        self.relay.projections.append(EventTopic::Lock, &[entry]).await.expect("appended");
    }

    fn stream_length(&self) -> u64 {
        self.redis.query(&["XLEN", LOCKS]).expect("a stream")
    }

    async fn last_entry(&self) -> String {
        self.relay.projections.last_entry(EventTopic::Lock).await.expect("a stream")
    }

    /// The entry up to which the group of webhooks is.
    fn acknowledged(&self) -> String {
        let groups: Vec<BTreeMap<String, Option<String>>> =
            self.redis.query(&["XINFO", "GROUPS", LOCKS]).expect("groups");
        let own = groups.iter().find(|group| group["name"].as_deref() == Some(GROUP)).expect("a group");
        own["last-delivered-id"].clone().expect("an id")
    }
}

fn now() -> Moment {
    Moment::from_micros(1_794_744_000_000_000)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_relay_after_a_rebuild_repeats_no_events() {
    let fixture = Fixture::new().await;
    for _ in 0..3 {
        fixture.break_lock().await;
    }
    fixture.relay.rebuild(|_| {}).await.expect("rebuilt");
    assert_eq!(fixture.stream_length(), 3);
    let mut state = RelayState::default();
    fixture.relay.step(&mut state).await.expect("relayed");
    assert_eq!(fixture.stream_length(), 3, "nothing twice");
    let number = fixture.break_lock().await;
    fixture.relay.step(&mut state).await.expect("relayed");
    assert_eq!(fixture.stream_length(), 4);
    assert!(state.positions.values().all(|position| *position == number), "{:?}", state.positions);
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_advance_in_the_stream_of_locks_while_webhooks_are_behind() {
    let fixture = Fixture::new().await;
    let (database, until) = (&fixture.relay.database, now().plus_ms(60_000));
    let webhook: Webhook = serde_json::from_value(json!({
        "name": "w", "format": "standard", "events": ["*"], "task_types": [], "active": true,
        "created_at": now(), "destination": "d", "masked_url": "d", "url": "sealed",
    }))
    .expect("a webhook");
    let write = Write::document(&Versioned { id: "w".to_owned(), revision: 1, value: webhook }, None);
    database.commit(Commit { writes: vec![write], ..Commit::default() }).await.expect("written");
    database.lease_consumer(WEBHOOK_CONSUMER, "w", 0, now(), until).await.expect("leased");
    let mut state = RelayState::default();
    let mut before: Option<(u64, String)> = None;
    for _ in 0..3 {
        let number = fixture.break_lock().await;
        fixture.relay.step(&mut state).await.expect("relayed");
        // Webhooks have read what was the end before, and not what is the end now.
        let read = before.as_ref().map_or(0, |(number, _)| *number);
        assert!(database.advance_consumer(WEBHOOK_CONSUMER, "w", read, until).await.expect("advanced"));
        fixture.relay.acknowledge_own_groups(&mut state).await.expect("acknowledged");
        let expected = before.map_or_else(|| "0-0".to_owned(), |(_, entry)| entry);
        assert_eq!(fixture.acknowledged(), expected);
        before = Some((number, fixture.last_entry().await));
    }
    // They have read everything; events that are not in the database follow.
    let (number, _) = before.expect("the last one");
    assert!(database.advance_consumer(WEBHOOK_CONSUMER, "w", number, until).await.expect("advanced"));
    for _ in 0..2 {
        fixture.acquire_lock().await;
        fixture.relay.acknowledge_own_groups(&mut state).await.expect("acknowledged");
        assert_eq!(fixture.acknowledged(), fixture.last_entry().await);
    }
}
