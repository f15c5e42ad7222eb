-- Schema for PostgreSQL. JSON is stored as the text that was written, which costs the server least. Every list filter has an index, and
-- pages follow the order of that index. Ids that lists are sorted by use the "C" collation, so that the order is the same as on SQLite
-- whatever the locale of the database.

CREATE TABLE users (
    user_id text COLLATE "C" PRIMARY KEY,
    active bigint NOT NULL,
    revision bigint NOT NULL,
    -- JSON: the hash, and whether somebody else set it.
    password text,
    -- JSON: the hash of the code and its end. Removed when it is used.
    invitation text,
    body text NOT NULL
);

-- The times change while the session is in use; the columns take precedence over the body.
CREATE TABLE sessions (
    session_hash text PRIMARY KEY,
    user_id text COLLATE "C" NOT NULL REFERENCES users,
    last_active timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    -- When the password was last given.
    password_at timestamptz NOT NULL,
    body text NOT NULL
);
CREATE INDEX sessions_by_user ON sessions (user_id);
CREATE INDEX sessions_by_expiry ON sessions (expires_at);

-- Where users signed in before: failed attempts elsewhere do not delay them there.
CREATE TABLE known_devices (
    user_id text COLLATE "C" NOT NULL REFERENCES users,
    device_hash text NOT NULL,
    last_used_at timestamptz NOT NULL,
    PRIMARY KEY (user_id, device_hash)
);

-- `revoked_at` takes precedence over the body.
CREATE TABLE tokens (
    token_id uuid PRIMARY KEY,
    token_hash text NOT NULL UNIQUE,
    user_id text COLLATE "C" REFERENCES users,
    agent_id text COLLATE "C",
    expires_at timestamptz NOT NULL,
    revoked_at timestamptz,
    body text NOT NULL
);
CREATE INDEX tokens_by_user ON tokens (user_id, token_id);
CREATE INDEX tokens_by_agent ON tokens (agent_id, token_id);

CREATE TABLE agents (
    agent_id text COLLATE "C" PRIMARY KEY,
    sponsor_id text COLLATE "C" REFERENCES users,
    revision bigint NOT NULL,
    -- 1 if nobody registered the agent and it is known only because its name was used.
    auto_registered bigint NOT NULL,
    last_seen timestamptz NOT NULL,
    body text NOT NULL
);
CREATE INDEX agents_by_sponsor ON agents (sponsor_id, agent_id);
CREATE INDEX agents_idle ON agents (last_seen) WHERE auto_registered = 1;

-- No foreign key to agents: a message to an agent that was just removed is not an error.
CREATE TABLE inbox (
    message_id uuid NOT NULL,
    agent_id text COLLATE "C" NOT NULL,
    created_at timestamptz NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (agent_id, message_id)
);

CREATE TABLE tasks (
    task_id uuid PRIMARY KEY,
    state text NOT NULL,
    type text NOT NULL,
    author_id text COLLATE "C" NOT NULL,
    revision bigint NOT NULL,
    -- When an approval that was not applied expires; set in state APPROVED only.
    approval_expires_at timestamptz,
    -- When the task completed or failed, for the history of its type.
    finished_at timestamptz,
    -- When the task reached any final state, for the archive.
    closed_at timestamptz,
    -- What the task needs a worker for: `preview`, `apply` or `roll_back`.
    work_kind text,
    -- Which workers can do it: `files:/srv/app`, `agent:NAME`, `can:CAPABILITY`.
    work_queue text COLLATE "C",
    work_priority bigint,
    ready_at timestamptz,
    attempt bigint NOT NULL DEFAULT 0,
    -- Set while an attempt is running; takes precedence over the body.
    lease_until timestamptz,
    -- 1 once its approval requests are archived.
    approvals_archived bigint NOT NULL DEFAULT 0,
    -- Summary of the archived approval requests. No commit of a task writes it.
    archived_approvals text,
    -- A restored task is not archived again before this time.
    keep_until timestamptz,
    -- 1 if it was restored from an archive: it is history, and nothing about it changes.
    restored bigint NOT NULL DEFAULT 0,
    body text NOT NULL
);
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
    task_id uuid PRIMARY KEY,
    revision bigint NOT NULL,
    claimed_by text NOT NULL,
    claimed_until timestamptz NOT NULL
);

