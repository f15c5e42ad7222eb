//! The record does the same on SQLite and on PostgreSQL: every scenario runs on both, against real databases.

use std::collections::{BTreeMap, BTreeSet};

use ade_domain::Moment;
use ade_domain::approval::ApprovalStatus;
use ade_domain::audit::{AuditActor, AuditBody, Head, Walk};
use ade_domain::people::{AuthorSet, User};
use ade_domain::risk::History;
use ade_domain::task::Task;
use ade_domain::task::{Config, Metadata, Resource, ResourceMode, RollbackStrategy, State};
use ade_store::database::{
    ApprovalFilter, AuditFilter, Comment, Commit, Counts, DatabaseError, DocumentKind, Event, StoredDocument,
    StoredResponse, StoredTask, StoredUser, TaskFilter, UserStats, Write,
};
use serde_json::json;

use crate::opened::{Opened, at, id, on_both, person, write};

on_both!(
    a_task_comes_back_as_it_was_with_its_requests,
    whoever_saw_an_older_revision_changes_nothing,
    of_many_who_race_one_wins,
    lists_go_by_every_filter_and_by_pages,
    rules_are_guarded_by_their_revisions,
    entries_are_numbered_without_gaps_and_chained_by_one,
    what_was_numbered_cannot_be_changed,
    what_was_written_first_has_the_first_number,
    an_answer_is_stored_once,
    of_many_with_the_same_request_one_is_carried_out,
    what_is_counted_is_what_is_there,
    everything_or_nothing,
    what_was_read_is_written_back_where_it_differs,
    people_and_rules_give_the_record_another_mark_and_nothing_else_does,
);

pub(crate) fn task(author: &str, task_type: &str, resource: &str, tag: &str) -> StoredTask {
    let resource = Resource {
        resource_type: "database".to_owned(),
        id: resource.to_owned(),
        mode: ResourceMode::Exclusive,
    };
    let config = Config {
        task_type: task_type.to_owned(),
        version: "1".to_owned(),
        description: "ünï \"{}\" \n".to_owned(),
        executor: "noop".to_owned(),
        parameters: json!({ "a": [1, 2.5, null, "x"] }).as_object().cloned().expect("an object"),
        resources: vec![resource],
        rollback_strategy: RollbackStrategy::Manual,
        timeout_seconds: 60,
        priority: 7,
    };
    let digest = config.digest().expect("canonical");
    let mut review = Task::draft(id(), config, digest, person(author), AuthorSet::default(), at(0));
    review.transitions.clear();
    let metadata = Metadata { tags: vec![tag.to_owned()], ..Metadata::default() };
    Task { metadata, ..review }.into()
}

pub(crate) fn put(task: &StoredTask, expected: Option<u64>) -> Write {
    Write::Task { task: Box::new(task.clone()), expected, at: Moment::from_micros(0) }
}

fn entry(action: &str, actor: Option<&str>, task_id: Option<&str>, second: u64) -> AuditBody {
    AuditBody {
        entry_id: id(),
        at: at(second),
        who: AuditActor { user_id: actor.map(person), ..AuditActor::default() },
        action: action.to_owned(),
        object_type: "task".to_owned(),
        object_id: "t".to_owned(),
        task_id: task_id.map(str::to_owned),
        from: Some(State::Draft),
        to: Some(State::Submitted),
        revision: Some(2),
        digest: None,
        reason: Some("ünï".to_owned()),
        ticket: None,
        details: serde_json::Map::new(),
    }
}

fn event(kind: &str) -> Event {
    Event {
        event_id: id(),
        kind: kind.to_owned(),
        at: at(1),
        task_id: None,
        tell: vec!["ann".to_owned()],
        data: json!({}),
    }
}

