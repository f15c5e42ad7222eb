//! `ade policy`: manage the policies that decide which tasks need whose approval.

use std::path::PathBuf;

use ade_client::Client;
use ade_client::wire::{AutoApprove, Policy, PolicyReplay, PolicyRequest, PolicyRules, TimeWindow};
use clap::{Args as ClapArgs, Subcommand};
use owo_colors::OwoColorize;

use super::approval::priority_label;
use crate::failure::Result;
use crate::input;
use crate::output::list::ListArgs;
use crate::output::page::Page;
use crate::output::{self, OutputFormat, Table, Tone, safe, safe_or_empty, yes_or_no};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List policies
    Ls(ListArgs),
    /// Show a policy
    Show(PolicyArgs),
    /// Create a policy; it is a draft unless the file contains active: true (admin)
    Add {
        /// The policy as YAML or JSON; - reads standard input
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        format: OutputFormat,
    },
    /// Change a policy; the change is a draft until the policy is activated (admin)
    Set {
        #[command(flatten)]
        args: PolicyArgs,
        /// The fields to change, as YAML or JSON; - reads standard input
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// Change it only if it still has this revision
        #[arg(long, value_name = "NUMBER")]
        revision: Option<u64>,
    },
    /// Activate the draft of a policy (admin)
    Activate(PolicyArgs),
    /// Deactivate a policy (admin)
    Deactivate(PolicyArgs),
    /// Remove a policy (admin)
    Rm {
        /// Id of the policy
        policy: String,
    },
    /// List the past tasks that would have needed other approvals under the draft
    Replay(PolicyArgs),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct PolicyArgs {
    /// Id of the policy
    policy: String,
    #[command(flatten)]
    format: OutputFormat,
}

pub(crate) async fn run(client: &Client, command: Command) -> Result {
    let (format, policy) = match command {
        Command::Ls(args) => return args.show(&[], async |query| client.policies(query).await, table).await,
        Command::Show(args) => return args.format.print(&client.policy(&args.policy).await?, page),
        Command::Rm { policy } => {
            client.delete_policy(&policy).await?;
            return output::line(format_args!("policy {} is removed", safe(&policy)));
        }
        Command::Replay(args) => {
            return args.format.print(&client.replay_policy(&args.policy).await?, replay_table);
        }
        Command::Add { file, format } => {
            (format, client.create_policy(&input::read::<PolicyRequest>(&file)?).await?)
        }
        Command::Set { args: PolicyArgs { policy, format }, file, revision } => {
            (format, client.update_policy(&policy, revision, &input::read(&file)?).await?)
        }
        Command::Activate(args) => (args.format, client.activate_policy(&args.policy).await?),
        Command::Deactivate(args) => {
            let patch = PolicyRequest { active: Some(false), ..PolicyRequest::default() };
            (args.format, client.update_policy(&args.policy, None, &patch).await?)
        }
    };
    format.print(&policy, summary)
}

fn table(policies: &[Policy]) -> Table<'_, Policy> {
    output::list(policies, "no policies found: every task needs one reviewer")
        .column("POLICY", |policy| safe(&policy.policy_id))
        .column("NAME", |policy| safe(&policy.name))
        .column("ACTIVE", |policy| match (policy.active, &policy.draft) {
            (true, None) => Tone::Good.cell("yes"),
            (true, Some(_)) => Tone::Good.cell("yes, with a draft"),
            (false, _) => Tone::Pending.cell("no"),
        })
        .column("APPLIES TO", |policy| scope(&policy.rules))
        .column("APPROVALS REQUIRED", |policy| approvals_required(&policy.rules))
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
    let table = output::list(&replay.differs, "no past task would have needed other approvals")
        .column("TASK", |task| safe(&task.task_id))
        .column("REQUIRED THEN", |task| safe(&task.before))
        .column("WOULD REQUIRE", |task| safe(&task.after));
    table.to_string()
}

fn page(policy: &Policy) -> Page {
    let mut page = Page::default();
    page.line(safe(&policy.name).bold());
    page.field("policy", format!("{}, revision {}", safe(&policy.policy_id), policy.revision));
    page.field("active", yes_or_no(policy.active));
    add_rules(&mut page, &policy.rules);
    page.optional("never automatic", policy.never_automatic.as_deref().map(safe));
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
    let parts = [
        any_of("type ", rules.task_types.iter()),
        any_of("executor ", rules.executors.iter()),
        any_of("target ", rules.targets.iter()),
        any_of("", rules.resource_patterns.iter()),
        (rules.risk_threshold > 0).then(|| format!("risk of {} or more", rules.risk_threshold)),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "every task".to_owned() } else { parts.join(", ") }
}

/// The values, joined by "or"; `None` without values.
pub(super) fn any_of(label: &str, values: impl Iterator<Item: AsRef<str>>) -> Option<String> {
    let values: Vec<String> = values.map(|value| safe(value.as_ref())).collect();
    (!values.is_empty()).then(|| format!("{label}{}", values.join(" or ")))
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
    let parts = [
        conditions.risk_below.map(|risk| format!("the risk is below {risk}")),
        any_of("the author has the role ", conditions.author_has_role.iter()),
        any_of("all resources match ", conditions.resources_in_scope.iter()),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "never".to_owned() } else { format!("if {}", parts.join(" and ")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn page_describes_rules() {
        let policy: Policy = serde_json::from_value(json!({
            "policy_id": "p-1", "name": "databases", "active": true, "executors": [], "targets": [], "task_types": [], "resource_patterns": ["database:*"],
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
