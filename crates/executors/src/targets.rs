//! Targets: what a task can touch, derived from its parameters. The derivation needs no access to roots, databases or hosts, so that
//! every server derives the same targets, wherever the task will be applied.
//!
//! Parameters that are not in normal form are refused, never rewritten: a second spelling of a target must not escape a pattern.

use ade_domain::glob;
use ade_domain::lock::LockMode;
use ade_domain::task::{
    BindingLock, Config, PublishedBinding, PublishedBindings, Resource, ScopePart, TaskScope,
};
use ade_domain::{FieldPath, InvalidField};
use serde_json::Value;

use crate::command::fill_text;
use crate::egress::AllowedHost;
use crate::files::{changed_paths, verify_spec};
use crate::normal_form::{check_arguments, check_text, normal_url};
use crate::{Parameters, Validated};

/// Derives the scope of a task. The paths of violations are relative to its config.
pub fn derive_scope(config: &Config, bindings: &PublishedBindings) -> Validated<TaskScope> {
    let derivation = Derivation { config, bindings, label: label_of(&config.parameters) };
    let parts = match config.executor.as_str() {
        "files" => derivation.files(),
        "sql" => derivation.named("connection").map(|part| vec![part]),
        "command" => derivation.named("template").map(|part| vec![part]),
        "http" => derivation.http(),
        "agent" => derivation.check_agent_names().map(|()| vec![derivation.agent()]),
        _ => Ok(Vec::new()),
    };
    parts.map(TaskScope).map_err(|invalid| vec![invalid])
}

/// The label of the workers that a task is for, as part of a name: `@eu`, or nothing.
fn label_of(parameters: &Parameters) -> String {
    let label = parameters.get("worker").and_then(Value::as_str).filter(|label| !label.is_empty());
    label.map(|label| format!("@{label}")).unwrap_or_default()
}

struct Derivation<'a> {
    config: &'a Config,
    bindings: &'a PublishedBindings,
    label: String,
}

type Derived<T> = Result<T, InvalidField>;

const NO_ARGUMENTS: (&str, Option<&Value>) = ("arguments", None);

fn invalid(field: &str, detail: impl Into<String>) -> InvalidField {
    InvalidField::at(field, detail).within("parameters")
}

impl<'a> Derivation<'a> {
    fn text(&self, field: &str) -> &'a str {
        self.config.parameters.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    /// The binding of a name, and its full name, such as `files:handbook@eu`.
    fn binding(&self, executor: &str, name: &str, field: &str) -> Derived<(String, &'a PublishedBinding)> {
        let full_name = format!("{executor}:{name}{}", self.label);
        let Some(found) = self.bindings.get(&full_name) else {
            let prefix = format!("{executor}:");
            let known = self.bindings.keys().filter(|known| known.starts_with(&prefix));
            let known: Vec<&str> = known.map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(invalid(
                field,
                format!(
                    "{full_name} is not allowed here (allowed for {executor}: {known}); an operator can allow it in the \
                     configuration under executors.{executor}"
                ),
            ));
        };
        let task_types = &found.binding.task_types;
        let task_type = &self.config.task_type;
        if !task_types.is_empty() && !task_types.iter().any(|pattern| glob::matches(pattern, task_type)) {
            let types = task_types.join(", ");
            return Err(InvalidField::at(
                "type",
                format!("must be one of {types} for a task that uses {full_name}"),
            ));
        }
        Ok((full_name, found))
    }

    fn part(
        &self,
        (name, found): (String, &PublishedBinding),
        targets: Vec<String>,
        (at, arguments): (&str, Option<&Value>),
        default_lock: Option<LockMode>,
    ) -> Derived<ScopePart> {
        check_arguments(arguments, &found.binding.resources).map_err(|(argument, detail)| {
            InvalidField::at(FieldPath::from(at).field(argument), detail).within("parameters")
        })?;
        let bound = found.binding.resources.iter().map(|text| {
            let filled = fill_text(text, arguments);
            let parsed =
                filled.and_then(|name| Resource::parse(&name).map_err(|detail| format!("{name} {detail}")));
            parsed
                .map_err(|detail| invalid(at, format!("do not fit the resource {text} of {name}: {detail}")))
        });
        Ok(ScopePart {
            resources: bound.collect::<Derived<_>>()?,
            criticality: found.binding.criticality,
            lock: match found.binding.lock {
                BindingLock::Default => default_lock,
                BindingLock::Exclusive => Some(LockMode::Exclusive),
                BindingLock::Shared => Some(LockMode::Shared),
                BindingLock::None => None,
            },
            fingerprint: Some(found.fingerprint),
            binding: name,
            targets,
        })
    }

