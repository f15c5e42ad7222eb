//! Stored requests are executed in order, and none of them keeps the locks of others closed.

use std::sync::Arc;

use ade_domain::Moment;
use ade_domain::lock::{LockLimits, LockRefusal, LockRequestDraft};
use ade_store::embedded::EmbeddedOptions;
use ade_store::redis::RedisOptions;
use ade_store::{Coordination, Database, EmbeddedCoordination, RedisCoordination};
use ade_testkit::{ManualClock, Redis, test_keys};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection as _, SqliteConnection};
use tempfile::TempDir;

use super::*;
use crate::LogEventSink;
use crate::locks::outage::Route;
use crate::locks::{Acquisition, TicketState};

/// Before the others in the order in which locks are acquired.
const FREE: &str = "resource:a-free:1";
const FULL: &str = "resource:full:1";
const OTHER: &str = "resource:other:1";

/// A process that starts, whose lock requests are not admitted yet.
struct Fixture {
    service: LockService,
    folder: TempDir,
}

impl Fixture {
    async fn new(limits: LockLimits) -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let options = EmbeddedOptions { limits, ..EmbeddedOptions::default() };
        let locks = folder.path().join("locks");
        let embedded = EmbeddedCoordination::open(&locks, options, Arc::new(clock())).expect("opens");
        Self::with_coordination(Arc::new(embedded), folder).await
    }

    async fn with_coordination(coordination: Arc<dyn Coordination>, folder: TempDir) -> Self {
        let database = Database::open_sqlite(folder.path(), test_keys()).await.expect("opens");
        let clock: Arc<dyn ade_domain::Clock> = Arc::new(clock());
        let service = LockService::new(coordination, Arc::new(LogEventSink));
        Self { service: service.with_stored_requests(&database, &clock, "one"), folder }
    }

    fn outages(&self) -> &Outages {
        self.service.outages.as_ref().expect("requests are stored")
    }

    fn request(&self, agent: &str, locks: &[&str], queue: bool) -> LockRequest {
        self.request_with_id("1", agent, locks, queue)
    }

    fn request_with_id(&self, id: &str, agent: &str, locks: &[&str], queue: bool) -> LockRequest {
        let draft = LockRequestDraft {
            locks: locks.iter().map(|lock| (*lock, None)).collect(),
            queue,
            request_id: Some(id),
            ..LockRequestDraft::default()
        };
        let holder = Holder::new(agent, None).expect("valid");
        LockRequest::new(holder, &draft, &self.service.limits(), 0).expect("valid")
    }

    /// Acquires locks at once, whatever is stored.
    async fn take(&self, agent: &str, lock: &str) {
        let request = self.request(agent, &[lock], false);
        let mut saga = AcquireSaga::new(request, self.service.server.clone());
        let taken = self.service.advance(&mut saga, Moment::default()).await;
        assert!(matches!(taken, Ok(SagaAction::Ready | SagaAction::Granted(_))), "{taken:?}");
    }

    async fn store(&self, agent: &str, locks: &[&str]) -> LockRequest {
        let request = self.request(agent, locks, true);
        let stored = self.service.store_acquire(&request).await;
        assert!(matches!(stored, Ok(Acquisition::Stored(_))), "{stored:?}");
        request
    }

    /// Makes a stored request unreadable.
    async fn damage(&self, request: &LockRequest) {
        let options = SqliteConnectOptions::new().filename(self.folder.path().join("ade.sqlite3"));
        let mut connection = SqliteConnection::connect_with(&options).await.expect("opens");
        let damage = sqlx::query("UPDATE stored_lock_requests SET body = '{' WHERE request_key = $1");
        damage.bind(request.key.to_string()).execute(&mut connection).await.expect("damaged");
    }

    async fn drain(&self) -> Attempt {
        let phase = self.outages().phase();
        self.service.drain_once(self.outages(), phase, Instant::now()).await.expect("available")
    }

    async fn acquire_directly(&self, agent: &str, lock: &str) -> Result<Acquisition> {
        self.service.acquire(self.request(agent, &[lock], false)).await
    }
}

fn clock() -> ManualClock {
    ManualClock::new(Moment::from_micros(1_000_000).timestamp())
}

fn acquire(key: &str, locks: &[&str]) -> StoredLockRequest {
    let draft = LockRequestDraft {
        locks: locks.iter().map(|lock| (*lock, None)).collect(),
        queue: true,
        request_id: Some(key),
        ..LockRequestDraft::default()
    };
    let holder = Holder::new("ann", None).expect("valid");
    let request = LockRequest::new(holder, &draft, &LockLimits::default(), 0).expect("valid");
    StoredLockRequest {
        key: key.to_owned(),
        command: StoredLockCommand::Acquire(request),
        arrived_at: Moment::default(),
        deadline: None,
        attempts: 0,
        outcome: None,
    }
}

