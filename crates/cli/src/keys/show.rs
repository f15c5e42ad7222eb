//! `ade keys show`: everything about one entry or family.

use ade_catalog::Catalog;
use ade_catalog::listing::{Details, Row};
use owo_colors::OwoColorize;

use crate::failure::{Failure, Kind};
use crate::output;

pub(super) fn run(catalogs: &[Catalog], name: &str, json: bool) -> Result<(), Failure> {
    let entries: Vec<Details<'_>> =
        catalogs.iter().filter_map(|catalog| Some(catalog.details(catalog.entry(name)?))).collect();
    match entries.as_slice() {
        [] => {}
        [one] => return if json { output::json(one) } else { details(one) },
        several => {
            let catalogs: Vec<&str> = several.iter().map(|details| details.row.catalog).collect();
            let message = format!("{name} stands in several catalogs: {}", catalogs.join(", "));
            return Err(Failure::new(Kind::Input, message).hint("choose one with --catalog"));
        }
    }
    if let Some(family) = catalogs.iter().find_map(|catalog| Some(catalog.family_row(catalog.family(name)?)))
    {
        return if json { output::json(&family) } else { family_facts(&family) };
    }
    let names = || catalogs.iter().flat_map(|catalog| &catalog.entries).map(|entry| entry.name.as_str());
    let wanted = name.to_lowercase();
    let group: Vec<&str> = names().filter(|entry| entry.split('.').next() == Some(&wanted)).collect();
    let hint = match ade_catalog::closest(&wanted, names()) {
        _ if !group.is_empty() => format!("the group has {}", group.join(", ")),
        Some(near) => format!("did you mean {near}?"),
        None => "`ade keys list` shows every name".to_owned(),
    };
    Err(Failure::new(Kind::No, format!("no entry is called {name:?}")).hint(hint))
}

fn family_facts(row: &Row<'_>) -> Result<(), Failure> {
    output::line(&format!("{}  {}", row.name.bold(), row.purpose))?;
    for (label, text) in
        [("catalog", row.catalog), ("pattern", &row.pattern), ("type", "family"), ("ttl", &row.ttl)]
    {
        output::fact(label, text)?;
    }
    Ok(())
}

/// A name, marked if the source document does not have it.
fn plus(name: &str, addition: bool) -> String {
    format!("{name}{}", if addition { " +" } else { "" })
}

fn details(details: &Details<'_>) -> Result<(), Failure> {
    let row = &details.row;
    output::line(&format!("{}  {}", row.name.bold(), row.purpose))?;
    let same_layout = row.pattern == row.cluster_pattern;
    let facts: [(&str, Option<String>); 16] = [
        ("catalog", Some(format!("{}, from {}", row.catalog, details.source))),
        ("pattern", Some(row.pattern.clone())),
        ("cluster", (!same_layout).then(|| row.cluster_pattern.clone())),
        ("type", Some(row.type_name.to_owned())),
        ("ttl", details.format.is_some().then(|| row.ttl.clone())),
        ("format", details.format.map(|format| format.as_str().to_owned())),
        ("sensitivity", details.sensitivity.map(|level| level.as_str().to_owned())),
        ("value", details.value.map(str::to_owned)),
        ("members", details.members.map(str::to_owned)),
        ("score", details.score.map(str::to_owned)),
        ("cleanup", details.cleanup.map(str::to_owned)),
        ("owner", Some(row.owner.to_owned())),
        ("groups", (!details.groups.is_empty()).then(|| details.groups.join(", "))),
        ("stream", details.stream.map(str::to_owned)),
        ("formerly", (!row.formerly.is_empty()).then(|| row.formerly.join(", "))),
        ("addition", row.addition.then(|| format!("not in {}", details.source))),
    ];
    for (label, text) in facts {
        text.map_or(Ok(()), |text| output::fact(label, &text))?;
    }
    let (plain, cluster) = (&details.example, &details.cluster_example);
    output::fact("example", &format!("{}  (slot {})", plain.key, plain.slot))?;
    if !same_layout {
        output::fact("", &format!("{}  (slot {})", cluster.key, cluster.slot))?;
    }
    if !details.identifiers.is_empty() {
        let mut table = output::table(&["IDENTIFIER", "IDENTIFIES", "WRITTEN"]);
        for id in &details.identifiers {
            let members: Vec<String> =
                id.one_of.iter().map(|member| plus(&member.value, member.addition)).collect();
            let form = if members.is_empty() { id.form.clone() } else { members.join(", ") };
            table.add_row([id.name, id.about, &form]);
        }
        output::line(&table.to_string())?;
    }
    if !details.fields.is_empty() {
        let mut table = output::table(&["FIELD", "TYPE", "MEANING"]);
        for field in details.fields {
            table.add_row([&plus(&field.name, field.addition), field.field_type.as_str(), &field.about]);
        }
        output::line(&table.to_string())?;
    }
    if !details.messages.is_empty() {
        let mut table = output::table(&["MESSAGE", "MEANING"]);
        for message in details.messages {
            table.add_row([&message.name, &message.about]);
        }
        output::line(&table.to_string())?;
    }
    Ok(())
}
