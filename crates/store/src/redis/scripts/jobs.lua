-- Calls that wake workers, and locks of jobs. The queues and what is scheduled share a slot, also on a cluster.

-- Puts a call into its queue; those who wait take from the other end. The oldest make room.
local function push_call(queue, job)
  redis.call('LPUSH', queue, job)
  redis.call('LTRIM', queue, 0, MOST_WAITING - 1)
end

-- The queues by their names, and where the arguments go on. Keys: scheduled, then queues. Arguments: node, then the names of the
-- queues in the same order.
local function queues_by_name(keys, args)
  local queues = {}
  for i = 2, #keys do queues[args[i]] = keys[i] end
  return queues, #keys + 1
end

-- Makes calls: at once, later, or not any more. Answers how many found no room among those for later.
-- Keys: scheduled, then queues. Arguments: node, the names of the queues, then for each call: the name of its queue, when in Unix
-- seconds (nothing: now), the call.
local function call(keys, args)
  local queues, first = queues_by_name(keys, args)
  local now, room, without_room = time() / 1000000, nil, 0
  for i = first, #args, 3 do
    local at, job = args[i + 1], args[i + 2]
    if at ~= '' and at ~= 'never' and tonumber(at) > now then
      room = room or MOST_SCHEDULED - redis.call('ZCARD', keys[1])
      if room > 0 or redis.call('ZSCORE', keys[1], job) then
        room = room - redis.call('ZADD', keys[1], at, job)
      else
        without_room = without_room + 1
      end
    else
      local removed = redis.call('ZREM', keys[1], job)
      room = room and room + removed
      if at ~= 'never' then push_call(queues[args[i]], job) end
    end
  end
  return without_room
end

-- Moves calls that are due to their queues. Answers how many, how many had none, and when the next is due.
-- Keys: scheduled, then queues. Arguments: node, then the names of the queues in the same order.
local function wake_scheduled(keys, args)
  local now = time()
  local queues, moved, strays = queues_by_name(keys, args), 0, 0
  local until_now = string.format('%.3f', math.floor(now / 1000) / 1000)
  for _, job in ipairs(redis.call('ZRANGEBYSCORE', keys[1], '-inf', until_now, 'LIMIT', 0, MOST_AT_ONCE)) do
    local is_read, read = pcall(cjson.decode, job)
    local queue = is_read and type(read) == 'table' and read.type and queues[read.type]
    if queue then
      push_call(queue, job)
      moved = moved + 1
    else
      strays = strays + 1
    end
    redis.call('ZREM', keys[1], job)
  end
  local first = redis.call('ZRANGE', keys[1], 0, 0, 'WITHSCORES')
  -- What others scheduled for the end of time is not beyond what a number can say.
  local next = first[2] and string.format('%.0f', math.max(0, math.min(tonumber(first[2]), 9e9)) * 1000000)
  return { now, moved, strays, next or false }
end

-- Locks a job for a holder, or prolongs its lock. Answers whether it has it.
-- Keys: lock. Arguments: node, holder, for how many milliseconds.
local function lock_job(keys, args)
  local holder = redis.call('GET', keys[1])
  if holder and holder ~= args[2] then return 0 end
  redis.call('SET', keys[1], args[2], 'PX', args[3])
  return 1
end

-- Gives the lock of a job back. Answers whether the holder had it.
-- Keys: lock. Arguments: node, holder.
local function unlock_job(keys, args)
  if redis.call('GET', keys[1]) ~= args[2] then return 0 end
  return redis.call('DEL', keys[1])
end

register('call', call, {})
register('wake_scheduled', wake_scheduled, { 'allow-oom' })
register('lock_job', lock_job, {})
register('unlock_job', unlock_job, { 'allow-oom' })
