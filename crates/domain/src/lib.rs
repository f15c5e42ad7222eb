//! The domain model: tasks with their approvals and execution, locks, agents, people, permissions and the audit chain.
//!
//! Everything is a pure function of a state, a command and a time: no I/O, no async, no clock. A backend runs these functions
//! and stores their results; it never decides anything itself.

pub mod agent;
pub mod approval;
pub mod audit;
pub mod event;
pub mod glob;
mod invalid;
pub mod lock;
pub mod people;
pub mod permission;
pub mod risk;
pub mod task;
pub mod time;

pub use invalid::{FieldPath, InvalidField, Validator};
pub use time::{Clock, Moment};
