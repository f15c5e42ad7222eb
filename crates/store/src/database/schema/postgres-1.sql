-- The record on PostgreSQL. Every listed filter has an index; what is listed is listed by that index' own order. Ids that
-- lists go by are compared byte by byte, as on SQLite, whatever the locale of the database.

CREATE TABLE users (
    user_id text COLLATE "C" PRIMARY KEY,
    active bigint NOT NULL,
    revision bigint NOT NULL,
    -- How it signs in: the hash, and who set it.
    password text,
    body jsonb NOT NULL
);

-- What changes as long as it is used has columns of its own; they are right where the body says something else.
CREATE TABLE sessions (
    session_hash text PRIMARY KEY,
    user_id text COLLATE "C" NOT NULL REFERENCES users,
    last_active timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    body jsonb NOT NULL
);
CREATE INDEX sessions_by_user ON sessions (user_id);
CREATE INDEX sessions_by_end ON sessions (expires_at);

-- Whether it was revoked is what its column says.
CREATE TABLE tokens (
    token_id uuid PRIMARY KEY,
    token_hash text NOT NULL UNIQUE,
    user_id text COLLATE "C" REFERENCES users,
    agent_id text COLLATE "C",
    expires_at timestamptz NOT NULL,
    revoked_at timestamptz,
    body jsonb NOT NULL
);
CREATE INDEX tokens_by_user ON tokens (user_id, token_id);
CREATE INDEX tokens_by_agent ON tokens (agent_id, token_id);

CREATE TABLE agents (
    agent_id text COLLATE "C" PRIMARY KEY,
    sponsor_id text COLLATE "C" REFERENCES users,
    revision bigint NOT NULL,
    -- 1 if it is known only because somebody used its name.
    made_by_name bigint NOT NULL,
    last_seen timestamptz NOT NULL,
    body jsonb NOT NULL
);
CREATE INDEX agents_by_sponsor ON agents (sponsor_id, agent_id);
CREATE INDEX agents_idle ON agents (last_seen) WHERE made_by_name = 1;

-- No reference to the agent: that one was removed meanwhile is no reason to refuse what is told to it.
CREATE TABLE inbox (
    message_id uuid NOT NULL,
    agent_id text COLLATE "C" NOT NULL,
    created_at timestamptz NOT NULL,
    body jsonb NOT NULL,
    PRIMARY KEY (agent_id, message_id)
);

CREATE TABLE tasks (
    task_id uuid PRIMARY KEY,
    state text NOT NULL,
    type text NOT NULL,
    author_id text COLLATE "C" NOT NULL,
    revision bigint NOT NULL,
    -- When an approval that is not applied goes back into review; nothing in other states.
    approval_ends_at timestamptz,
    -- When it ended, for the history of its type.
    ended_at timestamptz,
    body jsonb NOT NULL
);
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
    task_id uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    PRIMARY KEY (kind, mark, task_id)
);
CREATE INDEX task_marks_by_task ON task_marks (task_id);

CREATE TABLE approvals (
    approval_id uuid PRIMARY KEY,
    task_id uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    reviewer_id text COLLATE "C" NOT NULL,
    status text NOT NULL,
    score bigint NOT NULL,
    created_at timestamptz NOT NULL,
    due_at timestamptz NOT NULL,
    responded_at timestamptz,
    revision bigint NOT NULL,
    body jsonb NOT NULL
);
CREATE INDEX approvals_by_task ON approvals (task_id, approval_id);
CREATE INDEX approvals_by_reviewer ON approvals (reviewer_id, status, score DESC, approval_id);
CREATE INDEX approvals_of_reviewer ON approvals (reviewer_id, score DESC, approval_id);
CREATE INDEX approvals_by_score ON approvals (score DESC, approval_id);
CREATE INDEX approvals_by_status ON approvals (status, score DESC, approval_id);
CREATE INDEX approvals_due ON approvals (due_at) WHERE status = 'PENDING';
CREATE INDEX approvals_waiting ON approvals (created_at) WHERE status = 'PENDING';
CREATE INDEX approvals_answered ON approvals (reviewer_id, responded_at, created_at) WHERE responded_at IS NOT NULL;

