//! `ade change`: changes of who decides, and by which rules, that wait for a second administrator (dual control).

use std::collections::BTreeMap;

use ade_client::Client;
use ade_client::wire::{Change, ReasonRequest};
use clap::{Args as ClapArgs, Subcommand};
use serde_json::Value;

use super::login::deciding::PasswordSource;
use crate::failure::Result;
use crate::output::list::ListArgs;
use crate::output::page::Page;
use crate::output::{self, OutputFormat, Table, safe, time};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the changes that wait
    Ls(ListArgs),
    /// Show what a change would change
    Show(ChangeArgs),
    /// Confirm a change of another administrator, which makes it (admin)
    Confirm(ChangeArgs),
    /// Reject a change, or withdraw your own (admin)
    Reject {
        #[command(flatten)]
        args: ChangeArgs,
        /// Why
        #[arg(long)]
        reason: Option<String>,
    },
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ChangeArgs {
    /// Id of the change
    change: String,
    #[command(flatten)]
    format: OutputFormat,
}

pub(crate) async fn run(client: &Client, (command, password): (Command, PasswordSource)) -> Result {
    match command {
        Command::Ls(args) => args.show(&[], async |query| client.changes(query).await, table).await,
        Command::Show(args) => args.format.print(&client.change(&args.change).await?, page),
        Command::Confirm(args) => {
            let confirm = async |client: &Client| Ok(client.confirm_change(&args.change).await?);
            let change = password.decide_or_operate(client, confirm).await?;
            args.format.print(&change, |change| format!("{} is made", summary(change)))
        }
        Command::Reject { args, reason } => {
            let body = ReasonRequest { reason };
            let reject = async |client: &Client| Ok(client.reject_change(&args.change, &body).await?);
            let change = password.decide_or_operate(client, reject).await?;
            args.format.print(&change, |change| format!("{} is rejected", summary(change)))
        }
    }
}

fn summary(change: &Change) -> String {
    format!("{} {}", safe(&change.action), safe(&change.object_id))
}

fn proposer(change: &Change) -> String {
    change.proposed_by.as_ref().map_or_else(|| "the bootstrap token".to_owned(), |user| safe(user))
}

fn table(changes: &[Change]) -> Table<'_, Change> {
    output::list(changes, "no changes wait for a second administrator")
        .column("CHANGE", |change| safe(&change.change_id))
        .column("WHAT", summary)
        .column("PROPOSED BY", proposer)
        .column("AT", |change| time::timestamp(change.proposed_at))
        .column("UNTIL", |change| time::timestamp(change.expires_at))
}

fn page(change: &Change) -> Page {
    let mut page = Page::default();
    page.line(summary(change));
    page.field("change", safe(&change.change_id));
    page.field("proposed by", format!("{} at {}", proposer(change), time::timestamp(change.proposed_at)));
    page.field("waits until", time::timestamp(change.expires_at));
    page.heading("Changes");
    let before = fields(change.details.get("before"));
    let mut new = change.details.clone();
    new.remove("before");
    let after = fields(new.remove("after").or(Some(new.into())).as_ref());
    let names: Vec<&String> =
        before.keys().chain(after.keys().filter(|name| !before.contains_key(*name))).collect();
    for name in names.into_iter().filter(|name| before.get(*name) != after.get(*name)) {
        let [old, new] = [&before, &after].map(|fields| fields.get(name).map_or("none", String::as_str));
        let text = if before.is_empty() { safe(new) } else { format!("{} → {}", safe(old), safe(new)) };
        page.field(&safe(name), text);
    }
    page
}

/// All values inside a JSON value, by their path.
fn fields(value: Option<&Value>) -> BTreeMap<String, String> {
    let mut open: Vec<(String, &Value)> = value.map(|value| (String::new(), value)).into_iter().collect();
    let mut fields = BTreeMap::new();
    while let Some((path, value)) = open.pop() {
        match value {
            Value::Object(inner) => open.extend(inner.iter().map(|(name, value)| {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                (path, value)
            })),
            Value::Null => {}
            value => {
                let path = if path.is_empty() { "value".to_owned() } else { path };
                fields.insert(path, value.to_string());
            }
        }
    }
    fields
}
