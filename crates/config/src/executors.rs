//! The section `[executors]` of the configuration file: what workers may do. Everything that is not listed is forbidden.
//!
//! Only the file can set it, no variable and no flag, so that the permissions can be reviewed in one place. A string
//! `env:NAME` is replaced with the value of that variable, to keep passwords out of the file.

use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::{Table, Value};

#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExecutorSettings {
    pub files: FilesSettings,
    pub command: CommandSettings,
    pub http: HttpSettings,
    pub sql: SqlSettings,
    /// Values that command templates take from variables. They must not appear in any output.
    #[serde(skip)]
    pub command_secrets: RedactedStrings,
}

/// Without secrets. The types of the sections have no Debug.
impl fmt::Debug for ExecutorSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(summary(self)).finish()
    }
}

/// Strings that Debug does not print.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RedactedStrings(pub Vec<String>);

impl fmt::Debug for RedactedStrings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} redacted", self.0.len())
    }
}

#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FilesSettings {
    /// Folders whose files may be changed, at any depth.
    pub roots: Vec<PathBuf>,
}

impl FilesSettings {
    /// The roots that cannot be used at the moment, each with the problem. They do not prevent a start, because they may
    /// become usable later.
    #[must_use]
    pub fn unusable_roots(&self) -> Vec<(&Path, String)> {
        let problem = |root: &Path| match std::fs::symlink_metadata(root) {
            Ok(found) if found.is_symlink() => Some("is a symbolic link".to_owned()),
            Ok(found) if !found.is_dir() => Some("is not a folder".to_owned()),
            Ok(_) => None,
            Err(error) if error.kind() == ErrorKind::NotFound => Some("does not exist".to_owned()),
            Err(error) => Some(format!("cannot be accessed ({error})")),
        };
        self.roots.iter().filter_map(|root| Some((root.as_path(), problem(root)?))).collect()
    }
}

#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CommandSettings {
    /// By the name that tasks use to run a command, or to verify changed files with it.
    pub templates: BTreeMap<String, CommandTemplate>,
}

/// A command. `{name}` is replaced with the argument of the task.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandTemplate {
    pub argv: Vec<String>,
    #[serde(default)]
    pub preview_argv: Option<Vec<String>>,
    #[serde(default)]
    pub rollback_argv: Option<Vec<String>>,
}

#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpSettings {
    /// Hosts that may be called, each with its port unless that is the default of the scheme.
    pub hosts: Vec<String>,
    /// By the name that the headers of tasks refer to.
    pub secrets: BTreeMap<String, HttpSecret>,
}

/// A secret that is sent to one host only.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpSecret {
    pub host: String,
    pub value: String,
}

#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SqlSettings {
    /// By the name that tasks use.
    pub connections: BTreeMap<String, SqlConnection>,
}

#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SqlConnection {
    pub url: String,
    /// For previews, as a database user with fewer permissions.
    #[serde(default)]
    pub preview_url: Option<String>,
}

pub(super) fn parse(mut table: Table, variables: &[(String, String)]) -> Result<ExecutorSettings, String> {
    let mut command_secrets = Vec::new();
    for (section, value) in &mut table {
        let mut resolved = Vec::new();
        resolve_variables(value, variables, &mut resolved)?;
        if section == "command" {
            command_secrets = resolved;
        }
    }
    let settings: Result<ExecutorSettings, toml::de::Error> = Value::Table(table).try_into();
    let settings = settings.map_err(|error| error.message().replace('\n', " "))?;
    Ok(ExecutorSettings { command_secrets: RedactedStrings(command_secrets), ..settings })
}

/// Replaces each `env:NAME` and collects the values.
fn resolve_variables(
    value: &mut Value,
    variables: &[(String, String)],
    resolved: &mut Vec<String>,
) -> Result<(), String> {
    let mut resolve = |item: &mut Value| resolve_variables(item, variables, resolved);
    match value {
        Value::Array(items) => items.iter_mut().try_for_each(resolve),
        Value::Table(items) => items.iter_mut().try_for_each(|(_, item)| resolve(item)),
        Value::String(text) => {
            let Some(name) = text.strip_prefix("env:") else { return Ok(()) };
            let variable = variables.iter().find(|(known, _)| known == name);
            let (_, value) = variable.ok_or_else(|| format!("the environment variable {name} is not set"))?;
            text.clone_from(value);
            resolved.push(value.clone());
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The names that are listed in each section, without secrets.
pub(super) fn summary(settings: &ExecutorSettings) -> [(&'static str, Vec<String>); 4] {
    let roots = settings.files.roots.iter().map(|root| root.display().to_string()).collect();
    [
        ("executors.files.roots", roots),
        ("executors.command.templates", settings.command.templates.keys().cloned().collect()),
        ("executors.http.hosts", settings.http.hosts.clone()),
        ("executors.sql.connections", settings.sql.connections.keys().cloned().collect()),
    ]
}
