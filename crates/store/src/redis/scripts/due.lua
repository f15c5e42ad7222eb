-- What is due at the lock: leases that ended, waiters that gave up, and the next ones to hold. Bounded per step.

-- Upgrading holders stand ahead of everybody: their score lies 2^41 below its time, which a double does exactly.
local AHEAD = 2199023255552
local function place(waiter) return waiter.upgrade and waiter.score - AHEAD or waiter.score end

local function read_waiter(member, score)
  local waiter = cjson.decode(member)
  waiter.member, waiter.deadline = member, tonumber(waiter.deadline)
  score = tonumber(score or call('ZSCORE', QUEUE, member))
  waiter.score = waiter.upgrade and score + AHEAD or score
  return waiter
end

local function wait_of(other)
  if queued == 0 then return nil end
  local member = call('HGET', WAITING, other)
  return member and read_waiter(member) or nil
end

-- `card` is what stays the same of a waiter, as JSON without braces; the rest depends on the time and on the server.
local function push(waiter)
  local member = concat({
    '{', waiter.card, ',"requested_at":"', waiter.requested_at, '","deadline":"', digits(waiter.deadline), '"',
    waiter.served_by and ',"served_by":' .. cjson.encode(waiter.served_by) or '', waiter.upgrade and ',"upgrade":true' or '', '}',
  })
  waiter.member = member
  call('ZADD', QUEUE, format('%.17g', place(waiter)), member)
  call('HSET', WAITING, waiter.who, member)
  call('HINCRBY', WAITING, 'a:' .. waiter.agent_id, 1)
  call('ZADD', DEADLINES, digits(waiter.deadline), waiter.who)
  queued = queued + 1
  first_deadline = first_deadline and min(first_deadline, waiter.deadline)
  -- The queue outlives its last waiter's deadline a little, so that there is somebody to tell of it.
  local ms = max(QUEUE_MS, floor((waiter.deadline - now) / 1000) + 5000)
  if call('PTTL', QUEUE) < ms then
    call('PEXPIRE', QUEUE, ms)
    call('PEXPIRE', WAITING, ms)
    call('PEXPIRE', DEADLINES, ms)
  end
end

-- Whether it was the last wait of its agent here.
local function pull(waiter)
  -- A member that is not there was not counted either.
  if call('ZREM', QUEUE, waiter.member) == 1 then queued = queued - 1 end
  call('HDEL', WAITING, waiter.who)
  call('ZREM', DEADLINES, waiter.who)
  first_deadline = nil
  if call('HINCRBY', WAITING, 'a:' .. waiter.agent_id, -1) > 0 then return false end
  call('HDEL', WAITING, 'a:' .. waiter.agent_id)
  return true
end

-- The part of a waiter's text that does not change.
local function card_of(member) return member:match('^{(.*),"requested_at":"') end

local function leave(waiter, why)
  local word = first_word(why)
  if waiter.remember or word == 'cancelled' or word == 'deadlock' or word == 'superseded' then
    remember(waiter.request, why)
  end
  local last_wait = pull(waiter) and 1 or 0
  happened('left', waiter.agent_id, waiter.holder_id, last_wait, waiter.request, word)
  tell('left:' .. waiter.agent_id)
end

