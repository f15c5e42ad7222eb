//! `ade keys generate`: typed builders of keys in other languages.

use std::fs;
use std::path::PathBuf;

use ade_catalog::{Catalog, builders};
use clap::ValueEnum;

use crate::failure::{Failure, Result};
use crate::output;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Language of the builders; vectors: identifiers and keys as JSON, to test builders with
    #[arg(long, value_enum)]
    language: Language,
    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Language {
    Rust,
    Python,
    Typescript,
    Javascript,
    Go,
    Vectors,
}

pub(super) fn run(args: &Args, catalogs: &[Catalog]) -> Result {
    let [catalog] = catalogs else {
        let hint = "use ade, mediation, mesh, or the path of a catalog file";
        return Err(Failure::invalid("choose one catalog with --catalog").hint(hint));
    };
    let code = match args.language {
        Language::Rust => builders::generate(catalog),
        Language::Python => builders::python::generate(catalog),
        Language::Typescript => builders::typescript::generate(catalog, true),
        Language::Javascript => builders::typescript::generate(catalog, false),
        Language::Go => builders::go::generate(catalog),
        Language::Vectors => {
            let json = serde_json::to_string_pretty(&builders::vectors::vectors(catalog, &[]));
            json.map_err(|error| Failure::cannot("write JSON", error))? + "\n"
        }
    };
    match &args.output {
        Some(file) => fs::write(file, code)
            .map_err(|error| Failure::cannot(format_args!("write {}", file.display()), error)),
        None => output::raw(&code),
    }
}
