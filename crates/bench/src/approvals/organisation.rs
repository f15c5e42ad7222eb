//! The users, policies and task types of the benchmark, created through the HTTP API.

use std::collections::BTreeSet;

use ade_client::wire::{AutoApprove, PolicyRequest, Scope, Token, TokenRequest, UserRequest};

use crate::error::{BenchError, ErrorKind};
use crate::http_client::{self, Connection, Target};

/// Most frequent first. Each type has a policy with two reviewers.
pub(super) const TASK_TYPES: [&str; 12] = [
    "deploy",
    "schema-migration",
    "config-change",
    "feature-flag",
    "scale",
    "secret-rotation",
    "dns-change",
    "index-build",
    "firewall-rule",
    "backfill",
    "cache-purge",
    "user-import",
];
pub(super) const AUTHORS: usize = 200;
/// Tasks below this risk are approved automatically.
pub(super) const AUTO_APPROVE_BELOW: u8 = 35;
const REVIEWERS_PER_POLICY: usize = 2;

pub(super) fn author(number: usize) -> String {
    format!("author-{number:03}")
}

pub(super) fn reviewer(number: usize) -> String {
    format!("reviewer-{number:02}")
}

pub(super) fn reviewers_of(task_type: usize) -> Vec<String> {
    (task_type * REVIEWERS_PER_POLICY..(task_type + 1) * REVIEWERS_PER_POLICY).map(reviewer).collect()
}

/// Creates all users and policies.
pub(super) async fn create(connection: &mut Connection) -> Result<(), BenchError> {
    let mut users: Vec<(String, &str)> = (0..AUTHORS).map(|number| (author(number), "author")).collect();
    users.extend((0..TASK_TYPES.len() * REVIEWERS_PER_POLICY).map(|number| (reviewer(number), "reviewer")));
    users.push((AUDITOR.to_owned(), "auditor"));
    for (user_id, role) in users {
        let roles = Some(BTreeSet::from([role.to_owned()]));
        let user = UserRequest { user_id, roles, ..UserRequest::default() };
        connection.post("/api/v1/users", http_client::to_json(&user)?).await?.expect(201)?;
    }
    for (task_type, name) in TASK_TYPES.iter().enumerate() {
        let auto = AutoApprove { risk_below: Some(AUTO_APPROVE_BELOW), ..AutoApprove::default() };
        let policy = PolicyRequest {
            name: Some(policy_name(name)),
            task_types: Some(vec![(*name).to_owned()]),
            reviewers: Some(reviewers_of(task_type)),
            auto_approve_if: Some(Some(auto)),
            active: Some(true),
            ..PolicyRequest::default()
        };
        connection.post("/api/v1/policies", http_client::to_json(&policy)?).await?.expect(201)?;
    }
    Ok(())
}

/// Sees everything and decides nothing.
pub(super) const AUDITOR: &str = "auditor";

pub(super) fn policy_name(task_type: &str) -> String {
    format!("review of {task_type}")
}

/// Issues a token for a user and returns the target with it.
pub(crate) async fn with_token_of(
    connection: &mut Connection,
    target: &Target,
    user: &str,
    can_decide: bool,
) -> Result<Target, BenchError> {
    let mut scopes = BTreeSet::from([Scope::Read, Scope::Propose]);
    if can_decide {
        scopes.insert(Scope::Decide);
    }
    let request = TokenRequest { name: "bench".to_owned(), scopes: Some(scopes), ttl_seconds: None };
    let response = connection
        .post(&format!("/api/v1/users/{user}/tokens"), http_client::to_json(&request)?)
        .await?
        .expect(201)?;
    let token: Token = response.json()?;
    let token =
        token.token.ok_or_else(|| BenchError::new(ErrorKind::Unavailable, "the response has no token"))?;
    target.with_token(&token)
}
