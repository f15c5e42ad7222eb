-- Archives: what is left to be said about what was taken out, what was brought back, and where blobs are.

-- What is remembered of requests that are archived; nothing while they are here. No commit of a task touches it.
ALTER TABLE tasks ADD COLUMN remembered jsonb;
-- Until when what was brought back stays.
ALTER TABLE tasks ADD COLUMN stays_until timestamptz;
-- Only those whose requests are still here: the others are the most.
CREATE INDEX tasks_with_requests ON tasks (closed_at, task_id) WHERE closed_at IS NOT NULL AND requests_archived = 0;

-- Every task that was ever taken out: as which revision at last, into which archive, and whether it is still away (1) or was
-- brought back (0).
CREATE TABLE archived_tasks (
    task_id uuid PRIMARY KEY,
    revision bigint NOT NULL,
    archive_id uuid NOT NULL,
    away bigint NOT NULL
);

-- How many are away: `task` by author and state, `request` by reviewer and status.
CREATE TABLE archived_counts (
    kind text NOT NULL,
    who text COLLATE "C" NOT NULL,
    word text NOT NULL,
    many bigint NOT NULL,
    PRIMARY KEY (kind, who, word)
);

-- The beginnings of keys whose blobs nobody needs, unless this is taken back: written with what makes them so, or before a blob
-- that is nothing without what follows. Days later they are doomed (1), then removed, and then this is gone.
CREATE TABLE unneeded_blobs (
    within text COLLATE "C" PRIMARY KEY,
    since timestamptz NOT NULL,
    doomed bigint NOT NULL DEFAULT 0
);

-- The one folder that has the blobs of this record: what it calls itself, and where the first process found it.
CREATE TABLE blob_store (
    one bigint PRIMARY KEY CHECK (one = 1),
    store_id text NOT NULL,
    folder text NOT NULL
);
