//! Carrying a task out, searched exhaustively: every order of what workers, recoveries and administrators can say, to a small
//! depth, for every strategy, with old attempts speaking up at any time.

use std::collections::BTreeSet;

use crate::office::{Office, config, user};
use ade_domain::Moment;
use ade_domain::approval::DecisionKind;
use ade_domain::task::{Begin, Follows, Refusal, Task};
use ade_domain::task::{ExecutionResult, Failed, FailureCode, Left, Output, Phase, RollbackStrategy, State};

const LEASE_MS: u64 = 1_000;

/// What can be said at any time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    Begin,
    Started(u64),
    Complete(u64),
    Fail(u64, Left, bool),
    RolledBack(u64, bool),
    /// An agent says how it ended, and held its locks or not.
    Report(u64, ExecutionResult, bool),
    Recover(bool),
    ChangeBack(u64),
    Stop,
    AskRollBack,
    BeginRollBack,
    /// Time passes beyond every lease.
    Later,
}

fn everything(last: u64) -> Vec<Said> {
    let mut all = vec![
        Said::Begin,
        Said::Recover(true),
        Said::Recover(false),
        Said::Stop,
        Said::AskRollBack,
        Said::BeginRollBack,
        Said::Later,
    ];
    // The present attempt, and the one before it, whose worker may still be alive.
    for attempt in [last, last.saturating_sub(1)].into_iter().filter(|attempt| *attempt > 0) {
        all.extend([Said::Started(attempt), Said::Complete(attempt), Said::ChangeBack(attempt)]);
        all.extend([Said::RolledBack(attempt, true), Said::RolledBack(attempt, false)]);
        for left in [Left::Nothing, Left::Undone, Left::Something, Left::Stays, Left::Unknown] {
            all.push(Said::Fail(attempt, left, true));
        }
        all.push(Said::Fail(attempt, Left::Nothing, false));
        all.extend([true, false].map(|held| Said::Report(attempt, ExecutionResult::Success, held)));
        all.push(Said::Report(attempt, ExecutionResult::Failure, true));
    }
    all
}

#[derive(Debug, Clone)]
struct World {
    office: Office,
    review: Task,
    now: Moment,
}

impl World {
    fn approved(strategy: RollbackStrategy) -> Self {
        let mut office = Office::new(vec![
            user("ann", &["author"], None),
            user("rob", &["reviewer"], None),
            user("eve", &["admin"], None),
        ]);
        let config =
            ade_domain::task::Config { rollback_strategy: strategy, ..config("schema", &["database:a"]) };
        let mut review = office.draft("ann", config);
        office.submit(&mut review, "ann").expect("submitted");
        office.answer(&mut review, "rob", DecisionKind::Approve, "rob").expect("approved");
        assert_eq!(review.state, State::Approved);
        let now = office.now;
        Self { office, review, now }
    }

    fn begin(&self, worker: &str) -> Begin {
        Begin { worker: worker.to_owned(), grants: Vec::new(), lease_until: self.now.plus_ms(LEASE_MS) }
    }

    fn attempt(&self) -> u64 {
        self.review.execution.as_ref().map_or(0, |execution| execution.attempt)
    }

    fn effects_of(&self) -> Option<u64> {
        self.review.execution.as_ref().and_then(|execution| execution.effects_of)
    }

    fn phase(&self) -> Option<Phase> {
        self.review.execution.as_ref().map(|execution| execution.phase)
    }

    fn say(&mut self, said: Said) -> Result<Option<Follows>, Refusal> {
        let (now, admin) = (self.now, self.office.actor("eve"));
        let begin = self.begin("w");
        match said {
            Said::Begin => self.review.begin(begin, now).map(|_| None),
            Said::Started(attempt) => {
                self.review.started(attempt, Some("stash".to_owned()), now).map(|()| None)
            }
            Said::Complete(attempt) => self.review.complete(attempt, Output::default(), now).map(|()| None),
            Said::Fail(attempt, left, again) => {
                let code = FailureCode::ExecutionFailed;
                let failed = Failed { code, error: "no".to_owned(), left, again };
                self.review.fail(attempt, failed, Output::default(), now).map(Some)
            }
            Said::RolledBack(attempt, done) => {
                let outcome = if done { Ok(()) } else { Err("no".to_owned()) };
                self.review.rolled_back(attempt, outcome, now).map(|()| None)
            }
            Said::Report(attempt, result, held) => {
                self.review.report(attempt, (result, None), held, Output::default(), now).map(|()| None)
            }
            Said::Recover(can_settle) => self.review.recover(begin, can_settle, now).map(Some),
            Said::ChangeBack(attempt) => self.review.change_back(attempt).map(|()| None),
            Said::Stop => self.review.ask_stop(Some("enough"), &admin, now).map(|()| None),
            Said::AskRollBack => self.review.ask_roll_back(Some("undo it"), &admin, now).map(|()| None),
            Said::BeginRollBack => self.review.begin_roll_back(begin, now).map(|_| None),
            Said::Later => {
                self.now = self.now.plus_ms(2 * LEASE_MS);
                Ok(None)
            }
        }
    }