async fn a_task_comes_back_as_it_was_with_its_requests(opened: Opened) {
    let record = &opened.record;
    let mut written = task("ann", "schema", "orders", "urgent");
    write(record, vec![put(&written, None)]).await.expect("new");
    assert_eq!(record.task(&written.task_id).await.expect("read"), Some(written.clone()));
    assert_eq!(record.task(&id()).await.expect("read"), None);
    written.approvals = vec![approval(&written.task, "rob", 500), approval(&written.task, "sue", 900)];
    written.revision += 1;
    write(record, vec![put(&written, Some(1))]).await.expect("guarded");
    assert_eq!(opened.again().await.task(&written.task_id).await.expect("read"), Some(written.clone()));
    let of = record.task_of_approval(&written.approvals[0].approval_id).await.expect("read");
    assert_eq!(of.as_deref(), Some(written.task_id.as_str()));
    let with = record.task_with(&written.approvals[1].approval_id).await.expect("read");
    assert_eq!(with, Some(written.clone()));
    assert_eq!(record.task_with(&id()).await.expect("read"), None);
    let comment = Comment {
        comment_id: id(),
        task_id: written.task_id.clone(),
        author_id: person("rob"),
        text: "why?".to_owned(),
        created_at: at(3),
    };
    write(record, vec![Write::Comment(comment.clone())]).await.expect("said");
    assert_eq!(record.comments(&written.task_id).await.expect("read"), [comment]);
    let delete = Write::DeleteTask { task_id: written.task_id.clone(), expected: 2 };
    write(record, vec![delete]).await.expect("deleted");
    assert_eq!(record.task(&written.task_id).await.expect("read"), None);
    assert!(record.comments(&written.task_id).await.expect("read").is_empty());
}

pub(crate) fn approval(review: &Task, reviewer: &str, score: u32) -> ade_domain::approval::Approval {
    ade_domain::approval::Approval {
        approval_id: id(),
        task_id: review.task_id.clone(),
        revision: 1,
        reviewer_id: person(reviewer),
        reviewer_name: "Rob".to_owned(),
        policies: vec!["default".to_owned()],
        stands_for: BTreeSet::from([person(reviewer)]),
        delegation_chain: Vec::new(),
        follows: None,
        status: ApprovalStatus::Pending,
        priority: ade_domain::approval::policy::Priority::Normal,
        score,
        delegated_to: None,
        created_at: at(1),
        due_at: at(u64::from(score)),
        escalation_level: 0,
        raised: 0,
        digest: review.digest,
        fingerprint: None,
        responded_at: None,
        response_action: None,
        response_reason: None,
        reviewed_by: None,
        why: vec!["because".to_owned()],
    }
}

async fn whoever_saw_an_older_revision_changes_nothing(opened: Opened) {
    let record = &opened.record;
    let mut written = task("ann", "schema", "orders", "urgent");
    write(record, vec![put(&written, None)]).await.expect("new");
    written.revision = 2;
    write(record, vec![put(&written, Some(1))]).await.expect("as it was seen");
    let mut late = written.clone();
    late.state = State::Cancelled;
    let refused = write(record, vec![put(&late, Some(1))]).await;
    assert_eq!(refused, Err(DatabaseError::Conflict { what: format!("task {}", late.task_id) }));
    assert_eq!(record.task(&late.task_id).await.expect("read"), Some(written.clone()));
    assert!(matches!(write(record, vec![put(&written, None)]).await, Err(DatabaseError::Exists { .. })));
}

async fn of_many_who_race_one_wins(opened: Opened) {
    let record = opened.record.clone();
    let written = task("ann", "schema", "orders", "urgent");
    write(&record, vec![put(&written, None)]).await.expect("new");
    let mut racers = Vec::new();
    for number in 0..16_u64 {
        let (record, mut mine) = (record.clone(), written.clone());
        mine.revision = 2;
        mine.metadata.team = Some(number.to_string());
        racers.push(tokio::spawn(async move {
            let audit = vec![entry("task.modify", Some("ann"), Some(&mine.task_id), number)];
            record.commit(Commit { writes: vec![put(&mine, Some(1))], audit, ..Commit::default() }).await
        }));
    }
    let mut won = 0;
    for racer in racers {
        match racer.await.expect("no panic") {
            Ok(()) => won += 1,
            Err(DatabaseError::Conflict { .. }) => {}
            Err(other) => unreachable!("{other}"),
        }
    }
    assert_eq!(won, 1);
    record.number("here", at(100), 1_000, 100).await.expect("numbered");
    let told = record.audit(&AuditFilter::default(), 0, 100).await.expect("read");
    assert_eq!(told.len(), 1, "whoever lost has left no trace");
}

