//! What the configuration binds to each root, connection, template and host, as this process publishes it.

use std::path::Path;

use ade_config::ExecutorSettings;
use ade_domain::glob::check_pattern;
use ade_domain::task::{Binding, Digest, PublishedBinding, PublishedBindings, Resource};
use ade_executors::Secrets;
use url::Url;

use super::error::StartError;
use super::executors::invalid;

/// The bindings under a worker label, by full name. Fingerprints identify what a name stands for, without passwords.
pub(super) fn published(
    settings: &ExecutorSettings,
    label: Option<&str>,
    secrets: &Secrets,
) -> Result<PublishedBindings, StartError> {
    let suffix = label.map(|label| format!("@{label}")).unwrap_or_default();
    let mut bindings = PublishedBindings::new();
    let mut add =
        |section: &str, executor: &str, name: &str, binding: &Binding, identity: Vec<String>, host| {
            check(section, name, binding)?;
            let fingerprint = Digest::of(&identity)
                .ok_or_else(|| invalid(format!("{section}.{name}: cannot be identified")))?;
            let published = PublishedBinding { binding: binding.clone(), fingerprint, host };
            bindings.insert(format!("{executor}:{name}{suffix}"), published);
            Ok::<(), StartError>(())
        };
    for (name, root) in &settings.files.roots {
        for (setting, patterns) in [("show", &root.show), ("show_reviewers", &root.show_reviewers)] {
            check_patterns(
                &format!("files.roots.{name}.{setting}"),
                patterns.as_deref().unwrap_or_default(),
            )?;
        }
        add("files.roots", "files", name, &root.binding, vec![absolute(&root.path)], None)?;
    }
    for (name, template) in &settings.command.templates {
        let argvs = [Some(&template.argv), template.preview_argv.as_ref(), template.rollback_argv.as_ref()];
        let words = argvs
            .map(|argv| argv.map(|argv| argv.iter().map(|word| secrets.redact(word)).collect::<Vec<_>>()));
        let identity = words.iter().map(|argv| format!("{argv:?}")).collect();
        add("command.templates", "command", name, &template.binding, identity, None)?;
    }
    for (name, host) in &settings.http.hosts {
        add("http.hosts", "http", name, &host.binding, vec![host.host.clone()], Some(host.host.clone()))?;
    }
    for (name, connection) in &settings.sql.connections {
        let urls = [Some(connection.url.as_str()), connection.preview_url.as_deref()];
        let identity = urls.into_iter().flatten().map(without_password).collect();
        add("sql.connections", "sql", name, &connection.binding, identity, None)?;
    }
    Ok(bindings)
}

fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).to_string_lossy().into_owned()
}

fn without_password(url: &str) -> String {
    let Ok(mut parsed) = Url::parse(url) else { return String::new() };
    // Fails only for URLs that cannot have one.
    let _ = parsed.set_password(None);
    let query: Vec<(String, String)> = parsed
        .query_pairs()
        .filter(|(name, _)| name != "password")
        .map(|(name, value)| (name.into_owned(), value.into_owned()))
        .collect();
    parsed.set_query(None);
    format!("{parsed} {query:?}")
}

fn check_patterns(setting: &str, patterns: &[String]) -> Result<(), StartError> {
    let checked = patterns.iter().try_for_each(|pattern| check_pattern(pattern));
    checked.map_err(|detail| invalid(format!("{setting}: each pattern {detail}")))
}

fn check(section: &str, name: &str, binding: &Binding) -> Result<(), StartError> {
    if binding.criticality.is_some_and(|criticality| criticality > 100) {
        return Err(invalid(format!("{section}.{name}.criticality: must be between 0 and 100")));
    }
    check_patterns(&format!("{section}.{name}.task_types"), &binding.task_types)?;
    for resource in &binding.resources {
        // Arguments are checked when a task fills them in.
        if resource.contains('{') && section == "command.templates" {
            continue;
        }
        Resource::parse(resource)
            .map_err(|detail| invalid(format!("{section}.{name}.resources: {resource} {detail}")))?;
    }
    Ok(())
}
