//! The parameters of a task for files. No path is accepted here that could leave the root by its name.

use std::collections::BTreeSet;

use ade_domain::InvalidField;
use serde_json::Value;

use crate::Parameters;
use crate::parameters::{check_fields, unknown_fields};

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

/// The command that verifies the changes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct VerifySpec {
    /// The name of a command template.
    pub(super) template: String,
    pub(super) arguments: Option<Value>,
}

/// Parses `verify`, if it is given. Whether the template exists and accepts the arguments is checked by the caller.
pub(super) fn verify_spec(parameters: &Parameters) -> Result<Option<VerifySpec>, Vec<InvalidField>> {
    let Some(verify) = parameters.get("verify") else { return Ok(None) };
    let Some(verify) = verify.as_object() else {
        return Err(vec![InvalidField::at("verify", "must be an object with template and arguments")]);
    };
    let mut violations = unknown_fields(verify, &["template", "arguments"], "verify");
    let template = verify.get("template").and_then(Value::as_str).unwrap_or_default().to_owned();
    if template.is_empty() {
        violations.push(InvalidField::at("verify.template", "must be the name of a command template"));
    }
    let arguments = verify.get("arguments").cloned();
    if violations.is_empty() { Ok(Some(VerifySpec { template, arguments })) } else { Err(violations) }
}

pub(super) fn parse(root: &str, parameters: &Parameters) -> Result<Vec<FileSpec>, Vec<InvalidField>> {
    let mut violations = check_fields(parameters, &["root", "files", "verify", "worker"]);
    if parameters.get("root").and_then(Value::as_str) != Some(root) {
        violations.push(InvalidField::at("root", format!("must be {root:?}, exactly as configured")));
    }
    let mut specs = Vec::new();
    match parameters.get("files").and_then(Value::as_array) {
        Some(files) if (1..=MAX_FILES).contains(&files.len()) => {
            for (index, file) in files.iter().enumerate() {
                match parse_file(file, &format!("files.{index}")) {
                    Ok(spec) => specs.push((index, spec)),
                    Err(found) => violations.extend(found),
                }
            }
        }
        _ => violations.push(InvalidField::at("files", format!("must be a list of 1 to {MAX_FILES} files"))),
    }
    violations.extend(conflicting_paths(&specs));
    if violations.is_empty() {
        Ok(specs.into_iter().map(|(_, spec)| spec).collect())
    } else {
        Err(violations)
    }
}

fn parse_file(file: &Value, at: &str) -> Result<FileSpec, Vec<InvalidField>> {
    let Some(file) = file.as_object() else {
        return Err(vec![InvalidField::at(
            at,
            "must be an object with path and content, or path and delete",
        )]);
    };
    let mut violations = unknown_fields(file, &["path", "content", "delete", "mode"], at);
    let path = file.get("path").and_then(Value::as_str).unwrap_or_default();
    if let Err(detail) = check_path(path) {
        violations.push(InvalidField::at(format!("{at}.path"), detail));
    }
    let content = match (file.get("content"), file.get("delete")) {
        (Some(Value::String(content)), None | Some(Value::Bool(false))) => Some(content.clone()),
        (None, Some(Value::Bool(true))) => None,
        _ => {
            violations.push(InvalidField::at(at, "must have either content, as text, or delete: true"));
            None
        }
    };
    let mode = match file.get("mode") {
        None => None,
        Some(mode) => {
            let parsed = mode.as_str().and_then(parse_mode);
            if parsed.is_none() || content.is_none() {
                let detail = "must be three or four octal digits up to \"0777\", for a file with content";
                violations.push(InvalidField::at(format!("{at}.mode"), detail));
            }
            parsed
        }
    };
    if violations.is_empty() {
        Ok(FileSpec { path: path.to_owned(), content, mode })
    } else {
        Err(violations)
    }
}

/// Parses permissions. A task cannot set setuid, setgid or the sticky bit.
fn parse_mode(text: &str) -> Option<u32> {
    let is_octal = (3..=4).contains(&text.len()) && text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    let mode = if is_octal { u32::from_str_radix(text, 8).ok() } else { None };
    mode.filter(|mode| *mode <= 0o777)
}

/// Checks that a path stays below the root, as far as its name tells.
fn check_path(path: &str) -> Result<(), String> {
    if path.is_empty() || path.len() > MAX_PATH_BYTES {
        return Err(format!("must be a path of 1 to {MAX_PATH_BYTES} bytes below the root"));
    }
    if path.starts_with('/') {
        return Err("must be relative to the root".to_owned());
    }
    if path.chars().any(char::is_control) {
        return Err("must not contain control characters".to_owned());
    }
    for name in path.split('/') {
        if name.is_empty() || name == "." || name == ".." {
            return Err("must not contain empty names, \".\" or \"..\"".to_owned());
        }
        if name.len() > MAX_NAME_BYTES {
            return Err(format!("must not contain a name of more than {MAX_NAME_BYTES} bytes"));
        }
        if name == ATTEMPTS_DIR || name.starts_with(TEMP_PREFIX) {
            return Err(format!(
                "must not contain {ATTEMPTS_DIR:?} or names that begin with {TEMP_PREFIX:?}, which are reserved for ADE"
            ));
        }
    }
    Ok(())
}

/// Finds paths that are listed twice, and paths whose parent directory is listed as a file.
fn conflicting_paths(specs: &[(usize, FileSpec)]) -> Vec<InvalidField> {
    let mut violations = Vec::new();
    let mut paths = BTreeSet::new();
    for (index, spec) in specs {
        if !paths.insert(spec.path.as_str()) {
            violations.push(InvalidField::at(format!("files.{index}.path"), "is listed twice"));
        }
    }
    for (index, spec) in specs {
        if let Some(other) = parent_dirs(&spec.path).find(|dir| paths.contains(dir)) {
            let detail = format!("is below {other:?}, which is listed as a file");
            violations.push(InvalidField::at(format!("files.{index}.path"), detail));
        }
    }
    violations
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
        let parse = |value: Value| verify_spec(json!({ "verify": value }).as_object().expect("an object"));
        let expected = VerifySpec { template: "t".to_owned(), arguments: Some(json!({ "a": 1 })) };
        assert_eq!(parse(json!({ "template": "t", "arguments": { "a": 1 } })), Ok(Some(expected)));
        assert_eq!(verify_spec(&serde_json::Map::new()), Ok(None));
        for (invalid, path) in [
            (json!("t"), "verify"),
            (Value::Null, "verify"),
            (json!({}), "verify.template"),
            (json!({ "template": 1 }), "verify.template"),
            (json!({ "template": "t", "argv": [] }), "verify.argv"),
        ] {
            let violations = parse(invalid.clone()).expect_err("invalid");
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
        assert_eq!(violations(&json!({ "root": "/srv", "files": [] })), ["/files"]);
        let many: Vec<Value> = (0..501).map(|n| json!({ "path": format!("{n}"), "content": "" })).collect();
        assert_eq!(violations(&json!({ "root": "/srv", "files": many })), ["/files"]);
    }
}
