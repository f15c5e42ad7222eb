//! What a task says about files: which, and how they are to be. Nothing is a path here that could leave the root by its name.

use std::collections::BTreeSet;

use ade_domain::Invalid;
use serde_json::{Map, Value};

use crate::Parameters;

/// The most files of one task.
const MOST_FILES: usize = 500;
/// Bytes of a path, and of a name in it: what file systems take.
const LONGEST_PATH: usize = 1_024;
const LONGEST_NAME: usize = 255;
/// The folder of the root in which it is noted who is at it.
pub(super) const NOTES: &str = ".ade";
/// How the names of files begin that are not in place yet.
pub(super) const UNFINISHED: &str = ".ade-";

/// How one file is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Below the root, with `/` between names.
    pub(super) path: String,
    /// Nothing: it is to go.
    pub(super) content: Option<String>,
    /// Its permissions; nothing: as they are.
    pub(super) mode: Option<u32>,
}

/// What decides whether the files stay as they will be.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Verify {
    /// The name of a command template.
    pub(super) template: String,
    /// For its words; the template says which.
    pub(super) arguments: Option<Value>,
}

/// What decides in the end, if anything does. Which templates there are, and what they need, is known elsewhere.
pub(super) fn verify(parameters: &Parameters) -> Result<Option<Verify>, Vec<Invalid>> {
    let Some(verify) = parameters.get("verify") else { return Ok(None) };
    let Some(verify) = verify.as_object() else {
        return Err(vec![Invalid::at("/verify", "must be an object with template and arguments")]);
    };
    let mut faults = unknown(verify, &["template", "arguments"], "/verify");
    let template = verify.get("template").and_then(Value::as_str).unwrap_or_default().to_owned();
    if template.is_empty() {
        faults.push(Invalid::at("/verify/template", "must be the name of a command template"));
    }
    let arguments = verify.get("arguments").cloned();
    if faults.is_empty() { Ok(Some(Verify { template, arguments })) } else { Err(faults) }
}

/// What is wanted in this root.
pub(super) fn parse(root: &str, parameters: &Parameters) -> Result<Vec<Wanted>, Vec<Invalid>> {
    let mut faults = unknown(parameters, &["root", "files", "verify", "worker"], "");
    if parameters.get("root").and_then(Value::as_str) != Some(root) {
        faults.push(Invalid::at("/root", format!("must be {root:?}, exactly as it is configured")));
    }
    if parameters.get("worker").is_some_and(|label| !label.is_string()) {
        faults.push(Invalid::at("/worker", "must be the label of workers"));
    }
    let mut wanted = Vec::new();
    match parameters.get("files").and_then(Value::as_array) {
        Some(files) if (1..=MOST_FILES).contains(&files.len()) => {
            for (number, file) in files.iter().enumerate() {
                match one(file, &format!("/files/{number}")) {
                    Ok(file) => wanted.push((number, file)),
                    Err(found) => faults.extend(found),
                }
            }
        }
        _ => faults.push(Invalid::at("/files", format!("must be a list of 1 to {MOST_FILES} files"))),
    }
    faults.extend(in_each_other_s_way(&wanted));
    if faults.is_empty() { Ok(wanted.into_iter().map(|(_, file)| file).collect()) } else { Err(faults) }
}

fn unknown(object: &Map<String, Value>, known: &[&str], at: &str) -> Vec<Invalid> {
    let others = object.keys().filter(|name| !known.contains(&name.as_str()));
    let pointer = |name: &String| format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"));
    others
        .map(|name| Invalid::at(pointer(name), format!("is not known; known are {}", known.join(", "))))
        .collect()
}

fn one(file: &Value, at: &str) -> Result<Wanted, Vec<Invalid>> {
    let Some(file) = file.as_object() else {
        return Err(vec![Invalid::at(at, "must be an object with path and content, or path and delete")]);
    };
    let mut faults = unknown(file, &["path", "content", "delete", "mode"], at);
    let path = file.get("path").and_then(Value::as_str).unwrap_or_default();
    if let Err(why) = fits(path) {
        faults.push(Invalid::at(format!("{at}/path"), why));
    }
    let content = match (file.get("content"), file.get("delete")) {
        (Some(Value::String(content)), None | Some(Value::Bool(false))) => Some(content.clone()),
        (None, Some(Value::Bool(true))) => None,
        _ => {
            faults.push(Invalid::at(at, "must have either content, which is text, or delete, which is true"));
            None
        }
    };
    let mode = match file.get("mode") {
        None => None,
        Some(mode) => {
            let read = mode.as_str().and_then(octal);
            if read.is_none() || content.is_none() {
                let why = "must be three or four octal digits up to \"0777\", for a file with content";
                faults.push(Invalid::at(format!("{at}/mode"), why));
            }
            read
        }
    };
    if faults.is_empty() { Ok(Wanted { path: path.to_owned(), content, mode }) } else { Err(faults) }
}

