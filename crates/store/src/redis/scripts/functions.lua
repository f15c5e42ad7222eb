-- The other functions of the library: agents, rate limits, the registry, and reading a lock. Each touches one slot.

-- The current time in Unix microseconds, as text.
local function time_text()
  local clock = redis.call('TIME')
  return string.format('%.0f', clock[1] * 1000000 + clock[2])
end

-- Returns a consistent snapshot of locks without changing them: of each its fields, the first waiters with their scores,
-- and the queue length.
-- Keys: lock and queue, for each lock. Arguments: node id, index of the last waiter to return or empty for none.
local function read_locks(keys, args)
  local reply = { time_text() }
  for i = 1, #keys, 2 do
    local waiters = args[2] == '' and {} or redis.call('ZRANGE', keys[i + 1], 0, args[2], 'WITHSCORES')
    reply[#reply + 1] = { redis.call('HGETALL', keys[i]), waiters, redis.call('ZCARD', keys[i + 1]) }
  end
  return reply
end

-- Adds a lock to the registry before it is acquired. The score only decreases and always changes, so a concurrent
-- `compare_and_set_score` that removes the lock fails.
-- Keys: registry. Arguments: node id, lock, when something may be due.
local function add_to_registry(keys, args)
  local stored, due = redis.call('ZSCORE', keys[1], args[2]), tonumber(args[3])
  if stored and tonumber(stored) <= due then due = tonumber(stored) - 0.001 end
  redis.call('ZADD', keys[1], string.format('%.3f', due), args[2])
end

-- Changes the score of a member, or removes it, unless the score changed since it was read.
-- Keys: sorted set. Arguments: node id, member, the score read, the new score or empty to remove.
local function compare_and_set_score(keys, args)
  if tonumber(redis.call('ZSCORE', keys[1], args[2]) or 0) ~= tonumber(args[3]) then return 0 end
  if args[4] == '' then return redis.call('ZREM', keys[1], args[2]) end
  return redis.call('ZADD', keys[1], args[4], args[2])
end

-- Deletes the stored names of locks that left the registry. Not on a cluster, where the two keys are in different
-- slots.
-- Keys: names, registry. Arguments: node id, then locks.
local function prune_lock_names(keys, args)
  for i = 2, #args do
    if not redis.call('ZSCORE', keys[2], args[i]) then redis.call('HDEL', keys[1], args[i]) end
  end
end

-- Removes expired claims and queued tasks of an agent, stores how many of each remain, and returns both counts.
local function refresh_task_counts(capacity, now)
  local active, queued = 0, 0
  local fields = redis.call('HGETALL', capacity)
  for i = 1, #fields, 2 do
    local kind = string.sub(fields[i], 1, 2)
    if kind == 't:' or kind == 'q:' then
      if (tonumber(fields[i + 1]) or 0) * 1000 <= tonumber(now) then
        redis.call('HDEL', capacity, fields[i])
      elseif kind == 't:' then
        active = active + 1
      else
        queued = queued + 1
      end
    end
  end
  redis.call('HSET', capacity, 'active_tasks', active, 'queued_tasks', queued)
  return active, queued
end

-- The same, skipped if the agent has neither.
local function refresh_task_counts_if_any(capacity, now)
  local counts = redis.call('HMGET', capacity, 'active_tasks', 'queued_tasks')
  if (counts[1] or '0') ~= '0' or (counts[2] or '0') ~= '0' then refresh_task_counts(capacity, now) end
end

-- Claims a task for an agent, or renews the claim. Without free capacity the task is queued.
-- Keys: profile, capacity. Arguments: node id, task, expiry in Unix milliseconds, default of max_tasks.
local function claim_task(keys, args)
  local now = time_text()
  local draining = redis.call('HGET', keys[1], 'draining')
  if not draining then return { now, 'unknown' } end
  local active, queued = refresh_task_counts(keys[2], now)
  local claim_field, waiting_field, expires = 't:' .. args[2], 'q:' .. args[2], tonumber(args[3])
  local is_in_future = expires * 1000 > tonumber(now)
  local previous = redis.call('HGET', keys[2], claim_field)
  if not previous then
    if draining == '1' then return { now, 'draining' } end
    if active >= tonumber(redis.call('HGET', keys[2], 'max_tasks') or args[4]) then
      local is_waiting = redis.call('HEXISTS', keys[2], waiting_field) == 1
      if is_in_future and (is_waiting or queued < MAX_QUEUED_TASKS) then
        redis.call('HSET', keys[2], waiting_field, args[3], 'queued_tasks', is_waiting and queued or queued + 1)
      end
      return { now, 'full' }
    end
  end
  if redis.call('HDEL', keys[2], waiting_field) == 1 then redis.call('HSET', keys[2], 'queued_tasks', queued - 1) end
  if is_in_future and not previous then redis.call('HSET', keys[2], claim_field, args[3], 'active_tasks', active + 1) end
  if previous and tonumber(previous) < expires then redis.call('HSET', keys[2], claim_field, args[3]) end
  return { now, 'claimed' }
end

-- Releases a claimed task, or removes a queued one. Keys: profile, capacity. Arguments: node id, task.
local function release_task(keys, args)
  if redis.call('HDEL', keys[2], 't:' .. args[2], 'q:' .. args[2]) > 0 then refresh_task_counts(keys[2], time_text()) end
end

-- Registers or updates an agent. Returns its fields, or none if the id is taken (create) or unknown (update).
-- Keys: profile, capacity. Arguments: node id, 1 to create, then profile, max_tasks and draining (each empty to keep
-- it), default profile, default max_tasks, current time as RFC 3339.
local function put_agent(keys, args)
  local now = time_text()
  local named = redis.call('HGET', keys[1], 'named')
  if args[2] == '1' and named == '0' or args[2] == '0' and not named then return { now, {}, {} } end
  if not named then
    redis.call('HSET', keys[1], 'profile', args[6], 'registered_at', now, 'last_heartbeat', now, 'draining', 0)
    redis.call('HSET', keys[2], 'max_tasks', args[7], 'active_tasks', 0, 'queued_tasks', 0, 'status', 'active',
      'last_heartbeat', args[8])
  end
  redis.call('HSET', keys[1], 'named', 0)
  if args[3] ~= '' then redis.call('HSET', keys[1], 'profile', args[3]) end
  if args[4] ~= '' then redis.call('HSET', keys[2], 'max_tasks', args[4]) end
  if args[5] ~= '' then
    redis.call('HSET', keys[1], 'draining', args[5])
    if redis.call('HGET', keys[2], 'status') ~= 'offline' then
      redis.call('HSET', keys[2], 'status', args[5] == '1' and 'draining' or 'active')
    end
  end
  return { now, redis.call('HGETALL', keys[1]), redis.call('HGETALL', keys[2]) }
end

-- Records a heartbeat. An unknown agent is added as named only, if the caller allows it.
-- Keys: profile, capacity. Arguments: node id, current time as RFC 3339, 1 to allow a new agent, its default profile,
-- its default max_tasks.
-- Returns whether the agent is known, and whether it is named only.
local function record_heartbeat(keys, args)
  local now = time_text()
  local stored = redis.call('HMGET', keys[1], 'named', 'draining')
  if not stored[1] then
    if args[3] ~= '1' then return { now, 0, 0 } end
    redis.call('HSET', keys[1], 'profile', args[4], 'registered_at', now, 'draining', 0, 'named', 1)
    redis.call('HSET', keys[2], 'max_tasks', args[5], 'active_tasks', 0, 'queued_tasks', 0)
    stored = { '1', '0' }
  end
  redis.call('HSET', keys[1], 'last_heartbeat', now)
  redis.call('HSET', keys[2], 'last_heartbeat', args[2], 'status', stored[2] == '1' and 'draining' or 'active')
  refresh_task_counts_if_any(keys[2], now)
  return { now, 1, stored[1] }
end

-- Keys: profile, capacity. Arguments: node id.
local function mark_agent_offline(keys)
  if redis.call('EXISTS', keys[1]) == 0 then return end
  redis.call('HSET', keys[2], 'status', 'offline')
  refresh_task_counts_if_any(keys[2], time_text())
end

local MINUTE_MS = 60000

-- Counts requests in a sliding window: this minute's count plus the previous minute's, weighted by the part of it that
-- still lies within the last 60 seconds. The value is both counts and the start of this minute in Unix milliseconds; it
-- expires a minute after the last request that was counted, or that may still come. Whatever is not granted is not
-- counted.
-- Keys: rate. Arguments: node id, how many requests come now or 0, how many to count including those that may follow in
-- this minute, limit per minute, how many of those that were counted earlier did not come, the start of their minute.
-- Returns how many were counted, how many more are allowed, when this minute ends or when the requests will be allowed, and
-- the start of this minute, in Unix milliseconds.
local function count_requests(keys, args)
  local now = time_text()
  local now_ms = math.floor(tonumber(now) / 1000)
  local needed, wanted, limit, unused = tonumber(args[2]), tonumber(args[3]), tonumber(args[4]), tonumber(args[5])
  local count, previous, started_at = 0, 0, now_ms
  local stored = redis.call('GET', keys[1])
  if stored then
    local current, before, start = string.match(stored, '^(%d+) (%d+) (%d+)$')
    if start then
      count, previous, started_at = tonumber(current), tonumber(before), tonumber(start)
      -- The key has not expired, so at most one minute has passed since the end.
      if started_at + MINUTE_MS <= now_ms then
        count, previous, started_at = 0, count, started_at + MINUTE_MS
      end
    end
  end
  if unused > 0 then
    if tonumber(args[6]) == started_at then
      count = math.max(count - unused, 0)
    elseif tonumber(args[6]) + MINUTE_MS == started_at then
      previous = math.max(previous - unused, 0)
    end
  end
  local ends_at = started_at + MINUTE_MS
  -- After a failover the clock may run behind the start.
  local left = math.min(math.max(ends_at - now_ms, 0), MINUTE_MS)
  local free = math.floor(((limit - count) * MINUTE_MS - previous * left) / MINUTE_MS)
  local ttl = redis.call('PTTL', keys[1])
  if needed > 0 and free >= needed then
    local granted = math.max(math.min(wanted, free), needed)
    ttl = math.max(ttl, granted > needed and ends_at - now_ms + MINUTE_MS or MINUTE_MS)
    redis.call('SET', keys[1], string.format('%.0f %.0f %.0f', count + granted, previous, started_at), 'PX', ttl)
    return { now, granted, free - granted, ends_at, started_at }
  end
  if unused > 0 and ttl > 0 then
    redis.call('SET', keys[1], string.format('%.0f %.0f %.0f', count, previous, started_at), 'PX', ttl)
  end
  local rest, retry_at = limit - count - needed, nil
  if rest >= 0 then
    retry_at = ends_at - math.floor(rest * MINUTE_MS / math.max(previous, 1))
  else
    retry_at = ends_at + math.ceil(-rest * MINUTE_MS / math.max(count, 1))
  end
  if ttl < 0 then ttl = MINUTE_MS end
  return { now, 0, 0, math.max(math.min(retry_at, now_ms + ttl), now_ms + 1), started_at }
end

-- Acquiring is refused when Redis is out of memory; releasing, extending and whatever frees memory is not.
register('acquire', apply_commands, {})
register('apply_commands', apply_commands, { 'allow-oom' })
register('read_locks', read_locks, { 'no-writes' })
register('add_to_registry', add_to_registry, { 'allow-oom' })
register('compare_and_set_score', compare_and_set_score, { 'allow-oom' })
register('prune_lock_names', prune_lock_names, { 'allow-oom' })
register('put_agent', put_agent, {})
register('record_heartbeat', record_heartbeat, { 'allow-oom' })
register('claim_task', claim_task, {})
register('release_task', release_task, { 'allow-oom' })
register('count_requests', count_requests, {})
register('mark_agent_offline', mark_agent_offline, { 'allow-oom' })
