//! The argument parser as a whole.

use clap::CommandFactory;

use super::*;

#[test]
fn arguments_are_consistent() {
    Cli::command().debug_assert();
}
