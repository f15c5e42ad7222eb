//! `ade keys list`

use ade_catalog::Catalog;
use ade_catalog::listing::Row;
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
        let additions = rows.iter().filter(|row| row.addition).count();
        output::line(&format!("{}  {}", catalog.name.bold(), catalog.title))?;
        let mut table = output::table(&["NAME", "PATTERN", "TYPE", "TTL", "OWNER"]);
        for row in &rows {
            let name = format!("{}{}", row.name, if row.addition { " +" } else { "" });
            table.add_row([&name, &row.pattern, row.type_name, &row.ttl, row.owner]);
        }
        output::line(&table.to_string())?;
        output::line(&format!(
            "{} entries, {additions} of them additions (+) to {}",
            rows.len(),
            catalog.source
        ))?;
    }
    Ok(())
}
