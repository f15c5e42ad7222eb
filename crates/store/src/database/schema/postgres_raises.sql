-- When a backlog raises the priority of a pending approval request next; null if it never does.
ALTER TABLE approvals ADD COLUMN raise_at timestamptz;
UPDATE approvals SET raise_at = created_at + interval '1 microsecond'
    * (((body::jsonb->>'due_at')::bigint - (body::jsonb->>'created_at')::bigint) * (coalesce((body::jsonb->>'raised')::bigint, 0) + 1) / 4)
    WHERE status = 'PENDING' AND body::jsonb->>'priority' <> 'URGENT' AND coalesce((body::jsonb->>'raised')::bigint, 0) < 3
    AND (body::jsonb->>'due_at')::bigint > (body::jsonb->>'created_at')::bigint;
CREATE INDEX approvals_to_raise ON approvals (raise_at) WHERE raise_at IS NOT NULL;
