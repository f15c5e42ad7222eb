//! Locks: who may hold what, who comes next, and what becomes of those who would wait for each other for ever.
//!
//! Two layers. The machine of one lock ([`Lock`]) takes a [`Command`] at a [`Moment`](crate::Moment), answers with an
//! [`Outcome`] and lists every [`Change`] it made: that is what a backend keeps, publishes and replays. The [`saga`]
//! takes several locks, one step at a time in one order, or gives them all back. Around them, [`Table`] keeps many locks
//! with the indexes that the wait-for [`graph`] needs.
//!
//! Invariants, searched for by the tests: incompatible holders never coexist; nobody passes an earlier waiter, except a
//! holder that upgrades; a token of a lock is larger than every earlier one; after each step whoever can hold does hold;
//! what was released or cancelled does not come back by a late repetition.

mod command;
mod due;
mod fence;
pub mod graph;
mod machine;
mod name;
mod pairs;
mod queue;
mod repeats;
mod request;
mod rules;
pub mod saga;
mod step;
mod table;

pub use command::{
    Acquire, Change, End, Grant, HeldBy, LockCommand, LockRefusal, Outcome, Standing, Step, Wait,
};
pub use fence::Token;
pub use graph::{Cycle, Deadlock, Edge};
pub use machine::{Hold, Lock, MAX_REQUESTS};
pub use name::{Holder, InvalidName, LockKind, LockName, Mode, Text};
pub use queue::{Place, Score, Waiter};
pub use repeats::{NoKey, RequestKey, digest};
pub use request::{Ask, Draft, LockRequest, MAX_LOCKS, Patience, ttl_ms};
pub use rules::LockLimits;
pub use step::{LONGER_MS, SHOWN_HOLDERS};
pub use table::{Answer, Entry, Table};
