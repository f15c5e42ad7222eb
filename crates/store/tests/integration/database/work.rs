//! The work queue: the order of claims, leases, guarded commits and task logs.

use std::collections::BTreeSet;

use crate::database::fixture::{TestDatabase, at, id, keyed, on_both_databases, person, write};
use ade_domain::people::AuthorSet;
use ade_domain::task::{AdminRequest, Config, Phase, RollbackStrategy, TaskState};
use ade_domain::task::{AttemptStart, Task};
use ade_store::database::{
    DatabaseError, LeaseRenewal, ReadyFilter, StoredResponse, StoredTask, TaskFilter, Write,
};

on_both_databases!(
    claims_by_priority_then_age_within_a_queue,
    concurrent_claims_never_share_a_task,
    claim_ends_with_the_next_revision,
    lease_only_grows_and_a_new_attempt_waits_for_its_expiry,
    logs_output_of_the_current_attempt_in_order,
    concurrent_log_writes_are_stored_once_each,
);

fn approved(executor: &str, priority: u8, since: u64) -> StoredTask {
    let config = Config {
        task_type: "schema".to_owned(),
        version: "1".to_owned(),
        description: "a change".to_owned(),
        executor: executor.to_owned(),
        parameters: serde_json::Map::new(),
        resources: Vec::new(),
        rollback_strategy: RollbackStrategy::Automatic,
        timeout_seconds: 60,
        priority,
    };
    let digest = config.digest().expect("canonical");
    let mut task = Task::draft(id(), config, digest, person("ann"), AuthorSet::default(), at(0));
    task.transitions.clear();
    task.state = TaskState::Approved;
    task.entered_at.insert(TaskState::Approved, at(since));
    task.into()
}

fn put(task: &StoredTask, expected: Option<u64>, second: u64) -> Write {
    Write::Task { task: Box::new(task.clone()), expected, at: at(second) }
}

fn begin(worker: &str, until: u64) -> AttemptStart {
    AttemptStart { worker: worker.to_owned(), grants: Vec::new(), lease_until: at(until) }
}

