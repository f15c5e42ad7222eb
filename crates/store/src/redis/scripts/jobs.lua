-- Wake-ups for workers, and job locks. The queues and the schedule share one slot, also on a cluster.

-- Workers pop from the other end. If the queue is full the oldest wake-ups are dropped.
local function push_wake_up(queue, wake_up)
  redis.call('LPUSH', queue, wake_up)
  redis.call('LTRIM', queue, 0, MAX_QUEUED_WAKE_UPS - 1)
end

-- Returns the queues by name, and the index of the first argument after the names.
-- Keys: scheduled, then queues. Arguments: node id, then the queue names in the same order.
local function queues_by_name(keys, args)
  local queues = {}
  for i = 2, #keys do queues[args[i]] = keys[i] end
  return queues, #keys + 1
end

-- Enqueues, schedules or cancels wake-ups. Returns how many did not fit into the schedule.
-- Keys: scheduled, then queues. Arguments: node id, the queue names, then for each wake-up: its queue name, when (Unix
-- seconds, empty for now, or `cancel`), its payload.
local function enqueue_wake_ups(keys, args)
  local queues, first = queues_by_name(keys, args)
  local now, capacity, rejected = time_text() / 1000000, nil, 0
  for i = first, #args, 3 do
    local at, wake_up = args[i + 1], args[i + 2]
    if at ~= '' and at ~= 'cancel' and tonumber(at) > now then
      capacity = capacity or MAX_SCHEDULED_WAKE_UPS - redis.call('ZCARD', keys[1])
      if capacity > 0 or redis.call('ZSCORE', keys[1], wake_up) then
        capacity = capacity - redis.call('ZADD', keys[1], at, wake_up)
      else
        rejected = rejected + 1
      end
    else
      local removed = redis.call('ZREM', keys[1], wake_up)
      capacity = capacity and capacity + removed
      if at ~= 'cancel' then push_wake_up(queues[args[i]], wake_up) end
    end
  end
  return rejected
end

-- Moves due wake-ups to their queues. Returns how many were moved, how many were dropped because their queue is
-- unknown, and when the next one is due.
-- Keys: scheduled, then queues. Arguments: node id, then the queue names in the same order.
local function move_due_wake_ups(keys, args)
  local now = time_text()
  local queues, moved, dropped = queues_by_name(keys, args), 0, 0
  local now_seconds = string.format('%.3f', math.floor(now / 1000) / 1000)
  for _, wake_up in ipairs(redis.call('ZRANGEBYSCORE', keys[1], '-inf', now_seconds, 'LIMIT', 0, MAX_MOVED_WAKE_UPS)) do
    local is_json, decoded = pcall(cjson.decode, wake_up)
    local queue = is_json and type(decoded) == 'table' and decoded.type and queues[decoded.type]
    if queue then
      push_wake_up(queue, wake_up)
      moved = moved + 1
    else
      dropped = dropped + 1
    end
    redis.call('ZREM', keys[1], wake_up)
  end
  local first = redis.call('ZRANGE', keys[1], 0, 0, 'WITHSCORES')
  -- Other writers may use scores that do not fit into an integer.
  local next = first[2] and string.format('%.0f', math.max(0, math.min(tonumber(first[2]), 9e9)) * 1000000)
  return { now, moved, dropped, next or false }
end

-- Locks a job for a holder, or renews its lock. Returns whether the holder has the lock.
-- Keys: lock. Arguments: node id, holder, TTL in milliseconds.
local function lock_job(keys, args)
  local holder = redis.call('GET', keys[1])
  if holder and holder ~= args[2] then return 0 end
  redis.call('SET', keys[1], args[2], 'PX', args[3])
  return 1
end

-- Releases a job lock. Returns whether the holder had it. Keys: lock. Arguments: node id, holder.
local function unlock_job(keys, args)
  if redis.call('GET', keys[1]) ~= args[2] then return 0 end
  return redis.call('DEL', keys[1])
end

register('enqueue_wake_ups', enqueue_wake_ups, {})
register('move_due_wake_ups', move_due_wake_ups, { 'allow-oom' })
register('lock_job', lock_job, {})
register('unlock_job', unlock_job, { 'allow-oom' })
