//! A task as a reviewer sees it: effect, preview, risk, who must agree, and what the viewer can decide. The inbox card and the page
//! of a task show the same.

use std::sync::OnceLock;

use ade_client::wire::{
    Approval, ApprovalStatus, ChangeKind, Comment, DecisionKind, LockMode, PreviewChange, PreviewStatus,
    Problem, RequirementStatus, Task, TaskState,
};

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::Markup;
use crate::diff::{self, DiffRow};
use crate::drawing::{level_name, lifecycle, meter};
use crate::format::{capitalized, count, visible};
use crate::shell::Viewer;

/// What the factor with the largest weight can add to a risk score.
const MAX_CONTRIBUTION: f64 = 40.0;

/// Rows of diffs on a page; what is longer has a page of its own.
const MAX_ROWS: usize = 400;

/// What a reviewer typed, and why it was refused.
#[derive(Debug, Clone, Default)]
pub struct RefusedDecision {
    pub reason: String,
    pub confirm: String,
    pub problem: Option<Problem>,
    /// Whether the password is to be sent with the decision.
    pub asks_password: bool,
}

/// A task under review.
#[derive(Debug, Clone)]
pub struct Review {
    pub task: Task,
    /// All approval requests of the task that the viewer may see.
    pub approvals: Vec<Approval>,
    /// The request about which the viewer decides, if any.
    pub request: Option<Approval>,
    pub viewer: Viewer,
    pub decision: RefusedDecision,
    /// The page to return to.
    pub back: String,
    /// Whether all of the preview is shown, however long.
    pub is_whole: bool,
    pub changes: Changes,
}

/// The changes of the preview as they are shown. Diffs are expensive, so they are made once.
#[derive(Debug, Clone, Default)]
pub struct Changes(OnceLock<Vec<Change>>);

/// A change of a preview with its diff.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    /// Equal only for equal changes: what a reviewer did with one, such as marking it as viewed, is lost when it changes.
    pub(crate) key: String,
    pub(crate) sign: &'static str,
    pub(crate) word: &'static str,
    pub(crate) class: &'static str,
    pub(crate) what: String,
    pub(crate) rows: Vec<DiffRow>,
    pub(crate) added: usize,
    pub(crate) removed: usize,
    /// Rows that are not shown here.
    pub(crate) hidden: usize,
}

impl Change {
    fn new(change: &PreviewChange, occurrence: usize, budget: &mut usize) -> Self {
        let hash = Sha256::digest(json!([change, occurrence]).to_string());
        let key = hex::encode(hash.iter().take(8).copied().collect::<Vec<u8>>());
        let (sign, word, class) = match change.kind {
            ChangeKind::Create => ("+", "create", "ok"),
            ChangeKind::Update => ("~", "update", "info"),
            ChangeKind::Delete => ("−", "delete", "danger"),
        };
        let mut rows = change.diff.as_deref().map(diff::rows).unwrap_or_default();
        let count = |kind| rows.iter().filter(|row| row.kind == kind).count();
        let (added, removed) = (count(diff::RowKind::Plus), count(diff::RowKind::Minus));
        let shown = rows.len().min(*budget);
        let hidden = rows.len() - shown;
        rows.truncate(shown);
        *budget -= shown;
        Self { key, sign, word, class, what: visible(&change.what), rows, added, removed, hidden }
    }
}

impl Review {
    pub(crate) fn title(&self) -> String {
        visible(self.task.config.description.lines().next().unwrap_or_default())
    }

    /// The description beyond its first line.
    pub(crate) fn rest(&self) -> String {
        let rest = self.task.config.description.split_once('\n').map_or("", |(_, rest)| rest);
        visible(rest.trim())
    }

