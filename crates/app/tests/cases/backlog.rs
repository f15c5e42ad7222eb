//! A backlog: what waits becomes more urgent, and what is harmless may pass. And the locks that reviewers are shown.

use std::sync::Arc;
use std::time::Duration;

use ade_app::tasks::{Imagined, TaskService};
use ade_domain::approval::policy::{AutoApprove, Priority, default_policy};
use ade_domain::lock::{Acquire, Holder, LockCommand, Mode, RequestKey};
use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_domain::task::{LockPreview, Resource, ResourceMode, State};
use ade_store::database::StoredTask;
use ade_store::{Coordination, EmbeddedCoordination};
use serde_json::json;

use crate::office::{Office, caller, draft, on_both, submitted};

on_both!(
    in_a_backlog_what_waits_becomes_more_urgent_step_by_step,
    in_a_backlog_what_is_harmless_passes_if_its_policies_allow_it,
    reviewers_see_which_locks_are_needed_and_who_holds_them,
);

async fn in_a_backlog_what_waits_becomes_more_urgent_step_by_step(office: Office) {
    office.hire("ann", &[AUTHOR]).await;
    office.hire("rob", &[REVIEWER]).await;
    let (rules, desk, max) = (office.rules(), office.desk(), caller("max", &[ADMIN]));
    rules.set("approval:default_timeout", json!(400), &max).await.expect("set");
    let old = submitted(&desk, "old").await;
    let risk = u32::from(old.risk_score());
    office.clock.advance(Duration::from_secs(150));
    let new = submitted(&desk, "new").await;
    let now = async |task: &StoredTask| {
        let task = office.task(&task.task_id).await;
        let one = &task.approvals[0];
        assert_eq!(one.score, risk * 10 + one.priority.bonus());
        one.priority
    };
    assert_eq!(desk.work_off().await, Ok(0), "there is no backlog");
    rules.set("approval:backlog_threshold", json!(1), &max).await.expect("set");
    // By three processes at once: each step happens once.
    let others = [office.another_desk().await, office.another_desk().await];
    let done = tokio::join!(desk.work_off(), others[0].work_off(), others[1].work_off());
    assert!(done.0.is_ok() && done.1.is_ok() && done.2.is_ok(), "{done:?}");
    assert_eq!((now(&old).await, now(&new).await), (Priority::High, Priority::Normal));
    assert_eq!(desk.work_off().await, Ok(0), "once");
    office.clock.advance(Duration::from_secs(100));
    // 250 of 400 seconds: the second quarter; 100 of 400: the first.
    assert_eq!(desk.work_off().await, Ok(2));
    assert_eq!((now(&old).await, now(&new).await), (Priority::Urgent, Priority::High));
    let told = office.told(Some(&old.task_id)).await;
    assert_eq!(told.iter().filter(|action| *action == "approval.raise").count(), 2);
    office.clock.advance(Duration::from_secs(60));
    assert_eq!(desk.work_off().await, Ok(0), "more urgent than urgent there is not");
    let entries = office.entries().await;
    let raised = entries.iter().find(|entry| entry.action == "approval.raise").expect("told");
    assert_eq!((&raised.who.user_id, raised.object_type.as_str()), (&None, "approval"));
}

async fn in_a_backlog_what_is_harmless_passes_if_its_policies_allow_it(office: Office) {
    office.hire("ann", &[AUTHOR]).await;
    office.hire("rob", &[REVIEWER]).await;
    let (rules, desk, max) = (office.rules(), office.desk(), caller("max", &[ADMIN]));
    for (name, task_type, below, role) in [
        ("strict", "strict", None, None),
        ("lax", "lax", Some(1), None),
        ("own", "own", Some(1), Some("dba")),
        ("both", "*x", Some(1), None),
    ] {
        let mut policy = default_policy();
        (policy.name, policy.task_types) = (name.to_owned(), vec![task_type.to_owned()]);
        policy.auto_approve_if = below.map(|below| AutoApprove {
            risk_below: Some(below),
            author_has_role: role.map(str::to_owned).into_iter().collect(),
            resources_in_scope: Vec::new(),
        });
        office.rule(policy).await;
    }
    let ann = caller("ann", &[AUTHOR]);
    let submit = async |task_type: &str| {
        let mut draft = draft("something");
        draft.config.task_type = task_type.to_owned();
        let task = desk.create(draft, &ann).await.expect("made");
        desk.submit(&task.task_id, &ann).await.expect("submitted").task
    };
    assert_eq!(submit("lax").await.state, State::Reviewing);
    rules.set("approval:backlog_threshold", json!(0), &max).await.expect("set");
    assert_eq!(submit("lax").await.state, State::Reviewing, "the flag is off");
    rules.switch("auto_approve_low_risk", true, &max).await.expect("on");
    // 0.3 × 100: without a preview, and without resources.
    assert_eq!(submit("lax").await.state, State::Reviewing, "its level is MEDIUM");
    rules
        .set("risk:thresholds", json!({ "medium": 31, "high": 50, "critical": 75 }), &max)
        .await
        .expect("set");
    let passed = submit("lax").await;
    assert_eq!(passed.state, State::Approved);
    let why = passed.auto_approved.expect("explained");
    assert!(
        why.starts_with("approved automatically at level LOW") && why.ends_with("lax: the risk is low"),
        "{why}"
    );
    assert_eq!(submit("strict").await.state, State::Reviewing, "it has no conditions for automatic approval");
    assert_eq!(submit("own").await.state, State::Reviewing, "the other conditions count as they are");
    assert_eq!(submit("other").await.state, State::Reviewing, "the default asks somebody");
    assert_eq!(submit("lax").await.state, State::Approved);
    rules.set("approval:backlog_threshold", json!(1_000), &max).await.expect("set");
    assert_eq!(submit("lax").await.state, State::Reviewing, "there is no backlog any more");
}

