//! Webhooks and inbound hooks: lists, forms, deliveries, and secrets, which are shown once.

use ade_client::wire::{
    CircuitState, Delivery, DeliveryStatus, Hook, Page, Problem, Time, Webhook, WebhookFormat,
};
use askama::Template;

use super::Tabs;
use crate::Shell;
use crate::audit::percent_encoded;
use crate::format::visible;

/// A state with its shape and word.
struct Chip {
    class: &'static str,
    sign: &'static str,
    word: &'static str,
}

const fn circuit_chip(state: CircuitState) -> Chip {
    match state {
        CircuitState::Closed => Chip { class: "ok", sign: "✓", word: "works" },
        CircuitState::Open => Chip { class: "danger", sign: "✗", word: "paused after failures" },
        CircuitState::HalfOpen => Chip { class: "warn", sign: "…", word: "trying again" },
    }
}

/// Names of formats in the API, and what receives them.
const FORMATS: [(WebhookFormat, &str, &str); 5] = [
    (WebhookFormat::Standard, "standard", "JSON, signed as in Standard Webhooks"),
    (WebhookFormat::Slack, "slack", "Slack: messages in a channel"),
    (WebhookFormat::Pagerduty, "pagerduty", "PagerDuty: events of a service"),
    (WebhookFormat::Servicenow, "servicenow", "ServiceNow: records of a table"),
    (WebhookFormat::Email, "email", "E-mail to the people whom an event concerns"),
];

fn format_name(format: WebhookFormat) -> &'static str {
    FORMATS.iter().find(|(known, ..)| *known == format).map_or("", |(_, name, _)| name)
}

#[derive(Debug, Clone, Template)]
#[template(path = "settings_webhooks.html")]
pub struct WebhooksPage {
    pub shell: Shell,
    pub tabs: Tabs,
    pub webhooks: Vec<Webhook>,
    pub next_webhooks: Option<String>,
    pub hooks: Vec<Hook>,
    pub next_hooks: Option<String>,
}

impl WebhooksPage {
    fn circuit(&self, webhook: &Webhook) -> Chip {
        circuit_chip(webhook.circuit)
    }

    fn format(&self, webhook: &Webhook) -> &'static str {
        format_name(webhook.format)
    }

    fn text(&self, text: &str) -> String {
        visible(text)
    }
}

/// A webhook as it was typed. Credentials are never shown again.
#[derive(Debug, Clone)]
pub struct TypedWebhook {
    pub name: String,
    pub url: String,
    pub format: String,
    pub events: String,
    pub task_types: String,
    pub channel: String,
    pub addresses: String,
    pub digest_minutes: String,
}

impl Default for TypedWebhook {
    fn default() -> Self {
        let empty = String::new;
        Self {
            format: "standard".to_owned(),
            events: "approval:*".to_owned(),
            name: empty(),
            url: empty(),
            task_types: empty(),
            channel: empty(),
            addresses: empty(),
            digest_minutes: empty(),
        }
    }
}

/// The form for a new webhook. The format is chosen first: each asks for other things.
#[derive(Debug, Clone, Template)]
#[template(path = "settings_webhook_new.html")]
pub struct NewWebhookPage {
    pub shell: Shell,
    pub typed: TypedWebhook,
    pub problem: Option<Problem>,
}

impl NewWebhookPage {
    const fn formats(&self) -> [(WebhookFormat, &'static str, &'static str); 5] {
        FORMATS
    }

    fn is(&self, format: &str) -> bool {
        self.typed.format == format
    }
}

/// What is wrong with the deliveries of a webhook.
struct Trouble {
    heading: &'static str,
    waiting: String,
    next: Option<Time>,
    /// Of the last attempt that failed.
    error: Option<String>,
}

/// One webhook with its deliveries.
#[derive(Debug, Clone, Template)]
#[template(path = "settings_webhook.html")]
pub struct WebhookPage {
    pub shell: Shell,
    pub webhook: Webhook,
    pub deliveries: Vec<Delivery>,
    /// Deliveries that wait, whatever is listed: the first ones.
    pub waiting: Page<Delivery>,
    /// Status that the deliveries are filtered by; empty for all.
    pub status: String,
    pub next_cursor: Option<String>,
    pub problem: Option<Problem>,
}

impl WebhookPage {
    fn circuit(&self) -> Chip {
        circuit_chip(self.webhook.circuit)
    }

