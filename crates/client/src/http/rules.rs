//! What reviews are decided by: policies, delegations, registered resources, settings and flags; and what would happen if.

use reqwest::Method;

use super::{Client, segment};
use crate::Error;
use crate::wire::{
    Delegation, DelegationRequest, Feature, FeatureRequest, Page, Policy, PolicyRequest, RegisteredResource,
    Replay, ResourceRequest, Setting, SettingRequest, Simulation, SimulationRequest,
};

impl Client {
    /// Policies. Filters are `limit` and `cursor`.
    ///
    /// # Errors
    /// A filter is wrong.
    pub async fn policies(&self, filters: &[(&str, &str)]) -> Result<Page<Policy>, Error> {
        self.get("/policies", filters).await
    }

    /// One policy.
    ///
    /// # Errors
    /// There is no such policy.
    pub async fn policy(&self, policy_id: &str) -> Result<Policy, Error> {
        self.get(&policy_path(policy_id), &[]).await
    }

    /// Makes a policy.
    ///
    /// # Errors
    /// Its name is taken, something about it cannot be, or the caller may not.
    pub async fn make_policy(&self, policy: &PolicyRequest) -> Result<Policy, Error> {
        self.make("/policies", policy).await
    }

    /// Changes a policy, if it still has this revision.
    ///
    /// # Errors
    /// It was changed meanwhile, or the caller may not.
    pub async fn change_policy(
        &self,
        policy_id: &str,
        revision: Option<u64>,
        patch: &PolicyRequest,
    ) -> Result<Policy, Error> {
        self.change(Method::PATCH, &policy_path(policy_id), revision, patch).await
    }

    /// Removes a policy.
    ///
    /// # Errors
    /// There is no such policy, or the caller may not.
    pub async fn remove_policy(&self, policy_id: &str) -> Result<(), Error> {
        self.remove(&policy_path(policy_id), None).await
    }

    /// Puts what is drafted in force.
    ///
    /// # Errors
    /// There is no such policy, or the caller may not.
    pub async fn activate_policy(&self, policy_id: &str) -> Result<Policy, Error> {
        self.make_bare(&format!("{}/activate", policy_path(policy_id))).await
    }

    /// Which past tasks would have gone another way.
    ///
    /// # Errors
    /// There is no such policy, or the caller may not.
    pub async fn replay_policy(&self, policy_id: &str) -> Result<Replay, Error> {
        self.make_bare(&format!("{}/replay", policy_path(policy_id))).await
    }

    /// Delegations. Filters are `limit` and `cursor`.
    ///
    /// # Errors
    /// A filter is wrong.
    pub async fn delegations(&self, filters: &[(&str, &str)]) -> Result<Page<Delegation>, Error> {
        self.get("/delegations", filters).await
    }

    /// One delegation.
    ///
    /// # Errors
    /// There is no such delegation.
    pub async fn delegation(&self, delegation_id: &str) -> Result<Delegation, Error> {
        self.get(&delegation_path(delegation_id), &[]).await
    }

    /// Makes a delegation.
    ///
    /// # Errors
    /// Something about it cannot be, or the caller may not.
    pub async fn make_delegation(&self, delegation: &DelegationRequest) -> Result<Delegation, Error> {
        self.make("/delegations", delegation).await
    }

    /// Changes a delegation, if it still has this revision.
    ///
    /// # Errors
    /// It was changed meanwhile, or the caller may not.
    pub async fn change_delegation(
        &self,
        delegation_id: &str,
        revision: Option<u64>,
        patch: &DelegationRequest,
    ) -> Result<Delegation, Error> {
        self.change(Method::PATCH, &delegation_path(delegation_id), revision, patch).await
    }

    /// Removes a delegation.
    ///
    /// # Errors
    /// There is no such delegation, or the caller may not.
    pub async fn remove_delegation(&self, delegation_id: &str) -> Result<(), Error> {
        self.remove(&delegation_path(delegation_id), None).await
    }

    /// Registered resources. Filters are `limit` and `cursor`.
    ///
    /// # Errors
    /// A filter is wrong.
    pub async fn resources(&self, filters: &[(&str, &str)]) -> Result<Page<RegisteredResource>, Error> {
        self.get("/resources", filters).await
    }

    /// What is registered under a pattern.
    ///
    /// # Errors
    /// Nothing is.
    pub async fn resource(&self, pattern: &str) -> Result<RegisteredResource, Error> {
        self.get(&resource_path(pattern), &[]).await
    }

    /// Registers resources.
    ///
    /// # Errors
    /// The pattern is registered, or the caller may not.
    pub async fn register_resource(&self, resource: &ResourceRequest) -> Result<RegisteredResource, Error> {
        self.make("/resources", resource).await
    }

    /// Changes what is registered under a pattern, if it still has this revision.
    ///
    /// # Errors
    /// It was changed meanwhile, or the caller may not.
    pub async fn change_resource(
        &self,
        pattern: &str,
        revision: Option<u64>,
        patch: &ResourceRequest,
    ) -> Result<RegisteredResource, Error> {
        self.change(Method::PATCH, &resource_path(pattern), revision, patch).await
    }

    /// Forgets what is registered under a pattern.
    ///
    /// # Errors
    /// Nothing is, or the caller may not.
    pub async fn remove_resource(&self, pattern: &str) -> Result<(), Error> {
        self.remove(&resource_path(pattern), None).await
    }

    /// What would happen if. It changes nothing.
    ///
    /// # Errors
    /// Something about it cannot be.
    pub async fn simulate(&self, request: &SimulationRequest) -> Result<Simulation, Error> {
        self.post("/simulations", request).await
    }

    /// Settings that all servers share. Filters are `limit` and `cursor`.
    ///
    /// # Errors
    /// A filter is wrong.
    pub async fn settings(&self, filters: &[(&str, &str)]) -> Result<Page<Setting>, Error> {
        self.get("/config", filters).await
    }

    /// One setting.
    ///
    /// # Errors
    /// There is no such setting.
    pub async fn setting(&self, name: &str) -> Result<Setting, Error> {
        self.get(&format!("/config/{}", segment(name)), &[]).await
    }

    /// Changes a setting, if it still has this revision (admin).
    ///
    /// # Errors
    /// It cannot be that, it was changed meanwhile, or the caller may not.
    pub async fn change_setting(
        &self,
        name: &str,
        revision: Option<u64>,
        value: &SettingRequest,
    ) -> Result<Setting, Error> {
        self.change(Method::PUT, &format!("/config/{}", segment(name)), revision, value).await
    }

    /// What can be switched on and off. Filters are `limit` and `cursor`.
    ///
    /// # Errors
    /// A filter is wrong.
    pub async fn features(&self, filters: &[(&str, &str)]) -> Result<Page<Feature>, Error> {
        self.get("/features", filters).await
    }

    /// One flag.
    ///
    /// # Errors
    /// There is no such flag.
    pub async fn feature(&self, flag: &str) -> Result<Feature, Error> {
        self.get(&format!("/features/{}", segment(flag)), &[]).await
    }

    /// Switches something on or off, if it still has this revision (admin).
    ///
    /// # Errors
    /// There is no such flag, it was changed meanwhile, or the caller may not.
    pub async fn switch_feature(
        &self,
        flag: &str,
        revision: Option<u64>,
        request: FeatureRequest,
    ) -> Result<Feature, Error> {
        self.change(Method::PUT, &format!("/features/{}", segment(flag)), revision, &request).await
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
