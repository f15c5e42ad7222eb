-- Tasks are found by the level of their risk too: the kind `risk` of task_labels.
INSERT OR IGNORE INTO task_labels (kind, label, task_id)
    SELECT 'risk', body->'risk'->>'level', task_id FROM tasks WHERE body->'risk'->>'level' IS NOT NULL;
