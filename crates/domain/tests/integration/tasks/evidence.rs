//! Evidence of approvals: every way to approve a task is proven by its audit entries, and no edit of the stored rows is.

use crate::tasks::fixture::{Fixture, config, delegation, full_answer, id, policy, user};
use ade_domain::approval::DecisionKind;
use ade_domain::approval::delegation::{Delegation, DelegationConditions, DelegationKind};
use ade_domain::approval::policy::{AutoApprove, Policy};
use ade_domain::audit::{AuditActor, AuditBody, Principal, ServiceActor, Trigger};
use ade_domain::glob::Pattern;
use ade_domain::people::AuthorSet;
use ade_domain::task::{AttemptStart, Refusal, Task, TaskState, UnprovenApproval};
use serde_json::{Value, json};

/// A task with the audit entries that a server would have written.
#[derive(Clone)]
pub(super) struct Audited {
    pub(super) fixture: Fixture,
    pub(super) task: Task,
    pub(super) entries: Vec<AuditBody>,
}

impl Audited {
    /// A draft of Ann that two people must approve.
    fn draft(fixture: Fixture) -> Self {
        let task = fixture.draft("ann", config("schema", &["database:users"]));
        let mut audited = Self { fixture, task, entries: Vec::new() };
        audited.commit("ann");
        audited
    }

    pub(super) fn submitted(mut fixture: Fixture) -> Self {
        fixture.policies.push(policy("two", 2, &[]));
        let mut audited = Self::draft(fixture);
        audited.fixture.submit(&mut audited.task, "ann").expect("enough reviewers");
        audited.commit("ann");
        audited
    }

    /// Adds the entries of the transitions since the last commit.
    pub(super) fn commit(&mut self, by: &str) {
        let caller = AuditActor { user_id: Some(id(by)), ..AuditActor::default() };
        for transition in std::mem::take(&mut self.task.transitions) {
            let service = |trigger| ServiceActor {
                service: "approvals".to_owned(),
                instance: "server-1".to_owned(),
                trigger,
            };
            let is_about_approval = transition.approval_id.is_some() || transition.to == TaskState::Approved;
            let details = transition.details();
            self.entries.push(AuditBody {
                entry_id: self.entries.len().to_string(),
                at: self.fixture.now,
                who: transition
                    .trigger
                    .map_or_else(|| caller.clone().into(), |trigger| service(trigger).into()),
                action: transition.action,
                object_type: "task".to_owned(),
                object_id: transition.approval_id.unwrap_or_else(|| self.task.task_id.clone()),
                task_id: Some(self.task.task_id.clone()),
                from: transition.from,
                to: Some(transition.to),
                revision: Some(self.task.revision),
                digest: Some(self.task.digest),
                reviewed: is_about_approval.then(|| self.task.reviewed_content()),
                reason: transition.reason,
                ticket: None,
                details,
            });
        }
    }

    fn decide(&mut self, reviewer: &str, kind: DecisionKind, by: &str) {
        self.fixture.decide(&mut self.task, reviewer, kind, by).expect("decided");
        self.commit(by);
    }

    fn approve(&mut self, reviewer: &str) {
        self.decide(reviewer, DecisionKind::Approve, reviewer);
    }

    pub(super) fn verify(&self) -> Result<(), UnprovenApproval> {
        self.task.verify_approval(&self.entries)
    }

    #[track_caller]
    pub(super) fn assert_proven(&self) {
        assert_eq!(self.task.state, TaskState::Approved);
        assert_eq!(self.verify(), Ok(()));
    }
}

fn fixture() -> Fixture {
    let admins = ["ada", "abe"].map(|name| user(name, &["admin"], None));
    let reviewers = ["rob", "sue", "tim"].map(|name| user(name, &["reviewer"], Some("mia")));
    let others = [user("ann", &["author"], None), user("mia", &["reviewer"], None)];
    Fixture::new(admins.into_iter().chain(reviewers).chain(others).collect())
}

pub(super) fn approved() -> Audited {
    let mut audited = Audited::submitted(fixture());
    audited.approve("rob");
    audited.approve("sue");
    audited
}

