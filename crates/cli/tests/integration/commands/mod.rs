//! Commands of `ade`, run as a user or a script runs them, and the lock guard of the client against a real server.

mod agent;
mod bench;
mod bootstrap_token;
mod first_installation;
mod keys;
mod keys_lint;
mod lock_guard;
mod login;
mod serve;
mod terminal_text;
