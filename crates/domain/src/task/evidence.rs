//! Evidence of an approval: a stored task is applied only if the audit log proves that exactly this was approved.
//!
//! Rows of tasks and approval requests can be edited by somebody who can write to the database. Audit entries cannot be forged without
//! the secret of the installation, so they decide: what the rows say must agree with them. The entries must be authentic, about this
//! task, and in the order in which they were written.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::chat::Approver;
use super::{Digest, Task, TaskState, rollback_data_key};
use crate::approval::Approval;
use crate::approval::ApprovalStatus;
use crate::approval::quorum::{Requirement, is_quorum_reached};
use crate::audit::{AuditBody, Principal, ReviewedContent, ServiceActor, Trigger};
use crate::people::UserId;

/// What the audit log keeps with a task although it changes neither its state nor its revision. It proves nothing.
pub const ACTIONS_WITHOUT_TRANSITION: [&str; 2] = ["task.comment", "task.preview"];

/// The detail of an entry that names everybody who could have sent a decision in a chat.
pub(super) const CHAT_HOLDERS: &str = "chat_secret_holders";

const APPROVE_TASK: &str = "task.approve";
const REQUEST_OVERRIDE: &str = "task.override";
const CONFIRM_OVERRIDE: &str = "task.confirm_override";
const ROLL_BACK: &str = "task.roll_back";
const STARTED: &str = "task.started";
const APPROVE: &str = "approval.approve";
const FOLLOW: &str = "approval.follow";
/// Also what withdraws a decision: the last of them counts.
const DECISIONS: [&str; 5] =
    [APPROVE, FOLLOW, "approval.reject", "approval.request_changes", "approval.lapse"];
const REQUEST: &str = "approval.request";
/// Commands that ask further people; their entries name them as notified.
const ASKS: [&str; 4] = [REQUEST, "approval.delegate", "approval.escalate", "approval.reassign"];

/// Commands of authors. A row can deny that somebody is one.
const WRITES: [&str; 4] = ["task.create", "task.modify", "task.submit", "task.resubmit"];

/// The people who wrote a task, or agents of theirs.
fn writers<'a>(entries: &[&'a AuditBody]) -> BTreeSet<&'a UserId> {
    let wrote = |entry: &&&AuditBody| WRITES.contains(&entry.action.as_str());
    entries.iter().filter(wrote).filter_map(|entry| entry.who.user_id()).collect()
}

fn chat_holders(entry: &AuditBody) -> BTreeSet<UserId> {
    let holders = entry.details.get(CHAT_HOLDERS).and_then(|holders| holders.as_array());
    holders.into_iter().flatten().filter_map(|user| user.as_str()).map(UserId::new).collect()
}

/// The people who were asked, and the policies for which. What was passed on counts for the same policies.
fn asked_policies<'a>(entries: impl Iterator<Item = &'a AuditBody>) -> BTreeMap<&'a str, BTreeSet<String>> {
    let mut asked = BTreeMap::<&str, BTreeSet<String>>::new();
    let mut of_requests = BTreeMap::<&str, BTreeSet<String>>::new();
    for entry in entries.filter(|entry| ASKS.contains(&entry.action.as_str())) {
        let policies: BTreeSet<String> = match &entry.who {
            Principal::Service(ServiceActor { trigger: Trigger::Policies(policies), .. }) => {
                policies.iter().cloned().collect()
            }
            who => {
                let of_request = of_requests.get(entry.object_id.as_str());
                let of_person = || asked.get(who.user_id()?.as_str());
                // The request of somebody who got it from somebody else.
                let of_all = || asked.values().flatten().cloned().collect();
                of_request.or_else(of_person).cloned().unwrap_or_else(of_all)
            }
        };
        let notified = entry.details.get("notified").and_then(|notified| notified.as_array());
        for user in notified.into_iter().flatten().filter_map(|user| user.as_str()) {
            asked.entry(user).or_default().extend(policies.iter().cloned());
        }
        of_requests.insert(&entry.object_id, policies);
    }
    asked
}

/// The entries of transitions: all others say nothing about the state of a task.
fn transitions(entries: &[AuditBody]) -> Vec<&AuditBody> {
    let is_transition = |entry: &&AuditBody| {
        let action = entry.action.as_str();
        entry.to.is_some() && entry.revision.is_some() && !ACTIONS_WITHOUT_TRANSITION.contains(&action)
    };
    entries.iter().filter(is_transition).collect()
}

/// Why a stored task must not be applied or rolled back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnprovenApproval {
    #[error("the stored config does not match the approved digest")]
    DigestMismatch,
    #[error("the stored task has revision {stored} and state {state}, but its last audit entry is {last}")]
    NotCurrent { stored: u64, state: TaskState, last: String },
    #[error("the audit log has no approval of it that is still in force")]
    NotApproved,
    #[error("the audit log says that something else was approved: {0}")]
    OtherContent(&'static str),
    #[error("the approval by {user} is not in the audit log, or {user} was not asked")]
    UnprovenDecision { user: UserId },
    #[error(
        "the approval by {user} was given in a chat, and an author or another approver could have sent it"
    )]
    ChatSecretHolder { user: UserId },
    #[error("the decisions in the audit log do not satisfy what is required")]
    QuorumNotReached,
    #[error("the override was not requested by another administrator")]
    UnprovenOverride,
    #[error("nobody requested its rollback")]
    RollbackNotRequested,
    #[error("its rollback data {key} is not that of the attempt that started last")]
    OtherRollbackData { key: String },
}

