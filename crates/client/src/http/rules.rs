//! Client methods of policies, delegations, registered resources, simulations, settings and feature flags.

use super::routes;
use crate::wire::{
    Change, Delegation, DelegationRequest, ExecutorBinding, Feature, FeatureRequest, Policy, PolicyReplay,
    PolicyRequest, ReasonRequest, RegisteredResource, ResourceRequest, Setting, SettingRequest, Simulation,
    SimulationRequest,
};

routes! {
    /// Lists policies. Filters: `limit`, `cursor`.
    list policies() "/policies" => Policy;
    /// Gets a policy.
    get policy(policy_id) "/policies/{}" => Policy;
    /// Creates a policy (admin).
    post create_policy() "/policies": PolicyRequest => Policy;
    /// Updates a policy if it has this revision (admin).
    patch update_policy(policy_id) "/policies/{}": PolicyRequest => Policy;
    /// Deletes a policy (admin).
    delete delete_policy(policy_id) "/policies/{}" => ();
    /// Activates the draft of a policy (admin).
    post activate_policy(policy_id) "/policies/{}/activate" => Policy;
    /// Replays past tasks with the draft of a policy, and lists those with a different outcome (admin or auditor).
    post replay_policy(policy_id) "/policies/{}/replay" => PolicyReplay;
    /// Lists the changes that wait for a second administrator. Filters: `limit`, `cursor`.
    list changes() "/changes" => Change;
    /// Gets a change that waits for a second administrator.
    get change(change_id) "/changes/{}" => Change;
    /// Confirms a change of another administrator, which makes it (admin).
    post confirm_change(change_id) "/changes/{}/confirm" => Change;
    /// Rejects a change, or withdraws an own one (admin).
    post reject_change(change_id) "/changes/{}/reject": ReasonRequest => Change;
    /// Lists delegations. Filters: `limit`, `cursor`.
    list delegations() "/delegations" => Delegation;
    /// Gets a delegation.
    get delegation(delegation_id) "/delegations/{}" => Delegation;
    /// Creates a delegation.
    post create_delegation() "/delegations": DelegationRequest => Delegation;
    /// Updates a delegation if it has this revision.
    patch update_delegation(delegation_id) "/delegations/{}": DelegationRequest => Delegation;
    /// Deletes a delegation.
    delete delete_delegation(delegation_id) "/delegations/{}" => ();
    /// Lists registered resources. Filters: `limit`, `cursor`.
    list resources() "/resources" => RegisteredResource;
    /// Gets the registration of a pattern.
    get resource(pattern) "/resources/{}" => RegisteredResource;
    /// Registers resources (admin).
    post register_resource() "/resources": ResourceRequest => RegisteredResource;
    /// Updates the registration of a pattern if it has this revision (admin).
    patch update_resource(pattern) "/resources/{}": ResourceRequest => RegisteredResource;
    /// Deletes the registration of a pattern (admin).
    delete delete_resource(pattern) "/resources/{}" => ();
    /// Lists what operators allow tasks to work on. Filters: `limit`, `cursor`.
    list executors() "/executors" => ExecutorBinding;
    /// Simulates the submission of a task. Nothing is changed.
    send simulate() "/simulations": SimulationRequest => Simulation;
    /// Lists settings.
    list settings() "/config" => Setting;
    /// Gets a setting.
    get setting(name) "/config/{}" => Setting;
    /// Changes a setting if it has this revision (admin).
    put set_setting(name) "/config/{}": SettingRequest => Setting;
    /// Lists feature flags.
    list features() "/features" => Feature;
    /// Gets a feature flag.
    get feature(flag) "/features/{}" => Feature;
    /// Enables or disables a feature if its flag has this revision (admin).
    put set_feature(flag) "/features/{}": FeatureRequest => Feature;
}
