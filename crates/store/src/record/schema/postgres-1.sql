-- The record on PostgreSQL. Every listed filter has an index; what is listed is listed by that index' own order.

CREATE TABLE users (
    user_id text PRIMARY KEY,
    active bigint NOT NULL,
    revision bigint NOT NULL,
    password_hash text,
    body jsonb NOT NULL
);

CREATE TABLE sessions (
    session_hash text PRIMARY KEY,
    user_id text NOT NULL REFERENCES users,
    expires_at timestamptz NOT NULL,
    body jsonb NOT NULL
);
CREATE INDEX sessions_by_user ON sessions (user_id);
CREATE INDEX sessions_by_end ON sessions (expires_at);

CREATE TABLE tokens (
    token_id uuid PRIMARY KEY,
    token_hash text NOT NULL UNIQUE,
    user_id text REFERENCES users,
    agent_id text,
    expires_at timestamptz NOT NULL,
    body jsonb NOT NULL
);
CREATE INDEX tokens_by_user ON tokens (user_id, token_id);
CREATE INDEX tokens_by_agent ON tokens (agent_id, token_id);

CREATE TABLE tasks (
    task_id uuid PRIMARY KEY,
    state text NOT NULL,
    type text NOT NULL,
    author_id text NOT NULL,
    revision bigint NOT NULL,
    -- When an approval that is not applied goes back into review; nothing in other states.
    approval_ends_at timestamptz,
    -- When it ended, for the history of its type.
    ended_at timestamptz,
    body jsonb NOT NULL
);
CREATE INDEX tasks_by_state ON tasks (state, task_id);
CREATE INDEX tasks_by_author ON tasks (author_id, task_id);
CREATE INDEX tasks_by_type ON tasks (type, task_id);
CREATE INDEX tasks_by_end ON tasks (type, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX tasks_by_approval ON tasks (approval_ends_at) WHERE approval_ends_at IS NOT NULL;

-- What a task is found by besides: `resource`, `tag`, and `person`, who may see it.
CREATE TABLE task_marks (
    kind text NOT NULL,
    mark text NOT NULL,
    task_id uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    PRIMARY KEY (kind, mark, task_id)
);
CREATE INDEX task_marks_by_task ON task_marks (task_id);

CREATE TABLE approvals (
    approval_id uuid PRIMARY KEY,
    task_id uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    reviewer_id text NOT NULL,
    status text NOT NULL,
    score bigint NOT NULL,
    due_at timestamptz NOT NULL,
    revision bigint NOT NULL,
    body jsonb NOT NULL
);
CREATE INDEX approvals_by_task ON approvals (task_id, approval_id);
CREATE INDEX approvals_by_reviewer ON approvals (reviewer_id, status, score DESC, approval_id);
CREATE INDEX approvals_by_status ON approvals (status, score DESC, approval_id);
CREATE INDEX approvals_due ON approvals (due_at) WHERE status = 'PENDING';

CREATE TABLE comments (
    comment_id uuid PRIMARY KEY,
    task_id uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    body jsonb NOT NULL
);
CREATE INDEX comments_by_task ON comments (task_id, comment_id);

-- Policies, delegations, registered resources, settings and feature flags: small, read whole, changed seldom.
CREATE TABLE things (
    kind text NOT NULL,
    thing_id text NOT NULL,
    revision bigint NOT NULL,
    body jsonb NOT NULL,
    PRIMARY KEY (kind, thing_id)
);

CREATE TABLE answers (
    owner text NOT NULL,
    key text NOT NULL,
    made_at timestamptz NOT NULL,
    body jsonb NOT NULL,
    PRIMARY KEY (owner, key)
);
CREATE INDEX answers_by_time ON answers (made_at);

-- Entries have no number until the sequencer gives them one; from then on nothing about them changes.
CREATE TABLE audit (
    entry_id uuid PRIMARY KEY,
    number bigint UNIQUE,
    at timestamptz NOT NULL,
    actor text,
    action text NOT NULL,
    task_id uuid,
    previous_hash text,
    entry_hash text,
    body text NOT NULL
);
CREATE INDEX audit_unnumbered ON audit (entry_id) WHERE number IS NULL;
CREATE INDEX audit_by_task ON audit (task_id, number);
CREATE INDEX audit_by_actor ON audit (actor, number);
CREATE INDEX audit_by_action ON audit (action, number);
CREATE INDEX audit_by_time ON audit (at, number);

CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.number IS NULL AND NEW.body = OLD.body AND NEW.at = OLD.at AND NEW.entry_id = OLD.entry_id THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'the audit log is append-only';
END $$;
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON audit
    FOR EACH ROW EXECUTE FUNCTION audit_is_append_only();

CREATE TABLE events (
    event_id uuid PRIMARY KEY,
    number bigint UNIQUE,
    body jsonb NOT NULL
);
CREATE INDEX events_unnumbered ON events (event_id) WHERE number IS NULL;

CREATE TABLE leases (
    name text PRIMARY KEY,
    holder text NOT NULL,
    epoch bigint NOT NULL,
    until timestamptz NOT NULL
);
