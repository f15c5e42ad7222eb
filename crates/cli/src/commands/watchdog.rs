//! The hidden subcommand that runs beside commands of `ade lock hold` and of workers, and stops them when their parent is gone.

use std::io;

use crate::connect::block_on;
use crate::failure::{Failure, Result};

pub(crate) fn run() -> Result {
    block_on(async {
        ade_executors::watchdog::run().await.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => {
                Failure::invalid("this command is started by ade itself; do not run it by hand")
            }
            _ => Failure::cannot("watch the command", error),
        })
    })
}
