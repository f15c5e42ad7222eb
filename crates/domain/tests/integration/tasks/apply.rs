//! Applying a task. An exhaustive search runs every sequence of actions of workers, recoveries and administrators to a small
//! depth, for every rollback strategy, including late reports of earlier attempts. Examples follow.

use std::collections::BTreeSet;

use crate::tasks::fixture::{Fixture, config, user};
use ade_domain::Moment;
use ade_domain::approval::DecisionKind;
use ade_domain::task::{
    AttemptFailure, AttemptReport, ExecutionOutput, ExecutionResult, FailureCode, Phase, RemainingEffects,
    RollbackStrategy, TaskState,
};
use ade_domain::task::{AttemptStart, NextStep, Refusal, Task, UnprovenApproval};

const LEASE_MS: u64 = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Begin,
    Started(u64),
    Complete(u64),
    Fail(u64, RemainingEffects, bool),
    FinishRollback(u64, bool),
    /// An agent reports the result, and whether it held its locks.
    Report(u64, ExecutionResult, bool),
    Recover(bool),
    StartRollback(u64),
    Stop,
    RequestRollback,
    BeginRollback,
    /// Time passes beyond the lease.
    ExpireLease,
}

fn all_actions(last: u64) -> Vec<Action> {
    let mut actions = vec![
        Action::Begin,
        Action::Recover(true),
        Action::Recover(false),
        Action::Stop,
        Action::RequestRollback,
        Action::BeginRollback,
        Action::ExpireLease,
    ];
    // The current attempt, and the one before it, whose worker may still report.
    for attempt in [last, last.saturating_sub(1)].into_iter().filter(|attempt| *attempt > 0) {
        actions.extend([Action::Started(attempt), Action::Complete(attempt), Action::StartRollback(attempt)]);
        actions.extend([Action::FinishRollback(attempt, true), Action::FinishRollback(attempt, false)]);
        for effects in [
            RemainingEffects::None,
            RemainingEffects::RolledBack,
            RemainingEffects::Reversible,
            RemainingEffects::Irreversible,
            RemainingEffects::Unknown,
        ] {
            actions.push(Action::Fail(attempt, effects, true));
        }
        actions.push(Action::Fail(attempt, RemainingEffects::None, false));
        actions.extend(
            [true, false].map(|held_locks| Action::Report(attempt, ExecutionResult::Success, held_locks)),
        );
        actions.push(Action::Report(attempt, ExecutionResult::Failure, true));
    }
    actions
}

#[derive(Debug, Clone)]
struct Scenario {
    fixture: Fixture,
    task: Task,
    now: Moment,
}

impl Scenario {
    fn approved(strategy: RollbackStrategy) -> Self {
        let mut fixture = Fixture::new(vec![
            user("ann", &["author"], None),
            user("rob", &["reviewer"], None),
            user("eve", &["admin"], None),
        ]);
        let config =
            ade_domain::task::Config { rollback_strategy: strategy, ..config("schema", &["database:a"]) };
        let mut task = fixture.draft("ann", config);
        fixture.submit(&mut task, "ann").expect("submitted");
        fixture.decide(&mut task, "rob", DecisionKind::Approve, "rob").expect("approved");
        assert_eq!(task.state, TaskState::Approved);
        let now = fixture.now;
        Self { fixture, task, now }
    }

    fn start(&self, worker: &str) -> AttemptStart {
        AttemptStart {
            worker: worker.to_owned(),
            grants: Vec::new(),
            lease_until: self.now.plus_ms(LEASE_MS),
        }
    }

    fn attempt(&self) -> u64 {
        self.task.execution.as_ref().map_or(0, |execution| execution.attempt)
    }

    fn effects_of(&self) -> Option<u64> {
        self.task.execution.as_ref().and_then(|execution| execution.effects_attempt)
    }

    fn phase(&self) -> Option<Phase> {
        self.task.execution.as_ref().map(|execution| execution.phase)
    }