#[test]
fn requests_with_a_common_lock_keep_their_order() {
    let pending = vec![
        acquire("1", &["task:a"]),
        acquire("2", &["task:b"]),
        acquire("3", &["task:a", "task:b"]),
        acquire("4", &["task:c"]),
        acquire("5", &["task:b"]),
        acquire("6", &["task:a"]),
    ];
    let keys = waves(pending).map(|wave| wave.into_iter().map(|stored| stored.key).collect::<Vec<_>>());
    assert_eq!(keys.collect::<Vec<_>>(), [vec!["1", "2", "4"], vec!["3"], vec!["5", "6"]]);
}

#[tokio::test]
async fn a_refused_acquire_ends_with_its_refusal_and_frees_its_other_locks() {
    let full_queue = LockLimits { max_queue: 0, ..LockLimits::default() };
    let open_circuit = LockLimits { breaker_threshold: 1, ..full_queue.clone() };
    for (limits, is_expected) in [
        (
            full_queue,
            (|refusal| matches!(refusal, LockRefusal::QueueFull { .. })) as fn(&LockRefusal) -> bool,
        ),
        (open_circuit, |refusal| matches!(refusal, LockRefusal::CircuitOpen { .. })),
    ] {
        let fixture = Fixture::new(limits).await;
        fixture.take("ann", FULL).await;
        // With a low threshold its refusal opens the circuit.
        fixture.store("ben", &[FULL]).await;
        fixture.drain().await;
        let refused = fixture.store("cem", &[FREE, FULL]).await;
        assert_eq!(fixture.drain().await, Attempt::Ended);
        for polled in [fixture.service.ticket(refused.key).await, fixture.service.claim(refused.key).await] {
            let is_refused = matches!(
                &polled,
                Err(LockError::Failed { failure: AcquireFailure::Refused(lock, refusal), .. })
                    if lock.as_str() == FULL && is_expected(refusal)
            );
            assert!(is_refused, "{polled:?}");
        }
        let direct = fixture.acquire_directly("eve", FREE).await;
        assert!(matches!(direct, Ok(Acquisition::Granted(_))), "{direct:?}");
        // A refusal is not remembered.
        fixture.store("cem", &[FREE, FULL]).await;
        let again = fixture.service.ticket(refused.key).await;
        assert!(matches!(again, Ok(TicketState::Stored(_))), "{again:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_that_reaches_too_few_replicas_keeps_only_its_locks_reserved() {
    let redis = Redis::start().expect("server starts");
    let options = RedisOptions { min_replica_acks: 1, ..RedisOptions::default() };
    let url = redis.url().parse().expect("valid");
    let coordination = Arc::new(RedisCoordination::open(&url, options).await.expect("connected"));
    let fixture = Fixture::with_coordination(coordination, tempfile::tempdir().expect("folder")).await;
    for agent in ["ben", "cem"] {
        fixture.store(agent, &[FREE, OTHER]).await;
    }
    assert_eq!(fixture.drain().await, Attempt::Failed);
    assert_eq!(fixture.outages().phase(), Phase::Open);
    for (lock, is_reserved) in [(FREE, true), (OTHER, true), (FULL, false)] {
        let route = fixture.service.route(&fixture.request("eve", &[lock], false)).await;
        assert_eq!(route.is_err(), is_reserved, "{lock}: {route:?}");
    }
}

#[tokio::test]
async fn an_unreadable_request_ends_with_an_error_and_others_are_executed() {
    let fixture = Fixture::new(LockLimits::default()).await;
    let bad = fixture.store("ann", &[FULL]).await;
    let good = fixture.store("ben", &[FREE]).await;
    fixture.damage(&bad).await;
    assert_eq!(fixture.drain().await, Attempt::Ended);
    assert_eq!(fixture.outages().phase(), Phase::Open);
    let polled = fixture.service.ticket(bad.key).await;
    assert!(matches!(polled, Err(LockError::NotStored(DatabaseError::Corrupt(_)))), "{polled:?}");
    let executed = fixture.service.ticket(good.key).await;
    assert!(matches!(executed, Ok(TicketState::Ready { .. })), "{executed:?}");
}

#[tokio::test]
async fn only_the_process_with_the_lease_ends_an_unreadable_request() {
    let fixture = Fixture::new(LockLimits::default()).await;
    let bad = fixture.store("ann", &[FULL]).await;
    fixture.damage(&bad).await;
    let (database, now) = (fixture.outages().database(), fixture.outages().now());
    assert!(database.lease_lock_requests("two", now, now.plus_ms(LEASE_MS)).await.expect("available"));
    fixture.drain().await;
    let unreadable = database.pending_lock_requests(MAX_STORED).await.expect("available").unreadable;
    assert_eq!(unreadable.len(), 1, "another process may be executing it");
    assert_eq!(fixture.outages().phase(), Phase::Draining, "its locks are not known");
    database.release_lock_requests("two").await.expect("available");
    fixture.drain().await;
    let pending = database.pending_lock_requests(MAX_STORED).await.expect("available");
    assert_eq!(pending, PendingLockRequests::default());
    assert_eq!(fixture.outages().phase(), Phase::Open);
}

#[tokio::test]
async fn a_request_that_is_stored_while_others_are_read_keeps_its_reservation() {
    let fixture = Fixture::new(LockLimits::default()).await;
    let outages = fixture.outages();
    outages.open();
    let reservations = outages.reservations();
    fixture.store("ann", &[FREE]).await;
    // What was read before it was stored.
    outages.set_pending(0, HashSet::new(), reservations);
    let request = fixture.request("ben", &[FREE], false);
    assert!(fixture.service.route(&request).await.is_err(), "nobody overtakes");
    outages.set_pending(0, HashSet::new(), outages.reservations());
    assert_eq!(fixture.service.route(&request).await.expect("executed meanwhile"), Route::Coordination);
}

#[tokio::test]
async fn stored_acquires_count_once_against_the_rate_limit_of_their_agent() {
    let fixture = Fixture::new(LockLimits { acquisitions_per_minute: 2, ..LockLimits::default() }).await;
    for id in ["1", "2", "1", "2", "1"] {
        let stored = fixture.service.store_acquire(&fixture.request_with_id(id, "ann", &[FREE], true)).await;
        assert!(matches!(stored, Ok(Acquisition::Stored(_))), "{stored:?}");
    }
    let refused = fixture.service.store_acquire(&fixture.request_with_id("3", "ann", &[FREE], true)).await;
    assert!(matches!(refused, Err(LockError::RateLimited { .. })), "{refused:?}");
    fixture.store("ben", &[FREE]).await;
}

#[tokio::test]
async fn a_refused_acquire_does_not_keep_other_locks_closed() {
    let full_queue = LockLimits { max_queue: 0, ..LockLimits::default() };
    let open_circuit = LockLimits { breaker_threshold: 1, ..full_queue.clone() };
    for limits in [full_queue, open_circuit] {
        let fixture = Fixture::new(limits).await;
        fixture.take("ann", FULL).await;
        // With a low threshold the refusal of the first opens the circuit for the others, which have to wait for it.
        for agent in ["ben", "cem", "dan"] {
            fixture.store(agent, &[FULL]).await;
        }
        let early = fixture.acquire_directly("eve", OTHER).await;
        assert!(matches!(early, Err(LockError::Unavailable(_))), "stored requests come first: {early:?}");
        fixture.drain().await;
        let direct = fixture.acquire_directly("eve", OTHER).await;
        assert!(matches!(direct, Ok(Acquisition::Granted(_))), "{direct:?}");
    }
}

/// Another process polls a ticket while this one is about to put it into its queue.
#[tokio::test]
async fn a_ticket_that_is_being_executed_is_not_lost() {
    let fixture = Fixture::new(LockLimits::default()).await;
    let request = fixture.store("ann", &[FREE, OTHER]).await;
    let deadline = fixture.service.coordination.now().plus_ms(60_000);
    fixture.service.register(&request, deadline).await.expect("available");
    fixture.outages().open();
    let polled = fixture.service.claim(request.key).await;
    assert!(matches!(polled, Ok(TicketState::Stored(_))), "{polled:?}");
    assert_eq!(fixture.drain().await, Attempt::Ended);
    let polled = fixture.service.claim(request.key).await;
    assert!(matches!(polled, Ok(TicketState::Granted(_))), "{polled:?}");
}

/// Another process executes a ticket after this one has looked for it in coordination, and before it reads the stored request.
#[tokio::test]
async fn a_ticket_that_is_executed_between_two_reads_is_not_lost() {
    let fixture = Fixture::new(LockLimits::default()).await;
    let (claimed, cancelled) = (fixture.store("ann", &[FREE]).await, fixture.store("ben", &[OTHER]).await);
    assert_eq!(fixture.drain().await, Attempt::Ended);
    let polled = fixture.service.poll_unknown(claimed.key, true).await;
    assert!(matches!(polled, Ok(TicketState::Granted(_))), "{polled:?}");
    fixture.service.cancel_unknown(cancelled.key).await.expect("cancelled");
    let polled = fixture.service.claim(cancelled.key).await;
    assert!(
        matches!(polled, Err(LockError::Failed { failure: AcquireFailure::Ended(..), .. })),
        "{polled:?}"
    );
}
