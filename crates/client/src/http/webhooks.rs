//! Client methods of webhooks, their deliveries, and inbound hooks.

use super::routes;
use crate::wire::{Delivery, Hook, HookRequest, Webhook, WebhookRequest};

routes! {
    /// Lists webhooks. Filters: `limit`, `cursor`.
    list webhooks() "/webhooks" => Webhook;
    /// Gets a webhook.
    get webhook(webhook_id) "/webhooks/{}" => Webhook;
    /// Creates a webhook (admin). Its secret is returned only once.
    post create_webhook() "/webhooks": WebhookRequest => Webhook;
    /// Updates a webhook if it has this revision (admin).
    patch update_webhook(webhook_id) "/webhooks/{}": WebhookRequest => Webhook;
    /// Deletes a webhook (admin).
    delete delete_webhook(webhook_id) "/webhooks/{}" => ();
    /// Replaces the secret of a webhook (admin). The new one is returned only once.
    post rotate_webhook(webhook_id) "/webhooks/{}/rotate" => Webhook;
    /// Sends a test message to a webhook (admin).
    post test_webhook(webhook_id) "/webhooks/{}/test" => Delivery;
    /// Lists the deliveries of a webhook, newest first. Filters: `status`, `limit`, `cursor`.
    list deliveries(webhook_id) "/webhooks/{}/deliveries" => Delivery;
    /// Sends a delivery again (admin).
    post redeliver(webhook_id, delivery_id) "/webhooks/{}/deliveries/{}/redeliver" => Delivery;
    /// Lists inbound hooks. Filters: `limit`, `cursor`.
    list hooks() "/hooks" => Hook;
    /// Gets an inbound hook.
    get hook(hook_id) "/hooks/{}" => Hook;
    /// Registers an inbound hook (admin). Its secret is returned only once.
    post create_hook() "/hooks": HookRequest => Hook;
    /// Updates an inbound hook if it has this revision (admin).
    patch update_hook(hook_id) "/hooks/{}": HookRequest => Hook;
    /// Deletes an inbound hook (admin).
    delete delete_hook(hook_id) "/hooks/{}" => ();
    /// Replaces the secret of an inbound hook (admin). The new one is returned only once.
    post rotate_hook(hook_id) "/hooks/{}/rotate" => Hook;
}