    fn execute(&mut self, action: Action) -> Result<Option<NextStep>, Refusal> {
        let (now, admin) = (self.now, self.fixture.actor("eve"));
        let start = self.start("w");
        match action {
            Action::Begin => self.task.begin_apply(start, now).map(|_| None),
            Action::Started(attempt) => {
                self.task.mark_started(attempt, Some("rollback_data".to_owned()), now).map(|()| None)
            }
            Action::Complete(attempt) => {
                self.task.complete(attempt, ExecutionOutput::default(), now).map(|()| None)
            }
            Action::Fail(attempt, effects, is_retryable) => {
                let code = FailureCode::ExecutionFailed;
                let error = "failed".to_owned();
                let failure = AttemptFailure { code, error, effects, is_retryable, reported: None };
                self.task.fail(attempt, failure, ExecutionOutput::default(), now).map(Some)
            }
            Action::FinishRollback(attempt, succeeded) => {
                let outcome = if succeeded { Ok(()) } else { Err("failed".to_owned()) };
                self.task.finish_rollback(attempt, outcome, now).map(|()| None)
            }
            Action::Report(attempt, result, held_locks) => self
                .task
                .report(
                    attempt,
                    AttemptReport { result, error: None, error_details: None },
                    held_locks,
                    ExecutionOutput::default(),
                    now,
                )
                .map(|()| None),
            Action::Recover(can_determine_effects) => {
                self.task.recover(start, can_determine_effects, now).map(Some)
            }
            Action::StartRollback(attempt) => self.task.start_rollback(attempt).map(|()| None),
            Action::Stop => self.task.request_stop(Some("enough"), &admin, now).map(|()| None),
            Action::RequestRollback => self.task.request_rollback(Some("broken"), &admin, now).map(|()| None),
            Action::BeginRollback => self.task.begin_rollback(start).map(|_| None),
            Action::ExpireLease => {
                self.now = self.now.plus_ms(2 * LEASE_MS);
                Ok(None)
            }
        }
    }

    /// Identifies scenarios that have the same future.
    fn key(&self) -> String {
        let execution = self.task.execution.as_ref().map(|execution| {
            (
                execution.phase,
                execution.result,
                execution.rolled_back,
                execution.retry_count,
                execution.stop.is_some(),
                execution.rollback.is_some(),
                execution.rollback_data_key.is_some(),
                execution.lease_until > self.now,
                (execution.attempt, execution.effects_attempt, execution.reported),
            )
        });
        format!("{:?} {execution:?}", self.task.state)
    }
}

