-- What workers do: which work a task has, where, in which order; who is at it, and until when that one counts as alive.

ALTER TABLE tasks ADD COLUMN work text;
-- Where it can be done: `files:/srv/app`, `agent:NAME`, `can:CAPABILITY`.
ALTER TABLE tasks ADD COLUMN place text COLLATE "C";
ALTER TABLE tasks ADD COLUMN rank bigint;
ALTER TABLE tasks ADD COLUMN ready_at timestamptz;
-- Keeps workers from trying the same at the same time; no more than that.
ALTER TABLE tasks ADD COLUMN claimed_by text;
ALTER TABLE tasks ADD COLUMN claimed_until timestamptz;
ALTER TABLE tasks ADD COLUMN attempt bigint NOT NULL DEFAULT 0;
-- Right where the body says something else. Nothing while nobody is at it.
ALTER TABLE tasks ADD COLUMN lease_until timestamptz;
-- 1 once its requests are archived.
ALTER TABLE tasks ADD COLUMN requests_archived bigint NOT NULL DEFAULT 0;
-- When it came to any end, for the archive.
ALTER TABLE tasks ADD COLUMN closed_at timestamptz;

UPDATE tasks SET closed_at = 'epoch'::timestamptz
    + coalesce((body->'entered_at'->>state)::bigint, 0) * interval '1 microsecond'
WHERE state IN ('COMPLETED', 'FAILED', 'REJECTED', 'CANCELLED');

UPDATE tasks SET work = 'apply', rank = coalesce((body->'config'->>'priority')::bigint, 50),
    ready_at = 'epoch'::timestamptz
        + coalesce((body->'entered_at'->>'APPROVED')::bigint, 0) * interval '1 microsecond',
    place = CASE WHEN body->'config'->>'executor' = 'noop' THEN 'noop'
        WHEN body->'config'->'parameters'->>'agent' IS NOT NULL
            THEN 'agent:' || (body->'config'->'parameters'->>'agent')
        ELSE 'can:' || coalesce(body->'config'->'parameters'->>'capability', type) END
WHERE state = 'APPROVED';

CREATE INDEX tasks_to_do ON tasks (place, rank DESC, ready_at, task_id) WHERE work IS NOT NULL;
CREATE INDEX tasks_claimed ON tasks (claimed_by) WHERE claimed_by IS NOT NULL;
CREATE INDEX tasks_by_close ON tasks (closed_at, task_id) WHERE closed_at IS NOT NULL;
CREATE INDEX tasks_by_lease ON tasks (lease_until) WHERE lease_until IS NOT NULL;

-- What is said while a task is carried out, in order.
CREATE TABLE task_logs (
    task_id uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    number bigint NOT NULL,
    attempt bigint NOT NULL,
    at timestamptz NOT NULL,
    text text NOT NULL,
    PRIMARY KEY (task_id, number)
);

-- Work that repeats: when it was last done, by whom, how that went, and when it is next.
CREATE TABLE jobs (
    name text PRIMARY KEY,
    due_at timestamptz NOT NULL,
    holder text,
    until timestamptz,
    body jsonb NOT NULL
);

-- What was taken out of the record, and where it is kept.
CREATE TABLE archives (
    archive_id uuid PRIMARY KEY,
    body jsonb NOT NULL
);

-- What happened on a day, counted when it was over.
CREATE TABLE days (
    day text PRIMARY KEY,
    body jsonb NOT NULL
);