CREATE TABLE comments (
    comment_id uuid PRIMARY KEY,
    task_id uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    body jsonb NOT NULL
);
CREATE INDEX comments_by_task ON comments (task_id, comment_id);

-- Policies, delegations, registered resources, settings and feature flags: small, read whole, changed seldom.
CREATE TABLE things (
    kind text NOT NULL,
    thing_id text COLLATE "C" NOT NULL,
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

-- Entries have no number until the sequencer gives them one; from then on nothing about them changes. One part for each month
-- of `at`, made ahead by audit_prepare_months; what belongs to a month that was not made goes to audit_other, so that an entry
-- always has a place. A number is unique in each part by its own index, and over all because one sequencer gives them.
-- Whatever depends on something else was written after that was committed, on whichever server: by `written` they are numbered
-- in that order, whatever their clocks say.
CREATE SEQUENCE audit_written;
CREATE TABLE audit (
    entry_id uuid NOT NULL,
    written bigint NOT NULL DEFAULT nextval('audit_written'),
    number bigint,
    at timestamptz NOT NULL,
    actor text,
    action text NOT NULL,
    task_id uuid,
    previous_hash text,
    entry_hash text,
    body text NOT NULL,
    PRIMARY KEY (at, entry_id)
) PARTITION BY RANGE (at);
CREATE INDEX audit_unnumbered ON audit (written) WHERE number IS NULL;
CREATE INDEX audit_by_task ON audit (task_id, number);
CREATE INDEX audit_by_actor ON audit (actor, at, number);
CREATE INDEX audit_by_action ON audit (action, at, number);
CREATE INDEX audit_by_time ON audit (at, number);

CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.number IS NULL AND NEW.body = OLD.body AND NEW.at = OLD.at AND NEW.entry_id = OLD.entry_id
        AND NEW.written = OLD.written THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'the audit log is append-only';
END $$;
-- Parts that come later get this one by themselves.
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON audit
    FOR EACH ROW EXECUTE FUNCTION audit_is_append_only();

-- What the whole does not hand down to its parts.
CREATE FUNCTION audit_guard_part(part text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE UNIQUE INDEX %I ON %I (number)', part || '_by_number', part);
    EXECUTE format('CREATE TRIGGER audit_not_emptied BEFORE TRUNCATE ON %I '
        'FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only()', part);
END $$;

CREATE TABLE audit_other PARTITION OF audit DEFAULT;
SELECT audit_guard_part('audit_other');
CREATE TRIGGER audit_not_emptied BEFORE TRUNCATE ON audit
    FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only();

-- Makes the parts for the month of a moment and the two that follow; how many of them are still not there, because audit_other
-- has entries of those months, or because somebody (a backup) has been reading the log for too long: whoever writes waits behind
-- this, so this does not wait. Any number of processes may do so at once.
CREATE FUNCTION audit_prepare_months(now timestamptz) RETURNS bigint LANGUAGE plpgsql SET lock_timeout = '1s' AS $$
DECLARE
    first timestamp;
    part text;
    missing bigint := 0;
BEGIN
    FOR ahead IN 0..2 LOOP
        first := date_trunc('month', now AT TIME ZONE 'UTC') + make_interval(months => ahead);
        part := to_char(first, '"audit_"YYYY_MM');
        CONTINUE WHEN to_regclass(part) IS NOT NULL;
        BEGIN
            PERFORM pg_advisory_xact_lock(hashtextextended('ade: the months of the audit log', 0));
            -- Nobody else is in the log meanwhile: an entry on its way to audit_other would be refused there afterwards.
            EXECUTE format('CREATE TABLE %I PARTITION OF audit FOR VALUES FROM (%L) TO (%L)', part,
                first AT TIME ZONE 'UTC', (first + interval '1 month') AT TIME ZONE 'UTC');
            PERFORM audit_guard_part(part);
        EXCEPTION
            WHEN duplicate_table THEN
                -- Somebody else was faster.
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

CREATE TABLE events (
    event_id uuid PRIMARY KEY,
    written bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    number bigint UNIQUE,
    body jsonb NOT NULL
);
CREATE INDEX events_unnumbered ON events (written) WHERE number IS NULL;

CREATE TABLE leases (
    name text PRIMARY KEY,
    holder text NOT NULL,
    epoch bigint NOT NULL,
    until timestamptz NOT NULL
);