/// The invariants of an accepted action.
fn check(before: &Scenario, action: Action, after: &Scenario) {
    let context = format!("{action:?}\nbefore {:?}\nafter {:?}", before.task.execution, after.task.execution);
    assert!(after.attempt() >= before.attempt(), "attempts only increase: {context}");
    let (from, to) = (before.task.state, after.task.state);
    match action {
        Action::Begin => assert_eq!(after.effects_of(), None, "{context}"),
        Action::Started(attempt) => assert_eq!(after.effects_of(), Some(attempt), "{context}"),
        _ => assert_eq!(
            after.effects_of(),
            before.effects_of(),
            "the attempt with effects does not change: {context}"
        ),
    }
    // Reports of other attempts are refused.
    if let Action::Started(attempt)
    | Action::Complete(attempt)
    | Action::StartRollback(attempt)
    | Action::Fail(attempt, ..)
    | Action::Report(attempt, ..)
    | Action::FinishRollback(attempt, _) = action
    {
        assert_eq!(attempt, before.attempt(), "{context}");
        assert_ne!(before.phase(), Some(Phase::Ended), "{context}");
    }
    if (from, to) == (TaskState::Applying, TaskState::Approved) {
        let is_prepared = before.phase() == Some(Phase::Prepared);
        let has_no_effects = matches!(action, Action::Fail(_, RemainingEffects::None, true));
        assert!(is_prepared || has_no_effects, "nothing is retried that may have effects: {context}");
    }
    if from == TaskState::Applying && to != TaskState::Applying {
        let is_stopped = before.task.execution.as_ref().is_some_and(|execution| execution.stop.is_some());
        assert!(!is_stopped || to != TaskState::Approved, "a stopped task is not retried: {context}");
    }
    if to == TaskState::Applying && from != TaskState::Applying {
        assert_eq!((from, action), (TaskState::Approved, Action::Begin), "{context}");
    }
    if matches!(action, Action::Recover(_)) {
        assert!(after.attempt() > before.attempt(), "a recovery increases the attempt: {context}");
        let lease = before.task.execution.as_ref().expect("an attempt to recover").lease_until;
        assert!(lease <= before.now, "only an expired lease is recovered: {context}");
    }
    if from.is_final() {
        assert_eq!(from, to, "final states stay: {context}");
    }
    if to == TaskState::Completed {
        let execution = after.task.execution.as_ref().expect("an attempt");
        assert_eq!(execution.result, Some(ExecutionResult::Success), "{context}");
    }
    if to == TaskState::Failed && from != TaskState::Failed {
        let execution = after.task.execution.as_ref().expect("an attempt");
        assert!(
            execution.result.is_some() && execution.error.is_some() && execution.code.is_some(),
            "{context}"
        );
        assert_eq!(execution.phase, Phase::Ended, "{context}");
        if let Action::Fail(_, effects, _) = action {
            assert_eq!(
                execution.rolled_back,
                (effects == RemainingEffects::RolledBack).then_some(true),
                "{context}"
            );
        }
    }
    if let Action::Report(attempt, result, held_locks) = action {
        assert!(after.task.was_reported(attempt, result), "it can be repeated: {context}");
        let is_success = result == ExecutionResult::Success && held_locks;
        assert_eq!(to == TaskState::Completed, is_success, "success requires the locks: {context}");
    }
    if action == Action::RequestRollback {
        let execution = before.task.execution.as_ref().expect("an attempt to roll back");
        assert!(execution.rolled_back != Some(true) && execution.rollback_data_key.is_some(), "{context}");
        assert_eq!(execution.phase, Phase::Ended, "no rollback is in progress: {context}");
    }
}

#[test]
fn all_sequences_of_actions_keep_the_invariants() {
    let mut seen_states = 0;
    for strategy in [RollbackStrategy::Automatic, RollbackStrategy::Manual, RollbackStrategy::None] {
        let mut frontier = vec![Scenario::approved(strategy)];
        let mut known = BTreeSet::new();
        for _ in 0..7 {
            let mut next = Vec::new();
            for scenario in &frontier {
                for action in all_actions(scenario.attempt()) {
                    let mut after = scenario.clone();
                    after.task.transitions.clear();
                    match after.execute(action) {
                        Ok(_) => {
                            check(scenario, action, &after);
                            if known.insert(after.key()) {
                                next.push(after);
                            }
                        }
                        Err(_) => {
                            let mut unchanged = scenario.task.clone();
                            unchanged.transitions.clear();
                            assert_eq!(after.task, unchanged, "a refused action changes nothing: {action:?}");
                        }
                    }
                }
            }
            frontier = next;
        }
        seen_states += known.len();
    }
    assert!(seen_states > 300, "only {seen_states} states were seen");
}

#[test]
fn retries_three_times_with_exponential_backoff() {
    let mut scenario = Scenario::approved(RollbackStrategy::Automatic);
    let mut waits = Vec::new();
    for _ in 0..3 {
        let attempt = scenario.task.begin_apply(scenario.start("w"), scenario.now).expect("approved");
        let action = Action::Fail(attempt, RemainingEffects::None, true);
        assert_eq!(scenario.execute(action).expect("current attempt"), Some(NextStep::Retry));
        waits.push(scenario.task.apply_after.expect("a backoff").ms_since(scenario.now));
    }
    assert_eq!(waits, [1_000, 2_000, 4_000]);
    let attempt = scenario.task.begin_apply(scenario.start("w"), scenario.now).expect("approved");
    assert_eq!(
        scenario.execute(Action::Fail(attempt, RemainingEffects::None, true)).expect("current attempt"),
        Some(NextStep::Finished)
    );
    let execution = scenario.task.execution.expect("an attempt");
    assert_eq!((scenario.task.state, execution.retry_count), (TaskState::Failed, 3));
}

