-- A call: its steps one after the other, then what they share. The two most frequent steps have a short form.

-- The two most frequent steps, without what they have no use for: acquiring a lock that nobody uses, and releasing one with
-- a single holder and no waiters. The general code gives the same result; the differential tests compare both with the
-- model. Both return nil if the lock is in any other state, before they change anything.
local function acquire_unused(keys, first, args, before)
  local lock = keys[first]
  if call('EXISTS', lock, keys[first + 1], keys[first + 5]) ~= 0 then return nil end
  LOCK, BY_TYPE, is_task = lock, keys[first + 8], sub(lock, 10, 14) == 'task:'
  local digest, agent_id, wanted, purpose, is_claimed = args[before + 2], args[before + 3], args[before + 6], args[before + 12], args[before + 9]
  local lease = is_claimed == '1' and args[before + 8] or claim_timeout_ms(args[before] == '12' or args[before + 14] ~= '')
  local expires = now + lease * 1000
  local token, expires_text, is_exclusive = next_token(), digits(expires), args[before + 7] == 'x'
  local numbers = args[before + 7] .. ' ' .. token .. ' ' .. now_text .. ' ' .. expires_text .. ' ' .. is_claimed .. ' ' .. args[before + 10] .. ' ' .. args[before + 11] .. ' 0'
  local holder_field, holder_value = 'exclusive_holder', agent_id
  if is_task then holder_field = 'holder_agent_id'
  elseif not is_exclusive then
    holder_field, holder_value = 'holders', '[{"agent_id":' .. cjson.encode(agent_id) .. ',"acquired_at":"' .. iso(now) .. '"}]'
  end
  call('HSET', lock, 'n', 1, 'mode', is_exclusive and 'exclusive' or 'shared', 'next', expires_text, 'queue_length', 0,
    'acquired_at', iso(now), 'expires_at', iso(expires), 'purpose', purpose, holder_field, holder_value,
    'h:' .. digest, numbers, 'r:' .. digest, wanted, 'a:' .. digest,
    #agent_id .. ' ' .. #args[before + 4] .. ' ' .. agent_id .. args[before + 4] .. purpose)
  if is_task then call('HSET', lock, 'heartbeat_count', 0) end
  call('PEXPIRE', lock, lease + EXPIRY_GRACE_MS)
  due_times[lock] = sub(expires_text, 1, -7) .. '.' .. sub(expires_text, -6, -4)
  call('SADD', keys[first + 6], lock)
  call('PEXPIRE', keys[first + 6], INDEX_TTL_MS)
  if not is_task then note_type(true) end
  call('PUBLISH', args[before + 5], 'acquired:' .. agent_id)
  return { 'held', numbers, '+granted 0 ' .. token .. ' ' .. wanted }
end

local function release_unshared(keys, first, args, before)
  local lock, digest = keys[first], args[before + 2]
  local fields = call('HMGET', lock, 'n', 'queue_length', 'h:' .. digest, 'b:' .. digest)
  if fields[1] ~= '1' or fields[2] ~= '0' or not fields[3] or fields[4] then return nil end
  local token, expires, leaves_tombstone = match(fields[3], '^%a (%d+) %d+ (%d+) %d (%d)')
  if token ~= args[before + 6] or leaves_tombstone ~= '0' or tonumber(expires) <= now then return nil end
  LOCK, BY_TYPE = lock, keys[first + 8]
  call('DEL', lock)
  due_times[lock] = false
  call('SREM', keys[first + 6], lock)
  if sub(lock, 10, 14) ~= 'task:' then note_type(false) end
  call('PUBLISH', args[before + 5], 'released:' .. args[before + 3])
  return { 'done', '+hold_ended 1 ' .. token .. ' released' }
end

local SHORT = { acquire = acquire_unused, release = release_unshared }

local function run_step(keys, first, args, before, last)
  local short = REGISTRY and SHORT[args[before + 1]]
  local reply = short and short(keys, first, args, before)
  if reply then return reply end
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
  for index, locks in pairs(type_changes) do
    local held, free = { index }, { index }
    for lock, is_held in pairs(locks) do
      if is_held then held[#held + 1] = lock else free[#free + 1] = lock end
    end
    if #free > 1 then call('SREM', unpack(free)) end
    if #held > 1 then
      call('SADD', unpack(held))
      call('PEXPIRE', index, INDEX_TTL_MS)
    end
  end
end

-- Returns the time, then for each step its outcome, followed by its changes. A step that fails returns its error and does
-- not affect the others.
function apply_commands(keys, args)
  begin_call(args[1], keys)
  local replies = { now_text }
  local first, stride = 1, 6
  if REGISTRY then first, stride = 3, 9 end
  local before = 2
  while before <= #args do
    local last = before + args[before]
    local is_done, reply = pcall(run_step, keys, first, args, before, last)
    if not is_done and type(reply) ~= 'table' then reply = redis.error_reply(tostring(reply)) end
    replies[#replies + 1] = reply
    first, before = first + stride, last + 1
  end
  if REGISTRY then end_call() end
  return replies
end