    /// What tells two worlds apart, as far as what can happen next is concerned.
    fn key(&self) -> String {
        let execution = self.review.execution.as_ref().map(|one| {
            (
                one.phase,
                one.result,
                one.rolled_back,
                one.retry_count,
                one.stop.is_some(),
                one.undo.is_some(),
                one.stash_key.is_some(),
                one.lease_until > self.now,
                (one.attempt, one.effects_of, one.reported),
            )
        });
        format!("{:?} {execution:?}", self.review.state)
    }
}

/// What must hold between two moments.
fn check(before: &World, said: Said, after: &World) {
    let context =
        format!("{said:?}\nbefore {:?}\nafter {:?}", before.review.execution, after.review.execution);
    assert!(after.attempt() >= before.attempt(), "attempts only grow: {context}");
    let (from, to) = (before.review.state, after.review.state);
    match said {
        Said::Begin => assert_eq!(after.effects_of(), None, "{context}"),
        Said::Started(attempt) => assert_eq!(after.effects_of(), Some(attempt), "{context}"),
        _ => assert_eq!(after.effects_of(), before.effects_of(), "who began is known to the end: {context}"),
    }
    // Whoever speaks for an attempt that is not the present one changes nothing.
    if let Said::Started(attempt)
    | Said::Complete(attempt)
    | Said::ChangeBack(attempt)
    | Said::Fail(attempt, ..)
    | Said::Report(attempt, ..)
    | Said::RolledBack(attempt, _) = said
    {
        assert_eq!(attempt, before.attempt(), "{context}");
        assert_ne!(before.phase(), Some(Phase::Ended), "{context}");
    }
    if (from, to) == (State::Applying, State::Approved) {
        let prepared = before.phase() == Some(Phase::Prepared);
        let unchanged = matches!(said, Said::Fail(_, Left::Nothing, true));
        assert!(prepared || unchanged, "nothing is carried out again that may have been begun: {context}");
    }
    if from == State::Applying && to != State::Applying {
        let stopped = before.review.execution.as_ref().is_some_and(|execution| execution.stop.is_some());
        assert!(!stopped || to != State::Approved, "what was stopped is not carried out again: {context}");
    }
    if to == State::Applying && from != State::Applying {
        assert_eq!((from, said), (State::Approved, Said::Begin), "{context}");
    }
    if matches!(said, Said::Recover(_)) {
        assert!(after.attempt() > before.attempt(), "recovery raises the attempt: {context}");
        let lease = before.review.execution.as_ref().expect("something to recover").lease_until;
        assert!(lease <= before.now, "nobody is recovered from who is alive: {context}");
    }
    if from.is_final() {
        assert_eq!(from, to, "an end is an end: {context}");
    }
    if to == State::Completed {
        let execution = after.review.execution.as_ref().expect("carried out");
        assert_eq!(execution.result, Some(ExecutionResult::Success), "{context}");
    }
    if to == State::Failed && from != State::Failed {
        let execution = after.review.execution.as_ref().expect("carried out");
        assert!(
            execution.result.is_some() && execution.error.is_some() && execution.code.is_some(),
            "{context}"
        );
        assert_eq!(execution.phase, Phase::Ended, "{context}");
        if let Said::Fail(_, left, _) = said {
            assert_eq!(execution.rolled_back, (left == Left::Undone).then_some(true), "{context}");
        }
    }
    if let Said::Report(attempt, result, held) = said {
        assert!(after.review.was_reported(attempt, result), "it can be said again: {context}");
        let done = result == ExecutionResult::Success && held;
        assert_eq!(to == State::Completed, done, "only who held its locks has done it: {context}");
    }
    if said == Said::AskRollBack {
        let execution = before.review.execution.as_ref().expect("something to undo");
        assert!(execution.rolled_back != Some(true) && execution.stash_key.is_some(), "{context}");
        assert_eq!(execution.phase, Phase::Ended, "nobody is at it: {context}");
    }
}

