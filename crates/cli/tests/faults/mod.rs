//! The parts of the drill: what is protected, who works on it, and what happens meanwhile.

pub(crate) mod counter;
pub(crate) mod deployment;
pub(crate) mod worker;