-- Someone holds the lock from now on, whose wait is over, if there was one. A given token stays: what comes back is as it was.
local function grant(other, hold, promoted)
  if not hold.token then
    local fenced = last()
    fenced.token = min(max(fenced.token + 1, now), 9007199254740991)
    fenced.changed = true
    hold.token = digits(fenced.token)
  end
  local last_wait = 0
  if queued > 0 then
    local waiter = promoted or wait_of(other)
    if waiter and pull(waiter) then last_wait = 1 end
  end
  local held = hold_of(other)
  if not held then count = count + 1 elseif held.mode == 's' then unlisted[#unlisted + 1] = shown(held) end
  if hold.mode == 's' then listed[#listed + 1] = shown(hold) end
  holds[other], mode, hold.is_new = hold, hold.mode, true
  expires_by(hold.expires)
  revive(hold.requests)
  touch(other)
  happened('granted', hold.agent, hold.holder, last_wait, hold.token, hold.requests)
  tell((promoted and 'promoted:' or 'acquired:') .. hold.agent)
end

local GIVEN_BACK = { unclaimed = true, cancelled = true, hung_up = true, refused = true, timed_out = true }

-- Whether an agent holds this lock in no other way. Among many sharers nobody looks: a stale index does no harm.
local function is_last_hold(of)
  if count == 0 then return true end
  if count > SEEN_SHARERS then return false end
  read_all()
  for _, hold in pairs(holds) do
    if hold and hold.agent == of then return false end
  end
  return true
end

-- Ends a hold. An upgrade that was not claimed falls back to the shared hold it came from.
local function free(other, hold, why)
  local before, word = befores[other], first_word(why)
  holds[other], befores[other] = false, false
  count = count - 1
  if count == 0 then next_expiry, mode = nil, nil end
  touch(other)
  if hold.mode == 's' then unlisted[#unlisted + 1] = shown(hold) end
  happened('freed', hold.agent, hold.holder, is_last_hold(hold.agent) and 1 or 0, hold.token, word)
  tell((word == 'expired' or word == 'unclaimed') and 'expired' or 'released:' .. hold.agent)
  if queued > 0 then
    local waiter = wait_of(other)
    -- Whoever waited to upgrade is a waiter like others now, from when it asked.
    if waiter and waiter.upgrade then
      pull(waiter)
      waiter.card, waiter.upgrade = card_of(waiter.member), nil
      push(waiter)
      happened('back', waiter.agent_id, waiter.holder_id)
    end
  end
  if hold.remember then each_request(hold.requests, function(request) remember(request, why) end) end
  if before then
    if GIVEN_BACK[word] and before.expires > now then
      grant(other, before)
    elseif before.remember then
      each_request(before.requests, function(request) remember(request, why) end)
    end
  end
end

local function end_if_over(other, hold)
  if hold.expires <= now then free(other, hold, hold.claimed and 'expired' or 'unclaimed') end
end

-- Those of the holds that fit, by holder, as `domain` has them.
local function each_by_holder(fits, most)
  read_all()
  local found = {}
  for other, hold in pairs(holds) do
    if hold and fits(hold) then found[#found + 1] = other end
  end
  table.sort(found, function(a, b)
    a, b = holds[a], holds[b]
    if a.agent ~= b.agent then return a.agent < b.agent end
    return (a.holder == '' and a.agent or a.holder) < (b.holder == '' and b.agent or b.holder)
  end)
  for i = #found, most + 1, -1 do found[i] = nil end
  return found
end

local function earliest_deadline()
  if not first_deadline then
    local first = call('ZRANGE', DEADLINES, 0, 0, 'WITHSCORES')
    first_deadline = tonumber(first[2] or now)
  end
  return first_deadline
end

local function reap()
  if next_expiry and next_expiry <= now then
    local over = each_by_holder(function(hold) return hold.expires <= now end, BATCH)
    for _, other in ipairs(over) do end_if_over(other, holds[other]) end
    next_expiry = nil
    for _, hold in pairs(holds) do
      if hold then expires_by(hold.expires) end
    end
    was_changed = true
  end
  if queued > 0 and earliest_deadline() <= now then
    for _, other in ipairs(call('ZRANGEBYSCORE', DEADLINES, '-inf', digits(now), 'LIMIT', 0, BATCH)) do
      local waiter = wait_of(other)
      if waiter then leave(waiter, 'timed_out') else call('ZREM', DEADLINES, other) end
    end
    first_deadline = nil
  end
end

local function admits(wanted, other)
  if wanted == 'x' then return count == 0 or (count == 1 and hold_of(other) ~= nil) end
  return (count == 0 or mode == 's' or hold_of(other) ~= nil) and count < MAX_HOLDERS
end

local function is_silent(heard) return tonumber(heard) + SILENCE_MS * 1000 <= now end

local function is_abandoned(waiter)
  if not waiter.served_by then return false end
  local heard = call('HGET', FENCE, 'm:' .. waiter.served_by)
  return not heard or is_silent(heard)
end

local function mark(server)
  if last().kept + RENEW_FENCE_MS * 1000 > now then
    call('HSET', FENCE, 'm:' .. server, digits(now))
  else
    call('HSET', FENCE, 'm:' .. server, digits(now), 'name', name)
    fence_touched = true
  end
end

local function claim_ms(served) return served and SERVED_CLAIM_MS or TICKET_CLAIM_MS end

-- Grants to whoever is first and may hold, and skips those whom nobody serves any more.
local function promote()
  -- Who holds it alone and waits for it does not exist: nobody can be next.
  if queued == 0 or mode == 'x' then return end
  for _ = 1, BATCH do
    local head = call('ZRANGE', QUEUE, 0, 0, 'WITHSCORES')
    if not head[1] then return end
    -- A card begins with the mode and the digest of the holder: most looks end here, without reading the rest.
    local wanted = sub(head[1], 10, 10) == 'e' and 'x' or 's'
    if not admits(wanted, wanted == 'x' and sub(head[1], 28, 59) or sub(head[1], 25, 56)) then return end
    local waiter = read_waiter(head[1], head[2])
    if waiter.deadline <= now then
      leave(waiter, 'timed_out')
    elseif is_abandoned(waiter) then
      leave(waiter, 'server_silent')
    else
      local held = hold_of(waiter.who)
      if held then befores[waiter.who] = held end
      grant(waiter.who, {
        mode = wanted, acquired = now, expires = now + claim_ms(waiter.served_by) * 1000, claimed = false,
        remember = waiter.remember, priority = waiter.priority, beats = 0, requests = waiter.request,
        agent = waiter.agent_id, holder = waiter.holder_id == waiter.agent_id and '' or waiter.holder_id, purpose = waiter.purpose,
      }, waiter)
    end
  end
end

-- Waiters of servers that were silent for too long leave, at any place. A server without waiters here is forgotten.
local function reap_silent()
  local fields = call('HGETALL', FENCE)
  for i = 1, #fields, 2 do
    local is_mark = sub(fields[i], 1, 2) == 'm:'
    if is_mark and not is_silent(fields[i + 1]) then
      local at = fields[i + 1] + SILENCE_MS * 1000
      silent_by = min(silent_by or at, at)
    elseif is_mark then
      local server, left = sub(fields[i], 3), 0
      local served = ',"served_by":' .. cjson.encode(server)
      for _, member in ipairs(queued > 0 and call('ZRANGE', QUEUE, 0, -1) or {}) do
        if member:find(served, 1, true) then
          if left == BATCH then left = left + 1 break end
          leave(read_waiter(member), 'server_silent')
          left = left + 1
        end
      end
      if left <= BATCH then call('HDEL', FENCE, fields[i]) else silent_by = now end
    end
  end
end
