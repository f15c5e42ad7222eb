//! The subcommands, one module per noun. A command translates arguments into calls and prints their results.

pub(crate) mod admin;
pub(crate) mod agent;
pub(crate) mod approval;
pub(crate) mod audit;
pub(crate) mod bench;
pub(crate) mod change;
pub(crate) mod config;
pub(crate) mod delegation;
pub(crate) mod doctor;
pub(crate) mod events;
pub(crate) mod executors;
pub(crate) mod jobs;
pub(crate) mod keys;
pub(crate) mod limited;
pub(crate) mod lock;
pub(crate) mod login;
pub(crate) mod policy;
pub(crate) mod rebuild;
pub(crate) mod resource;
pub(crate) mod serve;
pub(crate) mod simulate;
pub(crate) mod task;
pub(crate) mod user;
pub(crate) mod watchdog;
pub(crate) mod webhook;
pub(crate) mod worker;
