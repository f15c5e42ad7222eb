-- Tasks are found by their agents too: the kind `agent` of task_labels is an agent that proposed, changed or submitted the task, or
-- applies it.
INSERT INTO task_labels (kind, label, task_id)
    SELECT 'agent', agent.value, task_id FROM tasks
    CROSS JOIN LATERAL jsonb_array_elements_text(coalesce(body::jsonb->'by_agent', '[]')) AS agent(value)
    UNION SELECT 'agent', body::jsonb->'metadata'->'lineage'->>'agent_id', task_id FROM tasks
    WHERE body::jsonb->'metadata'->'lineage'->>'agent_id' IS NOT NULL
    UNION SELECT 'agent', body::jsonb->'execution'->>'worker', task_id FROM tasks
    WHERE body::jsonb->'config'->>'executor' = 'agent' AND body::jsonb->'execution'->>'worker' IS NOT NULL
    ON CONFLICT DO NOTHING;