    fn files(&self) -> Derived<Vec<ScopePart>> {
        let binding = self.binding("files", self.text("root"), "root")?;
        let mut targets = Vec::new();
        for (index, path) in changed_paths(&self.config.parameters).enumerate() {
            check_text(path).map_err(|detail| invalid(&format!("files.{index}.path"), detail))?;
            targets.push(format!("{}/{path}", binding.0));
        }
        let mut parts = vec![self.part(binding, targets, NO_ARGUMENTS, Some(LockMode::Exclusive))?];
        // Invalid ones are reported with the other parameters.
        if let Ok(Some((template, arguments))) = verify_spec(&self.config.parameters) {
            let command = self.binding("command", template, "verify.template")?;
            let target = command.0.clone();
            parts.push(self.part(command, vec![target], ("verify.arguments", arguments), None)?);
        }
        Ok(parts)
    }

    fn named(&self, field: &str) -> Derived<ScopePart> {
        let binding = self.binding(&self.config.executor, self.text(field), field)?;
        let target = binding.0.clone();
        let arguments = self.config.parameters.get("arguments");
        self.part(binding, vec![target], ("arguments", arguments), None)
    }

    fn http(&self) -> Derived<Vec<ScopePart>> {
        let method = self.text("method");
        let mut parts: Vec<ScopePart> = Vec::new();
        for (field, method) in [("url", method), ("preview_url", "GET"), ("rollback_url", "POST")] {
            let Some(url) = self.config.parameters.get(field).and_then(Value::as_str) else { continue };
            let url = normal_url(url).map_err(|detail| invalid(field, detail))?;
            let host = url.host_str().unwrap_or_default();
            let serves = |found: &PublishedBinding| {
                let host = found.host.as_deref().and_then(|host| AllowedHost::parse(host).ok());
                host.is_some_and(|host| host.matches(&url))
            };
            let name = self.bindings.iter().find_map(|(full_name, found)| {
                let name = full_name.strip_prefix("http:")?.strip_suffix(self.label.as_str())?;
                (!name.contains('@') && serves(found)).then_some(name)
            });
            let Some(name) = name else {
                let detail = format!(
                    "calls {host}, which is not allowed here; an operator can allow it in the configuration under \
                     executors.http.hosts"
                );
                return Err(invalid(field, detail));
            };
            let binding = self.binding("http", name, field)?;
            let target = format!("{}/{method}{}", binding.0, url.path());
            match parts.iter_mut().find(|part| part.binding == binding.0) {
                Some(part) if part.targets.contains(&target) => {}
                Some(part) => part.targets.push(target),
                None => parts.push(self.part(binding, vec![target], NO_ARGUMENTS, None)?),
            }
        }
        Ok(parts)
    }

    /// An empty name would be a target in one place and no name in another.
    fn check_agent_names(&self) -> Derived<()> {
        let is_empty = |field: &&str| self.config.parameters.get(*field).is_some_and(|name| name == "");
        match ["agent", "capability"].into_iter().find(is_empty) {
            Some(field) => Err(invalid(field, "must not be empty: leave it out, or name one")),
            None => Ok(()),
        }
    }

