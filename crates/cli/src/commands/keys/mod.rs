//! `ade keys`: shows the key catalogs as table, JSON or Markdown, maps a concrete key to its entry, and works with live servers.

mod audit;
mod diff;
mod explain;
mod generate;
mod learn;
mod lint;
mod migrate;
mod scan_args;

use std::borrow::Cow;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use ade_catalog::listing::{Details, IdRow, Row};
use ade_catalog::model::EntryKind;
use ade_catalog::{Catalog, reference};
use clap::Subcommand;
use comfy_table::ContentArrangement;
use owo_colors::OwoColorize;

use crate::failure::{Failure, Result};
use crate::input;
use crate::output::page::Page;
use crate::output::{self, OutputFormat};

/// Largest catalog file that is read.
const MAX_CATALOG_BYTES: u64 = 4 * 1024 * 1024;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(long, global = true, value_name = "NAME|FILE", help = catalog_help())]
    catalog: Option<String>,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List every key, channel and consumer group
    List(OutputFormat),
    /// Show an entry: shape, lifetime, identifiers, an example key and its slot
    Show {
        /// Name of the entry, such as lock.task
        name: String,
        #[command(flatten)]
        format: OutputFormat,
    },
    /// Show which entry a concrete key belongs to, in either layout
    Explain {
        /// The key as it is stored in Redis
        key: String,
        #[command(flatten)]
        format: OutputFormat,
    },
    /// Write the Markdown reference
    Doc {
        /// Write to this file instead of standard output
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Write nothing; fail if this file is outdated
        #[arg(long, value_name = "FILE", conflicts_with = "output")]
        check: Option<PathBuf>,
    },
    /// Check the Redis keys in source code against the catalogs
    ///
    /// Reads Rust, shell, Python, JavaScript, TypeScript, Go and Lua. Exits with 1 if something is found.
    Lint(lint::Args),
    /// Compare the keys of a live Redis with the catalogs: sizes, lifetimes and violations by class
    Audit(audit::Args),
    /// Show what differs between two catalogs; exits with 1 if anything does
    Diff(diff::Args),
    /// Write a first catalog from the keys of a live Redis
    Learn(learn::Args),
    /// Generate typed builders of keys for your own service
    Generate(generate::Args),
    /// Migrate keys of the former schema of ADE to the present one
    Migrate(migrate::Args),
}

fn shipped_names() -> String {
    catalog_names(ade_keyspace::catalogs())
}

