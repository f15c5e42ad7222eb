//! Why something could not be measured. Invariant: an error ends up in the report or on standard error.

/// Says what failed and, where possible, what to do.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BenchError(String);

impl BenchError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    /// For `map_err`: adds the failed action to an error.
    pub(crate) fn context<E: std::fmt::Display>(action: &str) -> impl FnOnce(E) -> Self + '_ {
        move |error| Self(format!("cannot {action}: {error}"))
    }
}
