//! The database on SQLite and on PostgreSQL: every scenario runs on both, against real databases.

mod approvals;
mod archives;
mod event_consumers;
mod event_log;
mod evidence;
pub(crate) mod fixture;
mod people;
mod postgres;
mod queue;
mod secret_key;
mod sqlite;
mod stored_lock_requests;
mod tasks;
mod webhooks;
mod work;
