//! `ade config ls|get|set|feature`: settings that all servers of a record share, and that change while they run.

use ade_client::Client;
use ade_client::wire::{Feature, FeatureRequest, Setting, SettingRequest};
use clap::{Args as ClapArgs, Subcommand};
use comfy_table::{Cell, Table};
use serde_json::Value;

use crate::connect::{Connection, block_on};
use crate::failure::Failure;
use crate::lists::{ListArgs, Shape};
use crate::output::{self, Tone, safe};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Shared settings: all servers go by them, and they change without a restart
    Ls(ListedArgs),
    /// One shared setting
    Get(GetArgs),
    /// Change a shared setting (admin)
    Set(SetArgs),
    /// What can be switched on and off
    Feature(FeatureArgs),
}

#[derive(Debug, ClapArgs)]
pub(super) struct ListedArgs {
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, ClapArgs)]
pub(super) struct GetArgs {
    /// Its name, such as approval:validity
    name: String,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, ClapArgs)]
pub(super) struct SetArgs {
    /// Its name, such as approval:validity
    name: String,
    /// What it becomes: JSON, or text that is taken as it is
    #[arg(allow_hyphen_values = true)]
    value: String,
    /// Only if it still has this revision
    #[arg(long, value_name = "NUMBER")]
    revision: Option<u64>,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, ClapArgs)]
pub(super) struct FeatureArgs {
    #[command(subcommand)]
    command: FeatureCommand,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Subcommand)]
enum FeatureCommand {
    /// Every flag
    Ls(ListArgs),
    /// Switch something on (admin)
    On(FlagArgs),
    /// Switch something off (admin)
    Off(FlagArgs),
}

#[derive(Debug, ClapArgs)]
struct FlagArgs {
    /// Its name, such as batch_approvals
    flag: String,
    #[command(flatten)]
    shape: Shape,
}

pub(super) fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Ls(args) => {
            let client = args.connection.client()?;
            block_on(async {
                let ask = async |query: &[(&str, &str)]| client.settings(query).await;
                let listed = args.list.fetch(&[], ask).await?;
                args.list.print(&listed, "there is no setting", settings)
            })
        }
        Command::Get(args) => {
            let client = args.connection.client()?;
            let setting = block_on(async { Ok(client.setting(&args.name).await?) })?;
            // Alone on standard output, so that it can be piped on.
            if args.shape.json { output::json(&setting) } else { output::line(&safe(&plain(&setting.value))) }
        }
        Command::Set(args) => {
            let client = args.connection.client()?;
            let request = SettingRequest { value: value(&args.value) };
            let setting =
                block_on(async { Ok(client.change_setting(&args.name, args.revision, &request).await?) })?;
            if args.shape.json {
                output::json(&setting)
            } else {
                output::line(&settings(&[setting]).to_string())
            }
        }
        Command::Feature(args) => {
            let client = args.connection.client()?;
            block_on(feature(&client, args.command))
        }
    }
}

async fn feature(client: &Client, command: FeatureCommand) -> Result<(), Failure> {
    let (args, enabled) = match command {
        FeatureCommand::Ls(args) => {
            let listed = args.fetch(&[], async |query: &[(&str, &str)]| client.features(query).await).await?;
            return args.print(&listed, "there is no flag", features);
        }
        FeatureCommand::On(args) => (args, true),
        FeatureCommand::Off(args) => (args, false),
    };
    let feature = client.switch_feature(&args.flag, None, FeatureRequest { enabled }).await?;
    if args.shape.json { output::json(&feature) } else { output::line(&features(&[feature]).to_string()) }
}

/// JSON if it is, and text if not: nobody should have to quote twice.
fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn settings(settings: &[Setting]) -> Table {
    let mut table = output::table(&["SETTING", "VALUE", "FROM", "WHAT IT DOES"]);
    for setting in settings {
        let from = match (setting.is_default, setting.revision) {
            (true, _) => "default".to_owned(),
            (false, 0) => "this server".to_owned(),
            (false, revision) => format!("revision {revision}"),
        };
        table.add_row([safe(&setting.name), safe(&plain(&setting.value)), from, safe(&setting.about)]);
    }
    table
}

fn features(features: &[Feature]) -> Table {
    let mut table = output::table(&["FLAG", "ON", "WHAT IT DOES"]);
    for feature in features {
        let on = if feature.enabled { Tone::Good.cell("on") } else { Tone::Dim.cell("off") };
        table.add_row([Cell::new(safe(&feature.flag)), on, Cell::new(safe(&feature.about))]);
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_is_json_or_text() {
        assert_eq!(value("48"), json!(48));
        assert_eq!(value("48h"), json!("48h"));
        assert_eq!(value("\"48\""), json!("48"));
        assert_eq!(value("{\"medium\": 25}"), json!({ "medium": 25 }));
    }
}