#[test]
fn failure_rolled_back_by_the_executor_is_final() {
    for strategy in [RollbackStrategy::Automatic, RollbackStrategy::Manual, RollbackStrategy::None] {
        let mut scenario = Scenario::approved(strategy);
        let attempt = scenario.task.begin_apply(scenario.start("w"), scenario.now).expect("approved");
        scenario.execute(Action::Started(attempt)).expect("current attempt");
        assert_eq!(
            scenario
                .execute(Action::Fail(attempt, RemainingEffects::RolledBack, true))
                .expect("current attempt"),
            Some(NextStep::Finished)
        );
        let execution = scenario.task.execution.clone().expect("an attempt");
        assert_eq!((scenario.task.state, execution.rolled_back), (TaskState::Failed, Some(true)));
        assert_eq!(execution.result, Some(ExecutionResult::Failure));
        assert_eq!(scenario.execute(Action::RequestRollback), Err(Refusal::NothingToRollBack));
    }
}

#[test]
fn worker_lost_during_recovery_is_recovered_again() {
    for strategy in [RollbackStrategy::Automatic, RollbackStrategy::Manual, RollbackStrategy::None] {
        let mut scenario = Scenario::approved(strategy);
        let attempt = scenario.task.begin_apply(scenario.start("w"), scenario.now).expect("approved");
        scenario.execute(Action::Started(attempt)).expect("current attempt");
        for _ in 0..2 {
            scenario.execute(Action::ExpireLease).expect("always accepted");
            assert_eq!(
                scenario.execute(Action::Recover(true)).expect("lease expired"),
                Some(NextStep::RollBack)
            );
            assert_eq!(scenario.phase(), Some(Phase::Started), "the effects are not determined yet");
            assert_eq!(scenario.effects_of(), Some(attempt), "the effects are those of the first attempt");
        }
        let attempt = scenario.attempt();
        scenario.execute(Action::StartRollback(attempt)).expect("current attempt");
        scenario.execute(Action::FinishRollback(attempt, true)).expect("rolling back");
        assert_eq!((scenario.task.state, scenario.attempt()), (TaskState::Failed, 3));
    }
}

#[test]
fn failed_rollback_can_be_requested_again() {
    for strategy in [RollbackStrategy::Automatic, RollbackStrategy::Manual, RollbackStrategy::None] {
        let mut scenario = Scenario::approved(strategy);
        let attempt = scenario.task.begin_apply(scenario.start("w"), scenario.now).expect("approved");
        scenario.execute(Action::Started(attempt)).expect("current attempt");
        if scenario
            .execute(Action::Fail(attempt, RemainingEffects::Reversible, false))
            .expect("current attempt")
            == Some(NextStep::RollBack)
        {
            scenario.execute(Action::FinishRollback(attempt, false)).expect("current attempt");
        }
        if strategy == RollbackStrategy::None {
            assert_eq!(
                scenario.execute(Action::RequestRollback),
                Err(Refusal::NothingToRollBack),
                "the strategy is none"
            );
        } else {
            check_repeated_rollback(scenario);
        }
    }
}

fn check_repeated_rollback(mut scenario: Scenario) {
    for _ in 0..2 {
        scenario.execute(Action::RequestRollback).expect("effects remain");
        scenario.execute(Action::BeginRollback).expect("requested");
        assert_eq!(
            scenario.execute(Action::RequestRollback),
            Err(Refusal::NothingToRollBack),
            "a rollback is in progress"
        );
        scenario.execute(Action::ExpireLease).expect("always accepted");
        assert_eq!(
            scenario.execute(Action::Recover(false)).expect("lease expired"),
            Some(NextStep::Finished)
        );
        assert_eq!((scenario.task.state, scenario.phase()), (TaskState::Failed, Some(Phase::Ended)));
    }
    scenario.execute(Action::RequestRollback).expect("effects remain");
    scenario.execute(Action::BeginRollback).expect("requested");
    scenario.execute(Action::FinishRollback(scenario.attempt(), true)).expect("current attempt");
    assert_eq!(
        scenario.execute(Action::RequestRollback),
        Err(Refusal::NothingToRollBack),
        "it is rolled back"
    );
}

