//! Tasks under concurrency: one decision wins, it counts only for the digest that was reviewed, and batches are atomic.

use std::collections::BTreeSet;
use std::time::Duration;

use ade_app::audit::CheckpointFile;
use ade_app::tasks::{BatchItem, DecisionBatch, SimulationInput, TaskAction, TaskDraft};
use ade_app::{AuditService, Caller, Error, ObjectKind};
use ade_domain::approval::ApprovalStatus;
use ade_domain::approval::policy::{Policy, default_policy};
use ade_domain::audit::AuditActor;
use ade_domain::glob::Pattern;
use ade_domain::people::{ADMIN, AUTHOR, REVIEWER, UserId};
use ade_domain::permission::Scope;
use ade_domain::task::Refusal;
use ade_domain::task::{Preview, TaskState};
use ade_store::database::{AuditFilter, AuditRow, StoredTask};
use ade_testkit::{SeededRng, effort};

use crate::fixture::{
    Fixture, approval_of, approve, approve_all, caller, confirm_override, draft, on_both_databases, reject,
    submitted,
};

on_both_databases!(
    only_one_of_sixteen_concurrent_decisions_wins,
    approval_racing_a_change_counts_only_for_its_digest,
    batch_is_atomic,
    concurrent_processes_escalate_once,
    expired_approval_goes_back_into_review,
    hides_tasks_from_others,
    override_needs_a_second_administrator_and_no_author,
    simulation_matches_submission,
    replay_lists_exactly_the_differing_tasks,
    service_cancels_and_views_the_audit_log_only,
);

async fn service_cancels_and_views_the_audit_log_only(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("rob", &[REVIEWER]).await;
    let (service, ann) = (fixture.service(), caller("ann", &[AUTHOR]));
    let actor = AuditActor { service: Some("a job".to_owned()), ..AuditActor::default() };
    let itself = Caller::service(actor);
    let draft = service.create(draft("two"), &ann).await.expect("created");
    let task = submitted(&service, "one").await;
    for refused in [
        service.submit(&draft.task_id, &itself).await,
        service.modify(&draft.task_id, |task| Ok(TaskDraft::of(task)), &itself).await,
        service.resubmit(&task.task_id, &itself).await,
    ] {
        assert_eq!(refused, Err(Error::Refused(Refusal::Forbidden)));
    }
    let decided = service.decide(approval_of(&task, "rob"), &approve(&task), &itself).await;
    assert!(matches!(decided, Err(Error::Scope(_))), "{decided:?}");
    let cancel = TaskAction::Cancel { reason: Some("expired".to_owned()) };
    let cancelled = service.perform(&task.task_id, &cancel, &itself).await.expect("permitted");
    assert_eq!(cancelled.state, TaskState::Cancelled);
    fixture.entries().await;
    let audits =
        AuditService::new(fixture.context(), service, CheckpointFile::in_folder(fixture.folder.path()));
    let filter = AuditFilter { task: Some(task.task_id.clone()), ..AuditFilter::default() };
    let seen = audits.entries(filter, 0, 100, &itself).await.expect("permitted");
    let is_cancel = |row: &AuditRow| row.entry().is_ok_and(|entry| entry.body.action == "task.cancel");
    assert!(seen.iter().any(is_cancel), "{seen:?}");
}

async fn only_one_of_sixteen_concurrent_decisions_wins(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    for number in 0..16 {
        fixture.add_user(&format!("r{number:02}"), &[REVIEWER]).await;
    }
    let task = submitted(&fixture.service(), "race").await;
    assert_eq!(task.approvals.len(), 16);
    let mut racers = Vec::new();
    for number in 0..16 {
        let (service, name) = (fixture.other_process().await, format!("r{number:02}"));
        let approval = approval_of(&task, &name).to_owned();
        let response = if number % 2 == 0 { approve(&task) } else { reject() };
        racers.push(tokio::spawn(async move {
            service.decide(&approval, &response, &caller(&name, &[REVIEWER])).await
        }));
    }
    let (mut decided, mut late) = (Vec::new(), 0);
    for racer in racers {
        match racer.await.expect("no panic") {
            Ok(task) => decided.push(task.state),
            Err(Error::Refused(Refusal::AlreadyDecided { state })) => {
                assert!(matches!(state, TaskState::Approved | TaskState::Rejected));
                late += 1;
            }
            Err(other) => unreachable!("{other}"),
        }
    }
    assert_eq!((decided.len(), late), (1, 15));
    let actions = fixture.audit_actions(Some(&task.task_id)).await;
    let decisions =
        actions.iter().filter(|action| *action == "task.approve" || *action == "task.reject").count();
    assert_eq!(decisions, 1, "{actions:?}");
    let now = fixture.database.task(&task.task_id).await.expect("read").expect("exists");
    assert_eq!(now.state, decided[0]);
    assert_eq!(now.approvals.iter().filter(|approval| approval.status == ApprovalStatus::Closed).count(), 15);
}

