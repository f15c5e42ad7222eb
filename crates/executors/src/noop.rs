//! An executor without effects, for demonstrations, trials and benchmarks.

use ade_domain::Invalid;
use ade_domain::task::Preview;

use crate::{BoxFuture, Executor, Failure, Fence, Parameters, Run, Settled, preview_of};

#[derive(Debug, Clone, Copy, Default)]
pub struct Noop;

impl Executor for Noop {
    fn check(&self, _: &Parameters) -> Result<(), Vec<Invalid>> {
        Ok(())
    }

    fn preview<'a>(&'a self, _: &'a Parameters) -> BoxFuture<'a, Result<Preview, Failure>> {
        Box::pin(async { Ok(preview_of(Vec::new(), Vec::new(), Vec::new())) })
    }

    fn stash<'a>(&'a self, _: &'a Run) -> BoxFuture<'a, Result<Vec<u8>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn apply<'a>(&'a self, _: &'a Run, _: &'a [u8]) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async { Ok(()) })
    }

    fn roll_back<'a>(&'a self, _: &'a Run, _: &'a [u8]) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async { Ok(()) })
    }

    fn settle<'a>(&'a self, _: &'a Run, _: &'a [u8]) -> BoxFuture<'a, Result<Settled, Failure>> {
        Box::pin(async { Ok(Settled::Nothing) })
    }

    fn fence(&self) -> Fence {
        Fence::Fenced
    }

    fn changes_nothing(&self) -> bool {
        true
    }

    fn can_roll_back(&self, _: &Parameters) -> bool {
        true
    }
}