async fn claims_by_priority_then_age_within_a_queue(fixture: TestDatabase) {
    let database = &fixture.database;
    let (low, old, young) = (approved("noop", 1, 1), approved("noop", 50, 10), approved("noop", 50, 20));
    let (mut forced, elsewhere) = (approved("noop", 0, 30), approved("files", 100, 1));
    forced.forced = true;
    let mut later = approved("noop", 100, 5);
    later.apply_after = Some(at(500));
    // Approved a moment ago, and held: not even force gets it earlier.
    let mut held = approved("noop", 100, 90);
    (held.held_until, held.forced) = (Some(at(550)), true);
    let all = [&low, &old, &young, &forced, &elsewhere, &later, &held];
    write(database, all.iter().map(|task| put(task, None, 40)).collect()).await.expect("inserted");
    let places = ["noop".to_owned()];
    let ids =
        |tasks: &[&StoredTask]| -> Vec<String> { tasks.iter().map(|task| task.task_id.clone()).collect() };
    let in_queue = ReadyFilter { queue: "noop", ..ReadyFilter::default() };
    let first = database.ready_tasks(in_queue, at(100), 1).await.expect("read");
    assert_eq!(first[0].task_id, forced.task_id, "does not claim");
    let others = ReadyFilter { excluded_authors: &[person("ann")], ..in_queue };
    let others = database.ready_tasks(others, at(100), 1).await.expect("read");
    assert_eq!(others, [], "all are of one author");
    let mut listed = first;
    while let Some(last) = listed.last().cloned() {
        let next = ReadyFilter { after: Some(&last), ..in_queue };
        let page = database.ready_tasks(next, at(100), 1).await.expect("read");
        if page.is_empty() {
            break;
        }
        listed.extend(page);
    }
    let listed: Vec<String> = listed.into_iter().map(|task| task.task_id).collect();
    assert_eq!(listed, ids(&[&forced, &old, &young, &low]), "page by page");
    let claimed = database.claim_tasks(&places, &[], "w", at(100), at(110), 3).await.expect("claimed");
    assert_eq!(claimed, ids(&[&forced, &old, &young]));
    let claimed = database.claim_tasks(&places, &[], "v", at(100), at(111), 3).await.expect("claimed");
    assert_eq!(claimed, ids(&[&low]), "the others are claimed, not ready, or in another queue");
    let listed = database.tasks(&TaskFilter::default(), None, 9).await.expect("listed");
    for (of, by) in [(&low, Some("v")), (&old, Some("w")), (&later, None), (&elsewhere, None)] {
        let id = &of.task_id;
        let loaded = database.task(id).await.expect("read").expect("exists");
        assert_eq!(loaded.claimed_by(), by, "{id}");
        let listed = listed.iter().find(|task| task.task_id == *id);
        assert_eq!(listed.and_then(StoredTask::claimed_by), by, "{id} in a list");
    }
    assert!(database.claim_tasks(&places, &[], "u", at(100), at(112), 3).await.expect("none").is_empty());
    // A worker that postpones a claim does not get it earlier than others.
    database.postpone_claim(&low.task_id, "v", at(101)).await.expect("postponed");
    let none =
        database.claim_tasks(&places, &["other".to_owned()], "u", at(102), at(113), 9).await.expect("none");
    assert!(none.is_empty(), "of another type");
    let of_type = ["schema".to_owned()];
    let claimed = database.claim_tasks(&places, &of_type, "u", at(102), at(114), 9).await.expect("claimed");
    assert_eq!(claimed, ids(&[&low]));
    assert_eq!(database.claim_task(&held.task_id, "u", at(549), at(560)).await, Ok(false), "nor by its id");
    let ready = database.ready_tasks(in_queue, at(549), 9).await.expect("read");
    assert!(ready.iter().all(|task| task.task_id != held.task_id), "{ready:?}");
    let ready = database.ready_tasks(in_queue, at(550), 1).await.expect("read");
    assert_eq!(ready[0].task_id, held.task_id, "its hold is over");
    let all_again = database.claim_tasks(&places, &[], "t", at(600), at(610), 9).await.expect("claimed");
    assert_eq!(all_again.len(), 6, "claims expire, and the delayed and held tasks are ready");
    assert_eq!(
        database.queued_work(9).await.expect("counted"),
        [("noop".to_owned(), 6), ("files".to_owned(), 1)]
    );
}

async fn concurrent_claims_never_share_a_task(fixture: TestDatabase) {
    let database = &fixture.database;
    let tasks: Vec<StoredTask> = (0..20).map(|number| approved("noop", 50, number)).collect();
    write(database, tasks.iter().map(|task| put(task, None, 30)).collect()).await.expect("inserted");
    let mut claims = tokio::task::JoinSet::new();
    for worker in 0..8 {
        let database = database.clone();
        claims.spawn(async move {
            let mut claimed = Vec::new();
            loop {
                let (places, by) = (["noop".to_owned()], format!("w{worker}"));
                let page = database
                    .claim_tasks(&places, &[], &by, at(100), at(110 + worker), 3)
                    .await
                    .expect("claimed");
                if page.is_empty() {
                    return claimed;
                }
                claimed.extend(page);
            }
        });
    }
    let all: Vec<String> = claims.join_all().await.into_iter().flatten().collect();
    let distinct: BTreeSet<&String> = all.iter().collect();
    assert_eq!(distinct.len(), all.len(), "a task was claimed twice");
    assert_eq!(distinct.len(), 20, "a task was not claimed");
}

