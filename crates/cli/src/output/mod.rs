//! Command output: data goes to standard output, notes and warnings to standard error. Colours only on a terminal.

pub(crate) mod list;
pub(crate) mod page;
pub(crate) mod time;
mod visible;

use std::fmt::{self, Display};
use std::io::{self, Write};

use ade_domain::text::{escape_hidden, escape_hidden_in_json};
use clap::Args;
use comfy_table::{Attribute, Cell, Color, ColumnConstraint, ContentArrangement, LineStyle, presets};
use owo_colors::OwoColorize;
use serde::Serialize;

use crate::failure::{Failure, Result};
pub(crate) use visible::{VisibleText, visible};

/// Titles of id columns that users copy from; a first column with one of them is never wrapped.
const ID_COLUMNS: [&str; 9] =
    ["APPROVAL", "ARCHIVE", "DELEGATION", "DELIVERY", "HOOK", "POLICY", "TASK", "TOKEN", "WEBHOOK"];

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct OutputFormat {
    /// Print JSON
    // Listed after the other options of a command, wherever it is flattened.
    #[arg(long, display_order = 100)]
    pub(crate) json: bool,
}

impl OutputFormat {
    /// Prints the value as JSON with `--json`, otherwise the text made from it.
    pub(crate) fn print<T: Serialize, D: Display>(self, value: &T, text: impl FnOnce(&T) -> D) -> Result {
        if self.json { json(value) } else { line(text(value)) }
    }

    /// Prints the value as JSON with `--json`, otherwise as the only row of a table.
    pub(crate) fn print_row<T: Serialize>(
        self,
        value: &T,
        table: impl FnOnce(&[T]) -> Table<'_, T>,
    ) -> Result {
        if self.json { json(value) } else { line(table(std::slice::from_ref(value))) }
    }
}

/// Starts a table with one row per item. Its columns are added one by one.
pub(crate) fn table<T>(items: &[T]) -> Table<'_, T> {
    list(items, "")
}

/// Starts a table that is printed as `empty` if there are no items.
pub(crate) fn list<'a, T>(items: &'a [T], empty: &'static str) -> Table<'a, T> {
    Table { items, empty, titles: Vec::new(), rows: vec![Vec::new(); items.len()] }
}

pub(crate) struct Table<'a, T> {
    items: &'a [T],
    empty: &'static str,
    titles: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

impl<'a, T> Table<'a, T> {
    pub(crate) fn column<C: Into<Cell>>(mut self, title: &'static str, cell: impl Fn(&'a T) -> C) -> Self {
        self.titles.push(title);
        for (row, item) in self.rows.iter_mut().zip(self.items) {
            row.push(cell(item).into());
        }
        self
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The width of each column, in characters.
    pub(crate) fn column_widths(&self) -> impl Iterator<Item = usize> {
        self.arranged().column_max_content_widths().into_iter().map(usize::from)
    }

    /// The table with bold titles. On a terminal it is wrapped to the width of the terminal.
    pub(crate) fn arranged(&self) -> comfy_table::Table {
        let mut table = comfy_table::Table::new();
        table
            .load_style(presets::NOTHING.header_separator(LineStyle::none().fill('─').junction('─')))
            .set_header(self.titles.iter().map(|title| Cell::new(title).add_attribute(Attribute::Bold)))
            .add_rows(self.rows.clone());
        if terminal_width().is_some() {
            table.set_content_arrangement(ContentArrangement::Dynamic);
            let first = self.titles.first().and_then(|title| title.lines().next());
            let is_id = first.is_some_and(|title| ID_COLUMNS.contains(&title));
            if let Some(column) = table.column_mut(0).filter(|_| is_id) {
                column.set_constraint(ColumnConstraint::ContentWidth);
            }
        }
        table
    }
}

impl<T> Display for Table<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() { f.write_str(self.empty) } else { self.arranged().fmt(f) }
    }
}

/// Columns of the terminal; `None` without a terminal or if its size is unknown.
pub(crate) fn terminal_width() -> Option<usize> {
    comfy_table::Table::new().width().filter(|width| *width > 0).map(usize::from)
}

pub(crate) fn json(value: &impl Serialize) -> Result {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::cannot("write JSON", error))?;
    line(escape_hidden_in_json(&text))
}

pub(crate) fn line(text: impl Display) -> Result {
    Ok(writeln!(anstream::stdout().lock(), "{}", visible(&text.to_string()))?)
}

/// Writes text unchanged: no colour stripping, no added line end.
pub(crate) fn raw(text: &str) -> Result {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Writes a note to standard error. A closed standard error is ignored.
pub(crate) fn note(text: &str) {
    let _ = writeln!(anstream::stderr().lock(), "{} {}", "note:".cyan().bold(), safe(text));
}

/// Writes a warning to standard error. A closed standard error is ignored.
pub(crate) fn warning(text: &str) {
    let _ = writeln!(anstream::stderr().lock(), "{} {}", "warning:".yellow().bold(), safe(text));
}

/// Writes a line to standard error that begins with a word in colour. A closed standard error is ignored.
pub(crate) fn notice(word: impl Display, text: &str) {
    let _ = writeln!(anstream::stderr().lock(), "{word} {}", visible(text));
}

/// Escapes text from outside, so that it can neither control the terminal nor look like something else.
pub(crate) fn safe(text: &str) -> String {
    escape_hidden(text).into_owned()
}

/// Escapes an optional text; nothing becomes an empty string.
pub(crate) fn safe_or_empty(text: &Option<String>) -> String {
    text.as_deref().map(safe).unwrap_or_default()
}

pub(crate) const fn yes_or_no(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

/// Escapes text line by line; line breaks stay line breaks.
pub(crate) fn safe_lines(text: &str) -> impl Iterator<Item = String> {
    text.lines().map(|line| safe(&line.replace('\t', "    ")))
}

/// The first line of a text, escaped.
pub(crate) fn first_line(text: &str) -> String {
    safe_lines(text).next().unwrap_or_default()
}

/// Meaning of a colour. Cells are coloured through `cell`, because a table must know the width of the plain text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Dim,
    Good,
    Pending,
    Bad,
    Active,
    Unusual,
}

impl Tone {
    pub(crate) fn paint(self, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Dim => text.dimmed().to_string(),
            Self::Good => text.green().to_string(),
            Self::Pending => text.yellow().to_string(),
            Self::Bad => text.red().to_string(),
            Self::Active => text.cyan().to_string(),
            Self::Unusual => text.magenta().to_string(),
        }
    }

    pub(crate) fn cell(self, text: impl Into<String>) -> Cell {
        let cell = Cell::new(text.into());
        match self {
            Self::Plain => cell,
            Self::Dim => cell.add_attribute(Attribute::Dim),
            Self::Good => cell.fg(Color::DarkGreen),
            Self::Pending => cell.fg(Color::DarkYellow),
            Self::Bad => cell.fg(Color::DarkRed),
            Self::Active => cell.fg(Color::DarkCyan),
            Self::Unusual => cell.fg(Color::DarkMagenta),
        }
    }
}
