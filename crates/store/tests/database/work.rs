//! Work in the record, on both databases: what is claimed in which order, whose lease lives, who may write, what is kept of what
//! is said.

use std::collections::BTreeSet;

use crate::opened::{Opened, at, id, on_both, person, write};
use ade_domain::people::AuthorSet;
use ade_domain::task::{Asked, Config, Phase, RollbackStrategy, State};
use ade_domain::task::{Begin, Task};
use ade_store::database::{DatabaseError, Renewed, StoredResponse, StoredTask, TaskFilter, Write};

on_both!(
    work_is_claimed_by_rank_then_by_age_and_only_where_it_can_be_done,
    of_many_who_claim_each_task_goes_to_one,
    a_lease_only_grows_and_another_attempt_waits_for_its_end,
    what_is_said_is_kept_in_order_while_it_is_the_present_attempt,
    of_many_who_speak_at_once_each_is_kept_and_none_twice,
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
    let mut review = Task::draft(id(), config, digest, person("ann"), AuthorSet::default(), at(0));
    review.transitions.clear();
    review.state = State::Approved;
    review.since.insert(State::Approved, at(since));
    review.into()
}

fn put(task: &StoredTask, expected: Option<u64>, second: u64) -> Write {
    Write::Task { task: Box::new(task.clone()), expected, at: at(second) }
}

fn begin(worker: &str, until: u64) -> Begin {
    Begin { worker: worker.to_owned(), grants: Vec::new(), lease_until: at(until) }
}

async fn work_is_claimed_by_rank_then_by_age_and_only_where_it_can_be_done(opened: Opened) {
    let record = &opened.record;
    let (low, old, young) = (approved("noop", 1, 1), approved("noop", 50, 10), approved("noop", 50, 20));
    let (mut forced, elsewhere) = (approved("noop", 0, 30), approved("files", 100, 1));
    forced.forced = true;
    let mut later = approved("noop", 100, 5);
    later.apply_after = Some(at(500));
    let all = [&low, &old, &young, &forced, &elsewhere, &later];
    write(record, all.iter().map(|task| put(task, None, 40)).collect()).await.expect("new");
    let places = ["noop".to_owned()];
    let ids =
        |tasks: &[&StoredTask]| -> Vec<String> { tasks.iter().map(|task| task.task_id.clone()).collect() };
    let first = record.first_ready(&places, &[], at(100)).await.expect("read");
    assert_eq!(first.as_ref(), Some(&forced.task_id), "whoever looks claims nothing");
    let claimed = record.claim(&places, &[], "w", at(100), at(110), 3).await.expect("claimed");
    assert_eq!(claimed, ids(&[&forced, &old, &young]));
    let claimed = record.claim(&places, &[], "v", at(100), at(111), 3).await.expect("claimed");
    assert_eq!(claimed, ids(&[&low]), "the others are claimed, not ready, or elsewhere");
    let listed = record.tasks(&TaskFilter::default(), None, 9).await.expect("listed");
    for (of, by) in [(&low, Some("v")), (&old, Some("w")), (&later, None), (&elsewhere, None)] {
        let id = &of.task_id;
        let alone = record.task(id).await.expect("read").expect("there");
        assert_eq!(alone.claimed_by(), by, "{id}");
        let listed = listed.iter().find(|task| task.task_id == *id);
        assert_eq!(listed.and_then(StoredTask::claimed_by), by, "{id} in a list");
    }
    assert!(record.claim(&places, &[], "u", at(100), at(112), 3).await.expect("none").is_empty());
    // Who put it off has it no sooner than others.
    record.put_off(&low.task_id, "v", at(101)).await.expect("put off");
    let none = record.claim(&places, &["other".to_owned()], "u", at(102), at(113), 9).await.expect("none");
    assert!(none.is_empty(), "of another type");
    let of_type = ["schema".to_owned()];
    let claimed = record.claim(&places, &of_type, "u", at(102), at(114), 9).await.expect("claimed");
    assert_eq!(claimed, ids(&[&low]));
    let all_again = record.claim(&places, &[], "t", at(600), at(610), 9).await.expect("claimed");
    assert_eq!(all_again.len(), 5, "claims end by themselves, and what waited is ready");
    assert_eq!(
        record.waiting_work(9).await.expect("counted"),
        [("noop".to_owned(), 5), ("files".to_owned(), 1)]
    );
}

