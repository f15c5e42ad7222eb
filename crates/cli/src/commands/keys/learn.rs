//! `ade keys learn`: writes a first catalog from a live Redis.

use std::fs;
use std::path::PathBuf;

use ade_domain::text::counted;
use ade_keytool::audit::Progress;
use ade_keytool::learn::learn;
use ade_keytool::server::Role;
use ade_keytool::text::count;

use super::scan_args::{ScanArgs, progress_bar};
use crate::connect::block_on_all_cores;
use crate::failure::{Failure, Result};
use crate::output;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    scan: ScanArgs,
    /// Read replicas instead of primaries
    #[arg(long)]
    replicas: bool,
    /// Name of the catalog
    #[arg(long, default_value = "learned")]
    name: String,
    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result {
    let role = if args.replicas { Role::Replica } else { Role::Primary };
    block_on_all_cores(async {
        let bar = progress_bar("learning");
        let progress = |Progress { keys, expected }| {
            if let Some(expected) = expected {
                bar.set_length(expected.max(keys));
            }
            bar.set_position(keys);
        };
        let learned = learn(&args.scan.url, &args.name, role, args.scan.pace(), &progress).await;
        bar.finish_and_clear();
        let learned = learned?;
        match &args.output {
            Some(file) => fs::write(file, &learned.toml)
                .map_err(|error| Failure::cannot(format_args!("write {}", file.display()), error))?,
            None => output::raw(&learned.toml)?,
        }
        for (pattern, keys, reason) in &learned.rejected {
            output::warning(&format!("left out {pattern} with {} keys: {reason}", count(*keys)));
        }
        output::note(&format!("learned {}", counted(learned.entries as u64, "pattern", "patterns")));
        Ok(())
    })
}