#[test]
fn unknown_outcome_keeps_its_cause() {
    for (code, result) in [
        (FailureCode::TimedOut, ExecutionResult::Timeout),
        (FailureCode::Stopped, ExecutionResult::Cancelled),
        (FailureCode::ExecutionFailed, ExecutionResult::Failure),
    ] {
        let mut scenario = Scenario::approved(RollbackStrategy::Automatic);
        let attempt = scenario.task.begin_apply(scenario.start("w"), scenario.now).expect("approved");
        scenario.execute(Action::Started(attempt)).expect("current attempt");
        let failed = AttemptFailure {
            code,
            error: "terminated".to_owned(),
            effects: RemainingEffects::Unknown,
            is_retryable: false,
            reported: None,
        };
        scenario
            .task
            .fail(attempt, failed, ExecutionOutput::default(), scenario.now)
            .expect("current attempt");
        let execution = scenario.task.execution.expect("an attempt");
        assert_eq!(execution.result, Some(result));
        let unknown = execution.code == Some(FailureCode::OutcomeUnknown);
        assert!(unknown || execution.error.is_some_and(|error| error.starts_with("OUTCOME_UNKNOWN: ")));
    }
}

#[test]
fn lost_worker_stays_on_record_if_effects_are_unknown() {
    let mut scenario = Scenario::approved(RollbackStrategy::Automatic);
    let attempt = scenario.task.begin_apply(scenario.start("bot"), scenario.now).expect("approved");
    scenario.execute(Action::Started(attempt)).expect("current attempt");
    scenario.execute(Action::ExpireLease).expect("always accepted");
    assert_eq!(scenario.execute(Action::Recover(false)).expect("lease expired"), Some(NextStep::Finished));
    let execution = scenario.task.execution.expect("an attempt");
    assert_eq!((execution.worker.as_str(), execution.code), ("bot", Some(FailureCode::OutcomeUnknown)));
}

#[test]
fn rejects_start_after_the_lease_expired() {
    let mut scenario = Scenario::approved(RollbackStrategy::Automatic);
    let attempt = scenario.task.begin_apply(scenario.start("w"), scenario.now).expect("approved");
    scenario.execute(Action::ExpireLease).expect("always accepted");
    assert_eq!(
        scenario.execute(Action::Started(attempt)),
        Err(Refusal::NotCurrentAttempt { attempt, current: attempt })
    );
}

#[test]
fn stopped_task_fails_as_stopped_if_its_worker_is_lost() {
    let mut scenario = Scenario::approved(RollbackStrategy::Automatic);
    scenario.task.begin_apply(scenario.start("w"), scenario.now).expect("approved");
    scenario.execute(Action::Stop).expect("applying");
    scenario.execute(Action::ExpireLease).expect("always accepted");
    assert_eq!(scenario.execute(Action::Recover(true)).expect("lease expired"), Some(NextStep::Finished));
    let execution = scenario.task.execution.expect("an attempt");
    assert_eq!((scenario.task.state, execution.code), (TaskState::Failed, Some(FailureCode::Stopped)));
}

#[test]
fn stopped_task_does_not_start() {
    let mut scenario = Scenario::approved(RollbackStrategy::Automatic);
    let attempt = scenario.task.begin_apply(scenario.start("w"), scenario.now).expect("approved");
    scenario.execute(Action::Stop).expect("applying");
    assert_eq!(scenario.execute(Action::Started(attempt)), Err(Refusal::Stopped));
    assert_eq!(
        scenario.execute(Action::Fail(attempt, RemainingEffects::None, true)).expect("current attempt"),
        Some(NextStep::Finished)
    );
    let execution = scenario.task.execution.expect("an attempt");
    assert_eq!(
        (execution.result, execution.code),
        (Some(ExecutionResult::Cancelled), Some(FailureCode::Stopped))
    );
}