/// Permissions. Whoever runs a file never gets the rights of its owner by a task.
fn octal(text: &str) -> Option<u32> {
    let digits = (3..=4).contains(&text.len()) && text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    let mode = if digits { u32::from_str_radix(text, 8).ok() } else { None };
    mode.filter(|mode| *mode <= 0o777)
}

/// Whether a path stays below the root, as far as its name tells.
fn fits(path: &str) -> Result<(), String> {
    if path.is_empty() || path.len() > LONGEST_PATH {
        return Err(format!("must be a path of 1 to {LONGEST_PATH} bytes below the root"));
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
        if name.len() > LONGEST_NAME {
            return Err(format!("must not contain a name of more than {LONGEST_NAME} bytes"));
        }
        if name == NOTES || name.starts_with(UNFINISHED) {
            return Err(format!(
                "must not contain {NOTES:?} or names that begin with {UNFINISHED:?}: they are ADE's"
            ));
        }
    }
    Ok(())
}

/// Files that are named twice, or that would have to be a folder for another.
fn in_each_other_s_way(wanted: &[(usize, Wanted)]) -> Vec<Invalid> {
    let mut faults = Vec::new();
    let mut paths = BTreeSet::new();
    for (number, file) in wanted {
        if !paths.insert(file.path.as_str()) {
            faults.push(Invalid::at(format!("/files/{number}/path"), "is named twice"));
        }
    }
    for (number, file) in wanted {
        if let Some(other) = folders(&file.path).find(|folder| paths.contains(folder)) {
            let why = format!("lies below {other:?}, which is named as a file");
            faults.push(Invalid::at(format!("/files/{number}/path"), why));
        }
    }
    faults
}

/// The folders on the way to a path, the outermost first.
pub(super) fn folders(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').filter_map(|(at, _)| path.get(..at))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn faults(parameters: &Value) -> Vec<String> {
        let parameters = parameters.as_object().expect("an object");
        let faults = parse("/srv", parameters).err().unwrap_or_default();
        faults.into_iter().map(|fault| fault.pointer).collect()
    }

    #[test]
    fn what_is_wanted_is_read() {
        let parameters = json!({ "root": "/srv", "worker": "eu", "files": [
            { "path": "a/b.txt", "content": "text", "mode": "0640" },
            { "path": "a/c..txt", "delete": true },
        ]});
        let wanted = parse("/srv", parameters.as_object().expect("an object")).expect("fits");
        let content = Some("text".to_owned());
        assert_eq!(wanted[0], Wanted { path: "a/b.txt".into(), content, mode: Some(0o640) });
        assert_eq!(wanted[1], Wanted { path: "a/c..txt".into(), content: None, mode: None });
    }

    #[test]
    fn paths_stay_below_the_root() {
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
            assert_eq!(faults(&parameters), ["/files/0/path"], "{path:?}");
        }
    }

    #[test]
    fn what_verifies_has_a_name() {
        let read = |value: Value| verify(json!({ "verify": value }).as_object().expect("an object"));
        let named = Verify { template: "t".to_owned(), arguments: Some(json!({ "a": 1 })) };
        assert_eq!(read(json!({ "template": "t", "arguments": { "a": 1 } })), Ok(Some(named)));
        assert_eq!(verify(&Map::new()), Ok(None));
        for (broken, at) in [
            (json!("t"), "/verify"),
            (Value::Null, "/verify"),
            (json!({}), "/verify/template"),
            (json!({ "template": 1 }), "/verify/template"),
            (json!({ "template": "t", "argv": [] }), "/verify/argv"),
        ] {
            let faults = read(broken.clone()).expect_err("cannot be");
            assert_eq!(
                faults.iter().map(|fault| fault.pointer.as_str()).collect::<Vec<_>>(),
                [at],
                "{broken}"
            );
        }
    }

    #[test]
    fn everything_that_cannot_be_is_said() {
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
            "/x~1y",
            "/root",
            "/files/0",
            "/files/1",
            "/files/2",
            "/files/3/mode",
            "/files/4/mode",
            "/files/5/mode",
            "/files/9/owner",
            "/files/10",
            "/files/7/path",
            "/files/8/path",
        ];
        assert_eq!(faults(&parameters), expected);
        assert_eq!(faults(&json!({ "root": "/srv", "files": [] })), ["/files"]);
        let many: Vec<Value> = (0..501).map(|n| json!({ "path": format!("{n}"), "content": "" })).collect();
        assert_eq!(faults(&json!({ "root": "/srv", "files": many })), ["/files"]);
    }
}