async fn approval_racing_a_change_counts_only_for_its_digest(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("rob", &[REVIEWER]).await;
    let (service, author, rob) = (fixture.service(), caller("ann", &[AUTHOR]), caller("rob", &[REVIEWER]));
    let (mut before, mut after) = (0, 0);
    for round in 0..20 {
        let task = submitted(&service, &format!("first {round}")).await;
        let (task_id, digest) = (task.task_id.clone(), task.digest);
        let approval = approval_of(&task, "rob").to_owned();
        let response = approve(&task);
        let change = |task: &StoredTask| {
            let mut config = task.config.clone();
            config.description = "second".to_owned();
            Ok(TaskDraft { config, ..TaskDraft::of(task) })
        };
        let (approved, modified) = tokio::join!(
            service.decide(&approval, &response, &rob),
            service.modify(&task_id, change, &author)
        );
        modified.expect("a task can be changed until it is applied");
        let now = fixture.database.task(&task_id).await.expect("read").expect("exists");
        assert_ne!(now.digest, digest);
        assert_eq!(now.state, TaskState::Reviewing, "the change has no approval");
        match approved {
            Ok(_) => before += 1,
            Err(Error::Refused(Refusal::DigestMismatch)) => after += 1,
            Err(other) => unreachable!("{other}"),
        }
    }
    assert_eq!(before + after, 20);
}

async fn batch_is_atomic(fixture: Fixture) {
    let size = effort::rounds(40, 500) as usize;
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("rob", &[REVIEWER]).await;
    fixture.add_user("sue", &[REVIEWER]).await;
    let service = fixture.service();
    let mut tasks = Vec::new();
    for number in 0..size {
        tasks.push(submitted(&service, &number.to_string()).await);
    }
    let batch = approve_all(&tasks, "rob");
    let (rob, sue) = (caller("rob", &[REVIEWER]), caller("sue", &[REVIEWER]));
    let against = reject();
    let (batched, rejected) = tokio::join!(
        service.decide_batch(&batch, &rob),
        service.decide(approval_of(&tasks[size / 2], "sue"), &against, &sue)
    );
    let mut states: Vec<TaskState> = Vec::new();
    for task in &tasks {
        states.push(fixture.database.task(&task.task_id).await.expect("read").expect("exists").state);
    }
    let approved = states.iter().filter(|state| **state == TaskState::Approved).count();
    match (batched, rejected) {
        (Ok(changed), Err(Error::Refused(Refusal::AlreadyDecided { .. }))) => {
            assert_eq!((changed.len(), approved), (size, size));
        }
        (Err(Error::Batch(refused)), Ok(_)) => {
            assert_eq!((refused.len(), approved), (1, 0));
            assert_eq!(refused[0].0, batch.items[size / 2].approval_id);
        }
        other => unreachable!("{other:?}"),
    }
    let unknown = DecisionBatch {
        items: vec![BatchItem { approval_id: "x".to_owned(), digest: None, scope_digest: None }],
        ..batch.clone()
    };
    assert!(matches!(service.decide_batch(&unknown, &rob).await, Err(Error::Batch(_))));
    let empty = DecisionBatch { items: Vec::new(), ..batch };
    assert!(matches!(service.decide_batch(&empty, &rob).await, Err(Error::Invalid(_))));
}

async fn concurrent_processes_escalate_once(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("rob", &[REVIEWER]).await;
    fixture.add_user("max", &[ADMIN]).await;
    let mut tasks = Vec::new();
    for number in 0..10 {
        tasks.push(submitted(&fixture.service(), &number.to_string()).await);
    }
    fixture.clock.advance(Duration::from_secs(48 * 3_600));
    let mut processes = Vec::new();
    for _ in 0..3 {
        let service = fixture.other_process().await;
        processes.push(tokio::spawn(async move { service.process_timeouts().await }));
    }
    for process in processes {
        process.await.expect("no panic").expect("worked off");
    }
    for task in &tasks {
        let now = fixture.database.task(&task.task_id).await.expect("read").expect("exists");
        let reviewers: Vec<&str> =
            now.approvals.iter().map(|approval| approval.reviewer_id.as_str()).collect();
        assert_eq!(reviewers, ["rob", "max"]);
    }
    let actions = fixture.audit_actions(None).await;
    assert_eq!(actions.iter().filter(|action| *action == "approval.escalate").count(), 10);
}