async fn lists_go_by_every_filter_and_by_pages(opened: Opened) {
    let record = &opened.record;
    let mut all = Vec::new();
    for number in 0..12 {
        let author = if number % 2 == 0 { "ann" } else { "ben" };
        let mut one =
            task(author, if number % 3 == 0 { "schema" } else { "config" }, &(number % 4).to_string(), "x");
        if number % 5 == 0 {
            one.state = State::Failed;
            one.since.insert(State::Failed, at(number));
        } else if number % 5 == 1 {
            one.state = State::Completed;
            one.since.insert(State::Completed, at(number));
        }
        one.approvals = vec![approval(&one.task, "rob", u32::try_from(number % 3).expect("small"))];
        write(record, vec![put(&one, None)]).await.expect("new");
        all.push(one);
    }
    all.reverse();
    let ids = |tasks: &[StoredTask]| tasks.iter().map(|one| one.task_id.clone()).collect::<Vec<_>>();
    let expected = |keep: &dyn Fn(&StoredTask) -> bool| {
        all.iter().filter(|one| keep(one)).map(|one| one.task_id.clone()).collect::<Vec<_>>()
    };
    let found = async |filter: TaskFilter| ids(&record.tasks(&filter, None, 100).await.expect("listed"));
    assert_eq!(found(TaskFilter::default()).await, ids(&all));
    let by_state = TaskFilter { state: Some(State::Failed), ..TaskFilter::default() };
    assert_eq!(found(by_state).await, expected(&|one| one.state == State::Failed));
    let by_author = TaskFilter { author: Some("ben".to_owned()), ..TaskFilter::default() };
    assert_eq!(found(by_author).await, expected(&|one| one.author_id == person("ben")));
    let by_resource = TaskFilter { resource: Some("database:3".to_owned()), ..TaskFilter::default() };
    assert_eq!(found(by_resource).await, expected(&|one| one.config.resources[0].id == "3"));
    let by_type = TaskFilter { task_type: Some("schema".to_owned()), ..TaskFilter::default() };
    assert_eq!(found(by_type).await, expected(&|one| one.config.task_type == "schema"));
    let by_tag = TaskFilter { tag: Some("y".to_owned()), ..TaskFilter::default() };
    assert!(found(by_tag).await.is_empty());
    let to_rob = TaskFilter { visible_to: Some(person("rob")), ..TaskFilter::default() };
    assert_eq!(found(to_rob).await.len(), 12, "reviewers see what they review");
    let to_eve = TaskFilter { visible_to: Some(person("eve")), ..TaskFilter::default() };
    assert!(found(to_eve).await.is_empty());
    let (mut paged, mut before) = (Vec::new(), None);
    loop {
        let page = record.tasks(&TaskFilter::default(), before.as_deref(), 5).await.expect("listed");
        before = page.last().map(|one| one.task_id.clone());
        paged.extend(ids(&page));
        if page.len() < 5 {
            break;
        }
    }
    assert_eq!(paged, ids(&all));

    let (mut scores, mut after) = (Vec::new(), None);
    loop {
        let filter =
            ApprovalFilter { reviewer: Some(person("rob")), status: Some(ApprovalStatus::Pending), after };
        let page = record.approvals(&filter, 5).await.expect("listed");
        after = page.last().map(|one| (one.score, one.approval_id.clone()));
        scores.extend(page.iter().map(|one| one.score));
        if page.len() < 5 {
            break;
        }
    }
    assert_eq!(scores, [2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0]);
    assert_eq!(record.overdue(at(1), 100).await.expect("listed").len(), 8);
    let history = async |of: &str, most| record.history(of, most).await.expect("counted").1;
    assert_eq!(history("config", 50).await, History { finished: 4, failed: 2 });
    assert_eq!(history("config", 3).await.finished, 3);
    assert_eq!(history("nothing", 50).await, History::default());
}

async fn rules_are_guarded_by_their_revisions(opened: Opened) {
    let record = &opened.record;
    let thing = |revision, name: &str| StoredDocument {
        kind: DocumentKind::Policy,
        id: "p".to_owned(),
        revision,
        body: json!({ "name": name, "limits": [0.1, 1e9] }),
    };
    write(record, vec![Write::Thing { thing: thing(1, "first"), expected: None }]).await.expect("new");
    write(record, vec![Write::Thing { thing: thing(2, "second"), expected: Some(1) }])
        .await
        .expect("as seen");
    let late = Write::Thing { thing: thing(2, "late"), expected: Some(1) };
    assert!(matches!(write(record, vec![late]).await, Err(DatabaseError::Conflict { .. })));
    assert_eq!(record.things(DocumentKind::Policy).await.expect("listed"), [thing(2, "second")]);
    assert!(record.things(DocumentKind::Delegation).await.expect("listed").is_empty());
    let delete = |expected| Write::DeleteThing { kind: DocumentKind::Policy, id: "p".to_owned(), expected };
    assert!(matches!(write(record, vec![delete(1)]).await, Err(DatabaseError::Conflict { .. })));
    write(record, vec![delete(2)]).await.expect("as seen");
    assert!(record.things(DocumentKind::Policy).await.expect("listed").is_empty());
}

