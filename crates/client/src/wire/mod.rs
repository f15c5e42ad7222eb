//! Wire types of the HTTP API: snake_case JSON, times in RFC 3339 with microseconds. Unknown fields are rejected in
//! requests and ignored in responses.

mod agents;
mod approvals;
mod audit;
mod events;
mod execution;
mod jobs;
mod keys;
mod locks;
mod review;
mod rules;
mod tasks;
mod users;
mod webhooks;

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use utoipa::ToSchema;

pub use agents::*;
pub use approvals::*;
pub use audit::*;
pub use events::*;
pub use execution::*;
pub use jobs::*;
pub use keys::*;
pub use locks::*;
pub use review::*;
pub use rules::*;
pub use tasks::*;
pub use users::*;
pub use webhooks::*;

/// RFC 3339 in UTC with microseconds
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, ToSchema)]
#[schema(value_type = String, format = DateTime)]
pub struct Time(pub Timestamp);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}", self.0)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Displays enums as in JSON.
macro_rules! display_as_json {
    ($($name:ident),+) => {
        $(impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.serialize(f)
            }
        })+
    };
}

display_as_json!(ApprovalStatus, Scope, TaskState, Weekday);

/// Distinguishes null from an absent field: null is `Some(None)`.
fn nullable<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// Items of this page.
    pub items: Vec<T>,
    /// Cursor of the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// An invalid part of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldError {
    /// JSON pointer into the body, `?name` for a query parameter, or the name of a header.
    pub pointer: String,
    /// What is wrong.
    pub detail: String,
}

/// An error response (RFC 9457) with extension members that depend on its code.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Always `about:blank`; `code` identifies the problem.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// Reason phrase of the status.
    #[serde(default)]
    pub title: String,
    /// HTTP status.
    #[serde(default)]
    pub status: u16,
    /// What failed, why, and what to do.
    #[serde(default)]
    pub detail: String,
    /// Stable code for programs.
    #[serde(default)]
    pub code: String,
    /// Extension members such as `holders`, `queue_length`, `cycle`, `results` or `errors`.
    #[serde(flatten)]
    pub extensions: BTreeMap<String, Value>,
}

impl Problem {
    /// An extension member, if it is present and has this type.
    #[must_use]
    pub fn extension<T: for<'de> Deserialize<'de>>(&self, name: &str) -> Option<T> {
        self.extensions.get(name).and_then(|value| serde_json::from_value(value.clone()).ok())
    }
}
