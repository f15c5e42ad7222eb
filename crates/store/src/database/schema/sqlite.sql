-- Schema for SQLite. Timestamps are microseconds since the Unix epoch; ids and JSON are text. Every list filter has an index, and
-- pages follow the order of that index.

CREATE TABLE users (
    user_id text PRIMARY KEY,
    active integer NOT NULL,
    revision integer NOT NULL,
    -- JSON: the hash, and whether somebody else set it.
    password text,
    -- JSON: the hash of the code and its end. Removed when it is used.
    invitation text,
    body text NOT NULL
) STRICT;

-- The times change while the session is in use; the columns take precedence over the body.
CREATE TABLE sessions (
    session_hash text PRIMARY KEY,
    user_id text NOT NULL REFERENCES users,
    last_active integer NOT NULL,
    expires_at integer NOT NULL,
    -- When the password was last given.
    password_at integer NOT NULL,
    body text NOT NULL
) STRICT;
CREATE INDEX sessions_by_user ON sessions (user_id);
CREATE INDEX sessions_by_expiry ON sessions (expires_at);

-- Where users signed in before: failed attempts elsewhere do not delay them there.
CREATE TABLE known_devices (
    user_id text NOT NULL REFERENCES users,
    device_hash text NOT NULL,
    last_used_at integer NOT NULL,
    PRIMARY KEY (user_id, device_hash)
) STRICT;

-- `revoked_at` takes precedence over the body.
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
    -- 1 if nobody registered the agent and it is known only because its name was used.
    auto_registered integer NOT NULL,
    last_seen integer NOT NULL,
    body text NOT NULL
) STRICT;
CREATE INDEX agents_by_sponsor ON agents (sponsor_id, agent_id);
CREATE INDEX agents_idle ON agents (last_seen) WHERE auto_registered = 1;

-- No foreign key to agents: a message to an agent that was just removed is not an error.
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
    -- When an approval that was not applied expires; set in state APPROVED only.
    approval_expires_at integer,
    -- When the task completed or failed, for the history of its type.
    finished_at integer,
    -- When the task reached any final state, for the archive.
    closed_at integer,
    -- What the task needs a worker for: `preview`, `apply` or `roll_back`.
    work_kind text,
    -- Which workers can do it: `files:/srv/app`, `agent:NAME`, `can:CAPABILITY`.
    work_queue text,
    work_priority integer,
    ready_at integer,
    attempt integer NOT NULL DEFAULT 0,
    -- Set while an attempt is running; takes precedence over the body.
    lease_until integer,
    -- 1 once its approval requests are archived.
    approvals_archived integer NOT NULL DEFAULT 0,
    -- Summary of the archived approval requests. No commit of a task writes it.
    archived_approvals text,
    -- A restored task is not archived again before this time.
    keep_until integer,
    -- 1 if it was restored from an archive: it is history, and nothing about it changes.
    restored integer NOT NULL DEFAULT 0,
    body text NOT NULL
) STRICT;
CREATE INDEX tasks_by_state ON tasks (state, task_id);
CREATE INDEX tasks_by_author ON tasks (author_id, task_id);
CREATE INDEX tasks_by_author_and_state ON tasks (author_id, state, task_id);
CREATE INDEX tasks_by_type ON tasks (type, task_id);
-- Covers the history of a type, which is read for each decision.
CREATE INDEX tasks_finished ON tasks (type, finished_at, state) WHERE finished_at IS NOT NULL;
CREATE INDEX tasks_by_approval_expiry ON tasks (approval_expires_at) WHERE approval_expires_at IS NOT NULL;
CREATE INDEX tasks_with_work ON tasks (work_queue, work_priority DESC, ready_at, task_id) WHERE work_kind IS NOT NULL;
CREATE INDEX tasks_closed ON tasks (closed_at, task_id) WHERE closed_at IS NOT NULL;
CREATE INDEX tasks_closed_with_approvals ON tasks (closed_at, task_id) WHERE closed_at IS NOT NULL AND approvals_archived = 0;
CREATE INDEX tasks_by_lease ON tasks (lease_until) WHERE lease_until IS NOT NULL;

-- A claim only keeps workers from trying the same task at the same time. It is not a lease. It is of one revision of its task: the next
-- revision ends it, without writing to this table. No foreign key: a claim of a task that was just deleted is not an error.
CREATE TABLE task_claims (
    task_id text PRIMARY KEY,
    revision integer NOT NULL,
    claimed_by text NOT NULL,
    claimed_until integer NOT NULL
) STRICT;