#[test]
fn whatever_is_said_in_whatever_order() {
    let mut seen_states = 0;
    for strategy in [RollbackStrategy::Automatic, RollbackStrategy::Manual, RollbackStrategy::None] {
        let mut open = vec![World::approved(strategy)];
        let mut known = BTreeSet::new();
        for _ in 0..7 {
            let mut next = Vec::new();
            for world in &open {
                for said in everything(world.attempt()) {
                    let mut after = world.clone();
                    after.review.transitions.clear();
                    match after.say(said) {
                        Ok(_) => {
                            check(world, said, &after);
                            if known.insert(after.key()) {
                                next.push(after);
                            }
                        }
                        Err(_) => {
                            let mut unchanged = world.review.clone();
                            unchanged.transitions.clear();
                            assert_eq!(after.review, unchanged, "what is refused changes nothing: {said:?}");
                        }
                    }
                }
            }
            open = next;
        }
        seen_states += known.len();
    }
    assert!(seen_states > 300, "only {seen_states} states were seen");
}

#[test]
fn a_failure_is_tried_again_three_times_and_later_each_time() {
    let mut world = World::approved(RollbackStrategy::Automatic);
    let mut waits = Vec::new();
    for _ in 0..3 {
        let attempt = world.review.begin(world.begin("w"), world.now).expect("approved");
        let said = Said::Fail(attempt, Left::Nothing, true);
        assert_eq!(world.say(said).expect("present"), Some(Follows::Again));
        waits.push(world.review.apply_after.expect("not at once").ms_since(world.now));
    }
    assert_eq!(waits, [1_000, 2_000, 4_000]);
    let attempt = world.review.begin(world.begin("w"), world.now).expect("approved");
    assert_eq!(world.say(Said::Fail(attempt, Left::Nothing, true)).expect("present"), Some(Follows::Over));
    let execution = world.review.execution.expect("carried out");
    assert_eq!((world.review.state, execution.retry_count), (State::Failed, 3));
}

#[test]
fn what_was_undone_at_once_is_over_and_needs_nobody() {
    for strategy in [RollbackStrategy::Automatic, RollbackStrategy::Manual, RollbackStrategy::None] {
        let mut world = World::approved(strategy);
        let attempt = world.review.begin(world.begin("w"), world.now).expect("approved");
        world.say(Said::Started(attempt)).expect("present");
        assert_eq!(world.say(Said::Fail(attempt, Left::Undone, true)).expect("present"), Some(Follows::Over));
        let execution = world.review.execution.clone().expect("carried out");
        assert_eq!((world.review.state, execution.rolled_back), (State::Failed, Some(true)));
        assert_eq!(execution.result, Some(ExecutionResult::Failure));
        assert_eq!(world.say(Said::AskRollBack), Err(Refusal::NothingToRollBack));
    }
}

#[test]
fn whoever_finds_out_what_was_left_may_be_lost_as_well() {
    for strategy in [RollbackStrategy::Automatic, RollbackStrategy::Manual, RollbackStrategy::None] {
        let mut world = World::approved(strategy);
        let attempt = world.review.begin(world.begin("w"), world.now).expect("approved");
        world.say(Said::Started(attempt)).expect("present");
        for _ in 0..2 {
            world.say(Said::Later).expect("passes");
            assert_eq!(world.say(Said::Recover(true)).expect("lost"), Some(Follows::RollBack));
            assert_eq!(world.phase(), Some(Phase::Started), "nobody has decided yet what becomes of it");
            assert_eq!(world.effects_of(), Some(attempt), "what was left is the first one's");
        }
        let attempt = world.attempt();
        world.say(Said::ChangeBack(attempt)).expect("present");
        world.say(Said::RolledBack(attempt, true)).expect("changed back");
        assert_eq!((world.review.state, world.attempt()), (State::Failed, 3));
    }
}