-- Further values that tasks are found by. The kind is `resource`, `tag`, or `person` for somebody who may see the task.
CREATE TABLE task_labels (
    kind text NOT NULL,
    label text NOT NULL,
    task_id uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    PRIMARY KEY (kind, label, task_id)
);
CREATE INDEX task_labels_by_task ON task_labels (task_id);

-- Output of a task while it is applied, in order.
CREATE TABLE task_logs (
    task_id uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    number bigint NOT NULL,
    attempt bigint NOT NULL,
    at timestamptz NOT NULL,
    text text NOT NULL,
    PRIMARY KEY (task_id, number)
);

CREATE TABLE approvals (
    approval_id uuid PRIMARY KEY,
    task_id uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    reviewer_id text COLLATE "C" NOT NULL,
    status text NOT NULL,
    score bigint NOT NULL,
    created_at timestamptz NOT NULL,
    -- When it escalates next; null after the last escalation.
    due_at timestamptz,
    responded_at timestamptz,
    revision bigint NOT NULL,
    body text NOT NULL
);
CREATE INDEX approvals_by_task ON approvals (task_id, approval_id);
CREATE INDEX approvals_by_reviewer_and_status ON approvals (reviewer_id, status, score DESC, approval_id);
CREATE INDEX approvals_by_reviewer ON approvals (reviewer_id, score DESC, approval_id);
CREATE INDEX approvals_by_score ON approvals (score DESC, approval_id);
CREATE INDEX approvals_by_status ON approvals (status, score DESC, approval_id);
CREATE INDEX approvals_due ON approvals (due_at) WHERE status = 'PENDING';
CREATE INDEX approvals_pending ON approvals (created_at) WHERE status = 'PENDING';
CREATE INDEX approvals_responded ON approvals (reviewer_id, responded_at, created_at) WHERE responded_at IS NOT NULL;

CREATE TABLE comments (
    comment_id uuid PRIMARY KEY,
    task_id uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    body text NOT NULL
);
CREATE INDEX comments_by_task ON comments (task_id, comment_id);

-- Policies, delegations, registered resources, settings and feature flags: small, read as a whole, rarely changed.
CREATE TABLE documents (
    kind text NOT NULL,
    document_id text COLLATE "C" NOT NULL,
    revision bigint NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (kind, document_id)
);

-- Changes with every change of users or documents, so that caches of the rules can be validated. Triggers maintain it, so that no
-- writer can forget to.
CREATE TABLE rules_version (
    id bigint PRIMARY KEY CHECK (id = 1),
    version text NOT NULL
);
INSERT INTO rules_version VALUES (1, gen_random_uuid()::text);

CREATE FUNCTION change_rules_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE rules_version SET version = gen_random_uuid()::text;
    RETURN NULL;
END $$;
-- Deferred to the end of the transaction: a transaction that waits for this row already holds every other row lock it needs, so
-- that two of them never deadlock.
CREATE CONSTRAINT TRIGGER users_changed AFTER INSERT OR UPDATE OR DELETE ON users
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION change_rules_version();
CREATE CONSTRAINT TRIGGER documents_changed AFTER INSERT OR UPDATE OR DELETE ON documents
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION change_rules_version();
CREATE TRIGGER users_truncated AFTER TRUNCATE ON users FOR EACH STATEMENT EXECUTE FUNCTION change_rules_version();
CREATE TRIGGER documents_truncated AFTER TRUNCATE ON documents FOR EACH STATEMENT EXECUTE FUNCTION change_rules_version();

-- Responses to requests with an idempotency key.
CREATE TABLE stored_responses (
    owner text NOT NULL,
    key text NOT NULL,
    created_at timestamptz NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (owner, key)
);
CREATE INDEX stored_responses_by_time ON stored_responses (created_at);

