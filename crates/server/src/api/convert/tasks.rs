//! Conversions of tasks, their risk, preview, comments and statistics.

use ade_app::TaskView;
use ade_app::tasks::{DeclaredPreview, Proposal};
use ade_client::wire;
use ade_domain::approval::assignment::ConsideredPolicy;
use ade_domain::approval::quorum::{RequirementProgress, RequirementStatus};
use ade_domain::risk::{RiskFactor, RiskLevel};
use ade_domain::task::{
    ChangeKind, Config, Lineage, LockPreview, OverrideRequest, Preview, PreviewChange, PreviewStatus,
    Reopened, Resource, ReviewCounts, RollbackStrategy, ScopePart, Task, TaskState,
};
use ade_store::database::{Comment, StoredTask};

use super::{Convert, convert_enums, convert_structs, execution};

convert_enums! {
    TaskState = wire::TaskState {
        Draft, Submitted, Reviewing, Approved, Applying, Completed, Failed, Rejected, Cancelled
    }
    RollbackStrategy = wire::RollbackStrategy { Automatic, Manual, None }
    RiskLevel = wire::RiskLevel { Low, Medium, High, Critical }
    PreviewStatus = wire::PreviewStatus { None, Pending, Ready, Failed }
    ChangeKind = wire::ChangeKind { Create, Update, Delete }
    RequirementStatus = wire::RequirementStatus { NotApplicable, Satisfied, Unsatisfied, Overridden }
}

convert_structs! {
    wire::TaskRequest => Proposal {
        task_type, version, description, executor, parameters, resources, rollback_strategy, timeout_seconds, priority,
        team, ticket_ref, tags, lineage, preview
    };
    wire::PreviewRequest => DeclaredPreview { changes, warnings, errors };
    Config => wire::Config {
        task_type, version, description, executor, parameters, resources, rollback_strategy, timeout_seconds, priority
    };
    Resource => wire::Resource { resource_type, id, mode };
    wire::Resource => Resource { resource_type, id, mode };
    Lineage => wire::Lineage { agent_id, parent_agent_id, sponsor_id };
    wire::Lineage => Lineage { agent_id, parent_agent_id, sponsor_id };
    ScopePart => wire::ScopePart { binding, targets, resources, criticality, lock } without { fingerprint };
    RiskFactor => wire::RiskFactor { name, value, weight, contribution, why };
    Preview => wire::Preview { status, changes, warnings, errors, fingerprint, unverifiable, estimated };
    PreviewChange => wire::PreviewChange { kind, what, before, after, diff } without { items, reviewers_only };
    ConsideredPolicy => wire::ConsideredPolicy { policy, applies, why };
    RequirementProgress => wire::Requirement { policy, status, needed, approved_by, why };
    OverrideRequest => wire::PendingOverride { by, reason, incident_ticket, at };
    Reopened => wire::Reopened { reason, at };
    Comment => wire::Comment { comment_id, task_id, author_id, agent_id, text, created_at };
}

/// What an author declares is for everybody.
impl Convert<PreviewChange> for wire::PreviewChange {
    fn convert(self) -> PreviewChange {
        let Self { kind, what, before, after, diff } = self;
        PreviewChange {
            kind: kind.convert(),
            what,
            before,
            after,
            diff,
            items: Some(1),
            reviewers_only: false,
        }
    }
}

pub(crate) fn risk(task: &Task) -> Option<wire::Risk> {
    let risk = task.risk.as_ref()?;
    Some(wire::Risk {
        score: risk.score,
        level: risk.level.convert(),
        factors: risk.factors.clone().convert(),
        auto_approvable: task.auto_approvable,
        assessed_at: task.assessed_at.unwrap_or_default().convert(),
        assessed_by: risk.assessed_by.clone(),
    })
}

pub(crate) fn task(view: TaskView) -> wire::Task {
    let TaskView { task, requirements, requests_archive, claimed_by, allowed } = view;
    let (risk, approve_needs) = (risk(&task), task.approval_needs());
    wire::Task {
        task_id: task.task_id,
        state: task.state.convert(),
        revision: task.revision,
        digest: task.digest.to_string(),
        scope_digest: task.scope_digest.convert(),
        config: task.config.convert(),
        scope: task.scope.0.convert(),
        metadata: wire::TaskMetadata {
            author_id: task.author_id.to_string(),
            author_name: task.metadata.author_name,
            team: task.metadata.team,
            ticket_ref: task.metadata.ticket_ref,
            tags: task.metadata.tags,
            lineage: task.metadata.lineage.convert(),
            by_agent: task.by_agent.into_iter().collect(),
            updated_at: task.updated_at.convert(),
            since: task.entered_at.iter().map(|(state, at)| (state.to_string(), at.convert())).collect(),
        },
        risk,
        preview: task.preview.convert(),
        lock_preview: task.lock_preview.iter().map(lock_preview).collect(),
        requirements: requirements.convert(),
        required_count: task.required_count,
        requests_archive,
        policies: task.considered_policies.convert(),
        skipped_reviewers: task.skipped,
        auto_approved: task.auto_approved,
        not_automatic: task.not_automatic,
        override_request: task.override_request.convert(),
        reopened: task.reopened.convert(),
        forced: task.forced,
        allowed: allowed.iter().map(ToString::to_string).collect(),
        approve_needs: approve_needs.iter().map(ToString::to_string).collect(),
        claimed_by,
        execution: task.execution.as_ref().map(execution),
        held_until: task.held_until.convert(),
        predecessor: task.predecessor,
    }
}

pub(crate) fn lock_preview(lock: &LockPreview) -> wire::LockPreview {
    wire::LockPreview {
        lock: lock.lock.clone(),
        mode: lock.mode.convert(),
        holders: lock.holders.clone(),
        queue_length: usize::try_from(lock.queue_length).unwrap_or(usize::MAX),
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        expected_wait_seconds: lock.expected_wait_seconds as f64,
        unavailable: lock.unavailable,
    }
}

pub(crate) fn task_stats(stored: &StoredTask, comments: usize) -> wire::TaskStats {
    let task = &stored.task;
    let since = |state: TaskState| task.entered_at.get(&state).copied();
    let decided = [TaskState::Approved, TaskState::Rejected].into_iter().filter_map(since).min();
    let ReviewCounts { approved, rejected, pending, quorum_reached } = task.review_counts();
    let took_ms = since(TaskState::Submitted).zip(decided).map(|(from, to)| to.ms_since(from));
    wire::TaskStats {
        task_id: task.task_id.clone(),
        #[expect(clippy::cast_precision_loss, reason = "the milliseconds of a review fit")]
        decided_after_seconds: took_ms.map(|ms| ms as f64 / 1_000.0),
        required_count: task.required_count,
        approved_count: approved,
        rejected_count: rejected,
        pending_count: pending,
        quorum_reached,
        requested: task.approvals_requested(),
        decided: task.approvals_decided(),
        escalations: task.approvals_escalated() as u64,
        comments,
    }
}

pub(crate) fn comment(comment: &Comment) -> wire::Comment {
    comment.clone().convert()
}
