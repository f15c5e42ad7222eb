//! The hidden subcommand that runs previews with limits of the operating system, which nobody has approved yet.

use std::ffi::OsString;
use std::io;

use crate::failure::{Failure, Result};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The limits, and what to run
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> Result {
    ade_executors::limited_process::run(&args.arguments).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => {
            Failure::invalid("this command is started by ade itself; do not run it by hand")
        }
        _ => Failure::cannot("run the preview", error),
    })
}
