//! Use cases: load, let `domain` decide, commit through the ports of `store`, then tell whoever must know.
//!
//! Nothing is sent before it is committed. No lock of this process is held while anything is waited for.

pub mod accounts;
mod acts;
pub mod agents;
mod audits;
mod caller;
pub mod demo;
pub mod duties;
mod error;
pub mod jobs;
pub mod ledger;
pub mod locks;
mod notices;
pub mod proposal;
mod repeat;
pub mod rules;
pub mod settings;
mod signals;
pub mod tasks;
mod upkeep;
pub mod worker;

pub use accounts::AccountService;
pub use audits::AuditService;
pub use caller::Caller;
pub use error::Error;
pub use jobs::Jobs;
pub use locks::LockService;
pub use notices::{AUDIT, LockEventSink, LockNotice, LogNotices, RecordNotices};
pub use repeat::{IdempotentRequest, Outcome, Render};
pub use rules::RuleService;
pub use settings::Settings;
pub use tasks::TaskService;
pub use upkeep::LockMaintenance;
pub use worker::{Worker, Working};
