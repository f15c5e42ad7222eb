//! Tasks, approvals, rules, the audit log, events and stored responses.

use std::collections::{BTreeMap, BTreeSet};

use ade_domain::Moment;
use ade_domain::approval::delegation::Delegation;
use ade_domain::approval::{Approval, ApprovalStatus, DecisionKind};
use ade_domain::audit::{AuditActor, AuditBody, ChainHead, ChainVerifier};
use ade_domain::event::Event;
use ade_domain::independence::AccountHistory;
use ade_domain::lock::LockMode;
use ade_domain::people::{AuthorReason, AuthorSet, User};
use ade_domain::risk::{FailureHistory, Risk, RiskLevel};
use ade_domain::task::Task;
use ade_domain::task::{
    Config, Execution, ExecutionResult, Metadata, Phase, Resource, RollbackStrategy, TaskState,
};
use ade_store::database::{
    ApprovalFilter, AuditFilter, AuditRow, Comment, Commit, DatabaseCounts, DatabaseError, DocumentKind,
    Setting, StoredResponse, StoredTask, StoredUser, TaskFilter, UserStats, Versioned, Write,
};
use serde_json::json;

use crate::database::fixture::{
    TestDatabase, at, execute_on_sqlite, id, keyed, on_both_databases, person, write,
};

on_both_databases!(
    tasks_round_trip_with_their_approvals,
    rejects_stale_revisions,
    concurrent_commits_have_one_winner,
    lists_by_every_filter_and_page,
    finds_tasks_and_outcomes_of_agents,
    documents_detect_conflicts,
    numbers_without_gaps,
    numbered_entries_are_immutable,
    chains_entries_as_they_are_read,
    numbers_follow_insertion_order,
    stores_one_response_per_key,
    concurrent_duplicates_are_applied_once,
    counts_tasks_and_approvals,
    commits_are_atomic,
    writes_only_changed_rows,
    rules_version_changes_with_users_and_documents_only,
);

pub(crate) fn task(author: &str, task_type: &str, resource: &str, tag: &str) -> StoredTask {
    let resource =
        Resource { resource_type: "database".to_owned(), id: resource.to_owned(), mode: LockMode::Exclusive };
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
    let mut task = Task::draft(id(), config, digest, person(author), AuthorSet::default(), at(0));
    task.transitions.clear();
    let metadata = Metadata { tags: vec![tag.to_owned()], ..Metadata::default() };
    Task { metadata, ..task }.into()
}

pub(crate) fn put(task: &StoredTask, expected: Option<u64>) -> Write {
    Write::Task { task: Box::new(task.clone()), expected, at: Moment::from_micros(0) }
}

pub(crate) fn entry(action: &str, actor: Option<&str>, task_id: Option<&str>, second: u64) -> AuditBody {
    AuditBody {
        entry_id: id(),
        at: at(second),
        who: AuditActor { user_id: actor.map(person), ..AuditActor::default() }.into(),
        action: action.to_owned(),
        object_type: "task".to_owned(),
        object_id: "t".to_owned(),
        task_id: task_id.map(str::to_owned),
        from: Some(TaskState::Draft),
        to: Some(TaskState::Submitted),
        revision: Some(2),
        digest: None,
        reviewed: None,
        reason: Some("ünï".to_owned()),
        ticket: None,
        details: serde_json::Map::new(),
    }
}

fn event(name: &str, entry: &AuditBody) -> Event {
    let event = Event::of(entry, vec![person("ann")]);
    Event { event: name.to_owned(), ..event }
}

async fn tasks_round_trip_with_their_approvals(fixture: TestDatabase) {
    let database = &fixture.database;
    let mut written = task("ann", "schema", "orders", "urgent");
    write(database, vec![put(&written, None)]).await.expect("inserted");
    assert_eq!(database.task(&written.task_id).await.expect("read"), Some(written.clone()));
    assert_eq!(database.task(&id()).await.expect("read"), None);
    written.approvals = vec![approval(&written.task, "rob", 500), approval(&written.task, "sue", 900)];
    written.revision += 1;
    write(database, vec![put(&written, Some(1))]).await.expect("updated");
    assert_eq!(fixture.reopen().await.task(&written.task_id).await.expect("read"), Some(written.clone()));
    let found = database.task_id_by_approval(&written.approvals[0].approval_id).await.expect("read");
    assert_eq!(found.as_deref(), Some(written.task_id.as_str()));
    let found = database.task_by_approval(&written.approvals[1].approval_id).await.expect("read");
    assert_eq!(found, Some(written.clone()));
    assert_eq!(database.task_by_approval(&id()).await.expect("read"), None);
    let comment = Comment {
        comment_id: id(),
        task_id: written.task_id.clone(),
        author_id: person("rob"),
        agent_id: Some("bot".to_owned()),
        text: "why?".to_owned(),
        created_at: at(3),
    };
    write(database, vec![Write::Comment(comment.clone())]).await.expect("written");
    assert_eq!(database.comments(&written.task_id).await.expect("read"), [comment]);
    let delete = Write::DeleteTask { task_id: written.task_id.clone(), expected: 2 };
    write(database, vec![delete]).await.expect("deleted");
    assert_eq!(database.task(&written.task_id).await.expect("read"), None);
    assert!(database.comments(&written.task_id).await.expect("read").is_empty());
}