async fn of_many_who_claim_each_task_goes_to_one(opened: Opened) {
    let record = &opened.record;
    let tasks: Vec<StoredTask> = (0..20).map(|number| approved("noop", 50, number)).collect();
    write(record, tasks.iter().map(|task| put(task, None, 30)).collect()).await.expect("new");
    let mut claims = tokio::task::JoinSet::new();
    for worker in 0..8 {
        let record = record.clone();
        claims.spawn(async move {
            let mut own = Vec::new();
            loop {
                let (places, by) = (["noop".to_owned()], format!("w{worker}"));
                let some =
                    record.claim(&places, &[], &by, at(100), at(110 + worker), 3).await.expect("claimed");
                // Everything that this one has so far is found by its name.
                let new: Vec<String> = some.into_iter().filter(|one| !own.contains(one)).collect();
                if new.is_empty() {
                    return own;
                }
                own.extend(new);
            }
        });
    }
    let all: Vec<String> = claims.join_all().await.into_iter().flatten().collect();
    let distinct: BTreeSet<&String> = all.iter().collect();
    assert_eq!(distinct.len(), all.len(), "some went to two");
    assert_eq!(distinct.len(), 20, "some went to nobody");
}

async fn a_lease_only_grows_and_another_attempt_waits_for_its_end(opened: Opened) {
    let record = &opened.record;
    let mut task = approved("noop", 50, 1);
    write(record, vec![put(&task, None, 2)]).await.expect("new");
    let task_id = task.task_id.clone();
    assert_eq!(record.renew(&task_id, 0, at(99)).await.expect("asked"), Renewed::No, "nobody is at it");
    let seen = task.revision;
    let attempt = task.begin(begin("w", 20), at(10)).expect("approved");
    write(record, vec![put(&task, Some(seen), 10)]).await.expect("begun");
    assert_eq!(record.renew(&task_id, attempt, at(30)).await.expect("asked"), Renewed::Yes);
    assert_eq!(record.renew(&task_id, attempt + 1, at(90)).await.expect("asked"), Renewed::No);
    // Whoever decided had not seen that it was renewed: the lease stays as long as it is.
    let seen = task.revision;
    task.started(attempt, None, at(11)).expect("present");
    write(record, vec![put(&task, Some(seen), 11)]).await.expect("started");
    let read = record.task(&task_id).await.expect("read").expect("there");
    assert_eq!(read.execution.as_ref().map(|one| one.lease_until), Some(at(30)));
    assert!(record.silent(at(29), None, 9).await.expect("asked").is_empty());
    let silent = record.silent(at(30), None, 9).await.expect("asked");
    assert_eq!(silent, [(at(30), task_id.clone())]);
    assert!(record.silent(at(30), silent.last(), 9).await.expect("asked").is_empty(), "the next page");
    // Somebody believes that it ended, who looked before it was renewed.
    let mut taken = task.clone();
    let seen = taken.revision;
    taken.execution.as_mut().expect("begun").lease_until = at(20);
    taken.recover(begin("v", 60), true, at(25)).expect("as far as it knows");
    let early = write(record, vec![put(&taken, Some(seen), 25)]).await;
    assert!(matches!(early, Err(DatabaseError::Conflict { .. })), "{early:?}");
    write(record, vec![put(&taken, Some(seen), 31)]).await.expect("its lease has ended");
    assert_eq!(
        record.renew(&task_id, attempt, at(99)).await.expect("asked"),
        Renewed::No,
        "it was taken over"
    );
    assert_eq!(record.renew(&task_id, attempt + 1, at(70)).await.expect("asked"), Renewed::Yes);
    let mut stopped = record.task(&task_id).await.expect("read").expect("there");
    let seen = stopped.revision;
    stopped.revision += 1;
    let asked = Asked { by: person("eve"), reason: "enough".to_owned(), at: at(40) };
    stopped.execution.as_mut().expect("begun").stop = Some(asked);
    write(record, vec![put(&stopped, Some(seen), 40)]).await.expect("asked");
    assert_eq!(record.renew(&task_id, attempt + 1, at(71)).await.expect("asked"), Renewed::Stop);
    let seen = stopped.revision;
    stopped.revision += 1;
    stopped.execution.as_mut().expect("begun").phase = Phase::Ended;
    write(record, vec![put(&stopped, Some(seen), 41)]).await.expect("ended");
    assert_eq!(record.renew(&task_id, attempt + 1, at(99)).await.expect("asked"), Renewed::No, "it is over");
    assert!(record.silent(at(1_000), None, 9).await.expect("asked").is_empty());
}

