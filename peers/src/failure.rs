//! Why something could not be measured. Invariant: a failure ends up in the report or on standard error, never nowhere.

/// Why something could not be measured, with what to do about it where something can be done.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Failure(String);

impl Failure {
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }

    /// For `map_err`: what was being done, and what came of it.
    pub(crate) fn of<E: std::fmt::Display>(doing: &str) -> impl FnOnce(E) -> Self + '_ {
        move |error| Self(format!("cannot {doing}: {error}"))
    }
}
