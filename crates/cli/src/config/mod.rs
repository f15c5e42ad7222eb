//! `ade config`: the configuration of a server here, and settings that all servers share; and how every command finds the configuration: this is where files and variables are read.

mod shared;

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use ade_server::{Config, Layers, unusable_roots};
use clap::Args as ClapArgs;
use serde_json::json;

use crate::failure::{Failure, Kind};
use crate::output;

/// The file that is used if it is there and none is named.
const DEFAULT_FILE: &str = "ade.toml";

/// Which configuration file to use.
#[derive(Debug, Clone, ClapArgs)]
pub(crate) struct ConfigFile {
    /// Configuration file [default: ade.toml in this folder, if it is there]
    #[arg(long, value_name = "FILE", env = "ADE_CONFIG", hide_env_values = true)]
    config: Option<PathBuf>,
}

impl ConfigFile {
    /// This file, or the usual one.
    pub(crate) const fn at(config: Option<PathBuf>) -> Self {
        Self { config }
    }
}

#[derive(Debug, ClapArgs)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<shared::Command>,
    #[command(flatten)]
    file: ConfigFile,
    /// Print a commented file with every setting and its default instead
    #[arg(long)]
    default: bool,
    /// As JSON
    #[arg(long, conflicts_with = "default")]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    if let Some(command) = args.command {
        return shared::run(command);
    }
    if args.default {
        return output::text(&Config::default_file());
    }
    let config = load(&args.file, Vec::new())?;
    let faults: Vec<String> =
        unusable_roots(&config).iter().map(|(root, why)| format!("{} {why}", root.display())).collect();
    for fault in &faults {
        output::warning(&format!("{fault}: tasks that change files there fail until that is mended"));
    }
    if args.json {
        let one = |setting: &ade_server::config::Effective| json!({ "name": setting.name, "value": setting.value, "origin": setting.origin.to_string(), "about": setting.about });
        return output::json(&config.effective.iter().map(one).collect::<Vec<_>>());
    }
    let mut table = output::table(&["SETTING", "VALUE", "FROM", "WHAT IT DOES"]);
    for setting in &config.effective {
        let about = match setting.name.as_str() {
            "executors.files.roots" => [&[setting.about.to_owned()], &faults[..]].concat().join("\n"),
            _ => setting.about.to_owned(),
        };
        table.add_row([&setting.name, &setting.value, &setting.origin.to_string(), &about]);
    }
    output::line(&table.to_string())
}

/// The three layers, put together.
pub(crate) fn load(
    file: &ConfigFile,
    flags: Vec<(&'static str, &'static str, String)>,
) -> Result<Config, Failure> {
    let path = file.config.clone().unwrap_or_else(|| DEFAULT_FILE.into());
    let file = match fs::read_to_string(&path) {
        Ok(text) => Some((path, text)),
        Err(error) if error.kind() == ErrorKind::NotFound && file.config.is_none() => None,
        Err(error) => {
            let failure = Failure::new(Kind::Unavailable, format!("cannot read {}: {error}", path.display()));
            return Err(failure.hint("ade config --default prints a file to start from"));
        }
    };
    let layers = Layers { file, variables: variables(), flags };
    Config::load(&layers).map_err(|error| {
        Failure::new(Kind::Input, error.to_string())
            .hint("ade config lists every setting; ade config --default prints a file to start from")
    })
}

fn variables() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .collect()
}

/// The administrator's token, if it is set from outside.
pub(crate) fn admin_token() -> Option<String> {
    variables().into_iter().find(|(name, _)| name == "ADE_ADMIN_TOKEN").map(|(_, value)| value)
}
