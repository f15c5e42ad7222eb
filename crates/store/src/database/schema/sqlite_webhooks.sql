-- What webhooks are sent, one row for each event and webhook. The webhooks themselves are documents.
CREATE TABLE webhook_deliveries (
    delivery_id text PRIMARY KEY,
    webhook_id text NOT NULL,
    event_id text NOT NULL,
    -- `pending`, `delivered` or `failed`.
    status text NOT NULL,
    -- When a pending delivery is sent, or when the lease of the process that sends it ends; NULL for others.
    next_at integer,
    -- The process that sends it.
    claimed_by text,
    -- The task of the event.
    task_id text,
    -- Where the receiver keeps the message, if it can be changed there.
    message_ref text,
    attempts integer NOT NULL,
    -- No attempt starts later.
    give_up_at integer NOT NULL,
    created_at integer NOT NULL,
    body text NOT NULL,
    UNIQUE (webhook_id, event_id)
) STRICT;
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (webhook_id, next_at) WHERE next_at IS NOT NULL;
CREATE INDEX webhook_deliveries_by_webhook ON webhook_deliveries (webhook_id, delivery_id);
CREATE INDEX webhook_deliveries_with_message ON webhook_deliveries (webhook_id, task_id, delivery_id) WHERE message_ref IS NOT NULL;
CREATE INDEX webhook_deliveries_by_time ON webhook_deliveries (created_at);
CREATE INDEX webhook_deliveries_by_end ON webhook_deliveries (give_up_at) WHERE next_at IS NOT NULL;

-- Destinations that failed lately. A destination without a row works.
CREATE TABLE webhook_circuits (
    destination text PRIMARY KEY,
    failures integer NOT NULL,
    open_until integer,
    -- Until when one attempt tests the destination.
    probe_until integer
) STRICT;
