//! Friction through the services: the same is asked for on every path on which a person approves, the password has an age in sessions
//! and tokens, and risky tasks are held before they are applied.

use std::time::Duration;

use ade_app::accounts::{InvitationDraft, TokenDraft};
use ade_app::tasks::{BatchItem, DecisionBatch, DecisionInput, TaskAction, TaskService};
use ade_app::{AccountService, Caller, Error};
use ade_domain::approval::DecisionKind;
use ade_domain::audit::AuditActor;
use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_domain::permission::Scope;
use ade_domain::risk::RiskLevel;
use ade_domain::task::{Answer, ApprovalNeed, Refusal, TaskState};
use ade_store::coordination::MovedWakeUps;
use ade_store::database::StoredTask;
use ade_testkit::wait::until;
use serde_json::{Value, json};

use crate::fixture::{
    Fixture, approval_of, approve, approve_all, caller, confirm_override, full_answer, on_both_databases,
    reject, submitted,
};

on_both_databases!(
    every_path_to_an_approval_asks_for_the_same,
    passwords_age_in_sessions_and_tokens,
    risky_tasks_are_held_before_workers_get_them,
    every_kind_of_approval_is_held,
);

const MINUTE: Duration = Duration::from_secs(60);
const PASSWORD: &str = "correct horse battery staple";

/// Thresholds with which the tasks of these tests, of score 30, have a level.
fn thresholds(level: RiskLevel) -> Value {
    let [medium, high, critical] = match level {
        RiskLevel::Low => [40, 50, 60],
        RiskLevel::Medium => [30, 50, 60],
        RiskLevel::High => [20, 30, 60],
        RiskLevel::Critical => [10, 20, 30],
    };
    json!({ "medium": medium, "high": high, "critical": critical })
}

async fn add_people(fixture: &Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("rob", &[REVIEWER]).await;
    fixture.add_user("max", &[ADMIN]).await;
    fixture.add_user("pam", &[ADMIN]).await;
}

fn admin(name: &str) -> Caller {
    caller(name, &[ADMIN])
}

fn rob() -> Caller {
    caller("rob", &[REVIEWER])
}

/// Ann's submitted task of this level.
async fn submitted_at(fixture: &Fixture, service: &TaskService, level: RiskLevel) -> StoredTask {
    let rules = fixture.rules();
    rules.set_setting("risk:thresholds", thresholds(level), &admin("max")).await.expect("set");
    let task = submitted(service, &level.to_string()).await;
    assert_eq!((task.state, task.risk.as_ref().map(|risk| risk.level)), (TaskState::Reviewing, Some(level)));
    task
}

fn at_revision(caller: Caller, revision: u64) -> Caller {
    Caller { if_match: Some(revision), ..caller }
}

/// What an answer lacks.
fn lacking(error: &Error) -> Vec<ApprovalNeed> {
    match error {
        Error::Refused(Refusal::FrictionRequired(lacking)) => lacking.needs.clone(),
        other => unreachable!("{other}"),
    }
}

async fn every_path_to_an_approval_asks_for_the_same(fixture: Fixture) {
    use ApprovalNeed::{Confirm, Digest, Reason, Revision, ScopeDigest};
    add_people(&fixture).await;
    let service = fixture.service();
    let nothing = DecisionInput { action: DecisionKind::Approve, answer: Answer::default() };
    for (level, needs) in [
        (RiskLevel::Medium, vec![Digest, ScopeDigest]),
        (RiskLevel::High, vec![Digest, ScopeDigest, Reason]),
        (RiskLevel::Critical, vec![Digest, ScopeDigest, Reason, Confirm]),
    ] {
        let task = submitted_at(&fixture, &service, level).await;
        let request = approval_of(&task, "rob");
        // The reviewer, and an administrator in place of the reviewer.
        for by in [rob(), admin("max")] {
            let refused = service.decide(request, &nothing, &by).await.expect_err("incomplete");
            assert_eq!(lacking(&refused), needs, "{level}");
        }
        // The confirmation of an override.
        let ask = TaskAction::RequestOverride {
            reason: Some("o".to_owned()),
            incident_ticket: Some("I-1".to_owned()),
        };
        service.perform(&task.task_id, &ask, &admin("max")).await.expect("permitted");
        let empty = TaskAction::ConfirmOverride(Answer::default());
        let refused = service.perform(&task.task_id, &empty, &admin("pam")).await.expect_err("incomplete");
        let with_revision = [needs.clone(), vec![Revision]].concat();
        assert_eq!(lacking(&refused), with_revision, "{level}");
        let of_another = TaskAction::ConfirmOverride(full_answer(&task));
        let refused =
            service.perform(&task.task_id, &of_another, &admin("pam")).await.expect_err("incomplete");
        assert_eq!(lacking(&refused), [Revision], "a preview that may have changed: {level}");
        // One of many: all or none, and nothing risky.
        let low = submitted_at(&fixture, &service, RiskLevel::Low).await;
        let batch = approve_all([&task, &low], "rob");
        let without_digests = batch.items.iter().map(|item| {
            let (digest, scope_digest) = (None, None);
            BatchItem { digest, scope_digest, ..item.clone() }
        });
        let bare = DecisionBatch { items: without_digests.collect(), ..batch.clone() };
        let Err(Error::Batch(refused)) = service.decide_batch(&bare, &rob()).await else { unreachable!() };
        assert_eq!((refused.len(), refused[0].0.as_str()), (1, request));
        match level {
            RiskLevel::Medium => assert_eq!(lacking(&refused[0].1), needs),
            _ => assert_eq!(refused[0].1, Error::Refused(Refusal::NotInBatch { level })),
        }
        for task in [&task, &low] {
            assert_eq!(fixture.task(&task.task_id).await.state, TaskState::Reviewing);
        }
        let batched = service.decide_batch(&batch, &rob()).await;
        assert_eq!(batched.is_ok(), level == RiskLevel::Medium, "{batched:?}");
        if level != RiskLevel::Medium {
            let now = fixture.task(&task.task_id).await;
            let by = at_revision(admin("pam"), now.revision);
            let confirmed = service.perform(&task.task_id, &confirm_override(&task), &by).await;
            assert_eq!(confirmed.expect("complete").state, TaskState::Approved);
        }
    }
    let low = submitted_at(&fixture, &service, RiskLevel::Low).await;
    let approved =
        service.decide(approval_of(&low, "rob"), &nothing, &rob()).await.expect("nothing is needed");
    assert_eq!(approved.state, TaskState::Approved);
    let critical = submitted_at(&fixture, &service, RiskLevel::Critical).await;
    let rejected = service.decide(approval_of(&critical, "rob"), &reject(), &rob()).await;
    assert_eq!(rejected.expect("a reason suffices").state, TaskState::Rejected);
}