#[test]
fn what_nobody_could_undo_may_be_asked_for_again() {
    for strategy in [RollbackStrategy::Automatic, RollbackStrategy::Manual, RollbackStrategy::None] {
        let mut world = World::approved(strategy);
        let attempt = world.review.begin(world.begin("w"), world.now).expect("approved");
        world.say(Said::Started(attempt)).expect("present");
        if world.say(Said::Fail(attempt, Left::Something, false)).expect("present") == Some(Follows::RollBack)
        {
            world.say(Said::RolledBack(attempt, false)).expect("present");
        }
        if strategy == RollbackStrategy::None {
            assert_eq!(world.say(Said::AskRollBack), Err(Refusal::NothingToRollBack), "nobody wanted that");
        } else {
            asked_for_again(world);
        }
    }
}

fn asked_for_again(mut world: World) {
    for _ in 0..2 {
        world.say(Said::AskRollBack).expect("there is something to undo");
        world.say(Said::BeginRollBack).expect("wanted");
        assert_eq!(world.say(Said::AskRollBack), Err(Refusal::NothingToRollBack), "somebody is at it");
        world.say(Said::Later).expect("passes");
        assert_eq!(world.say(Said::Recover(false)).expect("lost"), Some(Follows::Over));
        assert_eq!((world.review.state, world.phase()), (State::Failed, Some(Phase::Ended)));
    }
    world.say(Said::AskRollBack).expect("still");
    world.say(Said::BeginRollBack).expect("wanted");
    world.say(Said::RolledBack(world.attempt(), true)).expect("present");
    assert_eq!(world.say(Said::AskRollBack), Err(Refusal::NothingToRollBack), "it is undone");
}

#[test]
fn what_is_ended_in_the_middle_says_by_what_and_that_nobody_knows() {
    for (code, result) in [
        (FailureCode::TimedOut, ExecutionResult::Timeout),
        (FailureCode::Stopped, ExecutionResult::Cancelled),
        (FailureCode::ExecutionFailed, ExecutionResult::Failure),
    ] {
        let mut world = World::approved(RollbackStrategy::Automatic);
        let attempt = world.review.begin(world.begin("w"), world.now).expect("approved");
        world.say(Said::Started(attempt)).expect("present");
        let failed = Failed { code, error: "it was ended".to_owned(), left: Left::Unknown, again: false };
        world.review.fail(attempt, failed, Output::default(), world.now).expect("present");
        let execution = world.review.execution.expect("carried out");
        assert_eq!(execution.result, Some(result));
        let unknown = execution.code == Some(FailureCode::OutcomeUnknown);
        assert!(unknown || execution.error.is_some_and(|error| error.starts_with("OUTCOME_UNKNOWN: ")));
    }
}

#[test]
fn whoever_is_not_heard_of_any_more_stays_the_one_who_did_it() {
    let mut world = World::approved(RollbackStrategy::Automatic);
    let attempt = world.review.begin(world.begin("bot"), world.now).expect("approved");
    world.say(Said::Started(attempt)).expect("present");
    world.say(Said::Later).expect("passes");
    assert_eq!(world.say(Said::Recover(false)).expect("lost"), Some(Follows::Over));
    let execution = world.review.execution.expect("carried out");
    assert_eq!((execution.worker.as_str(), execution.code), ("bot", Some(FailureCode::OutcomeUnknown)));
}

#[test]
fn nothing_begins_when_its_lease_has_ended() {
    let mut world = World::approved(RollbackStrategy::Automatic);
    let attempt = world.review.begin(world.begin("w"), world.now).expect("approved");
    world.say(Said::Later).expect("passes");
    assert_eq!(world.say(Said::Started(attempt)), Err(Refusal::NotPresent { attempt, now: attempt }));
}

#[test]
fn what_was_stopped_stays_so_when_its_worker_is_lost() {
    let mut world = World::approved(RollbackStrategy::Automatic);
    world.review.begin(world.begin("w"), world.now).expect("approved");
    world.say(Said::Stop).expect("under way");
    world.say(Said::Later).expect("passes");
    assert_eq!(world.say(Said::Recover(true)).expect("lost"), Some(Follows::Over));
    let execution = world.review.execution.expect("carried out");
    assert_eq!((world.review.state, execution.code), (State::Failed, Some(FailureCode::Stopped)));
}