async fn entries_are_numbered_without_gaps_and_chained_by_one(opened: Opened) {
    let (record, other) = (opened.record.clone(), opened.again().await);
    let task_id = id();
    let mut writers = Vec::new();
    for number in 0..40_u64 {
        let (record, task_id) = (record.clone(), task_id.clone());
        writers.push(tokio::spawn(async move {
            let of = (number % 4 == 0).then_some(task_id.as_str());
            let actor = if number % 2 == 0 { Some("ann") } else { None };
            let audit =
                vec![entry("task.submit", actor, of, number), entry("task.assign", None, None, number)];
            let events = vec![event("task:submitted")];
            record.commit(Commit { audit, events, ..Commit::default() }).await
        }));
    }
    // Two who number at the same time as all are written: only who holds the lease does.
    let mut numbered = (0, 0);
    for round in 0..60 {
        if round == 30 {
            for writer in std::mem::take(&mut writers) {
                writer.await.expect("no panic").expect("written");
            }
        }
        let (one, two) = tokio::join!(
            record.number("one", at(round), 10_000, 7),
            other.number("two", at(round), 10_000, 7)
        );
        numbered = (numbered.0 + one.expect("numbered"), numbered.1 + two.expect("numbered"));
    }
    assert_eq!(numbered.0 + numbered.1, 120);
    assert!(numbered.0 == 0 || numbered.1 == 0, "one of them holds the lease: {numbered:?}");
    let mut walk = Walk::new(None);
    for row in record.audit(&AuditFilter::default(), 0, 1_000).await.expect("read") {
        walk.step(&row.entry().expect("as it was written")).expect("in order");
    }
    assert_eq!(walk.end(), record.audit_head().await.map_err(|_| unreachable!()));
    let numbers: Vec<u64> =
        record.events(0, 1_000).await.expect("read").into_iter().map(|(number, _)| number).collect();
    assert_eq!(numbers, (1..=40).collect::<Vec<_>>());
    // The lease ends, and the other one goes on where the first ended.
    record
        .commit(Commit { audit: vec![entry("task.cancel", None, None, 9)], ..Commit::default() })
        .await
        .expect("ok");
    let late = if numbered.0 == 0 { &record } else { &other };
    let name = if numbered.0 == 0 { "one" } else { "two" };
    assert_eq!(late.number(name, at(59), 10_000, 7).await, Ok(0), "not before the lease has ended");
    assert_eq!(late.number(name, at(70), 10_000, 7).await, Ok(1));
    assert_eq!(late.audit_head().await.expect("read").number, 81);

    let found = async |filter: AuditFilter| record.audit(&filter, 0, 1_000).await.expect("read").len();
    assert_eq!(found(AuditFilter { task: Some(task_id), ..AuditFilter::default() }).await, 10);
    assert_eq!(found(AuditFilter { actor: Some("ann".to_owned()), ..AuditFilter::default() }).await, 20);
    assert_eq!(
        found(AuditFilter { action: Some("task.assign".to_owned()), ..AuditFilter::default() }).await,
        40
    );
    let within = AuditFilter { from: Some(at(10)), to: Some(at(20)), ..AuditFilter::default() };
    assert_eq!(found(within).await, 20);
}