async fn expired_approval_goes_back_into_review(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("rob", &[REVIEWER]).await;
    let service = fixture.service();
    let task = submitted(&service, "old").await;
    let rob = caller("rob", &[REVIEWER]);
    let task = service.decide(approval_of(&task, "rob"), &approve(&task), &rob).await.expect("approved");
    assert_eq!(task.state, TaskState::Approved);
    fixture.clock.advance(Duration::from_secs(7 * 86_400 - 1));
    assert_eq!(service.process_timeouts().await, Ok(0));
    fixture.clock.advance(Duration::from_secs(1));
    assert_eq!(service.process_timeouts().await, Ok(1));
    let now = service.task(&task.task_id, &rob).await.expect("visible");
    assert_eq!(now.state, TaskState::Reviewing);
    let statuses: Vec<ApprovalStatus> = now.approvals.iter().map(|approval| approval.status).collect();
    assert_eq!(statuses, [ApprovalStatus::Invalidated, ApprovalStatus::Pending]);
    assert_eq!(service.process_timeouts().await, Ok(0), "once");
}

async fn hides_tasks_from_others(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("rob", &[REVIEWER]).await;
    let mut own = default_policy();
    (own.name, own.reviewers) = ("own".to_owned(), vec![UserId::new("rob")]);
    fixture.add_policy(own).await;
    let service = fixture.service();
    let task = submitted(&service, "secret").await;
    let id = &task.task_id;
    for (who, roles, sees) in [
        ("ann", AUTHOR, true),
        ("rob", REVIEWER, true),
        ("max", ADMIN, true),
        ("vera", "auditor", true),
        ("eve", REVIEWER, false),
    ] {
        let seen = service.task(id, &caller(who, &[roles])).await;
        assert_eq!(seen.is_ok(), sees, "{who}: {seen:?}");
    }
    // A token without the scope cannot approve, whatever the roles: an agent that finds it gains nothing.
    let mut without = caller("rob", &[REVIEWER]);
    without.scopes.remove(&Scope::Decide);
    let refused = service.decide(approval_of(&task, "rob"), &approve(&task), &without).await;
    assert_eq!(refused, Err(Error::Scope(Scope::Decide)));
    // An agent acts as an author, whatever roles its sponsor has.
    let mut agent = caller("rob", &[REVIEWER, ADMIN]);
    agent.agent_id = Some("robot".to_owned());
    let refused = service.decide(approval_of(&task, "rob"), &approve(&task), &agent).await;
    assert_eq!(
        refused,
        Err(Error::NotFound(ObjectKind::Approval)),
        "agents do not see what their sponsors review"
    );
}

async fn simulation_matches_submission(fixture: Fixture) {
    let names = ["ann", "rob", "sue", "eve", "max"];
    for (name, roles) in names.iter().zip([
        &[AUTHOR][..],
        &[REVIEWER],
        &[REVIEWER, "dba"],
        &[REVIEWER, ADMIN],
        &[AUTHOR, ADMIN],
    ]) {
        fixture.add_user(name, roles).await;
    }
    let service = fixture.service();
    let mut policies: Vec<Policy> = Vec::new();
    for (number, kind) in ["schema", "config", "*"].into_iter().enumerate() {
        let mut policy = default_policy();
        policy.name = format!("p{number}");
        policy.task_types = vec![kind.to_owned()];
        policies.push(policy);
    }
    policies[0].required_roles = vec!["dba".to_owned()];
    policies[1].risk_threshold = 40;
    policies[1].min_approvers = 2;
    policies[2].auto_approve_if =
        Some(ade_domain::approval::policy::AutoApprove { risk_below: Some(45), ..Default::default() });
    policies[2].resource_patterns = vec![Pattern::new("database:*")];
    for policy in &policies {
        fixture.add_policy(policy.clone()).await;
    }
    let mut kinds = BTreeSet::new();
    for (seed, round) in effort::seeded_rounds(effort::rounds(20, 1_000)) {
        let mut rng = SeededRng::new(seed, round);
        let mut pick = |many: u64| usize::try_from(rng.below(many)).expect("small");
        let author = caller(["ann", "max"][pick(2)], &[AUTHOR]);
        let mut draft = draft("something");
        draft.config.task_type = ["schema", "config", "other"][pick(3)].to_owned();
        draft.preview = Preview::ready();
        draft.config.resources = (0..pick(4))
            .map(|number| ade_domain::task::Resource {
                resource_type: "database".to_owned(),
                id: number.to_string(),
                mode: ade_domain::lock::LockMode::Exclusive,
            })
            .collect();
        let input = SimulationInput::new(draft.clone(), None, Vec::new());
        let simulated = service.simulate(&input, &author).await.expect("simulated");
        let task = service.create(draft, &author).await.expect("created");
        assert_eq!(task.risk.as_ref(), Some(&simulated.risk));
        match (service.submit(&task.task_id, &author).await, simulated.assignment) {
            (Ok(task), Ok(assignment)) => {
                assert_eq!(task.requirements, assignment.requirements);
                assert_eq!(task.considered_policies, assignment.considered_policies);
                assert_eq!(task.auto_approved, assignment.auto_approved);
                let reviewers: BTreeSet<&str> =
                    task.approvals.iter().map(|approval| approval.reviewer_id.as_str()).collect();
                let assigned: BTreeSet<&str> =
                    assignment.assignees.iter().map(|assignee| assignee.reviewer_id.as_str()).collect();
                assert_eq!(reviewers, assigned);
                kinds.insert(task.state);
            }
            (Err(Error::Refused(Refusal::QuorumUnreachable(refused))), Err(simulated)) => {
                assert_eq!(refused, simulated);
            }
            other => unreachable!("{other:?}"),
        }
    }
    assert_eq!(kinds.len(), 2, "some are reviewed and some are auto-approved: {kinds:?}");
}

