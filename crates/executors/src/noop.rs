//! An executor without effects, for demonstrations, trials and benchmarks.

use ade_domain::InvalidField;
use ade_domain::task::Preview;

use crate::{AttemptOutcome, BoxFuture, Executor, Failure, Fencing, Parameters, Run, ready_preview};

#[derive(Debug, Clone, Copy, Default)]
pub struct NoopExecutor;

impl Executor for NoopExecutor {
    fn validate(&self, _: &Parameters) -> Result<(), Vec<InvalidField>> {
        Ok(())
    }

    fn preview<'a>(&'a self, _: &'a Parameters) -> BoxFuture<'a, Result<Preview, Failure>> {
        Box::pin(async { Ok(ready_preview(Vec::new(), Vec::new(), Vec::new())) })
    }

    fn prepare_rollback<'a>(&'a self, _: &'a Run) -> BoxFuture<'a, Result<Vec<u8>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn apply<'a>(&'a self, _: &'a Run, _: &'a [u8]) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async { Ok(()) })
    }

    fn roll_back<'a>(&'a self, _: &'a Run, _: &'a [u8]) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async { Ok(()) })
    }

    fn resolve_outcome<'a>(
        &'a self,
        _: &'a Run,
        _: &'a [u8],
    ) -> BoxFuture<'a, Result<AttemptOutcome, Failure>> {
        Box::pin(async { Ok(AttemptOutcome::NotApplied) })
    }

    fn fencing(&self) -> Fencing {
        Fencing::Fenced
    }

    fn is_noop(&self) -> bool {
        true
    }

    fn can_roll_back(&self, _: &Parameters) -> bool {
        true
    }
}
