-- The smaller functions of the library: agents, the registry, and looking at a lock. Each touches one slot.

-- What time it is, in microseconds, as text.
local function time()
  local clock = redis.call('TIME')
  return string.format('%.0f', clock[1] * 1000000 + clock[2])
end

-- One lock as it is at one moment: its fields, the first of its queue with their scores, and how many wait. Changes nothing.
-- Arguments: node, the last place of the queue that is wanted, or nothing.
local function look(keys, args)
  return {
    time(), redis.call('HGETALL', keys[1]),
    args[2] == '' and {} or redis.call('ZRANGE', keys[2], 0, args[2], 'WITHSCORES'), redis.call('ZCARD', keys[2]),
  }
end

-- Puts a lock into the registry before something happens to it. Its score only sinks, and always changes: whoever saw
-- another score and wants to take the lock out does not.
-- Keys: registry. Arguments: node, lock, when something may be due.
local function enlist(keys, args)
  local seen, due = redis.call('ZSCORE', keys[1], args[2]), tonumber(args[3])
  if seen and tonumber(seen) <= due then due = tonumber(seen) - 0.001 end
  redis.call('ZADD', keys[1], string.format('%.3f', due), args[2])
end

-- Gives a lock in the registry its new score, or takes it out, unless somebody put it in again since it was looked at.
-- Keys: registry. Arguments: node, lock, the score that was seen, the new one or nothing.
local function revise(keys, args)
  if tonumber(redis.call('ZSCORE', keys[1], args[2]) or 0) ~= tonumber(args[3]) then return 0 end
  if args[4] == '' then return redis.call('ZREM', keys[1], args[2]) end
  return redis.call('ZADD', keys[1], args[4], args[2])
end

-- Forgets the names of locks that are not in the registry any more. Not for clusters, where the two are apart.
-- Keys: names, registry. Arguments: node, then locks.
local function forget_names(keys, args)
  for i = 2, #args do
    if not redis.call('ZSCORE', keys[2], args[i]) then redis.call('HDEL', keys[1], args[i]) end
  end
end

-- Forgets the claims of an agent that ended, and the wishes. Answers how many of both are in force, which its fields then say.
local function count_tasks(capacity, now)
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

-- The same, where somebody is only heard of or not.
local function count_tasks_if_any(capacity, now)
  local counts = redis.call('HMGET', capacity, 'active_tasks', 'queued_tasks')
  if (counts[1] or '0') ~= '0' or (counts[2] or '0') ~= '0' then count_tasks(capacity, now) end
end

-- Takes a task on for an agent, or renews its claim. A task that finds no room is queued.
-- Keys: profile, capacity. Arguments: node, task, until when, in Unix milliseconds, most tasks if nothing was said.
local function claim_task(keys, args)
  local now = time()
  local draining = redis.call('HGET', keys[1], 'draining')
  if not draining then return { now, 'unknown' } end
  local active, queued = count_tasks(keys[2], now)
  local claim, wish, ends = 't:' .. args[2], 'q:' .. args[2], tonumber(args[3])
  local lasts = ends * 1000 > tonumber(now)
  local before = redis.call('HGET', keys[2], claim)
  if not before then
    if draining == '1' then return { now, 'draining' } end
    if active >= tonumber(redis.call('HGET', keys[2], 'max_tasks') or args[4]) then
      local waits = redis.call('HEXISTS', keys[2], wish) == 1
      if lasts and (waits or queued < MAX_QUEUED_TASKS) then
        redis.call('HSET', keys[2], wish, args[3], 'queued_tasks', waits and queued or queued + 1)
      end
      return { now, 'full' }
    end
  end
  if redis.call('HDEL', keys[2], wish) == 1 then redis.call('HSET', keys[2], 'queued_tasks', queued - 1) end
  if lasts and not before then redis.call('HSET', keys[2], claim, args[3], 'active_tasks', active + 1) end
  if before and tonumber(before) < ends then redis.call('HSET', keys[2], claim, args[3]) end
  return { now, 'yes' }
end

-- An agent gives a task back, or does not wait for room any more. Keys: profile, capacity. Arguments: node, task.
local function unclaim_task(keys, args)
  local now = time()
  if redis.call('HDEL', keys[2], 't:' .. args[2], 'q:' .. args[2]) > 0 then count_tasks(keys[2], now) end
  return { now }
end