#[test]
fn every_way_to_approve_is_proven() {
    approved().assert_proven();
    // After a change of mind, by an administrator in place of the reviewer, and by a delegate.
    let mut audited = Audited::submitted(fixture());
    audited.decide("rob", DecisionKind::RequestChanges, "rob");
    audited.approve("rob");
    audited.decide("sue", DecisionKind::Approve, "ada");
    audited.assert_proven();
    let mut audited = Audited::submitted(fixture());
    let request = audited.task.approvals[0].clone();
    let (people, actor) = (audited.fixture.people(), audited.fixture.actor(request.reviewer_id.as_str()));
    let now = audited.fixture.now;
    audited
        .task
        .delegate(&request.approval_id, &id("abe"), &people, "new".to_owned(), &actor, now)
        .expect("free");
    audited.commit(request.reviewer_id.as_str());
    audited.approve("abe");
    let other =
        audited.task.approvals.iter().find(|approval| approval.is_open()).expect("open").reviewer_id.clone();
    audited.approve(other.as_str());
    audited.assert_proven();
    // By following somebody else.
    let mut following = fixture();
    let follow = delegation("tim", "rob", DelegationConditions::default());
    following.delegations.push(Delegation { kind: DelegationKind::Follow, ..follow });
    let mut audited = Audited::submitted(following);
    audited.approve("rob");
    audited.approve("sue");
    audited.assert_proven();
    // Automatically.
    let mut fixture = fixture();
    let auto_approve_if = Some(AutoApprove { risk_below: Some(100), ..AutoApprove::default() });
    fixture.policies.push(Policy {
        auto_approve_if,
        resource_patterns: vec![Pattern::new("database:*")],
        ..policy("lenient", 1, &[])
    });
    let mut audited = Audited::draft(fixture);
    audited.fixture.submit(&mut audited.task, "ann").expect("automatic");
    audited.commit("ann");
    audited.assert_proven();
    // By an override.
    let mut audited = Audited::submitted(self::fixture());
    let (now, ada, abe) = (audited.fixture.now, audited.fixture.actor("ada"), audited.fixture.actor("abe"));
    let people = audited.fixture.people();
    audited.task.request_override(Some("outage"), Some("INC-1"), &ada, &people, now).expect("permitted");
    audited.commit("ada");
    audited.task.confirm_override(&full_answer(&audited.task), &abe, &people, now).expect("permitted");
    audited.commit("abe");
    audited.assert_proven();
    let mut same = audited.clone();
    let request = same.entries.iter().position(|entry| entry.action == "task.override").expect("requested");
    same.entries[request].who = same.entries.last().expect("confirmed").who.clone();
    assert_eq!(same.verify(), Err(UnprovenApproval::UnprovenOverride));
}

/// Rows that were edited while the task was in review, so that real decisions were made on them.
#[test]
fn decisions_on_edited_rows_prove_nothing() {
    // An author who is made none, and decides in place of a reviewer.
    let mut fixture = fixture();
    fixture.users.push(user("zoe", &["admin", "author"], None));
    fixture.policies.push(policy("two", 2, &[]));
    let task = fixture.draft("zoe", config("schema", &["database:users"]));
    let mut audited = Audited { fixture, task, entries: Vec::new() };
    audited.commit("zoe");
    audited.fixture.submit(&mut audited.task, "zoe").expect("enough reviewers");
    audited.commit("zoe");
    audited.task.author_set = AuthorSet::default();
    audited.decide("rob", DecisionKind::Approve, "zoe");
    audited.approve("sue");
    assert_eq!(audited.task.state, TaskState::Approved);
    assert_eq!(audited.verify(), Err(UnprovenApproval::UnprovenDecision { user: id("zoe") }));
    // A reviewer who was asked for one policy, and is made to count for another.
    let mut fixture = self::fixture();
    for (name, reviewer) in [("one", "rob"), ("other", "sue")] {
        fixture.policies.push(Policy { reviewers: vec![id(reviewer)], ..policy(name, 1, &[]) });
    }
    let mut audited = Audited::draft(fixture);
    audited.fixture.submit(&mut audited.task, "ann").expect("enough reviewers");
    audited.commit("ann");
    for requirement in &mut audited.task.requirements {
        requirement.reviewers.insert(id("rob"), requirement.required_roles.clone());
    }
    audited.approve("rob");
    assert_eq!(audited.task.state, TaskState::Approved);
    assert_eq!(audited.verify(), Err(UnprovenApproval::QuorumNotReached));
    // Another preview than the one that will be found.
    let mut audited = Audited::submitted(self::fixture());
    audited.task.preview.warnings.push("only a typo".to_owned());
    audited.approve("rob");
    audited.approve("sue");
    audited.task.preview.warnings.clear();
    assert!(matches!(audited.verify(), Err(UnprovenApproval::OtherContent(_))));
    // Another config than the one that the digest is of.
    let mut audited = Audited::submitted(self::fixture());
    audited.task.config.description = "harmless".to_owned();
    let refused = audited.fixture.decide(&mut audited.task, "rob", DecisionKind::Approve, "rob");
    assert_eq!(refused, Err(Refusal::EditedTask));
}