async fn replay_lists_exactly_the_differing_tasks(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("rob", &[REVIEWER]).await;
    fixture.add_user("sue", &[REVIEWER, "dba"]).await;
    let (service, author) = (fixture.service(), caller("ann", &[AUTHOR]));
    let mut schema = BTreeSet::new();
    for number in 0..9 {
        let mut draft = draft(&number.to_string());
        draft.config.task_type = ["schema", "config", "other"][number % 3].to_owned();
        let task = service.create(draft, &author).await.expect("created");
        // Drafts are not replayed.
        if number != 3 {
            service.submit(&task.task_id, &author).await.expect("submitted");
            if number % 3 == 0 {
                schema.insert(task.task.task_id);
            }
        }
    }
    let mut drafted = default_policy();
    (drafted.name, drafted.task_types) = ("databases".to_owned(), vec!["schema".to_owned()]);
    drafted.required_roles = vec!["dba".to_owned()];
    let replay = service.replay(&drafted, &author).await.expect("replayed");
    assert_eq!(replay.replayed, 8);
    let differs = replay.differences;
    let found: BTreeSet<String> = differs.iter().map(|difference| difference.task_id.clone()).collect();
    assert_eq!(found, schema);
    assert_eq!(differs[0].before, "1 of rob, sue for default");
    assert_eq!(differs[0].after, "1 of sue for databases");
    let actions = fixture.audit_actions(None).await;
    fixture.add_policy(drafted).await;
    let unchanged = service.replay(&default_policy(), &author).await.expect("replayed");
    assert!(unchanged.differences.is_empty());
    assert_eq!(fixture.audit_actions(None).await, actions, "a replay changes nothing");
}

async fn override_needs_a_second_administrator_and_no_author(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("rob", &[REVIEWER]).await;
    fixture.add_user("max", &[ADMIN]).await;
    fixture.add_user("pam", &[ADMIN]).await;
    let service = fixture.service();
    let task = submitted(&service, "now").await;
    let id = &task.task_id;
    let reason = || Some("outage".to_owned());
    let (max, pam) = (caller("max", &[ADMIN]), caller("pam", &[ADMIN]));
    let author = caller("ann", &[AUTHOR, ADMIN]);
    let ask = TaskAction::RequestOverride { reason: reason(), incident_ticket: Some("INC-1".to_owned()) };
    let own = |outcome: Result<StoredTask, Error>| {
        assert!(matches!(outcome, Err(Error::Refused(Refusal::OwnTask { .. }))), "{outcome:?}");
    };
    own(service.perform(id, &ask, &author).await);
    let asked = service.perform(id, &ask, &max).await.expect("by an administrator");
    own(service.perform(id, &confirm_override(&task), &author).await);
    let same = service.perform(id, &confirm_override(&task), &max).await;
    assert!(matches!(same, Err(Error::Refused(Refusal::SameAdmin { .. }))));
    let of_current = Caller { if_match: Some(asked.revision), ..pam.clone() };
    let task = service.perform(id, &confirm_override(&task), &of_current).await.expect("confirmed");
    assert_eq!(task.state, TaskState::Approved);
    own(service.perform(id, &TaskAction::ForceApply { reason: reason() }, &author).await);
    assert!(
        service.perform(id, &TaskAction::ForceApply { reason: reason() }, &max).await.expect("forced").forced
    );
    let revoked = service.perform(id, &TaskAction::Revoke { reason: reason() }, &pam).await.expect("revoked");
    assert_eq!((revoked.state, revoked.forced), (TaskState::Rejected, false));
    let late = service.perform(id, &TaskAction::Cancel { reason: None }, &author).await;
    assert!(matches!(late, Err(Error::Refused(Refusal::InvalidTransition(_)))));
    let actions = fixture.audit_actions(Some(id)).await;
    let expected =
        ["task.override", "task.confirm_override", "approval.resolve", "task.force_apply", "task.revoke"];
    assert_eq!(actions[actions.len() - 5..], expected, "{actions:?}");
}
