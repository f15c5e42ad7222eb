//! The config of a task: what is executed, by which executor, on which resources. Approvals are bound to its digest.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Digest;
use super::scope::is_reserved_type;
use crate::glob::PatternSet;
use crate::lock::LockMode;
use crate::normal_form::fold;
use crate::{InvalidField, Validator};

const MAX_RESOURCES: usize = 100;
/// Limits names, types and ids, in bytes.
const MAX_NAME_LEN: usize = 256;
/// Limits `type:id`, in bytes: the lock of a resource is named after it.
const MAX_RESOURCE_LEN: usize = 500;
/// In bytes.
const MAX_DESCRIPTION_LEN: usize = 16_384;
/// In bytes, as JSON.
const MAX_PARAMETERS_LEN: usize = 131_072;
const MAX_TIMEOUT_SECONDS: u32 = 86_400;
const MAX_PRIORITY: u8 = 100;

/// What a task executes. It does not change once submitted: a modification has a new digest and restarts the review.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The type of the task. Policies and the failure rate go by it.
    #[serde(rename = "type")]
    pub task_type: String,
    /// The version of the type.
    pub version: String,
    /// What the task does, for people.
    pub description: String,
    /// What applies the task: files, sql, command, http, agent or noop.
    pub executor: String,
    /// The input of the executor.
    pub parameters: Map<String, Value>,
    /// The resources that the task changes or reads.
    pub resources: Vec<Resource>,
    /// What happens to the effects of a failed attempt.
    pub rollback_strategy: RollbackStrategy,
    /// How long applying the task may take.
    pub timeout_seconds: u32,
    /// From 0 to 100; higher is applied first.
    pub priority: u8,
}

/// A resource that a task changes or reads.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resource {
    #[serde(rename = "type")]
    pub resource_type: String,
    pub id: String,
    /// How the task locks it.
    #[serde(default)]
    pub mode: LockMode,
}

/// What happens to the effects of a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RollbackStrategy {
    /// They are rolled back immediately.
    #[default]
    Automatic,
    /// An administrator can request a rollback.
    Manual,
    /// They remain.
    None,
}

/// Checks the type of a declared resource. Another spelling is refused with the right one, never rewritten.
pub(super) fn check_resource_type(resource_type: &str) -> Result<(), String> {
    let is_name_char = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-';
    if is_reserved_type(resource_type) {
        return Err(format!("must not be {resource_type}, which is derived from the parameters of the task"));
    }
    if resource_type.chars().all(is_name_char) {
        return Ok(());
    }
    let spelling = fold(resource_type);
    let hint = if spelling.chars().all(is_name_char) { format!(": write {spelling}") } else { String::new() };
    Err(format!("must have only lowercase letters, digits, - and _{hint}"))
}

impl Resource {
    /// A resource from `type:id`, to be locked exclusively.
    pub fn parse(name: &str) -> Result<Self, String> {
        let (resource_type, id) = name
            .split_once(':')
            .filter(|(kind, id)| !kind.is_empty() && !id.is_empty() && name.len() <= MAX_RESOURCE_LEN)
            .ok_or_else(|| format!("must be type:id of at most {MAX_RESOURCE_LEN} bytes"))?;
        check_resource_type(resource_type).map_err(|detail| format!("has a type that {detail}"))?;
        Ok(Self { resource_type: resource_type.to_owned(), id: id.to_owned(), mode: LockMode::Exclusive })
    }

    /// As `type:id`.
    pub fn name(&self) -> String {
        format!("{}:{}", self.resource_type, self.id)
    }

    /// Whether both name the same resource, in whatever spelling.
    pub fn is_same(&self, other: &Self) -> bool {
        fold(&self.resource_type) == fold(&other.resource_type) && fold(&self.id) == fold(&other.id)
    }

    pub(crate) fn matches_any(&self, patterns: &PatternSet<'_>) -> bool {
        patterns.matches_resource(&self.resource_type, &self.id)
    }
}

/// The executor of tasks that agents pull and apply themselves.
pub const AGENT_EXECUTOR: &str = "agent";
/// The executor of HTTP calls.
pub const HTTP_EXECUTOR: &str = "http";
/// The executor of tool calls of agents. Only a gate creates its tasks, and nothing claims them.
pub const GATE_EXECUTOR: &str = "gate";
/// The executor that changes nothing, for tests and demonstrations.
pub const NOOP_EXECUTOR: &str = "noop";
/// For each executor, the parameter that selects where a task can be applied.
const WORK_QUEUE_PARAMETERS: [(&str, &str); 3] =
    [("files", "root"), ("sql", "connection"), ("command", "template")];

