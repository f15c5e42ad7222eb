//! `ade simulate`: shows what the submission of a task would lead to. It changes nothing.

use std::path::PathBuf;

use ade_client::Client;
use ade_client::wire::{Simulation, SimulationRequest, Time};
use clap::Args as ClapArgs;
use owo_colors::OwoColorize;

use super::policy::required_roles;
use super::task::sections::{self, chain};
use crate::failure::Result;
use crate::input;
use crate::output::page::Page;
use crate::output::{self, OutputFormat, safe, time};

#[derive(Debug, ClapArgs)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["task", "file"]))]
pub(crate) struct Args {
    /// Id of an existing task
    task: Option<String>,
    /// A hypothetical task as YAML or JSON; - reads standard input
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Simulate the submission at this time: a time, a date, or a duration from now such as 2d
    #[arg(long, value_name = "TIME", value_parser = time::parse_future)]
    at: Option<Time>,
    /// Simulate as if this policy were active; it replaces the policy with the same name
    #[arg(long, value_name = "FILE")]
    policy: Vec<PathBuf>,
    #[command(flatten)]
    format: OutputFormat,
}

pub(crate) async fn run(client: &Client, args: Args) -> Result {
    let request = SimulationRequest {
        task_id: args.task,
        task: args.file.as_deref().map(input::read).transpose()?,
        at: args.at,
        policies: args.policy.iter().map(|file| input::read(file)).collect::<Result<_, _>>()?,
    };
    args.format.print(&client.simulate(&request).await?, page)
}

fn page(simulation: &Simulation) -> Page {
    let mut page = Page::default();
    let why = simulation.why.as_deref().map(|why| format!(": {}", safe(why))).unwrap_or_default();
    let outcome = match simulation.outcome.as_str() {
        "reviewing" => "The task would be reviewed".yellow().to_string(),
        "auto_approved" => "The task would be approved automatically".green().to_string(),
        "no_quorum" => "The task could not be submitted".red().to_string(),
        other => safe(other),
    };
    page.line(format_args!("{}{why}", outcome.bold()));
    sections::risk(&mut page, &simulation.risk);
    if !simulation.requirements.is_empty() {
        page.heading(format_args!("Approvals required: at least {}", simulation.required_count));
        for requirement in &simulation.requirements {
            let (count, reviewers) = (requirement.min_approvers, safe(&requirement.reviewers.join(", ")));
            let (policy, roles) = (safe(&requirement.policy), required_roles(&requirement.required_roles));
            page.line(format_args!("  {}: {count} of {reviewers}{roles}", policy.bold()));
        }
    }
    let reviewers = output::table(&simulation.reviewers)
        .column("REVIEWER", |reviewer| safe(&reviewer.reviewer_id))
        .column("POLICIES", |reviewer| safe(&reviewer.policies.join(", ")))
        .column("DELEGATION", |reviewer| chain(&reviewer.delegation_chain))
        .column("WHY CHOSEN", |reviewer| safe(&reviewer.why.join("; ")));
    page.table_section("Reviewers", &reviewers);
    sections::why_these_reviewers(&mut page, &simulation.policies, &simulation.skipped_reviewers);
    sections::not_automatic(&mut page, &simulation.not_automatic);
    sections::locks(&mut page, "Locks", &simulation.lock_preview);
    page
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;
    use crate::tests::fixture;

    #[derive(Debug, Parser)]
    struct TestCli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn takes_either_a_task_id_or_a_file() {
        for valid in ["simulate t-1", "simulate -f task.yaml --policy a.yaml --policy b.yaml --at 2d"] {
            TestCli::try_parse_from(valid.split(' ')).expect(valid);
        }
        for invalid in ["simulate", "simulate t-1 -f task.yaml", "simulate t-1 --at tomorrow"] {
            TestCli::try_parse_from(invalid.split(' ')).expect_err(invalid);
        }
    }

    #[test]
    fn page_shows_reviewers_and_why_they_are_chosen() {
        let risk = fixture::task().risk.expect("a risk");
        let simulation: Simulation = serde_json::from_value(json!({
            "risk": risk, "outcome": "reviewing", "why": null, "required_count": 1,
            "policies": [{ "policy": "night", "applies": false, "why": "outside its hours" }],
            "requirements": [{ "policy": "databases", "min_approvers": 1, "required_roles": ["dba"], "reviewers": ["eve"] }],
            "reviewers": [{
                "reviewer_id": "eve", "policies": ["databases"], "on_behalf_of": ["cleo"], "why": ["delegate of cleo"],
                "delegation_chain": [{ "from": "cleo", "to": "dan", "delegation_id": "1" }, { "from": "dan", "to": "eve", "delegation_id": "2" }],
            }],
            "skipped_reviewers": [], "lock_preview": [], "scope": [],
            "not_automatic": ["policy night: it has no conditions for automatic approval"],
        }))
        .expect("a simulation");
        let page = anstream::adapter::strip_str(&page(&simulation).to_string()).to_string();
        for part in [
            "The task would be reviewed\n",
            "databases: 1 of eve, including each of the roles dba",
            "cleo → dan → eve",
            "– policy night: outside its hours",
            "– policy night: it has no conditions",
        ] {
            assert!(page.contains(part), "{part:?} is missing in\n{page}");
        }
    }
}
