//! `ade simulate`: what would happen if. It changes nothing.

use std::path::PathBuf;

use ade_client::wire::{Simulation, SimulationRequest};
use clap::Args as ClapArgs;
use owo_colors::OwoColorize;

use crate::connect::{Connection, block_on};
use crate::documents;
use crate::failure::Failure;
use crate::lists::Shape;
use crate::output::{self, heading, safe};
use crate::task::parts::{self, chain, line};
use crate::times::{self, When};

#[derive(Debug, ClapArgs)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["task_id", "file"]))]
pub(crate) struct Args {
    /// A task that is there, as it is
    #[arg(value_name = "TASK")]
    task_id: Option<String>,
    /// An imagined task as YAML or JSON; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// As if it were then: a time, a day, or a length from now such as 2d
    #[arg(long, value_name = "TIME", value_parser = times::when)]
    at: Option<When>,
    /// As if this policy were in force, in the place of the one with its name
    #[arg(long, value_name = "FILE")]
    policy: Vec<PathBuf>,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let request = SimulationRequest {
        task_id: args.task_id,
        task: args.file.as_deref().map(documents::read).transpose()?,
        at: args.at.map(|at| at.ahead(times::now())),
        policies: args.policy.iter().map(|file| documents::read(file)).collect::<Result<_, _>>()?,
    };
    let client = args.connection.client()?;
    let simulation = block_on(async { Ok(client.simulate(&request).await?) })?;
    if args.shape.json { output::json(&simulation) } else { output::line(page(&simulation).trim_end()) }
}

fn page(simulation: &Simulation) -> String {
    let mut page = String::new();
    let why = simulation.why.as_deref().map(|why| format!(": {}", safe(why))).unwrap_or_default();
    let outcome = match simulation.outcome.as_str() {
        "reviewing" => "It would be reviewed".yellow().to_string(),
        "auto_approved" => "Nobody would be asked".green().to_string(),
        "no_quorum" => "It could not be submitted".red().to_string(),
        other => safe(other),
    };
    line(&mut page, &format!("{}{why}", outcome.bold()));
    parts::risk(&mut page, &simulation.risk);
    if !simulation.requirements.is_empty() {
        line(
            &mut page,
            &heading(&format!("Who would have to agree, at least {} in all", simulation.required_count)),
        );
        for requirement in &simulation.requirements {
            let roles = if requirement.required_roles.is_empty() {
                String::new()
            } else {
                format!(", with each of the roles {}", safe(&requirement.required_roles.join(", ")))
            };
            let (many, whom) = (requirement.min_approvers, safe(&requirement.reviewers.join(", ")));
            line(&mut page, &format!("  {}: {many} of {whom}{roles}", safe(&requirement.policy).bold()));
        }
    }
    if !simulation.reviewers.is_empty() {
        line(&mut page, &heading("Who would be asked"));
        let mut table = output::table(&["REVIEWER", "FOR", "HANDED ON", "WHY"]);
        for reviewer in &simulation.reviewers {
            table.add_row([
                safe(&reviewer.reviewer_id),
                safe(&reviewer.policies.join(", ")),
                chain(&reviewer.delegation_chain),
                safe(&reviewer.why.join("; ")),
            ]);
        }
        line(&mut page, &table.to_string());
    }
    parts::considered(&mut page, &simulation.policies, &simulation.passed_by);
    parts::locks(&mut page, "Locks it needs", &simulation.lock_preview);
    page
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_task_is_there_or_imagined_never_both() {
        for good in ["simulate t-1", "simulate -f task.yaml --policy a.yaml --policy b.yaml --at 2d"] {
            Line::try_parse_from(good.split(' ')).expect(good);
        }
        for wrong in ["simulate", "simulate t-1 -f task.yaml", "simulate t-1 --at tomorrow"] {
            Line::try_parse_from(wrong.split(' ')).expect_err(wrong);
        }
    }

    #[test]
    fn a_page_says_who_would_be_asked_and_how_it_comes_to_that() {
        let risk = crate::task::page::fixture::task().risk.expect("scored");
        let simulation: Simulation = serde_json::from_value(json!({
            "risk": risk, "outcome": "reviewing", "why": null, "required_count": 1,
            "policies": [{ "policy": "night", "applies": false, "why": "it is day" }],
            "requirements": [{ "policy": "databases", "min_approvers": 1, "required_roles": ["dba"], "reviewers": ["eve"] }],
            "reviewers": [{
                "reviewer_id": "eve", "policies": ["databases"], "stands_for": ["cleo"], "why": ["stands in"],
                "delegation_chain": [{ "from": "cleo", "to": "dan", "delegation_id": "1" }, { "from": "dan", "to": "eve", "delegation_id": "2" }],
            }],
            "passed_by": [], "lock_preview": [],
        }))
        .expect("a simulation");
        let page = anstream::adapter::strip_str(&page(&simulation)).to_string();
        for part in [
            "It would be reviewed\n",
            "databases: 1 of eve, with each of the roles dba",
            "cleo → dan → eve",
            "– policy night: it is day",
        ] {
            assert!(page.contains(part), "{part:?} is missing in\n{page}");
        }
    }
}