    fn agent(&self) -> ScopePart {
        let named = self.text("agent");
        let target = if named.is_empty() {
            let capability = self.text("capability");
            let capability = if capability.is_empty() { &self.config.task_type } else { capability };
            format!("capability:{capability}")
        } else {
            format!("agent:{named}")
        };
        ScopePart {
            binding: target.clone(),
            targets: vec![target],
            resources: Vec::new(),
            criticality: None,
            lock: None,
            fingerprint: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use ade_domain::task::{Binding, Digest, RollbackStrategy};
    use serde_json::json;

    use super::*;

    fn bindings() -> PublishedBindings {
        let published = |binding: Binding, host: Option<&str>| PublishedBinding {
            binding,
            fingerprint: Digest::of_bytes(b"x"),
            host: host.map(str::to_owned),
        };
        let handbook = Binding {
            resources: vec!["docs:handbook".to_owned()],
            criticality: Some(5),
            task_types: vec!["docs".to_owned()],
            ..Binding::default()
        };
        let restart = Binding { resources: vec!["service:{service}".to_owned()], ..Binding::default() };
        [
            ("files:handbook", published(handbook.clone(), None)),
            ("files:handbook@eu", published(handbook, None)),
            ("command:restart", published(restart, None)),
            ("command:notify", published(Binding::default(), None)),
            ("sql:main", published(Binding { lock: BindingLock::Exclusive, ..Binding::default() }, None)),
            ("http:billing", published(Binding::default(), Some("api.test"))),
            ("http:billing@eu", published(Binding::default(), Some("eu.test"))),
        ]
        .map(|(name, published)| (name.to_owned(), published))
        .into()
    }

    fn config(executor: &str, parameters: &Value) -> Config {
        Config {
            task_type: "docs".to_owned(),
            version: "1".to_owned(),
            description: "x".to_owned(),
            executor: executor.to_owned(),
            parameters: parameters.as_object().cloned().unwrap_or_default(),
            resources: Vec::new(),
            rollback_strategy: RollbackStrategy::None,
            timeout_seconds: 60,
            priority: 50,
        }
    }

    fn targets(executor: &str, parameters: &Value) -> Vec<String> {
        let scope = derive_scope(&config(executor, parameters), &bindings()).expect("derived");
        scope.targets().map(str::to_owned).collect()
    }

    #[test]
    fn derives_targets_of_every_executor() {
        let file = |path: &str| json!({ "path": path, "content": "" });
        let verify = json!({ "template": "restart", "arguments": { "service": "web" } });
        let parameters =
            json!({ "root": "handbook", "files": [file("a.md"), file("b/c.md")], "verify": verify });
        assert_eq!(
            targets("files", &parameters),
            ["files:handbook/a.md", "files:handbook/b/c.md", "command:restart"]
        );
        let labelled = json!({ "root": "handbook", "worker": "eu", "files": [file("a.md")] });
        assert_eq!(targets("files", &labelled), ["files:handbook@eu/a.md"]);
        assert_eq!(targets("sql", &json!({ "connection": "main" })), ["sql:main"]);
        let call = json!({ "method": "PUT", "url": "https://api.test/v1/x?y=1", "rollback_url": "https://api.test/undo" });
        assert_eq!(targets("http", &call), ["http:billing/PUT/v1/x", "http:billing/POST/undo"]);
        let labelled = json!({ "method": "GET", "worker": "eu", "url": "https://eu.test/" });
        assert_eq!(targets("http", &labelled), ["http:billing@eu/GET/"]);
        assert_eq!(targets("agent", &json!({ "agent": "bot" })), ["agent:bot"]);
        assert_eq!(targets("agent", &json!({ "capability": "deploy" })), ["capability:deploy"]);
        assert_eq!(targets("agent", &json!({})), ["capability:docs"]);
        assert_eq!(targets("noop", &json!({})), [""; 0]);
    }

    #[test]
    fn binds_resources_and_locks() {
        let file = json!([{ "path": "a.md", "content": "" }]);
        let of_files = config("files", &json!({ "root": "handbook", "files": file }));
        let scope = derive_scope(&of_files, &bindings()).expect("derived");
        let names = |resources: Vec<Resource>| resources.iter().map(Resource::name).collect::<Vec<_>>();
        assert_eq!(names(scope.effective_resources(&of_files)), ["docs:handbook"]);
        assert_eq!(names(scope.locked_resources(&of_files)), ["docs:handbook", "files:handbook"]);
        let restart = config("command", &json!({ "template": "restart", "arguments": { "service": "Web" } }));
        let scope = derive_scope(&restart, &bindings()).expect("derived");
        assert_eq!(scope.locks(&restart, None), [("resource:service:web".to_owned(), LockMode::Exclusive)]);
        let sql = config("sql", &json!({ "connection": "main" }));
        let scope = derive_scope(&sql, &bindings()).expect("derived");
        assert_eq!(names(scope.locked_resources(&sql)), ["sql:main"]);
    }

    #[test]
    fn refuses_what_is_not_allowed_or_not_in_normal_form() {
        let file = |path: &str| json!([{ "path": path, "content": "" }]);
        for (executor, parameters, path) in [
            ("files", json!({ "root": "/srv", "files": file("a") }), "parameters.root"),
            ("files", json!({ "root": "handbook", "worker": "us", "files": file("a") }), "parameters.root"),
            ("files", json!({ "root": "handbook", "files": file("cafe\u{301}") }), "parameters.files.0.path"),
            (
                "files",
                json!({ "root": "handbook", "files": file("a"), "verify": { "template": "sh" } }),
                "parameters.verify.template",
            ),
            ("sql", json!({ "connection": "Main" }), "parameters.connection"),
            ("command", json!({ "template": "restart", "arguments": {} }), "parameters.arguments"),
            (
                "command",
                json!({ "template": "restart", "arguments": { "service": "" } }),
                "parameters.arguments.service",
            ),
            ("http", json!({ "method": "GET", "url": "https://other.test/" }), "parameters.url"),
            ("http", json!({ "method": "GET", "url": "https://API.test/" }), "parameters.url"),
            ("http", json!({ "method": "GET", "url": "https://api.test/a/../b" }), "parameters.url"),
            ("http", json!({ "method": "GET", "url": "https://api.test/a/%2e%2e/b" }), "parameters.url"),
            ("http", json!({ "method": "GET", "url": "https://api.test/%61" }), "parameters.url"),
            ("http", json!({ "method": "GET", "url": "https://api.test/%2f" }), "parameters.url"),
            ("http", json!({ "method": "GET", "url": "https://api.test/v1/..%2Fadmin" }), "parameters.url"),
            ("http", json!({ "method": "GET", "url": "https://api.test/v1/..%5Cadmin" }), "parameters.url"),
            ("http", json!({ "method": "GET", "url": "https://api.test/v1/..;/admin" }), "parameters.url"),
            ("http", json!({ "method": "GET", "url": "https://api.test//admin" }), "parameters.url"),
            ("http", json!({ "method": "GET", "url": "https://api.test/cafe%CC%81" }), "parameters.url"),
            ("http", json!({ "method": "GET", "url": "https://api.test/a%E2%80%8B" }), "parameters.url"),
            ("http", json!({ "method": "GET", "url": "https://api.test/a%0A" }), "parameters.url"),
            ("http", json!({ "method": "GET", "url": "https://api.test/%FF" }), "parameters.url"),
            ("agent", json!({ "agent": "" }), "parameters.agent"),
            ("agent", json!({ "capability": "" }), "parameters.capability"),
        ] {
            let errors = derive_scope(&config(executor, &parameters), &bindings()).expect_err("refused");
            let paths: Vec<String> = errors.iter().map(|error| error.path.to_string()).collect();
            assert_eq!(paths, [path], "{parameters}");
        }
        let mut wrong_type = config("files", &json!({ "root": "handbook", "files": file("a") }));
        wrong_type.task_type = "config".to_owned();
        let errors = derive_scope(&wrong_type, &bindings()).expect_err("refused");
        assert_eq!(errors[0].path.to_string(), "type");
    }

    #[test]
    fn refuses_arguments_that_are_not_in_normal_form() {
        let refusal = |value: &str, template: &str| {
            let parameters = json!({ "template": template, "arguments": { "service": value } });
            let errors = derive_scope(&config("command", &parameters), &bindings()).err()?;
            Some(errors.first().map(|error| error.path.to_string()).unwrap_or_default())
        };
        for value in [
            "docs/../prod",
            "..",
            "./web",
            "docs/.",
            "docs\\..\\prod",
            "docs/%2E%2e/prod",
            "docs%2f..%2fprod",
            "cafe\u{301}",
            "web\u{200b}",
            "\u{202e}web",
            "we\nb",
            " web",
            "web ",
            "web\u{a0}",
        ] {
            for template in ["restart", "notify"] {
                let path = refusal(value, template);
                assert_eq!(path.as_deref(), Some("parameters.arguments.service"), "{template} {value:?}");
            }
        }
        // A name of a resource has one spelling; other arguments may be anything that is shown.
        for value in ["/web", "web/", "a//b", "a\\\\b"] {
            assert!(refusal(value, "restart").is_some(), "{value:?}");
        }
        for value in ["", "/srv/x", "https://docs.test/a//b/", "50% of a..b", "two words"] {
            assert_eq!(refusal(value, "notify"), None, "{value:?}");
        }
        for value in ["web", "docs/caf\u{e9} 2.md", "a..b", "...", "50%"] {
            assert_eq!(refusal(value, "restart"), None, "{value:?}");
        }
        let verify = json!({ "template": "restart", "arguments": { "service": "docs/../prod" } });
        let file = json!([{ "path": "a.md", "content": "" }]);
        let parameters = json!({ "root": "handbook", "files": file, "verify": verify });
        let errors = derive_scope(&config("files", &parameters), &bindings()).expect_err("refused");
        assert_eq!(errors[0].path.to_string(), "parameters.verify.arguments.service");
    }
}
