//! Backlogs: waiting requests are raised, and low-risk tasks may be approved automatically. Also the lock preview for reviewers.

use std::sync::Arc;
use std::time::Duration;

use ade_app::Context;
use ade_app::tasks::{DecisionInput, PreviewConfig, SimulationInput, TaskDraft, TaskService};
use ade_domain::approval::DecisionKind;
use ade_domain::approval::policy::{AutoApprove, Priority, default_policy};
use ade_domain::glob::Pattern;
use ade_domain::lock::{Acquisition, Holder, LockCommand, LockMode, RequestKey};
use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_domain::task::{LockPreview, Preview, Resource, Task, TaskState};
use ade_store::database::StoredTask;
use ade_store::redis::RedisOptions;
use ade_store::{Coordination, RedisCoordination};
use ade_testkit::Redis;
use serde_json::json;

use crate::fixture::{Fixture, caller, draft, on_both_databases, reject, submitted};

on_both_databases!(
    raises_priority_of_waiting_requests_in_a_backlog,
    approves_waiting_tasks_in_a_backlog_if_policies_allow_it,
    previews_needed_locks_and_their_holders,
);

async fn raises_priority_of_waiting_requests_in_a_backlog(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("rob", &[REVIEWER]).await;
    let (rules, service, max) = (fixture.rules(), fixture.service(), caller("max", &[ADMIN]));
    rules.set_setting("approval:default_timeout", json!(400), &max).await.expect("set");
    let old = submitted(&service, "old").await;
    let risk = u32::from(old.risk_score());
    fixture.clock.advance(Duration::from_secs(150));
    let new = submitted(&service, "new").await;
    let priority = async |task: &StoredTask| {
        let task = fixture.task(&task.task_id).await;
        let approval = &task.approvals[0];
        assert_eq!(approval.score, risk * 10 + approval.priority.bonus());
        approval.priority
    };
    assert_eq!(service.process_timeouts().await, Ok(0), "there is no backlog");
    rules.set_setting("approval:backlog_threshold", json!(1), &max).await.expect("set");
    // Three processes at once: each step happens once.
    let others = [fixture.other_process().await, fixture.other_process().await];
    let done =
        tokio::join!(service.process_timeouts(), others[0].process_timeouts(), others[1].process_timeouts());
    assert!(done.0.is_ok() && done.1.is_ok() && done.2.is_ok(), "{done:?}");
    assert_eq!((priority(&old).await, priority(&new).await), (Priority::High, Priority::Normal));
    assert_eq!(service.process_timeouts().await, Ok(0), "once");
    fixture.clock.advance(Duration::from_secs(100));
    // 250 of 400 seconds: the second quarter; 100 of 400: the first.
    assert_eq!(service.process_timeouts().await, Ok(2));
    assert_eq!((priority(&old).await, priority(&new).await), (Priority::Urgent, Priority::High));
    let actions = fixture.audit_actions(Some(&old.task_id)).await;
    assert_eq!(actions.iter().filter(|action| *action == "approval.raise").count(), 2);
    fixture.clock.advance(Duration::from_secs(60));
    assert_eq!(service.process_timeouts().await, Ok(0), "urgent is the highest priority");
    let entries = fixture.entries().await;
    let raised = entries.iter().find(|entry| entry.action == "approval.raise").expect("audited");
    assert_eq!((raised.who.user_id(), raised.object_type.as_str()), (None, "approval"));
}