async fn passwords_age_in_sessions_and_tokens(fixture: Fixture) {
    add_people(&fixture).await;
    let service = fixture.service();
    let accounts = AccountService::new(fixture.context(), service.clone()).with_bootstrap_decides(true);
    let (nobody, max) = (AuditActor::default, admin("max"));
    let draft = InvitationDraft {
        user_id: "eve".to_owned(),
        roles: Some([REVIEWER.to_owned()].into()),
        ..InvitationDraft::default()
    };
    let code = accounts.invite(&draft, &max).await.expect("invited").code;
    accounts.accept_invitation(&code, PASSWORD.to_owned(), nobody()).await.expect("joined");
    let session = accounts.sign_in("eve", PASSWORD.to_owned(), nobody()).await.expect("signed in");
    let task = submitted_at(&fixture, &service, RiskLevel::Critical).await;
    let decides = || TokenDraft {
        name: "t".to_owned(),
        scopes: Some([Scope::Read, Scope::Decide].into()),
        ttl_seconds: None,
    };
    let approve_as = async |by: &Caller| {
        let decided = service.decide(approval_of(&task, "eve"), &approve(&task), by).await;
        decided.map(|task| task.state)
    };
    let in_session = async || {
        let used = accounts.authenticate_session(&session.secret, nobody()).await.expect("valid");
        used.caller
    };
    let with_token =
        async |secret: &str| accounts.authenticate_token(secret, nobody()).await.expect("valid").0;
    // A token gets the age of the password in the session in which it is made, not that of itself.
    fixture.clock.advance(10 * MINUTE);
    let own = accounts.create_token("eve", &decides(), &in_session().await).await.expect("own").secret;
    let by_operator = AccountService::bootstrap_caller(nobody());
    let given = accounts.create_token("eve", &decides(), &by_operator).await.expect("by the operator").secret;
    assert_eq!(with_token(&own).await.password_at, in_session().await.password_at);
    fixture.clock.advance(5 * MINUTE);
    let too_old = Err(Error::Refused(Refusal::PasswordTooOld));
    assert_eq!(approve_as(&in_session().await).await, too_old);
    assert_eq!(approve_as(&with_token(&own).await).await, too_old);
    // What else lacks is said first.
    let incomplete = DecisionInput { action: DecisionKind::Approve, answer: Answer::default() };
    let refused = service.decide(approval_of(&task, "eve"), &incomplete, &in_session().await).await;
    assert_eq!(lacking(&refused.expect_err("incomplete")).len(), 4);
    // Giving the password again helps the session, and no token that was made before.
    accounts
        .reauthenticate(&session.secret, PASSWORD.to_owned(), &in_session().await)
        .await
        .expect("the right one");
    assert_eq!(approve_as(&with_token(&own).await).await, too_old);
    let by_session = in_session().await;
    fixture.clock.advance(15 * MINUTE - Duration::from_secs(1));
    assert_eq!(approve_as(&by_session).await, Ok(TaskState::Approved));
    // The operator's token has no password.
    let task = submitted_at(&fixture, &service, RiskLevel::Critical).await;
    let decided = service.decide(approval_of(&task, "eve"), &approve(&task), &with_token(&given).await).await;
    assert_eq!(decided.expect("fresh").state, TaskState::Approved);
}

