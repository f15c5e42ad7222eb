//! The section `[executors]` of the configuration file: what workers may do. Everything that is not listed is forbidden.
//!
//! Only the file can set it, no variable and no flag, so that the permissions can be reviewed in one place. A string
//! `env:NAME` is replaced with the value of that variable, to keep passwords out of the file.

use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use ade_domain::task::Binding;
use serde::Deserialize;
use toml::{Table, Value};

const MAX_NAME_LEN: usize = 64;

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
    /// By the name that tasks use.
    pub roots: BTreeMap<String, FilesRoot>,
}

/// A folder whose files may be changed, at any depth.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilesRoot {
    pub path: PathBuf,
    /// Patterns of existing files that previews show to authors and agents. By default all but dotfiles and files that only their
    /// owner can read.
    #[serde(default)]
    pub show: Option<Vec<String>>,
    /// Patterns of existing files that previews show to reviewers; by default all.
    #[serde(default)]
    pub show_reviewers: Option<Vec<String>>,
    #[serde(default)]
    pub binding: Binding,
}

/// A root that cannot be used at the moment, and why.
#[derive(Debug, Clone)]
pub struct UnusableRoot<'a> {
    pub name: &'a str,
    pub path: &'a Path,
    /// Follows the path: "does not exist".
    pub problem: String,
}

impl FilesSettings {
    /// They do not prevent a start, because they may
    /// become usable later.
    #[must_use]
    pub fn unusable_roots(&self) -> Vec<UnusableRoot<'_>> {
        let problem = |root: &Path| match std::fs::symlink_metadata(root) {
            Ok(found) if found.is_symlink() => Some("is a symbolic link".to_owned()),
            Ok(found) if !found.is_dir() => Some("is not a folder".to_owned()),
            Ok(_) => None,
            Err(error) if error.kind() == ErrorKind::NotFound => Some("does not exist".to_owned()),
            Err(error) => Some(format!("cannot be accessed ({error})")),
        };
        let unusable = self.roots.iter().filter_map(|(name, root)| {
            Some(UnusableRoot { name, path: &root.path, problem: problem(&root.path)? })
        });
        unusable.collect()
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
    /// Address space of a preview in MiB; by default 2,048.
    #[serde(default)]
    pub preview_memory_mb: Option<u32>,
    #[serde(default)]
    pub rollback_argv: Option<Vec<String>>,
    #[serde(default)]
    pub binding: Binding,
}

#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpSettings {
    /// By the name that targets use.
    pub hosts: BTreeMap<String, HttpHost>,
    /// By the name that the headers of tasks refer to.
    pub secrets: BTreeMap<String, HttpSecret>,
}

/// A host that may be called.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpHost {
    /// With its port unless that is the default of the scheme.
    pub host: String,
    #[serde(default)]
    pub binding: Binding,
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
    /// By default PostgreSQL explains statements, and SQLite executes them.
    #[serde(default)]
    pub preview: Option<SqlPreview>,
    #[serde(default)]
    pub binding: Binding,
}

/// How statements are previewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SqlPreview {
    /// They are planned, and not executed.
    Explain,
    /// They are executed in a transaction that is rolled back.
    Execute,
}

/// Where each section lists what tasks may use.
const NAMED_SECTIONS: [(&str, &str); 4] =
    [("files", "roots"), ("command", "templates"), ("http", "hosts"), ("sql", "connections")];
/// The settings that every entry of these sections may have.
const BINDING_SETTINGS: [&str; 5] = ["resources", "criticality", "task_types", "authors", "lock"];

/// Checks the names of the entries, and moves the settings of each binding into a table of its own.
fn separate_bindings(executors: &mut Table) -> Result<(), String> {
    for (section, list) in NAMED_SECTIONS {
        let entries = executors.get_mut(section).and_then(|section| section.get_mut(list));
        for (name, entry) in entries.and_then(Value::as_table_mut).into_iter().flatten() {
            let at = format!("{section}.{list}.{name}");
            let is_name_char = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            if name.is_empty() || name.len() > MAX_NAME_LEN || !name.chars().all(is_name_char) {
                return Err(format!("{at}: a name has 1 to {MAX_NAME_LEN} letters, digits, '.', '_' or '-'"));
            }
            let Some(entry) = entry.as_table_mut() else { continue };
            if entry.contains_key("binding") {
                return Err(format!(
                    "{at}.binding is unknown; write resources, criticality and the others directly"
                ));
            }
            let moved = BINDING_SETTINGS.iter().filter_map(|name| entry.remove_entry(*name));
            let binding: Table = moved.collect();
            entry.insert("binding".to_owned(), Value::Table(binding));
        }
    }
    Ok(())
}

pub(super) fn parse(mut table: Table, variables: &[(String, String)]) -> Result<ExecutorSettings, String> {
    separate_bindings(&mut table)?;
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
    [
        ("executors.files.roots", settings.files.roots.keys().cloned().collect()),
        ("executors.command.templates", settings.command.templates.keys().cloned().collect()),
        ("executors.http.hosts", settings.http.hosts.keys().cloned().collect()),
        ("executors.sql.connections", settings.sql.connections.keys().cloned().collect()),
    ]
}
