//! Webhooks, their deliveries, and inbound hooks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{Resource, RollbackStrategy, TaskState, Time};

/// What the receiver of a webhook understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WebhookFormat {
    /// JSON with the signature of the Standard Webhooks specification.
    Standard,
    /// A message for Slack.
    Slack,
    /// An event for PagerDuty (Events API v2).
    Pagerduty,
    /// A record in a table of ServiceNow.
    Servicenow,
    /// Messages to the people whom an event concerns.
    Email,
}

/// Whether a destination is sent anything at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CircuitState {
    /// It works.
    Closed,
    /// It failed several times in a row and gets a rest.
    Open,
    /// The next attempt decides.
    HalfOpen,
}

/// Creates or updates a webhook. Absent fields keep their values.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookRequest {
    /// Display name; required for a new webhook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 128)]
    pub name: Option<String>,
    /// Where to send; required for a new webhook, except for `email`, `pagerduty` and `slack` with a bot token. HTTPS and a public address, unless the operator allows the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 2_048)]
    pub url: Option<String>,
    /// Format; `standard` by default. It cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<WebhookFormat>,
    /// Patterns of event names such as `approval:*`; required for a new webhook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 1, max_items = 50)]
    pub events: Option<Vec<String>>,
    /// Patterns of task types; without any, all events that match are sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 50)]
    pub task_types: Option<Vec<String>>,
    /// Whether anything is sent; true by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<bool>,
    /// What the receiver asks for, never shown again: the routing key of PagerDuty, the header `Authorization` of ServiceNow, the bot
    /// token of Slack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 4_096)]
    pub credential: Option<String>,
    /// Channel of Slack that a bot token posts to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 80)]
    pub channel: Option<String>,
    /// Of `email`: addresses that get every event, besides the people whom it concerns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 50)]
    pub addresses: Option<Vec<String>>,
    /// Of `email`: sends one message for each recipient and so many minutes; 0: one for each event, as by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 10_080)]
    pub digest_minutes: Option<u32>,
    /// Signing secret of a Slack app with a bot token, never shown again: linked users can then decide in Slack about tasks of level LOW.
    /// A new secret ends all links that were made with the old one; an empty text removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 128)]
    pub signing_secret: Option<String>,
}

/// Where events are sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Webhook {
    /// Unique id.
    pub webhook_id: String,
    /// Display name.
    pub name: String,
    /// The URL without what may be secret in it; `smtp:` for `email`.
    pub url: String,
    /// Format.
    pub format: WebhookFormat,
    /// Patterns of event names.
    pub events: Vec<String>,
    /// Patterns of task types.
    pub task_types: Vec<String>,
    /// Channel of Slack that a bot token posts to.
    #[serde(default)]
    pub channel: Option<String>,
    /// Addresses that get every event.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// Minutes of a digest.
    #[serde(default)]
    pub digest_minutes: Option<u32>,
    /// Whether linked users decide in Slack.
    #[serde(default)]
    pub decisions: bool,
    /// Whether anything is sent.
    pub active: bool,
    /// Why the service deactivated it.
    pub disabled_reason: Option<String>,
    /// User who created it; null for the bootstrap token.
    pub owner_id: Option<String>,
    /// Time of creation.
    pub created_at: Time,
    /// State of its destination.
    pub circuit: CircuitState,
    /// Until when nothing is sent to its destination, after several failures.
    #[serde(default)]
    pub circuit_open_until: Option<Time>,
    /// Until when the previous secret signs too.
    pub previous_secret_until: Option<Time>,
    /// The secret that signs; returned only when it is created or rotated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Revision, which grows with every change.
    pub revision: u64,
}

/// How a delivery goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryStatus {
    /// It will be sent, perhaps again.
    Pending,
    /// The receiver accepted it.
    Delivered,
    /// It is not tried any more.
    Failed,
}

/// One event for one webhook, and for one recipient of e-mail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Delivery {
    /// Unique id, sent as `webhook-id`; the same in every attempt.
    pub delivery_id: String,
    /// The webhook.
    pub webhook_id: String,
    /// Id of the event.
    pub event_id: String,
    /// Name of the event.
    pub event: String,
    /// Task that the event is about.
    pub task_id: Option<String>,
    /// To whom e-mail goes: `user:ID` or `address:ADDRESS`.
    #[serde(default)]
    pub recipient: Option<String>,
    /// How many people get no e-mail about the event because they have no address.
    #[serde(default)]
    pub skipped_people: u32,
    /// Status.
    pub status: DeliveryStatus,
    /// Attempts so far.
    pub attempts: u64,
    /// Time of creation.
    pub created_at: Time,
    /// When it is tried next.
    pub next_attempt_at: Option<Time>,
    /// When it was tried last.
    pub last_attempt_at: Option<Time>,
    /// When it was delivered or given up.
    pub finished_at: Option<Time>,
    /// HTTP status of the last response, or the reply code of the mail server.
    pub response_status: Option<u16>,
    /// Beginning of the last response.
    pub response: Option<String>,
    /// Why the last attempt failed.
    pub error: Option<String>,
    /// What is sent.
    pub payload: String,
}

