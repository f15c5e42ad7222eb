-- E-mail: one delivery for each event, webhook and recipient; those of a digest are sent in one message. SQLite changes no constraint of a
-- table, so it is made anew.
CREATE TABLE new_webhook_deliveries (
    delivery_id text PRIMARY KEY,
    webhook_id text NOT NULL,
    event_id text NOT NULL,
    -- `user:ID` or `address:ADDRESS`, for e-mail; empty for other formats.
    recipient text NOT NULL DEFAULT '',
    -- When all deliveries for the recipient until then are sent; NULL: each alone.
    digest_at integer,
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
    UNIQUE (webhook_id, event_id, recipient)
) STRICT;
INSERT INTO new_webhook_deliveries (delivery_id, webhook_id, event_id, status, next_at, claimed_by, task_id, message_ref, attempts, give_up_at, created_at, body)
    SELECT delivery_id, webhook_id, event_id, status, next_at, claimed_by, task_id, message_ref, attempts, give_up_at, created_at, body
    FROM webhook_deliveries;
DROP TABLE webhook_deliveries;
ALTER TABLE new_webhook_deliveries RENAME TO webhook_deliveries;
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (webhook_id, next_at) WHERE next_at IS NOT NULL;
CREATE INDEX webhook_deliveries_by_webhook ON webhook_deliveries (webhook_id, delivery_id);
CREATE INDEX webhook_deliveries_with_message ON webhook_deliveries (webhook_id, task_id, delivery_id) WHERE message_ref IS NOT NULL;
CREATE INDEX webhook_deliveries_by_time ON webhook_deliveries (created_at);
CREATE INDEX webhook_deliveries_by_end ON webhook_deliveries (give_up_at) WHERE next_at IS NOT NULL;
CREATE INDEX webhook_deliveries_by_digest ON webhook_deliveries (webhook_id, recipient, digest_at, delivery_id)
    WHERE next_at IS NOT NULL AND digest_at IS NOT NULL;