pub(crate) fn approval(task: &Task, reviewer: &str, score: u32) -> Approval {
    Approval {
        approval_id: id(),
        task_id: task.task_id.clone(),
        revision: 1,
        reviewer_id: person(reviewer),
        reviewer_name: "Rob".to_owned(),
        policies: vec!["default".to_owned()],
        chat_holders: BTreeSet::new(),
        on_behalf_of: BTreeSet::from([person(reviewer)]),
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
        digest: task.digest,
        scope_digest: task.scope_digest,
        fingerprint: None,
        responded_at: None,
        response_action: None,
        response_reason: None,
        reviewed_by: None,
        reasons: vec!["because".to_owned()],
    }
}

async fn rejects_stale_revisions(fixture: TestDatabase) {
    let database = &fixture.database;
    let mut written = task("ann", "schema", "orders", "urgent");
    write(database, vec![put(&written, None)]).await.expect("inserted");
    written.revision = 2;
    write(database, vec![put(&written, Some(1))]).await.expect("updated");
    let mut late = written.clone();
    late.state = TaskState::Cancelled;
    let refused = write(database, vec![put(&late, Some(1))]).await;
    assert_eq!(refused, Err(DatabaseError::Conflict { what: format!("task {}", late.task_id) }));
    assert_eq!(database.task(&late.task_id).await.expect("read"), Some(written.clone()));
    assert!(matches!(
        write(database, vec![put(&written, None)]).await,
        Err(DatabaseError::AlreadyExists { .. })
    ));
}

