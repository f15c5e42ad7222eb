//! The functions of the library, by name. Each is registered under the same name in `scripts/*.lua`.

use ade_domain::lock::{LockCommand, LockLimits};

use super::link::Script;
use super::step;

macro_rules! functions {
    ($($name:ident),+ $(,)?) => {
        /// The functions of the library under the rules in force.
        pub(super) struct Scripts {
            $(pub(super) $name: Script),+
        }

        impl Scripts {
            pub(super) fn new(rules: &LockLimits) -> Self {
                let [$($name),+] = Script::library(&step::library(rules), [$(stringify!($name)),+]);
                Self { $($name),+ }
            }
        }
    };
}

functions!(
    acquire,
    step,
    look,
    enlist,
    revise,
    forget_names,
    put_agent,
    hear_agent,
    silence_agent,
    claim_task,
    unclaim_task,
    admit,
    count,
    call,
    wake_scheduled,
    lock_job,
    unlock_job,
);

impl Scripts {
    /// Taking a lock is refused when Redis is short of memory, everything else is not.
    pub(super) const fn of(&self, command: &LockCommand) -> &Script {
        if matches!(command, LockCommand::Acquire(_)) { &self.acquire } else { &self.step }
    }
}
