//! Integration tests of the keyspace tools. One program, so that it is linked once.

#![expect(clippy::expect_used, clippy::panic, reason = "helpers of tests fail like tests")]

mod lint;
