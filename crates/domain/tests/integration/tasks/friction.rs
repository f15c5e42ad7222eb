//! What an approval must carry, by risk: every level with every combination of what can be given, on both ways in which a person
//! approves. Rejecting never needs more than its reason. And the hold between an approval and its application.

use ade_domain::Moment;
use ade_domain::approval::DecisionKind;
use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_domain::risk::RiskLevel;
use ade_domain::task::{
    Actor, Answer, AttemptStart, CRITICAL_PASSWORD_TTL_MS, Decision, Refusal, ScopePart, Task, TaskScope,
    TaskState,
};

use crate::tasks::fixture::{Fixture, config, full_answer, user};

const DAY_MS: u64 = 86_400_000;
const LEVELS: [RiskLevel; 4] = [RiskLevel::Low, RiskLevel::Medium, RiskLevel::High, RiskLevel::Critical];

fn fixture() -> Fixture {
    let mut users = vec![user("ann", &[AUTHOR], None), user("rob", &[REVIEWER], None)];
    users.extend(["max", "pam"].map(|name| user(name, &[ADMIN], None)));
    Fixture::new(users)
}

/// Ann's task of this level, which Rob is asked about.
fn submitted(fixture: &mut Fixture, level: RiskLevel, resources: &[&str]) -> Task {
    let mut task = fixture.draft("ann", config("schema", resources));
    fixture.submit(&mut task, "ann").expect("enough reviewers");
    task.risk.as_mut().expect("assessed").level = level;
    task
}

fn decide(
    fixture: &Fixture,
    task: &Task,
    kind: DecisionKind,
    answer: &Answer,
    by: &Actor,
) -> Result<Task, Refusal> {
    let approval_id = &task.approvals[0].approval_id;
    let mut changed = task.clone();
    let decision = Decision { approval_id, kind, answer, is_batch: false };
    changed.decide(&decision, by, &fixture.people(), fixture.now).map(|()| changed)
}

/// What an answer lacks; empty if the task was approved.
fn lacking(outcome: Result<Task, Refusal>) -> Vec<String> {
    match outcome {
        Ok(task) => {
            assert_eq!(task.state, TaskState::Approved);
            Vec::new()
        }
        Err(Refusal::FrictionRequired(lacking)) => lacking.needs.iter().map(ToString::to_string).collect(),
        Err(Refusal::PasswordTooOld) => vec!["password".to_owned()],
        Err(other) => panic!("{other}"),
    }
}

/// What lacks according to the specification.
fn expected(level: RiskLevel, answer: &Answer, has_password: bool) -> Vec<String> {
    let mut expected = Vec::new();
    let mut need = |from: RiskLevel, name: &str, is_given: bool| {
        if level >= from && !is_given {
            expected.push(name.to_owned());
        }
    };
    need(RiskLevel::Medium, "digest", answer.digest.is_some());
    need(RiskLevel::Medium, "scope_digest", answer.scope_digest.is_some());
    need(RiskLevel::High, "reason", answer.reason == Some("because".to_owned()));
    need(RiskLevel::Critical, "confirm", answer.confirm == Some("prod".to_owned()));
    if expected.is_empty() && level == RiskLevel::Critical && !has_password {
        expected.push("password".to_owned());
    }
    expected
}

/// Every combination of parts that are given, lack or are wrong, with the complete one.
fn answers(task: &Task) -> Vec<Answer> {
    let full = full_answer(task);
    let mut answers = Vec::new();
    for digest in [None, full.digest] {
        for scope_digest in [None, full.scope_digest] {
            for reason in [None, Some("  ".to_owned()), Some("because".to_owned())] {
                for confirm in [None, Some("PROD"), Some(" prod"), Some(""), Some("prod")] {
                    let confirm = confirm.map(str::to_owned);
                    answers.push(Answer {
                        reason: reason.clone(),
                        digest,
                        scope_digest,
                        confirm,
                        revision: None,
                    });
                }
            }
        }
    }
    answers
}

fn full_answer_without_revision(task: &Task) -> Answer {
    Answer { revision: None, ..full_answer(task) }
}

