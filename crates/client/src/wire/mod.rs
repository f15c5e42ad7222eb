//! Wire types of the HTTP API: snake_case JSON, times in RFC 3339 with microseconds. Unknown fields are rejected in
//! requests and ignored in responses.

mod agents;
mod approvals;
mod audit;
mod execution;
mod jobs;
mod locks;
mod rules;
mod tasks;
mod users;

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

pub use agents::{Agent, AgentRequest};
pub use approvals::{Approval, BatchOptions, BatchRequest, BatchResponse, DecisionRequest, DelegateRequest};
pub use audit::{
    AuditEntry, AuditVerification, DailyOutcomes, InboxMessage, InvalidAuditEntry, Overview, UserStats,
};
pub use execution::{
    AdminRequest, ClaimRequest, CompleteRequest, Execution, LogLine, LogRequest, TaskClaim,
    TaskHeartbeatRequest, TaskLease,
};
pub use jobs::{Archive, Job, RestoreResult};
pub use locks::{
    AcquireRequest, BrokenLock, CycleEdge, Grant, Grants, HeartbeatRequest, HeldLockResult, HeldLockResults,
    HeldLocksRequest, HolderRef, Lock, LockHolder, LockMode, LockSpec, LockToken, LockWaiter, Ticket,
    TicketStatus, VerifiedToken, VerifyTokenRequest, WaitGraph, WaitGraphEdge,
};
pub use rules::{
    Delegation, DelegationRequest, Feature, FeatureRequest, Policy, PolicyReplay, PolicyRequest, PolicyRules,
    RegisteredResource, ReplayedTask, ResourceRequest, Setting, SettingRequest, SimulatedRequirement,
    SimulatedReviewer, Simulation, SimulationRequest,
};
pub use tasks::{
    Comment, CommentRequest, LockPreview, OverrideRequest, PendingOverride, PreviewRequest, ReasonRequest,
    Reopened, Risk, Task, TaskMetadata, TaskRequest, TaskStats,
};
pub use users::{Session, SignInRequest, Token, TokenRequest, User, UserPatch, UserRequest};

/// A time in UTC with microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Timestamp);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}", self.0)
    }
}

impl From<ade_domain::Moment> for Time {
    fn from(moment: ade_domain::Moment) -> Self {
        Self(moment.timestamp())
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Timestamp::deserialize(deserializer).map(Self)
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for Time {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, SchemaFormat, Type};
        ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
            .description(Some("RFC 3339 in UTC with microseconds"))
            .into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for Time {}

/// Distinguishes null from an absent field: null is `Some(None)`.
fn nullable<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Page<T> {
    /// Items of this page.
    pub items: Vec<T>,
    /// Cursor of the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// An invalid part of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FieldError {
    /// JSON pointer into the body, `?name` for a query parameter, or the name of a header.
    pub pointer: String,
    /// What is wrong.
    pub detail: String,
}

/// An error response (RFC 9457) with extension members that depend on its code.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
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
