//! `ade delegation`: manage delegations: who decides in place of whom, for which tasks and how long.

use ade_client::Client;
use ade_client::wire::{Delegation, DelegationConditions, DelegationKind, DelegationRequest};
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use comfy_table::Table;
use jiff::Timestamp;

use crate::failure::Failure;
use crate::output::list::ListArgs;
use crate::output::time::{self, When};
use crate::output::{self, OutputFormat, safe};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List delegations
    Ls(ListArgs),
    /// Show a delegation
    Show(DelegationArgs),
    /// Delegate your approval requests to another user
    Add(AddArgs),
    /// Remove a delegation
    Rm {
        /// Id of the delegation
        #[arg(value_name = "DELEGATION")]
        delegation_id: String,
    },
    /// Deactivate a delegation
    Off(DelegationArgs),
    /// Activate a delegation again
    On(DelegationArgs),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DelegationArgs {
    /// Id of the delegation
    #[arg(value_name = "DELEGATION")]
    delegation_id: String,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct AddArgs {
    /// User who decides instead, or whom the owner follows
    #[arg(long, value_name = "USER")]
    to: String,
    /// User whose approval requests are delegated (admin) [default: you]
    #[arg(long, value_name = "USER")]
    owner: Option<String>,
    /// delegate: the other user decides instead; follow: an approval of the other user counts for the owner too
    #[arg(long, value_enum, default_value_t = KindArg::Delegate)]
    kind: KindArg,
    /// Only for tasks of these types
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    types: Vec<String>,
    /// Only for tasks above this risk score
    #[arg(long, value_name = "SCORE", value_parser = clap::value_parser!(u8).range(0..=100))]
    risk_above: Option<u8>,
    /// Only for tasks that touch these resources, as type:id with * and ?
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    resources: Vec<String>,
    /// Start: a time, a date, or a duration from now such as 2d
    #[arg(long, value_name = "TIME", value_parser = time::parse_when)]
    from: Option<When>,
    /// End: a time, a date, or a duration from now such as 14d
    #[arg(long, value_name = "TIME", value_parser = time::parse_when)]
    until: Option<When>,
    /// Do not apply the delegations of the other user
    #[arg(long)]
    no_cascade: bool,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum KindArg {
    Delegate,
    Follow,
}

impl AddArgs {
    fn request(self, now: Timestamp) -> DelegationRequest {
        DelegationRequest {
            owner_id: self.owner,
            delegate_to: Some(self.to),
            kind: Some(match self.kind {
                KindArg::Delegate => DelegationKind::Delegate,
                KindArg::Follow => DelegationKind::Follow,
            }),
            conditions: Some(DelegationConditions {
                task_types: self.types,
                risk_above: self.risk_above,
                resource_patterns: self.resources,
            }),
            cascade: Some(!self.no_cascade),
            active: None,
            valid_from: self.from.map(|from| Some(from.in_future(now))),
            valid_until: self.until.map(|until| Some(until.in_future(now))),
        }
    }
}

pub(crate) async fn run(client: &Client, command: Command) -> Result<(), Failure> {
    let (format, delegation) = match command {
        Command::Ls(args) => {
            let fetch = async |query: &[(&str, &str)]| client.delegations(query).await;
            return args.show(&[], fetch, "no delegations found", table).await;
        }
        Command::Rm { delegation_id } => {
            client.delete_delegation(&delegation_id).await?;
            return output::line(&format!("delegation {} is removed", safe(&delegation_id)));
        }
        Command::Show(args) => (args.format, client.delegation(&args.delegation_id).await?),
        Command::Add(args) => (args.format, client.create_delegation(&args.request(time::now())).await?),
        Command::Off(args) => set_active(client, &args, false).await?,
        Command::On(args) => set_active(client, &args, true).await?,
    };
    format.print_row(&delegation, table)
}

async fn set_active(
    client: &Client,
    args: &DelegationArgs,
    active: bool,
) -> Result<(OutputFormat, Delegation), Failure> {
    let patch = DelegationRequest { active: Some(active), ..DelegationRequest::default() };
    Ok((args.format, client.update_delegation(&args.delegation_id, None, &patch).await?))
}

fn table(delegations: &[Delegation]) -> Table {
    let mut table =
        output::table(&["DELEGATION", "OWNER", "KIND", "TO", "APPLIES TO", "FROM", "UNTIL", "ACTIVE"]);
    for delegation in delegations {
        let kind = match delegation.kind {
            DelegationKind::Delegate => "delegates to",
            DelegationKind::Follow => "follows",
        };
        table.add_row([
            safe(&delegation.delegation_id),
            safe(&delegation.owner_id),
            kind.to_owned(),
            safe(&delegation.delegate_to),
            scope(delegation),
            delegation.valid_from.map(time::timestamp).unwrap_or_default(),
            delegation.valid_until.map(time::timestamp).unwrap_or_default(),
            if delegation.active { "yes" } else { "no" }.to_owned(),
        ]);
    }
    table
}

/// The tasks that a delegation applies to.
fn scope(delegation: &Delegation) -> String {
    let DelegationConditions { task_types, risk_above, resource_patterns } = &delegation.conditions;
    let mut parts = Vec::new();
    if !task_types.is_empty() {
        parts.push(format!("type {}", safe(&task_types.join(" or "))));
    }
    parts.extend(risk_above.map(|risk| format!("risk above {risk}")));
    if !resource_patterns.is_empty() {
        parts.push(safe(&resource_patterns.join(" or ")));
    }
    if parts.is_empty() {
        parts.push("every task".to_owned());
    }
    if !delegation.cascade {
        parts.push("not cascading".to_owned());
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct TestCli {
        #[command(flatten)]
        add: AddArgs,
    }

    #[test]
    fn builds_request_from_arguments() {
        let line = "add --to bob --kind follow --types deploy,migration --risk-above 40 --resources database:* --until 14d --no-cascade";
        let parsed = TestCli::try_parse_from(line.split(' ')).expect("parsed");
        let request = parsed.add.request("2026-07-01T00:00:00Z".parse().expect("a time"));
        let body = serde_json::to_value(&request).expect("JSON");
        let expected = serde_json::json!({
            "delegate_to": "bob", "kind": "follow", "cascade": false, "valid_until": "2026-07-15T00:00:00.000000Z",
            "conditions": { "task_types": ["deploy", "migration"], "risk_above": 40, "resource_patterns": ["database:*"] },
        });
        assert_eq!(body, expected);
    }
}
