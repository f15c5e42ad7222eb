//! Validation errors: which field of an input is invalid, and why.

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidField {
    /// The path of the field from the root of the input, such as `/resources/0/id`.
    pub path: String,
    /// What the field must be. The text follows the name of the field: "must be between 0 and 100".
    pub detail: String,
}

impl InvalidField {
    pub fn at(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { path: path.into(), detail: detail.into() }
    }
}