-- The entries of the audit log. An entry never changes; its place in the log is a row of audit_chain. There is one partition for each
-- month of `at`, created ahead by audit_create_partitions; entries of other months go to audit_default, so that an insert never fails
-- for want of a partition.
CREATE SEQUENCE audit_insert_seq;
CREATE TABLE audit (
    entry_id uuid NOT NULL,
    -- The order in which entries are written.
    insert_seq bigint NOT NULL DEFAULT nextval('audit_insert_seq'),
    -- Of these times each microsecond is exact as a floating-point number, as which arguments are converted.
    at timestamptz NOT NULL CHECK (at >= '1970-01-01T00:00:00Z' AND at < '2200-01-01T00:00:00Z'),
    actor text,
    action text NOT NULL,
    task_id uuid,
    -- The MAC of the process that wrote the body. A row without a valid one was written by somebody else: the sequencer marks it
    -- instead of numbering it, and keeps it.
    mac text,
    -- 1 if it was inserted together with its row of audit_queue, as ade does.
    queued bigint NOT NULL DEFAULT 0,
    quarantined_at timestamptz,
    body text NOT NULL,
    PRIMARY KEY (at, entry_id),
    -- Far more than an entry of ade has. A row that cannot be read would hold up the sequencer.
    CHECK (octet_length(body) + octet_length(action) + octet_length(coalesce(actor, '')) + octet_length(coalesce(mac, '')) < 16777216)
) PARTITION BY RANGE (at);
CREATE INDEX audit_unqueued ON audit (insert_seq) WHERE queued = 0 AND quarantined_at IS NULL;
CREATE INDEX audit_quarantined ON audit (insert_seq) WHERE quarantined_at IS NOT NULL;
CREATE INDEX audit_by_task ON audit (task_id, insert_seq);
CREATE INDEX audit_by_actor ON audit (actor, at);
CREATE INDEX audit_by_action ON audit (action, at);

-- The entries that have no number yet, written with them. An entry that depends on another one is inserted after that one was
-- committed, on whichever server: numbering by `position` preserves this order whatever the clocks of the servers say.
CREATE TABLE audit_queue (
    position bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL CHECK (at >= '1970-01-01T00:00:00Z' AND at < '2200-01-01T00:00:00Z'),
    entry_id uuid NOT NULL
);
-- Not unique: a row that somebody inserts must not keep ade from inserting its own.
CREATE INDEX audit_queue_by_position ON audit_queue (position);

-- The place of each entry in the log, with its hash: narrow rows that the sequencer appends and that never change, unless it finds that
-- somebody else wrote one behind the end of the chain. The number of such a row becomes negative. An event has the number of its entry.
CREATE TABLE audit_chain (
    number bigint PRIMARY KEY,
    -- Selects the partition of the entry.
    at timestamptz NOT NULL CHECK (at >= '1970-01-01T00:00:00Z' AND at < '2200-01-01T00:00:00Z'),
    entry_id uuid NOT NULL,
    previous_hash text NOT NULL,
    entry_hash text NOT NULL
);
-- A row that is not in the chain keeps no entry out of it, and neither does one with another time.
CREATE UNIQUE INDEX audit_chain_by_entry ON audit_chain (entry_id, at) WHERE number > 0;

-- The entries in the chain with their places, for lists that an index of the entries selects; a list by number begins at audit_chain.
-- Lateral, with a limit: the planner must not join the whole log for one page.
CREATE VIEW audit_log AS
    SELECT number, previous_hash, entry_hash, entry_id, at, actor, action, task_id, mac, body
    FROM audit CROSS JOIN LATERAL (
        SELECT number, previous_hash, entry_hash FROM audit_chain
        WHERE audit_chain.entry_id = audit.entry_id AND audit_chain.at = audit.at AND number > 0 LIMIT 1
    ) AS place;

CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit log is append-only';
END $$;
-- New partitions inherit these triggers.
CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit FOR EACH ROW
    WHEN (NEW.quarantined_at IS NULL OR OLD.quarantined_at IS NOT NULL OR NEW.body <> OLD.body OR NEW.mac IS DISTINCT FROM OLD.mac
        OR NEW.at <> OLD.at OR NEW.entry_id <> OLD.entry_id OR NEW.insert_seq <> OLD.insert_seq OR NEW.queued <> OLD.queued
        OR NEW.action <> OLD.action OR NEW.actor IS DISTINCT FROM OLD.actor OR NEW.task_id IS DISTINCT FROM OLD.task_id)
    EXECUTE FUNCTION audit_is_append_only();
CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit FOR EACH ROW EXECUTE FUNCTION audit_is_append_only();
CREATE TRIGGER audit_chain_no_update BEFORE UPDATE ON audit_chain FOR EACH ROW
    WHEN (OLD.number <= 0 OR NEW.number >= 0 OR NEW.at <> OLD.at OR NEW.entry_id <> OLD.entry_id
        OR NEW.previous_hash <> OLD.previous_hash OR NEW.entry_hash <> OLD.entry_hash)
    EXECUTE FUNCTION audit_is_append_only();
-- Numbers have no gaps: one in the far future would leave none for the entries that follow.
CREATE FUNCTION audit_chain_has_no_gaps() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    first bigint;
    last bigint;
    added bigint;
BEGIN
    SELECT min(number), max(number), count(*) INTO first, last, added FROM appended;
    IF last - first + 1 <> added
        OR first <> 1 AND NOT EXISTS (SELECT 1 FROM audit_chain WHERE number > 0 AND number = first - 1) THEN
        RAISE EXCEPTION 'the audit log is append-only: its numbers have no gaps';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER audit_chain_no_gaps AFTER INSERT ON audit_chain REFERENCING NEW TABLE AS appended
    FOR EACH STATEMENT EXECUTE FUNCTION audit_chain_has_no_gaps();
CREATE TRIGGER audit_chain_no_delete BEFORE DELETE ON audit_chain FOR EACH ROW EXECUTE FUNCTION audit_is_append_only();
CREATE TRIGGER audit_chain_no_truncate BEFORE TRUNCATE ON audit_chain
    FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only();

-- Adds what a partition does not inherit from its table.
CREATE FUNCTION audit_protect_partition(partition_name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE TRIGGER audit_no_truncate BEFORE TRUNCATE ON %I '
        'FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only()', partition_name);
END $$;

CREATE TABLE audit_default PARTITION OF audit DEFAULT;
SELECT audit_protect_partition('audit_default');
CREATE TRIGGER audit_no_truncate BEFORE TRUNCATE ON audit
    FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only();

-- Creates the partitions for the month of `now` and the two months after it. Returns how many of them are still missing, because
-- audit_default already has entries of that month, or because a long reader (a backup) holds a lock on the log: writers queue behind
-- this function, so it does not wait longer than a second. Any number of processes may call it at once.
CREATE FUNCTION audit_create_partitions(now timestamptz) RETURNS bigint LANGUAGE plpgsql SET lock_timeout = '1s' AS $$
DECLARE
    first timestamp;
    partition_name text;
    missing bigint := 0;
BEGIN
    FOR ahead IN 0..2 LOOP
        first := date_trunc('month', now AT TIME ZONE 'UTC') + make_interval(months => ahead);
        partition_name := to_char(first, '"audit_"YYYY_MM');
        CONTINUE WHEN to_regclass(partition_name) IS NOT NULL;
        BEGIN
            PERFORM pg_advisory_xact_lock(hashtextextended('ade: audit partitions', 0));
            -- Takes an exclusive lock: an entry on its way to audit_default would be rejected there afterwards.
            EXECUTE format('CREATE TABLE %I PARTITION OF audit FOR VALUES FROM (%L) TO (%L)', partition_name,
                first AT TIME ZONE 'UTC', (first + interval '1 month') AT TIME ZONE 'UTC');
            PERFORM audit_protect_partition(partition_name);
        EXCEPTION
            WHEN duplicate_table THEN
                -- Another process created it.
                NULL;
            WHEN check_violation THEN
                missing := missing + 1;
            WHEN lock_not_available THEN
                missing := missing + 3 - ahead;
                EXIT;
        END;
    END LOOP;
    RETURN missing;
