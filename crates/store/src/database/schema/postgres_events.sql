-- How far each consumer of events has read, and which process reads for it. The position of a consumer is the number of the last event
-- that it has handled; it only grows.
CREATE TABLE event_consumers (
    name text PRIMARY KEY,
    position bigint NOT NULL,
    holder text,
    lease_until timestamptz
);

-- Finds the sessions that were used since a time, so that their copies outside of the database can follow.
CREATE INDEX sessions_by_last_active ON sessions (last_active);
