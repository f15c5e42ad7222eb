//! Laying out: tables, headings and JSON on standard output. Colours only where a terminal shows them.

use std::io::{self, Write};

use comfy_table::{Attribute, Cell, ContentArrangement, LineStyle, Table, presets};
use serde::Serialize;

use crate::failure::{Failure, Kind};

/// A table with bold column titles, as wide as the terminal.
pub(crate) fn table(titles: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING.header_separator(LineStyle::none().fill('─').junction('─')))
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(titles.iter().map(|title| Cell::new(title).add_attribute(Attribute::Bold)));
    table
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

/// Text as it is.
pub(crate) fn text(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}