-- Registers an agent, or changes one. Answers with its fields, or nothing if the name is taken or unknown.
-- Keys: profile, capacity. Arguments: node, 1 to create, profile or nothing, most tasks or nothing, draining or nothing,
-- the profile of an agent that says nothing, most tasks of such an agent.
local function put_agent(keys, args)
  local now = time()
  local named = redis.call('HGET', keys[1], 'named')
  if args[2] == '1' then
    if named == '0' then return { now } end
  elseif not named then
    return { now }
  end
  if not named then
    redis.call('HSET', keys[1], 'profile', args[6], 'registered_at', now, 'heard', now, 'draining', 0)
    redis.call('HSET', keys[2], 'max_tasks', args[7], 'active_tasks', 0, 'queued_tasks', 0, 'status', 'active')
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

-- An agent was heard of. An unknown one becomes known by its name alone, if the caller says that there is room.
-- Keys: profile, capacity. Arguments: node, the time as RFC 3339 if it is known, 1 if there is room, the profile of an agent that
-- was only named, its most tasks. Answers whether it is unknown (0), registered (1) or only named (2).
local function hear_agent(keys, args)
  local now = time()
  local seen = redis.call('HMGET', keys[1], 'named', 'draining')
  if not seen[1] then
    if args[3] ~= '1' then return { now, 0 } end
    redis.call('HSET', keys[1], 'profile', args[4], 'registered_at', now, 'draining', 0, 'named', 1)
    redis.call('HSET', keys[2], 'max_tasks', args[5], 'active_tasks', 0, 'queued_tasks', 0)
    seen = { '1', '0' }
  end
  redis.call('HSET', keys[1], 'heard', now)
  redis.call('HSET', keys[2], 'last_heartbeat', args[2], 'status', seen[2] == '1' and 'draining' or 'active')
  count_tasks_if_any(keys[2], now)
  return { now, seen[1] == '1' and 2 or 1 }
end

-- An agent was not heard of for too long.
-- Keys: profile, capacity. Arguments: node.
local function silence_agent(keys)
  if redis.call('EXISTS', keys[1]) == 0 then return end
  redis.call('HSET', keys[2], 'status', 'offline')
  count_tasks_if_any(keys[2], time())
end

-- Counts the locks of an acquisition in the minute that began with an agent's first one. Answers when the agent may ask
-- again, in Unix milliseconds, or zero. Keys: rate. Arguments: node, how many locks, how many it may ask for in a minute.
local function admit(keys, args)
  local now = time()
  local asked = tonumber(redis.call('GET', keys[1]) or 0)
  if asked == 0 then
    redis.call('SET', keys[1], args[2], 'PX', 60000)
    return { now, 0 }
  end
  if asked + args[2] > tonumber(args[3]) then return { now, redis.call('PEXPIRETIME', keys[1]) } end
  redis.call('INCRBY', keys[1], args[2])
  return { now, 0 }
end

-- Counts a request in the minute that began with the first one, unless there were as many as may be. Answers whether it may
-- pass, how many more may, and when the minute ends, in Unix milliseconds. Keys: rate. Arguments: node, how many may pass.
local function count(keys, args)
  local now, most = time(), tonumber(args[2])
  local asked = tonumber(redis.call('GET', keys[1]) or 0)
  local allowed = asked < most
  if allowed then
    asked = asked + 1
    if asked == 1 then redis.call('SET', keys[1], 1, 'PX', 60000) else redis.call('INCR', keys[1]) end
  end
  local ends = redis.call('PEXPIRETIME', keys[1])
  -- Nothing was counted and nothing may be: then the minute begins now.
  if ends < 0 then ends = math.floor(now / 1000) + 60000 end
  return { now, allowed and 1 or 0, math.max(most - asked, 0), ends }
end

-- On a cluster a call is for the primary it was sent to: one that took over must not carry it out before its clock is
-- trusted.
local function register(name, act, flags)
  redis.register_function({
    function_name = LIBRARY .. '_' .. name,
    callback = function(keys, args)
      if args[1] ~= '' and redis.call('CLUSTER', 'MYID') ~= args[1] then return redis.error_reply('ANOTHERPRIMARY') end
      return act(keys, args)
    end,
    flags = flags,
  })
end

-- Taking a lock is refused when memory is short; giving it back, keeping it and all that frees memory is not.
register('acquire', step, {})
register('step', step, { 'allow-oom' })
register('look', look, { 'no-writes' })
register('enlist', enlist, { 'allow-oom' })
register('revise', revise, { 'allow-oom' })
register('forget_names', forget_names, { 'allow-oom' })
register('put_agent', put_agent, {})
register('hear_agent', hear_agent, { 'allow-oom' })
register('claim_task', claim_task, {})
register('unclaim_task', unclaim_task, { 'allow-oom' })
register('admit', admit, {})
register('count', count, {})
register('silence_agent', silence_agent, { 'allow-oom' })
