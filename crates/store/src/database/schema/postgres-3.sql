-- Whether people or rules have changed since somebody read them: one row, marked anew by every change. Nothing that writes can
-- forget it, because the database does it.
CREATE TABLE facts (
    one bigint PRIMARY KEY CHECK (one = 1),
    mark text NOT NULL
);
INSERT INTO facts VALUES (1, gen_random_uuid()::text);

CREATE FUNCTION facts_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE facts SET mark = gen_random_uuid()::text;
    RETURN NULL;
END $$;
-- At the very end of a transaction: whoever waits there for another holds everything else that it needs, and so does the other.
CREATE CONSTRAINT TRIGGER users_changed AFTER INSERT OR UPDATE OR DELETE ON users
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION facts_changed();
CREATE CONSTRAINT TRIGGER things_changed AFTER INSERT OR UPDATE OR DELETE ON things
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION facts_changed();
CREATE TRIGGER users_emptied AFTER TRUNCATE ON users FOR EACH STATEMENT EXECUTE FUNCTION facts_changed();
CREATE TRIGGER things_emptied AFTER TRUNCATE ON things FOR EACH STATEMENT EXECUTE FUNCTION facts_changed();

-- How the last tasks of a type ended is read for each decision: from the index alone.
DROP INDEX tasks_by_end;
CREATE INDEX tasks_by_end ON tasks (type, ended_at, state) WHERE ended_at IS NOT NULL;
