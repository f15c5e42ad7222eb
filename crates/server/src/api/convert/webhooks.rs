//! Conversions of webhooks, deliveries and inbound hooks.

use ade_app::webhooks::{InboundHookChange, WebhookChange, WebhookWithSecret};
use ade_app::{InboundHookView, WebhookView};
use ade_client::wire;
use ade_domain::webhook::WebhookFormat;
use ade_domain::webhook::delivery::CircuitState;
use ade_domain::webhook::inbound::{InputRule, TaskTemplate};
use ade_store::database::{Delivery, DeliveryStatus};

use super::{Convert, convert_enums, convert_structs};

convert_enums! {
    WebhookFormat = wire::WebhookFormat { Standard, Slack, Pagerduty, Servicenow, Email }
    CircuitState = wire::CircuitState { Closed, Open, HalfOpen }
    DeliveryStatus = wire::DeliveryStatus { Pending, Delivered, Failed }
}

convert_structs! {
    wire::WebhookRequest => WebhookChange {
        name, url, format, events, task_types, active, credential, channel, addresses, digest_minutes, signing_secret
    };
    TaskTemplate => wire::HookTemplate {
        task_type, description, executor, parameters, resources, rollback_strategy, timeout_seconds, priority, team,
        tags, inputs
    };
    wire::HookTemplate => TaskTemplate {
        task_type, description, executor, parameters, resources, rollback_strategy, timeout_seconds, priority, team,
        tags, inputs
    };
}

impl Convert<wire::HookInput> for InputRule {
    fn convert(self) -> wire::HookInput {
        match self {
            Self::String { max_length, default } => wire::HookInput::String { max_length, default },
            Self::Integer { minimum, maximum, default } => {
                wire::HookInput::Integer { minimum, maximum, default }
            }
            Self::Boolean { default } => wire::HookInput::Boolean { default },
            Self::Enum { values, default } => wire::HookInput::Enum { values, default },
        }
    }
}

impl Convert<InputRule> for wire::HookInput {
    fn convert(self) -> InputRule {
        match self {
            Self::String { max_length, default } => InputRule::String { max_length, default },
            Self::Integer { minimum, maximum, default } => InputRule::Integer { minimum, maximum, default },
            Self::Boolean { default } => InputRule::Boolean { default },
            Self::Enum { values, default } => InputRule::Enum { values, default },
        }
    }
}

impl Convert<InboundHookChange> for wire::HookRequest {
    fn convert(self) -> InboundHookChange {
        let Self { name, owner_id, active, submit, template } = self;
        InboundHookChange { name, owner: owner_id.convert(), active, submit, template: template.convert() }
    }
}

pub(crate) fn webhook(view: &WebhookView, secret: Option<String>) -> wire::Webhook {
    let view = view.clone();
    wire::Webhook {
        webhook_id: view.webhook_id,
        name: view.name,
        url: view.url,
        format: view.format.convert(),
        events: view.events,
        task_types: view.task_types,
        channel: view.channel,
        addresses: view.addresses,
        digest_minutes: view.digest_minutes,
        decisions: view.decisions,
        active: view.active,
        disabled_reason: view.disabled_reason,
        owner_id: view.owner.convert(),
        created_at: view.created_at.convert(),
        circuit: view.circuit.convert(),
        circuit_open_until: view.circuit_open_until.convert(),
        previous_secret_until: view.previous_secret_until.convert(),
        secret,
        revision: view.revision,
    }
}

pub(crate) fn webhook_with_secret(created: &WebhookWithSecret) -> wire::Webhook {
    webhook(&created.view, created.secret.as_ref().map(|secret| secret.reveal().to_owned()))
}

pub(crate) fn delivery(delivery: &Delivery) -> wire::Delivery {
    let Delivery { content, report, .. } = delivery.clone();
    wire::Delivery {
        delivery_id: delivery.delivery_id.clone(),
        webhook_id: delivery.webhook_id.clone(),
        event_id: delivery.event_id.clone(),
        event: content.event,
        task_id: content.task_id,
        recipient: delivery.recipient.clone(),
        skipped_people: content.skipped_people,
        status: delivery.status.convert(),
        attempts: delivery.attempts,
        created_at: delivery.created_at.convert(),
        next_attempt_at: delivery.next_at.convert(),
        last_attempt_at: report.last_attempt_at.convert(),
        finished_at: report.finished_at.convert(),
        response_status: report.response_status,
        response: report.response,
        error: report.error,
        payload: content.payload,
    }
}

pub(crate) fn hook(view: &InboundHookView, secret: Option<String>) -> wire::Hook {
    let view = view.clone();
    wire::Hook {
        hook_id: view.hook_id,
        name: view.name,
        owner_id: view.owner.convert(),
        created_by: view.created_by.convert(),
        created_at: view.created_at.convert(),
        active: view.active,
        submit: view.submit,
        template: view.template.convert(),
        previous_secret_until: view.previous_secret_until.convert(),
        secret,
        revision: view.revision,
    }
}