async fn hold(locks: &Arc<dyn Coordination>, lock: &str, agent: &str) {
    let wish = Acquire {
        holder: Holder::new(agent, None).expect("a name"),
        request: RequestKey::once(1),
        remember: false,
        mode: Mode::Exclusive,
        ttl_ms: 30_000,
        claimed: true,
        wait: None,
        purpose: "".into(),
        priority: 0,
    };
    let commands = vec![(lock.parse().expect("a name"), LockCommand::Acquire(wish))];
    locks.commands(commands).await.expect("answered");
}

async fn reviewers_see_which_locks_are_needed_and_who_holds_them(office: Office) {
    office.hire("ann", &[AUTHOR]).await;
    office.hire("rob", &[REVIEWER]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let clock = Arc::new(office.clock.clone());
    let options = ade_store::embedded::Options::default();
    let locks: Arc<dyn Coordination> =
        Arc::new(EmbeddedCoordination::open(folder.path(), options, clock.clone()).expect("opens"));
    let resource =
        |id: &str, mode| Resource { resource_type: "database".to_owned(), id: id.to_owned(), mode };
    let mut wanted = draft("something");
    wanted.config.resources =
        vec![resource("users", ResourceMode::Exclusive), resource("orders", ResourceMode::Shared)];
    let ann = caller("ann", &[AUTHOR]);
    // Nobody can look: it says so, and goes on.
    let blind = office.desk();
    let task = blind.create(wanted.clone(), &ann).await.expect("made");
    assert!(task.lock_preview.iter().all(|lock| lock.unavailable) && task.lock_preview.len() == 3);
    let id = &task.task_id;

    let desk = TaskService::new(office.record.clone(), clock, Some(locks.clone()));
    hold(&locks, "resource:database:users", "robot").await;
    let task = desk.submit(id, &ann).await.expect("submitted");
    let seen = |lock: &str, mode, holders: &[&str], wait| LockPreview {
        lock: lock.to_owned(),
        mode,
        holders: holders.iter().map(|one| (*one).to_owned()).collect(),
        waiting: 0,
        expected_wait_seconds: wait,
        unavailable: false,
    };
    let own = seen(&format!("task:{id}"), ResourceMode::Exclusive, &[], 0);
    let users = seen("resource:database:users", ResourceMode::Exclusive, &["robot"], 30);
    let orders = seen("resource:database:orders", ResourceMode::Shared, &[], 0);
    assert_eq!(task.lock_preview, [own, users.clone(), orders.clone()]);
    assert_eq!(office.task(id).await, task);
    office.clock.advance(Duration::from_secs(10));
    let imagined = Imagined {
        authors: None,
        config: wanted.config.clone(),
        metadata: wanted.metadata.clone(),
        preview: wanted.preview.clone(),
        at: None,
        policies: Vec::new(),
    };
    let simulated = desk.simulate(&imagined, &ann).await.expect("simulated");
    assert_eq!(simulated.locks, [LockPreview { expected_wait_seconds: 20, ..users }, orders]);
    let fewer = |task: &StoredTask| {
        let mut config = task.config.clone();
        config.resources.pop();
        Ok((config, task.metadata.clone(), task.preview.clone()))
    };
    assert_eq!(desk.modify(id, fewer, &ann).await.expect("changed").lock_preview.len(), 2);
}
