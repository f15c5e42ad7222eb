//! Tests of the argument parser, and of the reference generated from it.

pub(crate) mod fixture;

use std::fmt::Write;
use std::path::Path;

use ade_testkit::golden::assert_fresh;
use clap::CommandFactory;

use super::*;

#[test]
fn parser_definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn accepts_valid_and_rejects_invalid_arguments() {
    for valid in [
        "config",
        "config --default",
        "config --config a.toml --json",
        "config ls --server http://127.0.0.1:1 --config a.toml",
        "config get approval:validity",
        "config set approval:validity 7d --token t",
        "config feature on batch_approvals --server http://127.0.0.1:1",
        "login",
        "login ann --admin --ttl 4h --password-stdin",
        "join ann:adei_1 --password-stdin --server http://127.0.0.1:1",
        "user invite ann --role author,dba --team web --json",
        "user confirm ann --password-stdin",
        "user passwd --password-stdin --revoke-tokens",
        "admin recover boss --data d --postgres postgres://h/d",
        "admin rotate-token --config a.toml",
        "admin disable-token --data d",
        "approval approve a-1 --password-stdin --server http://127.0.0.1:1",
        "task confirm t-1 --password-stdin",
        "logout --server http://127.0.0.1:1",
        "user add bob --role reviewer,dba --manager ann --no-password",
        "user set bob --add-role dba --no-manager",
        "user token add bob ci --scope read,decide --ttl 8h",
        "agent register bot --name Bot --version 2 --capability build,test --accepts role:author --max-tasks 3 --parent boss",
        "agent set bot --drain",
        "agent grant bot build test --scope accepted",
        "agent token bot --scope read,lock --ttl 8h --json",
        "task create -f - --submit --json",
        "task ls --state reviewing --type deploy --limit 500",
        "task edit t-1 -f change.yaml --revision 3",
        "task override t-1 --reason outage --ticket INC-1",
        "task comment t-1 looks good to me",
        "approval ls --all --status any",
        "approval approve a-1 a-2 --reason fine",
        "approval delegate a-1 --to bob",
        "policy set p-1 -f p.json",
        "resource add database:* --criticality 80 --dependents service:shop,service:mail",
        "resource set database:* --no-dependents",
        "audit ls --actor ann --from 24h --to 2026-07-01",
        "audit export --format csv -o log.csv",
        "audit verify --json",
    ] {
        let words = std::iter::once("ade").chain(valid.split(' '));
        if let Err(error) = Cli::try_parse_from(words) {
            panic!("{valid}: {error}");
        }
    }
    for invalid in [
        "config --default ls",
        "login --ttl soon",
        "user set bob",
        "user set bob --role a --add-role b",
        "user set bob --manager a --no-manager",
        "agent grant bot",
        "agent set bot --drain --resume",
        "agent token bot --scope decide",
        "task create",
        "task revoke t-1",
        "task override t-1 --reason outage",
        "approval reject a-1",
        "approval approve",
        "resource add database:* --criticality 101",
        "resource set database:*",
        "audit ls --from yesterday",
        "audit export --format xml",
    ] {
        let words = std::iter::once("ade").chain(invalid.split(' '));
        assert!(Cli::try_parse_from(words).is_err(), "{invalid} was accepted");
    }
}

#[test]
fn cli_reference_is_fresh() {
    let mut root = Cli::command().term_width(100);
    root.build();
    let mut text = String::from(
        "<!-- Generated from the command line parser by `make docs`. Never edit this file. -->\n# Commands\n",
    );
    append_reference(&mut text, &mut root, "");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    assert_fresh(&file, &text).expect("fresh");
}

/// Appends the help of a command and of its subcommands.
fn append_reference(text: &mut String, command: &mut clap::Command, parent: &str) {
    let path = format!("{parent} {}", command.get_name());
    let path = path.trim();
    let help = command.render_long_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    write!(text, "\n## `{path}`\n\n```text\n{}\n```\n", help.join("\n").trim()).expect("writing to a String");
    let is_public = |command: &&mut clap::Command| command.get_name() != "help" && !command.is_hide_set();
    for subcommand in command.get_subcommands_mut().filter(is_public) {
        append_reference(text, subcommand, path);
    }
}
