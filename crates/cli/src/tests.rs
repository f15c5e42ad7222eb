//! The argument parser as a whole, and the reference made from it.

use std::fmt::Write;
use std::path::Path;

use ade_testkit::golden::assert_fresh;
use clap::CommandFactory;

use super::*;

#[test]
fn arguments_are_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn the_reference_of_commands_is_fresh() {
    let mut root = Cli::command().term_width(100);
    root.build();
    let mut text = String::from(
        "<!-- Generated from the command line parser by `make docs`. Never edit this file. -->\n# Commands\n",
    );
    reference(&mut text, &mut root, "");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    assert_fresh(&file, &text).expect("fresh");
}

/// The help of a command and of all below it.
fn reference(text: &mut String, command: &mut clap::Command, above: &str) {
    let path = format!("{above} {}", command.get_name());
    let path = path.trim();
    let help = command.render_long_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    write!(text, "\n## `{path}`\n\n```text\n{}\n```\n", help.join("\n").trim()).expect("a String takes all");
    let for_people = |below: &&mut clap::Command| below.get_name() != "help" && !below.is_hide_set();
    for below in command.get_subcommands_mut().filter(for_people) {
        reference(text, below, path);
    }
}
