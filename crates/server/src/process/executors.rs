//! The executors that the configuration allows.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use ade_config::{Config, ExecutorSettings, SqlPreview, UnusableRoot};
use ade_domain::Keys;
use ade_domain::task::PublishedBindings;
use ade_executors::egress::EgressPolicy;
use ade_executors::watchdog::WatchdogProgram;
use ade_executors::{
    CommandExecutor, CommandLimits, CommandTemplate, Executor, Executors, FilesExecutor, HttpExecutor,
    KeyedHash, NoopExecutor, PreviewMode, Secrets, SqlExecutor, Visibility,
};

use super::bindings;
use super::error::StartError;

/// Less is not enough to start a program.
const MIN_PREVIEW_MEMORY_MB: u32 = 64;

#[derive(Debug, Clone)]
pub(super) struct AllowedExecutors {
    pub(super) executors: Executors,
    /// What they work on, and what follows for tasks that use it.
    pub(super) bindings: PublishedBindings,
    /// Redacted in all output of tasks.
    pub(super) secrets: Secrets,
}

impl AllowedExecutors {
    /// With a worker label, the executors serve the work queues of that label only: under a label, a name may stand for something
    /// else.
    pub(super) fn from_config(config: &Config, keys: &Keys) -> Result<Self, StartError> {
        let settings = &config.executors;
        let mut executors = Executors::default();
        let mut secrets = settings.command_secrets.0.clone();
        let commands = add_commands(settings, &mut executors)?;
        add_files(settings, &commands, keys, &mut executors)?;
        for (name, connection) in &settings.sql.connections {
            let (url, preview_url) = (&connection.url, connection.preview_url.as_deref());
            let sql = SqlExecutor::new(name.as_str(), url, preview_url, keys.clone());
            let sql = sql.and_then(|sql| match connection.preview {
                Some(SqlPreview::Explain) => sql.with_preview_mode(PreviewMode::Explain),
                Some(SqlPreview::Execute) => sql.with_preview_mode(PreviewMode::Execute),
                None => Ok(sql),
            });
            let sql = sql.map_err(|fault| invalid(format!("sql.connections.{name}.{fault}")))?;
            secrets.extend(sql.secrets());
            executors.insert(sql.work_queue(), Arc::new(sql));
        }
        if !settings.http.hosts.is_empty() {
            let hosts: Vec<String> = settings.http.hosts.values().map(|entry| entry.host.clone()).collect();
            let http_secrets = settings.http.secrets.iter();
            let http_secrets = http_secrets
                .map(|(name, secret)| (name.as_str(), secret.host.as_str(), secret.value.as_str()));
            let http = EgressPolicy::new(&hosts).and_then(|guard| HttpExecutor::new(guard, http_secrets));
            let http = http.map_err(|fault| invalid(format!("http.{fault}")))?;
            secrets.extend(http.secrets());
            executors.insert(HttpExecutor::WORK_QUEUE, Arc::new(http));
        }
        if let Some(label) = &config.worker_label {
            executors = executors.with_label(label);
        }
        executors.insert("noop", Arc::new(NoopExecutor));
        let secrets = Secrets::new(secrets);
        let bindings = bindings::published(settings, config.worker_label.as_deref(), &secrets)?;
        Ok(Self { executors, bindings, secrets })
    }
}

pub(super) fn invalid(message: String) -> StartError {
    StartError::Executors(message)
}

fn add_commands(
    settings: &ExecutorSettings,
    executors: &mut Executors,
) -> Result<BTreeMap<String, Arc<CommandExecutor>>, StartError> {
    let mut commands = BTreeMap::new();
    for (name, template) in &settings.command.templates {
        let mut limits = CommandLimits::default();
        if let Some(mebibytes) = template.preview_memory_mb {
            if mebibytes < MIN_PREVIEW_MEMORY_MB {
                let field = format!("command.templates.{name}.preview_memory_mb");
                return Err(invalid(format!("{field}: must be at least {MIN_PREVIEW_MEMORY_MB}")));
            }
            limits.preview_limits.memory_bytes = u64::from(mebibytes) * 1_048_576;
        }
        let template = CommandTemplate {
            argv: template.argv.clone(),
            preview_argv: template.preview_argv.clone(),
            rollback_argv: template.rollback_argv.clone(),
        };
        let command = CommandExecutor::new(name.as_str(), &template, limits, WatchdogProgram::current_exe());
        let command = Arc::new(command.map_err(|error| invalid(error.to_string()))?);
        executors.insert(command.work_queue(), Arc::clone(&command) as Arc<dyn Executor>);
        commands.insert(name.clone(), command);
    }
    Ok(commands)
}

fn add_files(
    settings: &ExecutorSettings,
    commands: &BTreeMap<String, Arc<CommandExecutor>>,
    keys: &Keys,
    executors: &mut Executors,
) -> Result<(), StartError> {
    let mut roots = Vec::new();
    for (name, root) in &settings.files.roots {
        let path = std::path::absolute(&root.path);
        let path = path.map_err(|error| invalid(format!("files.roots.{name}.path: {error}")))?;
        let visibility = Visibility { show: root.show.clone(), show_reviewers: root.show_reviewers.clone() };
        roots.push((name, path, visibility));
    }
    let paths: Vec<PathBuf> = roots.iter().map(|(_, path, _)| path.clone()).collect();
    reject_nested_roots(&paths)?;
    for UnusableRoot { name, path, problem } in settings.files.unusable_roots() {
        tracing::warn!(
            "file root {name}: {} {problem}; its tasks fail until this is fixed: create the folder, or change its path in executors.files.roots",
            path.display()
        );
    }
    for (name, path, visibility) in roots {
        let keys = keys.clone();
        let keyed_hash = KeyedHash::new(move |content| keys.hidden_content(content));
        let files = FilesExecutor::new(name.as_str(), path.to_string_lossy(), commands.clone(), keyed_hash);
        let files = files.map_err(|error| invalid(error.to_string()))?.with_visibility(visibility);
        executors.insert(files.work_queue(), Arc::new(files));
    }
    Ok(())
}

/// Each root has its own fencing. With nested roots, two tasks could change the same file at the same time.
fn reject_nested_roots(roots: &[PathBuf]) -> Result<(), StartError> {
    let roots: Vec<(usize, &PathBuf)> = roots.iter().enumerate().collect();
    let mut pairs = roots.iter().flat_map(|inner| roots.iter().map(move |outer| (inner, outer)));
    let nested = pairs.find(|((at, inner), (other, outer))| at != other && inner.starts_with(outer));
    match nested {
        None => Ok(()),
        Some(((_, inner), (_, outer))) => Err(invalid(format!(
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
        for names in [&["/srv/app", "/srv/apple"][..], &[]] {
            assert!(reject_nested_roots(&roots(names)).is_ok(), "{names:?}");
        }
        for names in [["/srv/app", "/srv"], ["/srv", "/srv/app/deep"], ["/srv", "/srv"]] {
            let error = reject_nested_roots(&roots(&names)).expect_err("nested").to_string();
            assert!(error.contains("within /srv; list only one"), "{error}");
        }
    }
}