#[test]
fn lease_of_an_agent_ends_with_the_timeout_or_a_stop() {
    let mut scenario = Scenario::approved(RollbackStrategy::None);
    scenario.task.config.timeout_seconds = 5;
    let attempt = scenario.task.begin_apply(scenario.start("bot"), scenario.now).expect("approved");
    scenario.execute(Action::Started(attempt)).expect("current attempt");
    let started_at = scenario.now;
    let lease_end = |scenario: &Scenario, ms: u64| {
        scenario.task.extended_lease(attempt, LEASE_MS, started_at.plus_ms(ms))
    };
    assert_eq!(lease_end(&scenario, 0), Ok(started_at.plus_ms(LEASE_MS)));
    assert_eq!(lease_end(&scenario, 4_500), Ok(started_at.plus_ms(5_000)), "not beyond the timeout");
    assert_eq!(lease_end(&scenario, 5_000), Err(Refusal::TimedOut));
    scenario.now = started_at.plus_ms(1_000);
    scenario.execute(Action::Stop).expect("applying");
    assert_eq!(lease_end(&scenario, 1_900), Ok(started_at.plus_ms(2_000)), "not beyond the grace period");
    assert_eq!(lease_end(&scenario, 2_000), Err(Refusal::Stopped));
    assert_eq!(
        scenario.task.extended_lease(attempt + 1, LEASE_MS, started_at),
        Err(Refusal::NotCurrentAttempt { attempt: attempt + 1, current: attempt })
    );
}

#[test]
fn reported_result_is_known_even_if_the_task_ended_otherwise() {
    let mut scenario = Scenario::approved(RollbackStrategy::None);
    let attempt = scenario.task.begin_apply(scenario.start("bot"), scenario.now).expect("approved");
    scenario.execute(Action::Started(attempt)).expect("current attempt");
    scenario.execute(Action::Stop).expect("applying");
    scenario.execute(Action::Report(attempt, ExecutionResult::Failure, true)).expect("current attempt");
    let execution = scenario.task.execution.as_ref().expect("an attempt");
    assert_eq!(execution.result, Some(ExecutionResult::Cancelled), "it was stopped");
    assert!(scenario.task.was_reported(attempt, ExecutionResult::Failure), "as reported");
    assert!(!scenario.task.was_reported(attempt, ExecutionResult::Success));
    assert!(!scenario.task.was_reported(attempt + 1, ExecutionResult::Failure));
}

/// The worker of a requested rollback is lost, and its effects cannot be determined.
#[test]
fn lost_rollback_of_a_failed_task_ends_as_failed() {
    let mut scenario = Scenario::approved(RollbackStrategy::Manual);
    let attempt = scenario.task.begin_apply(scenario.start("w"), scenario.now).expect("approved");
    scenario.execute(Action::Started(attempt)).expect("current attempt");
    scenario.execute(Action::Fail(attempt, RemainingEffects::Reversible, false)).expect("current attempt");
    scenario.execute(Action::RequestRollback).expect("manual");
    scenario.execute(Action::BeginRollback).expect("requested");
    scenario.execute(Action::ExpireLease).expect("always accepted");
    assert_eq!(scenario.execute(Action::Recover(true)).expect("lease expired"), Some(NextStep::RollBack));
    let attempt = scenario.attempt();
    assert!(
        scenario.execute(Action::Fail(attempt, RemainingEffects::Unknown, false)).is_err(),
        "it has failed already"
    );
    scenario.execute(Action::FinishRollback(attempt, false)).expect("current attempt");
    let execution = scenario.task.execution.as_ref().expect("an attempt");
    assert_eq!((execution.phase, execution.rolled_back), (Phase::Ended, Some(false)));
    assert_eq!(scenario.task.state, TaskState::Failed);
}

#[test]
fn digest_mismatch_fails_without_retry() {
    let mut scenario = Scenario::approved(RollbackStrategy::Automatic);
    scenario.task.transitions.clear();
    scenario.task.fail_unproven("w", &UnprovenApproval::DigestMismatch, scenario.now).expect("approved");
    let execution = scenario.task.execution.as_ref().expect("an attempt");
    assert_eq!((scenario.task.state, execution.code), (TaskState::Failed, Some(FailureCode::DigestMismatch)));
    let actions: Vec<&str> =
        scenario.task.transitions.iter().map(|transition| transition.action.as_str()).collect();
    assert_eq!(actions, ["task.begin_apply", "task.fail"]);
    assert!(scenario.task.fail_unproven("w", &UnprovenApproval::NotApproved, scenario.now).is_err());
}
