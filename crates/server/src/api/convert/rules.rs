//! Conversions of stored policies, delegations and registered resources.

use ade_client::wire;
use ade_domain::approval::delegation::Delegation;
use ade_domain::approval::policy::{Policy, PolicyVersions};
use ade_domain::risk::RegisteredPattern;
use ade_store::database::Versioned;

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

pub(crate) fn policy(stored: &Versioned<PolicyVersions>) -> wire::Policy {
    let active = stored.value.active();
    let shown = active.unwrap_or_else(|| stored.value.latest());
    wire::Policy {
        policy_id: stored.id.clone(),
        name: shown.name.clone(),
        active: active.is_some(),
        rules: policy_rules(shown),
        draft: active.and(stored.value.draft()).map(policy_rules),
        revision: stored.revision,
    }
}

pub(crate) fn delegation(stored: &Versioned<Delegation>) -> wire::Delegation {
    let delegation = &stored.value;
    wire::Delegation {
        delegation_id: delegation.delegation_id.clone(),
        owner_id: delegation.owner_id.to_string(),
        delegate_to: delegation.delegate_to.to_string(),
        kind: delegation.kind,
        conditions: delegation.conditions.clone(),
        cascade: delegation.cascade,
        active: delegation.active,
        valid_from: delegation.valid_from.map(Into::into),
        valid_until: delegation.valid_until.map(Into::into),
        revision: stored.revision,
    }
}

pub(crate) fn resource(stored: &Versioned<RegisteredPattern>) -> wire::RegisteredResource {
    wire::RegisteredResource {
        pattern: stored.value.pattern.to_string(),
        criticality: stored.value.criticality,
        dependents: stored.value.dependents.clone(),
        revision: stored.revision,
    }
}
