-- The record on SQLite: moments are microseconds, ids and JSON are text. Every listed filter has an index; what is listed is listed by that index' own order.

CREATE TABLE users (
    user_id text PRIMARY KEY,
    active integer NOT NULL,
    revision integer NOT NULL,
    -- How it signs in: the hash, and who set it.
    password text,
    body text NOT NULL
) STRICT;

-- What changes as long as it is used has columns of its own; they are right where the body says something else.
CREATE TABLE sessions (
    session_hash text PRIMARY KEY,
    user_id text NOT NULL REFERENCES users,
    last_active integer NOT NULL,
    expires_at integer NOT NULL,
    body text NOT NULL
) STRICT;
CREATE INDEX sessions_by_user ON sessions (user_id);
CREATE INDEX sessions_by_end ON sessions (expires_at);

-- Whether it was revoked is what its column says.
CREATE TABLE tokens (
    token_id text PRIMARY KEY,
    token_hash text NOT NULL UNIQUE,
    user_id text REFERENCES users,
    agent_id text,
    expires_at integer NOT NULL,
    revoked_at integer,
    body text NOT NULL
) STRICT;
CREATE INDEX tokens_by_user ON tokens (user_id, token_id);
CREATE INDEX tokens_by_agent ON tokens (agent_id, token_id);

CREATE TABLE agents (
    agent_id text PRIMARY KEY,
    sponsor_id text REFERENCES users,
    revision integer NOT NULL,
    -- 1 if it is known only because somebody used its name.
    made_by_name integer NOT NULL,
    last_seen integer NOT NULL,
    body text NOT NULL
) STRICT;
CREATE INDEX agents_by_sponsor ON agents (sponsor_id, agent_id);
CREATE INDEX agents_idle ON agents (last_seen) WHERE made_by_name = 1;

-- No reference to the agent: that one was removed meanwhile is no reason to refuse what is told to it.
CREATE TABLE inbox (
    message_id text NOT NULL,
    agent_id text NOT NULL,
    created_at integer NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (agent_id, message_id)
) STRICT;

CREATE TABLE tasks (
    task_id text PRIMARY KEY,
    state text NOT NULL,
    type text NOT NULL,
    author_id text NOT NULL,
    revision integer NOT NULL,
    -- When an approval that is not applied goes back into review; nothing in other states.
    approval_ends_at integer,
    -- When it ended, for the history of its type.
    ended_at integer,
    body text NOT NULL
) STRICT;
CREATE INDEX tasks_by_state ON tasks (state, task_id);
CREATE INDEX tasks_by_author ON tasks (author_id, task_id);
CREATE INDEX tasks_by_author_and_state ON tasks (author_id, state, task_id);
CREATE INDEX tasks_by_type ON tasks (type, task_id);
CREATE INDEX tasks_by_end ON tasks (type, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX tasks_by_approval ON tasks (approval_ends_at) WHERE approval_ends_at IS NOT NULL;

-- What a task is found by besides: `resource`, `tag`, and `person`, who may see it.
CREATE TABLE task_marks (
    kind text NOT NULL,
    mark text NOT NULL,
    task_id text NOT NULL REFERENCES tasks ON DELETE CASCADE,
    PRIMARY KEY (kind, mark, task_id)
) STRICT;
CREATE INDEX task_marks_by_task ON task_marks (task_id);

CREATE TABLE approvals (
    approval_id text PRIMARY KEY,
    task_id text NOT NULL REFERENCES tasks ON DELETE CASCADE,
    reviewer_id text NOT NULL,
    status text NOT NULL,
    score integer NOT NULL,
    created_at integer NOT NULL,
    due_at integer NOT NULL,
    responded_at integer,
    revision integer NOT NULL,
    body text NOT NULL
) STRICT;
CREATE INDEX approvals_by_task ON approvals (task_id, approval_id);
CREATE INDEX approvals_by_reviewer ON approvals (reviewer_id, status, score DESC, approval_id);
CREATE INDEX approvals_of_reviewer ON approvals (reviewer_id, score DESC, approval_id);
CREATE INDEX approvals_by_score ON approvals (score DESC, approval_id);
CREATE INDEX approvals_by_status ON approvals (status, score DESC, approval_id);
CREATE INDEX approvals_due ON approvals (due_at) WHERE status = 'PENDING';
CREATE INDEX approvals_waiting ON approvals (created_at) WHERE status = 'PENDING';
CREATE INDEX approvals_answered ON approvals (reviewer_id, responded_at, created_at) WHERE responded_at IS NOT NULL;

CREATE TABLE comments (
    comment_id text PRIMARY KEY,
    task_id text NOT NULL REFERENCES tasks ON DELETE CASCADE,
    body text NOT NULL
) STRICT;
CREATE INDEX comments_by_task ON comments (task_id, comment_id);

-- Policies, delegations, registered resources, settings and feature flags: small, read whole, changed seldom.
CREATE TABLE things (
    kind text NOT NULL,
    thing_id text NOT NULL,
    revision integer NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (kind, thing_id)
) STRICT;

CREATE TABLE answers (
    owner text NOT NULL,
    key text NOT NULL,
    made_at integer NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (owner, key)
) STRICT;
CREATE INDEX answers_by_time ON answers (made_at);

-- Entries have no number until the sequencer gives them one; from then on nothing about them changes.
CREATE TABLE audit (
    written integer PRIMARY KEY,
    entry_id text NOT NULL UNIQUE,
    number integer UNIQUE,
    at integer NOT NULL,
    actor text,
    action text NOT NULL,
    task_id text,
    previous_hash text,
    entry_hash text,
    body text NOT NULL
) STRICT;
CREATE INDEX audit_unnumbered ON audit (written) WHERE number IS NULL;
CREATE INDEX audit_by_task ON audit (task_id, number);
CREATE INDEX audit_by_actor ON audit (actor, at, number);
CREATE INDEX audit_by_action ON audit (action, at, number);
CREATE INDEX audit_by_time ON audit (at, number);

CREATE TRIGGER audit_unchanged BEFORE UPDATE ON audit
WHEN OLD.number IS NOT NULL OR NEW.body <> OLD.body OR NEW.at <> OLD.at OR NEW.entry_id <> OLD.entry_id
    OR NEW.written <> OLD.written
BEGIN
    SELECT RAISE(ABORT, 'the audit log is append-only');
END;
CREATE TRIGGER audit_undeleted BEFORE DELETE ON audit
BEGIN
    SELECT RAISE(ABORT, 'the audit log is append-only');
END;

CREATE TABLE events (
    written integer PRIMARY KEY,
    event_id text NOT NULL UNIQUE,
    number integer UNIQUE,
    body text NOT NULL
) STRICT;
CREATE INDEX events_unnumbered ON events (written) WHERE number IS NULL;

CREATE TABLE leases (
    name text PRIMARY KEY,
    holder text NOT NULL,
    epoch integer NOT NULL,
    until integer NOT NULL
) STRICT;