/// The agents that a task of the executor `agent` is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentWork<'a> {
    /// The agent with this name.
    Named(&'a str),
    /// Any agent with this capability.
    Capability(&'a str),
}

impl Config {
    /// The agents that the task is for; `None` if a worker of the service applies it.
    pub fn agent_work(&self) -> Option<AgentWork<'_>> {
        let parameter = |name: &str| self.parameters.get(name).and_then(Value::as_str);
        let by_capability = || AgentWork::Capability(parameter("capability").unwrap_or(&self.task_type));
        let is_for_agents = self.executor == AGENT_EXECUTOR;
        is_for_agents.then(|| parameter("agent").map_or_else(by_capability, AgentWork::Named))
    }

    /// Where the task can be applied: by a named agent, by any agent with a capability, or by workers that serve a root, a
    /// connection or a template, optionally with a label. Workers claim only tasks of the work queues that they serve.
    pub fn work_queue(&self) -> String {
        let parameter = |name: &str| self.parameters.get(name).and_then(Value::as_str);
        match self.agent_work() {
            Some(AgentWork::Named(agent)) => return Self::work_queue_of_agent(agent),
            Some(AgentWork::Capability(capability)) => return Self::work_queue_of_capability(capability),
            None => {}
        }
        let selector = WORK_QUEUE_PARAMETERS.iter().find(|(executor, _)| *executor == self.executor);
        let target = selector.and_then(|(_, name)| parameter(name));
        let target = target.map(|target| format!(":{target}")).unwrap_or_default();
        let label = parameter("worker").map(|label| format!("{label}/")).unwrap_or_default();
        format!("{label}{}{target}", self.executor)
    }

    pub fn work_queue_of_agent(agent: &str) -> String {
        format!("agent:{agent}")
    }

    pub fn work_queue_of_capability(capability: &str) -> String {
        format!("can:{capability}")
    }

    pub fn digest(&self) -> Result<Digest, InvalidField> {
        Digest::of(self).ok_or_else(|| InvalidField::at("parameters", "must have a canonical JSON form"))
    }

    pub fn validate(&self) -> Vec<InvalidField> {
        let mut input = Validator::default();
        let is_name = |name: &str| {
            !name.is_empty() && name.len() <= MAX_NAME_LEN && !name.chars().any(char::is_control)
        };
        let name_rule = format_args!("must be 1 to {MAX_NAME_LEN} bytes without control characters");
        for (path, name) in
            [("type", &self.task_type), ("version", &self.version), ("executor", &self.executor)]
        {
            input.check(is_name(name), path, name_rule);
        }
        let fits = !self.description.trim().is_empty() && self.description.len() <= MAX_DESCRIPTION_LEN;
        let rule = format_args!("must describe the task in at most {MAX_DESCRIPTION_LEN} bytes");
        input.check(fits, "description", rule);
        let fits = (1..=MAX_TIMEOUT_SECONDS).contains(&self.timeout_seconds);
        input.check(fits, "timeout_seconds", format_args!("must be between 1 and {MAX_TIMEOUT_SECONDS}"));
        let fits = self.priority <= MAX_PRIORITY;
        input.check(fits, "priority", format_args!("must be between 0 and {MAX_PRIORITY}"));
        let bytes = serde_json::to_vec(&self.parameters).map_or(usize::MAX, |text| text.len());
        let rule = format_args!("must be at most {MAX_PARAMETERS_LEN} bytes as JSON");
        input.check(bytes <= MAX_PARAMETERS_LEN, "parameters", rule);
        let fits = self.resources.len() <= MAX_RESOURCES;
        input.check(fits, "resources", format_args!("must have at most {MAX_RESOURCES} entries"));
        let mut names = BTreeSet::new();
        for (index, resource) in self.resources.iter().enumerate() {
            for (field, name) in [("type", &resource.resource_type), ("id", &resource.id)] {
                input.check(is_name(name), format_args!("resources.{index}.{field}"), name_rule);
            }
            if let Err(detail) = check_resource_type(&resource.resource_type) {
                input.check(false, format_args!("resources.{index}.type"), detail);
            }
            let name = fold(&resource.name()).into_owned();
            let path = format_args!("resources.{index}");
            let rule =
                format_args!("must have a type and an id of at most {MAX_RESOURCE_LEN} bytes together");
            input.check(name.len() <= MAX_RESOURCE_LEN, path, rule);
            input.check(names.insert(name), path, "must not be listed twice");
        }
        input.errors
    }
}
