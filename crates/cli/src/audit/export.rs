//! `ade audit export`: the log as text, to a file or to standard output. A file is there whole or not at all.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ade_client::{Client, Export};
use clap::{Args as ClapArgs, ValueEnum};
use tempfile::NamedTempFile;

use super::{Filters, borrowed};
use crate::failure::{Failure, Kind};
use crate::output;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    filters: Filters,
    /// One JSON object a line, or a table for spreadsheets
    #[arg(long, value_enum, default_value_t = Format::Ndjson)]
    format: Format,
    /// Write it here instead of to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Ndjson,
    Csv,
}

pub(super) async fn run(client: &Client, args: &Args) -> Result<(), Failure> {
    let format = match args.format {
        Format::Ndjson => "ndjson",
        Format::Csv => "csv",
    };
    let query = args.filters.query();
    let mut export = client.export_audit(format, &borrowed(&query)).await?;
    let Some(file) = &args.output else {
        copy(&mut export, &mut io::stdout().lock()).await?;
        return Ok(());
    };
    let cannot = |error: io::Error| {
        Failure::new(Kind::Unavailable, format!("cannot write {}: {error}", file.display()))
    };
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut aside = NamedTempFile::new_in(folder).map_err(cannot)?;
    let many = copy(&mut export, aside.as_file_mut()).await?;
    aside.as_file().sync_all().map_err(cannot)?;
    aside.persist(file).map_err(|error| cannot(error.error))?;
    output::note(&format!("{many} bytes are in {}", file.display()));
    Ok(())
}

async fn copy(export: &mut Export, to: &mut impl Write) -> Result<u64, Failure> {
    let mut many = 0;
    while let Some(piece) = export.next().await? {
        to.write_all(&piece)?;
        many += piece.len() as u64;
    }
    to.flush()?;
    Ok(many)
}