#[test]
fn approval_stays_proven_through_force_apply_and_retries() {
    let mut audited = approved();
    let (now, ada) = (audited.fixture.now, audited.fixture.actor("ada"));
    audited.task.force_apply(Some("urgent"), &ada, &audited.fixture.people(), now).expect("permitted");
    audited.commit("ada");
    audited.assert_proven();
    let start = AttemptStart { worker: "w".to_owned(), grants: Vec::new(), lease_until: now };
    audited.task.begin_apply(start.clone(), now).expect("approved");
    audited.commit("ada");
    assert_eq!(audited.task.verify_current(&audited.entries), Ok(()));
    audited.task.recover(start, false, now).expect("lost");
    audited.commit("ada");
    audited.assert_proven();
}

#[test]
fn approval_stays_proven_through_comments_and_previews() {
    let mut audited = approved();
    let approval = audited.entries.last().expect("approved").clone();
    let who: Principal = AuditActor { user_id: Some(id("ann")), ..AuditActor::default() }.into();
    // A comment names the state and the revision that it found; a preview names neither.
    let comment = AuditBody {
        who: who.clone(),
        action: "task.comment".to_owned(),
        from: Some(TaskState::Reviewing),
        to: Some(TaskState::Reviewing),
        revision: Some(1),
        reviewed: None,
        ..approval.clone()
    };
    let preview = AuditBody {
        who,
        action: "task.preview".to_owned(),
        from: None,
        to: None,
        revision: None,
        digest: None,
        reviewed: None,
        ..approval
    };
    for entry in [comment, preview] {
        audited.entries.push(entry);
        audited.assert_proven();
        assert_eq!(audited.task.verify_current(&audited.entries), Ok(()));
    }
    // They prove nothing either.
    let mut only = audited.clone();
    only.entries.drain(..only.entries.len() - 2);
    assert!(only.verify().is_err());
}

#[test]
fn what_came_after_an_approval_counts() {
    // An old row is put back after the approval was revoked, or after the task was modified.
    let approved = approved();
    let mut revoked = approved.clone();
    let (now, rob) = (revoked.fixture.now, revoked.fixture.actor("rob"));
    revoked.task.revoke(Some("wrong"), &rob, now).expect("permitted");
    revoked.commit("rob");
    let mut modified = approved.clone();
    modified
        .fixture
        .modify(&mut modified.task, &config("schema", &["database:other"]), "ann")
        .expect("author");
    modified.commit("ann");
    for later in [revoked, modified] {
        let replayed = Audited { task: approved.task.clone(), ..later.clone() };
        assert!(matches!(replayed.verify(), Err(UnprovenApproval::NotCurrent { .. })));
        // Also if the row claims the new revision.
        let mut replayed = replayed;
        replayed.task.revision = later.task.revision;
        assert!(replayed.verify().is_err());
        let mut forced = later;
        forced.task.state = TaskState::Approved;
        assert!(forced.verify().is_err());
    }
}

