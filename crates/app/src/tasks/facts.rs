//! What a review is decided by besides itself: people, rules, the registry and the history, as they are when it is loaded.
//!
//! What is the same for all tasks is kept in this process, and never used but with the mark of the record that it was read under.

use std::sync::Arc;

use ade_domain::Moment;
use ade_domain::approval::assignment::{Assignment, Question, QuorumUnreachable, assign, assign_anyway};
use ade_domain::approval::delegation::Delegation;
use ade_domain::approval::policy::{DEFAULT, Policy, default_policy};
use ade_domain::people::People;
use ade_domain::risk::{self, HISTORY, History, Level, Registered, Risk, assess, level};
use ade_domain::task::{Config, Preview, Resource};
use ade_domain::task::{Plan, Task};
use ade_store::database::{DocumentKind, RulesVersion};
use ade_store::{Database, DatabaseError};
use tokio::sync::Mutex;

use crate::rules::{RegisteredPattern, StoredPolicy, is_policy};
use crate::settings::Settings;

/// Everything at once.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    known: Arc<Known>,
    history: History,
    /// More requests wait than should, and what is not dangerous may pass because of it.
    low_risk_passes: bool,
}

/// What is the same for all tasks.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) people: People,
    policies: Vec<Policy>,
    default_policy: Policy,
    delegations: Vec<Delegation>,
    registry: Vec<RegisteredPattern>,
    pub(super) settings: Settings,
}

/// What is the same for all tasks, as it was read last, with the mark that the record had before. Whoever asks brings the mark that
/// the record has now: what was changed meanwhile, by whichever process, is read again.
#[derive(Debug, Default)]
pub(super) struct RulesCache(Mutex<Option<(RulesVersion, Arc<Known>)>>);

impl RulesCache {
    /// As it was when the record had this mark, or as it is now.
    pub(super) async fn at(
        &self,
        record: &Database,
        mark: &RulesVersion,
    ) -> Result<Arc<Known>, DatabaseError> {
        // Held while it is read: whoever comes meanwhile waits for that instead of reading the same.
        let mut kept = self.0.lock().await;
        if let Some((of, known)) = &*kept
            && of == mark
        {
            return Ok(known.clone());
        }
        // Before anything else: what changes from here on gives the record another one.
        let now = record.mark().await?;
        if let Some((of, known)) = &*kept
            && *of == now
        {
            return Ok(known.clone());
        }
        let known = Arc::new(Known::load(record).await?);
        *kept = Some((now, known.clone()));
        Ok(known)
    }

    /// As it is now.
    pub(super) async fn now(&self, record: &Database) -> Result<Arc<Known>, DatabaseError> {
        self.at(record, &record.mark().await?).await
    }
}

impl Known {
    async fn load(record: &Database) -> Result<Self, DatabaseError> {
        let (people, policies, delegations, registry, settings) = tokio::try_join!(
            record.people(),
            record.things(DocumentKind::Policy),
            record.things(DocumentKind::Delegation),
            record.things(DocumentKind::Resource),
            Settings::load(record),
        )?;
        let mut active = Vec::new();
        for policy in policies.iter().filter(|thing| is_policy(thing)) {
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
            settings,
        })
    }
}

/// What was found out about a task before people are asked about it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    risk: u8,
    must_be_seen: bool,
}

impl Seen {
    pub(super) fn of(risk: u8, preview: &Preview) -> Self {
        Self { risk, must_be_seen: preview.went_wrong() }
    }
}

impl Facts {
    pub(super) async fn load(
        record: &Database,
        kept: &RulesCache,
        task_type: &str,
    ) -> Result<Self, DatabaseError> {
        let (mark, history) = record.history(task_type, HISTORY).await?;
        let known = kept.at(record, &mark).await?;
        let settings = &known.settings;
        let low_risk_passes = settings.auto_approve_low_risk
            && record.more_pending_than(settings.approval_backlog_threshold).await?;
        Ok(Self { known, history, low_risk_passes })
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.known.settings
    }

    /// The same with some policies as if they were in force, each in the place of the one with its name.
    pub(super) fn with(&self, drafted: &[Policy]) -> Self {
        let mut known = Known::clone(&self.known);
        for policy in drafted {
            if policy.name == DEFAULT {
                known.default_policy = policy.clone();
                continue;
            }
            known.policies.retain(|other| other.name != policy.name);
            known.policies.push(policy.clone());
        }
        Self { known: Arc::new(known), ..self.clone() }
    }

    /// The most critical pattern that matches decides; what depends on any of them counts.
    fn registered(&self, resource: &Resource) -> Registered {
        let found = || {
            let matches =
                |one: &&RegisteredPattern| one.pattern.matches(&resource.resource_type, &resource.id);
            self.known.registry.iter().filter(matches)
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
        assess(&facts, self.known.settings.thresholds)
    }

    pub(super) fn assign(
        &self,
        review: &Task,
        config: &Config,
        seen: Seen,
        now: Moment,
    ) -> Result<Assignment, QuorumUnreachable> {
        assign(&self.question(review, config, seen, now))
    }

    fn question<'a>(
        &'a self,
        review: &'a Task,
        config: &'a Config,
        Seen { risk, must_be_seen }: Seen,
        now: Moment,
    ) -> Question<'a> {
        Question {
            config,
            risk,
            // Somebody's roles are its own: they say nothing for its agents.
            author: self.known.people.get(&review.author_id).filter(|_| !review.by_agent),
            author_set: &review.author_set,
            people: &self.known.people,
            policies: &self.known.policies,
            default_policy: &self.known.default_policy,
            delegations: &self.known.delegations,
            must_be_seen,
            low_risk_passes: self.low_risk_passes
                && level(risk, self.known.settings.thresholds) == Level::Low,
            now,
        }
    }

    /// The same plan for what goes back into review, whether or not there are enough people: it must not stay approved. What
    /// changed between approval and apply must be seen by somebody: it would change again, and approve itself for ever.
    pub(super) fn plan_anyway<'a>(
        &self,
        review: &Task,
        preview: &Preview,
        must_be_seen: bool,
        ids: &'a mut dyn FnMut() -> String,
        now: Moment,
    ) -> Plan<'a> {
        let mut plan = self.plan(review, &review.config, preview, ids, now);
        let seen = Seen::of(plan.risk.score, preview);
        let seen = Seen { must_be_seen: seen.must_be_seen || must_be_seen, ..seen };
        plan.assignment = Ok(assign_anyway(&self.question(review, &review.config, seen, now)));
        plan
    }

    /// Whether nobody would need to be asked.
    pub(super) fn approves_alone(&self, review: &Task, seen: Seen, now: Moment) -> bool {
        self.assign(review, &review.config, seen, now).is_ok_and(|found| found.auto_approved.is_some())
    }

    /// What is known before people are asked about a config.
    pub(super) fn plan<'a>(
        &self,
        review: &Task,
        config: &Config,
        preview: &Preview,
        ids: &'a mut dyn FnMut() -> String,
        now: Moment,
    ) -> Plan<'a> {
        let risk = self.risk(config, preview);
        let assignment = self.assign(review, config, Seen::of(risk.score, preview), now);
        let fingerprint = preview.fingerprint.map(|fingerprint| fingerprint.to_string());
        Plan { risk, fingerprint, assignment, due_after_ms: self.known.settings.due_after_ms(), ids }
    }
}