async fn claim_ends_with_the_next_revision(fixture: TestDatabase) {
    let database = &fixture.database;
    let mut task = approved("noop", 50, 1);
    write(database, vec![put(&task, None, 2)]).await.expect("inserted");
    let id = task.task_id.clone();
    let claim = async |by: &str, now| database.claim_task(&id, by, at(now), at(now + 100)).await;
    assert_eq!((claim("w", 0).await, claim("w", 10).await), (Ok(false), Ok(true)), "not ready before");
    assert_eq!(claim("v", 20).await, Ok(false), "claimed");
    let seen = task.revision;
    // As with a comment, which changes nothing about the task.
    write(database, vec![put(&task, Some(seen), 20)]).await.expect("written");
    assert_eq!(claim("v", 20).await, Ok(false), "still claimed");
    task.revision += 1;
    write(database, vec![put(&task, Some(seen), 30)]).await.expect("changed");
    assert_eq!(database.task(&id).await.expect("read").expect("exists").claimed_by(), None);
    assert_eq!(database.postpone_claim(&id, "w", at(500)).await, Ok(false), "lost");
    assert_eq!(claim("v", 30).await, Ok(true));
    assert_eq!(database.postpone_claim(&id, "w", at(500)).await, Ok(false), "of another worker");
    assert_eq!(database.postpone_claim(&id, "v", at(40)).await, Ok(true));
    assert_eq!((claim("w", 39).await, claim("w", 40).await), (Ok(false), Ok(true)), "postponed until then");
    let delete = Write::DeleteTask { task_id: id.clone(), expected: task.revision };
    write(database, vec![delete]).await.expect("deleted");
    // A task that comes back, as from an archive, is not claimed.
    write(database, vec![put(&task, None, 50)]).await.expect("inserted");
    assert_eq!(claim("u", 60).await, Ok(true));
}

async fn lease_only_grows_and_a_new_attempt_waits_for_its_expiry(fixture: TestDatabase) {
    let database = &fixture.database;
    let mut task = approved("noop", 50, 1);
    write(database, vec![put(&task, None, 2)]).await.expect("inserted");
    let task_id = task.task_id.clone();
    assert_eq!(
        database.renew_lease(&task_id, 0, at(99)).await.expect("succeeds"),
        LeaseRenewal::Lost,
        "no attempt is running"
    );
    let seen = task.revision;
    let attempt = task.begin_apply(begin("w", 20), at(10)).expect("approved");
    write(database, vec![put(&task, Some(seen), 10)]).await.expect("running");
    assert_eq!(
        database.renew_lease(&task_id, attempt, at(30)).await.expect("succeeds"),
        LeaseRenewal::Renewed
    );
    assert_eq!(
        database.renew_lease(&task_id, attempt + 1, at(90)).await.expect("succeeds"),
        LeaseRenewal::Lost
    );
    // A commit that has not seen the renewal does not shorten the lease.
    let seen = task.revision;
    task.mark_started(attempt, None, at(11)).expect("current attempt");
    write(database, vec![put(&task, Some(seen), 11)]).await.expect("started");
    let read = database.task(&task_id).await.expect("read").expect("exists");
    assert_eq!(read.execution.as_ref().map(|execution| execution.lease_until), Some(at(30)));
    assert!(database.tasks_with_expired_lease(at(29), None, 9).await.expect("succeeds").is_empty());
    let expired = database.tasks_with_expired_lease(at(30), None, 9).await.expect("succeeds");
    assert_eq!(expired, [(at(30), task_id.clone())]);
    assert!(
        database.tasks_with_expired_lease(at(30), expired.last(), 9).await.expect("succeeds").is_empty(),
        "the next page"
    );
    // Another worker has not seen the renewal, and believes that the lease has expired.
    let mut taken = task.clone();
    let seen = taken.revision;
    taken.execution.as_mut().expect("running").lease_until = at(20);
    taken.recover(begin("v", 60), true, at(25)).expect("expired in its view");
    let early = write(database, vec![put(&taken, Some(seen), 25)]).await;
    assert!(matches!(early, Err(DatabaseError::Conflict { .. })), "{early:?}");
    write(database, vec![put(&taken, Some(seen), 31)]).await.expect("the lease has expired");
    assert_eq!(
        database.renew_lease(&task_id, attempt, at(99)).await.expect("succeeds"),
        LeaseRenewal::Lost,
        "another attempt has replaced it"
    );
    assert_eq!(
        database.renew_lease(&task_id, attempt + 1, at(70)).await.expect("succeeds"),
        LeaseRenewal::Renewed
    );
    let mut stopped = database.task(&task_id).await.expect("read").expect("exists");
    let seen = stopped.revision;
    stopped.revision += 1;
    let stop = AdminRequest { by: person("eve"), reason: "wrong target".to_owned(), at: at(40) };
    stopped.execution.as_mut().expect("running").stop = Some(stop);
    write(database, vec![put(&stopped, Some(seen), 40)]).await.expect("succeeds");
    assert_eq!(
        database.renew_lease(&task_id, attempt + 1, at(71)).await.expect("succeeds"),
        LeaseRenewal::StopRequested
    );
    let seen = stopped.revision;
    stopped.revision += 1;
    stopped.execution.as_mut().expect("running").phase = Phase::Ended;
    write(database, vec![put(&stopped, Some(seen), 41)]).await.expect("written");
    assert_eq!(
        database.renew_lease(&task_id, attempt + 1, at(99)).await.expect("succeeds"),
        LeaseRenewal::Lost,
        "the attempt has ended"
    );
    assert!(database.tasks_with_expired_lease(at(1_000), None, 9).await.expect("succeeds").is_empty());
}

