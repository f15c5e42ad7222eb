//! `ade keys`: the catalog, as table, JSON or reference, and the way from a concrete key back to its entry.

mod doc;
mod explain;
mod list;
mod nearest;
mod show;

use std::borrow::Cow;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use ade_catalog::Catalog;
use clap::Subcommand;

use crate::failure::{Failure, Kind};

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
    List {
        /// An array of objects instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Show one entry: shape, lifetime, identifiers, an example key and its slot
    Show {
        /// Name of the entry, as in `lock.task`
        name: String,
        /// An object instead of text
        #[arg(long)]
        json: bool,
    },
    /// Tell which entry a concrete key belongs to, in either layout
    Explain {
        /// The key as the server has it
        key: String,
        /// An object instead of text
        #[arg(long)]
        json: bool,
    },
    /// Write the Markdown reference
    Doc {
        /// Write to this file instead of standard output
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Write nothing; fail if this file is not what would be written
        #[arg(long, value_name = "FILE", conflicts_with = "output")]
        check: Option<PathBuf>,
    },
}

fn shipped_names() -> String {
    let names: Vec<&str> = ade_keyspace::catalogs().iter().map(|catalog| catalog.name.as_str()).collect();
    names.join(", ")
}

fn catalog_help() -> String {
    format!(
        "A shipped catalog ({}) or a catalog file of your own; without it, all shipped ones",
        shipped_names()
    )
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let catalogs = chosen(args.catalog.as_deref())?;
    match &args.command {
        Command::List { json } => list::run(&catalogs, *json),
        Command::Show { name, json } => show::run(&catalogs, name, *json),
        Command::Explain { key, json } => explain::run(&catalogs, key, *json),
        Command::Doc { output, check } => {
            doc::run(&catalogs, args.catalog.as_deref(), output.as_deref(), check.as_deref())
        }
    }
}

/// The catalogs a command works on.
fn chosen(choice: Option<&str>) -> Result<Cow<'static, [Catalog]>, Failure> {
    let shipped = ade_keyspace::catalogs();
    let Some(choice) = choice else { return Ok(Cow::Borrowed(shipped)) };
    if let Some(catalog) = shipped.iter().find(|catalog| catalog.name == choice) {
        return Ok(Cow::Borrowed(std::slice::from_ref(catalog)));
    }
    let unreadable = |reason: String| {
        Failure::new(Kind::Input, format!("cannot read the catalog {choice}: {reason}"))
            .hint(format!("give one of {} or the path of a catalog file", shipped_names()))
    };
    let mut source = String::new();
    File::open(choice)
        .and_then(|file| file.take(MAX_CATALOG_BYTES + 1).read_to_string(&mut source))
        .map_err(|error| unreadable(error.to_string()))?;
    if source.len() as u64 > MAX_CATALOG_BYTES {
        return Err(unreadable(format!("it is larger than {MAX_CATALOG_BYTES} bytes")));
    }
    let catalog =
        Catalog::parse(choice, &source).map_err(|error| Failure::new(Kind::Input, error.to_string()))?;
    Ok(Cow::Owned(vec![catalog]))
}
