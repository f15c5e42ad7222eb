//! `ade config`: the configuration of a local server, and the settings that all servers share.
//!
//! Configuration files and environment variables are read here and nowhere else.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use ade_client::Client;
use ade_client::wire::{Feature, FeatureRequest, Setting, SettingRequest};
use ade_config::{Config, ConfigLayers, EffectiveSetting};
use clap::{Args as ClapArgs, Subcommand};
use serde_json::{Value, json};

use crate::connect::{Remote, RemoteCommand};
use crate::failure::{Failure, Result};
use crate::output::list::ListArgs;
use crate::output::{self, OutputFormat, Table, Tone, safe};

/// Used if it exists and no other file is named.
const DEFAULT_FILE: &str = "ade.toml";

#[derive(Debug, Clone, ClapArgs)]
pub(crate) struct ConfigFile {
    /// Configuration file [default: ade.toml in the current folder, if it exists]
    #[arg(long, value_name = "FILE", env = "ADE_CONFIG", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    file: ConfigFile,
    /// Print a commented configuration file with every setting and its default
    #[arg(long)]
    default: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "default")]
    json: bool,
}

/// Commands about settings that all servers share, and that change while they run.
#[derive(Debug, Subcommand)]
enum Command {
    /// List the shared settings: they apply to all servers without a restart
    Ls(Remote<ListArgs>),
    /// Print the value of a shared setting
    Get(Remote<GetArgs>),
    /// Change a shared setting (admin)
    Set(Remote<SetArgs>),
    /// List and switch feature flags
    Feature(RemoteCommand<FeatureCommand>),
}

#[derive(Debug, ClapArgs)]
struct GetArgs {
    /// Name of the setting, such as approval:validity
    name: String,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, ClapArgs)]
struct SetArgs {
    /// Name of the setting, such as approval:validity
    name: String,
    /// New value: JSON, or plain text
    #[arg(allow_hyphen_values = true)]
    value: String,
    /// Change it only if it still has this revision
    #[arg(long, value_name = "NUMBER")]
    revision: Option<u64>,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, Subcommand)]
enum FeatureCommand {
    /// List feature flags
    Ls(ListArgs),
    /// Switch a feature on (admin)
    On(FlagArgs),
    /// Switch a feature off (admin)
    Off(FlagArgs),
}

#[derive(Debug, ClapArgs)]
struct FlagArgs {
    /// Name of the flag, such as batch_approvals
    flag: String,
    #[command(flatten)]
    format: OutputFormat,
}

pub(crate) fn run(args: Args) -> Result {
    match args.command {
        None => show(&args),
        Some(Command::Ls(args)) => args.run(async |client: &Client, list: ListArgs| {
            list.show(&[], async |query| client.settings(query).await, setting_table).await
        }),
        Some(Command::Get(args)) => args.run(async |client: &Client, GetArgs { name, format }| {
            // Only the value goes to standard output, so that it can be piped.
            format.print(&client.setting(&name).await?, |setting| safe(&plain_text(&setting.value)))
        }),
        Some(Command::Set(args)) => args.run(async |client: &Client, args: SetArgs| {
            let request = SettingRequest { value: parse_value(&args.value) };
            let setting = client.set_setting(&args.name, args.revision, &request).await?;
            args.format.print_row(&setting, setting_table)
        }),
        Some(Command::Feature(args)) => args.run(feature),
    }
}