/// Ids are made by servers, each by its own clock: what follows from something else may have an id that sorts before it.
async fn what_was_written_first_has_the_first_number(opened: Opened) {
    let record = &opened.record;
    let mut ids: Vec<String> = (0..4).map(|_| id()).collect();
    ids.sort();
    ids.reverse();
    for entry_id in &ids {
        let body = AuditBody { entry_id: entry_id.clone(), ..entry("task.submit", Some("ann"), None, 1) };
        let commit = Commit { audit: vec![body], ..Commit::default() };
        record.commit(commit).await.expect("written");
    }
    // However many are written at once.
    for many in [1, 2, 8, 9, 40] {
        let some: Vec<AuditBody> = (0..many).map(|_| entry("task.submit", Some("ann"), None, 1)).collect();
        ids.extend(some.iter().map(|body| body.entry_id.clone()));
        let events = (0..many).map(|number| event(&number.to_string())).collect();
        record.commit(Commit { audit: some, events, ..Commit::default() }).await.expect("written");
    }
    while record.number("one", at(1), 10_000, 7).await.expect("numbered") > 0 {}
    let rows = record.audit(&AuditFilter::default(), 0, 100).await.expect("read");
    let numbered: Vec<String> = rows.iter().map(|row| row.entry().expect("readable").body.entry_id).collect();
    assert_eq!(numbered, ids);
    let events = record.events(0, 100).await.expect("read");
    let told: Vec<String> = events.into_iter().map(|(_, event)| event.kind).collect();
    let expected =
        [1, 2, 8, 9, 40].into_iter().flat_map(|many| (0..many).map(|number: u32| number.to_string()));
    assert_eq!(told, expected.collect::<Vec<_>>());
}

async fn what_was_numbered_cannot_be_changed(opened: Opened) {
    let record = &opened.record;
    let audit = vec![entry("task.submit", Some("ann"), None, 1), entry("task.assign", None, None, 2)];
    record.commit(Commit { audit, ..Commit::default() }).await.expect("written");
    record.number("one", at(1), 10_000, 7).await.expect("numbered");
    for sql in
        ["DELETE FROM audit", "UPDATE audit SET body = '{}'", "UPDATE audit SET number = 7 WHERE number = 1"]
    {
        let refused = by_hand(&opened, sql).await.expect_err("append-only");
        assert!(refused.contains("append-only"), "{refused}");
    }
    // Whoever owns the database can switch that off. Then it is found.
    let (off, on) = match &opened.database {
        Some(_) => ("ALTER TABLE audit DISABLE TRIGGER USER", "SELECT 1"),
        None => ("DROP TRIGGER audit_no_update", "SELECT 1"),
    };
    by_hand(&opened, off).await.expect("its owner");
    by_hand(&opened, "UPDATE audit SET actor = 'eve' WHERE number = 1").await.expect("its owner");
    by_hand(&opened, on).await.expect("its owner");
    let rows = record.audit(&AuditFilter::default(), 0, 10).await.expect("read");
    assert_eq!(rows[0].entry().expect_err("found").number, 1);
    assert!(rows[1].entry().is_ok());
    assert_eq!(record.audit_head().await.expect("read").number, 2);
    assert_ne!(record.audit_head().await.expect("read"), Head::origin());
}

/// Past the record, as its owner could.
async fn by_hand(opened: &Opened, sql: &'static str) -> Result<(), String> {
    use sqlx::{Connection, Executor};
    let done = match (&opened.folder, &opened.database) {
        (Some(folder), _) => {
            let file = folder.path().join("ade.sqlite3");
            let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file);
            let mut link = sqlx::SqliteConnection::connect_with(&options).await.expect("opens");
            link.execute(sql).await.map(drop)
        }
        (None, database) => {
            let (_, url) = database.as_ref().expect("opened somewhere");
            let mut link = sqlx::PgConnection::connect(url).await.expect("opens");
            link.execute(sql).await.map(drop)
        }
    };
    done.map_err(|error| error.to_string())
}

async fn an_answer_is_stored_once(opened: Opened) {
    let record = &opened.record;
    let stored = |status| StoredResponse { asked: "digest".to_owned(), status, body: json!({ "a": 1 }) };
    let answer = |status| Some(("ann".to_owned(), "key".to_owned(), at(1), stored(status)));
    record.commit(Commit { answer: answer(201), ..Commit::default() }).await.expect("new");
    let again = record.commit(Commit { answer: answer(409), ..Commit::default() }).await;
    assert_eq!(again, Err(DatabaseError::AnsweredAlready));
    assert_eq!(record.answer("ann", "key").await.expect("read"), Some(stored(201)));
    assert_eq!(record.answer("ben", "key").await.expect("read"), None);
    assert_eq!(record.forget_answers(at(1)).await, Ok(0));
    assert_eq!(record.forget_answers(at(2)).await, Ok(1));
    assert_eq!(record.answer("ann", "key").await.expect("read"), None);
    record.commit(Commit { answer: answer(409), ..Commit::default() }).await.expect("new again");
}