    fn format(&self) -> &'static str {
        format_name(self.webhook.format)
    }

    fn path(&self) -> String {
        format!("/settings/webhooks/{}", percent_encoded(&self.webhook.webhook_id))
    }

    fn next(&self, cursor: &str) -> String {
        format!("{}?status={}&cursor={}", self.path(), percent_encoded(&self.status), percent_encoded(cursor))
    }

    fn is_paused(&self) -> bool {
        self.webhook.circuit == CircuitState::Open
    }

    fn is_ahead(&self, time: &Time) -> bool {
        time.0 > self.shell.now
    }

    /// What is wrong with its deliveries, if anything.
    fn trouble(&self) -> Option<Trouble> {
        let retried = |delivery: &&Delivery| delivery.attempts > 0;
        let heading = match self.webhook.circuit {
            CircuitState::Open => "Its destination is paused after several failures.",
            CircuitState::HalfOpen => "Its destination failed several times and is tested again.",
            CircuitState::Closed if self.waiting.items.iter().any(|one| retried(&one)) => {
                "Deliveries fail and are sent again."
            }
            CircuitState::Closed => return None,
        };
        let failed = self.waiting.items.iter().chain(&self.deliveries).filter(|one| one.error.is_some());
        let last = failed.max_by_key(|one| one.last_attempt_at);
        let next = self.waiting.items.iter().filter_map(|one| one.next_attempt_at);
        Some(Trouble {
            heading,
            waiting: match (self.waiting.items.len(), &self.waiting.next_cursor) {
                (0, _) => "Nothing waits.".to_owned(),
                (1, _) => "1 delivery waits.".to_owned(),
                (number, None) => format!("{number} deliveries wait."),
                (number, Some(_)) => format!("More than {number} deliveries wait."),
            },
            next: next.min().filter(|next| !self.is_paused() && self.is_ahead(next)),
            error: last.and_then(|one| one.error.as_deref()).map(visible),
        })
    }

    fn status_of(&self, delivery: &Delivery) -> Chip {
        match delivery.status {
            DeliveryStatus::Pending if delivery.attempts > 0 => {
                Chip { class: "warn", sign: "↻", word: "retrying" }
            }
            DeliveryStatus::Pending if self.is_paused() => {
                Chip { class: "warn", sign: "…", word: "waits, destination paused" }
            }
            DeliveryStatus::Pending => Chip { class: "info", sign: "…", word: "pending" },
            DeliveryStatus::Delivered => Chip { class: "ok", sign: "✓", word: "delivered" },
            DeliveryStatus::Failed => Chip { class: "danger", sign: "✗", word: "failed" },
        }
    }

    fn text(&self, text: &str) -> String {
        visible(text)
    }
}

/// A secret of a webhook or an inbound hook.
#[derive(Debug, Clone, Template)]
#[template(path = "settings_secret.html")]
pub struct SecretPage {
    pub shell: Shell,
    pub title: String,
    pub secret: Option<String>,
    /// Whether the previous secret is valid for a while.
    pub is_rotated: bool,
    /// For an inbound hook: where messages are sent.
    pub receives_at: Option<String>,
    /// The page to go on with.
    pub back: String,
}

/// The form for a new inbound hook.
#[derive(Debug, Clone, Template)]
#[template(path = "settings_hook_new.html")]
pub struct NewHookPage {
    pub shell: Shell,
    pub name: String,
    pub owner_id: String,
    /// JSON.
    pub template: String,
    pub problem: Option<Problem>,
}

impl NewHookPage {
    /// A template to begin with.
    pub const EXAMPLE: &'static str = "{
  \"type\": \"deploy\",
  \"description\": \"Deploy {version}\",
  \"executor\": \"noop\",
  \"parameters\": { \"version\": \"{version}\" },
  \"resources\": [{ \"type\": \"service\", \"id\": \"shop\" }],
  \"inputs\": { \"version\": { \"type\": \"string\", \"max_length\": 40 } }
}";
}

/// One inbound hook.
#[derive(Debug, Clone, Template)]
#[template(path = "settings_hook.html")]
pub struct HookPage {
    pub shell: Shell,
    pub hook: Hook,
    pub origin: String,
    pub problem: Option<Problem>,
}

impl HookPage {
    fn path(&self) -> String {
        format!("/settings/hooks/{}", percent_encoded(&self.hook.hook_id))
    }

    fn template(&self) -> String {
        visible(serde_json::to_string_pretty(&self.hook.template).unwrap_or_default())
    }

    fn text(&self, text: &str) -> String {
        visible(text)
    }
}
