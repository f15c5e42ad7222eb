//! What is wrong with something that somebody sent, and where.

/// A part of a request that cannot be, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid {
    /// A JSON pointer into the body.
    pub pointer: String,
    /// What is wrong.
    pub detail: String,
}

impl Invalid {
    /// A fault at a place.
    pub fn at(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), detail: detail.into() }
    }
}
