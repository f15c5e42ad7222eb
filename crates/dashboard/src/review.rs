//! A task as a reviewer sees it: effect, preview, risk, who must agree, and what the viewer can decide. The inbox card and the page
//! of a task show the same.

use std::sync::OnceLock;

use ade_client::wire::{
    Approval, ApprovalStatus, ChangeKind, Comment, LockMode, PreviewChange, PreviewStatus, Problem,
    RequirementStatus, Task, TaskState,
};

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::Markup;
use crate::confirmation::Confirmation;
use crate::diff::{self, CompareBudget, DiffRow};
use crate::drawing::{counted_level, level_name, lifecycle, meter};
use crate::effect::effect;
use crate::format::{count, visible};
use crate::shell::Viewer;
use crate::votes::{OwnDecision, Votes};

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

/// What the changes of a preview may still cost: rows on the page, and comparisons.
struct PreviewBudget {
    rows: usize,
    compared: CompareBudget,
}

impl Change {
    fn new(change: &PreviewChange, occurrence: usize, budget: &mut PreviewBudget) -> Self {
        let hash = Sha256::digest(json!([change, occurrence]).to_string());
        let key = hex::encode(hash.iter().take(8).copied().collect::<Vec<u8>>());
        let (sign, word, class) = match change.kind {
            ChangeKind::Create => ("+", "create", "ok"),
            ChangeKind::Update => ("~", "update", "info"),
            ChangeKind::Delete => ("−", "delete", "danger"),
        };
        let text = change.diff.as_deref().unwrap_or_default();
        let mut rows = diff::rows(text, &mut budget.compared);
        let count = |kind| rows.iter().filter(|row| row.kind == kind).count();
        let (added, removed) = (count(diff::RowKind::Plus), count(diff::RowKind::Minus));
        let shown = rows.len().min(budget.rows);
        let hidden = rows.len() - shown;
        rows.truncate(shown);
        budget.rows -= shown;
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

    /// The level as it is shown: none before the risk is assessed.
    pub(crate) fn level(&self) -> Option<&'static str> {
        let is_known = self.task.risk.is_some() || self.task.state == TaskState::Reviewing;
        is_known.then(|| self.counted_level())
    }

