-- E-mail: one delivery for each event, webhook and recipient; those of a digest are sent in one message.
-- `user:ID` or `address:ADDRESS`; empty for other formats.
ALTER TABLE webhook_deliveries ADD COLUMN recipient text NOT NULL DEFAULT '';
-- When all deliveries for the recipient until then are sent; NULL: each alone.
ALTER TABLE webhook_deliveries ADD COLUMN digest_at timestamptz;
ALTER TABLE webhook_deliveries DROP CONSTRAINT webhook_deliveries_webhook_id_event_id_key;
ALTER TABLE webhook_deliveries ADD UNIQUE (webhook_id, event_id, recipient);
CREATE INDEX webhook_deliveries_by_digest ON webhook_deliveries (webhook_id, recipient, digest_at, delivery_id)
    WHERE next_at IS NOT NULL AND digest_at IS NOT NULL;
