//! Evidence of rollbacks: somebody requested it, and what is rolled back is what the last attempt did.

use crate::tasks::evidence::approved;
use crate::tasks::fixture::id;
use ade_domain::audit::{AuditActor, Principal, ServiceActor, Trigger};
use ade_domain::task::{AttemptStart, Execution, UnprovenApproval, rollback_data_key};
use serde_json::{Map, json};

#[test]
fn rollback_needs_a_request() {
    let audited = approved();
    assert_eq!(audited.task.verify_rollback(&audited.entries), Err(UnprovenApproval::RollbackNotRequested));
    let mut requested = audited;
    let mut request = requested.entries.last().expect("approved").clone();
    request.action = "task.roll_back".to_owned();
    request.who = AuditActor { user_id: Some(id("ada")), ..AuditActor::default() }.into();
    requested.entries.push(request);
    assert_eq!(requested.task.verify_rollback(&requested.entries), Ok(()));
    requested.task.config.parameters = Map::from_iter([("x".to_owned(), json!(1))]);
    assert_eq!(requested.task.verify_rollback(&requested.entries), Err(UnprovenApproval::DigestMismatch));
}

#[test]
fn rollback_data_is_that_of_the_attempt_that_started() {
    let mut audited = approved();
    let now = audited.fixture.now;
    let lease_until = now.plus_ms(1_000);
    let start = AttemptStart { worker: "w".to_owned(), grants: Vec::new(), lease_until };
    let attempt = audited.task.begin_apply(start, now).expect("approved");
    let key = rollback_data_key(&audited.task.task_id, attempt);
    audited.task.mark_started(attempt, Some(key), now).expect("current");
    audited.commit("ada");
    audited.entries.last_mut().expect("started").who = Principal::Service(ServiceActor {
        service: "worker".to_owned(),
        instance: "w".to_owned(),
        trigger: Trigger::Attempt(attempt),
    });
    assert_eq!(audited.task.verify_current(&audited.entries), Ok(()));
    let edited = |edit: &dyn Fn(&mut Execution)| {
        let mut task = audited.task.clone();
        edit(task.execution.as_mut().expect("started"));
        assert!(matches!(
            task.verify_current(&audited.entries),
            Err(UnprovenApproval::OtherRollbackData { .. })
        ));
    };
    let other_task = rollback_data_key("other", attempt);
    let other_attempt = rollback_data_key(&audited.task.task_id, attempt + 1);
    for key in [other_task, other_attempt, "archive/1".to_owned()] {
        edited(&|execution| execution.rollback_data_key = Some(key.clone()));
    }
    edited(&|execution| execution.effects_attempt = Some(attempt + 1));
}
