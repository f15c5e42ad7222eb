//! Tasks: author sets, review, evidence of approvals, reassignment of approval requests, and application.

mod apply;
mod authors;
mod chat;
mod claimants;
mod evidence;
mod fixture;
mod friction;
mod independence;
mod independence_search;
mod previews;
mod reassignment;
mod review;
mod rollback_evidence;
mod scope;
