-- Tasks are found by their agents too: the kind `agent` of task_labels is an agent that proposed, changed or submitted the task, or
-- applies it.
INSERT OR IGNORE INTO task_labels (kind, label, task_id)
    SELECT 'agent', agent.value, tasks.task_id FROM tasks, json_each(tasks.body, '$.by_agent') AS agent
    UNION SELECT 'agent', body->'metadata'->'lineage'->>'agent_id', task_id FROM tasks
    WHERE body->'metadata'->'lineage'->>'agent_id' IS NOT NULL
    UNION SELECT 'agent', body->'execution'->>'worker', task_id FROM tasks
    WHERE body->'config'->>'executor' = 'agent' AND body->'execution'->>'worker' IS NOT NULL;
