//! Laying out: tables, headings and JSON on standard output. Colours only where a terminal shows them.

use std::io::{self, Write};

use comfy_table::{Attribute, Cell, Color, ColumnConstraint, ContentArrangement, LineStyle, Table, presets};
use owo_colors::OwoColorize;
use serde::Serialize;

use crate::failure::{Failure, Kind, printable};

/// Columns of ids that people copy: broken over lines they would be of no use.
const COPIED: [&str; 7] = ["APPROVAL", "ARCHIVE", "DELEGATION", "POLICY", "REQUEST", "TASK", "TOKEN"];

/// A table with bold column titles, wrapped to the terminal if its width is known; an id that comes first is left whole.
pub(crate) fn table(titles: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING.header_separator(LineStyle::none().fill('─').junction('─')))
        .set_header(titles.iter().map(|title| Cell::new(title).add_attribute(Attribute::Bold)));
    if terminal_width(&table).is_some() {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        let first = titles.first().and_then(|title| title.lines().next());
        let is_copied = first.is_some_and(|title| COPIED.contains(&title));
        if let Some(column) = table.column_mut(0).filter(|_| is_copied) {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    table
}

/// Columns of the terminal, if there is one and it tells.
pub(crate) fn terminal_width(table: &Table) -> Option<usize> {
    table.width().filter(|width| *width > 0).map(usize::from)
}

/// A value as indented JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::new(Kind::Unavailable, format!("cannot write JSON: {error}")))?;
    line(&text)
}

/// A line of text.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    Ok(writeln!(anstream::stdout().lock(), "{text}")?)
}

/// A label and what there is to say.
pub(crate) fn fact(label: &str, text: &str) -> Result<(), Failure> {
    line(&format!("  {:<16} {text}", label.dimmed()))
}

/// Text as it is.
pub(crate) fn text(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Something for people, beside the data.
pub(crate) fn note(text: &str) {
    // If standard error is gone there is nobody to tell.
    let _ = writeln!(anstream::stderr().lock(), "{} {}", "note:".cyan().bold(), printable(text));
}

/// Something that people should look at before they go on, beside the data.
pub(crate) fn warning(text: &str) {
    // If standard error is gone there is nobody to tell.
    let _ = writeln!(anstream::stderr().lock(), "{} {}", "warning:".yellow().bold(), printable(text));
}

/// Text from outside in a cell or a line: it must not steer the terminal.
pub(crate) fn safe(text: &str) -> String {
    printable(text)
}

/// The same for text of several lines, which stay lines.
pub(crate) fn safe_lines(text: &str) -> impl Iterator<Item = String> {
    text.lines().map(|line| safe(&line.replace('\t', "    ")))
}

/// A heading between two parts of a page.
pub(crate) fn heading(text: &str) -> String {
    format!("\n{}", text.bold())
}

/// What a colour says. Cells have their own way to be coloured: a table must know how wide its text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Dim,
    Good,
    Open,
    Bad,
    Busy,
    Odd,
}

impl Tone {
    /// In a line.
    pub(crate) fn paint(self, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Dim => text.dimmed().to_string(),
            Self::Good => text.green().to_string(),
            Self::Open => text.yellow().to_string(),
            Self::Bad => text.red().to_string(),
            Self::Busy => text.cyan().to_string(),
            Self::Odd => text.magenta().to_string(),
        }
    }

    /// In a table.
    pub(crate) fn cell(self, text: impl Into<String>) -> Cell {
        let cell = Cell::new(text.into());
        match self {
            Self::Plain => cell,
            Self::Dim => cell.add_attribute(Attribute::Dim),
            Self::Good => cell.fg(Color::DarkGreen),
            Self::Open => cell.fg(Color::DarkYellow),
            Self::Bad => cell.fg(Color::DarkRed),
            Self::Busy => cell.fg(Color::DarkCyan),
            Self::Odd => cell.fg(Color::DarkMagenta),
        }
    }
}
