-- A call: its steps one after the other, then what they share.

-- The two most frequent steps, without what they have no use for: the general code gives the same result and takes half as
-- long again. Each returns nil, before it changes anything, if the lock is in another state.
local SHORT = {}

-- Acquires an unused lock exclusively.
function SHORT.acquire(keys, first, args, before)
  local digest, ttl_ms, purpose, is_claimed = args[before + 2], args[before + 8], args[before + 12], args[before + 9] == '1'
  if args[before + 7] ~= 'x' or not is_claimed or call('EXISTS', LOCK, keys[first + 1], keys[first + 5]) ~= 0 then return nil end
  local expires, held_by, name = now + ttl_ms * 1000, args[before + 3], args[before + 4]
  local token, expiry = next_token(), digits(expires)
  local numbers = 'x ' .. token .. ' ' .. now_text .. ' ' .. expiry .. ' 1 ' .. args[before + 10] .. ' ' .. args[before + 11] .. ' 0'
  call('HSET', LOCK, 'n', '1', 'mode', 'exclusive', 'next', expiry, 'queue_length', '0', 'acquired_at', iso(now), 'expires_at', iso(expires),
    'purpose', purpose, is_task and 'holder_agent_id' or 'exclusive_holder', held_by, 'h:' .. digest, numbers, 'r:' .. digest, args[before + 6],
    'a:' .. digest, digits(#held_by) .. ' ' .. digits(#name) .. ' ' .. held_by .. name .. purpose)
  if is_task then call('HSET', LOCK, 'heartbeat_count', '0') end
  call('PEXPIRE', LOCK, digits(ttl_ms + EXPIRY_GRACE_MS))
  due_times[LOCK] = seconds(expiry)
  return INDEX_TTL_MS, 'acquired:', { 'held', numbers, '+granted 0 ' .. numbers .. ' ' .. args[before + 6] }
end

-- Releases a lock that has one holder and no waiters.
function SHORT.release(_, _, args, before)
  local digest = args[before + 2]
  local stored = call('HMGET', LOCK, 'n', 'queue_length', 'h:' .. digest)
  if stored[1] ~= '1' or stored[2] ~= '0' or not stored[3] then return nil end
  local token, expires, is_claimed, leaves_tombstone = match(stored[3], '^%a (%d+) %d+ (%d+) (%d) (%d)')
  if token ~= args[before + 6] or tonumber(expires) <= now or is_claimed == '0' or leaves_tombstone == '1' then return nil end
  call('DEL', LOCK)
  due_times[LOCK] = false
  return false, 'released:', { 'done', '+hold_ended 1 ' .. token .. ' released' }
end

local function run_step(keys, first, args, before, last)
  -- After `ade:lock:`.
  LOCK, is_task = keys[first], sub(keys[first], 10, 14) == 'task:'
  local short = REGISTRY and SHORT[args[before + 1]]
  if short then
    local ttl_ms, message, reply = short(keys, first, args, before)
    if reply then
      set_index(keys[first + 6], ttl_ms)
      if not is_task then set_index(keys[first + 8], ttl_ms) end
      call(PUBLISH, args[before + 5], message .. args[before + 3])
      return reply
    end
  end
  begin_step(keys, first, args, before, last)
  return apply_step()
end

-- Writes what the steps of a call share.
local function end_call()
  if is_token_new then call('SET', TOKEN, digits(last_token)) end
  local due, idle = { REGISTRY, 'LT' }, { REGISTRY }
  for lock, time in pairs(due_times) do
    if time then due[#due + 1], due[#due + 2] = time, lock else idle[#idle + 1] = lock end
  end
  if #due > 2 then call('ZADD', unpack(due)) end
  if #idle > 1 then call('ZREM', unpack(idle)) end
  for index, entries in pairs(index_changes) do
    local added, removed, longest = { index }, { index }, 0
    for lock, ttl_ms in pairs(entries) do
      if ttl_ms then added[#added + 1], longest = lock, max(longest, ttl_ms) else removed[#removed + 1] = lock end
    end
    if #removed > 1 then call('SREM', unpack(removed)) end
    if #added > 1 then
      call('SADD', unpack(added))
      -- Only waits have different TTLs.
      if longest == INDEX_TTL_MS or call('PTTL', index) < longest then call('PEXPIRE', index, digits(longest)) end
    end
  end
end

local SUCCESS = { held = true, updated = true, done = true }

-- Returns the time, then for each step its outcome, followed by its changes. A step that fails returns its error and does
-- not affect the others, except those that run only after the success of the one before: they return nothing.
function apply_commands(keys, args)
  begin_call(args[1], keys)
  local replies, count, is_success = { now_text }, 1, true
  local first, stride, before = REGISTRY and 3 or 1, REGISTRY and 9 or 6, 2
  while before <= #args do
    local argument_count = tonumber(args[before])
    local last, reply = before + math.abs(argument_count), false
    if argument_count > 0 or is_success then
      local is_done
      is_done, reply = pcall(run_step, keys, first, args, before, last)
      if not is_done and type(reply) ~= 'table' then reply = redis.error_reply(tostring(reply)) end
      is_success = is_done and SUCCESS[reply[1]]
    end
    count = count + 1
    replies[count] = reply
    first, before = first + stride, last + 1
  end
  if REGISTRY then end_call() end
  return replies
end
