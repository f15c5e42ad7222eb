//! Carrying tasks out, as it goes over the wire.

use ade_app::Caller;
use ade_client::wire;
use ade_domain::Moment;
use ade_domain::task::{Asked, Execution, Phase};
use ade_store::database::{LogLine, StoredTask};

use super::reviews::task;

pub(crate) fn execution(execution: &Execution) -> wire::Execution {
    let asked = |asked: &Asked| wire::Asked {
        by: asked.by.to_string(),
        reason: asked.reason.clone(),
        at: asked.at.into(),
    };
    let lives = execution.phase != Phase::Ended;
    wire::Execution {
        attempt: execution.attempt,
        agent_id: execution.worker.clone(),
        phase: execution.phase,
        lease_until: Some(execution.lease_until).filter(|_| lives).map(Into::into),
        started_at: execution.started_at.into(),
        completed_at: execution.completed_at.map(Into::into),
        result: execution.result,
        output: execution.output.clone(),
        output_key: execution.output_key.clone(),
        error: execution.error.clone(),
        code: execution.code,
        rolled_back: execution.rolled_back,
        retry_count: execution.retry_count,
        grants: if lives { execution.grants.clone() } else { Vec::new() },
        stop: execution.stop.as_ref().map(asked),
        undo: execution.undo.as_ref().map(asked),
    }
}

pub(crate) fn line(line: &LogLine) -> wire::LogLine {
    wire::LogLine { number: line.number, attempt: line.attempt, at: line.at.into(), text: line.text.clone() }
}

/// A task that an agent carries out from now on.
pub(crate) fn claim(stored: &StoredTask, reader: &Caller, now: Moment) -> Option<wire::Claim> {
    let execution = stored.execution.as_ref()?;
    Some(wire::Claim {
        task: task(stored, reader, now),
        attempt: execution.attempt,
        grants: execution.grants.clone(),
        lease_until: execution.lease_until.into(),
    })
}
