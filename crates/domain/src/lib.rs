//! What a lock, a request for locks and an agent are, and how each of them decides.
//!
//! Everything here is a pure function of a state, a command and a time: no I/O, no async, no clock. A backend runs these
//! functions and keeps their results; it never decides anything by itself.

pub mod agent;
pub mod lock;
pub mod time;

pub use time::{Clock, Moment};