async fn logs_output_of_the_current_attempt_in_order(fixture: TestDatabase) {
    let database = &fixture.database;
    let mut task = approved("noop", 50, 1);
    let attempt = task.begin_apply(begin("w", 20), at(10)).expect("approved");
    write(database, vec![put(&task, None, 10)]).await.expect("inserted");
    let task_id = task.task_id.as_str();
    assert!(
        !database.append_task_log(task_id, attempt + 1, at(11), "not current", None).await.expect("succeeds")
    );
    for (second, text) in [(11, "one\n"), (12, "zwö \u{1F600}\n")] {
        assert!(database.append_task_log(task_id, attempt, at(second), text, None).await.expect("stored"));
    }
    let log = database.task_log(task_id, 0, 10).await.expect("read");
    let texts: Vec<(u64, &str)> = log.iter().map(|line| (line.number, line.text.as_str())).collect();
    assert_eq!(texts, [(1, "one\n"), (2, "zwö \u{1F600}\n")]);
    assert_eq!(database.task_log(task_id, 1, 10).await.expect("read").len(), 1);
    assert_eq!(database.task_log_end(task_id, 10).await.expect("read"), log);
    assert_eq!(database.task_log_end(task_id, 1).await.expect("read"), log.get(1..).unwrap_or_default());
    let long = "x".repeat(600_000);
    for second in 0..4 {
        assert!(
            database.append_task_log(task_id, attempt, at(20 + second), &long, None).await.expect("accepted")
        );
    }
    let log = database.task_log(task_id, 0, 100).await.expect("read");
    assert_eq!(log.len(), 4, "the log is limited");
    assert!(log.last().is_some_and(|line| line.text.contains("log truncated")));
}

async fn concurrent_log_writes_are_stored_once_each(fixture: TestDatabase) {
    let database = &fixture.database;
    let mut task = approved("noop", 50, 1);
    let attempt = task.begin_apply(begin("w", 20), at(10)).expect("approved");
    write(database, vec![put(&task, None, 10)]).await.expect("inserted");
    let mut writers = tokio::task::JoinSet::new();
    for number in 0..40 {
        let (database, task_id) = (database.clone(), task.task_id.clone());
        // Each request is sent twice.
        let stored = StoredResponse { request_digest: String::new(), outcome: serde_json::Value::Null };
        let response = Some(keyed("agent:w", &format!("key-{}", number / 2), 11, stored));
        writers.spawn(async move {
            database.append_task_log(&task_id, attempt, at(11), "output\n", response).await
        });
    }
    let outcomes = writers.join_all().await;
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Ok(true)).count(), 20, "{outcomes:?}");
    assert_eq!(
        outcomes.iter().filter(|outcome| **outcome == Err(DatabaseError::DuplicateIdempotencyKey)).count(),
        20
    );
    let lines = database.task_log(&task.task_id, 0, 100).await.expect("read");
    let numbers: Vec<u64> = lines.iter().map(|line| line.number).collect();
    assert_eq!(numbers, (1..=20).collect::<Vec<u64>>());
    let response = database.stored_response("agent:w", "key-0").await.expect("read").expect("stored");
    assert_eq!(response.outcome, serde_json::Value::Null);
}
