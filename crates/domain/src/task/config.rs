//! The config of a task: what is executed, by which executor, on which resources. Approvals are bound to its digest.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Digest;
use crate::glob::Pattern;
use crate::lock::LockMode;
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

impl Resource {
    /// As `type:id`.
    pub fn name(&self) -> String {
        format!("{}:{}", self.resource_type, self.id)
    }

    pub(crate) fn matches_any(&self, patterns: &[Pattern]) -> bool {
        patterns.iter().any(|pattern| pattern.matches(&self.resource_type, &self.id))
    }
}

/// The executor of tasks that agents pull and apply themselves.
pub const AGENT_EXECUTOR: &str = "agent";
/// The executor that changes nothing, for tests and demonstrations.
pub const NOOP_EXECUTOR: &str = "noop";
/// For each executor, the parameter that selects where a task can be applied.
const WORK_QUEUE_PARAMETERS: [(&str, &str); 3] =
    [("files", "root"), ("sql", "connection"), ("command", "template")];

impl Config {
    /// Where the task can be applied: by a named agent, by any agent with a capability, or by workers that serve a root, a
    /// connection or a template, optionally with a label. Workers claim only tasks of the work queues that they serve.
    pub fn work_queue(&self) -> String {
        let parameter = |name: &str| self.parameters.get(name).and_then(Value::as_str);
        if self.executor == AGENT_EXECUTOR {
            return parameter("agent").map_or_else(
                || Self::work_queue_of_capability(parameter("capability").unwrap_or(&self.task_type)),
                Self::work_queue_of_agent,
            );
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

    /// The names of the locks that applying the task needs: the lock of the task, if it has an id, and those of its resources.
    pub fn locks(&self, task_id: Option<&str>) -> Vec<(String, LockMode)> {
        let own = task_id.map(|id| (format!("task:{id}"), LockMode::Exclusive));
        let resources =
            self.resources.iter().map(|resource| (format!("resource:{}", resource.name()), resource.mode));
        own.into_iter().chain(resources).collect()
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
            let has_colon = resource.resource_type.contains(':');
            input.check(!has_colon, format_args!("resources.{index}.type"), "must not contain a colon");
            let name = resource.name();
            let path = format_args!("resources.{index}");
            let rule =
                format_args!("must have a type and an id of at most {MAX_RESOURCE_LEN} bytes together");
            input.check(name.len() <= MAX_RESOURCE_LEN, path, rule);
            input.check(names.insert(name), path, "must not be listed twice");
        }
        input.errors
    }
}