END $$;

-- An event has the id and the number of its audit entry, so that it is written only once.
CREATE TABLE events (
    event_id uuid PRIMARY KEY,
    body text NOT NULL
);

-- Facts about the whole database, such as `demo` for one whose passwords are public.
CREATE TABLE markers (
    name text PRIMARY KEY
);

CREATE TABLE leases (
    name text PRIMARY KEY,
    holder text NOT NULL,
    expires_at timestamptz NOT NULL
);

-- Which process serves which binding, until when.
CREATE TABLE binding_processes (
    binding text NOT NULL,
    process text NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (binding, process)
);

-- Background jobs: when each is due, which process runs it, and how the last run went.
CREATE TABLE jobs (
    name text PRIMARY KEY,
    due_at timestamptz NOT NULL,
    holder text,
    lease_until timestamptz,
    body text NOT NULL
);

CREATE TABLE archives (
    archive_id uuid PRIMARY KEY,
    body text NOT NULL
);

-- Every task that was ever archived: its last archived revision, the archive that has it, and whether it is still archived (1) or was
-- restored (0).
CREATE TABLE archived_tasks (
    task_id uuid PRIMARY KEY,
    revision bigint NOT NULL,
    archive_id uuid NOT NULL,
    is_archived bigint NOT NULL
);

-- How many are archived: kind `task` by author and state, kind `approval` by reviewer and status.
CREATE TABLE archived_counts (
    kind text NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    state text NOT NULL,
    count bigint NOT NULL,
    PRIMARY KEY (kind, user_id, state)
);

-- Tasks closed per UTC day, counted when the day is over.
CREATE TABLE daily_stats (
    day text PRIMARY KEY,
    body text NOT NULL
);

-- Key prefixes of blobs that nothing refers to. A row is written in the transaction that removes the last reference, or before a blob
-- is written whose reference follows, which deletes the row again. After a grace period the row is marked `deleting` (1), then the
-- blobs are removed, then the row.
CREATE TABLE orphaned_blobs (
    key_prefix text COLLATE "C" PRIMARY KEY,
    since timestamptz NOT NULL,
    deleting bigint NOT NULL DEFAULT 0
);

-- The one folder with the blobs of this database: its id, and the path under which the first process found it.
CREATE TABLE blob_store (
    id bigint PRIMARY KEY CHECK (id = 1),
    store_id text NOT NULL,
    folder text NOT NULL
);

-- The id of the key of the secret that all processes use, and a version that grows when it is replaced; see register_secret.
-- Processes that number audit entries take turns by a lock on this table.
CREATE TABLE secret_key (
    id bigint PRIMARY KEY CHECK (id = 1),
    key_id text NOT NULL,
    version bigint NOT NULL DEFAULT 1
);

-- Signed heads of the audit log, shared by all servers. Each server also writes them to a file outside of the database.
CREATE TABLE audit_checkpoints (
    number bigint PRIMARY KEY,
    body text NOT NULL
);

-- Large bodies are compressed with lz4 if the server has it. Later partitions of the audit log inherit this.
DO $$
DECLARE
    table_name text;
BEGIN
    FOREACH table_name IN ARRAY ARRAY['tasks', 'approvals', 'comments', 'stored_responses', 'audit', 'audit_default', 'events'] LOOP
        EXECUTE format('ALTER TABLE %I ALTER COLUMN body SET COMPRESSION lz4', table_name);
    END LOOP;
EXCEPTION
    -- Built without lz4, or older than PostgreSQL 14.
    WHEN feature_not_supported OR invalid_parameter_value OR syntax_error THEN NULL;
END $$;