    /// The level that decides what is asked for.
    pub(crate) fn counted_level(&self) -> &'static str {
        level_name(counted_level(self.task.risk.as_ref().map(|risk| risk.level)))
    }

    /// What applying the task does, in one sentence.
    pub(crate) fn effect(&self) -> String {
        effect(&self.task)
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
        visible(match &metadata.lineage.agent_id {
            Some(agent) => {
                let sponsor = metadata.lineage.sponsor_id.as_deref().unwrap_or(&metadata.author_id);
                format!("agent {agent}, for {sponsor}")
            }
            None => metadata.author_name.clone(),
        })
    }

    /// Whether the viewer is who proposed it, or whose agent did.
    pub(crate) fn is_own(&self) -> bool {
        let (user, metadata) = (&self.viewer.user_id, &self.task.metadata);
        metadata.author_id == *user || metadata.lineage.sponsor_id.as_ref() == Some(user)
    }

    /// Whether words of the task are an agent's.
    pub(crate) fn is_by_agent(&self) -> bool {
        !self.task.metadata.by_agent.is_empty()
    }

    pub(crate) fn changes(&self) -> &[Change] {
        self.changes.0.get_or_init(|| {
            let rows = if self.is_whole { usize::MAX } else { MAX_ROWS };
            let mut budget = PreviewBudget { rows, compared: CompareBudget::default() };
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
                bar: meter(factor.contribution * 100.0 / MAX_CONTRIBUTION, self.counted_level()),
                contribution: format!("{:.0}", factor.contribution),
                why: visible(&factor.why),
                rank: factor.contribution,
            })
            .collect();
        rows.sort_by(|left, right| right.rank.total_cmp(&left.rank));
        rows
    }

    pub(crate) fn score(&self) -> Option<u8> {
        self.task.risk.as_ref().map(|risk| risk.score)
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
                    _ if self.has_requested_changes(&one.policy) => String::new(),
                    1 => "1 more approval needed".to_owned(),
                    needed => format!("{needed} more approvals needed, from different people"),
                };
                RequirementRow { sign, class, policy: visible(&one.policy), needed, why: visible(&one.why) }
            })
            .collect();
        rows.sort_by_key(|row| row.sign == "✓");
        rows
    }

    /// Whether the policy waits for the author, who must change the task: no number of approvals ends that.
    fn has_requested_changes(&self, policy: &str) -> bool {
        let requested = |approval: &&Approval| approval.status == ApprovalStatus::ChangesRequested;
        let mut policies = self.approvals.iter().filter(requested).flat_map(|approval| &approval.policies);
        policies.any(|name| name == policy)
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

    pub(crate) fn votes(&self) -> Votes {
        Votes::of(&self.approvals, &self.viewer.user_id)
    }

    /// What the viewer decided about this version.
    pub(crate) fn own_decision(&self) -> Option<OwnDecision> {
        let user = &self.viewer.user_id;
        self.approvals.iter().filter(|approval| approval.reviewer_id == *user).find_map(OwnDecision::of)
    }

    pub(crate) fn is_allowed(&self, command: &str) -> bool {
        self.task.allowed.iter().any(|allowed| allowed == command)
    }

    /// Whether the viewer decides here.
    #[must_use]
    pub fn can_decide(&self) -> bool {
        self.request.is_some() && self.is_allowed("approve")
    }

    /// Whether the viewer is asked and has not decided.
    pub(crate) fn is_asked(&self) -> bool {
        self.can_decide()
            && self.request.as_ref().is_some_and(|request| request.status == ApprovalStatus::Pending)
    }

    /// Whether this is not the decision that the viewer made already.
    fn is_other(&self, status: ApprovalStatus) -> bool {
        self.request.as_ref().is_some_and(|request| request.status != status)
    }

    pub(crate) fn can_approve(&self) -> bool {
        self.can_decide() && self.is_other(ApprovalStatus::Approved)
    }

    pub(crate) fn can_request_changes(&self) -> bool {
        self.can_decide() && self.is_other(ApprovalStatus::ChangesRequested)
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
            Some(_) => "You cannot decide about this task at the moment; see the approvals above.".to_owned(),
            None => "You were not asked to decide about this task.".to_owned(),
        })
    }

    /// Why the viewer is asked, in the words of the policies; `you` for the viewer.
    pub(crate) fn why_asked(&self) -> Vec<String> {
        let user = &self.viewer.user_id;
        let own = |why: &String| {
            let why = why.replace(&format!(", which {user} has"), ", which you have");
            let why = why.replace(&format!(" names {user} as reviewer"), " names you as reviewer");
            let to_own = why.strip_suffix(user.as_str()).filter(|rest| rest.ends_with("; delegated to "));
            visible(to_own.map_or_else(|| why.clone(), |rest| format!("{rest}you")))
        };
        self.request.as_ref().map(|request| request.why.iter().map(own).collect()).unwrap_or_default()
    }

    pub(crate) fn confirmation(&self) -> Confirmation {
        Confirmation::of(&self.task)
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
        self.can_approve() && self.needs_reason()
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

    /// Whether it has ended: nothing of it waits for a lock any more.
    pub(crate) const fn has_ended(&self) -> bool {
        use TaskState::{Cancelled, Completed, Failed, Rejected};
        matches!(self.task.state, Completed | Failed | Rejected | Cancelled)
    }

    pub(crate) fn locks(&self) -> Vec<LockRow> {
        let rows = self.task.lock_preview.iter();
        let own = format!("task:{}", self.task.task_id);
        rows.map(|lock| LockRow {
            name: lock.lock.clone(),
            label: match lock.lock.strip_prefix("resource:") {
                Some(resource) => visible(resource),
                None if lock.lock == own => "this task".to_owned(),
                None => visible(&lock.lock),
            },
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
    pub(crate) label: String,
    pub(crate) mode: &'static str,
    pub(crate) state: String,
    pub(crate) is_free: bool,
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
            by: visible(by),
            is_agent: comment.agent_id.is_some(),
            text: visible(&comment.text),
            at: comment.created_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use ade_client::wire::LockPreview;

    use super::*;
    use crate::fixture::{approval, review};

    #[test]
    fn own_decision_is_not_asked_again() {
        use ApprovalStatus::{Approved, Pending};
        let asked = review("carol", vec![approval("carol", Pending)]);
        assert!(asked.is_asked() && asked.can_approve() && asked.own_decision().is_none());
        let approved = review("carol", vec![approval("carol", Approved)]);
        assert!(!approved.is_asked() && !approved.can_approve() && approved.can_request_changes());
        assert_eq!(approved.own_decision().expect("decided").text, "You approved this");
        assert!(!approved.needs_viewing());
    }

    #[test]
    fn no_approval_is_missing_while_the_author_must_change_the_task() {
        use ApprovalStatus::{ChangesRequested, Pending};
        let asked = review("carol", vec![approval("carol", Pending)]);
        assert_eq!(asked.requirements()[0].needed, "1 more approval needed");
        let blocked = review("carol", vec![approval("carol", Pending), approval("dave", ChangesRequested)]);
        assert_eq!(blocked.requirements()[0].needed, "");
    }

    #[test]
    fn unknown_risk_counts_as_the_highest() {
        let asked = review("carol", vec![approval("carol", ApprovalStatus::Pending)]);
        assert_eq!((asked.level(), asked.counted_level()), (Some("CRITICAL"), "CRITICAL"));
        let mut draft = review("ann", Vec::new());
        draft.task.state = TaskState::Draft;
        assert_eq!((draft.level(), draft.counted_level()), (None, "CRITICAL"), "not assessed yet");
    }

    #[test]
    fn reasons_speak_to_the_viewer() {
        let mut asked = review("carol", vec![approval("carol", ApprovalStatus::Pending)]);
        let request = asked.request.as_mut().expect("asked");
        request.why.push("policy prod requires role dba, which caroline has; delegated to carol".to_owned());
        request.why.push("policy prod names carol as reviewer".to_owned());
        assert_eq!(
            asked.why_asked(),
            [
                "policy default requires role reviewer, which you have",
                "policy prod requires role dba, which caroline has; delegated to you",
                "policy prod names you as reviewer",
            ]
        );
    }

    #[test]
    fn nobody_can_forge_a_proposer_with_invisible_characters() {
        let mut asked = review("carol", Vec::new());
        asked.task.metadata.author_name = "Ann\u{202e}".to_owned();
        assert_eq!(asked.proposer(), "Ann⟦U+202E⟧");
        asked.task.metadata.lineage.agent_id = Some("bot\u{200b}".to_owned());
        assert_eq!(asked.proposer(), "agent bot⟦U+200B⟧, for ann");
    }

    #[test]
    fn locks_are_named_for_people() {
        let mut asked = review("carol", Vec::new());
        let lock = |name: &str| LockPreview {
            lock: name.to_owned(),
            mode: LockMode::Exclusive,
            holders: Vec::new(),
            queue_length: 0,
            expected_wait_seconds: 0.0,
            unavailable: false,
        };
        let own = format!("task:{}", asked.task.task_id);
        asked.task.lock_preview = vec![lock(&own), lock("resource:service:app\u{200b}"), lock("task:other")];
        let shown: Vec<(String, String)> =
            asked.locks().into_iter().map(|lock| (lock.name, lock.label)).collect();
        let pair = |name: &str, label: &str| (name.to_owned(), label.to_owned());
        assert_eq!(
            shown,
            [
                pair(&own, "this task"),
                pair("resource:service:app\u{200b}", "service:app⟦U+200B⟧"),
                pair("task:other", "task:other"),
            ]
        );
    }
}