#[test]
fn what_was_stopped_is_not_begun() {
    let mut world = World::approved(RollbackStrategy::Automatic);
    let attempt = world.review.begin(world.begin("w"), world.now).expect("approved");
    world.say(Said::Stop).expect("under way");
    assert_eq!(world.say(Said::Started(attempt)), Err(Refusal::Stopped));
    assert_eq!(world.say(Said::Fail(attempt, Left::Nothing, true)).expect("present"), Some(Follows::Over));
    let execution = world.review.execution.expect("carried out");
    assert_eq!(
        (execution.result, execution.code),
        (Some(ExecutionResult::Cancelled), Some(FailureCode::Stopped))
    );
}

#[test]
fn an_agent_lives_no_longer_than_the_task_may_take_or_a_lease_after_it_is_stopped() {
    let mut world = World::approved(RollbackStrategy::None);
    world.review.config.timeout_seconds = 5;
    let attempt = world.review.begin(world.begin("bot"), world.now).expect("approved");
    world.say(Said::Started(attempt)).expect("present");
    let began = world.now;
    let lives = |world: &World, ms: u64| world.review.lives_until(attempt, LEASE_MS, began.plus_ms(ms));
    assert_eq!(lives(&world, 0), Ok(began.plus_ms(LEASE_MS)));
    assert_eq!(lives(&world, 4_500), Ok(began.plus_ms(5_000)), "not beyond its time");
    assert_eq!(lives(&world, 5_000), Err(Refusal::TimedOut));
    world.now = began.plus_ms(1_000);
    world.say(Said::Stop).expect("under way");
    assert_eq!(lives(&world, 1_900), Ok(began.plus_ms(2_000)), "not beyond the grace");
    assert_eq!(lives(&world, 2_000), Err(Refusal::Stopped));
    assert_eq!(
        world.review.lives_until(attempt + 1, LEASE_MS, began),
        Err(Refusal::NotPresent { attempt: attempt + 1, now: attempt })
    );
}

#[test]
fn what_an_agent_reported_is_known_also_where_it_ended_otherwise() {
    let mut world = World::approved(RollbackStrategy::None);
    let attempt = world.review.begin(world.begin("bot"), world.now).expect("approved");
    world.say(Said::Started(attempt)).expect("present");
    world.say(Said::Stop).expect("under way");
    world.say(Said::Report(attempt, ExecutionResult::Failure, true)).expect("present");
    let execution = world.review.execution.as_ref().expect("carried out");
    assert_eq!(execution.result, Some(ExecutionResult::Cancelled), "it was stopped");
    assert!(world.review.was_reported(attempt, ExecutionResult::Failure), "as it said");
    assert!(!world.review.was_reported(attempt, ExecutionResult::Success));
    assert!(!world.review.was_reported(attempt + 1, ExecutionResult::Failure));
}

/// Whoever changed back what an administrator wanted undone is lost, and what it left cannot be found out: that is its end.
#[test]
fn changing_back_comes_to_an_end_also_after_the_task_has() {
    let mut world = World::approved(RollbackStrategy::Manual);
    let attempt = world.review.begin(world.begin("w"), world.now).expect("approved");
    world.say(Said::Started(attempt)).expect("present");
    world.say(Said::Fail(attempt, Left::Something, false)).expect("present");
    world.say(Said::AskRollBack).expect("manual");
    world.say(Said::BeginRollBack).expect("wanted");
    world.say(Said::Later).expect("passes");
    assert_eq!(world.say(Said::Recover(true)).expect("lost"), Some(Follows::RollBack));
    let attempt = world.attempt();
    assert!(world.say(Said::Fail(attempt, Left::Unknown, false)).is_err(), "it has failed already");
    world.say(Said::RolledBack(attempt, false)).expect("present");
    let execution = world.review.execution.as_ref().expect("carried out");
    assert_eq!((execution.phase, execution.rolled_back), (Phase::Ended, Some(false)));
    assert_eq!(world.review.state, State::Failed);
}

#[test]
fn what_is_not_what_was_approved_fails_and_is_not_tried_again() {
    let mut world = World::approved(RollbackStrategy::Automatic);
    world.review.transitions.clear();
    world.review.spoiled("w", world.now).expect("approved");
    let execution = world.review.execution.as_ref().expect("looked at");
    assert_eq!((world.review.state, execution.code), (State::Failed, Some(FailureCode::DigestMismatch)));
    let told: Vec<&str> = world.review.transitions.iter().map(|one| one.action.as_str()).collect();
    assert_eq!(told, ["task.begin_apply", "task.fail"]);
    assert!(world.review.spoiled("w", world.now).is_err());
}