fn catalog_names(catalogs: &[Catalog]) -> String {
    catalogs.iter().map(|catalog| catalog.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn catalog_help() -> String {
    let names = shipped_names();
    format!("Name of a shipped catalog ({names}) or path of a catalog file [default: all shipped ones]")
}

pub(crate) fn run(args: &Args) -> Result {
    let catalogs = select(args.catalog.as_deref())?;
    match &args.command {
        Command::List(format) => list(&catalogs, *format),
        Command::Show { name, format } => show(&catalogs, name, *format),
        Command::Explain { key, format } => explain::run(&catalogs, key, *format),
        Command::Lint(args) => lint::run(&catalogs, args),
        Command::Doc { output: Some(file), .. } => {
            fs::write(file, reference::markdown(&*catalogs)).map_err(|error| unusable(file, &error))
        }
        Command::Doc { check: Some(file), .. } => {
            check_reference(&reference::markdown(&*catalogs), file, args.catalog.as_deref())
        }
        Command::Audit(args) => audit::run(args, &catalogs),
        Command::Diff(args) => diff::run(args),
        Command::Learn(args) => learn::run(args),
        Command::Migrate(command) => migrate::run(command, args.catalog.as_deref()),
        Command::Generate(args) => generate::run(args, &catalogs),
        Command::Doc { .. } => output::raw(&reference::markdown(&*catalogs)),
    }
}

/// The catalogs that a command works on.
fn select(choice: Option<&str>) -> Result<Cow<'static, [Catalog]>> {
    let shipped = ade_keyspace::catalogs();
    let Some(choice) = choice else { return Ok(Cow::Borrowed(shipped)) };
    if let Some(catalog) = shipped.iter().find(|catalog| catalog.name == choice) {
        return Ok(Cow::Borrowed(std::slice::from_ref(catalog)));
    }
    let unreadable = |error: io::Error| {
        Failure::invalid(format!("cannot read the catalog {choice}: {error}"))
            .hint(format!("use one of {}, or the path of a catalog file", shipped_names()))
    };
    let source = File::open(choice).and_then(|file| input::read_text(file, MAX_CATALOG_BYTES));
    let source = source.map_err(unreadable)?;
    let catalog = Catalog::parse(choice, &source).map_err(|error| Failure::invalid(error.to_string()))?;
    Ok(Cow::Owned(vec![catalog]))
}

/// One catalog by its name or file.
fn select_one(choice: &str) -> Result<Catalog> {
    let catalogs = select(Some(choice))?.into_owned();
    catalogs.into_iter().next().ok_or_else(|| Failure::invalid(format!("{choice} has no catalog")))
}

fn list(catalogs: &[Catalog], format: OutputFormat) -> Result {
    let rows: Vec<Row<'_>> = catalogs.iter().flat_map(Catalog::rows).collect();
    format.print(&rows, |_| catalogs.iter().map(catalog_table).collect::<Vec<_>>().join("\n\n"))
}

fn catalog_table(catalog: &Catalog) -> String {
    let rows = catalog.rows();
    let additions = rows.iter().filter(|row| row.addition).count();
    let (name, table, count) = (catalog.name.bold(), row_table(&rows), rows.len());
    let total = format!("{count} rows, {additions} of them additions (+) to {}", catalog.source);
    format!("{name}  {}\n{table}\n{total}", catalog.title)
}

/// A table, or two lines per row on a terminal that is too narrow: names and patterns are never wrapped.
fn row_table(rows: &[Row<'_>]) -> String {
    let table = output::table(rows)
        .column("NAME", |row| marked(row.name, row.addition))
        .column("PATTERN", |row| &row.pattern)
        .column("TYPE", |row| row.type_name)
        .column("TTL", |row| &row.ttl)
        .column("OWNER", |row| row.owner);
    let mut table = table.arranged();
    table.set_content_arrangement(ContentArrangement::Disabled);
    let needed = table.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    if output::terminal_width().is_none_or(|width| needed <= width) {
        return table.to_string();
    }
    let lines = rows.iter().map(|row| {
        let facts = format!("{}, {}, ttl {}", row.type_name, row.owner, row.ttl);
        let name = marked(row.name, row.addition);
        format!("  {}\n      {}\n      {}", name.bold(), row.pattern, facts.dimmed())
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// A name, with a plus sign if the source document does not have it.
fn marked(name: &str, is_addition: bool) -> String {
    format!("{name}{}", if is_addition { " +" } else { "" })
}

fn show(catalogs: &[Catalog], name: &str, format: OutputFormat) -> Result {
    let entries: Vec<Details<'_>> =
        catalogs.iter().filter_map(|catalog| Some(catalog.details(catalog.entry(name)?))).collect();
    match entries.as_slice() {
        [] => {}
        [entry] => return format.print(entry, entry_page),
        several => {
            let catalogs: Vec<&str> = several.iter().map(|details| details.row.catalog).collect();
            let message = format!("{name} is in several catalogs: {}", catalogs.join(", "));
            return Err(Failure::invalid(message).hint("choose one with --catalog"));
        }
    }
    let families = |catalog| Some(Catalog::family_row(catalog, catalog.family(name)?));
    if let Some(family) = catalogs.iter().find_map(families) {
        return format.print(&family, family_page);
    }
    let names = || catalogs.iter().flat_map(|catalog| &catalog.entries).map(|entry| entry.name.as_str());
    let lowercase = name.to_lowercase();
    let group: Vec<&str> = names().filter(|entry| entry.split('.').next() == Some(&lowercase)).collect();
    let hint = match ade_catalog::closest(&lowercase, names()) {
        _ if !group.is_empty() => format!("the group has {}", group.join(", ")),
        Some(near) => format!("did you mean {near}?"),
        None => "list every name with ade keys list".to_owned(),
    };
    Err(Failure::negative(format!("no entry is named {name:?}")).hint(hint))
}

fn family_page(row: &Row<'_>) -> Page {
    let mut page = Page::default();
    page.line(format_args!("{}  {}", row.name.bold(), row.purpose));
    page.field("catalog", row.catalog);
    page.field("pattern", &row.pattern);
    page.field("type", "family");
    page.field("ttl", &row.ttl);
    page
}

fn entry_page(details: &Details<'_>) -> Page {
    let row = &details.row;
    let mut page = Page::default();
    page.line(format_args!("{}  {}", row.name.bold(), row.purpose));
    let has_one_layout = row.pattern == row.cluster_pattern;
    page.field("catalog", format!("{}, from {}", row.catalog, details.source));
    page.field("pattern", &row.pattern);
    page.optional("cluster", (!has_one_layout).then_some(&row.cluster_pattern));
    page.field("type", row.type_name);
    if let EntryKind::Key(shape) = details.kind {
        page.field("ttl", &row.ttl);
        page.field("format", shape.format);
        page.field("sensitivity", shape.sensitivity);
        page.optional("value", shape.value.as_ref());
        page.optional("members", shape.members.as_ref());
        page.optional("score", shape.score.as_ref());
        page.optional("cleanup", shape.cleanup.as_ref());
    }
    page.field("owner", row.owner);
    if let EntryKind::Group { names, stream } = details.kind {
        page.field("groups", names.join(", "));
        page.field("stream", stream);
    }
    page.field("formerly", row.formerly.join(", "));
    page.optional("addition", row.addition.then(|| format!("not in {}", details.source)));
    let (plain, cluster) = (&details.example, &details.cluster_example);
    page.field("example", format!("{}  (slot {})", plain.key, plain.slot));
    if !has_one_layout {
        page.field("", format!("{}  (slot {})", cluster.key, cluster.slot));
    }
    let written = |id: &IdRow<'_>| match id.one_of {
        [] => id.form.clone(),
        members => {
            let members = members.iter().map(|member| marked(&member.value, member.addition));
            members.collect::<Vec<_>>().join(", ")
        }
    };
    let identifiers = output::table(&details.identifiers).column("IDENTIFIER", |id| id.name);
    page.table(&identifiers.column("IDENTIFIES", |id| id.about).column("WRITTEN", written));
    if let EntryKind::Key(shape) = details.kind {
        let fields = output::table(&shape.fields)
            .column("FIELD", |field| marked(&field.name, field.addition))
            .column("TYPE", |field| field.field_type);
        page.table(&fields.column("MEANING", |field| &field.about));
    }
    if let EntryKind::Channel { messages } = details.kind {
        let messages = output::table(messages).column("MESSAGE", |message| &message.name);
        page.table(&messages.column("MEANING", |message| &message.about));
    }
    page
}

fn check_reference(expected: &str, file: &Path, catalog: Option<&str>) -> Result {
    let present = match fs::read_to_string(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(unusable(file, &error)),
        present => present.unwrap_or_default(),
    };
    if present == expected {
        return Ok(());
    }
    let same = present.lines().zip(expected.lines()).take_while(|(old, new)| old == new).count();
    let catalog = catalog.map_or_else(String::new, |catalog| format!("--catalog {catalog} "));
    let command = format!("ade keys doc {catalog}--output {}", file.display());
    Err(Failure::negative(format!("{} is outdated from line {} on", file.display(), same + 1))
        .hint(format!("update it with `{command}`")))
}

fn unusable(file: &Path, error: &io::Error) -> Failure {
    Failure::cannot(format_args!("use {}", file.display()), error)
}
