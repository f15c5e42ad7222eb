//! Conversions from domain, store and app types to wire types. All handlers use them as `convert::task` and the like.

mod agents;
mod approvals;
mod audit;
mod execution;
mod jobs;
mod locks;
mod outcome;
mod rules;
mod settings;
mod simulations;
mod tasks;
mod users;

pub(crate) use agents::{agent, inbox_message};
pub(crate) use approvals::{approval, approval_view, listed_approval};
pub(crate) use audit::{audit_entry, daily_outcomes};
pub(crate) use execution::{execution, log_line, task_claim};
pub(crate) use jobs::{archive, job, restore_result};
pub(crate) use locks::{
    cycle_edge, grants, held_lock_result, lock, lock_holder, ticket, wait_graph_edge, waiting_ticket,
};
pub(crate) use outcome::outcome;
pub(crate) use rules::{delegation, policy, resource};
pub(crate) use settings::{feature, setting};
pub(crate) use simulations::{replayed_task, simulation};
pub(crate) use tasks::{comment, lock_preview, risk, task, task_stats};
pub(crate) use users::{token, user};
