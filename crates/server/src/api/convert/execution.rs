//! Conversions of executions, their log lines, and claims of agents.

use ade_app::TaskView;
use ade_app::worker::AgentReport;
use ade_client::wire;
use ade_domain::task::{AdminRequest, Execution, ExecutionResult, FailureCode, HeldLock, Phase};
use ade_store::database::LogLine;

use super::{Convert, convert_enums, convert_structs, task};

convert_enums! {
    Phase = wire::Phase { Prepared, Started, RollingBack, Ended }
    ExecutionResult = wire::ExecutionResult { Success, Failure, Timeout, Cancelled }
    FailureCode = wire::FailureCode {
        ExecutionFailed, TimedOut, Stopped, LocksLost, WorkerLost, OutcomeUnknown, DigestMismatch, UnprovenApproval
    }
}

convert_structs! {
    HeldLock => wire::HeldLock { lock, mode, fencing_token };
    AdminRequest => wire::AdminRequest { by, reason, at };
    LogLine => wire::LogLine { number, attempt, at, text };
    wire::CompleteRequest => AgentReport { attempt, result, output, error, error_details };
}

pub(crate) fn execution(execution: &Execution) -> wire::Execution {
    let is_running = execution.phase != Phase::Ended;
    wire::Execution {
        attempt: execution.attempt,
        agent_id: execution.worker.clone(),
        phase: execution.phase.convert(),
        lease_until: is_running.then(|| execution.lease_until.convert()),
        started_at: execution.started_at.convert(),
        completed_at: execution.completed_at.convert(),
        result: execution.result.convert(),
        output: execution.output.clone(),
        output_key: execution.output_key.clone(),
        error: execution.error.clone(),
        error_details: execution.error_details.clone(),
        code: execution.code.convert(),
        rolled_back: execution.rolled_back,
        retry_count: execution.retry_count,
        grants: if is_running { execution.grants.clone().convert() } else { Vec::new() },
        stop: execution.stop.clone().convert(),
        rollback: execution.rollback.clone().convert(),
    }
}

/// `None` if the task has no execution.
pub(crate) fn task_claim(view: TaskView) -> Option<wire::TaskClaim> {
    let execution = view.task.execution.clone()?;
    Some(wire::TaskClaim {
        task: task(view),
        attempt: execution.attempt,
        grants: execution.grants.convert(),
        lease_until: execution.lease_until.convert(),
    })
}
