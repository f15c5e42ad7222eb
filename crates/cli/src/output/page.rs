//! A page of text: lines, labelled fields and headings, collected before anything is printed.

use std::fmt::{self, Display, Write};

use owo_colors::OwoColorize;

use super::Table;

#[derive(Debug, Default)]
pub(crate) struct Page {
    text: String,
}

impl Page {
    pub(crate) fn line(&mut self, text: impl Display) {
        // Writing to a String never fails.
        let _ = writeln!(self.text, "{text}");
    }

    pub(crate) fn heading(&mut self, text: impl Display) {
        self.line(format_args!("\n{}", text.bold()));
    }

    /// Adds a table, if it has rows.
    pub(crate) fn table<T>(&mut self, table: &Table<'_, T>) {
        if !table.is_empty() {
            self.line(table);
        }
    }

    /// Adds a heading and a table, if it has rows.
    pub(crate) fn table_section<T>(&mut self, heading: &str, table: &Table<'_, T>) {
        if !table.is_empty() {
            self.heading(heading);
            self.line(table);
        }
    }

    /// Adds a labelled value; an empty value is left out.
    pub(crate) fn field(&mut self, label: &str, value: impl Display) {
        let value = value.to_string();
        if !value.is_empty() {
            self.line(format_args!("  {:<16} {value}", label.dimmed()));
        }
    }

    /// Adds a labelled value, if there is one.
    pub(crate) fn optional(&mut self, label: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.field(label, value);
        }
    }

    /// Adds a label and, indented below it, lines.
    pub(crate) fn block(&mut self, label: &str, lines: impl Iterator<Item = String>) {
        self.line(format_args!("  {}", label.dimmed()));
        lines.for_each(|line| self.line(format_args!("    {line}")));
    }
}

/// Without the last line end.
impl Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text.trim_end())
    }
}
