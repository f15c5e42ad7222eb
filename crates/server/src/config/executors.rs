//! What an operator allows workers to do: `[executors.…]` of the configuration file. Nothing is allowed that is not listed here.
//!
//! Only the file says this, no variable and no flag: it is a list of permissions, to be read and reviewed as one. A text that
//! begins with `env:` is taken from the variable that it names, so that passwords need not stand in the file.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::Deserialize;
use toml::{Table, Value};

/// Everything that is allowed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExecutorSettings {
    /// Folders in which files may be changed.
    pub files: FilesPart,
    /// Commands that may be run.
    pub command: CommandPart,
    /// Hosts that may be called.
    pub http: HttpPart,
    /// Databases that may be changed.
    pub sql: SqlPart,
    /// What commands are given that was taken from variables: it must never be seen.
    #[serde(skip)]
    pub given: Hidden,
}

/// Texts that are never shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Hidden(pub Vec<String>);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} hidden", self.0.len())
    }
}

/// Folders in which files may be changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FilesPart {
    /// Each with everything below it.
    pub roots: Vec<PathBuf>,
}

/// Commands that may be run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CommandPart {
    /// By the names that tasks use: to run them, or to verify what they changed in files.
    pub templates: BTreeMap<String, Template>,
}

/// A command, in which `{name}` stands for an argument of the task.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Template {
    /// What is run.
    pub argv: Vec<String>,
    /// What tells what it would change.
    #[serde(default)]
    pub preview_argv: Option<Vec<String>>,
    /// What undoes it.
    #[serde(default)]
    pub rollback_argv: Option<Vec<String>>,
}

/// Hosts that may be called.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpPart {
    /// Each with its port, if it is not the usual one.
    pub hosts: Vec<String>,
    /// Texts that headers may refer to, by name.
    pub secrets: BTreeMap<String, HttpSecret>,
}

/// A text that is sent to one host only.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpSecret {
    /// To which.
    pub host: String,
    /// What.
    pub value: String,
}

/// Databases that may be changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SqlPart {
    /// By the names that tasks use.
    pub connections: BTreeMap<String, Connection>,
}

/// A database.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connection {
    /// Where statements are applied, as whom.
    pub url: String,
    /// The same as somebody who may do less, for previews.
    #[serde(default)]
    pub preview_url: Option<String>,
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Template").finish_non_exhaustive()
    }
}

impl fmt::Debug for HttpSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpSecret").field("host", &self.host).finish_non_exhaustive()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

/// As the commented file shows it.
pub(super) const EXAMPLE: &str = "
# What workers may do; nothing unless it is listed. \"env:NAME\" takes a text from a variable.
# [executors.files]
# roots = [\"/srv/app\"]
# [executors.command.templates.restart]
# argv = [\"systemctl\", \"restart\", \"{service}\"]
# preview_argv = [\"systemctl\", \"status\", \"{service}\"]
# [executors.http]
# hosts = [\"api.example.com\"]
# [executors.http.secrets.deploy]
# host = \"api.example.com\"
# value = \"env:DEPLOY_TOKEN\"
# [executors.sql.connections.main]
# url = \"env:MAIN_DATABASE\"
# preview_url = \"env:MAIN_DATABASE_READER\"
";

/// Reads the part of the file.
pub(super) fn read(table: Table, variables: &[(String, String)]) -> Result<ExecutorSettings, String> {
    let (mut table, mut given) = (table, Vec::new());
    for (part, value) in &mut table {
        let mut taken = Vec::new();
        fill(value, variables, &mut taken)?;
        if part == "command" {
            given = taken;
        }
    }
    let read: Result<ExecutorSettings, toml::de::Error> = Value::Table(table).try_into();
    let read = read.map_err(|error| error.message().replace('\n', " "))?;
    Ok(ExecutorSettings { given: Hidden(given), ..read })
}

/// Puts the texts of variables where they are named, and says which.
fn fill(value: &mut Value, variables: &[(String, String)], taken: &mut Vec<String>) -> Result<(), String> {
    match value {
        Value::String(text) => {
            if let Some(name) = text.strip_prefix("env:") {
                let found = variables.iter().find(|(known, _)| known == name);
                let (_, found) = found.ok_or_else(|| format!("the variable {name} is not set"))?;
                text.clone_from(found);
                taken.push(found.clone());
            }
            Ok(())
        }
        Value::Array(items) => items.iter_mut().try_for_each(|item| fill(item, variables, taken)),
        Value::Table(items) => items.iter_mut().try_for_each(|(_, item)| fill(item, variables, taken)),
        _ => Ok(()),
    }
}

/// What is allowed, in a line each, without secrets.
pub(super) fn shown(settings: &ExecutorSettings) -> Vec<(String, String)> {
    let list = |names: Vec<String>| Value::from(names).to_string();
    let roots = settings.files.roots.iter().map(|root| root.display().to_string()).collect();
    vec![
        ("executors.files.roots".to_owned(), list(roots)),
        (
            "executors.command.templates".to_owned(),
            list(settings.command.templates.keys().cloned().collect()),
        ),
        ("executors.http.hosts".to_owned(), list(settings.http.hosts.clone())),
        ("executors.sql.connections".to_owned(), list(settings.sql.connections.keys().cloned().collect())),
    ]
}
