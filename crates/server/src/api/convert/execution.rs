//! Conversions of executions, their log lines, and claims of agents.

use ade_app::TaskView;
use ade_client::wire;
use ade_domain::task::{AdminRequest, Execution, Phase};
use ade_store::database::LogLine;

use super::task;

pub(crate) fn execution(execution: &Execution) -> wire::Execution {
    let is_running = execution.phase != Phase::Ended;
    wire::Execution {
        attempt: execution.attempt,
        agent_id: execution.worker.clone(),
        phase: execution.phase,
        lease_until: Some(execution.lease_until).filter(|_| is_running).map(Into::into),
        started_at: execution.started_at.into(),
        completed_at: execution.completed_at.map(Into::into),
        result: execution.result,
        output: execution.output.clone(),
        output_key: execution.output_key.clone(),
        error: execution.error.clone(),
        code: execution.code,
        rolled_back: execution.rolled_back,
        retry_count: execution.retry_count,
        grants: if is_running { execution.grants.clone() } else { Vec::new() },
        stop: execution.stop.as_ref().map(admin_request),
        undo: execution.rollback.as_ref().map(admin_request),
    }
}

fn admin_request(request: &AdminRequest) -> wire::AdminRequest {
    wire::AdminRequest { by: request.by.to_string(), reason: request.reason.clone(), at: request.at.into() }
}

pub(crate) fn log_line(line: &LogLine) -> wire::LogLine {
    wire::LogLine { number: line.number, attempt: line.attempt, at: line.at.into(), text: line.text.clone() }
}

/// `None` if the task has no execution.
pub(crate) fn task_claim(view: TaskView) -> Option<wire::TaskClaim> {
    let execution = view.task.execution.clone()?;
    Some(wire::TaskClaim {
        task: task(view),
        attempt: execution.attempt,
        grants: execution.grants,
        lease_until: execution.lease_until.into(),
    })
}