async fn approves_waiting_tasks_in_a_backlog_if_policies_allow_it(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("rob", &[REVIEWER]).await;
    let (rules, service, max) = (fixture.rules(), fixture.service(), caller("max", &[ADMIN]));
    let ann = caller("ann", &[AUTHOR]);
    let submit = async |id: &str| {
        let mut draft = draft("something");
        draft.config.resources =
            vec![Resource { resource_type: "docs".to_owned(), id: id.to_owned(), mode: LockMode::Shared }];
        draft.preview = Preview::ready();
        let task = service.create(draft, &ann).await.expect("created");
        service.submit(&task.task_id, &ann).await.expect("submitted").task
    };
    let [wiki, faq, other] = [submit("wiki").await, submit("faq").await, submit("plans").await];
    let state = async |task: &Task| fixture.task(&task.task_id).await.state;
    for (pattern, below) in [("docs:wiki", 40), ("docs:faq", 40), ("docs:plans", 1)] {
        let mut policy = default_policy();
        policy.name = pattern.to_owned();
        policy.resource_patterns = vec![Pattern::new(pattern)];
        policy.auto_approve_if = Some(AutoApprove { risk_below: Some(below), ..AutoApprove::default() });
        fixture.add_policy(policy).await;
    }
    let objection = DecisionInput { action: DecisionKind::RequestChanges, ..reject() };
    let request = &faq.approvals.first().expect("asked").approval_id;
    service.decide(request, &objection, &caller("rob", &[REVIEWER])).await.expect("decided");
    service.process_timeouts().await.expect("processed");
    assert_eq!(state(&wiki).await, TaskState::Reviewing, "there is no backlog");
    rules.set_setting("approval:backlog_threshold", json!(0), &max).await.expect("set");
    service.process_timeouts().await.expect("processed");
    assert_eq!(state(&wiki).await, TaskState::Reviewing, "the flag is off");
    rules.set_feature("auto_approve_low_risk", true, &max).await.expect("enabled");
    // More than one batch of newer tasks, of which none can be approved.
    fixture.store_copies(&fixture.task(&other.task_id).await, 120).await;
    for _ in 0..2 {
        service.process_timeouts().await.expect("processed");
    }
    let approved = fixture.task(&wiki.task_id).await;
    assert_eq!(approved.state, TaskState::Approved);
    let why = approved.auto_approved.clone().expect("has a reason");
    assert!(
        why.starts_with("approved automatically because of a backlog") && why.contains("docs:wiki"),
        "{why}"
    );
    assert_eq!(state(&faq).await, TaskState::Reviewing, "somebody has objected");
    assert_eq!(state(&other).await, TaskState::Reviewing, "its policy has a lower limit");
}

async fn hold(locks: &Arc<dyn Coordination>, lock: &str, agent: &str) {
    let acquire = Acquisition {
        holder: Holder::new(agent, None).expect("valid name"),
        request: RequestKey::from_nonce(1),
        leave_tombstone: false,
        mode: LockMode::Exclusive,
        ttl_ms: 30_000,
        claimed: true,
        wait: None,
        purpose: "".into(),
        priority: 0,
    };
    let commands = vec![(lock.parse().expect("valid name"), LockCommand::Acquire(acquire))];
    locks.execute_commands(commands).await.expect("reachable");
}

async fn previews_needed_locks_and_their_holders(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("rob", &[REVIEWER]).await;
    let resource =
        |id: &str, mode| Resource { resource_type: "database".to_owned(), id: id.to_owned(), mode };
    let mut draft = draft("something");
    draft.config.resources =
        vec![resource("users", LockMode::Exclusive), resource("orders", LockMode::Shared)];
    let ann = caller("ann", &[AUTHOR]);
    // While coordination is unavailable, the locks are marked as such.
    let server = Redis::start().expect("starts");
    let url = server.url().parse().expect("valid URL");
    let unavailable = RedisCoordination::open(&url, RedisOptions::default()).await.expect("connected");
    drop(server);
    let context = Context { coordination: Arc::new(unavailable), ..fixture.context() };
    let blind = TaskService::new(context, PreviewConfig::default());
    let task = blind.create(draft.clone(), &ann).await.expect("created");
    assert!(task.lock_preview.iter().all(|lock| lock.unavailable) && task.lock_preview.len() == 3);
    let id = &task.task_id;

    let service = fixture.service();
    hold(&fixture.coordination, "resource:database:users", "robot").await;
    let task = service.submit(id, &ann).await.expect("submitted");
    let preview = |lock: &str, mode, holders: &[&str], wait| LockPreview {
        lock: lock.to_owned(),
        mode,
        holders: holders.iter().map(|holder| (*holder).to_owned()).collect(),
        queue_length: 0,
        expected_wait_seconds: wait,
        unavailable: false,
    };
    let own = preview(&format!("task:{id}"), LockMode::Exclusive, &[], 0);
    let users = preview("resource:database:users", LockMode::Exclusive, &["robot"], 30);
    let orders = preview("resource:database:orders", LockMode::Shared, &[], 0);
    assert_eq!(task.lock_preview, [own, users.clone(), orders.clone()]);
    assert_eq!(fixture.task(id).await, task);
    fixture.clock.advance(Duration::from_secs(10));
    let input = SimulationInput::new(draft.clone(), None, Vec::new());
    let simulated = service.simulate(&input, &ann).await.expect("simulated");
    assert_eq!(simulated.locks, [LockPreview { expected_wait_seconds: 20, ..users }, orders]);
    let fewer = |task: &StoredTask| {
        let mut config = task.config.clone();
        config.resources.pop();
        Ok(TaskDraft { config, ..TaskDraft::of(task) })
    };
    assert_eq!(service.modify(id, fewer, &ann).await.expect("changed").lock_preview.len(), 2);
}
