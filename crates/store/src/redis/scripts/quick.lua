-- The three steps that nearly all are: taking a lock that nobody holds, waits for or asked for before, keeping a lock that
-- nobody shares or waits for, and giving such a lock back if its request is not remembered. The rest of the library would do the same, at twice the cost;
-- the differential tests compare both with the machine. `nil`: it is not that simple.

local function quick_take(keys, args)
  local call = redis.call
  local lock = keys[1]
  if call('EXISTS', lock, keys[2], keys[6]) ~= 0 then return nil end
  begin_time(call)
  local key, of_agent, request, is_claimed = args[4], args[5], args[8], args[11] == '1'
  local fenced = call('HMGET', keys[5], 'token', 'kept')
  local token = now_text
  if fenced[1] and tonumber(fenced[1]) >= now then token = format('%.0f', min(fenced[1] + 1, 9007199254740991)) end
  local lease = is_claimed and args[10] or claim_ms(args[15] == '' or args[16] ~= '')
  local ends = now + lease * 1000
  local ends_text = format('%.0f', ends)
  local of_task, is_exclusive = sub(args[3], 1, 5) == 'task:', args[9] == 'x'
  local of_numbers = args[9] .. ' ' .. token .. ' ' .. now_text .. ' ' .. ends_text .. ' ' .. args[11] .. ' ' .. args[12] .. ' ' .. args[13] .. ' 0'
  local of_names = #of_agent .. ' ' .. #args[6] .. ' ' .. of_agent .. args[6] .. args[14]
  local since = iso(now)
  call('HSET', lock, 'n', 1, 'mode', is_exclusive and 'exclusive' or 'shared', 'next', ends_text, 'queue_length', 0,
    'acquired_at', since, 'expires_at', iso(ends), 'purpose', args[14],
    of_task and 'holder_agent_id' or is_exclusive and 'exclusive_holder' or 'holders',
    (of_task or is_exclusive) and of_agent or '[{"agent_id":' .. cjson.encode(of_agent) .. ',"acquired_at":"' .. since .. '"}]',
    'h:' .. key, of_numbers, 'r:' .. key, request, 'a:' .. key, of_names)
  if of_task then call('HSET', lock, 'heartbeat_count', 0) end
  call('PEXPIRE', lock, lease + BACKSTOP_MS)
  if fenced[2] and fenced[2] + RENEW_FENCE_MS * 1000 > now then
    call('HSET', keys[5], 'token', token)
  else
    call('HSET', keys[5], 'token', token, 'name', args[3], 'kept', now_text)
    call('PEXPIRE', keys[5], FENCE_MS + RENEW_FENCE_MS)
  end
  if keys[7] then
    call('ZADD', keys[7], 'LT', sub(ends_text, 1, -7) .. '.' .. sub(ends_text, -6, -4), lock)
    call('SADD', keys[8], lock)
    call('PEXPIRE', keys[8], INDEX_MS)
    if keys[10] then
      call('SADD', keys[10], lock)
      call('PEXPIRE', keys[10], INDEX_MS)
    end
  end
  call(args[1] == '' and 'PUBLISH' or 'SPUBLISH', args[7], 'acquired:' .. of_agent)
  local hold_text = of_numbers .. ' ' .. request .. ' ' .. of_names
  return { now_text, { 'held', hold_text }, { { 'granted', of_agent, args[6], 0, token, request } }, '' }
end

local function quick_give(keys, args)
  local call = redis.call
  local lock, key = keys[1], args[4]
  local seen = call('HMGET', lock, 'n', 'queue_length', 'h:' .. key, 'b:' .. key)
  if seen[1] ~= '1' or seen[2] ~= '0' or not seen[3] or seen[4] then return nil end
  local token, ends, remembered = seen[3]:match('^%a (%d+) %d+ (%d+) %d (%d)')
  begin_time(call)
  if token ~= args[8] or remembered ~= '0' or tonumber(ends) <= now then return nil end
  call('DEL', lock)
  if keys[7] then
    call('ZREM', keys[7], lock)
    call('SREM', keys[8], lock)
    if keys[10] then call('SREM', keys[10], lock) end
  end
  call(args[1] == '' and 'PUBLISH' or 'SPUBLISH', args[7], 'released:' .. args[5])
  return { now_text, { 'done' }, { { 'freed', args[5], args[6], 1, token, 'released' } }, '' }
end

local function quick_keep(keys, args)
  local call = redis.call
  local lock, key = keys[1], args[4]
  local seen = call('HMGET', lock, 'n', 'queue_length', 'h:' .. key, 'b:' .. key, 'r:' .. key, 'a:' .. key)
  if seen[1] ~= '1' or seen[2] ~= '0' or not seen[3] or seen[4] then return nil end
  local head, token, ends, tail, beats = seen[3]:match('^(%a (%d+) %d+) (%d+) (%d %d %-?%d+) (%d+)$')
  begin_time(call)
  ends, beats = tonumber(ends), tonumber(beats) + 1
  if token ~= args[8] or ends <= now then return nil end
  ends = max(ends, now + args[9] * 1000)
  local ends_text = format('%.0f', ends)
  local of_numbers = head .. ' ' .. ends_text .. ' ' .. tail .. ' ' .. beats
  call('HSET', lock, 'h:' .. key, of_numbers, 'next', ends_text, 'expires_at', iso(ends))
  if sub(args[3], 1, 5) == 'task:' then call('HSET', lock, 'heartbeat_count', beats) end
  call('PEXPIRE', lock, floor((ends - now) / 1000) + BACKSTOP_MS)
  if keys[7] then
    -- Whoever took it away late, after somebody else's lease, is set right.
    call('SADD', keys[8], lock)
    call('PEXPIRE', keys[8], INDEX_MS)
    if keys[10] then call('PEXPIRE', keys[10], INDEX_MS) end
  end
  return { now_text, { 'kept', of_numbers .. ' ' .. seen[5] .. ' ' .. seen[6] }, {}, '' }
end
