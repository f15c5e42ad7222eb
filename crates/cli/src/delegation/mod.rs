//! `ade delegation`: who stands in for whom, for what and for how long.

use ade_client::Client;
use ade_client::wire::{Delegation, DelegationRequest};
use ade_domain::approval::delegation::{Conditions, Kind};
use ade_domain::glob::Pattern;
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use comfy_table::Table;
use jiff::Timestamp;

use crate::connect::{Connection, block_on};
use crate::failure::Failure;
use crate::lists::{ListArgs, Shape};
use crate::output::{self, safe};
use crate::times::{self, When};

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Delegations
    Ls(ListArgs),
    /// One delegation
    Show(Named),
    /// Let somebody stand in for you
    Add(AddArgs),
    /// Remove a delegation
    Rm(OnlyNamed),
    /// Switch a delegation off
    Off(Named),
    /// Switch a delegation on again
    On(Named),
}

#[derive(Debug, ClapArgs)]
struct Named {
    /// The delegation
    #[arg(value_name = "DELEGATION")]
    delegation_id: String,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Debug, ClapArgs)]
struct OnlyNamed {
    /// The delegation
    #[arg(value_name = "DELEGATION")]
    delegation_id: String,
}

#[derive(Debug, ClapArgs)]
struct AddArgs {
    /// Who stands in, or is followed
    #[arg(long, value_name = "USER")]
    to: String,
    /// Whose requests (admin) [default: yours]
    #[arg(long, value_name = "USER")]
    owner: Option<String>,
    /// Whether somebody else is asked, or the owner agrees when somebody else does
    #[arg(long, value_enum, default_value_t = KindWord::Delegate)]
    kind: KindWord,
    /// Only for tasks of these types
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    types: Vec<String>,
    /// Only above this risk
    #[arg(long, value_name = "SCORE", value_parser = clap::value_parser!(u8).range(0..=100))]
    risk_above: Option<u8>,
    /// Only for tasks that touch these, as type:id with * and ?
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    resources: Vec<String>,
    /// From then on: a time, a day, or a length from now such as 2d
    #[arg(long, value_name = "TIME", value_parser = times::when)]
    from: Option<When>,
    /// Until before then: a time, a day, or a length from now such as 14d
    #[arg(long, value_name = "TIME", value_parser = times::when)]
    until: Option<When>,
    /// Who stands in does not hand on to others
    #[arg(long)]
    no_cascade: bool,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum KindWord {
    Delegate,
    Follow,
}

impl AddArgs {
    fn request(self, now: Timestamp) -> DelegationRequest {
        DelegationRequest {
            owner_id: self.owner,
            delegate_to: Some(self.to),
            kind: Some(match self.kind {
                KindWord::Delegate => Kind::Delegate,
                KindWord::Follow => Kind::Follow,
            }),
            conditions: Some(Conditions {
                task_types: self.types,
                risk_above: self.risk_above,
                resource_patterns: self.resources.into_iter().map(Pattern::new).collect(),
            }),
            cascade: Some(!self.no_cascade),
            active: None,
            valid_from: self.from.map(|from| Some(from.ahead(now))),
            valid_until: self.until.map(|until| Some(until.ahead(now))),
        }
    }
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let client = args.connection.client()?;
    block_on(async {
        match args.command {
            Command::Ls(args) => {
                let ask = async |query: &[(&str, &str)]| client.delegations(query).await;
                let listed = args.fetch(&[], ask).await?;
                args.print(&listed, "nobody stands in for anybody", table)
            }
            Command::Show(args) => told(args.shape, client.delegation(&args.delegation_id).await?),
            Command::Add(args) => {
                let shape = args.shape;
                told(shape, client.make_delegation(&args.request(times::now())).await?)
            }
            Command::Rm(args) => {
                client.remove_delegation(&args.delegation_id).await?;
                output::line(&format!("{} is removed", safe(&args.delegation_id)))
            }
            Command::Off(args) => switch(&client, &args, false).await,
            Command::On(args) => switch(&client, &args, true).await,
        }
    })
}

async fn switch(client: &Client, args: &Named, active: bool) -> Result<(), Failure> {
    let patch = DelegationRequest { active: Some(active), ..DelegationRequest::default() };
    told(args.shape, client.change_delegation(&args.delegation_id, None, &patch).await?)
}

fn told(shape: Shape, delegation: Delegation) -> Result<(), Failure> {
    if shape.json { output::json(&delegation) } else { output::line(&table(&[delegation]).to_string()) }
}

fn table(delegations: &[Delegation]) -> Table {
    let mut table = output::table(&["DELEGATION", "OWNER", "KIND", "TO", "FOR", "FROM", "UNTIL", "ON"]);
    for one in delegations {
        let kind = match one.kind {
            Kind::Delegate => "goes to",
            Kind::Follow => "follows",
        };
        let time = |time: Option<ade_client::wire::Time>| time.map(times::short).unwrap_or_default();
        table.add_row([
            safe(&one.delegation_id),
            safe(&one.owner_id),
            kind.to_owned(),
            safe(&one.delegate_to),
            conditions(one),
            time(one.valid_from),
            time(one.valid_until),
            if one.active { "yes".to_owned() } else { "no".to_owned() },
        ]);
    }
    table
}

fn conditions(delegation: &Delegation) -> String {
    let Conditions { task_types, risk_above, resource_patterns } = &delegation.conditions;
    let mut parts = Vec::new();
    if !task_types.is_empty() {
        parts.push(format!("type {}", safe(&task_types.join(" or "))));
    }
    parts.extend(risk_above.map(|risk| format!("risk above {risk}")));
    if !resource_patterns.is_empty() {
        let patterns: Vec<&str> = resource_patterns.iter().map(Pattern::as_str).collect();
        parts.push(safe(&patterns.join(" or ")));
    }
    if parts.is_empty() {
        parts.push("every task".to_owned());
    }
    if !delegation.cascade {
        parts.push("no further".to_owned());
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        add: AddArgs,
    }

    #[test]
    fn flags_become_a_delegation() {
        let line = "add --to bob --kind follow --types deploy,migration --risk-above 40 --resources database:* --until 14d --no-cascade";
        let line = Line::try_parse_from(line.split(' ')).expect("parsed");
        let request = line.add.request("2026-07-01T00:00:00Z".parse().expect("a time"));
        let body = serde_json::to_value(&request).expect("JSON");
        let expected = serde_json::json!({
            "delegate_to": "bob", "kind": "follow", "cascade": false, "valid_until": "2026-07-15T00:00:00.000000Z",
            "conditions": { "task_types": ["deploy", "migration"], "risk_above": 40, "resource_patterns": ["database:*"] },
        });
        assert_eq!(body, expected);
    }
}
