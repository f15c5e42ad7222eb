//! The parameters of a task for files. No path is accepted here that could leave the root by its name.

use std::collections::BTreeSet;

use ade_domain::InvalidField;
use serde_json::Value;

use crate::parameters::Violations;
use crate::{Parameters, Result, Validated};

const MAX_FILES: usize = 500;
/// Limits of common file systems.
const MAX_PATH_BYTES: usize = 1_024;
const MAX_NAME_BYTES: usize = 255;
/// The directory of the root that contains the registered attempts.
pub(super) const ATTEMPTS_DIR: &str = ".ade";
/// The prefix of temporary files.
pub(super) const TEMP_PREFIX: &str = ".ade-";

/// The requested state of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileSpec {
    /// Relative to the root, with `/` between names.
    pub(super) path: String,
    /// None if the file is to be deleted.
    pub(super) content: Option<String>,
    /// None keeps the present permissions.
    pub(super) mode: Option<u32>,
}

/// The name of the command template that verifies the changes, and its arguments, if `verify` is given. Whether the template exists
/// and accepts the arguments is checked by the caller.
pub(crate) fn verify_spec(parameters: &Parameters) -> Validated<Option<(&str, Option<&Value>)>> {
    let Some(verify) = parameters.get("verify") else { return Ok(None) };
    let Some(verify) = verify.as_object() else {
        return Err(vec![InvalidField::at("verify", "must be an object with template and arguments")]);
    };
    let mut violations = Violations::default();
    violations.report_unknown(verify, &["template", "arguments"], "verify");
    let template = verify.get("template").and_then(Value::as_str).unwrap_or_default();
    if template.is_empty() {
        violations.report("verify.template", "must be the name of a command template");
    }
    violations.finish(Some((template, verify.get("arguments"))))
}

/// The paths that a task changes, as far as its parameters are well-formed.
pub(crate) fn changed_paths(parameters: &Parameters) -> impl Iterator<Item = &str> {
    let files = parameters.get("files").and_then(Value::as_array).into_iter().flatten();
    files.filter_map(|file| file.get("path").and_then(Value::as_str))
}

pub(super) fn parse(root: &str, parameters: &Parameters) -> Validated<Vec<FileSpec>> {
    let mut violations = Violations::of_fields(parameters, &["root", "files", "verify", "worker"]);
    if parameters.get("root").and_then(Value::as_str) != Some(root) {
        violations.report("root", format!("must be {root:?}"));
    }
    let mut specs = Vec::new();
    match parameters.get("files").and_then(Value::as_array) {
        Some(files) if (1..=MAX_FILES).contains(&files.len()) => {
            for (index, file) in files.iter().enumerate() {
                let spec = violations.absorb(parse_file(file, &format!("files.{index}")));
                specs.extend(spec.map(|spec| (index, spec)));
            }
        }
        _ => violations.report("files", format!("must be a list of 1 to {MAX_FILES} files")),
    }
    report_conflicting_paths(&specs, &mut violations);
    violations.finish(specs.into_iter().map(|(_, spec)| spec).collect())
}

fn parse_file(file: &Value, at: &str) -> Validated<FileSpec> {
    let Some(file) = file.as_object() else {
        return Err(vec![InvalidField::at(
            at,
            "must be an object with path and content, or path and delete",
        )]);
    };
    let mut violations = Violations::default();
    violations.report_unknown(file, &["path", "content", "delete", "mode"], at);
    let path = file.get("path").and_then(Value::as_str).unwrap_or_default().to_owned();
    if let Err(detail) = check_path(&path) {
        violations.report(format!("{at}.path"), detail);
    }
    let content = match (file.get("content"), file.get("delete")) {
        (Some(Value::String(content)), None | Some(Value::Bool(false))) => Some(content.clone()),
        (None, Some(Value::Bool(true))) => None,
        _ => {
            violations.report(at, "must have either content, as text, or delete: true");
            None
        }
    };
    let mode = file.get("mode").map(|mode| mode.as_str().and_then(parse_mode));
    if mode == Some(None) || (mode.is_some() && content.is_none()) {
        let detail = "must be three or four octal digits up to \"0777\", for a file with content";
        violations.report(format!("{at}.mode"), detail);
    }
    violations.finish(FileSpec { path, content, mode: mode.flatten() })
}

/// Parses permissions. A task cannot set setuid, setgid or the sticky bit.
fn parse_mode(text: &str) -> Option<u32> {
    let is_octal = (3..=4).contains(&text.len()) && text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    let mode = if is_octal { u32::from_str_radix(text, 8).ok() } else { None };
    mode.filter(|mode| *mode <= 0o777)
}

