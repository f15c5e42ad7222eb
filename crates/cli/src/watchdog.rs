//! The hidden subcommand that is started beside the command of `ade lock hold`, and beside those of workers.

use std::io;

use crate::connect::block_on;
use crate::failure::{Failure, Kind};

pub(crate) fn run() -> Result<(), Failure> {
    block_on(async {
        ade_executors::watchdog::run().await.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => {
                Failure::new(Kind::Input, "this is started beside commands by ade itself, not by hand")
            }
            _ => Failure::new(Kind::Unavailable, format!("cannot watch over a command: {error}")),
        })
    })
}