/// Which values an input of an inbound hook accepts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum HookInput {
    /// A text.
    String {
        /// Most characters; 256 by default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_length: Option<u32>,
        /// Value if the message has none; without one the input is required.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        default: Option<String>,
    },
    /// An integer.
    Integer {
        /// Smallest value.
        minimum: i64,
        /// Largest value.
        maximum: i64,
        /// Value if the message has none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        default: Option<i64>,
    },
    /// True or false.
    Boolean {
        /// Value if the message has none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        default: Option<bool>,
    },
    /// One of some texts.
    Enum {
        /// The texts.
        values: Vec<String>,
        /// Value if the message has none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        default: Option<String>,
    },
}

/// The type of an input of an inbound hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HookInputType {
    /// A text.
    String,
    /// An integer.
    Integer,
    /// True or false.
    Boolean,
    /// One of some texts.
    Enum,
}

/// Describes [`HookInput`] as one object, because generators of requests do not understand alternatives below the root.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = HookInput)]
pub struct HookInputFields {
    /// Type of the value.
    #[serde(rename = "type")]
    pub kind: HookInputType,
    /// Of `string`: most characters; 256 by default.
    #[schema(minimum = 1, maximum = 4_096)]
    pub max_length: Option<u32>,
    /// Of `integer`, required: smallest value.
    pub minimum: Option<i64>,
    /// Of `integer`, required: largest value.
    pub maximum: Option<i64>,
    /// Of `enum`, required: the texts.
    #[schema(min_items = 1, max_items = 100)]
    pub values: Option<Vec<String>>,
    /// Value if the message has none; without one the input is required.
    pub default: Option<Value>,
}

/// A task with placeholders: `{name}` in description, parameters and ids of resources is replaced by the value of that input.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HookTemplate {
    /// Task type.
    #[serde(rename = "type")]
    pub task_type: String,
    /// Description.
    pub description: String,
    /// Executor; `agent` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// Parameters of the executor. A text that is only a placeholder becomes the value with its type.
    #[serde(default)]
    pub parameters: Map<String, Value>,
    /// Resources.
    #[serde(default)]
    pub resources: Vec<Resource>,
    /// Rollback strategy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_strategy: Option<RollbackStrategy>,
    /// Time for applying the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u32>,
    /// Priority from 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 100)]
    pub priority: Option<u8>,
    /// Team.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
    /// Tags.
    #[serde(default)]
    pub tags: Vec<String>,
    /// The inputs that messages fill, by name.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, HookInputFields>)]
    pub inputs: BTreeMap<String, HookInput>,
}

/// Registers or updates an inbound hook. Absent fields keep their values.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HookRequest {
    /// Display name; required for a new hook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 128)]
    pub name: Option<String>,
    /// User who is the author of the tasks; required for a new hook, and cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_id: Option<String>,
    /// Whether messages are accepted; true by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<bool>,
    /// Whether tasks are submitted at once; true by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submit: Option<bool>,
    /// The task; required for a new hook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<HookTemplate>,
}

/// A hook through which signed messages propose tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Hook {
    /// Unique id; messages go to `POST /hooks/{id}`.
    pub hook_id: String,
    /// Display name.
    pub name: String,
    /// Author of the tasks.
    pub owner_id: String,
    /// Who made the present secret; null for the bootstrap token. Counts as an author of the tasks.
    pub created_by: Option<String>,
    /// Time of creation.
    pub created_at: Time,
    /// Whether messages are accepted.
    pub active: bool,
    /// Whether tasks are submitted at once.
    pub submit: bool,
    /// The task.
    pub template: HookTemplate,
    /// Until when the previous secret is accepted too.
    pub previous_secret_until: Option<Time>,
    /// The secret that messages are signed with; returned only when it is created or rotated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Revision, which grows with every change.
    pub revision: u64,
}

/// A message to an inbound hook.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HookMessage {
    /// Anything; ignored.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Anything; ignored. The header `webhook-timestamp` counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
    /// Values of the inputs of the hook.
    #[serde(default)]
    pub data: Map<String, Value>,
}

/// The task that a message proposed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HookedTask {
    /// Id of the task.
    pub task_id: String,
    /// Its state.
    pub state: TaskState,
    /// Why it could not be submitted; it is a draft then, which its author can change and submit.
    pub submit_error: Option<String>,
}