async fn concurrent_commits_have_one_winner(fixture: TestDatabase) {
    let database = fixture.database.clone();
    let written = task("ann", "schema", "orders", "urgent");
    write(&database, vec![put(&written, None)]).await.expect("inserted");
    let mut racers = Vec::new();
    for number in 0..16_u64 {
        let (database, mut mine) = (database.clone(), written.clone());
        mine.revision = 2;
        mine.metadata.team = Some(number.to_string());
        racers.push(tokio::spawn(async move {
            let audit = vec![entry("task.modify", Some("ann"), Some(&mine.task_id), number)];
            database.commit(Commit { writes: vec![put(&mine, Some(1))], audit, ..Commit::default() }).await
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
    database.number_entries(at(100), 100).await.expect("numbered");
    let entries = database.audit_rows(&AuditFilter::default(), 0, 100).await.expect("read");
    assert_eq!(entries.len(), 1, "a lost race writes nothing");
}

async fn lists_by_every_filter_and_page(fixture: TestDatabase) {
    let database = &fixture.database;
    let mut all = Vec::new();
    for number in 0..12 {
        let author = if number % 2 == 0 { "ann" } else { "ben" };
        let mut listed =
            task(author, if number % 3 == 0 { "schema" } else { "config" }, &(number % 4).to_string(), "x");
        if number % 5 == 0 {
            listed.state = TaskState::Failed;
            listed.entered_at.insert(TaskState::Failed, at(number));
        } else if number % 5 == 1 {
            listed.state = TaskState::Completed;
            listed.entered_at.insert(TaskState::Completed, at(number));
        }
        if number % 4 == 1 {
            let level = if number > 4 { RiskLevel::High } else { RiskLevel::Low };
            listed.risk =
                Some(Risk { score: 50, level, factors: Vec::new(), assessed_by: "test".to_owned() });
        }
        listed.approvals = vec![approval(&listed.task, "rob", u32::try_from(number % 3).expect("small"))];
        write(database, vec![put(&listed, None)]).await.expect("inserted");
        all.push(listed);
    }
    all.reverse();
    let ids = |tasks: &[StoredTask]| tasks.iter().map(|task| task.task_id.clone()).collect::<Vec<_>>();
    let expected = |keep: &dyn Fn(&StoredTask) -> bool| {
        all.iter().filter(|task| keep(task)).map(|task| task.task_id.clone()).collect::<Vec<_>>()
    };
    let found = async |filter: TaskFilter| ids(&database.tasks(&filter, None, 100).await.expect("listed"));
    assert_eq!(found(TaskFilter::default()).await, ids(&all));
    let by_state = TaskFilter { state: Some(TaskState::Failed), ..TaskFilter::default() };
    assert_eq!(found(by_state).await, expected(&|task| task.state == TaskState::Failed));
    let by_author = TaskFilter { author: Some("ben".to_owned()), ..TaskFilter::default() };
    assert_eq!(found(by_author).await, expected(&|task| task.author_id == person("ben")));
    let by_resource = TaskFilter { resource: Some("database:3".to_owned()), ..TaskFilter::default() };
    assert_eq!(found(by_resource).await, expected(&|task| task.config.resources[0].id == "3"));
    let by_type = TaskFilter { task_type: Some("schema".to_owned()), ..TaskFilter::default() };
    assert_eq!(found(by_type).await, expected(&|task| task.config.task_type == "schema"));
    let by_tag = TaskFilter { tag: Some("y".to_owned()), ..TaskFilter::default() };
    assert!(found(by_tag).await.is_empty());
    let by_risk = || TaskFilter { risk: Some(RiskLevel::High), ..TaskFilter::default() };
    let is_high = |task: &StoredTask| task.risk.as_ref().is_some_and(|risk| risk.level == RiskLevel::High);
    assert_eq!(found(by_risk()).await, expected(&is_high));
    assert_eq!(expected(&is_high).len(), 2);
    // A database of an older version finds them after its migration.
    execute_sql(&fixture, "DELETE FROM task_labels WHERE kind = 'risk'").await.expect("deleted");
    assert!(found(by_risk()).await.is_empty());
    let sqlite = include_str!("../../../src/database/schema/sqlite_risk_labels.sql");
    let postgres = include_str!("../../../src/database/schema/postgres_risk_labels.sql");
    let migration = if fixture.postgres.is_some() { postgres } else { sqlite };
    execute_sql(&fixture, migration).await.expect("migrated");
    assert_eq!(found(by_risk()).await, expected(&is_high));
    let two = [ids(&all)[3].clone(), ids(&all)[7].clone(), id()];
    let by_ids = TaskFilter { ids: Some(two.to_vec()), ..TaskFilter::default() };
    assert_eq!(found(by_ids).await, two[..2]);
    assert!(found(TaskFilter { ids: Some(Vec::new()), ..TaskFilter::default() }).await.is_empty());
    let to_rob = TaskFilter { visible_to: Some(person("rob")), ..TaskFilter::default() };
    assert_eq!(found(to_rob).await.len(), 12, "reviewers see what they review");
    let to_eve = TaskFilter { visible_to: Some(person("eve")), ..TaskFilter::default() };
    assert!(found(to_eve).await.is_empty());
    let (mut paged, mut before) = (Vec::new(), None);
    loop {
        let page = database.tasks(&TaskFilter::default(), before.as_deref(), 5).await.expect("listed");
        before = page.last().map(|task| task.task_id.clone());
        paged.extend(ids(&page));
        if page.len() < 5 {
            break;
        }
    }
    assert_eq!(paged, ids(&all));

    let (mut scores, mut after) = (Vec::new(), None);
    loop {
        let filter = ApprovalFilter {
            reviewer: Some(person("rob")),
            visible_to: None,
            status: Some(ApprovalStatus::Pending),
            after,
        };
        let page = database.approvals(&filter, 5).await.expect("listed");
        after = page.last().map(|approval| (approval.score, approval.approval_id.clone()));
        scores.extend(page.iter().map(|approval| approval.score));
        if page.len() < 5 {
            break;
        }
    }
    assert_eq!(scores, [2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0]);
    assert_eq!(database.overdue_approvals(at(1), 100).await.expect("listed").len(), 8);
    let history = async |of: &str, most| database.task_history(of, most).await.expect("counted").1;
    assert_eq!(history("config", 50).await, FailureHistory { finished: 4, failed: 2 });
    assert_eq!(history("config", 3).await.finished, 3);
    assert_eq!(history("nothing", 50).await, FailureHistory::default());
}

fn ended_execution(worker: &str) -> Execution {
    Execution {
        attempt: 1,
        worker: worker.to_owned(),
        phase: Phase::Ended,
        lease_until: at(1),
        started_at: at(1),
        completed_at: Some(at(2)),
        result: Some(ExecutionResult::Failure),
        reported: None,
        grants: Vec::new(),
        output: None,
        output_key: None,
        error_details: None,
        error: None,
        code: None,
        effects_attempt: None,
        rollback_data_key: None,
        rolled_back: None,
        retry_count: 0,
        stop: None,
        rollback: None,
    }
}

async fn finds_tasks_and_outcomes_of_agents(fixture: TestDatabase) {
    let database = &fixture.database;
    let (mut ended, mut of_bot) = (Vec::new(), Vec::new());
    for number in 0..30_u64 {
        let author = if number % 2 == 0 { "ann" } else { "ben" };
        let mut made = task(author, "schema", "orders", "x");
        made.author_set.add(person(author), AuthorReason::Author);
        // Proposed by one agent, sometimes applied by another; every third is still open.
        made.by_agent.insert("bot".to_owned());
        if number % 5 == 0 {
            made.config.executor = "agent".to_owned();
            made.execution = Some(ended_execution("applier"));
        }
        if number % 3 > 0 {
            let state = if number % 2 == 0 { TaskState::Failed } else { TaskState::Completed };
            made.state = state;
            made.entered_at.insert(state, at(number));
            ended.push((made.task_id.clone(), state, number));
        }
        of_bot.push(made.task_id.clone());
        write(database, vec![put(&made, None)]).await.expect("inserted");
    }
    of_bot.reverse();
    ended.reverse();
    let found = async |agent: &str| {
        let filter = TaskFilter { agent: Some(agent.to_owned()), ..TaskFilter::default() };
        let tasks = database.tasks(&filter, None, 100).await.expect("listed");
        tasks.into_iter().map(|task| task.task_id.clone()).collect::<Vec<_>>()
    };
    let outcomes = async |agents: &[&str], filter: &TaskFilter, limit| {
        let outcomes = database.agent_outcomes(agents, filter, limit).await.expect("read");
        outcomes
            .into_iter()
            .map(|outcome| (outcome.agent_id, outcome.task_id, outcome.state, outcome.at))
            .collect::<Vec<_>>()
    };
    let check = async || {
        assert_eq!(found("bot").await, of_bot);
        assert_eq!(found("applier").await.len(), 6);
        assert!(found("bo").await.is_empty());
        let all = outcomes(&["nobody", "bot"], &TaskFilter::default(), 7).await;
        let expected = ended
            .iter()
            .take(7)
            .map(|(id, state, number)| ("bot".to_owned(), id.clone(), *state, at(*number)));
        assert_eq!(all, expected.collect::<Vec<_>>(), "the newest, and no more");
        let both = outcomes(&["bot", "applier"], &TaskFilter::default(), 100).await;
        assert_eq!(both.iter().filter(|(agent, ..)| agent == "applier").count(), 4);
    };
    check().await;
    let to_ann = TaskFilter { visible_to: Some(person("ann")), ..TaskFilter::default() };
    assert!(
        outcomes(&["bot"], &to_ann, 100).await.iter().all(|(_, _, state, _)| *state == TaskState::Failed)
    );
    assert_eq!(outcomes(&["bot"], &to_ann, 100).await.len(), 10);
    let of_agent = TaskFilter { authored_only: true, ..to_ann };
    assert_eq!(outcomes(&["bot"], &of_agent, 100).await.len(), 10);
    let to_eve = TaskFilter { visible_to: Some(person("eve")), ..TaskFilter::default() };
    assert!(outcomes(&["bot"], &to_eve, 100).await.is_empty());
    assert!(outcomes(&[], &TaskFilter::default(), 100).await.is_empty());
    // A database of an older version finds them after its migration.
    execute_sql(&fixture, "DELETE FROM task_labels WHERE kind = 'agent'").await.expect("deleted");
    assert!(found("bot").await.is_empty());
    let sqlite = include_str!("../../../src/database/schema/sqlite_agent_labels.sql");
    let postgres = include_str!("../../../src/database/schema/postgres_agent_labels.sql");
    let migration = if fixture.postgres.is_some() { postgres } else { sqlite };
    for _ in 0..2 {
        execute_sql(&fixture, migration).await.expect("migrated");
        check().await;
    }
}

async fn documents_detect_conflicts(fixture: TestDatabase) {
    let database = &fixture.database;
    let document = |revision, name: &str| {
        let value = Setting(json!({ "name": name, "limits": [0.1, 1e9] }));
        Versioned { id: "p".to_owned(), revision, value }
    };
    write(database, vec![Write::document(&document(1, "first"), None)]).await.expect("inserted");
    write(database, vec![Write::document(&document(2, "second"), Some(1))]).await.expect("updated");
    let late = Write::document(&document(2, "late"), Some(1));
    assert!(matches!(write(database, vec![late]).await, Err(DatabaseError::Conflict { .. })));
    assert_eq!(database.documents().await.expect("listed"), [document(2, "second")]);
    assert!(database.documents::<Delegation>().await.expect("listed").is_empty());
    let delete =
        |expected| Write::DeleteDocument { kind: DocumentKind::Setting, id: "p".to_owned(), expected };
    assert!(matches!(write(database, vec![delete(1)]).await, Err(DatabaseError::Conflict { .. })));
    write(database, vec![delete(2)]).await.expect("updated");
    assert!(database.documents::<Setting>().await.expect("listed").is_empty());
}

/// Numbers everything that is committed.
async fn number_all(database: &ade_store::Database) {
    while database.number_entries(at(100), 7).await.expect("numbered").numbered > 0 {}
}

async fn numbers_without_gaps(fixture: TestDatabase) {
    let (database, other) = (fixture.database.clone(), fixture.reopen().await);
    let task_id = id();
    let mut writers = Vec::new();
    for number in 0..40_u64 {
        let writer = if number % 3 == 0 { other.clone() } else { database.clone() };
        let task_id = task_id.clone();
        writers.push(tokio::spawn(async move {
            let of = (number % 4 == 0).then_some(task_id.as_str());
            let actor = if number % 2 == 0 { Some("ann") } else { None };
            let audit =
                vec![entry("task.submit", actor, of, number), entry("task.assign", None, None, number)];
            let events = vec![event("task:submitted", &audit[1])];
            writer.commit(Commit { audit, events, ..Commit::default() }).await
        }));
    }
    // Two processes compete while entries are written.
    tokio::join!(number_all(&database), number_all(&other));
    for writer in writers {
        writer.await.expect("no panic").expect("written");
    }
    tokio::join!(number_all(&database), number_all(&other));
    let mut walk = ChainVerifier::new(None);
    for row in database.audit_rows(&AuditFilter::default(), 0, 1_000).await.expect("read") {
        walk.verify(&row.entry().expect("as it was written")).expect("in order");
    }
    let head = walk.finish().expect("complete");
    assert_eq!((head.number, Ok(head)), (80, database.audit_head().await));
    // Each event has the number of its entry, and a page goes on where the last one ended.
    let mut events = database.events(0, 15).await.expect("read");
    events.extend(database.events(events[14].0, 1_000).await.expect("read"));
    assert_eq!(events.len(), 40);
    for (number, event) in events {
        let rows = database.audit_rows(&AuditFilter::default(), number - 1, 1).await.expect("read");
        assert_eq!(rows[0].entry().expect("readable").body.entry_id, event.event_id);
    }

    let found = async |filter: AuditFilter| database.audit_rows(&filter, 0, 1_000).await.expect("read").len();
    assert_eq!(found(AuditFilter { task: Some(task_id.clone()), ..AuditFilter::default() }).await, 10);
    assert_eq!(found(AuditFilter { actor: Some("ann".to_owned()), ..AuditFilter::default() }).await, 20);
    assert_eq!(
        found(AuditFilter { action: Some("task.assign".to_owned()), ..AuditFilter::default() }).await,
        40
    );
    let within = AuditFilter { from: Some(at(10)), to: Some(at(20)), ..AuditFilter::default() };
    assert_eq!(found(within.clone()).await, 20);
    // Entries about a task are found by the task only.
    let by_object = AuditFilter { object: Some("t".to_owned()), ..AuditFilter::default() };
    assert_eq!(found(by_object.clone()).await, 70);

    // Newest first, in pages: the same entries in the opposite order.
    let by_actor = AuditFilter { actor: Some("ann".to_owned()), ..AuditFilter::default() };
    let by_task = AuditFilter { task: Some(task_id), ..AuditFilter::default() };
    for filter in [AuditFilter::default(), by_actor, by_task, by_object, within] {
        let numbers = |rows: Vec<AuditRow>| rows.iter().map(|row| row.number).collect::<Vec<u64>>();
        let mut expected = numbers(database.audit_rows(&filter, 0, 1_000).await.expect("read"));
        expected.reverse();
        let (newest, mut pages) = (AuditFilter { newest_first: true, ..filter }, Vec::new());
        loop {
            let after = pages.last().copied().unwrap_or(0);
            let page = numbers(database.audit_rows(&newest, after, 3).await.expect("read"));
            if page.is_empty() {
                break;
            }
            pages.extend(page);
        }
        assert_eq!(pages, expected, "{newest:?}");
    }
}

/// Each server creates ids by its own clock, so that a later entry may have an id that sorts first.
async fn numbers_follow_insertion_order(fixture: TestDatabase) {
    let database = &fixture.database;
    let mut ids: Vec<String> = (0..4).map(|_| id()).collect();
    ids.sort();
    ids.reverse();
    for entry_id in &ids {
        let body = AuditBody { entry_id: entry_id.clone(), ..entry("task.submit", Some("ann"), None, 1) };
        let commit = Commit { audit: vec![body], ..Commit::default() };
        database.commit(commit).await.expect("written");
    }
    // Also within one commit, of any size.
    for many in [1, 2, 8, 9, 40] {
        let some: Vec<AuditBody> = (0..many).map(|_| entry("task.submit", Some("ann"), None, 1)).collect();
        ids.extend(some.iter().map(|body| body.entry_id.clone()));
        let events = some.iter().enumerate().map(|(number, entry)| event(&number.to_string(), entry));
        let events = events.collect();
        database.commit(Commit { audit: some, events, ..Commit::default() }).await.expect("written");
    }
    let notified = tokio::time::timeout(std::time::Duration::ZERO, database.log_appended()).await;
    assert_eq!(
        notified.is_ok(),
        fixture.postgres.is_some(),
        "the sequencer is notified of what has no number"
    );
    number_all(database).await;
    let rows = database.audit_rows(&AuditFilter::default(), 0, 100).await.expect("read");
    let numbered: Vec<String> = rows.iter().map(|row| row.entry().expect("readable").body.entry_id).collect();
    assert_eq!(numbered, ids);
    let events = database.events(0, 100).await.expect("read");
    let names: Vec<String> = events.into_iter().map(|(_, event)| event.event).collect();
    let expected =
        [1, 2, 8, 9, 40].into_iter().flat_map(|many| (0..many).map(|number: u32| number.to_string()));
    assert_eq!(names, expected.collect::<Vec<_>>());
}

async fn numbered_entries_are_immutable(fixture: TestDatabase) {
    let database = &fixture.database;
    let audit = vec![entry("task.submit", Some("ann"), None, 1), entry("task.assign", None, None, 2)];
    database.commit(Commit { audit, ..Commit::default() }).await.expect("written");
    database.number_entries(at(1), 7).await.expect("numbered");
    let chain = if fixture.postgres.is_some() { "audit_chain" } else { "audit" };
    for sql in [
        "DELETE FROM audit".to_owned(),
        "UPDATE audit SET body = '{}'".to_owned(),
        format!("DELETE FROM {chain}"),
        format!("UPDATE {chain} SET number = 7 WHERE number = 1"),
        format!("UPDATE {chain} SET entry_hash = previous_hash"),
    ] {
        let refused = execute_sql(&fixture, &sql).await.expect_err("append-only");
        assert!(refused.contains("append-only"), "{refused}");
    }
    // The owner of the database can disable the triggers. Verification still detects the change.
    let disable = match &fixture.postgres {
        Some(_) => "ALTER TABLE audit DISABLE TRIGGER USER",
        None => "DROP TRIGGER audit_no_update",
    };
    execute_sql(&fixture, disable).await.expect("executed");
    let first = format!("entry_id = (SELECT entry_id FROM {chain} WHERE number = 1)");
    execute_sql(&fixture, &format!("UPDATE audit SET actor = 'eve' WHERE {first}")).await.expect("executed");
    let rows = database.audit_rows(&AuditFilter::default(), 0, 10).await.expect("read");
    assert_eq!(rows[0].entry().expect_err("detected").number, 1);
    assert!(rows[1].entry().is_ok());
    assert_eq!(database.audit_head().await.expect("read").number, 2);
    assert_ne!(database.audit_head().await.expect("read"), ChainHead::origin());
}

/// A NUL, which PostgreSQL cannot store, is replaced, also in keys, whose order it changes. Numbers are those of canonical JSON.
async fn chains_entries_as_they_are_read(fixture: TestDatabase) {
    let database = &fixture.database;
    let mut written = entry("task.submit", Some("ann"), None, 1);
    written.reason = Some("a\0b \\u0000 \u{fffd} \u{2028}".to_owned());
    written.details = json!({ "a\0": [0.1, 1e300, 9_007_199_254_740_993_u64, "\0"], "ab": 1 })
        .as_object()
        .cloned()
        .expect("one");
    let audit = vec![written, entry("task.assign", None, None, 2)];
    database.commit(Commit { audit, ..Commit::default() }).await.expect("written");
    number_all(database).await;
    let mut walk = ChainVerifier::new(None);
    for row in database.audit_rows(&AuditFilter::default(), 0, 10).await.expect("read") {
        walk.verify(&row.authentic_entry(database.keys()).expect("authentic")).expect("in order");
    }
    assert_eq!(walk.finish().expect("complete").number, 2);
}

/// Executes SQL directly, as the owner of the database could.
pub(super) async fn execute_sql(fixture: &TestDatabase, sql: &str) -> Result<(), String> {
    use sqlx::{AssertSqlSafe, Connection, Executor};
    match (&fixture.folder, &fixture.postgres) {
        (Some(folder), _) => execute_on_sqlite(folder.path(), sql).map_err(|error| error.to_string()),
        (None, postgres) => {
            let (_, url) = postgres.as_ref().expect("PostgreSQL");
            let mut connection = sqlx::PgConnection::connect(url).await.expect("opens");
            connection.execute(AssertSqlSafe(sql)).await.map(drop).map_err(|error| error.to_string())
        }
    }
}

async fn stores_one_response_per_key(fixture: TestDatabase) {
    let database = &fixture.database;
    let stored =
        |status| StoredResponse { request_digest: "digest".to_owned(), outcome: json!({ "status": status }) };
    let response = |status| Some(keyed("ann", "key", 1, stored(status)));
    database.commit(Commit { response: response(201), ..Commit::default() }).await.expect("inserted");
    let again = database.commit(Commit { response: response(409), ..Commit::default() }).await;
    assert_eq!(again, Err(DatabaseError::DuplicateIdempotencyKey));
    assert_eq!(database.stored_response("ann", "key").await.expect("read"), Some(stored(201)));
    assert_eq!(database.stored_response("ben", "key").await.expect("read"), None);
    assert_eq!(database.delete_old_responses(at(1)).await, Ok(0));
    assert_eq!(database.delete_old_responses(at(2)).await, Ok(1));
    assert_eq!(database.stored_response("ann", "key").await.expect("read"), None);
    database.commit(Commit { response: response(409), ..Commit::default() }).await.expect("inserted again");
}

async fn concurrent_duplicates_are_applied_once(fixture: TestDatabase) {
    let (database, other) = (&fixture.database, fixture.reopen().await);
    let written = task("ann", "schema", "orders", "urgent");
    write(database, vec![put(&written, None)]).await.expect("inserted");
    let stored = StoredResponse { request_digest: "digest".to_owned(), outcome: json!({}) };
    let racers: Vec<_> = (0..16)
        .map(|number| {
            let database = if number % 2 == 0 { database.clone() } else { other.clone() };
            let mut mine = written.clone();
            mine.revision = 2;
            let answer = Some(keyed("ann", "key", 1, stored.clone()));
            let audit = vec![entry("task.modify", Some("ann"), None, number)];
            let commit =
                Commit { writes: vec![put(&mine, Some(1))], audit, response: answer, ..Commit::default() };
            tokio::spawn(async move { database.commit(commit).await })
        })
        .collect();
    let mut outcomes = Vec::new();
    for racer in racers {
        outcomes.push(racer.await.expect("no panic"));
    }
    // None of them gets a conflict, which would make it decide again.
    let applied = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    let duplicates =
        outcomes.iter().filter(|outcome| **outcome == Err(DatabaseError::DuplicateIdempotencyKey)).count();
    assert_eq!((applied, duplicates), (1, 15), "{outcomes:?}");
    number_all(database).await;
    assert_eq!(database.audit_head().await.expect("read").number, 1, "the duplicates wrote nothing");
}

async fn counts_tasks_and_approvals(fixture: TestDatabase) {
    let database = &fixture.database;
    assert_eq!(database.counts().await, Ok(DatabaseCounts::default()));
    assert_eq!(database.user_stats(&person("rob"), at(0)).await, Ok(UserStats::default()));
    let states = [TaskState::Draft, TaskState::Draft, TaskState::Reviewing, TaskState::Failed];
    for (number, state) in (0_u64..).zip(states) {
        let author = if number == 1 { "ben" } else { "ann" };
        let mut counted = task(author, "schema", "orders", "x");
        counted.state = state;
        let (mut to_rob, mut to_sue) = (approval(&counted.task, "rob", 1), approval(&counted.task, "sue", 1));
        to_rob.created_at = at(10 + number);
        to_sue.created_at = at(5 + number);
        counted.approvals = vec![to_rob, to_sue];
        write(database, vec![put(&counted, None)]).await.expect("inserted");
        if number > 0 {
            // Rob responds after 10, 20 and 60 seconds.
            let to_rob = &mut counted.approvals[0];
            to_rob.responded_at =
                Some(at(10 + number + [0, 10, 20, 60][usize::try_from(number).expect("small")]));
            to_rob.status = ApprovalStatus::Approved;
            to_rob.response_action = Some(DecisionKind::Approve);
            to_rob.reviewed_by = Some(person("rob"));
            to_rob.revision = 2;
            counted.revision = 2;
            write(database, vec![put(&counted, Some(1))]).await.expect("updated");
        }
    }
    let counts = DatabaseCounts {
        tasks: BTreeMap::from([(TaskState::Draft, 2), (TaskState::Reviewing, 1), (TaskState::Failed, 1)]),
        archived: 0,
        pending_approvals: 5,
        oldest_pending: Some(at(5)),
    };
    assert_eq!(database.counts().await, Ok(counts));
    let rob = UserStats {
        tasks: BTreeMap::new(),
        approvals: BTreeMap::from([(ApprovalStatus::Pending, 1), (ApprovalStatus::Approved, 3)]),
        mean_seconds: Some(30.0),
        median_seconds: Some(20.0),
        pending: 1,
        // Of the responses at 21, 32 and 73 seconds.
        approved_today: 2,
        rejected_today: 0,
        last_action_at: Some(at(73)),
    };
    assert_eq!(database.user_stats(&person("rob"), at(30)).await, Ok(rob));
    let ann = database.user_stats(&person("ann"), at(0)).await.expect("counted");
    let tasks = BTreeMap::from([(TaskState::Draft, 1), (TaskState::Reviewing, 1), (TaskState::Failed, 1)]);
    assert_eq!(ann, UserStats { tasks, ..UserStats::default() });
}

async fn commits_are_atomic(fixture: TestDatabase) {
    let database = &fixture.database;
    let (new, existing) = (task("ann", "schema", "a", "x"), task("ann", "schema", "b", "x"));
    write(database, vec![put(&existing, None)]).await.expect("inserted");
    let audit = vec![entry("task.create", None, None, 1)];
    let commit = Commit {
        writes: vec![put(&new, None), put(&existing, Some(9))],
        events: vec![event("task:created", &audit[0])],
        audit,
        ..Commit::default()
    };
    assert!(matches!(database.commit(commit).await, Err(DatabaseError::Conflict { .. })));
    assert_eq!(database.task(&new.task_id).await.expect("read"), None);
    number_all(database).await;
    assert_eq!(database.audit_head().await, Ok(ChainHead::origin()));
    assert!(database.events(0, 10).await.expect("read").is_empty());
}

async fn writes_only_changed_rows(fixture: TestDatabase) {
    let (database, other) = (&fixture.database, fixture.reopen().await);
    let mut first = task("ann", "schema", "orders", "old");
    first.metadata.tags.push("both".to_owned());
    write(database, vec![put(&first, None)]).await.expect("inserted");
    let task_id = first.task_id.clone();
    let change = async |database: &ade_store::Database, change: &dyn Fn(&mut StoredTask)| {
        let mut task = database.task(&task_id).await.expect("read").expect("exists");
        let seen = task.revision;
        change(&mut task);
        task.revision += 1;
        write(database, vec![put(&task, Some(seen))]).await.expect("updated");
        assert_eq!(database.task(&task_id).await.expect("read"), Some(task));
    };
    let tagged = async |tag: &str| {
        let filter = TaskFilter { tag: Some(tag.to_owned()), ..TaskFilter::default() };
        database.tasks(&filter, None, 10).await.expect("listed").len()
    };
    change(database, &|task| task.metadata.tags = vec!["both".to_owned(), "new".to_owned()]).await;
    assert_eq!((tagged("old").await, tagged("both").await, tagged("new").await), (0, 1, 1));
    change(&other, &|task| {
        let approvals = ["rob", "sue", "tim"].map(|user| approval(&task.task, user, 500));
        task.approvals = approvals.to_vec();
    })
    .await;
    change(database, &|task| {
        task.approvals[1].status = ApprovalStatus::Approved;
        task.approvals[1].revision += 1;
    })
    .await;
    let approved = ApprovalFilter { status: Some(ApprovalStatus::Approved), ..ApprovalFilter::default() };
    assert_eq!(database.approvals(&approved, 10).await.expect("listed").len(), 1);
    // The labels of reviewers are up to date.
    let seen_by = |user: &str| TaskFilter { visible_to: Some(person(user)), ..TaskFilter::default() };
    assert_eq!(database.tasks(&seen_by("tim"), None, 10).await.expect("listed").len(), 1);
}

async fn rules_version_changes_with_users_and_documents_only(fixture: TestDatabase) {
    let (database, other) = (&fixture.database, fixture.reopen().await);
    let mut versions = vec![database.rules_version().await.expect("read")];
    let user = |revision| {
        let user = User {
            user_id: person("ann"),
            name: "Ann".to_owned(),
            roles: BTreeSet::new(),
            manager_id: None,
            team: None,
            email: None,
            active: true,
            history: AccountHistory::default(),
        };
        Box::new(StoredUser { user, revision, password: None, invitation: None })
    };
    let document = |revision| Versioned { id: "x".to_owned(), revision, value: json!(1) };
    let mut changes =
        vec![Write::User { user: user(1), expected: None }, Write::User { user: user(2), expected: Some(1) }];
    for kind in [
        DocumentKind::Policy,
        DocumentKind::Delegation,
        DocumentKind::Resource,
        DocumentKind::Setting,
        DocumentKind::Feature,
    ] {
        changes.push(Write::Document { kind, document: document(1), expected: None });
        changes.push(Write::Document { kind, document: document(2), expected: Some(1) });
        changes.push(Write::DeleteDocument { kind, id: "x".to_owned(), expected: 2 });
    }
    for change in changes {
        let description = format!("{change:?}");
        write(database, vec![change]).await.expect("written");
        let now = other.rules_version().await.expect("read");
        assert!(!versions.contains(&now), "{description}");
        versions.push(now);
    }
    // Direct changes by SQL count as well.
    for sql in ["UPDATE users SET active = 0", "INSERT INTO documents VALUES ('policy', 'y', 1, '{}')"] {
        execute_sql(&fixture, sql).await.expect("executed");
        let now = other.rules_version().await.expect("read");
        assert!(!versions.contains(&now), "{sql}");
        versions.push(now);
    }
    let written = task("ann", "schema", "orders", "tag");
    write(database, vec![put(&written, None)]).await.expect("inserted");
    let late = Write::User { user: user(3), expected: Some(1) };
    assert!(matches!(write(database, vec![late]).await, Err(DatabaseError::Conflict { .. })));
    let (of_history, _) = other.task_history("schema", 50).await.expect("read");
    let read = other.task(&written.task_id).await.expect("read").expect("exists");
    let last = versions.last();
    assert_eq!((last, last), (Some(&of_history), read.loaded_version.rules_version()));
    assert_eq!(last, Some(&database.rules_version().await.expect("read")));
}