/// Shows the effective configuration of a local server.
fn show(args: &Args) -> Result {
    if args.default {
        return output::raw(Config::default_file());
    }
    let config = load(&args.file, [])?;
    let faults = config.executors.files.unusable_roots();
    let faults =
        faults.iter().map(|fault| format!("{}: {} {}", fault.name, fault.path.display(), fault.problem));
    let faults: Vec<String> = faults.collect();
    for fault in &faults {
        output::warning(&format!("{fault}: tasks that change files there fail until this is fixed"));
    }
    if args.json {
        let entry = |setting: &EffectiveSetting| json!({ "name": setting.name, "value": setting.value, "origin": setting.origin.to_string(), "about": setting.about });
        return output::json(&config.effective_settings.iter().map(entry).collect::<Vec<_>>());
    }
    let about = |setting: &EffectiveSetting| match setting.name.as_str() {
        "executors.files.roots" => [&[setting.about.to_owned()], &faults[..]].concat().join("\n"),
        _ => setting.about.to_owned(),
    };
    let table = output::table(&config.effective_settings)
        .column("SETTING", |setting| &setting.name)
        .column("VALUE", |setting| &setting.value)
        .column("FROM", |setting| &setting.origin)
        .column("DESCRIPTION", about);
    output::line(table)
}

/// A setting, the name of its option, and its value if given.
type Flag = (&'static str, &'static str, Option<String>);

/// Merges defaults, file, environment variables and flags.
pub(crate) fn load(file: &ConfigFile, flags: impl IntoIterator<Item = Flag>) -> Result<Config> {
    let path = file.config.clone().unwrap_or_else(|| DEFAULT_FILE.into());
    let file = match fs::read_to_string(&path) {
        Ok(text) => Some((path, text)),
        Err(error) if error.kind() == ErrorKind::NotFound && file.config.is_none() => None,
        Err(error) => {
            return Err(Failure::cannot(format_args!("read {}", path.display()), error)
                .hint("print a file to start from with ade config --default"));
        }
    };
    let flags = flags.into_iter().filter_map(|(name, flag, value)| Some((name, flag, value?))).collect();
    let layers = ConfigLayers { file, variables: variables(), flags };
    Config::load(&layers).map_err(|error| {
        Failure::invalid(error.to_string()).hint(
            "list all settings with ade config, or print a file to start from with ade config --default",
        )
    })
}

fn variables() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .collect()
}

/// The admin token from the environment, if it is set.
pub(super) fn admin_token() -> Option<String> {
    variables().into_iter().find(|(name, _)| name == "ADE_ADMIN_TOKEN").map(|(_, value)| value)
}

async fn feature(client: &Client, command: FeatureCommand) -> Result {
    let (args, enabled) = match command {
        FeatureCommand::Ls(args) => {
            return args.show(&[], async |query| client.features(query).await, feature_table).await;
        }
        FeatureCommand::On(args) => (args, true),
        FeatureCommand::Off(args) => (args, false),
    };
    let feature = client.set_feature(&args.flag, None, &FeatureRequest { enabled }).await?;
    args.format.print_row(&feature, feature_table)
}

/// Parses JSON; anything else is text, so that text needs no second pair of quotes.
fn parse_value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

fn plain_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn setting_table(settings: &[Setting]) -> Table<'_, Setting> {
    output::list(settings, "no settings found")
        .column("SETTING", |setting| safe(&setting.name))
        .column("VALUE", |setting| safe(&plain_text(&setting.value)))
        .column("FROM", |setting| match (setting.is_default, setting.revision) {
            (true, _) => "default".to_owned(),
            (false, 0) => "this server".to_owned(),
            (false, revision) => format!("revision {revision}"),
        })
        .column("DESCRIPTION", |setting| safe(&setting.description))
}

fn feature_table(features: &[Feature]) -> Table<'_, Feature> {
    let status = |it: &Feature| if it.enabled { Tone::Good.cell("on") } else { Tone::Dim.cell("off") };
    output::list(features, "no feature flags found")
        .column("FLAG", |feature| safe(&feature.flag))
        .column("STATUS", status)
        .column("DESCRIPTION", |feature| safe(&feature.description))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_values_as_json_or_text() {
        assert_eq!(parse_value("48"), json!(48));
        assert_eq!(parse_value("48h"), json!("48h"));
        assert_eq!(parse_value("\"48\""), json!("48"));
        assert_eq!(parse_value("{\"medium\": 25}"), json!({ "medium": 25 }));
    }
}
