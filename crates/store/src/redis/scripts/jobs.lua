-- Calls that wake workers, and locks of jobs. The queues and what is scheduled share a slot, also on a cluster.

-- Puts a call into its queue; those who wait take from the other end. The oldest make room.
local function push_call(queue, job)
  redis.call('LPUSH', queue, job)
  redis.call('LTRIM', queue, 0, MOST_WAITING - 1)
end

-- Keys: queue. Arguments: node, the call.
local function wake(keys, args)
  push_call(keys[1], args[2])
end

-- Schedules a call, or gives it another moment. Answers whether there was room.
-- Keys: scheduled. Arguments: node, when, in Unix seconds, the call.
local function schedule(keys, args)
  if redis.call('ZCARD', keys[1]) >= MOST_SCHEDULED and not redis.call('ZSCORE', keys[1], args[3]) then return 0 end
  redis.call('ZADD', keys[1], args[2], args[3])
  return 1
end

-- Moves calls that are due to their queues. Answers how many, and how many had none.
-- Keys: scheduled, then queues. Arguments: node, then the names of the queues in the same order.
local function wake_scheduled(keys, args)
  local now = time()
  local queues, moved, strays = {}, 0, 0
  for i = 2, #keys do queues[args[i]] = keys[i] end
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
  return { now, moved, strays }
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

register('wake', wake, {})
register('schedule', schedule, {})
register('wake_scheduled', wake_scheduled, { 'allow-oom' })
register('lock_job', lock_job, {})
register('unlock_job', unlock_job, { 'allow-oom' })
