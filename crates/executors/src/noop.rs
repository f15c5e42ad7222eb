//! An executor without effects, for demonstrations, trials and benchmarks.

use ade_domain::task::Preview;
use async_trait::async_trait;

use crate::{AttemptOutcome, Executor, Fencing, Parameters, Result, Run, Validated, ready_preview};

#[derive(Debug, Clone, Copy, Default)]
pub struct NoopExecutor;

#[async_trait]
impl Executor for NoopExecutor {
    fn validate(&self, _: &Parameters) -> Validated<()> {
        Ok(())
    }

    async fn preview(&self, _: &Parameters) -> Result<Preview> {
        Ok(ready_preview(Vec::new(), Vec::new(), Vec::new()))
    }

    async fn prepare_rollback(&self, _: &Run) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    async fn apply(&self, _: &Run, _: &[u8]) -> Result<()> {
        Ok(())
    }

    async fn roll_back(&self, _: &Run, _: &[u8]) -> Result<()> {
        Ok(())
    }

    async fn resolve_outcome(&self, _: &Run, _: &[u8]) -> Result<AttemptOutcome> {
        Ok(AttemptOutcome::NotApplied)
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
