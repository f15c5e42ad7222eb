//! The scope of a task: everything that it can touch. Policies, risk and automatic approval judge the scope, because it follows
//! from what will be executed, while type and resources are the author's own words.
//!
//! An executor derives the targets from the parameters; the operator's configuration binds resources to them. Nobody declares
//! either.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Config, Digest, PossibleClaimants, Resource};
use crate::glob::{Pattern, PatternSet};
use crate::lock::LockMode;
use crate::normal_form::fold;
use crate::people::{AUTHOR, User};
use crate::people_selector::PeopleSelector;

/// How names of agents begin, as targets and as authors.
pub(super) const AGENT_PREFIX: &str = "agent:";

/// Resource types that only targets have. Tasks cannot declare them, and only administrators lock them directly.
pub const RESERVED_TYPES: [&str; 7] = ["files", "sql", "command", "http", "agent", "capability", "tool"];

pub fn is_reserved_type(resource_type: &str) -> bool {
    RESERVED_TYPES.contains(&&*fold(resource_type))
}

/// What an operator allows tasks to work on: a root, a connection, a template or a host, with everything that follows from using
/// it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Binding {
    /// As `type:id`. Always among the resources of a task that uses it.
    pub resources: Vec<String>,
    /// Registers the targets, from 0 to 100.
    pub criticality: Option<u8>,
    /// The task types that may use it; empty for all.
    pub task_types: Vec<String>,
    /// Who may propose and preview tasks that use it; empty for all.
    pub authors: Vec<AllowedAuthor>,
    /// How a task locks it as a whole.
    pub lock: BindingLock,
}

/// How a task locks what it works on, besides its resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BindingLock {
    /// As the executor needs: files are locked exclusively, everything else is not locked.
    #[default]
    Default,
    Exclusive,
    Shared,
    None,
}

/// People, or an agent as `agent:ID`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum AllowedAuthor {
    People(PeopleSelector),
    Agent(String),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be user:ID, role:NAME, team:NAME or agent:ID")]
pub struct InvalidAllowedAuthor;

impl TryFrom<String> for AllowedAuthor {
    type Error = InvalidAllowedAuthor;

    fn try_from(text: String) -> Result<Self, InvalidAllowedAuthor> {
        match text.strip_prefix(AGENT_PREFIX) {
            Some(id) if !id.is_empty() => Ok(Self::Agent(id.to_owned())),
            Some(_) => Err(InvalidAllowedAuthor),
            None => text.parse().map(Self::People).map_err(|_| InvalidAllowedAuthor),
        }
    }
}

impl From<AllowedAuthor> for String {
    fn from(author: AllowedAuthor) -> Self {
        author.to_string()
    }
}

impl std::fmt::Display for AllowedAuthor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::People(people) => people.fmt(f),
            Self::Agent(id) => write!(f, "{AGENT_PREFIX}{id}"),
        }
    }
}

impl AllowedAuthor {
    /// Whether this names the person or, if one acts for the person, the agent. An agent acts as an author for its sponsor and in
    /// its team; no other role of the sponsor extends to it.
    pub fn includes(&self, user: &User, agent: Option<&str>) -> bool {
        let Some(agent) = agent else { return matches!(self, Self::People(people) if people.covers(user)) };
        match self {
            Self::People(PeopleSelector::User(_)) => false,
            Self::People(PeopleSelector::Role(role)) => role == AUTHOR && user.has_role(role),
            Self::People(team @ PeopleSelector::Team(_)) => team.covers(user),
            Self::Agent(id) => agent == id,
        }
    }
}

/// The bindings that the processes of this installation have published, by name: `files:handbook`, or `files:handbook@eu` for the
/// workers with label `eu`.
pub type PublishedBindings = BTreeMap<String, PublishedBinding>;

/// A binding as a process publishes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedBinding {
    pub binding: Binding,
    /// Identifies what the name stands for: a path, an argv, a URL without password. Two processes must agree on it.
    pub fingerprint: Digest,
    /// For hosts of the executor http: the host as the operator wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// One binding that a task uses, and the targets that it reaches through it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScopePart {
    /// As `files:handbook@eu`.
    pub binding: String,
    /// As `files:handbook@eu/guide.md`.
    pub targets: Vec<String>,
    /// The resources that the binding adds.
    pub resources: Vec<Resource>,
    pub criticality: Option<u8>,
    /// How the task locks the binding as a whole.
    pub lock: Option<LockMode>,
    /// None for agents, which have no configuration here.
    pub fingerprint: Option<Digest>,
}

