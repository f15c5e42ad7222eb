//! Use cases: load, let `domain` decide, commit through the ports of `store`, then tell whoever must know.
//!
//! Nothing is sent before it is committed. No lock of this process is held while anything is waited for.

pub mod agents;
mod caller;
mod error;
pub mod ledger;
pub mod locks;
mod notices;
mod repeat;
pub mod reviews;
pub mod rules;
pub mod settings;
mod upkeep;

pub use caller::Caller;
pub use error::Error;
pub use locks::LockService;
pub use notices::{AUDIT, LogNotices, Notice, Notices};
pub use repeat::{Keep, Made, Render};
pub use reviews::Reviews;
pub use rules::Rules;
pub use settings::Settings;
pub use upkeep::Upkeep;