    pub(crate) fn level(&self) -> Option<&'static str> {
        self.task.risk.as_ref().map(|risk| level_name(risk.level))
    }

    /// What applying the task does, in one sentence made of what ADE derived, not of what the author wrote.
    pub(crate) fn effect(&self) -> String {
        let changes = &self.task.preview.changes;
        let number = |kind| changes.iter().filter(|change| change.kind == kind).count();
        let parts: Vec<String> = [
            (ChangeKind::Delete, "deletes"),
            (ChangeKind::Update, "changes"),
            (ChangeKind::Create, "creates"),
        ]
        .into_iter()
        .filter_map(|(kind, verb)| {
            Some(number(kind))
                .filter(|number| *number > 0)
                .map(|number| format!("{verb} {}", count(number, "item")))
        })
        .collect();
        let mut places: Vec<String> = self.task.scope.iter().map(|part| part.binding.clone()).collect();
        places.extend(
            self.task
                .config
                .resources
                .iter()
                .map(|resource| format!("{}:{}", resource.resource_type, resource.id)),
        );
        places.dedup();
        let more = places.len().saturating_sub(3);
        places.truncate(3);
        let place = match places.split_first() {
            None => String::new(),
            Some((first, [])) => first.clone(),
            Some((first, rest)) => {
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                format!("{first}; touches {}{more}", rest.join(", "))
            }
        };
        let what = match (parts.is_empty(), self.task.preview.status) {
            (false, _) => parts.join(", "),
            (true, PreviewStatus::Pending) => "the preview is being made".to_owned(),
            (true, PreviewStatus::Failed) => "the preview failed".to_owned(),
            (true, PreviewStatus::Ready) => "changes nothing".to_owned(),
            (true, PreviewStatus::None) => "no preview: effects show only when it is applied".to_owned(),
        };
        let text = match (place.is_empty(), parts.is_empty()) {
            (true, _) => what,
            (false, false) => format!("{what} in {place}"),
            (false, true) => format!("{what} · {place}"),
        };
        visible(capitalized(&text))
    }

    pub(crate) fn lifecycle(&self) -> Markup {
        lifecycle(&self.task)
    }

    pub(crate) fn state(&self) -> StateChip {
        StateChip::of(self.task.state)
    }

    /// Who proposed it: the author, or the agent for its sponsor.
    pub(crate) fn proposer(&self) -> String {
        let metadata = &self.task.metadata;
        match &metadata.lineage.agent_id {
            Some(agent) => {
                let sponsor = metadata.lineage.sponsor_id.as_deref().unwrap_or(&metadata.author_id);
                format!("agent {agent}, for {sponsor}")
            }
            None => metadata.author_name.clone(),
        }
    }

    /// Whether words of the task are an agent's.
    pub(crate) fn is_by_agent(&self) -> bool {
        !self.task.metadata.by_agent.is_empty()
    }

    pub(crate) fn changes(&self) -> &[Change] {
        self.changes.0.get_or_init(|| {
            let mut budget = if self.is_whole { usize::MAX } else { MAX_ROWS };
            let all = &self.task.preview.changes;
            let change = |(index, change): (usize, &PreviewChange)| {
                let occurrence = all.iter().take(index).filter(|earlier| *earlier == change).count();
                Change::new(change, occurrence, &mut budget)
            };
            all.iter().enumerate().map(change).collect()
        })
    }

    /// Whether the parameters say more than the preview: there is none, or ADE did not make it.
    pub(crate) fn needs_parameters(&self) -> bool {
        self.task.preview.changes.is_empty() || self.task.preview.unverifiable
    }

    /// Changes with the parameters, which open again then.
    pub(crate) fn parameters_key(&self) -> String {
        self.task.digest.chars().take(16).collect()
    }

    /// Whether something of the preview is on a page of its own.
    pub(crate) fn is_cut(&self) -> bool {
        !self.is_whole && self.changes().iter().any(|change| change.hidden > 0)
    }

    pub(crate) fn change_count(&self) -> String {
        match (self.task.preview.changes.len(), self.task.preview.status) {
            (0, PreviewStatus::None) => "not available for this executor".to_owned(),
            (0, PreviewStatus::Pending) => "being made".to_owned(),
            (number, _) => count(number, "change"),
        }
    }

    pub(crate) fn parameters(&self) -> String {
        let text = serde_json::to_string_pretty(&self.task.config.parameters).unwrap_or_default();
        // JSON escapes control characters; what it leaves can still deceive.
        visible(&text)
    }

    pub(crate) fn risk_rows(&self) -> Vec<RiskRow> {
        let factors = self.task.risk.as_ref().map(|risk| risk.factors.as_slice()).unwrap_or_default();
        let mut rows: Vec<RiskRow> = factors
            .iter()
            .map(|factor| RiskRow {
                name: factor.name.replace('_', " "),
                bar: meter(factor.contribution * 100.0 / MAX_CONTRIBUTION, self.level().unwrap_or("LOW")),
                contribution: format!("{:.0}", factor.contribution),
                why: visible(&factor.why),
                rank: factor.contribution,
            })
            .collect();
        rows.sort_by(|left, right| right.rank.total_cmp(&left.rank));
        rows
    }

    pub(crate) fn score(&self) -> u8 {
        self.task.risk.as_ref().map_or(0, |risk| risk.score)
    }

    /// Requirements that apply, those without enough approvals first.
    pub(crate) fn requirements(&self) -> Vec<RequirementRow> {
        let applying =
            self.task.requirements.iter().filter(|one| one.status != RequirementStatus::NotApplicable);
        let mut rows: Vec<RequirementRow> = applying
            .map(|one| {
                let (sign, class) = match one.status {
                    RequirementStatus::Satisfied => ("✓", "ok"),
                    RequirementStatus::Overridden => ("!", "warn"),
                    RequirementStatus::Unsatisfied | RequirementStatus::NotApplicable => ("○", "muted"),
                };
                let needed = match one.needed {
                    0 => String::new(),
                    needed => format!("{} needed", count(needed as usize, "more approval")),
                };
                RequirementRow { sign, class, policy: visible(&one.policy), needed, why: visible(&one.why) }
            })
            .collect();
        rows.sort_by_key(|row| row.sign == "✓");
        rows
    }

    /// What stands where no requirement is listed.
    pub(crate) const fn no_requirements(&self) -> &'static str {
        match self.task.state {
            TaskState::Draft | TaskState::Submitted => {
                "Policies determine the approvals when it is submitted."
            }
            _ => "No approval is required.",
        }
    }

    /// Approval requests that matter now, those without a decision first.
    pub(crate) fn votes(&self) -> Vec<VoteRow> {
        let mut rows: Vec<VoteRow> = self.approvals.iter().map(VoteRow::new).collect();
        rows.sort_by_key(|row| row.rank);
        rows
    }

    pub(crate) fn is_allowed(&self, command: &str) -> bool {
        self.task.allowed.iter().any(|allowed| allowed == command)
    }

    /// Whether the viewer decides here.
    #[must_use]
    pub fn can_decide(&self) -> bool {
        self.request.is_some() && self.is_allowed("approve")
    }

    /// Whether the viewer could decide here after giving the password again.
    pub(crate) fn needs_reauthentication(&self) -> bool {
        let is_open = self.task.state == TaskState::Reviewing && self.request.is_some();
        is_open && !self.can_decide() && self.viewer.must_reauthenticate
    }

    /// Why the viewer sees no buttons, where somebody could expect them.
    pub(crate) fn why_not(&self) -> Option<String> {
        if self.can_decide() || self.task.state != TaskState::Reviewing {
            return None;
        }
        let user = &self.viewer.user_id;
        let metadata = &self.task.metadata;
        if metadata.author_id == *user {
            return Some("You are the author of this task: others decide about it.".to_owned());
        }
        if metadata.lineage.sponsor_id.as_ref() == Some(user) {
            return Some("An agent that you sponsor proposed this task: others decide about it.".to_owned());
        }
        let own = self.approvals.iter().find(|approval| approval.reviewer_id == *user);
        Some(match own.map(|approval| approval.status) {
            Some(ApprovalStatus::Delegated) => "You delegated your approval request.".to_owned(),
            Some(ApprovalStatus::Invalidated) => "The task has changed since you were asked.".to_owned(),
            Some(_) => "You cannot decide about this task at the moment; see the approvals below.".to_owned(),
            None => "You were not asked to decide about this task.".to_owned(),
        })
    }

    pub(crate) fn why_asked(&self) -> Vec<String> {
        self.request.as_ref().map(|request| request.why.iter().map(visible).collect()).unwrap_or_default()
    }

    /// Ids of the scope, of which one must be typed to approve a critical task.
    pub(crate) fn confirmable(&self) -> Vec<String> {
        let parts = &self.task.scope;
        let declared = self.task.config.resources.iter();
        // What ADE derived is proposed before what the author declared.
        let mut ids: Vec<String> = parts.iter().flat_map(|part| part.targets.iter().cloned()).collect();
        let bound = parts.iter().flat_map(|part| &part.resources);
        ids.extend(bound.chain(declared).map(|resource| resource.id.clone()));
        // What cannot be read cannot be typed. The server does not accept it either.
        ids.retain(|id| visible(id) == *id && id.trim() == id);
        if ids.is_empty() {
            ids.extend(self.task.task_id.get(..8).map(str::to_owned));
        }
        ids
    }

    /// The id that the page proposes to type.
    pub(crate) fn confirm_example(&self) -> String {
        self.confirmable().into_iter().next().unwrap_or_default()
    }

    pub(crate) fn confirm_accepts(&self) -> String {
        self.confirmable().join("\n")
    }

    /// Whether the API wants this field with an approval.
    fn needs(&self, field: &str) -> bool {
        self.task.approve_needs.iter().any(|need| need == field)
    }

    pub(crate) fn needs_reason(&self) -> bool {
        self.needs("reason")
    }

    pub(crate) fn needs_confirm(&self) -> bool {
        self.needs("confirm")
    }

    pub(crate) fn needs_viewing(&self) -> bool {
        self.can_decide() && self.needs_reason()
    }

    pub(crate) const fn needs_password(&self) -> bool {
        self.decision.asks_password
    }

    /// Changes with everything that the decision is about.
    pub(crate) fn version(&self) -> String {
        let fingerprint = self.task.preview.fingerprint.as_deref().unwrap_or_default();
        let scope = self.task.scope_digest.as_deref().unwrap_or_default();
        format!("{}{scope}{fingerprint}", self.task.digest)
    }

    pub(crate) fn locks(&self) -> Vec<LockRow> {
        let rows = self.task.lock_preview.iter();
        rows.map(|lock| LockRow {
            name: visible(&lock.lock),
            mode: match lock.mode {
                LockMode::Shared => "shared",
                LockMode::Exclusive => "exclusive",
            },
            state: match (lock.unavailable, lock.holders.as_slice()) {
                (true, _) => "unknown: locks were unavailable".to_owned(),
                (false, []) => "free".to_owned(),
                (false, holders) => format!(
                    "held by {}; {} waiting, about {}",
                    visible(holders.join(", ")),
                    lock.queue_length,
                    crate::format::duration(seconds(lock.expected_wait_seconds))
                ),
            },
            is_free: !lock.unavailable && lock.holders.is_empty(),
        })
        .collect()
    }

    pub(crate) fn rollback(&self) -> &'static str {
        use ade_client::wire::RollbackStrategy as Strategy;
        match self.task.config.rollback_strategy {
            Strategy::Automatic => "automatic: a failed attempt is rolled back at once",
            Strategy::Manual => "manual: an administrator can roll a failed attempt back",
            Strategy::None => "none: effects of a failed attempt remain",
        }
    }

    pub(crate) fn declared(&self) -> Vec<String> {
        let resources = self.task.config.resources.iter();
        resources.map(|one| visible(format!("{}:{}", one.resource_type, one.id))).collect()
    }

    pub(crate) fn shown(&self, text: &str) -> String {
        visible(text)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate; the conversion saturates"
)]
fn seconds(value: f64) -> u64 {
    value.round() as u64
}

