-- Lock requests that arrived while Redis was unavailable: they are executed when it is back, in the order of their arrival. A request
-- without an outcome is pending; the others are kept for a while, so that their callers can read how they ended.
CREATE TABLE stored_lock_requests (
    request_key text PRIMARY KEY,
    kind text NOT NULL,
    agent_id text NOT NULL,
    arrived_at timestamptz NOT NULL,
    deadline timestamptz,
    attempts bigint NOT NULL,
    outcome text,
    ended_at timestamptz,
    body text NOT NULL
);
CREATE INDEX stored_lock_requests_pending ON stored_lock_requests (kind, arrived_at) WHERE outcome IS NULL;
CREATE INDEX stored_lock_requests_ended ON stored_lock_requests (ended_at) WHERE outcome IS NOT NULL;