/// Every value below these pointers of the stored task decides what is executed and who agreed.
const GUARDED: [&str; 10] = [
    "/task_id",
    "/state",
    "/revision",
    "/config",
    "/digest",
    "/fingerprint",
    "/requirements/0/policy",
    "/requirements/0/min_approvers",
    "/requirements/0/required_roles",
    "/requirements/0/overridden",
];
/// The same of an approval request that counts.
const GUARDED_REQUEST: [&str; 5] = ["/approval_id", "/reviewer_id", "/digest", "/status", "/reviewed_by"];

/// All pointers to scalars, and to empty lists and objects, below a pointer.
fn leaves(value: &Value, pointer: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            fields.iter().for_each(|(name, value)| leaves(value, &format!("{pointer}/{name}"), found));
        }
        Value::Array(items) if !items.is_empty() => {
            let items = items.iter().enumerate();
            items.for_each(|(index, value)| leaves(value, &format!("{pointer}/{index}"), found));
        }
        _ => found.push(pointer.to_owned()),
    }
}

/// Other values of the same kind.
fn edits(pointer: &str, value: &Value) -> Vec<Value> {
    match value {
        Value::String(_) if pointer == "/state" => vec![json!("REVIEWING"), json!("APPLYING")],
        Value::String(_) if pointer == "/status" => vec![json!("PENDING"), json!("REJECTED")],
        Value::String(text) if pointer.ends_with("digest") => vec![json!(text.replace('a', "b"))],
        Value::String(text) if pointer.ends_with("mode") => {
            vec![json!(if text == "shared" { "exclusive" } else { "shared" })]
        }
        Value::String(_) if pointer.ends_with("rollback_strategy") => vec![json!("none")],
        Value::String(text) => vec![json!(format!("{text}x"))],
        Value::Number(number) => vec![json!(number.as_u64().expect("positive") + 1)],
        Value::Null => vec![json!("x")],
        Value::Array(_) => vec![json!(["x"])],
        Value::Object(_) => vec![json!({ "x": 1 })],
        Value::Bool(flag) => vec![json!(!flag)],
    }
}

#[test]
fn no_edit_of_stored_rows_is_proven() {
    let audited = approved();
    let row = json!(audited.task);
    let mut tried = 0;
    for guarded in GUARDED {
        let mut found = Vec::new();
        leaves(row.pointer(guarded).expect(guarded), guarded, &mut found);
        for pointer in found {
            for edit in edits(&pointer, row.pointer(&pointer).expect("present")) {
                let mut edited = row.clone();
                *edited.pointer_mut(&pointer).expect("present") = edit.clone();
                let Ok(task) = serde_json::from_value::<Task>(edited) else { continue };
                let task = Task { approvals: audited.task.approvals.clone(), ..task };
                assert!(task.verify_approval(&audited.entries).is_err(), "{pointer} = {edit}");
                if pointer == "/digest" {
                    continue;
                }
                // Also with the digest of the edited config.
                let digest = task.config.digest().expect("plain");
                let mut approvals = task.approvals.clone();
                approvals.iter_mut().for_each(|approval| approval.digest = digest);
                let consistent = Task { digest, approvals, ..task };
                assert!(
                    consistent.verify_approval(&audited.entries).is_err(),
                    "{pointer} = {edit}, consistently"
                );
                tried += 1;
            }
        }
    }
    let counted = audited.task.approvals.iter().position(|approval| approval.reviewed_by == Some(id("sue")));
    let counted = counted.expect("approved by Sue");
    let row = json!(audited.task.approvals[counted]);
    for pointer in GUARDED_REQUEST {
        for edit in edits(pointer, row.pointer(pointer).expect(pointer)) {
            let mut edited = row.clone();
            *edited.pointer_mut(pointer).expect("present") = edit.clone();
            let mut task = audited.task.clone();
            task.approvals[counted] = serde_json::from_value(edited).expect("still a request");
            assert!(task.verify_approval(&audited.entries).is_err(), "{pointer} = {edit}");
            tried += 1;
        }
    }
    assert!(tried > 20, "only {tried} edits");
}