/// A state of a task as a chip: its colour, a sign and the word.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StateChip {
    pub(crate) class: &'static str,
    pub(crate) sign: &'static str,
    pub(crate) word: &'static str,
}

impl StateChip {
    pub(crate) const fn of(state: TaskState) -> Self {
        let (class, sign, word) = match state {
            TaskState::Draft => ("plain", "◌", "Draft"),
            TaskState::Submitted => ("info", "◔", "Submitted"),
            TaskState::Reviewing => ("info", "◑", "Reviewing"),
            TaskState::Approved => ("ok", "◕", "Approved"),
            TaskState::Applying => ("warn", "▶", "Applying"),
            TaskState::Completed => ("ok", "✓", "Completed"),
            TaskState::Failed => ("danger", "✕", "Failed"),
            TaskState::Rejected => ("danger", "⊘", "Rejected"),
            TaskState::Cancelled => ("plain", "–", "Cancelled"),
        };
        Self { class, sign, word }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct RiskRow {
    pub(crate) name: String,
    pub(crate) bar: Markup,
    pub(crate) contribution: String,
    pub(crate) why: String,
    rank: f64,
}

#[derive(Debug, Clone)]
pub(crate) struct RequirementRow {
    pub(crate) sign: &'static str,
    pub(crate) class: &'static str,
    pub(crate) policy: String,
    pub(crate) needed: String,
    pub(crate) why: String,
}

#[derive(Debug, Clone)]
pub(crate) struct LockRow {
    pub(crate) name: String,
    pub(crate) mode: &'static str,
    pub(crate) state: String,
    pub(crate) is_free: bool,
}

/// What one reviewer did, or has still to do.
#[derive(Debug, Clone)]
pub(crate) struct VoteRow {
    pub(crate) sign: &'static str,
    pub(crate) class: &'static str,
    pub(crate) name: String,
    pub(crate) did: String,
    pub(crate) at: Option<ade_client::wire::Time>,
    pub(crate) due: Option<ade_client::wire::Time>,
    pub(crate) reason: String,
    rank: u8,
}

impl VoteRow {
    fn new(approval: &Approval) -> Self {
        let (sign, class, did, rank) = match (approval.status, approval.response_action) {
            (ApprovalStatus::Pending, _) => ("○", "muted", "has not decided yet".to_owned(), 0),
            (ApprovalStatus::Approved, _) => ("✓", "ok", "approved".to_owned(), 2),
            (ApprovalStatus::Rejected, _) => ("✕", "danger", "rejected".to_owned(), 1),
            (ApprovalStatus::ChangesRequested, _) => ("↺", "warn", "requested changes".to_owned(), 1),
            (ApprovalStatus::Delegated, _) => {
                let to = approval.delegated_to.as_deref().unwrap_or("another reviewer");
                ("→", "muted", format!("delegated to {to}"), 3)
            }
            (ApprovalStatus::Invalidated, Some(action)) => {
                let did = match action {
                    DecisionKind::Approve => "approved",
                    DecisionKind::Reject => "rejected",
                    DecisionKind::RequestChanges => "requested changes",
                };
                ("–", "muted", format!("{did} an earlier version, which does not count"), 4)
            }
            (ApprovalStatus::Invalidated, None) => {
                ("–", "muted", "was asked about an earlier version".to_owned(), 4)
            }
            (ApprovalStatus::Closed, _) => ("–", "muted", "was not needed any more".to_owned(), 5),
        };
        let by = approval.reviewed_by.as_ref().filter(|by| **by != approval.reviewer_id);
        let did = by.map_or_else(|| did.clone(), |by| format!("{did}, decided by {by}"));
        Self {
            sign,
            class,
            name: visible(&approval.reviewer_name),
            did,
            at: approval.responded_at,
            due: (approval.status == ApprovalStatus::Pending).then_some(approval.due_at),
            reason: visible(approval.response_reason.as_deref().unwrap_or_default()),
            rank,
        }
    }
}

/// A comment as it is shown.
#[derive(Debug, Clone)]
pub(crate) struct CommentRow {
    pub(crate) by: String,
    pub(crate) is_agent: bool,
    pub(crate) text: String,
    pub(crate) at: ade_client::wire::Time,
}

impl CommentRow {
    pub(crate) fn new(comment: &Comment) -> Self {
        let by = match &comment.agent_id {
            Some(agent) => format!("agent {agent}, for {}", comment.author_id),
            None => comment.author_id.clone(),
        };
        Self {
            by,
            is_agent: comment.agent_id.is_some(),
            text: visible(&comment.text),
            at: comment.created_at,
        }
    }
}
