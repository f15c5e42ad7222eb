//! Conversions of policies, delegations and registered resources.

use ade_app::bindings::ServedBinding;
use ade_app::rules::{DelegationChange, PolicyChange, ResourceChange};
use ade_client::wire;
use ade_domain::approval::delegation::{Delegation, DelegationConditions, DelegationKind};
use ade_domain::approval::policy::{AutoApprove, Policy, PolicyVersions, Priority};
use ade_domain::approval::window::{TimeWindow, Weekday};
use ade_domain::dual_control::ProposedChange;
use ade_domain::risk::RegisteredPattern;
use ade_store::database::Versioned;

use super::{Convert, convert_enums, convert_structs};

convert_enums! {
    Priority = wire::Priority { Low, Normal, High, Urgent }
    Weekday = wire::Weekday { Mon, Tue, Wed, Thu, Fri, Sat, Sun }
    DelegationKind = wire::DelegationKind { Delegate, Follow }
}

convert_structs! {
    Policy => wire::PolicyRules {
        task_types, executors, targets, resource_patterns, min_approvers, required_roles, reviewers, risk_threshold,
        auto_approve_if, escalation_role, reject_threshold, priority, window
    } without { name };
    wire::PolicyRequest => PolicyChange {
        name, task_types, executors, targets, resource_patterns, min_approvers, required_roles, reviewers,
        risk_threshold, auto_approve_if, escalation_role, reject_threshold, priority, window, active
    };
    AutoApprove => wire::AutoApprove { risk_below, author_has_role, resources_in_scope, agents };
    wire::AutoApprove => AutoApprove { risk_below, author_has_role, resources_in_scope, agents };
    TimeWindow => wire::TimeWindow { weekdays, hours, time_zone };
    wire::TimeWindow => TimeWindow { weekdays, hours, time_zone };
    wire::DelegationRequest => DelegationChange {
        owner_id, delegate_to, kind, conditions, cascade, active, valid_from, valid_until
    };
    DelegationConditions => wire::DelegationConditions { task_types, risk_above, resource_patterns };
    wire::DelegationConditions => DelegationConditions { task_types, risk_above, resource_patterns };
    wire::ResourceRequest => ResourceChange { pattern, criticality, dependents };
}

pub(crate) fn policy(stored: &Versioned<PolicyVersions>) -> wire::Policy {
    let active = stored.value.active();
    let shown = active.unwrap_or_else(|| stored.value.latest());
    wire::Policy {
        policy_id: stored.id.clone(),
        name: shown.name.clone(),
        active: active.is_some(),
        rules: shown.clone().convert(),
        draft: active.and(stored.value.draft()).cloned().convert(),
        never_automatic: shown.why_never_automatic().map(str::to_owned),
        revision: stored.revision,
    }
}

pub(crate) fn delegation(stored: &Versioned<Delegation>) -> wire::Delegation {
    let delegation = &stored.value;
    wire::Delegation {
        delegation_id: delegation.delegation_id.clone(),
        owner_id: delegation.owner_id.to_string(),
        delegate_to: delegation.delegate_to.to_string(),
        kind: delegation.kind.convert(),
        conditions: delegation.conditions.clone().convert(),
        cascade: delegation.cascade,
        active: delegation.active,
        created_at: delegation.created_at.convert(),
        valid_from: delegation.valid_from.convert(),
        valid_until: delegation.valid_until.convert(),
        revision: stored.revision,
    }
}

pub(crate) fn executor_binding(served: &ServedBinding) -> wire::ExecutorBinding {
    let binding = &served.published.binding;
    wire::ExecutorBinding {
        name: served.name.clone(),
        resources: binding.resources.clone(),
        criticality: binding.criticality,
        task_types: binding.task_types.clone(),
        authors: binding.authors.iter().map(ToString::to_string).collect(),
        workers: served.processes.clone(),
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

pub(crate) fn change(stored: &Versioned<ProposedChange>) -> wire::Change {
    let change = &stored.value;
    wire::Change {
        change_id: stored.id.clone(),
        action: change.action.clone(),
        object_type: change.object_type.clone(),
        object_id: change.object_id.clone(),
        proposed_by: change.proposed_by.as_ref().map(ToString::to_string),
        proposed_at: change.proposed_at.convert(),
        expires_at: change.expires_at().convert(),
        details: change.details.clone(),
    }
}