/// Everything that a task can touch besides the resources that its author declared.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskScope(pub Vec<ScopePart>);

/// What policies, delegations and risk judge.
#[derive(Debug, Clone)]
pub struct ReviewSubject<'a> {
    pub config: &'a Config,
    pub scope: &'a TaskScope,
    /// Declared and bound.
    pub resources: Vec<Resource>,
    /// The agents that may claim the task. Policies that name them apply, but cover nothing by it.
    pub claimants: PossibleClaimants,
}

impl<'a> ReviewSubject<'a> {
    pub fn new(config: &'a Config, scope: &'a TaskScope) -> Self {
        let (resources, claimants) = (scope.effective_resources(config), PossibleClaimants::default());
        Self { config, scope, resources, claimants }
    }

    #[must_use]
    pub fn with_claimants(self, claimants: PossibleClaimants) -> Self {
        Self { claimants, ..self }
    }

    /// Whether one of these patterns matches a target of the task itself.
    pub fn matches_any_target(&self, patterns: &[String]) -> bool {
        {
            let patterns = PatternSet::new(patterns);
            self.scope.targets().any(|target| patterns.matches(target))
        }
    }

    /// Why these patterns match only because of an agent that may claim the task; none if they match a target of the task, or
    /// nothing at all.
    pub fn claimant_match(&self, patterns: &[String]) -> Option<String> {
        if self.matches_any_target(patterns) { None } else { self.claimants.matched_by(patterns) }
    }

    pub fn matches_any_resource(&self, patterns: &[Pattern]) -> bool {
        let patterns = PatternSet::of_resources(patterns);
        self.resources.iter().any(|resource| resource.matches_any(&patterns))
    }
}

impl TaskScope {
    pub fn targets(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|part| &part.targets).map(String::as_str)
    }

    /// Declared and bound resources. A resource that is both has the stronger of its modes.
    pub fn effective_resources(&self, config: &Config) -> Vec<Resource> {
        let bound = self.0.iter().flat_map(|part| &part.resources);
        let mut resources: Vec<Resource> = Vec::new();
        for resource in config.resources.iter().chain(bound) {
            match resources.iter_mut().find(|known| known.is_same(resource)) {
                Some(known) => known.mode = known.mode.max(resource.mode),
                None => resources.push(resource.clone()),
            }
        }
        resources
    }

    /// The resources that a task locks and that count for its blast radius: the effective ones, and each binding that is locked as
    /// a whole.
    pub fn locked_resources(&self, config: &Config) -> Vec<Resource> {
        let bindings = self.0.iter().filter_map(|part| {
            let (resource_type, id) = part.binding.split_once(':')?;
            Some(Resource { resource_type: resource_type.to_owned(), id: id.to_owned(), mode: part.lock? })
        });
        let mut resources = self.effective_resources(config);
        resources.extend(bindings);
        resources
    }

    /// The locks that applying the task needs: the lock of the task, if it has an id, and those of what it works on.
    pub fn locks(&self, config: &Config, task_id: Option<&str>) -> Vec<(String, LockMode)> {
        let own = task_id.map(|id| (format!("task:{id}"), LockMode::Exclusive));
        let resources = self.locked_resources(config).into_iter();
        let resources =
            resources.map(|resource| (format!("resource:{}", fold(&resource.name())), resource.mode));
        own.into_iter().chain(resources).collect()
    }

    /// The criticality that the operator's file gives to a resource; the highest of several bindings.
    pub fn bound_criticality(&self, resource: &Resource) -> Option<u8> {
        let binds = |part: &&ScopePart| part.resources.iter().any(|bound| bound.is_same(resource));
        self.0.iter().filter(binds).filter_map(|part| part.criticality).max()
    }

    /// What approvals are bound to, besides the config: the scope with the fingerprints of the bindings.
    pub fn digest(&self, config: &Config) -> Option<Digest> {
        Digest::of(&(self.effective_resources(config), &self.0))
    }
}
