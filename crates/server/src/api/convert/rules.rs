//! Conversions of stored policies, delegations and registered resources.

use ade_app::rules::{RegisteredPattern, StoredPolicy};
use ade_client::wire;
use ade_domain::approval::delegation::Delegation;
use ade_domain::approval::policy::Policy;
use ade_store::DatabaseError;
use ade_store::database::StoredDocument;

fn policy_rules(policy: &Policy) -> wire::PolicyRules {
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

pub(crate) fn policy(document: &StoredDocument) -> Result<wire::Policy, DatabaseError> {
    let StoredPolicy { active, draft } = document.parse()?;
    let corrupt = || {
        DatabaseError::Corrupt(format!("policy {} has neither an active version nor a draft", document.id))
    };
    let shown = active.as_ref().or(draft.as_ref()).ok_or_else(corrupt)?;
    Ok(wire::Policy {
        policy_id: document.id.clone(),
        name: shown.name.clone(),
        active: active.is_some(),
        rules: policy_rules(shown),
        draft: draft.as_ref().filter(|_| active.is_some()).map(policy_rules),
        revision: document.revision,
    })
}

pub(crate) fn delegation(document: &StoredDocument) -> Result<wire::Delegation, DatabaseError> {
    let delegation: Delegation = document.parse()?;
    Ok(wire::Delegation {
        delegation_id: delegation.delegation_id,
        owner_id: delegation.owner_id.to_string(),
        delegate_to: delegation.delegate_to.to_string(),
        kind: delegation.kind,
        conditions: delegation.conditions,
        cascade: delegation.cascade,
        active: delegation.active,
        valid_from: delegation.valid_from.map(Into::into),
        valid_until: delegation.valid_until.map(Into::into),
        revision: document.revision,
    })
}

pub(crate) fn resource(document: &StoredDocument) -> Result<wire::RegisteredResource, DatabaseError> {
    let registered: RegisteredPattern = document.parse()?;
    Ok(wire::RegisteredResource {
        pattern: registered.pattern.to_string(),
        criticality: registered.criticality,
        dependents: registered.dependents,
        revision: document.revision,
    })
}
