//! Tasks: author sets, review, reassignment of approval requests, and application.

mod apply;
mod authors;
mod fixture;
mod reassignment;
mod review;