impl Task {
    /// What reviewers decide on, besides the config.
    pub fn reviewed_content(&self) -> ReviewedContent {
        #[derive(Serialize)]
        struct Required<'a> {
            policy: &'a str,
            min_approvers: u32,
            required_roles: &'a BTreeSet<String>,
            reject_threshold: u32,
        }
        // Without the reviewers, who may change by delegation.
        let required: Vec<Required<'_>> = self
            .requirements
            .iter()
            .map(|requirement| Required {
                policy: &requirement.policy,
                min_approvers: requirement.min_approvers,
                required_roles: &requirement.required_roles,
                reject_threshold: requirement.reject_threshold,
            })
            .collect();
        // Texts and small numbers always have a canonical form.
        let requirements = Digest::of(&required).unwrap_or_else(|| Digest::of_bytes(b""));
        let preview = serde_json::to_vec(&self.preview).ok().map(|bytes| Digest::of_bytes(&bytes));
        ReviewedContent {
            fingerprint: self.fingerprint.clone(),
            preview,
            scope: self.scope_digest,
            requirements,
        }
    }

    /// Verifies that the audit log proves the approval of this task: by decisions, automatically, or by an override.
    pub fn verify_approval(&self, entries: &[AuditBody]) -> Result<(), UnprovenApproval> {
        let entries = transitions(entries);
        self.verify_last(&entries)?;
        let is_approval =
            |entry: &&AuditBody| matches!(entry.action.as_str(), APPROVE_TASK | CONFIRM_OVERRIDE);
        let last = entries.iter().rposition(is_approval).ok_or(UnprovenApproval::NotApproved)?;
        let (before, since) = entries.split_at(last);
        let Some((approval, later)) = since.split_first() else { return Err(UnprovenApproval::NotApproved) };
        let in_force =
            |entry: &&AuditBody| matches!(entry.to, Some(TaskState::Approved | TaskState::Applying));
        if !in_force(approval) || !later.iter().all(in_force) {
            return Err(UnprovenApproval::NotApproved);
        }
        let content = self.reviewed_content();
        if approval.digest != Some(self.digest) {
            return Err(UnprovenApproval::OtherContent("the digest differs"));
        }
        if approval.reviewed.as_ref() != Some(&content) {
            return Err(UnprovenApproval::OtherContent(
                "the preview, the scope or the required approvals differ",
            ));
        }
        match &approval.who {
            Principal::Caller(confirmed) if approval.action == CONFIRM_OVERRIDE => {
                let request = before.iter().rfind(|entry| entry.action == REQUEST_OVERRIDE);
                let is_proven = request.is_some_and(|request| {
                    let (by, digest) = (request.who.user_id(), request.digest);
                    let writers = writers(before);
                    let is_other = |by: &UserId| !writers.contains(by);
                    by.is_some_and(is_other)
                        && confirmed.user_id.as_ref().is_some_and(is_other)
                        && by != confirmed.user_id.as_ref()
                        && digest == Some(self.digest)
                });
                if is_proven { Ok(()) } else { Err(UnprovenApproval::UnprovenOverride) }
            }
            Principal::Service(ServiceActor { trigger: Trigger::Decision(_), .. }) => {
                self.verify_decisions(before, &content)
            }
            Principal::Service(_)
                if self.auto_approved.is_some() && self.auto_approved == approval.reason =>
            {
                Ok(())
            }
            _ => Err(UnprovenApproval::NotApproved),
        }
    }

    /// Verifies that somebody requested the rollback of this task, and that it is still what was executed.
    pub fn verify_rollback(&self, entries: &[AuditBody]) -> Result<(), UnprovenApproval> {
        let entries = transitions(entries);
        self.verify_last(&entries)?;
        let is_requested =
            entries.last().is_some_and(|entry| entry.action == ROLL_BACK && entry.who.user_id().is_some());
        if is_requested { Ok(()) } else { Err(UnprovenApproval::RollbackNotRequested) }
    }

    /// Verifies that the stored task is the one of the last audit entry: not an older version, and not one that was edited.
    pub fn verify_current(&self, entries: &[AuditBody]) -> Result<(), UnprovenApproval> {
        self.verify_last(&transitions(entries))
    }

    fn verify_last(&self, entries: &[&AuditBody]) -> Result<(), UnprovenApproval> {
        if self.config.digest().ok() != Some(self.digest) {
            return Err(UnprovenApproval::DigestMismatch);
        }
        let not_current =
            |last: String| UnprovenApproval::NotCurrent { stored: self.revision, state: self.state, last };
        let is_about_it = |entry: &&AuditBody| entry.task_id.as_ref() == Some(&self.task_id);
        let Some(last) = entries.last() else { return Err(not_current("missing".to_owned())) };
        let newest = entries.iter().filter_map(|entry| entry.revision).max();
        let is_current = last.to == Some(self.state) && newest == Some(self.revision);
        if !is_current || !entries.iter().all(is_about_it) {
            let (action, state) = (&last.action, last.to.map_or("-", TaskState::as_str));
            let revision = newest.unwrap_or_default();
            return Err(not_current(format!("{action} with revision {revision} and state {state}")));
        }
        if last.digest != Some(self.digest) {
            return Err(UnprovenApproval::DigestMismatch);
        }
        self.verify_rollback_data(entries)
    }

    /// Verifies that the rollback data, if there is any, is that of the attempt that changed something.
    fn verify_rollback_data(&self, entries: &[&AuditBody]) -> Result<(), UnprovenApproval> {
        let Some(execution) = &self.execution else { return Ok(()) };
        let Some(key) = &execution.rollback_data_key else { return Ok(()) };
        let started = entries.iter().rfind(|entry| entry.action == STARTED);
        let attempt = started.and_then(|entry| match &entry.who {
            Principal::Service(ServiceActor { trigger: Trigger::Attempt(attempt), .. }) => Some(*attempt),
            _ => None,
        });
        let is_own = |attempt| *key == rollback_data_key(&self.task_id, attempt);
        if attempt.is_some_and(is_own) && execution.effects_attempt == attempt {
            Ok(())
        } else {
            Err(UnprovenApproval::OtherRollbackData { key: key.clone() })
        }
    }

    /// Verifies that the decisions that count are those of people who were asked, and that they suffice.
    fn verify_decisions(
        &self,
        entries: &[&AuditBody],
        content: &ReviewedContent,
    ) -> Result<(), UnprovenApproval> {
        let concerns = |entry: &&&AuditBody| entry.digest == Some(self.digest);
        // Lowering what is required after reviewers were asked changes this.
        let request = entries.iter().rfind(|entry| entry.action == REQUEST);
        if request.filter(concerns).and_then(|request| request.reviewed.as_ref()) != Some(content) {
            return Err(UnprovenApproval::OtherContent("reviewers were asked about something else"));
        }
        let is_overridden = self.requirements.iter().any(|requirement| requirement.overridden.is_some());
        // A row can name other reviewers; decisions count for the policies for which their reviewers were asked.
        let asked = asked_policies(entries.iter().filter(concerns).copied());
        let mut requirements = self.requirements.clone();
        for Requirement { policy, reviewers, .. } in &mut requirements {
            let is_asked = |reviewer: &UserId| {
                asked.get(reviewer.as_str()).is_some_and(|policies| policies.contains(policy))
            };
            reviewers.retain(|reviewer, _| is_asked(reviewer));
        }
        if is_overridden || !is_quorum_reached(&requirements, &self.votes()) {
            return Err(UnprovenApproval::QuorumNotReached);
        }
        let writers = writers(entries);
        let counted =
            |approval: &&Approval| approval.status == ApprovalStatus::Approved && self.is_current(approval);
        let mut approvers = Vec::<(UserId, BTreeSet<UserId>)>::new();
        for approval in self.approvals.iter().filter(counted) {
            let is_decision = |entry: &&&AuditBody| {
                entry.object_id == approval.approval_id && DECISIONS.contains(&entry.action.as_str())
            };
            let decision = entries.iter().rfind(is_decision);
            let is_proven = decision.is_some_and(|decision| {
                let by = match (&decision.who, decision.action.as_str()) {
                    (Principal::Caller(caller), APPROVE) => caller.user_id.as_ref(),
                    (Principal::Service(ServiceActor { trigger: Trigger::Followed(leader), .. }), FOLLOW) => {
                        Some(leader)
                    }
                    _ => None,
                };
                decision.digest == Some(self.digest)
                    && decision.reviewed.as_ref() == Some(content)
                    && by.is_some()
                    && by == approval.reviewed_by.as_ref()
                    && by.is_some_and(|by| !writers.contains(by))
            });
            if !is_proven || !asked.contains_key(approval.reviewer_id.as_str()) {
                let user = approval.reviewed_by.as_ref().unwrap_or(&approval.reviewer_id).clone();
                return Err(UnprovenApproval::UnprovenDecision { user });
            }
            // Those of the entry: a row could deny that it was decided in a chat.
            let holders = decision.map(|decision| chat_holders(decision)).unwrap_or_default();
            let decided_by = approval.reviewed_by.as_ref().unwrap_or(&approval.reviewer_id);
            let approver = Approver { decided_by, chat_holders: &holders };
            let is_common = |(decided_by, chat_holders): &(UserId, BTreeSet<UserId>)| {
                approver
                    .common_holder(Approver { decided_by, chat_holders }, |one, other| one == other)
                    .is_some()
            };
            let is_written = holders.iter().any(|holder| holder != decided_by && writers.contains(holder));
            if is_written || approvers.iter().any(is_common) {
                return Err(UnprovenApproval::ChatSecretHolder { user: decided_by.clone() });
            }
            approvers.push((decided_by.clone(), holders));
        }
        Ok(())
    }
}