async fn what_is_said_is_kept_in_order_while_it_is_the_present_attempt(opened: Opened) {
    let record = &opened.record;
    let mut task = approved("noop", 50, 1);
    let attempt = task.begin(begin("w", 20), at(10)).expect("approved");
    write(record, vec![put(&task, None, 10)]).await.expect("new");
    let task_id = task.task_id.as_str();
    assert!(!record.say(task_id, attempt + 1, at(11), "not me", None).await.expect("asked"));
    for (second, text) in [(11, "one\n"), (12, "zwö \u{1F600}\n")] {
        assert!(record.say(task_id, attempt, at(second), text, None).await.expect("kept"));
    }
    let said = record.said(task_id, 0, 10).await.expect("read");
    let texts: Vec<(u64, &str)> = said.iter().map(|line| (line.number, line.text.as_str())).collect();
    assert_eq!(texts, [(1, "one\n"), (2, "zwö \u{1F600}\n")]);
    assert_eq!(record.said(task_id, 1, 10).await.expect("read").len(), 1);
    let long = "x".repeat(600_000);
    for second in 0..4 {
        assert!(record.say(task_id, attempt, at(20 + second), &long, None).await.expect("taken"));
    }
    let said = record.said(task_id, 0, 100).await.expect("read");
    assert_eq!(said.len(), 4, "there is an end");
    assert!(said.last().is_some_and(|line| line.text.contains("not kept here")));
}

async fn of_many_who_speak_at_once_each_is_kept_and_none_twice(opened: Opened) {
    let record = &opened.record;
    let mut task = approved("noop", 50, 1);
    let attempt = task.begin(begin("w", 20), at(10)).expect("approved");
    write(record, vec![put(&task, None, 10)]).await.expect("new");
    let mut talk = tokio::task::JoinSet::new();
    for number in 0..40 {
        let (record, task_id) = (record.clone(), task.task_id.clone());
        // Each request comes in twice.
        let answer = StoredResponse { asked: String::new(), status: 204, body: serde_json::Value::Null };
        let kept = Some(("agent:w".to_owned(), format!("key-{}", number / 2), at(11), answer));
        talk.spawn(async move { record.say(&task_id, attempt, at(11), "said\n", kept).await });
    }
    let said = talk.join_all().await;
    assert_eq!(said.iter().filter(|said| **said == Ok(true)).count(), 20, "{said:?}");
    assert_eq!(said.iter().filter(|said| **said == Err(DatabaseError::AnsweredAlready)).count(), 20);
    let lines = record.said(&task.task_id, 0, 100).await.expect("read");
    let numbers: Vec<u64> = lines.iter().map(|line| line.number).collect();
    assert_eq!(numbers, (1..=20).collect::<Vec<u64>>());
    let answer = record.answer("agent:w", "key-0").await.expect("read").expect("kept");
    assert_eq!(answer.status, 204);
}
