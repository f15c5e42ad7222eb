//! The executors that the configuration allows.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use ade_config::{Config, ExecutorSettings};
use ade_executors::egress::EgressPolicy;
use ade_executors::watchdog::WatchdogProgram;
use ade_executors::{
    CommandExecutor, CommandLimits, CommandTemplate, Executor, Executors, FilesExecutor, HttpExecutor,
    NoopExecutor, Secrets, SqlExecutor,
};

use super::error::StartError;

#[derive(Debug, Clone)]
pub(super) struct AllowedExecutors {
    pub(super) executors: Executors,
    /// Redacted in all output of tasks.
    pub(super) secrets: Secrets,
}

impl AllowedExecutors {
    /// With a worker label, each executor is registered twice: for its own work queue, and for the labelled one.
    pub(super) fn from_config(config: &Config) -> Result<Self, StartError> {
        let settings = &config.executors;
        let mut executors = Executors::default();
        let mut secrets = settings.command_secrets.0.clone();
        executors.insert("noop", Arc::new(NoopExecutor));
        let commands = add_commands(settings, &mut executors)?;
        add_files(settings, &commands, &mut executors)?;
        for (name, connection) in &settings.sql.connections {
            let sql = SqlExecutor::new(name.as_str(), &connection.url, connection.preview_url.as_deref());
            let sql = sql.map_err(|fault| invalid(format!("sql.connections.{name}.{fault}")))?;
            secrets.extend(sql.secrets());
            executors.insert(sql.work_queue(), Arc::new(sql));
        }
        if !settings.http.hosts.is_empty() {
            let http_secrets = settings.http.secrets.iter();
            let http_secrets = http_secrets
                .map(|(name, secret)| (name.as_str(), secret.host.as_str(), secret.value.as_str()));
            let http = EgressPolicy::new(&settings.http.hosts)
                .and_then(|guard| HttpExecutor::new(guard, http_secrets));
            let http = http.map_err(|fault| invalid(format!("http.{fault}")))?;
            secrets.extend(http.secrets());
            executors.insert(HttpExecutor::WORK_QUEUE, Arc::new(http));
        }
        if let Some(label) = &config.worker_label {
            let work_queues: Vec<String> = executors.work_queues().map(str::to_owned).collect();
            for work_queue in work_queues {
                if let Some(executor) = executors.get(&work_queue).cloned() {
                    executors.insert(format!("{label}/{work_queue}"), executor);
                }
            }
        }
        Ok(Self { executors, secrets: Secrets::new(secrets) })
    }
}

fn invalid(message: String) -> StartError {
    StartError::Executors(message)
}

fn add_commands(
    settings: &ExecutorSettings,
    executors: &mut Executors,
) -> Result<BTreeMap<String, Arc<CommandExecutor>>, StartError> {
    let mut commands = BTreeMap::new();
    for (name, template) in &settings.command.templates {
        let template = CommandTemplate {
            argv: template.argv.clone(),
            preview_argv: template.preview_argv.clone(),
            rollback_argv: template.rollback_argv.clone(),
        };
        let command = CommandExecutor::new(
            name.as_str(),
            &template,
            CommandLimits::default(),
            WatchdogProgram::current_exe(),
        );
        let command = Arc::new(command.map_err(|error| invalid(error.to_string()))?);
        executors.insert(command.work_queue(), Arc::clone(&command) as Arc<dyn Executor>);
        commands.insert(name.clone(), command);
    }
    Ok(commands)
}

fn add_files(
    settings: &ExecutorSettings,
    commands: &BTreeMap<String, Arc<CommandExecutor>>,
    executors: &mut Executors,
) -> Result<(), StartError> {
    reject_nested_roots(&settings.files.roots)?;
    for (root, problem) in settings.files.unusable_roots() {
        tracing::warn!(
            "file root {} {problem}; its tasks fail until this is fixed: create the folder, or change executors.files.roots",
            root.display()
        );
    }
    for root in &settings.files.roots {
        let files = FilesExecutor::new(root.to_string_lossy(), commands.clone());
        let files = files.map_err(|error| invalid(error.to_string()))?;
        executors.insert(files.work_queue(), Arc::new(files));
    }
    Ok(())
}

/// Each root has its own fencing. With nested roots, two tasks could change the same file at the same time.
fn reject_nested_roots(roots: &[PathBuf]) -> Result<(), StartError> {
    let is_nested = |inner: &PathBuf, outer: &PathBuf| inner != outer && inner.starts_with(outer);
    let mut pairs = roots.iter().flat_map(|inner| roots.iter().map(move |outer| (inner, outer)));
    match pairs.find(|(inner, outer)| is_nested(inner, outer)) {
        None => Ok(()),
        Some((inner, outer)) => Err(invalid(format!(
            "files.roots: {} is within {}; list only one of them",
            inner.display(),
            outer.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_nested_file_roots() {
        let roots = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        for names in [&["/srv/app", "/srv/apple"][..], &["/srv/app", "/srv/app"], &[]] {
            assert!(reject_nested_roots(&roots(names)).is_ok(), "{names:?}");
        }
        for names in [["/srv/app", "/srv"], ["/srv", "/srv/app/deep"]] {
            let error = reject_nested_roots(&roots(&names)).expect_err("nested").to_string();
            assert!(error.contains("within /srv; list only one"), "{error}");
        }
    }
}
