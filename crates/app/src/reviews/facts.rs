//! What a review is decided by besides itself: people, rules, the registry and the history, as they are when it is loaded.

use ade_domain::Moment;
use ade_domain::glob::Pattern;
use ade_domain::people::People;
use ade_domain::review::assign::{Assignment, NoQuorum, Question, assign};
use ade_domain::review::delegation::Delegation;
use ade_domain::review::policy::{Policy, default_policy};
use ade_domain::review::risk::{self, HISTORY, History, Registered, Risk, Thresholds, assess};
use ade_domain::review::{Plan, Review};
use ade_domain::task::{Config, Preview, Resource};
use ade_store::record::ThingKind;
use ade_store::{Record, RecordError};
use serde::{Deserialize, Serialize};

/// How critical what matches a pattern is, and what depends on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegisteredPattern {
    /// What it is about.
    pub pattern: Pattern,
    /// From 0 to 100.
    pub criticality: u8,
    /// What depends on it, as `type:id`.
    #[serde(default)]
    pub dependents: Vec<String>,
}

/// A policy as it is stored: what is in force, and what is being drafted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredPolicy {
    /// In force, if it is.
    pub active: Option<Policy>,
    /// Being drafted.
    pub draft: Option<Policy>,
}

/// The name of the policy that counts if no other does.
const DEFAULT: &str = "default";

/// Everything at once.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) people: People,
    policies: Vec<Policy>,
    default_policy: Policy,
    delegations: Vec<Delegation>,
    registry: Vec<RegisteredPattern>,
    history: History,
    thresholds: Thresholds,
}

impl Facts {
    pub(super) async fn load(
        record: &Record,
        task_type: &str,
        thresholds: Thresholds,
    ) -> Result<Self, RecordError> {
        let (people, policies, delegations, registry, history) = tokio::try_join!(
            record.people(),
            record.things(ThingKind::Policy),
            record.things(ThingKind::Delegation),
            record.things(ThingKind::Resource),
            record.history(task_type, HISTORY),
        )?;
        let mut active = Vec::new();
        for policy in &policies {
            active.extend(policy.read::<StoredPolicy>()?.active);
        }
        let (default, policies): (Vec<Policy>, Vec<Policy>) =
            active.into_iter().partition(|policy| policy.name == DEFAULT);
        Ok(Self {
            people,
            policies,
            default_policy: default.into_iter().next().unwrap_or_else(default_policy),
            delegations: delegations.iter().map(|one| one.read()).collect::<Result<_, _>>()?,
            registry: registry.iter().map(|one| one.read()).collect::<Result<_, _>>()?,
            history,
            thresholds,
        })
    }

    /// The same with some policies as if they were in force, each in the place of the one with its name.
    pub(super) fn with(&self, drafted: &[Policy]) -> Self {
        let mut facts = self.clone();
        for policy in drafted {
            if policy.name == DEFAULT {
                facts.default_policy = policy.clone();
                continue;
            }
            facts.policies.retain(|other| other.name != policy.name);
            facts.policies.push(policy.clone());
        }
        facts
    }

    /// The most critical pattern that matches decides; what depends on any of them counts.
    fn registered(&self, resource: &Resource) -> Registered {
        let found = || {
            let matches =
                |one: &&RegisteredPattern| one.pattern.matches(&resource.resource_type, &resource.id);
            self.registry.iter().filter(matches)
        };
        Registered {
            resource: resource.name(),
            criticality: found().map(|one| one.criticality).max(),
            dependents: found().flat_map(|one| one.dependents.clone()).collect(),
        }
    }

    pub(super) fn risk(&self, config: &Config, preview: &Preview) -> Risk {
        let facts = risk::Facts {
            resources: config.resources.iter().map(|resource| self.registered(resource)).collect(),
            changes: preview.magnitude(),
            history: self.history,
        };
        assess(&facts, self.thresholds)
    }

    pub(super) fn assign(
        &self,
        review: &Review,
        config: &Config,
        risk: u8,
        now: Moment,
    ) -> Result<Assignment, NoQuorum> {
        assign(&Question {
            config,
            risk,
            author: self.people.get(&review.author_id),
            author_set: &review.author_set,
            people: &self.people,
            policies: &self.policies,
            default_policy: &self.default_policy,
            delegations: &self.delegations,
            now,
        })
    }

    /// What is known before people are asked about a config.
    pub(super) fn plan<'a>(
        &self,
        review: &Review,
        config: &Config,
        preview: &Preview,
        due_after_ms: u64,
        ids: &'a mut dyn FnMut() -> String,
        now: Moment,
    ) -> Plan<'a> {
        let risk = self.risk(config, preview);
        let assignment = self.assign(review, config, risk.score, now);
        let fingerprint = preview.fingerprint.map(|fingerprint| fingerprint.to_string());
        Plan { risk, fingerprint, assignment, due_after_ms, ids }
    }

    /// Who stands in for somebody who left, if anybody does.
    pub(super) fn stands_in(
        &self,
        leaver: &ade_domain::people::UserId,
        review: &Review,
        now: Moment,
    ) -> Option<ade_domain::people::UserId> {
        let ways = ade_domain::review::delegation::Ways {
            people: &self.people,
            delegations: &self.delegations,
            config: &review.config,
            risk: review.risk_score(),
            now,
        };
        let resolved = ade_domain::review::delegation::resolve(leaver, &ways);
        Some(resolved.reviewer).filter(|reviewer| reviewer != leaver)
    }
}
