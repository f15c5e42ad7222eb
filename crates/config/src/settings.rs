//! The list of all settings, read from the commented default file: names, defaults, descriptions and environment variables.

use std::sync::LazyLock;

use toml::{Table, Value};

/// All settings with their defaults. Each is one line with `#` before its name, below a line with its description.
pub(super) const DEFAULT_FILE: &str = include_str!("default.toml");

#[derive(Debug)]
pub(super) struct Setting {
    /// The full name, such as `lock.max_queue`.
    pub(super) name: String,
    pub(super) default: Value,
    pub(super) about: &'static str,
}

impl Setting {
    /// Whether neither variables nor flags can set it.
    pub(super) fn is_file_only(&self) -> bool {
        self.name.starts_with("security.")
            || self.name.starts_with("webhooks.")
            || self.name == "server.allow_plain_http"
    }

    pub(super) fn variable(&self) -> String {
        format!("ADE_{}", self.name.replace('.', "_")).to_uppercase()
    }
}

pub(super) static SETTINGS: LazyLock<Vec<Setting>> = LazyLock::new(|| {
    let (mut settings, mut section, mut about) = (Vec::new(), "", "");
    for line in DEFAULT_FILE.lines() {
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']');
        } else if let Some(comment) = line.strip_prefix("# ") {
            about = comment;
        } else if let Some((name, default)) = line.strip_prefix('#').and_then(|line| line.split_once(" = ")) {
            let default = parse_toml_value(default).unwrap_or_else(|| default.into());
            settings.push(Setting { name: format!("{section}.{name}"), default, about });
        }
    }
    settings
});

pub(super) fn parse_toml_value(text: &str) -> Option<Value> {
    let table: Table = format!("v = {text}").parse().ok()?;
    table.get("v").cloned()
}
