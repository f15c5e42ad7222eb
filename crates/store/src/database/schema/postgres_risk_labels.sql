-- Tasks are found by the level of their risk too: the kind `risk` of task_labels.
INSERT INTO task_labels (kind, label, task_id)
    SELECT 'risk', body::jsonb->'risk'->>'level', task_id FROM tasks WHERE body::jsonb->'risk'->>'level' IS NOT NULL
    ON CONFLICT DO NOTHING;
