-- Searches of the audit log by object. Entries about a task are searched by the task, so they have none here, and writing them costs
-- nothing more. Like the other copies of the body, it is only for searches.
ALTER TABLE audit ADD COLUMN object_id text;
CREATE INDEX audit_by_object ON audit (object_id, at) WHERE object_id IS NOT NULL;
CREATE TRIGGER audit_no_update_of_object BEFORE UPDATE ON audit FOR EACH ROW
    WHEN (NEW.object_id IS DISTINCT FROM OLD.object_id)
    EXECUTE FUNCTION audit_is_append_only();
CREATE OR REPLACE VIEW audit_log AS
    SELECT number, previous_hash, entry_hash, entry_id, at, actor, action, task_id, mac, body, object_id
    FROM audit CROSS JOIN LATERAL (
        SELECT number, previous_hash, entry_hash FROM audit_chain
        WHERE audit_chain.entry_id = audit.entry_id AND audit_chain.at = audit.at AND number > 0 LIMIT 1
    ) AS place;