async fn of_many_with_the_same_request_one_is_carried_out(opened: Opened) {
    let (record, other) = (&opened.record, opened.again().await);
    let written = task("ann", "schema", "orders", "urgent");
    write(record, vec![put(&written, None)]).await.expect("new");
    let stored = StoredResponse { asked: "digest".to_owned(), status: 200, body: json!({}) };
    let racers: Vec<_> = (0..16)
        .map(|number| {
            let record = if number % 2 == 0 { record.clone() } else { other.clone() };
            let mut mine = written.clone();
            mine.revision = 2;
            let answer = Some(("ann".to_owned(), "key".to_owned(), at(1), stored.clone()));
            let audit = vec![entry("task.modify", Some("ann"), None, number)];
            let commit = Commit { writes: vec![put(&mine, Some(1))], audit, answer, ..Commit::default() };
            tokio::spawn(async move { record.commit(commit).await })
        })
        .collect();
    let mut outcomes = Vec::new();
    for racer in racers {
        outcomes.push(racer.await.expect("no panic"));
    }
    // Not one is told of a conflict: that would send it to decide again what was decided.
    let carried_out = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    let answered = outcomes.iter().filter(|outcome| **outcome == Err(DatabaseError::AnsweredAlready)).count();
    assert_eq!((carried_out, answered), (1, 15), "{outcomes:?}");
    assert_eq!(record.number("one", at(1), 1_000, 100).await, Ok(1), "the others left no trace");
}

async fn what_is_counted_is_what_is_there(opened: Opened) {
    let record = &opened.record;
    assert_eq!(record.counts().await, Ok(Counts::default()));
    assert_eq!(record.user_stats(&person("rob")).await, Ok(UserStats::default()));
    let states = [State::Draft, State::Draft, State::Reviewing, State::Failed];
    for (number, state) in (0_u64..).zip(states) {
        let author = if number == 1 { "ben" } else { "ann" };
        let mut one = task(author, "schema", "orders", "x");
        one.state = state;
        let (mut to_rob, mut to_sue) = (approval(&one.task, "rob", 1), approval(&one.task, "sue", 1));
        to_rob.created_at = at(10 + number);
        to_sue.created_at = at(5 + number);
        one.approvals = vec![to_rob, to_sue];
        write(record, vec![put(&one, None)]).await.expect("new");
        if number > 0 {
            // Rob answers after 10, 20 and 60 seconds.
            let to_rob = &mut one.approvals[0];
            to_rob.responded_at =
                Some(at(10 + number + [0, 10, 20, 60][usize::try_from(number).expect("small")]));
            to_rob.status = ApprovalStatus::Approved;
            to_rob.revision = 2;
            one.revision = 2;
            write(record, vec![put(&one, Some(1))]).await.expect("as seen");
        }
    }
    let counts = Counts {
        tasks: BTreeMap::from([(State::Draft, 2), (State::Reviewing, 1), (State::Failed, 1)]),
        archived: 0,
        pending: 5,
        oldest_pending: Some(at(5)),
    };
    assert_eq!(record.counts().await, Ok(counts));
    let rob = UserStats {
        tasks: BTreeMap::new(),
        requests: BTreeMap::from([(ApprovalStatus::Pending, 1), (ApprovalStatus::Approved, 3)]),
        answered: 3,
        mean_seconds: Some(30.0),
        median_seconds: Some(20.0),
    };
    assert_eq!(record.user_stats(&person("rob")).await, Ok(rob));
    let ann = record.user_stats(&person("ann")).await.expect("counted");
    let tasks = BTreeMap::from([(State::Draft, 1), (State::Reviewing, 1), (State::Failed, 1)]);
    assert_eq!(ann, UserStats { tasks, ..UserStats::default() });
}

async fn everything_or_nothing(opened: Opened) {
    let record = &opened.record;
    let (one, two) = (task("ann", "schema", "a", "x"), task("ann", "schema", "b", "x"));
    write(record, vec![put(&two, None)]).await.expect("new");
    let commit = Commit {
        writes: vec![put(&one, None), put(&two, Some(9))],
        audit: vec![entry("task.create", None, None, 1)],
        events: vec![event("task:created")],
        ..Commit::default()
    };
    assert!(matches!(record.commit(commit).await, Err(DatabaseError::Conflict { .. })));
    assert_eq!(record.task(&one.task_id).await.expect("read"), None);
    assert_eq!(record.number("one", at(1), 1_000, 100).await, Ok(0));
}

