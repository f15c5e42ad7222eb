//! Tests of the services on SQLite and PostgreSQL, with as many processes as a test needs.

#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "test helpers fail like tests")]

mod accounts;
mod archive;
mod backlog;
mod checkpoints;
mod comments;
mod email;
mod fixture;
mod friction;
mod idempotency;
mod inbound_hooks;
mod interrupted_commits;
mod jobs;
mod offboarding;
mod rules;
mod rules_cache;
mod slack;
mod tasks;
mod webhooks;
