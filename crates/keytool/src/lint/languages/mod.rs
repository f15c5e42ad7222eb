//! One front-end for each language, and how the language of a file is recognised.

mod go;
mod javascript;
mod lua;
mod python;
mod rust;
mod shell;

use std::path::Path;

use super::syntax::FrontEnd;

/// Extensions of source files, for messages.
pub(super) const EXTENSIONS: &str = ".rs, .sh, .bash, .py, .js, .ts, .go and .lua";

/// The front-end for a file, by its extension or else by its first line.
pub(super) fn of(path: &Path, first_line: &str) -> Option<&'static dyn FrontEnd> {
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_ascii_lowercase());
    match extension.as_deref() {
        Some("rs") => Some(&rust::Rust),
        Some("py" | "pyi") => Some(&python::Python),
        Some("js" | "mjs" | "cjs" | "jsx") => Some(&javascript::JavaScript::Plain),
        Some("ts" | "mts" | "cts") => Some(&javascript::JavaScript::TypeScript),
        Some("tsx") => Some(&javascript::JavaScript::Tsx),
        Some("go") => Some(&go::Go),
        Some("lua") => Some(&lua::Lua),
        Some("sh" | "bash" | "bats") => Some(&shell::Shell),
        Some(_) => None,
        None => by_interpreter(first_line),
    }
}

/// Whether a file could have a language by its name: one without an extension is opened to see.
pub(super) fn may_be_source(path: &Path) -> bool {
    path.extension().is_none() || of(path, "").is_some()
}

fn by_interpreter(first_line: &str) -> Option<&'static dyn FrontEnd> {
    let command = first_line.strip_prefix("#!")?;
    let mut words = command.split_ascii_whitespace().filter_map(|word| word.rsplit('/').next());
    let program = words.find(|word| *word != "env" && !word.starts_with('-'))?;
    match program.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.') {
        "sh" | "bash" | "dash" | "ksh" => Some(&shell::Shell),
        "python" => Some(&python::Python),
        "node" | "deno" | "bun" => Some(&javascript::JavaScript::Plain),
        "lua" | "luajit" => Some(&lua::Lua),
        _ => None,
    }
}
