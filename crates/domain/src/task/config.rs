//! What is to be done. Once submitted it does not change: a modification is a new revision with a new digest.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Digest;
use crate::Invalid;

/// Resources of one task.
const MOST_RESOURCES: usize = 100;
/// Bytes of a name, a type or an id.
const LONGEST_NAME: usize = 256;
/// Bytes of a resource as `type:id`: its lock is named after it, and such names have an end.
const LONGEST_RESOURCE: usize = 500;
/// Bytes of a description.
const LONGEST_DESCRIPTION: usize = 16_384;
/// Bytes of parameters, as JSON.
const LONGEST_PARAMETERS: usize = 131_072;
/// Seconds that carrying it out may take.
const LONGEST_TIMEOUT: u32 = 86_400;
/// The highest priority.
const HIGHEST_PRIORITY: u8 = 100;

/// What is to be done, by which executor, to what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// What kind of task it is: policies and the history of failures go by it.
    #[serde(rename = "type")]
    pub task_type: String,
    /// Which version of that kind.
    pub version: String,
    /// What it is, for people.
    pub description: String,
    /// Who carries it out.
    pub executor: String,
    /// What the executor needs to know.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub parameters: Map<String, Value>,
    /// What it touches.
    pub resources: Vec<Resource>,
    /// What happens when it fails.
    pub rollback_strategy: RollbackStrategy,
    /// How long carrying it out may take.
    pub timeout_seconds: u32,
    /// 0 to 100.
    pub priority: u8,
}

/// Something that a task touches.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Resource {
    /// What kind of thing.
    #[serde(rename = "type")]
    pub resource_type: String,
    /// Which one.
    pub id: String,
    /// Whether others may touch it at the same time.
    #[serde(default)]
    pub mode: ResourceMode,
}

/// Whether others may touch a resource at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ResourceMode {
    /// Nobody else.
    #[default]
    Exclusive,
    /// Others who share it.
    Shared,
}

/// What happens when carrying it out fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RollbackStrategy {
    /// What was changed is changed back at once.
    #[default]
    Automatic,
    /// An administrator decides.
    Manual,
    /// It stays as it is.
    None,
}

impl Resource {
    /// As people and filters write it.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}:{}", self.resource_type, self.id)
    }
}

/// Whoever asks for work carries it out.
pub const AGENT: &str = "agent";
/// Nothing is carried out: for trying things.
pub const NOOP: &str = "noop";
/// The parameter of each executor that says where it can be carried out.
const PLACES: [(&str, &str); 3] = [("files", "root"), ("sql", "connection"), ("command", "template")];

impl Config {
    /// Where it can be carried out. Whoever serves this place can do it, and nobody else: an agent by name, any agent with a
    /// capability, or workers with a root, a connection or a template, those of a label if one is named.
    #[must_use]
    pub fn place(&self) -> String {
        let said = |name: &str| self.parameters.get(name).and_then(Value::as_str);
        if self.executor == AGENT {
            let by_name = said("agent").map(Self::place_of_agent);
            return by_name
                .unwrap_or_else(|| Self::place_of_capability(said("capability").unwrap_or(&self.task_type)));
        }
        let of = PLACES.iter().find(|(executor, _)| *executor == self.executor);
        let at = of.and_then(|(_, parameter)| said(parameter)).map(|at| format!(":{at}")).unwrap_or_default();
        let label = said("worker").map(|label| format!("{label}/")).unwrap_or_default();
        format!("{label}{}{at}", self.executor)
    }

    /// Where only this agent does it.
    #[must_use]
    pub fn place_of_agent(agent: &str) -> String {
        format!("agent:{agent}")
    }

    /// Where every agent does it that can.
    #[must_use]
    pub fn place_of_capability(capability: &str) -> String {
        format!("can:{capability}")
    }

    /// The locks that carrying it out needs, as they are named: that of the task, if there is one, and those of its resources.
    #[must_use]
    pub fn locks(&self, task_id: Option<&str>) -> Vec<(String, ResourceMode)> {
        let own = task_id.map(|id| (format!("task:{id}"), ResourceMode::Exclusive));
        let resources = self.resources.iter().map(|one| (format!("resource:{}", one.name()), one.mode));
        own.into_iter().chain(resources).collect()
    }

    /// What an approval is given for.
    pub fn digest(&self) -> Result<Digest, Invalid> {
        Digest::of(self).ok_or_else(|| {
            Invalid::at("/parameters", "contains something that has no canonical form as JSON")
        })
    }

    /// Everything about it that cannot be.
    #[must_use]
    pub fn faults(&self) -> Vec<Invalid> {
        let mut faults = Vec::new();
        let mut check = |holds: bool, pointer: &str, detail: String| {
            if !holds {
                faults.push(Invalid::at(pointer, detail));
            }
        };
        for (pointer, name) in
            [("/type", &self.task_type), ("/version", &self.version), ("/executor", &self.executor)]
        {
            let fits = !name.is_empty() && name.len() <= LONGEST_NAME && !name.chars().any(char::is_control);
            check(fits, pointer, format!("must be 1 to {LONGEST_NAME} bytes without control characters"));
        }
        let fits = !self.description.trim().is_empty() && self.description.len() <= LONGEST_DESCRIPTION;
        check(
            fits,
            "/description",
            format!("must say what is to be done, in at most {LONGEST_DESCRIPTION} bytes"),
        );
        let fits = (1..=LONGEST_TIMEOUT).contains(&self.timeout_seconds);
        check(fits, "/timeout_seconds", format!("must be between 1 and {LONGEST_TIMEOUT}"));
        check(
            self.priority <= HIGHEST_PRIORITY,
            "/priority",
            format!("must be between 0 and {HIGHEST_PRIORITY}"),
        );
        let bytes = serde_json::to_vec(&self.parameters).map_or(usize::MAX, |text| text.len());
        check(
            bytes <= LONGEST_PARAMETERS,
            "/parameters",
            format!("must have at most {LONGEST_PARAMETERS} bytes"),
        );
        let fits = self.resources.len() <= MOST_RESOURCES;
        check(fits, "/resources", format!("must be at most {MOST_RESOURCES}"));
        let mut names = BTreeSet::new();
        for (number, resource) in self.resources.iter().enumerate() {
            for (field, name) in [("type", &resource.resource_type), ("id", &resource.id)] {
                let fits =
                    !name.is_empty() && name.len() <= LONGEST_NAME && !name.chars().any(char::is_control);
                let detail = format!("must be 1 to {LONGEST_NAME} bytes without control characters");
                check(fits, &format!("/resources/{number}/{field}"), detail);
            }
            let no_colon = !resource.resource_type.contains(':');
            check(no_colon, &format!("/resources/{number}/type"), "must not contain a colon".to_owned());
            let fits = resource.name().len() <= LONGEST_RESOURCE;
            let detail = format!("type and id must be at most {LONGEST_RESOURCE} bytes together");
            check(fits, &format!("/resources/{number}"), detail);
            let is_new = names.insert(resource.name());
            check(is_new, &format!("/resources/{number}"), "is named twice".to_owned());
        }
        faults
    }
}
