-- Archives: what is left to be said about what was taken out, what was brought back, and where blobs are.

-- What is remembered of requests that are archived; nothing while they are here. No commit of a task touches it.
ALTER TABLE tasks ADD COLUMN remembered text;
-- Until when what was brought back stays.
ALTER TABLE tasks ADD COLUMN stays_until integer;
-- Only those whose requests are still here: the others are the most.
CREATE INDEX tasks_with_requests ON tasks (closed_at, task_id) WHERE closed_at IS NOT NULL AND requests_archived = 0;

-- Every task that was ever taken out: as which revision at last, into which archive, and whether it is still away (1) or was
-- brought back (0).
CREATE TABLE archived_tasks (
    task_id text PRIMARY KEY,
    revision integer NOT NULL,
    archive_id text NOT NULL,
    away integer NOT NULL
) STRICT;

-- How many are away: `task` by author and state, `request` by reviewer and status.
CREATE TABLE archived_counts (
    kind text NOT NULL,
    who text NOT NULL,
    word text NOT NULL,
    many integer NOT NULL,
    PRIMARY KEY (kind, who, word)
) STRICT;

-- The beginnings of keys whose blobs nobody needs, unless this is taken back: written with what makes them so, or before a blob
-- that is nothing without what follows. Days later they are doomed (1), then removed, and then this is gone.
CREATE TABLE unneeded_blobs (
    within text PRIMARY KEY,
    since integer NOT NULL,
    doomed integer NOT NULL DEFAULT 0
) STRICT;

-- The one folder that has the blobs of this record: what it calls itself, and where the first process found it.
CREATE TABLE blob_store (
    one integer PRIMARY KEY CHECK (one = 1),
    store_id text NOT NULL,
    folder text NOT NULL
) STRICT;
