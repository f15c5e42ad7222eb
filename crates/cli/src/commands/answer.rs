//! What an approval carries: the digests of what was shown here, and what the risk of the task asks for besides. It is asked for on a
//! terminal, and named with its flag elsewhere. The server decides what is needed; nothing here replaces its check.

use std::io::{self, IsTerminal};

use ade_client::wire::{DecisionRequest, RiskLevel, Task};
use clap::Args as ClapArgs;

use super::task::sections::risk_level;
use crate::failure::{Failure, Result};
use crate::output::{self, first_line, safe};
use crate::prompt;

/// Names of the scope that are shown; `ade task show` has all.
const MAX_SHOWN_NAMES: usize = 8;

#[derive(Debug, Default, ClapArgs)]
pub(crate) struct AnswerArgs {
    /// Reason, recorded in the audit log [required at level HIGH and CRITICAL]
    #[arg(long)]
    pub(crate) reason: Option<String>,
    /// Id of one of the task's resources, or one of its targets; if it has none, the first 8 characters of its id [required at level CRITICAL]
    #[arg(long, value_name = "ID")]
    pub(crate) confirm: Option<String>,
}

/// Shows a task, and completes the approval of what was shown.
pub(crate) fn answer(task: &Task, AnswerArgs { reason, confirm }: AnswerArgs) -> Result<DecisionRequest> {
    show(task);
    let (level, _) = risk_level(task.risk.as_ref().map_or(RiskLevel::Critical, |risk| risk.level));
    let needs = |need: &str| task.approve_needs.iter().any(|one| one == need);
    let ask = |given: Option<String>, need: &str, prompt: &str, flag: &str| match given {
        None if needs(need) && io::stdin().is_terminal() => {
            prompt::line(prompt, "run the command at a terminal, or pass this with an option").map(Some)
        }
        None if needs(need) => {
            let message = format!("the risk of the task is {level}: approving it needs a {need}");
            Err(Failure::invalid(message).hint(format!("review it with ade task show, and add {flag}")))
        }
        given => Ok(given),
    };
    let reason = ask(reason, "reason", "Reason: ", "--reason TEXT")?;
    let what = if scope_names(task).is_empty() {
        "Type the first 8 characters of the task's id to confirm: "
    } else {
        "Type one of its resources, as type:id or only the id, or one of its targets, to confirm: "
    };
    let confirm = ask(confirm, "confirm", what, "--confirm ID")?;
    let (digest, scope_digest) = (Some(task.digest.clone()), task.scope_digest.clone());
    Ok(DecisionRequest { reason, digest, scope_digest, confirm })
}

/// Shows in two lines what is approved.
pub(crate) fn show(task: &Task) {
    let description = first_line(&task.config.description);
    let risk =
        task.risk.as_ref().map_or_else(String::new, |risk| format!("risk {}, ", risk_level(risk.level).0));
    output::note(&format!("approving {}: {description} ({risk}digest {})", task.task_id, task.digest));
    let names = scope_names(task);
    if let Some(more) = names.len().checked_sub(MAX_SHOWN_NAMES).filter(|more| *more > 0) {
        let shown: Vec<String> = names.into_iter().take(MAX_SHOWN_NAMES).collect();
        output::note(&format!("it can touch {}, and {more} more", shown.join(", ")));
    } else if !names.is_empty() {
        output::note(&format!("it can touch {}", names.join(", ")));
    }
}

/// Resources and targets.
fn scope_names(task: &Task) -> Vec<String> {
    let declared = task.config.resources.iter();
    let resources = declared.chain(task.scope.iter().flat_map(|part| &part.resources));
    let targets = task.scope.iter().flat_map(|part| &part.targets);
    let mut names: Vec<String> = Vec::new();
    let resources = resources.map(|resource| format!("{}:{}", resource.resource_type, resource.id));
    for name in resources.chain(targets.cloned()).map(|name| safe(&name)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}