#[test]
fn every_answer_at_every_level() {
    let mut fixture = fixture();
    for level in LEVELS {
        let task = submitted(&mut fixture, level, &["database:prod"]);
        let now = fixture.now;
        let fresh = Moment::from_micros(now.micros() - (CRITICAL_PASSWORD_TTL_MS - 1) * 1_000);
        let old = Moment::from_micros(now.micros() - CRITICAL_PASSWORD_TTL_MS * 1_000);
        for (password_at, has_password) in [(Some(fresh), true), (Some(old), false), (None, false)] {
            for answer in answers(&task) {
                let expected = expected(level, &answer, has_password);
                let as_reviewer = Actor { password_at, ..fixture.actor("rob") };
                let decided = decide(&fixture, &task, DecisionKind::Approve, &answer, &as_reviewer);
                assert_eq!(lacking(decided), expected, "{level} {answer:?}");
                // An administrator who answers for the reviewer, and one who confirms an override.
                let as_admin = Actor { password_at, ..fixture.actor("max") };
                let decided = decide(&fixture, &task, DecisionKind::Approve, &answer, &as_admin);
                assert_eq!(lacking(decided), expected, "{level} {answer:?} for another");
                let (mut overridden, people) = (task.clone(), fixture.people());
                let pam = fixture.actor("pam");
                overridden
                    .request_override(Some("outage"), Some("INC-1"), &pam, &people, now)
                    .expect("permitted");
                let unread = overridden.clone().confirm_override(
                    &full_answer_without_revision(&task),
                    &as_admin,
                    &people,
                    now,
                );
                let of_current = Answer { revision: Some(1), ..answer.clone() };
                let confirmed = overridden.confirm_override(&of_current, &as_admin, &people, now);
                assert_eq!(lacking(confirmed.map(|()| overridden)), expected, "{level} {answer:?} override");
                if level > RiskLevel::Low {
                    assert_eq!(
                        lacking(unread.map(|()| task.clone())),
                        ["revision"],
                        "its preview may be another one"
                    );
                }
                for kind in [DecisionKind::Reject, DecisionKind::RequestChanges] {
                    let decided = decide(&fixture, &task, kind, &answer, &as_reviewer);
                    match answer.reason() {
                        Some(_) => assert!(decided.is_ok(), "{decided:?}"),
                        None => assert_eq!(decided, Err(Refusal::ReasonRequired)),
                    }
                }
            }
        }
    }
}

#[test]
fn what_a_task_needs_is_said_while_it_is_in_review() {
    let mut fixture = fixture();
    let needs = |task: &Task| task.approval_needs().iter().map(ToString::to_string).collect::<Vec<_>>();
    let of_level = [
        (RiskLevel::Low, vec![]),
        (RiskLevel::Medium, vec!["digest", "scope_digest"]),
        (RiskLevel::High, vec!["digest", "scope_digest", "reason"]),
        (RiskLevel::Critical, vec!["digest", "scope_digest", "reason", "confirm", "password"]),
    ];
    for (level, expected) in of_level {
        assert_eq!(needs(&submitted(&mut fixture, level, &[])), expected, "{level}");
    }
    let mut task = submitted(&mut fixture, RiskLevel::Medium, &[]);
    task.scope_digest = None;
    assert_eq!(needs(&task), ["digest"], "a task of an earlier version");
    task.risk = None;
    assert_eq!(needs(&task), ["digest", "reason", "confirm", "password"], "an unknown risk is the highest");
    let task = submitted(&mut fixture, RiskLevel::High, &[]);
    let approved = decide(&fixture, &task, DecisionKind::Approve, &full_answer(&task), &fixture.actor("rob"));
    assert_eq!(needs(&approved.expect("complete")), [""; 0]);
}

#[test]
fn ids_of_the_scope_confirm_or_without_any_the_beginning_of_the_task_id() {
    let mut fixture = fixture();
    let mut task = submitted(&mut fixture, RiskLevel::Critical, &[]);
    task.task_id = "0197c1a2-0000-7000".to_owned();
    assert_eq!(task.confirmations(), ["0197c1a2"]);
    let rob = fixture.actor("rob");
    let typed = |task: &Task, text: &str| {
        let answer = Answer { confirm: Some(text.to_owned()), ..full_answer(task) };
        lacking(decide(&fixture, task, DecisionKind::Approve, &answer, &rob))
    };
    assert_eq!(typed(&task, "0197c1a2"), [""; 0]);
    assert_eq!(typed(&task, "0197c1a2-0000-7000"), ["confirm"], "typed exactly");
    let part = ScopePart {
        binding: "files:site".to_owned(),
        targets: vec!["files:site/a.md".to_owned(), "files:site/b.md".to_owned()],
        resources: config("docs", &["docs:handbook"]).resources,
        criticality: None,
        lock: None,
        fingerprint: None,
    };
    task.set_scope(TaskScope(vec![part]));
    assert_eq!(task.confirmations(), ["docs:handbook", "handbook", "files:site/a.md", "files:site/b.md"]);
    task.approvals[0].scope_digest = task.scope_digest;
    for id in task.confirmations() {
        assert_eq!(typed(&task, &id), [""; 0], "{id}");
    }
    for other in ["0197c1a2", "docs", "docs:", ":handbook", "wiki:handbook", "files:site", "HANDBOOK"] {
        assert_eq!(typed(&task, other), ["confirm"], "{other}");
    }
}

#[test]
fn only_low_and_medium_tasks_are_approved_together_with_others() {
    let mut fixture = fixture();
    for level in LEVELS {
        let task = submitted(&mut fixture, level, &["database:prod"]);
        let batched = |kind, answer: &Answer| {
            let approval_id = &task.approvals[0].approval_id;
            let decision = Decision { approval_id, kind, answer, is_batch: true };
            task.clone().decide(&decision, &fixture.actor("rob"), &fixture.people(), fixture.now)
        };
        let full = full_answer(&task);
        match level {
            RiskLevel::Low | RiskLevel::Medium => batched(DecisionKind::Approve, &full).expect("complete"),
            _ => assert_eq!(batched(DecisionKind::Approve, &full), Err(Refusal::NotInBatch { level })),
        }
        let without = Answer { reason: Some("no".to_owned()), ..Answer::default() };
        batched(DecisionKind::Reject, &without).expect("rejecting needs its reason only");
        let undigested = batched(DecisionKind::Approve, &Answer::default());
        assert_eq!(undigested.is_ok(), level == RiskLevel::Low, "{undigested:?}");
    }
}

