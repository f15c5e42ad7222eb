-- Whether people or rules have changed since somebody read them: one row, marked anew by every change. Nothing that writes can
-- forget it, because the database does it.
CREATE TABLE facts (
    one integer PRIMARY KEY CHECK (one = 1),
    mark text NOT NULL
) STRICT;
INSERT INTO facts VALUES (1, hex(randomblob(16)));

CREATE TRIGGER users_made AFTER INSERT ON users BEGIN UPDATE facts SET mark = hex(randomblob(16)); END;
CREATE TRIGGER users_changed AFTER UPDATE ON users BEGIN UPDATE facts SET mark = hex(randomblob(16)); END;
CREATE TRIGGER users_deleted AFTER DELETE ON users BEGIN UPDATE facts SET mark = hex(randomblob(16)); END;
CREATE TRIGGER things_made AFTER INSERT ON things BEGIN UPDATE facts SET mark = hex(randomblob(16)); END;
CREATE TRIGGER things_changed AFTER UPDATE ON things BEGIN UPDATE facts SET mark = hex(randomblob(16)); END;
CREATE TRIGGER things_deleted AFTER DELETE ON things BEGIN UPDATE facts SET mark = hex(randomblob(16)); END;

-- How the last tasks of a type ended is read for each decision: from the index alone.
DROP INDEX tasks_by_end;
CREATE INDEX tasks_by_end ON tasks (type, ended_at, state) WHERE ended_at IS NOT NULL;
