-- Searches of the audit log by object. Entries about a task are searched by the task, so they have none here, and writing them costs
-- nothing more. Like the other copies of the body, it is only for searches.
ALTER TABLE audit ADD COLUMN object_id text;
CREATE INDEX audit_by_object ON audit (object_id, at) WHERE object_id IS NOT NULL;
CREATE TRIGGER audit_no_update_of_object BEFORE UPDATE ON audit
WHEN OLD.object_id IS NOT NEW.object_id
BEGIN
    SELECT RAISE(ABORT, 'the audit log is append-only');
END;
