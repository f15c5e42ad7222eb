//! `ade policy`: manage the policies that decide which tasks need whose approval.

use std::path::PathBuf;

use ade_client::Client;
use ade_client::wire::{AutoApprove, Policy, PolicyReplay, PolicyRequest, PolicyRules, TimeWindow};
use clap::{Args as ClapArgs, Subcommand};
use comfy_table::{Cell, Table};
use owo_colors::OwoColorize;

use super::approval::priority_label;
use crate::failure::Failure;
use crate::input;
use crate::output::list::ListArgs;
use crate::output::page::Page;
use crate::output::{self, OutputFormat, Tone, safe, safe_or_empty};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List policies
    Ls(ListArgs),
    /// Show a policy
    Show(PolicyArgs),
    /// Create a policy; it is a draft unless the file contains active: true (admin)
    Add(AddArgs),
    /// Change a policy; the change is a draft until the policy is activated (admin)
    Set(SetArgs),
    /// Activate the draft of a policy (admin)
    Activate(PolicyArgs),
    /// Deactivate a policy (admin)
    Deactivate(PolicyArgs),
    /// Remove a policy (admin)
    Rm {
        /// Id of the policy
        #[arg(value_name = "POLICY")]
        policy_id: String,
    },
    /// List the past tasks that would have needed other approvals under the draft
    Replay(PolicyArgs),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct PolicyArgs {
    /// Id of the policy
    #[arg(value_name = "POLICY")]
    policy_id: String,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct AddArgs {
    /// The policy as YAML or JSON; - reads standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct SetArgs {
    /// Id of the policy
    #[arg(value_name = "POLICY")]
    policy_id: String,
    /// The fields to change, as YAML or JSON; - reads standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Change it only if it still has this revision
    #[arg(long, value_name = "NUMBER")]
    revision: Option<u64>,
    #[command(flatten)]
    format: OutputFormat,
}

pub(crate) async fn run(client: &Client, command: Command) -> Result<(), Failure> {
    let (format, policy) = match command {
        Command::Ls(args) => {
            let fetch = async |query: &[(&str, &str)]| client.policies(query).await;
            return args.show(&[], fetch, "no policies found: every task needs one reviewer", table).await;
        }
        Command::Show(args) => return args.format.print(&client.policy(&args.policy_id).await?, page),
        Command::Rm { policy_id } => {
            client.delete_policy(&policy_id).await?;
            return output::line(&format!("policy {} is removed", safe(&policy_id)));
        }
        Command::Replay(args) => {
            return args.format.print(&client.replay_policy(&args.policy_id).await?, replay_table);
        }
        Command::Add(args) => {
            (args.format, client.create_policy(&input::read::<PolicyRequest>(&args.file)?).await?)
        }
        Command::Set(args) => {
            let patch: PolicyRequest = input::read(&args.file)?;
            (args.format, client.update_policy(&args.policy_id, args.revision, &patch).await?)
        }
        Command::Activate(args) => (args.format, client.activate_policy(&args.policy_id).await?),
        Command::Deactivate(args) => {
            let patch = PolicyRequest { active: Some(false), ..PolicyRequest::default() };
            (args.format, client.update_policy(&args.policy_id, None, &patch).await?)
        }
    };
    format.print(&policy, summary)
}

fn table(policies: &[Policy]) -> Table {
    let mut table = output::table(&["POLICY", "NAME", "ACTIVE", "APPLIES TO", "APPROVALS REQUIRED"]);
    for policy in policies {
        let (active, tone) = match (policy.active, &policy.draft) {
            (true, None) => ("yes", Tone::Good),
            (true, Some(_)) => ("yes, with a draft", Tone::Good),
            (false, _) => ("no", Tone::Pending),
        };
        table.add_row([
            Cell::new(safe(&policy.policy_id)),
            Cell::new(safe(&policy.name)),
            tone.cell(active),
            Cell::new(scope(&policy.rules)),
            Cell::new(approvals_required(&policy.rules)),
        ]);
    }
    table
}

fn summary(policy: &Policy) -> String {
    let id = safe(&policy.policy_id);
    let status = match (policy.active, &policy.draft) {
        (true, None) => "is active".to_owned(),
        (true, Some(_)) => {
            format!("is active without the changes; activate them with ade policy activate {id}")
        }
        (false, _) => format!("is a draft; activate it with ade policy activate {id}"),
    };
    format!("{} ({id}) {status}", safe(&policy.name).bold())
}

fn replay_table(replay: &PolicyReplay) -> String {
    if replay.differs.is_empty() {
        return "no past task would have needed other approvals".to_owned();
    }
    let mut table = output::table(&["TASK", "REQUIRED THEN", "WOULD REQUIRE"]);
    for task in &replay.differs {
        table.add_row([safe(&task.task_id), safe(&task.before), safe(&task.after)]);
    }
    table.to_string()
}

fn page(policy: &Policy) -> Page {
    let mut page = Page::default();
    page.line(safe(&policy.name).bold());
    page.field("policy", format!("{}, revision {}", safe(&policy.policy_id), policy.revision));
    page.field("active", if policy.active { "yes" } else { "no" });
    add_rules(&mut page, &policy.rules);
    if let Some(draft) = &policy.draft {
        page.heading("Draft");
        add_rules(&mut page, draft);
    }
    page
}

fn add_rules(page: &mut Page, rules: &PolicyRules) {
    page.field("applies to", scope(rules));
    page.field("approvals", approvals_required(rules));
    page.field("rejected after", format!("{} rejections", rules.reject_threshold));
    page.field("priority", priority_label(rules.priority).0);
    page.optional("auto-approval", rules.auto_approve_if.as_ref().map(auto_approval));
    page.field("escalates to", safe_or_empty(&rules.escalation_role));
    page.optional("in force", rules.window.as_ref().map(time_window));
}

/// The tasks that a policy applies to.
fn scope(rules: &PolicyRules) -> String {
    let mut parts = Vec::new();
    if !rules.task_types.is_empty() {
        parts.push(format!("type {}", safe(&rules.task_types.join(" or "))));
    }
    if !rules.resource_patterns.is_empty() {
        parts.push(safe(&rules.resource_patterns.join(" or ")));
    }
    if rules.risk_threshold > 0 {
        parts.push(format!("risk of {} or more", rules.risk_threshold));
    }
    if parts.is_empty() { "every task".to_owned() } else { parts.join(", ") }
}

fn approvals_required(rules: &PolicyRules) -> String {
    let mut text = rules.min_approvers.to_string();
    if !rules.reviewers.is_empty() {
        text.push_str(&format!(" of {}", safe(&rules.reviewers.join(", "))));
    }
    text + &required_roles(&rules.required_roles)
}

/// The end of a sentence about approvals, empty without required roles.
pub(super) fn required_roles(roles: &[String]) -> String {
    if roles.is_empty() {
        return String::new();
    }
    format!(", including each of the roles {}", safe(&roles.join(", ")))
}

fn time_window(TimeWindow { weekdays, hours: (from, until), time_zone }: &TimeWindow) -> String {
    let days: Vec<String> = weekdays.iter().map(ToString::to_string).collect();
    let days = if days.is_empty() { "every day".to_owned() } else { format!("on {}", days.join(", ")) };
    format!("{days} from {from}:00 to {until}:00 in {}", safe(time_zone))
}

fn auto_approval(conditions: &AutoApprove) -> String {
    let mut parts = Vec::new();
    parts.extend(conditions.risk_below.map(|risk| format!("the risk is below {risk}")));
    if !conditions.author_has_role.is_empty() {
        parts.push(format!("the author has the role {}", safe(&conditions.author_has_role.join(" or "))));
    }
    if !conditions.resources_in_scope.is_empty() {
        parts.push(format!("all resources match {}", safe(&conditions.resources_in_scope.join(" or "))));
    }
    if parts.is_empty() { "never".to_owned() } else { format!("if {}", parts.join(" and ")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn page_describes_rules() {
        let policy: Policy = serde_json::from_value(json!({
            "policy_id": "p-1", "name": "databases", "active": true, "task_types": [], "resource_patterns": ["database:*"],
            "min_approvers": 2, "required_roles": ["dba"], "reviewers": [], "risk_threshold": 25,
            "auto_approve_if": { "risk_below": 10, "author_has_role": [], "resources_in_scope": [] },
            "escalation_role": null, "reject_threshold": 1, "priority": "HIGH",
            "window": { "weekdays": ["mon"], "hours": [8, 18], "time_zone": "Europe/Berlin" }, "draft": null, "revision": 4,
        }))
        .expect("a policy");
        let page = anstream::adapter::strip_str(&page(&policy).to_string()).to_string();
        for part in [
            "applies to       database:*, risk of 25 or more",
            "approvals        2, including each of the roles dba",
            "auto-approval    if the risk is below 10",
            "priority         HIGH",
            "in force         on mon from 8:00 to 18:00 in Europe/Berlin",
        ] {
            assert!(page.contains(part), "{part:?} is missing in\n{page}");
        }
    }
}
