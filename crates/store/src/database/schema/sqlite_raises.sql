-- When a backlog raises the priority of a pending approval request next; null if it never does.
ALTER TABLE approvals ADD COLUMN raise_at integer;
UPDATE approvals SET raise_at = created_at
    + ((body->>'due_at') - (body->>'created_at')) * (coalesce(body->>'raised', 0) + 1) / 4
    WHERE status = 'PENDING' AND body->>'priority' <> 'URGENT' AND coalesce(body->>'raised', 0) < 3
    AND (body->>'due_at') > (body->>'created_at');
CREATE INDEX approvals_to_raise ON approvals (raise_at) WHERE raise_at IS NOT NULL;