#[test]
fn forged_votes_and_weakened_requirements_are_not_proven() {
    // A row says that Sue approved; then Rob approves, and the server counts both.
    let mut audited = Audited::submitted(fixture());
    let sue =
        audited.task.approvals.iter_mut().find(|approval| approval.reviewer_id == id("sue")).expect("asked");
    sue.status = ade_domain::approval::ApprovalStatus::Approved;
    sue.reviewed_by = Some(id("sue"));
    audited.approve("rob");
    assert_eq!(audited.task.state, TaskState::Approved);
    assert_eq!(audited.verify(), Err(UnprovenApproval::UnprovenDecision { user: id("sue") }));
    // A row says that an approval still counts, which has lapsed.
    let mut audited = Audited::submitted(fixture());
    audited.decide("rob", DecisionKind::Approve, "ada");
    let of_rob = audited.task.approvals.iter().position(|approval| approval.reviewer_id == id("rob"));
    let of_rob = of_rob.expect("asked");
    let (counted, users) = (audited.task.approvals[of_rob].clone(), audited.fixture.users.clone());
    audited.fixture.users[0].roles.clear();
    audited.decide("sue", DecisionKind::RequestChanges, "sue");
    assert!(audited.task.approvals[of_rob].is_open(), "lapsed");
    (audited.task.approvals[of_rob], audited.fixture.users) = (counted, users);
    audited.approve("sue");
    assert_eq!(audited.task.state, TaskState::Approved);
    assert_eq!(audited.verify(), Err(UnprovenApproval::UnprovenDecision { user: id("ada") }));
    // A row requires only one approval.
    let mut audited = Audited::submitted(fixture());
    audited.task.requirements[0].min_approvers = 1;
    audited.approve("rob");
    assert!(matches!(audited.verify(), Err(UnprovenApproval::OtherContent(_))));
    let mut audited = Audited::submitted(fixture());
    audited.task.requirements[0].overridden = Some("by nobody".to_owned());
    audited.approve("rob");
    assert_eq!(audited.verify(), Err(UnprovenApproval::QuorumNotReached));
    // A row asks somebody who was never asked.
    let mut audited = Audited::submitted(fixture());
    let mut request = audited.task.approvals[0].clone();
    (request.approval_id, request.reviewer_id) = ("forged".to_owned(), id("ada"));
    audited.task.approvals.push(request);
    audited.task.requirements[0].add_reviewer(id("ada"), []);
    audited.approve("ada");
    audited.approve("rob");
    assert_eq!(audited.verify(), Err(UnprovenApproval::QuorumNotReached));
}

#[test]
fn every_entry_that_proves_something_is_needed() {
    let audited = approved();
    let is_needed = |entry: &AuditBody| match entry.action.as_str() {
        "approval.approve" | "task.approve" => true,
        // Of those who were asked, two approved.
        "approval.request" => {
            let asked = entry.details["notified"].to_string();
            asked.contains("rob") || asked.contains("sue")
        }
        _ => false,
    };
    for (index, entry) in audited.entries.iter().enumerate() {
        let mut without = audited.clone();
        without.entries.remove(index);
        assert_eq!(without.verify().is_err(), is_needed(entry), "{entry:?}");
    }
    // Entries of another task prove nothing.
    let mut other = audited.clone();
    other.entries.iter_mut().for_each(|entry| entry.task_id = Some("other".to_owned()));
    assert!(other.verify().is_err());
    // An approval that the service did not derive from decisions proves nothing.
    let mut claimed = audited.clone();
    let approved = claimed.entries.iter_mut().find(|entry| entry.action == "task.approve").expect("approved");
    approved.who = Principal::Service(ServiceActor {
        service: "worker".to_owned(),
        instance: "w".to_owned(),
        trigger: Trigger::Attempt(1),
    });
    assert_eq!(claimed.verify(), Err(UnprovenApproval::NotApproved));
    assert!(audited.task.verify_approval(&[]).is_err());
}
