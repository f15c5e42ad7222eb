-- Fast paths for the three most frequent steps: acquiring a free lock that has no waiters and no tombstones, extending a
-- lock with one holder and no waiters, and releasing such a lock if its request leaves no tombstone. The general code
-- gives the same result at twice the cost; the differential tests cover both. A function returns nil if its
-- preconditions do not hold.

local function fast_acquire(keys, args)
  local call = redis.call
  local lock = keys[1]
  if call('EXISTS', lock, keys[2], keys[6]) ~= 0 then return nil end
  read_clock(call)
  local digest, agent_id, request, is_claimed = args[4], args[5], args[8], args[11] == '1'
  local fence = call('HMGET', keys[5], 'token', 'kept')
  local token = now_text
  if fence[1] and tonumber(fence[1]) >= now then token = format('%.0f', min(fence[1] + 1, 9007199254740991)) end
  local lease = is_claimed and args[10] or claim_timeout_ms(args[15] == '' or args[16] ~= '')
  local expires = now + lease * 1000
  local expires_text = format('%.0f', expires)
  local is_task_lock, is_exclusive = sub(args[3], 1, 5) == 'task:', args[9] == 'x'
  local numbers = args[9] .. ' ' .. token .. ' ' .. now_text .. ' ' .. expires_text .. ' ' .. args[11] .. ' ' .. args[12] .. ' ' .. args[13] .. ' 0'
  local names = #agent_id .. ' ' .. #args[6] .. ' ' .. agent_id .. args[6] .. args[14]
  local acquired_at = iso(now)
  call('HSET', lock, 'n', 1, 'mode', is_exclusive and 'exclusive' or 'shared', 'next', expires_text, 'queue_length', 0,
    'acquired_at', acquired_at, 'expires_at', iso(expires), 'purpose', args[14],
    is_task_lock and 'holder_agent_id' or is_exclusive and 'exclusive_holder' or 'holders',
    (is_task_lock or is_exclusive) and agent_id or '[{"agent_id":' .. cjson.encode(agent_id) .. ',"acquired_at":"' .. acquired_at .. '"}]',
    'h:' .. digest, numbers, 'r:' .. digest, request, 'a:' .. digest, names)
  if is_task_lock then call('HSET', lock, 'heartbeat_count', 0) end
  call('PEXPIRE', lock, lease + EXPIRY_GRACE_MS)
  if fence[2] and fence[2] + FENCE_RENEW_INTERVAL_MS * 1000 > now then
    call('HSET', keys[5], 'token', token)
  else
    call('HSET', keys[5], 'token', token, 'name', args[3], 'kept', now_text)
    call('PEXPIRE', keys[5], FENCE_TTL_MS + FENCE_RENEW_INTERVAL_MS)
  end
  if keys[7] then
    call('ZADD', keys[7], 'LT', sub(expires_text, 1, -7) .. '.' .. sub(expires_text, -6, -4), lock)
    call('SADD', keys[8], lock)
    call('PEXPIRE', keys[8], INDEX_TTL_MS)
    if keys[10] then
      call('SADD', keys[10], lock)
      call('PEXPIRE', keys[10], INDEX_TTL_MS)
    end
  end
  call(args[1] == '' and 'PUBLISH' or 'SPUBLISH', args[7], 'acquired:' .. agent_id)
  local hold_text = numbers .. ' ' .. request .. ' ' .. names
  return { now_text, { 'held', hold_text }, { { 'granted', agent_id, args[6], 0, token, request } }, '', 0 }
end

local function fast_release(keys, args)
  local call = redis.call
  local lock, digest = keys[1], args[4]
  local fields = call('HMGET', lock, 'n', 'queue_length', 'h:' .. digest, 'b:' .. digest)
  if fields[1] ~= '1' or fields[2] ~= '0' or not fields[3] or fields[4] then return nil end
  local token, expires, leaves_tombstone = fields[3]:match('^%a (%d+) %d+ (%d+) %d (%d)')
  read_clock(call)
  if token ~= args[8] or leaves_tombstone ~= '0' or tonumber(expires) <= now then return nil end
  call('DEL', lock)
  if keys[7] then
    call('ZREM', keys[7], lock)
    call('SREM', keys[8], lock)
    if keys[10] then call('SREM', keys[10], lock) end
  end
  call(args[1] == '' and 'PUBLISH' or 'SPUBLISH', args[7], 'released:' .. args[5])
  return { now_text, { 'done' }, { { 'hold_ended', args[5], args[6], 1, token, 'released' } }, '', 0 }
end

local function fast_extend(keys, args)
  local call = redis.call
  local lock, digest = keys[1], args[4]
  local fields = call('HMGET', lock, 'n', 'queue_length', 'h:' .. digest, 'b:' .. digest, 'r:' .. digest, 'a:' .. digest)
  if fields[1] ~= '1' or fields[2] ~= '0' or not fields[3] or fields[4] then return nil end
  local head, token, expires, tail, heartbeats = fields[3]:match('^(%a (%d+) %d+) (%d+) (%d %d %-?%d+) (%d+)$')
  read_clock(call)
  expires, heartbeats = tonumber(expires), tonumber(heartbeats) + 1
  if token ~= args[8] or expires <= now then return nil end
  expires = max(expires, now + args[9] * 1000)
  local expires_text = format('%.0f', expires)
  local numbers = head .. ' ' .. expires_text .. ' ' .. tail .. ' ' .. heartbeats
  call('HSET', lock, 'h:' .. digest, numbers, 'next', expires_text, 'expires_at', iso(expires))
  if sub(args[3], 1, 5) == 'task:' then call('HSET', lock, 'heartbeat_count', heartbeats) end
  call('PEXPIRE', lock, floor((expires - now) / 1000) + EXPIRY_GRACE_MS)
  if keys[7] then
    -- A late update after another holder's lease may have removed this entry.
    call('SADD', keys[8], lock)
    call('PEXPIRE', keys[8], INDEX_TTL_MS)
    if keys[10] then call('PEXPIRE', keys[10], INDEX_TTL_MS) end
  end
  return { now_text, { 'updated', numbers .. ' ' .. fields[5] .. ' ' .. fields[6] }, {}, '', 0 }
end
