//! Tasks, requests, people and rules as they go over the wire.

use ade_app::Caller;
use ade_app::rules::{RegisteredPattern, StoredPolicy};
use ade_client::wire;
use ade_domain::Moment;
use ade_domain::approval::Approval;
use ade_domain::approval::delegation::Delegation;
use ade_domain::approval::policy::Policy;
use ade_domain::task::Task;
use ade_domain::task::{LockPreview, ResourceMode, State};
use ade_store::DatabaseError;
use ade_store::database::{Comment, Numbered, StoredDocument, StoredTask, StoredToken, StoredUser};

/// Characters of what a task is about, where that is told besides.
const LONGEST_LINE: usize = 200;

pub(crate) fn user(stored: &StoredUser) -> wire::User {
    let user = &stored.user;
    wire::User {
        user_id: user.user_id.to_string(),
        name: user.name.clone(),
        roles: user.roles.clone(),
        manager_id: user.manager_id.as_ref().map(ToString::to_string),
        team: user.team.clone(),
        active: user.active,
        revision: stored.revision,
    }
}

pub(crate) fn token(stored: &StoredToken, secret: Option<String>) -> wire::Token {
    wire::Token {
        token_id: stored.token_id.clone(),
        token: secret,
        name: stored.name.clone(),
        scopes: stored.scopes.clone(),
        expires_at: stored.expires_at.into(),
        revoked_at: stored.revoked_at.map(Into::into),
        made_by: stored.made_by.as_ref().map(ToString::to_string),
        created_at: stored.created_at.into(),
    }
}

/// How dangerous a task is.
pub(crate) fn risk(review: &Task) -> Option<wire::Risk> {
    let risk = review.risk.as_ref()?;
    Some(wire::Risk {
        score: risk.score,
        level: risk.level,
        factors: risk.factors.clone(),
        auto_approvable: review.auto_approvable,
        assessed_at: review.assessed_at.unwrap_or_default().into(),
        assessed_by: risk.assessed_by.clone(),
    })
}

/// A task as somebody sees it at a time: what it can do with it depends on both.
pub(crate) fn task(stored: &StoredTask, reader: &Caller, now: Moment) -> wire::Task {
    let (review, metadata) = (&stored.task, &stored.metadata);
    wire::Task {
        task_id: review.task_id.clone(),
        state: review.state,
        revision: review.revision,
        digest: review.digest.to_string(),
        config: review.config.clone(),
        metadata: wire::Metadata {
            author_id: review.author_id.to_string(),
            author_name: metadata.author_name.clone(),
            team: metadata.team.clone(),
            ticket_ref: metadata.ticket_ref.clone(),
            tags: metadata.tags.clone(),
            lineage: metadata.lineage.clone(),
            since: review.since.iter().map(|(state, at)| (state.to_string(), (*at).into())).collect(),
        },
        risk: risk(review),
        preview: stored.preview.clone(),
        lock_preview: stored.lock_preview.iter().map(lock_preview).collect(),
        requirements: review.progress(),
        required_count: review.required_count,
        requests_archive: review.remembered.as_ref().map(|remembered| remembered.archive_id.clone()),
        policies: review.considered.clone(),
        passed_by: review.passed_by.clone(),
        auto_approved: review.auto_approved.clone(),
        override_asked: review.override_asked.as_ref().map(|asked| wire::OverrideAsked {
            by: asked.by.to_string(),
            reason: asked.reason.clone(),
            incident_ticket: asked.incident_ticket.clone(),
            at: asked.at.into(),
        }),
        reopened: review
            .reopened
            .as_ref()
            .map(|reopened| wire::Reopened { why: reopened.why.clone(), at: reopened.at.into() }),
        forced: review.forced,
        allowed: reader.allowed(stored, now).iter().map(ToString::to_string).collect(),
        claimed_by: stored.claimed_by().map(str::to_owned),
        execution: review.execution.as_ref().map(super::execution::execution),
        predecessor: stored.predecessor.clone(),
    }
}

/// A request about a task that was looked at.
pub(crate) fn approval(one: &Approval, review: &Task) -> wire::Approval {
    listed_approval(one, &review.config.description, Some(review.state))
}

/// A request about a task of this description.
pub(crate) fn listed_approval(
    approval: &Approval,
    description: &str,
    task_state: Option<State>,
) -> wire::Approval {
    let first_line = description.lines().next().unwrap_or_default();
    wire::Approval {
        approval_id: approval.approval_id.clone(),
        task_id: approval.task_id.clone(),
        task_description: first_line.chars().take(LONGEST_LINE).collect(),
        reviewer_id: approval.reviewer_id.to_string(),
        reviewer_name: approval.reviewer_name.clone(),
        status: approval.status,
        priority: approval.priority,
        score: approval.score,
        delegated_to: approval.delegated_to.as_ref().map(ToString::to_string),
        delegation_chain: approval.delegation_chain.clone(),
        follows: approval.follows.as_ref().map(ToString::to_string),
        created_at: approval.created_at.into(),
        due_at: approval.due_at.into(),
        escalation_level: approval.escalation_level,
        responded_at: approval.responded_at.map(Into::into),
        response_action: approval.response_action,
        response_reason: approval.response_reason.clone(),
        reviewed_by: approval.reviewed_by.as_ref().map(ToString::to_string),
        digest: approval.digest.to_string(),
        policies: approval.policies.clone(),
        why: approval.why.clone(),
        task_state,
        revision: approval.revision,
    }
}