-- Further values that tasks are found by. The kind is `resource`, `tag`, or `person` for somebody who may see the task.
CREATE TABLE task_labels (
    kind text NOT NULL,
    label text NOT NULL,
    task_id text NOT NULL REFERENCES tasks ON DELETE CASCADE,
    PRIMARY KEY (kind, label, task_id)
) STRICT;
CREATE INDEX task_labels_by_task ON task_labels (task_id);

-- Output of a task while it is applied, in order.
CREATE TABLE task_logs (
    task_id text NOT NULL REFERENCES tasks ON DELETE CASCADE,
    number integer NOT NULL,
    attempt integer NOT NULL,
    at integer NOT NULL,
    text text NOT NULL,
    PRIMARY KEY (task_id, number)
) STRICT;

CREATE TABLE approvals (
    approval_id text PRIMARY KEY,
    task_id text NOT NULL REFERENCES tasks ON DELETE CASCADE,
    reviewer_id text NOT NULL,
    status text NOT NULL,
    score integer NOT NULL,
    created_at integer NOT NULL,
    -- When it escalates next; null after the last escalation.
    due_at integer,
    responded_at integer,
    revision integer NOT NULL,
    body text NOT NULL
) STRICT;
CREATE INDEX approvals_by_task ON approvals (task_id, approval_id);
CREATE INDEX approvals_by_reviewer_and_status ON approvals (reviewer_id, status, score DESC, approval_id);
CREATE INDEX approvals_by_reviewer ON approvals (reviewer_id, score DESC, approval_id);
CREATE INDEX approvals_by_score ON approvals (score DESC, approval_id);
CREATE INDEX approvals_by_status ON approvals (status, score DESC, approval_id);
CREATE INDEX approvals_due ON approvals (due_at) WHERE status = 'PENDING';
CREATE INDEX approvals_pending ON approvals (created_at) WHERE status = 'PENDING';
CREATE INDEX approvals_responded ON approvals (reviewer_id, responded_at, created_at) WHERE responded_at IS NOT NULL;

CREATE TABLE comments (
    comment_id text PRIMARY KEY,
    task_id text NOT NULL REFERENCES tasks ON DELETE CASCADE,
    body text NOT NULL
) STRICT;
CREATE INDEX comments_by_task ON comments (task_id, comment_id);

-- Policies, delegations, registered resources, settings and feature flags: small, read as a whole, rarely changed.
CREATE TABLE documents (
    kind text NOT NULL,
    document_id text NOT NULL,
    revision integer NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (kind, document_id)
) STRICT;

-- Changes with every change of users or documents, so that caches of the rules can be validated. Triggers maintain it, so that no
-- writer can forget to.
CREATE TABLE rules_version (
    id integer PRIMARY KEY CHECK (id = 1),
    version text NOT NULL
) STRICT;
INSERT INTO rules_version VALUES (1, hex(randomblob(16)));

CREATE TRIGGER users_inserted AFTER INSERT ON users BEGIN UPDATE rules_version SET version = hex(randomblob(16)); END;
CREATE TRIGGER users_updated AFTER UPDATE ON users BEGIN UPDATE rules_version SET version = hex(randomblob(16)); END;
CREATE TRIGGER users_deleted AFTER DELETE ON users BEGIN UPDATE rules_version SET version = hex(randomblob(16)); END;
CREATE TRIGGER documents_inserted AFTER INSERT ON documents BEGIN UPDATE rules_version SET version = hex(randomblob(16)); END;
CREATE TRIGGER documents_updated AFTER UPDATE ON documents BEGIN UPDATE rules_version SET version = hex(randomblob(16)); END;
CREATE TRIGGER documents_deleted AFTER DELETE ON documents BEGIN UPDATE rules_version SET version = hex(randomblob(16)); END;

-- Responses to requests with an idempotency key.
CREATE TABLE stored_responses (
    owner text NOT NULL,
    key text NOT NULL,
    created_at integer NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (owner, key)
) STRICT;
CREATE INDEX stored_responses_by_time ON stored_responses (created_at);

