//! Client methods of policies, delegations, registered resources, simulations, settings and feature flags.

use reqwest::Method;

use super::{Client, segment};
use crate::Error;
use crate::wire::{
    Delegation, DelegationRequest, Feature, FeatureRequest, Page, Policy, PolicyReplay, PolicyRequest,
    RegisteredResource, ResourceRequest, Setting, SettingRequest, Simulation, SimulationRequest,
};

impl Client {
    /// Lists policies. Filters: `limit`, `cursor`.
    pub async fn policies(&self, filters: &[(&str, &str)]) -> Result<Page<Policy>, Error> {
        self.get("/policies", filters).await
    }

    /// Gets a policy.
    pub async fn policy(&self, policy_id: &str) -> Result<Policy, Error> {
        self.get(&policy_path(policy_id), &[]).await
    }

    /// Creates a policy (admin).
    pub async fn create_policy(&self, policy: &PolicyRequest) -> Result<Policy, Error> {
        self.post_idempotent("/policies", policy).await
    }

    /// Updates a policy if it has this revision (admin).
    pub async fn update_policy(
        &self,
        policy_id: &str,
        revision: Option<u64>,
        patch: &PolicyRequest,
    ) -> Result<Policy, Error> {
        self.update(Method::PATCH, &policy_path(policy_id), revision, patch).await
    }

    /// Deletes a policy (admin).
    pub async fn delete_policy(&self, policy_id: &str) -> Result<(), Error> {
        self.delete(&policy_path(policy_id), None).await
    }

    /// Activates the draft of a policy (admin).
    pub async fn activate_policy(&self, policy_id: &str) -> Result<Policy, Error> {
        self.post_empty(&format!("{}/activate", policy_path(policy_id))).await
    }

    /// Replays past tasks with the draft of a policy, and lists those with a different outcome (admin or auditor).
    pub async fn replay_policy(&self, policy_id: &str) -> Result<PolicyReplay, Error> {
        self.post_empty(&format!("{}/replay", policy_path(policy_id))).await
    }

    /// Lists delegations. Filters: `limit`, `cursor`.
    pub async fn delegations(&self, filters: &[(&str, &str)]) -> Result<Page<Delegation>, Error> {
        self.get("/delegations", filters).await
    }

    /// Gets a delegation.
    pub async fn delegation(&self, delegation_id: &str) -> Result<Delegation, Error> {
        self.get(&delegation_path(delegation_id), &[]).await
    }

    /// Creates a delegation.
    pub async fn create_delegation(&self, delegation: &DelegationRequest) -> Result<Delegation, Error> {
        self.post_idempotent("/delegations", delegation).await
    }

    /// Updates a delegation if it has this revision.
    pub async fn update_delegation(
        &self,
        delegation_id: &str,
        revision: Option<u64>,
        patch: &DelegationRequest,
    ) -> Result<Delegation, Error> {
        self.update(Method::PATCH, &delegation_path(delegation_id), revision, patch).await
    }

    /// Deletes a delegation.
    pub async fn delete_delegation(&self, delegation_id: &str) -> Result<(), Error> {
        self.delete(&delegation_path(delegation_id), None).await
    }

    /// Lists registered resources. Filters: `limit`, `cursor`.
    pub async fn resources(&self, filters: &[(&str, &str)]) -> Result<Page<RegisteredResource>, Error> {
        self.get("/resources", filters).await
    }

    /// Gets the registration of a pattern.
    pub async fn resource(&self, pattern: &str) -> Result<RegisteredResource, Error> {
        self.get(&resource_path(pattern), &[]).await
    }

    /// Registers resources (admin).
    pub async fn register_resource(&self, resource: &ResourceRequest) -> Result<RegisteredResource, Error> {
        self.post_idempotent("/resources", resource).await
    }

    /// Updates the registration of a pattern if it has this revision (admin).
    pub async fn update_resource(
        &self,
        pattern: &str,
        revision: Option<u64>,
        patch: &ResourceRequest,
    ) -> Result<RegisteredResource, Error> {
        self.update(Method::PATCH, &resource_path(pattern), revision, patch).await
    }

    /// Deletes the registration of a pattern (admin).
    pub async fn delete_resource(&self, pattern: &str) -> Result<(), Error> {
        self.delete(&resource_path(pattern), None).await
    }

    /// Simulates the submission of a task. Nothing is changed.
    pub async fn simulate(&self, request: &SimulationRequest) -> Result<Simulation, Error> {
        self.post("/simulations", request).await
    }

    /// Lists settings.
    pub async fn settings(&self, filters: &[(&str, &str)]) -> Result<Page<Setting>, Error> {
        self.get("/config", filters).await
    }

    /// Gets a setting.
    pub async fn setting(&self, name: &str) -> Result<Setting, Error> {
        self.get(&format!("/config/{}", segment(name)), &[]).await
    }

    /// Changes a setting if it has this revision (admin).
    pub async fn set_setting(
        &self,
        name: &str,
        revision: Option<u64>,
        value: &SettingRequest,
    ) -> Result<Setting, Error> {
        self.update(Method::PUT, &format!("/config/{}", segment(name)), revision, value).await
    }

    /// Lists feature flags.
    pub async fn features(&self, filters: &[(&str, &str)]) -> Result<Page<Feature>, Error> {
        self.get("/features", filters).await
    }

    /// Gets a feature flag.
    pub async fn feature(&self, flag: &str) -> Result<Feature, Error> {
        self.get(&format!("/features/{}", segment(flag)), &[]).await
    }

    /// Enables or disables a feature if its flag has this revision (admin).
    pub async fn set_feature(
        &self,
        flag: &str,
        revision: Option<u64>,
        request: FeatureRequest,
    ) -> Result<Feature, Error> {
        self.update(Method::PUT, &format!("/features/{}", segment(flag)), revision, &request).await
    }
}

fn policy_path(policy_id: &str) -> String {
    format!("/policies/{}", segment(policy_id))
}

fn delegation_path(delegation_id: &str) -> String {
    format!("/delegations/{}", segment(delegation_id))
}

fn resource_path(pattern: &str) -> String {
    format!("/resources/{}", segment(pattern))
}
