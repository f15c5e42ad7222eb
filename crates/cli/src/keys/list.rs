//! `ade keys list`: every row of the chosen catalogs. Never breaks a name or a pattern over two lines.

use ade_catalog::Catalog;
use ade_catalog::listing::Row;
use comfy_table::ContentArrangement;
use owo_colors::OwoColorize;

use crate::failure::Failure;
use crate::output;

pub(super) fn run(catalogs: &[Catalog], json: bool) -> Result<(), Failure> {
    if json {
        let rows: Vec<Row<'_>> = catalogs.iter().flat_map(Catalog::rows).collect();
        return output::json(&rows);
    }
    for (position, catalog) in catalogs.iter().enumerate() {
        if position > 0 {
            output::line("")?;
        }
        let rows = catalog.rows();
        output::line(&format!("{}  {}", catalog.name.bold(), catalog.title))?;
        output::line(&rendered(&rows))?;
        let additions = rows.iter().filter(|row| row.addition).count();
        output::line(&format!(
            "{} rows, {additions} of them additions (+) to {}",
            rows.len(),
            catalog.source
        ))?;
    }
    Ok(())
}

/// A table, or, where the terminal is too narrow for one, two lines a row: names and patterns are never broken.
fn rendered(rows: &[Row<'_>]) -> String {
    let mut table = output::table(&["NAME", "PATTERN", "TYPE", "TTL", "OWNER"]);
    table.set_content_arrangement(ContentArrangement::Disabled);
    for row in rows {
        table.add_row([&marked(row), &row.pattern, row.type_name, &row.ttl, row.owner]);
    }
    let needed = table.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    if output::terminal_width(&table).is_none_or(|width| needed <= width) {
        return table.to_string();
    }
    let lines = rows.iter().map(|row| {
        let facts = format!("{}, {}, ttl {}", row.type_name, row.owner, row.ttl);
        format!("  {}\n      {}\n      {}", marked(row).bold(), row.pattern, facts.dimmed())
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn marked(row: &Row<'_>) -> String {
    format!("{}{}", row.name, if row.addition { " +" } else { "" })
}
