//! The domain model: tasks with their approvals and execution, locks, agents, people, permissions and the audit chain.
//!
//! Everything is a pure function of a state, a command and a time: no I/O, no async, no clock. A backend runs these functions
//! and stores their results; it never decides anything itself.

pub mod agent;
pub mod approval;
pub mod audience;
pub mod audit;
pub mod capability;
pub mod dual_control;
pub mod email;
pub mod event;
pub mod event_filter;
pub mod glob;
pub mod independence;
mod invalid;
pub mod keys;
pub mod lock;
pub mod normal_form;
pub mod people;
pub mod people_selector;
pub mod permission;
pub mod rate;
pub mod risk;
pub mod sign_in;
pub mod task;
pub mod text;
pub mod time;
pub mod webhook;

pub use invalid::{FieldPath, InvalidField, Validator};
pub use keys::Keys;
pub use time::{Clock, Moment};
