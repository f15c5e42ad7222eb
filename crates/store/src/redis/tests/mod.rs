//! Tests of the whole backend against real servers.

mod differential;
mod steps;
