//! Approvals in a chat: they never count together with what a holder of its secret decided, or could have sent.

use std::collections::BTreeSet;

use crate::tasks::evidence::Audited;
use crate::tasks::fixture::{Fixture, full_answer, id, user};
use ade_domain::approval::{ApprovalStatus, DecisionKind};
use ade_domain::people::{ADMIN, REVIEWER};
use ade_domain::risk::RiskLevel;
use ade_domain::task::{Answer, ChatOrigin, Decision, Refusal, TaskState, UnprovenApproval};

/// Ann's task, which two of rob, sue, tim and the administrator eve must approve.
fn submitted() -> Audited {
    let people = [("ann", "author"), ("rob", REVIEWER), ("sue", REVIEWER), ("tim", REVIEWER)];
    let mut users: Vec<_> = people.iter().map(|(name, role)| user(name, &[role], None)).collect();
    users.push(user("eve", &[REVIEWER, ADMIN], None));
    let mut audited = Audited::submitted(Fixture::new(users));
    audited.task.risk.as_mut().expect("assessed").level = RiskLevel::Low;
    audited
}

impl Audited {
    /// Approves in a chat of which these people know a secret.
    fn approve_in_chat(&mut self, reviewer: &str, holders: &[&str]) -> Result<(), Refusal> {
        let shown = self.task.fingerprint.clone();
        self.approve_shown(reviewer, holders, shown.as_deref())
    }

    /// Approves a message that showed a preview with this fingerprint.
    fn approve_shown(
        &mut self,
        reviewer: &str,
        holders: &[&str],
        shown: Option<&str>,
    ) -> Result<(), Refusal> {
        let own = self.task.approvals.iter().find(|approval| approval.reviewer_id == id(reviewer));
        let approval_id = own.expect("asked").approval_id.clone();
        let answer = Answer { reason: None, confirm: None, ..full_answer(&self.task) };
        let decision = Decision {
            approval_id: &approval_id,
            kind: DecisionKind::Approve,
            answer: &answer,
            is_batch: false,
        };
        let holders: BTreeSet<_> = holders.iter().map(|name| id(name)).collect();
        let (actor, people, now) = (self.fixture.actor(reviewer), self.fixture.people(), self.fixture.now);
        let origin = ChatOrigin { fingerprint: shown, holders: &holders };
        self.task.decide_in_chat(&decision, origin, &actor, &people, now)?;
        self.commit(reviewer);
        Ok(())
    }

    fn try_approve(&mut self, reviewer: &str, by: &str) -> Result<(), Refusal> {
        self.fixture.decide(&mut self.task, reviewer, DecisionKind::Approve, by)?;
        self.commit(by);
        Ok(())
    }
}

#[test]
fn a_holder_is_no_second_approver_in_any_order() {
    let in_chat = Err(Refusal::ChatSecretHolder { user: id("eve") });
    let beside = |approver: &str| Err(Refusal::ApprovedInChat { user: id("eve"), approver: id(approver) });
    // The holder decides first: for herself, or for another reviewer.
    for reviewer in ["eve", "sue"] {
        let mut audited = submitted();
        audited.try_approve(reviewer, "eve").expect("approved");
        assert_eq!(audited.approve_in_chat("rob", &["eve"]), in_chat, "{reviewer}");
    }
    // The chat comes first.
    for reviewer in ["eve", "sue"] {
        let mut audited = submitted();
        audited.approve_in_chat("rob", &["eve"]).expect("approved");
        assert_eq!(audited.try_approve(reviewer, "eve"), beside("rob"), "{reviewer}");
        assert_eq!(audited.task.state, TaskState::Reviewing);
    }
    // Two approvals in chats with a common holder.
    let mut audited = submitted();
    audited.approve_in_chat("rob", &["ada", "eve"]).expect("approved");
    assert_eq!(audited.approve_in_chat("sue", &["eve", "max"]), in_chat);
    // Somebody else, or a chat that others hold, counts.
    for holders in [&[][..], &["max"]] {
        let mut other = submitted();
        other.approve_in_chat("rob", &["eve"]).expect("approved");
        other.approve_in_chat("sue", holders).expect("approved");
        other.assert_proven();
    }
    // On the page of the task, nobody could have sent it.
    audited.try_approve("rob", "rob").expect("approved");
    audited.approve_in_chat("sue", &["eve", "max"]).expect("approved");
    audited.assert_proven();
}

#[test]
fn secrets_of_the_operator_limit_nobody_and_authors_are_refused() {
    let mut audited = submitted();
    audited.approve_in_chat("rob", &[]).expect("approved");
    audited.approve_in_chat("sue", &[]).expect("approved");
    audited.assert_proven();
    let refused = submitted().approve_in_chat("rob", &["ann"]);
    assert_eq!(refused, Err(Refusal::ChatSecretHolder { user: id("ann") }));
}

#[test]
fn pairs_that_were_stored_lapse_and_prove_nothing() {
    // As if the rule had not been there.
    let mut lapsing = submitted();
    lapsing.approve_in_chat("rob", &[]).expect("approved");
    for approval in lapsing.task.approvals.iter_mut().filter(|approval| approval.reviewer_id == id("rob")) {
        approval.chat_holders = BTreeSet::from([id("ann")]);
    }
    lapsing.try_approve("sue", "sue").expect("approved");
    let of_rob = lapsing.task.approvals.iter().find(|approval| approval.reviewer_id == id("rob"));
    assert_eq!(of_rob.map(|approval| approval.status), Some(ApprovalStatus::Pending), "an author's");
    assert_eq!(lapsing.task.state, TaskState::Reviewing);

    // A row that denies the chat: the audit log decides.
    let mut denied = submitted();
    denied.approve_in_chat("rob", &["eve"]).expect("approved");
    for approval in &mut denied.task.approvals {
        approval.chat_holders.clear();
    }
    denied.try_approve("eve", "eve").expect("the row says nothing");
    assert_eq!(denied.task.state, TaskState::Approved);
    assert!(
        matches!(denied.verify(), Err(UnprovenApproval::ChatSecretHolder { .. })),
        "{:?}",
        denied.verify()
    );
}

#[test]
fn a_message_decides_about_the_preview_that_it_showed() {
    let mut audited = submitted();
    let set = |audited: &mut Audited, fingerprint: Option<&str>| {
        audited.task.fingerprint = fingerprint.map(str::to_owned);
        for approval in &mut audited.task.approvals {
            approval.fingerprint.clone_from(&audited.task.fingerprint);
        }
    };
    for (now, shown) in [(Some("new"), Some("old")), (Some("new"), None), (None, Some("old"))] {
        set(&mut audited, now);
        assert_eq!(
            audited.approve_shown("rob", &[], shown),
            Err(Refusal::PreviewChanged),
            "{now:?} {shown:?}"
        );
    }
    set(&mut audited, Some("new"));
    audited.approve_shown("rob", &[], Some("new")).expect("approved");
}