async fn what_was_read_is_written_back_where_it_differs(opened: Opened) {
    let (record, other) = (&opened.record, opened.again().await);
    let mut first = task("ann", "schema", "orders", "old");
    first.metadata.tags.push("both".to_owned());
    write(record, vec![put(&first, None)]).await.expect("new");
    let task_id = first.task_id.clone();
    let change = async |record: &ade_store::Database, change: &dyn Fn(&mut StoredTask)| {
        let mut task = record.task(&task_id).await.expect("read").expect("there");
        let seen = task.revision;
        change(&mut task);
        task.revision += 1;
        write(record, vec![put(&task, Some(seen))]).await.expect("as seen");
        assert_eq!(record.task(&task_id).await.expect("read"), Some(task));
    };
    let tagged = async |tag: &str| {
        let filter = TaskFilter { tag: Some(tag.to_owned()), ..TaskFilter::default() };
        record.tasks(&filter, None, 10).await.expect("listed").len()
    };
    change(record, &|task| task.metadata.tags = vec!["both".to_owned(), "new".to_owned()]).await;
    assert_eq!((tagged("old").await, tagged("both").await, tagged("new").await), (0, 1, 1));
    change(&other, &|task| {
        let asked = ["rob", "sue", "tim"].map(|who| approval(&task.task, who, 500));
        task.approvals = asked.to_vec();
    })
    .await;
    change(record, &|task| {
        task.approvals[1].status = ApprovalStatus::Approved;
        task.approvals[1].revision += 1;
    })
    .await;
    let answered = ApprovalFilter { status: Some(ApprovalStatus::Approved), ..ApprovalFilter::default() };
    assert_eq!(record.approvals(&answered, 10).await.expect("listed").len(), 1);
    // Whoever may see it is found by its marks.
    let seen_by = |who: &str| TaskFilter { visible_to: Some(person(who)), ..TaskFilter::default() };
    assert_eq!(record.tasks(&seen_by("tim"), None, 10).await.expect("listed").len(), 1);
}

async fn people_and_rules_give_the_record_another_mark_and_nothing_else_does(opened: Opened) {
    let (record, other) = (&opened.record, opened.again().await);
    let mut marks = vec![record.mark().await.expect("read")];
    let user = |revision| {
        let user = User {
            user_id: person("ann"),
            name: "Ann".to_owned(),
            roles: BTreeSet::new(),
            manager_id: None,
            team: None,
            active: true,
        };
        Box::new(StoredUser { user, revision, password: None })
    };
    let thing = |kind, revision| StoredDocument { kind, id: "x".to_owned(), revision, body: json!(1) };
    let mut changes =
        vec![Write::User { user: user(1), expected: None }, Write::User { user: user(2), expected: Some(1) }];
    for kind in [
        DocumentKind::Policy,
        DocumentKind::Delegation,
        DocumentKind::Resource,
        DocumentKind::Setting,
        DocumentKind::Feature,
    ] {
        changes.push(Write::Thing { thing: thing(kind, 1), expected: None });
        changes.push(Write::Thing { thing: thing(kind, 2), expected: Some(1) });
        changes.push(Write::DeleteThing { kind, id: "x".to_owned(), expected: 2 });
    }
    for change in changes {
        let told = format!("{change:?}");
        write(record, vec![change]).await.expect("written");
        let now = other.mark().await.expect("read");
        assert!(!marks.contains(&now), "{told}");
        marks.push(now);
    }
    // Also by hand, past every server.
    for sql in ["UPDATE users SET active = 0", "INSERT INTO documents VALUES ('policy', 'y', 1, '{}')"] {
        by_hand(&opened, sql).await.expect("its owner");
        let now = other.mark().await.expect("read");
        assert!(!marks.contains(&now), "{sql}");
        marks.push(now);
    }
    let written = task("ann", "schema", "orders", "tag");
    write(record, vec![put(&written, None)]).await.expect("new");
    let late = Write::User { user: user(3), expected: Some(1) };
    assert!(matches!(write(record, vec![late]).await, Err(DatabaseError::Conflict { .. })));
    let (of_history, _) = other.history("schema", 50).await.expect("read");
    let read = other.task(&written.task_id).await.expect("read").expect("there");
    let last = marks.last();
    assert_eq!((last, last), (Some(&of_history), read.as_read.mark()));
    assert_eq!(last, Some(&record.mark().await.expect("read")));
}
