//! Tasks: how they are reviewed, moved, and carried out.

#![expect(clippy::expect_used, reason = "helpers of tests fail and tell like tests")]

mod applying;
mod moves;
mod office;
mod reviews;
