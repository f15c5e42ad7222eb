//! The pages of the dashboard: view models, templates and assets.
//!
//! A page is rendered from wire types of the HTTP API, as the caller sees them, and from nothing else: this crate makes no
//! decisions, reads no database and no clock, and knows no secrets but the CSRF token of the session. What an author or an agent
//! wrote reaches a page as escaped text only; [`Markup`] is made of constants and escaped text inside this crate.

mod activity;
mod agents;
mod assets;
mod audit;
mod chains;
mod changes;
mod charts;
mod confirmation;
mod delegations;
mod diff;
mod drawing;
mod effect;
mod error_page;
mod event_text;
#[cfg(test)]
mod fixture;
mod format;
mod inbox;
mod json_fields;
mod keyspace;
mod locks;
mod markup;
mod policies;
mod review;
mod rule_text;
pub mod settings;
mod shell;
mod sign_in;
mod tasks;
mod turn;
mod votes;
mod words;

pub use activity::{ActivityFilters, ActivityPage, ChartsPage};
pub use agents::{
    AgentDraft, AgentFilter, AgentPage, AgentsPage, NewTokenPage, WizardField, WizardPage, step_of,
    unreadable,
};
pub use askama::Template;
pub use assets::{Asset, asset, assets_version};
pub use audit::{AuditFilters, AuditPage, linked_task};
pub use changes::{ChangesPage, PendingChanges};
pub use delegations::{DelegationCheck, DelegationFields, DelegationPage, DelegationsPage};
pub use error_page::ErrorPage;
pub use format::short_id;
pub use inbox::{BatchPage, BatchReview, InboxPage, InboxView};
pub use keyspace::{KeyFilters, KeyPage, KeyspacePage};
pub use locks::{LISTED_BLOCKERS, LockPage, LocksFilter, LocksPage, RootBlocker, root_blockers};
pub use markup::Markup;
pub use policies::{PoliciesPage, PolicyFields, PolicyPage, ReplayPage, SimulationPage};
pub use review::{Changes, RefusedDecision, Review};
pub use shell::{Notice, Section, Shell, Viewer};
pub use sign_in::{JoinPage, PasswordPage, SignInPage};
pub use tasks::{TaskFilters, TaskPage, TaskPreviewPage, TasksPage, TypedCommand};