pub(crate) fn lock_preview(lock: &LockPreview) -> wire::LockPreview {
    wire::LockPreview {
        lock: lock.lock.clone(),
        mode: match lock.mode {
            ResourceMode::Exclusive => wire::Mode::Exclusive,
            ResourceMode::Shared => wire::Mode::Shared,
        },
        holders: lock.holders.clone(),
        queue_length: usize::try_from(lock.waiting).unwrap_or(usize::MAX),
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        expected_wait_seconds: lock.expected_wait_seconds as f64,
        unavailable: lock.unavailable,
    }
}

/// How long a task took on its way.
pub(crate) fn task_stats(task: &StoredTask, comments: usize) -> wire::TaskStats {
    let review = &task.task;
    let since = |state: State| review.since.get(&state).copied();
    let decided = [State::Approved, State::Rejected].into_iter().filter_map(since).min();
    let took = since(State::Submitted).zip(decided).map(|(from, to)| to.ms_since(from));
    wire::TaskStats {
        task_id: review.task_id.clone(),
        #[expect(clippy::cast_precision_loss, reason = "milliseconds of a review fit")]
        decided_after_seconds: took.map(|ms| ms as f64 / 1_000.0),
        asked: review.requests_made(),
        answered: review.requests_answered(),
        escalations: review.requests_escalated() as u64,
        comments,
    }
}

/// The requests with these ids, in this order.
pub(crate) fn batch(ids: &[String], tasks: &[StoredTask]) -> wire::BatchAnswer {
    let find = |id: &String| {
        tasks.iter().find_map(|task| {
            let found = task.approvals.iter().find(|one| one.approval_id == *id)?;
            Some(approval(found, &task.task))
        })
    };
    wire::BatchAnswer { items: ids.iter().filter_map(find).collect() }
}

pub(crate) fn comment(comment: &Comment) -> wire::Comment {
    wire::Comment {
        comment_id: comment.comment_id.clone(),
        task_id: comment.task_id.clone(),
        author_id: comment.author_id.to_string(),
        text: comment.text.clone(),
        created_at: comment.created_at.into(),
    }
}

fn rules(policy: &Policy) -> wire::PolicyRules {
    wire::PolicyRules {
        task_types: policy.task_types.clone(),
        resource_patterns: policy.resource_patterns.iter().map(ToString::to_string).collect(),
        min_approvers: policy.min_approvers,
        required_roles: policy.required_roles.clone(),
        reviewers: policy.reviewers.iter().map(ToString::to_string).collect(),
        risk_threshold: policy.risk_threshold,
        auto_approve_if: policy.auto_approve_if.clone(),
        escalation_role: policy.escalation_role.clone(),
        reject_threshold: policy.reject_threshold,
        priority: policy.priority,
        window: policy.window.clone(),
    }
}

pub(crate) fn policy(thing: &StoredDocument) -> Result<wire::Policy, DatabaseError> {
    let StoredPolicy { active, draft } = thing.read()?;
    let nothing = || DatabaseError::Foreign(format!("policy {} says nothing", thing.id));
    let shown = active.as_ref().or(draft.as_ref()).ok_or_else(nothing)?;
    Ok(wire::Policy {
        policy_id: thing.id.clone(),
        name: shown.name.clone(),
        active: active.is_some(),
        rules: rules(shown),
        draft: draft.as_ref().filter(|_| active.is_some()).map(rules),
        revision: thing.revision,
    })
}

pub(crate) fn delegation(thing: &StoredDocument) -> Result<wire::Delegation, DatabaseError> {
    let one: Delegation = thing.read()?;
    Ok(wire::Delegation {
        delegation_id: one.delegation_id,
        owner_id: one.owner_id.to_string(),
        delegate_to: one.delegate_to.to_string(),
        kind: one.kind,
        conditions: one.conditions,
        cascade: one.cascade,
        active: one.active,
        valid_from: one.valid_from.map(Into::into),
        valid_until: one.valid_until.map(Into::into),
        revision: thing.revision,
    })
}

pub(crate) fn resource(thing: &StoredDocument) -> Result<wire::RegisteredResource, DatabaseError> {
    let one: RegisteredPattern = thing.read()?;
    Ok(wire::RegisteredResource {
        pattern: one.pattern.to_string(),
        criticality: one.criticality,
        dependents: one.dependents,
        revision: thing.revision,
    })
}

/// An entry of the audit log; what cannot be read any more is found by whoever verifies it, and not shown as if it could.
pub(crate) fn audit(row: &Numbered) -> Result<wire::AuditEntry, DatabaseError> {
    let entry = row.entry().map_err(|broken| DatabaseError::Foreign(broken.to_string()))?;
    let body = entry.body;
    Ok(wire::AuditEntry {
        number: entry.number,
        entry_id: body.entry_id,
        at: body.at.into(),
        who: body.who,
        action: body.action,
        object_type: body.object_type,
        object_id: body.object_id,
        task_id: body.task_id,
        from: body.from,
        to: body.to,
        revision: body.revision,
        digest: body.digest.map(|digest| digest.to_string()),
        reason: body.reason,
        ticket: body.ticket,
        details: body.details,
        previous_hash: entry.previous_hash.to_string(),
        entry_hash: entry.entry_hash.to_string(),
    })
}