-- Entries are numbered when they are inserted, in the order of their commits. An entry never changes.
CREATE TABLE audit (
    -- The place in the chain. That of a quarantined row is negative.
    number integer PRIMARY KEY,
    entry_id text NOT NULL UNIQUE,
    at integer NOT NULL,
    actor text,
    action text NOT NULL,
    task_id text,
    previous_hash text,
    entry_hash text,
    -- The MAC of the process that wrote the body. A row without a valid one was written by somebody else: it is marked and taken out of
    -- the chain, and kept.
    mac text,
    quarantined_at integer,
    body text NOT NULL
) STRICT;
-- The number is the last column of every index by itself.
CREATE INDEX audit_quarantined ON audit (quarantined_at) WHERE quarantined_at IS NOT NULL;
CREATE INDEX audit_by_task ON audit (task_id);
CREATE INDEX audit_by_actor ON audit (actor, at);
CREATE INDEX audit_by_action ON audit (action, at);
CREATE INDEX audit_by_time ON audit (at);

-- A row that somebody inserts as quarantined, with a number of the chain, must leave the chain.
CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit
WHEN (OLD.quarantined_at IS NOT NULL AND OLD.number <= 0) OR NEW.quarantined_at IS NULL OR NEW.number >= 0 OR NEW.body <> OLD.body
    OR NEW.mac IS NOT OLD.mac OR NEW.at <> OLD.at OR NEW.entry_id <> OLD.entry_id OR NEW.action <> OLD.action
    OR NEW.actor IS NOT OLD.actor OR NEW.task_id IS NOT OLD.task_id
BEGIN
    SELECT RAISE(ABORT, 'the audit log is append-only');
END;
CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit
BEGIN
    SELECT RAISE(ABORT, 'the audit log is append-only');
END;

-- An event has the id and the number of its audit entry.
CREATE TABLE events (
    event_id text PRIMARY KEY,
    body text NOT NULL
) STRICT;

-- Facts about the whole database, such as `demo` for one whose passwords are public.
CREATE TABLE markers (
    name text PRIMARY KEY
) STRICT;

CREATE TABLE leases (
    name text PRIMARY KEY,
    holder text NOT NULL,
    expires_at integer NOT NULL
) STRICT;

-- Which process serves which binding, until when.
CREATE TABLE binding_processes (
    binding text NOT NULL,
    process text NOT NULL,
    expires_at integer NOT NULL,
    PRIMARY KEY (binding, process)
) STRICT;

-- Background jobs: when each is due, which process runs it, and how the last run went.
CREATE TABLE jobs (
    name text PRIMARY KEY,
    due_at integer NOT NULL,
    holder text,
    lease_until integer,
    body text NOT NULL
) STRICT;

CREATE TABLE archives (
    archive_id text PRIMARY KEY,
    body text NOT NULL
) STRICT;

-- Every task that was ever archived: its last archived revision, the archive that has it, and whether it is still archived (1) or was
-- restored (0).
CREATE TABLE archived_tasks (
    task_id text PRIMARY KEY,
    revision integer NOT NULL,
    archive_id text NOT NULL,
    is_archived integer NOT NULL
) STRICT;

-- How many are archived: kind `task` by author and state, kind `approval` by reviewer and status.
CREATE TABLE archived_counts (
    kind text NOT NULL,
    user_id text NOT NULL,
    state text NOT NULL,
    count integer NOT NULL,
    PRIMARY KEY (kind, user_id, state)
) STRICT;

-- Tasks closed per UTC day, counted when the day is over.
CREATE TABLE daily_stats (
    day text PRIMARY KEY,
    body text NOT NULL
) STRICT;

-- Key prefixes of blobs that nothing refers to. A row is written in the transaction that removes the last reference, or before a blob
-- is written whose reference follows, which deletes the row again. After a grace period the row is marked `deleting` (1), then the
-- blobs are removed, then the row.
CREATE TABLE orphaned_blobs (
    key_prefix text PRIMARY KEY,
    since integer NOT NULL,
    deleting integer NOT NULL DEFAULT 0
) STRICT;

-- The one folder with the blobs of this database: its id, and the path under which the first process found it.
CREATE TABLE blob_store (
    id integer PRIMARY KEY CHECK (id = 1),
    store_id text NOT NULL,
    folder text NOT NULL
) STRICT;

-- The id of the key of the secret that all processes use, and a version that grows when it is replaced; see register_secret.
CREATE TABLE secret_key (
    id integer PRIMARY KEY CHECK (id = 1),
    key_id text NOT NULL,
    version integer NOT NULL DEFAULT 1
) STRICT;

-- Signed heads of the audit log, shared by all servers. Each server also writes them to a file outside of the database.
CREATE TABLE audit_checkpoints (
    number integer PRIMARY KEY,
    body text NOT NULL
) STRICT;