#[test]
fn the_refusal_says_what_to_do_and_shows_no_digest() {
    let mut fixture = fixture();
    let task = submitted(&mut fixture, RiskLevel::Critical, &["database:prod"]);
    let refused = decide(&fixture, &task, DecisionKind::Approve, &Answer::default(), &fixture.actor("rob"));
    let text = refused.expect_err("incomplete").to_string();
    for part in [
        "CRITICAL",
        "digest",
        "scope_digest",
        "reason",
        "confirm",
        "one of its resources",
        "one of its targets",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Repeating what the refusal says must not replace a look at the task.
    for part in [task.digest.to_string(), "prod".to_owned()] {
        assert!(!text.contains(&part), "{text}");
    }
}

const HOLD_MS: u64 = 10_000;

fn approved(fixture: &mut Fixture, level: RiskLevel) -> Task {
    let task = submitted(fixture, level, &[]);
    let approved = decide(fixture, &task, DecisionKind::Approve, &full_answer(&task), &fixture.actor("rob"));
    let mut approved = approved.expect("complete");
    approved.set_approval_times(DAY_MS, HOLD_MS);
    approved
}

fn begin(task: &mut Task, now: Moment) -> Result<u64, Refusal> {
    let start = AttemptStart { worker: "w".to_owned(), grants: Vec::new(), lease_until: now.plus_ms(1_000) };
    task.begin_apply(start, now)
}

#[test]
fn risky_tasks_are_held_after_their_approval() {
    let mut fixture = fixture();
    let now = fixture.now;
    for level in LEVELS {
        let mut task = approved(&mut fixture, level);
        if level < RiskLevel::High {
            assert_eq!(task.held_until(now), None, "{level}");
            begin(&mut task, now).expect("not held");
            continue;
        }
        let until = now.plus_ms(HOLD_MS);
        let just_before = Moment::from_micros(until.micros() - 1);
        // Neither waiting nor force shortens the hold; revoking ends it.
        task.force_apply(Some("outage"), &fixture.actor("max"), &fixture.people(), now).expect("permitted");
        for early in [now, just_before] {
            assert_eq!(task.held_until(early), Some(until), "{level}");
            let before = task.clone();
            assert_eq!(begin(&mut task, early), Err(Refusal::Held { until }));
            assert_eq!(task, before, "a refused command changes nothing");
        }
        let mut revoked = task.clone();
        revoked.revoke(Some("wrong"), &fixture.actor("rob"), just_before).expect("rob approved");
        assert_eq!((revoked.state, revoked.held_until), (TaskState::Rejected, None));
        assert_eq!(task.held_until(until), None);
        begin(&mut task, until).expect("the hold is over");
        // Its worker is lost before it changed anything: nobody waits again, whatever the setting is by then.
        let lost = until.plus_ms(1_000);
        let start = AttemptStart { worker: "v".to_owned(), grants: Vec::new(), lease_until: lost.plus_ms(1) };
        task.recover(start, false, lost).expect("lost");
        assert!(task.needs_approval_times(), "its end is set again");
        task.set_approval_times(DAY_MS, 3_600_000);
        assert_eq!((task.state, task.held_until(lost)), (TaskState::Approved, None));
        begin(&mut task, lost).expect("not held again");
    }
}

#[test]
fn every_new_approval_holds_again() {
    let mut fixture = fixture();
    let mut task = approved(&mut fixture, RiskLevel::High);
    let other = config("schema", &["database:other"]);
    fixture.modify(&mut task, &other, "ann").expect("an author");
    assert_eq!((task.state, task.held_until), (TaskState::Reviewing, None));
    task.risk.as_mut().expect("assessed").level = RiskLevel::Critical;
    // By an override this time.
    let (people, now) = (fixture.people(), fixture.now.plus_ms(60_000));
    task.request_override(Some("outage"), Some("INC-1"), &fixture.actor("max"), &people, now)
        .expect("permitted");
    task.confirm_override(&full_answer(&task), &fixture.actor("pam"), &people, now).expect("permitted");
    task.set_approval_times(DAY_MS, HOLD_MS);
    assert_eq!(task.held_until(now), Some(now.plus_ms(HOLD_MS)));
    // A hold of 0 s is none.
    let mut task = approved(&mut fixture, RiskLevel::High);
    task.held_until = None;
    task.set_approval_times(DAY_MS, 0);
    assert_eq!(task.held_until(fixture.now), None);
    begin(&mut task, fixture.now).expect("not held");
}