/// Whether a worker can claim the task now. The claim ends at once.
async fn is_claimable(fixture: &Fixture, task: &StoredTask) -> bool {
    let now = fixture.context().clock.now();
    let claimed = fixture.database.claim_tasks(&["noop".to_owned()], &[], "w", now, now, 99).await;
    claimed.expect("claimed").contains(&task.task_id)
}

async fn risky_tasks_are_held_before_workers_get_them(fixture: Fixture) {
    add_people(&fixture).await;
    let (service, rules) = (fixture.service(), fixture.rules());
    let decide = async |task: &StoredTask| {
        service.decide(approval_of(task, "rob"), &approve(task), &rob()).await.expect("complete")
    };
    let medium = decide(&submitted_at(&fixture, &service, RiskLevel::Medium).await).await;
    assert!(is_claimable(&fixture, &medium).await && medium.held_until.is_none());
    for level in [RiskLevel::High, RiskLevel::Critical] {
        let held = decide(&submitted_at(&fixture, &service, level).await).await;
        let now = fixture.context().clock.now();
        assert_eq!(held.held_until(now), Some(now.plus_ms(10_000)), "{level}");
        // Nothing polls for the end: workers are woken then.
        let scheduled = || async {
            let moved = fixture.coordination.move_due_wake_ups().await.expect("reachable");
            let next = Some(Duration::from_secs(10));
            if moved.next_in == next { Ok(()) } else { Err(format!("{moved:?}")) }
        };
        until("the end of the hold is scheduled", MINUTE, scheduled).await.expect("in time");
        fixture.clock.advance(Duration::from_millis(9_999));
        assert!(!is_claimable(&fixture, &held).await, "{level}");
        fixture.clock.advance(Duration::from_millis(1));
        let MovedWakeUps { count, .. } = fixture.coordination.move_due_wake_ups().await.expect("reachable");
        let queues = vec!["apply".to_owned()];
        let woken = fixture.coordination.receive_wake_up(queues, Duration::from_millis(1)).await;
        let woken = woken.expect("reachable").map(|wake_up| wake_up.subject);
        assert_eq!((count, woken), (1, Some(held.task_id.clone())));
        assert!(is_claimable(&fixture, &held).await, "{level}");
    }
    // It can be revoked meanwhile.
    let held = decide(&submitted_at(&fixture, &service, RiskLevel::High).await).await;
    let revoke = TaskAction::Revoke { reason: Some("wrong".to_owned()) };
    let revoked = service.perform(&held.task_id, &revoke, &rob()).await.expect("rob approved");
    assert_eq!((revoked.state, revoked.held_until), (TaskState::Rejected, None));
    // A setting, which applies to the next approval.
    for (seconds, valid) in [(json!(-1), false), (json!(3_601), false), (json!(0), true)] {
        let set = rules.set_setting("approval:apply_hold", seconds, &admin("max")).await;
        assert_eq!(set.is_ok(), valid, "{set:?}");
    }
    let unheld = decide(&submitted_at(&fixture, &service, RiskLevel::Critical).await).await;
    assert!(is_claimable(&fixture, &unheld).await);
}

async fn every_kind_of_approval_is_held(fixture: Fixture) {
    add_people(&fixture).await;
    let service = fixture.service();
    let overridden = submitted_at(&fixture, &service, RiskLevel::High).await;
    let ask =
        TaskAction::RequestOverride { reason: Some("o".to_owned()), incident_ticket: Some("I-1".to_owned()) };
    let asked = service.perform(&overridden.task_id, &ask, &admin("max")).await.expect("permitted");
    let by = at_revision(admin("pam"), asked.revision);
    let confirm = confirm_override(&overridden);
    let overridden = service.perform(&overridden.task_id, &confirm, &by).await.expect("permitted");
    // An administrator answers in place of the reviewer, and forces it.
    let answered = submitted_at(&fixture, &service, RiskLevel::Critical).await;
    let answered = service
        .decide(approval_of(&answered, "rob"), &approve(&answered), &admin("max"))
        .await
        .expect("complete");
    let force = TaskAction::ForceApply { reason: Some("outage".to_owned()) };
    let answered = service.perform(&answered.task_id, &force, &admin("max")).await.expect("permitted");
    for task in [&overridden, &answered] {
        assert_eq!(task.state, TaskState::Approved);
        assert_eq!(task.held_until, Some(fixture.context().clock.now().plus_ms(10_000)));
        assert!(!is_claimable(&fixture, task).await);
    }
    fixture.clock.advance(Duration::from_secs(10));
    for task in [&overridden, &answered] {
        assert!(is_claimable(&fixture, task).await);
    }
}