/// Checks that a path stays below the root, as far as its name tells.
fn check_path(path: &str) -> Result<(), String> {
    let has_name = |is_invalid: fn(&str) -> bool| path.split('/').any(is_invalid);
    Err(if path.is_empty() || path.len() > MAX_PATH_BYTES {
        format!("must be a path of 1 to {MAX_PATH_BYTES} bytes below the root")
    } else if path.starts_with('/') {
        "must be relative to the root".to_owned()
    } else if path.chars().any(char::is_control) {
        "must not contain control characters".to_owned()
    } else if has_name(|name| matches!(name, "" | "." | "..")) {
        "must not contain empty names, \".\" or \"..\"".to_owned()
    } else if has_name(|name| name.len() > MAX_NAME_BYTES) {
        format!("must not contain a name of more than {MAX_NAME_BYTES} bytes")
    } else if has_name(|name| name == ATTEMPTS_DIR || name.starts_with(TEMP_PREFIX)) {
        format!(
            "must not contain {ATTEMPTS_DIR:?} or names that begin with {TEMP_PREFIX:?}, which are reserved for ADE"
        )
    } else {
        return Ok(());
    })
}

/// Reports paths that are listed twice, and paths whose parent directory is listed as a file.
fn report_conflicting_paths(specs: &[(usize, FileSpec)], violations: &mut Violations) {
    let mut paths = BTreeSet::new();
    for (index, spec) in specs {
        if !paths.insert(spec.path.as_str()) {
            violations.report(format!("files.{index}.path"), "is listed twice");
        }
    }
    for (index, spec) in specs {
        if let Some(other) = parent_dirs(&spec.path).find(|dir| paths.contains(dir)) {
            let detail = format!("is below {other:?}, which is listed as a file");
            violations.report(format!("files.{index}.path"), detail);
        }
    }
}

/// The directories that contain a path, the outermost first.
pub(super) fn parent_dirs(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').filter_map(|(at, _)| path.get(..at))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn violations(parameters: &Value) -> Vec<String> {
        let parameters = parameters.as_object().expect("an object");
        let violations = parse("/srv", parameters).err().unwrap_or_default();
        violations.into_iter().map(|violation| violation.path.to_string()).collect()
    }

    #[test]
    fn parses_content_deletion_and_mode() {
        let parameters = json!({ "root": "/srv", "worker": "eu", "files": [
            { "path": "a/b.txt", "content": "text", "mode": "0640" },
            { "path": "a/c..txt", "delete": true },
        ]});
        let specs = parse("/srv", parameters.as_object().expect("an object")).expect("valid");
        let content = Some("text".to_owned());
        assert_eq!(specs[0], FileSpec { path: "a/b.txt".into(), content, mode: Some(0o640) });
        assert_eq!(specs[1], FileSpec { path: "a/c..txt".into(), content: None, mode: None });
    }

    #[test]
    fn rejects_paths_outside_root() {
        let long = format!("{}x", "x/".repeat(512));
        for path in [
            "",
            "/etc/passwd",
            "..",
            "../a",
            "a/../b",
            "a/..",
            "./a",
            "a/.",
            "a//b",
            "a/",
            "a\0b",
            "a\nb",
            ".ade",
            ".ade/x",
            "a/.ade/x",
            "a/.ade-1",
            &"x".repeat(256),
            &long,
        ] {
            let parameters = json!({ "root": "/srv", "files": [{ "path": path, "content": "" }] });
            assert_eq!(violations(&parameters), ["files.0.path"], "{path:?}");
        }
    }

    #[test]
    fn parses_verify_template() {
        let with_verify = |value: &Value| Parameters::from_iter([("verify".to_owned(), value.clone())]);
        let parameters = with_verify(&json!({ "template": "t", "arguments": { "a": 1 } }));
        assert_eq!(verify_spec(&parameters), Ok(Some(("t", Some(&json!({ "a": 1 }))))));
        assert_eq!(verify_spec(&Parameters::new()), Ok(None));
        for (invalid, path) in [
            (json!("t"), "verify"),
            (Value::Null, "verify"),
            (json!({}), "verify.template"),
            (json!({ "template": 1 }), "verify.template"),
            (json!({ "template": "t", "argv": [] }), "verify.argv"),
        ] {
            let violations = verify_spec(&with_verify(&invalid)).expect_err("invalid");
            let paths: Vec<_> = violations.iter().map(|violation| violation.path.to_string()).collect();
            assert_eq!(paths, [path], "{invalid}");
        }
    }

    #[test]
    fn reports_every_violation() {
        let parameters = json!({ "root": "/srv/", "x/y": 1, "files": [
            { "path": "a", "content": "", "delete": true },
            { "path": "b" },
            { "path": "c", "content": 1 },
            { "path": "d", "content": "", "mode": "4755" },
            { "path": "e", "content": "", "mode": 420 },
            { "path": "f", "delete": true, "mode": "0644" },
            { "path": "g", "content": "" },
            { "path": "g", "delete": true },
            { "path": "g/h", "content": "" },
            { "path": "i", "content": "", "owner": "root" },
            "j",
        ]});
        let expected = [
            "x/y",
            "root",
            "files.0",
            "files.1",
            "files.2",
            "files.3.mode",
            "files.4.mode",
            "files.5.mode",
            "files.9.owner",
            "files.10",
            "files.7.path",
            "files.8.path",
        ];
        assert_eq!(violations(&parameters), expected);
        assert_eq!(violations(&json!({ "root": "/srv", "files": [] })), ["files"]);
        let many: Vec<Value> = (0..501).map(|n| json!({ "path": format!("{n}"), "content": "" })).collect();
        assert_eq!(violations(&json!({ "root": "/srv", "files": many })), ["files"]);
    }
}
