//! `ade delegation`: manage delegations: who decides in place of whom, for which tasks and how long.

use ade_client::Client;
use ade_client::wire::{Delegation, DelegationConditions, DelegationKind, DelegationRequest, Time};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args as ClapArgs, Subcommand};

use super::login::deciding::PasswordSource;
use super::policy::any_of;
use crate::failure::Result;
use crate::output::list::ListArgs;
use crate::output::{self, OutputFormat, Table, safe, time, yes_or_no};

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
        delegation: String,
    },
    /// Deactivate a delegation
    Off(DelegationArgs),
    /// Activate a delegation again
    On(DelegationArgs),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DelegationArgs {
    /// Id of the delegation
    delegation: String,
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
    #[arg(long, value_parser = kind_parser(), default_value = "delegate")]
    kind: DelegationKind,
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
    #[arg(long, value_name = "TIME", value_parser = time::parse_future)]
    from: Option<Time>,
    /// End: a time, a date, or a duration from now such as 14d
    #[arg(long, value_name = "TIME", value_parser = time::parse_future)]
    until: Option<Time>,
    /// Do not apply the delegations of the other user
    #[arg(long)]
    no_cascade: bool,
    #[command(flatten)]
    format: OutputFormat,
}

fn kind_parser() -> impl TypedValueParser<Value = DelegationKind> {
    PossibleValuesParser::new(["delegate", "follow"]).map(|kind| match kind.as_str() {
        "follow" => DelegationKind::Follow,
        _ => DelegationKind::Delegate,
    })
}

impl AddArgs {
    fn request(self) -> DelegationRequest {
        DelegationRequest {
            owner_id: self.owner,
            delegate_to: Some(self.to),
            kind: Some(self.kind),
            conditions: Some(DelegationConditions {
                task_types: self.types,
                risk_above: self.risk_above,
                resource_patterns: self.resources,
            }),
            cascade: Some(!self.no_cascade),
            active: None,
            valid_from: self.from.map(Some),
            valid_until: self.until.map(Some),
        }
    }
}

pub(crate) async fn run(client: &Client, (command, password): (Command, PasswordSource)) -> Result {
    match command {
        Command::Ls(_) | Command::Show(_) => execute(client, command).await,
        // Who changes a delegation must have the right to decide.
        _ => password.decide(client, async |client| execute(client, command).await).await,
    }
}

async fn execute(client: &Client, command: Command) -> Result {
    let (format, delegation) = match command {
        Command::Ls(args) => {
            return args.show(&[], async |query| client.delegations(query).await, table).await;
        }
        Command::Rm { delegation } => {
            client.delete_delegation(&delegation).await?;
            return output::line(format_args!("delegation {} is removed", safe(&delegation)));
        }
        Command::Show(args) => (args.format, client.delegation(&args.delegation).await?),
        Command::Add(args) => (args.format, client.create_delegation(&args.request()).await?),
        Command::Off(args) => (args.format, set_active(client, &args, false).await?),
        Command::On(args) => (args.format, set_active(client, &args, true).await?),
    };
    format.print_row(&delegation, table)
}

async fn set_active(client: &Client, args: &DelegationArgs, active: bool) -> Result<Delegation> {
    let patch = DelegationRequest { active: Some(active), ..DelegationRequest::default() };
    Ok(client.update_delegation(&args.delegation, None, &patch).await?)
}

fn table(delegations: &[Delegation]) -> Table<'_, Delegation> {
    let kind = |delegation: &Delegation| match delegation.kind {
        DelegationKind::Delegate => "delegates to",
        DelegationKind::Follow => "follows",
    };
    output::list(delegations, "no delegations found")
        .column("DELEGATION", |delegation| safe(&delegation.delegation_id))
        .column("OWNER", |delegation| safe(&delegation.owner_id))
        .column("KIND", kind)
        .column("TO", |delegation| safe(&delegation.delegate_to))
        .column("APPLIES TO", scope)
        .column("FROM", |delegation| delegation.valid_from.map(time::timestamp).unwrap_or_default())
        .column("UNTIL", |delegation| delegation.valid_until.map(time::timestamp).unwrap_or_default())
        .column("ACTIVE", |delegation| yes_or_no(delegation.active))
}

/// The tasks that a delegation applies to.
fn scope(delegation: &Delegation) -> String {
    let DelegationConditions { task_types, risk_above, resource_patterns } = &delegation.conditions;
    let parts = [
        any_of("type ", task_types.iter()),
        risk_above.map(|risk| format!("risk above {risk}")),
        any_of("", resource_patterns.iter()),
    ];
    let mut parts: Vec<String> = parts.into_iter().flatten().collect();
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
        let line = "add --to bob --kind follow --types deploy,migration --risk-above 40 --resources database:* --until 2026-07-15 --no-cascade";
        let parsed = TestCli::try_parse_from(line.split(' ')).expect("parsed");
        let request = parsed.add.request();
        let body = serde_json::to_value(&request).expect("JSON");
        let expected = serde_json::json!({
            "delegate_to": "bob", "kind": "follow", "cascade": false, "valid_until": "2026-07-15T00:00:00.000000Z",
            "conditions": { "task_types": ["deploy", "migration"], "risk_above": 40, "resource_patterns": ["database:*"] },
        });
        assert_eq!(body, expected);
    }
}
