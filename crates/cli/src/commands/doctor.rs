//! `ade doctor`: checks a server and the rules that it follows, and says what to improve. It changes nothing.

use ade_client::Client;
use ade_client::wire::{ExecutorBinding, Policy, User};
use ade_domain::people::ADMIN;
use ade_domain::text::counted;
use clap::Args as ClapArgs;
use serde::Serialize;
use serde_json::Value;

use crate::failure::{Failure, FailureKind, Result};
use crate::output::list::fetch_all;
use crate::output::{self, OutputFormat, Tone, safe};

/// From this many administrators on, two of them can decide together without waiting for the third.
const ADMINS_FOR_DUAL_CONTROL: usize = 3;

#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    result: Verdict,
    detail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Good,
    /// Works, and could be better.
    Advice,
    Problem,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Compare all projections in Redis with the database, not only a sample
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    format: OutputFormat,
}

pub(crate) async fn run(client: &Client, Args { full, format }: Args) -> Result {
    let mut findings = vec![check_server(client).await?];
    findings.extend(or_unchecked("dual control", check_dual_control(client).await)?);
    findings.extend(or_unchecked("policies", check_policies(client).await)?);
    findings.extend(or_unchecked("executors", check_executors(client).await)?);
    findings.extend(or_unchecked("projections", check_projections(client, full).await)?);
    format.print(&findings, |findings| {
        let table = output::table(findings)
            .column("CHECK", |finding| finding.check)
            .column("RESULT", |finding| match finding.result {
                Verdict::Good => Tone::Good.cell("good"),
                Verdict::Advice => Tone::Pending.cell("advice"),
                Verdict::Problem => Tone::Bad.cell("problem"),
            })
            .column("DETAIL", |finding| safe(&finding.detail));
        table.to_string()
    })?;
    let problems = findings.iter().filter(|finding| finding.result == Verdict::Problem).count();
    match problems {
        0 => Ok(()),
        1 => Err(Failure::negative("one check found a problem")),
        count => Err(Failure::negative(format!("{count} checks found problems"))),
    }
}

/// What cannot be checked while a part of the service is unavailable is a finding: the other checks still say what they find.
fn or_unchecked(check: &'static str, findings: Result<Vec<Finding>>) -> Result<Vec<Finding>> {
    match findings {
        Err(failure) if failure.kind == FailureKind::Unavailable => {
            let detail = format!("not checked: {}", failure.message());
            Ok(vec![Finding { check, result: Verdict::Problem, detail }])
        }
        findings => findings,
    }
}

async fn check_server(client: &Client) -> Result<Finding> {
    let readiness = client.readiness().await?;
    let (result, detail) = match readiness.reasons.as_slice() {
        [] => (Verdict::Good, format!("{} is {}", client.url(), readiness.status)),
        reasons => {
            (Verdict::Problem, format!("{} is {}: {}", client.url(), readiness.status, reasons.join("; ")))
        }
    };
    Ok(Finding { check: "server", result, detail })
}

/// Differences that are listed one by one.
const MAX_LISTED_DIFFERENCES: usize = 50;

/// What differs between Redis and the database. Nothing to check without Redis and PostgreSQL, and only administrators may.
async fn check_projections(client: &Client, full: bool) -> Result<Vec<Finding>> {
    let finding = |result, detail| Finding { check: "projections", result, detail };
    let checked = match client.check_projections(full).await {
        Ok(checked) => checked,
        Err(error) if !full && matches!(error.code(), Some("FORBIDDEN" | "SCOPE_MISSING")) => {
            let detail = "not checked: only administrators may compare them (ade login --admin)".to_owned();
            return Ok(vec![finding(Verdict::Advice, detail)]);
        }
        Err(error) => return Err(error.into()),
    };
    if !checked.enabled {
        return Ok(Vec::new());
    }
    let what = if checked.complete { "all" } else { "a sample of" };
    if checked.differences.is_empty() {
        let objects = counted(checked.objects, "object", "objects");
        let detail = format!("Redis has what the database says: compared {what} {objects}");
        return Ok(vec![finding(Verdict::Good, detail)]);
    }
    let listed = checked.differences.iter().take(MAX_LISTED_DIFFERENCES);
    let mut findings: Vec<Finding> = listed
        .map(|found| finding(Verdict::Problem, format!("{}: {} {}", found.key, found.object, found.detail)))
        .collect();
    if let Some(more) = checked.differences.len().checked_sub(MAX_LISTED_DIFFERENCES).filter(|more| *more > 0)
    {
        findings.push(finding(Verdict::Problem, format!("{more} more differences")));
    }
    findings.push(finding(
        Verdict::Advice,
        "ade rebuild writes everything again, while the servers run".to_owned(),
    ));
    Ok(findings)
}

async fn check_dual_control(client: &Client) -> Result<Vec<Finding>> {
    let users: Vec<User> = fetch_all(async |query| client.users(query).await).await?;
    let settings = client.settings(&[]).await?.items;
    let admins = users.iter().filter(|user| user.active && user.roles.contains(ADMIN)).count();
    let is_on = settings
        .iter()
        .any(|setting| setting.name == "security:dual_control" && setting.value == Value::Bool(true));
    let (result, detail) = if is_on && admins < 2 {
        let detail = format!(
            "on, with {}: nobody can confirm what waits but the operator. Invite another administrator with the bootstrap token",
            counted(admins, "administrator", "administrators")
        );
        (Verdict::Advice, detail)
    } else if is_on {
        (
            Verdict::Good,
            "changes of who decides, and by which rules, wait for a second administrator".to_owned(),
        )
    } else if admins >= ADMINS_FOR_DUAL_CONTROL {
        let detail = format!(
            "{admins} administrators can each change the rules alone: set security.dual_control = true in the configuration \
             file of each server"
        );
        (Verdict::Advice, detail)
    } else {
        let detail =
            format!("off; recommended from {ADMINS_FOR_DUAL_CONTROL} administrators on, there are {admins}");
        (Verdict::Good, detail)
    };
    Ok(vec![Finding { check: "dual control", result, detail }])
}

async fn check_policies(client: &Client) -> Result<Vec<Finding>> {
    let policies: Vec<Policy> = fetch_all(async |query| client.policies(query).await).await?;
    let finding = |result, detail| Finding { check: "policies", result, detail };
    let never = policies.iter().filter_map(|policy| {
        let why = policy.never_automatic.as_ref()?;
        let detail = format!("{} approves nothing automatically any more: {why}", policy.name);
        Some(finding(Verdict::Advice, detail))
    });
    let mut findings: Vec<Finding> = never.collect();
    if findings.is_empty() {
        findings.push(finding(Verdict::Good, "every policy with auto_approve_if can approve".to_owned()));
    }
    Ok(findings)
}

async fn check_executors(client: &Client) -> Result<Vec<Finding>> {
    let bindings: Vec<ExecutorBinding> = fetch_all(async |query| client.executors(query).await).await?;
    let finding = |result, detail| Finding { check: "executors", result, detail };
    let unserved = bindings.iter().filter(|binding| binding.workers.is_empty());
    let detail = |name: &str| format!("no worker serves {name}: its tasks wait until one starts");
    let mut findings: Vec<Finding> =
        unserved.map(|binding| finding(Verdict::Advice, detail(&binding.name))).collect();
    if findings.is_empty() {
        findings.push(finding(Verdict::Good, format!("workers serve all {} names", bindings.len())));
    }
    Ok(findings)
}
