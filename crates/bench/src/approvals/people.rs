//! The organisation that tasks are about: who proposes, who reviews what, and the words that tasks are found by. Made over
//! HTTP, as people would.

use std::collections::BTreeSet;

use ade_client::wire::{PolicyRequest, Token, TokenRequest, UserRequest};
use ade_domain::approval::policy::AutoApprove;
use ade_domain::permission::Scope;

use crate::error::{BenchError, ErrorKind};
use crate::link::{self, Link, Target};

/// Types of tasks; the first are the most frequent. Each has a policy with two reviewers.
pub(super) const TYPES: [&str; 12] = [
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
/// Below this risk nobody needs to be asked.
pub(super) const NO_RISK: u8 = 35;
/// Reviewers of each policy.
const EACH: usize = 2;

pub(super) fn author(number: usize) -> String {
    format!("author-{number:03}")
}

pub(super) fn reviewer(number: usize) -> String {
    format!("reviewer-{number:02}")
}

/// Who reviews a type.
pub(super) fn reviewers_of(kind: usize) -> Vec<String> {
    (kind * EACH..(kind + 1) * EACH).map(reviewer).collect()
}

/// Makes everybody and every policy.
pub(super) async fn make(link: &mut Link) -> Result<(), BenchError> {
    let mut people: Vec<(String, &str)> = (0..AUTHORS).map(|number| (author(number), "author")).collect();
    people.extend((0..TYPES.len() * EACH).map(|number| (reviewer(number), "reviewer")));
    people.push((LOOKS.to_owned(), "auditor"));
    for (user_id, role) in people {
        let roles = Some(BTreeSet::from([role.to_owned()]));
        let user = UserRequest { user_id, roles, ..UserRequest::default() };
        link.post("/api/v1/users", link::body(&user)?).await?.expect(201)?;
    }
    for (kind, name) in TYPES.iter().enumerate() {
        let auto = AutoApprove { risk_below: Some(NO_RISK), ..AutoApprove::default() };
        let policy = PolicyRequest {
            name: Some(policy(name)),
            task_types: Some(vec![(*name).to_owned()]),
            reviewers: Some(reviewers_of(kind)),
            auto_approve_if: Some(Some(auto)),
            active: Some(true),
            ..PolicyRequest::default()
        };
        link.post("/api/v1/policies", link::body(&policy)?).await?.expect(201)?;
    }
    Ok(())
}

/// Who sees everything and decides nothing.
pub(super) const LOOKS: &str = "auditor";

pub(super) fn policy(kind: &str) -> String {
    format!("{kind} is reviewed")
}

/// The same server as somebody.
pub(crate) async fn sign_in(
    link: &mut Link,
    target: &Target,
    user: &str,
    decide: bool,
) -> Result<Target, BenchError> {
    let mut scopes = BTreeSet::from([Scope::Read, Scope::Propose]);
    if decide {
        scopes.insert(Scope::Decide);
    }
    let wish = TokenRequest { name: "bench".to_owned(), scopes: Some(scopes), ttl_seconds: None };
    let answer = link.post(&format!("/api/v1/users/{user}/tokens"), link::body(&wish)?).await?.expect(201)?;
    let token: Token = answer.read()?;
    let token = token.token.ok_or_else(|| BenchError::new(ErrorKind::Unavailable, "a token was not told"))?;
    target.with_token(&token)
}
