-- Waiters, grants and expiry: ends leases and waits that are over, and grants the lock to the next waiters. The work of
-- one step is bounded by BATCH_SIZE.

-- Upgrading holders go ahead of all other waiters: 2^41 is subtracted from their score, which a double represents
-- exactly.
local UPGRADE_OFFSET = 2199023255552

local function read_waiter(member, score)
  local waiter = cjson.decode(member)
  waiter.member, waiter.deadline = member, tonumber(waiter.deadline)
  score = tonumber(score or call('ZSCORE', QUEUE, member))
  waiter.score = waiter.upgrade and score + UPGRADE_OFFSET or score
  return waiter
end

local function waiter_of(digest)
  if queue_length == 0 then return nil end
  local member = call('HGET', WAITING, digest)
  return member and read_waiter(member) or nil
end

-- `fixed_fields` is the part of a waiter that never changes, as JSON without braces; deadline and server may change.
local function enqueue(waiter)
  local deadline = digits(waiter.deadline)
  local member = '{' .. waiter.fixed_fields .. ',"requested_at":"' .. waiter.requested_at .. '","deadline":"' .. deadline .. '"'
    .. (waiter.served_by and ',"served_by":' .. cjson.encode(waiter.served_by) or '') .. (waiter.upgrade and ',"upgrade":true}' or '}')
  waiter.member = member
  call('ZADD', QUEUE, format('%.17g', waiter.upgrade and waiter.score - UPGRADE_OFFSET or waiter.score), member)
  call('HSET', WAITING, waiter.who, member)
  call('HINCRBY', WAITING, 'a:' .. waiter.agent_id, 1)
  call('ZADD', DEADLINES, deadline, waiter.who)
  queue_length = queue_length + 1
  first_deadline = first_deadline and min(first_deadline, waiter.deadline)
  -- The queue must outlive the last deadline, so that the sweep can still time out the waiter and notify its server.
  local ms = max(MIN_QUEUE_TTL_MS, floor((waiter.deadline - now) / 1000) + 5000)
  if call('PTTL', QUEUE) < ms then
    call('PEXPIRE', QUEUE, ms)
    call('PEXPIRE', WAITING, ms)
    call('PEXPIRE', DEADLINES, ms)
  end
end

-- Returns whether this was the last wait of its agent for this lock.
local function dequeue(waiter)
  -- A missing member was not counted either.
  if call('ZREM', QUEUE, waiter.member) == 1 then queue_length = queue_length - 1 end
  call('ZREM', DEADLINES, waiter.who)
  first_deadline = nil
  local count = 'a:' .. waiter.agent_id
  if call('HINCRBY', WAITING, count, -1) > 0 then
    call('HDEL', WAITING, waiter.who)
    return false
  end
  call('HDEL', WAITING, waiter.who, count)
  return true
end

local function fixed_fields_of(member) return match(member, '^{(.*),"requested_at":"') end

local function remove_waiter(waiter, reason)
  local code = reason_code(reason)
  if waiter.remember or code == 'cancelled' or code == 'deadlock' or code == 'superseded' then
    add_tombstone(waiter.request, reason)
  end
  record_change('wait_ended', waiter.who, waiter.agent_id, waiter.holder_id, dequeue(waiter), ' ' .. waiter.request .. ' ' .. code)
  publish('left:' .. waiter.agent_id)
end

-- Grants the lock and ends the holder's wait, if there is one. A hold that already has a token is restored unchanged.
local function grant(hold, promoted)
  local digest = hold.digest
  if not hold.token then hold.token = next_token() end
  local is_last_wait = false
  if queue_length > 0 then
    local waiter = promoted or waiter_of(digest)
    is_last_wait = waiter and dequeue(waiter)
  end
  local held = hold_of(digest)
  if not held then holder_count = holder_count + 1 elseif held.mode == 's' then removed_sharers = note_sharer(removed_sharers, held) end
  if hold.mode == 's' then added_sharers = note_sharer(added_sharers, hold) end
  holds[digest], mode, hold.is_new = hold, hold.mode, true
  lower_next_expiry(hold.expires)
  remove_tombstones(hold.requests)
  mark_dirty(hold)
  record_change('granted', digest, hold.agent, hold.holder, is_last_wait, ' ' .. hold.token .. ' ' .. hold.requests)
  publish((promoted and 'promoted:' or 'acquired:') .. hold.agent)
end

local RESTORES_SHARED = { unclaimed = true, cancelled = true, hung_up = true, refused = true, timed_out = true }

-- Returns whether the agent has no other hold of this lock. Above MAX_SCANNED_SHARERS it answers no without scanning; a
-- stale index entry is harmless.
local function is_last_hold_of(agent_id)
  if holder_count == 0 then return true end
  if holder_count > MAX_SCANNED_SHARERS then return false end
  read_all()
  for _, hold in pairs(holds) do
    if hold and hold.agent == agent_id then return false end
  end
  return true
end

-- Ends a hold. An unclaimed upgrade falls back to the shared hold it replaced.
local function end_hold(hold, reason)
  local digest, previous, code = hold.digest, hold.previous, reason_code(reason)
  mark_dirty(hold)
  holds[digest] = false
  holder_count = holder_count - 1
  if holder_count == 0 then next_expiry, mode = nil, nil end
  if hold.mode == 's' then removed_sharers = note_sharer(removed_sharers, hold) end
  record_change('hold_ended', digest, hold.agent, hold.holder, is_last_hold_of(hold.agent), ' ' .. hold.token .. ' ' .. code)
  publish((code == 'expired' or code == 'unclaimed') and 'expired' or 'released:' .. hold.agent)
  if queue_length > 0 then
    local waiter = waiter_of(digest)
    -- A pending upgrade without its shared hold becomes an ordinary wait, at its original time of arrival.
    if waiter and waiter.upgrade then
      dequeue(waiter)
      waiter.fixed_fields, waiter.upgrade = fixed_fields_of(waiter.member), nil
      enqueue(waiter)
      record_change('upgrade_lost', digest, waiter.agent_id, waiter.holder_id)
    end
  end
  if hold.leave_tombstone == '1' then add_tombstones(hold.requests, reason) end
  if previous then
    if RESTORES_SHARED[code] and previous.expires > now then
      previous.digest = digest
      grant(previous)
    elseif previous.leave_tombstone == '1' then
      add_tombstones(previous.requests, reason)
    end
  end
end

local function end_if_expired(hold)
  if hold.expires <= now then end_hold(hold, hold.claimed == '1' and 'expired' or 'unclaimed') end
end

-- Returns the matching holds, ordered by holder as in the `domain` crate.
local function sorted_holds(matches, limit)
  read_all()
  local found = {}
  for _, hold in pairs(holds) do
    if hold and matches(hold) then found[#found + 1] = hold end
  end
  table.sort(found, function(a, b)
    if a.agent ~= b.agent then return a.agent < b.agent end
    return (a.holder == '' and a.agent or a.holder) < (b.holder == '' and b.agent or b.holder)
  end)
  for i = #found, limit + 1, -1 do found[i] = nil end
  return found
end

local function earliest_deadline()
  if not first_deadline then
    local first = call('ZRANGE', DEADLINES, 0, 0, 'WITHSCORES')
    first_deadline = tonumber(first[2] or now)
  end
  return first_deadline
end

local function expire_due()
  if next_expiry and next_expiry <= now then
    local expired = sorted_holds(function(hold) return hold.expires <= now end, BATCH_SIZE)
    for _, hold in ipairs(expired) do end_if_expired(hold) end
    next_expiry = nil
    for _, hold in pairs(holds) do
      if hold then lower_next_expiry(hold.expires) end
    end
    is_dirty = true
  end
  if queue_length > 0 and earliest_deadline() <= now then
    for _, digest in ipairs(call('ZRANGEBYSCORE', DEADLINES, '-inf', now_text, 'LIMIT', 0, BATCH_SIZE)) do
      local waiter = waiter_of(digest)
      if waiter then remove_waiter(waiter, 'timed_out') else call('ZREM', DEADLINES, digest) end
    end
    first_deadline = nil
  end
end

local function can_hold(requested, digest)
  if requested == 'x' then return holder_count == 0 or (holder_count == 1 and hold_of(digest) ~= nil) end
  return (holder_count == 0 or mode == 's' or hold_of(digest) ~= nil) and holder_count < MAX_HOLDERS
end

local function is_silent(last_seen) return tonumber(last_seen) + SERVER_TIMEOUT_MS * 1000 <= now end

local function is_abandoned(waiter)
  if not waiter.served_by then return false end
  local last_seen = call('HGET', FENCE, 'm:' .. waiter.served_by)
  return not last_seen or is_silent(last_seen)
end

local function record_server_heartbeat(server) write_fence('m:' .. server, now_text) end

local function claim_timeout_ms(is_served) return is_served and LONG_POLL_CLAIM_TIMEOUT_MS or TICKET_CLAIM_TIMEOUT_MS end

-- Grants the lock to waiters from the head of the queue while they can hold it, and drops waiters whose server timed
-- out.
local function promote()
  -- While the lock is held exclusively nobody can be promoted: an exclusive holder never waits for the same lock.
  if queue_length == 0 or mode == 'x' then return end
  for _ = 1, BATCH_SIZE do
    local head = call('ZRANGE', QUEUE, 0, 0, 'WITHSCORES')
    if not head[1] then return end
    -- A member starts with the mode and the holder digest. Most calls stop here without decoding the JSON.
    local requested = sub(head[1], 10, 10) == 'e' and 'x' or 's'
    if not can_hold(requested, requested == 'x' and sub(head[1], 28, 59) or sub(head[1], 25, 56)) then return end
    local waiter = read_waiter(head[1], head[2])
    if waiter.deadline <= now then
      remove_waiter(waiter, 'timed_out')
    elseif is_abandoned(waiter) then
      remove_waiter(waiter, 'server_silent')
    else
      grant({
        digest = waiter.who, mode = requested, acquired = now_text, expires = now + claim_timeout_ms(waiter.served_by) * 1000, claimed = '0',
        leave_tombstone = waiter.remember and '1' or '0', priority = waiter.priority, heartbeats = 0, requests = waiter.request,
        agent = waiter.agent_id, holder = waiter.holder_id == waiter.agent_id and '' or waiter.holder_id, purpose = waiter.purpose,
        previous = hold_of(waiter.who),
      }, waiter)
    end
  end
end

-- Removes the waiters of servers that timed out, at any position, and forgets servers without waiters.
local function expire_silent_servers()
  local fields = call('HGETALL', FENCE)
  for i = 1, #fields, 2 do
    local is_heartbeat = sub(fields[i], 1, 2) == 'm:'
    if is_heartbeat and not is_silent(fields[i + 1]) then
      local timeout = fields[i + 1] + SERVER_TIMEOUT_MS * 1000
      next_server_timeout = min(next_server_timeout or timeout, timeout)
    elseif is_heartbeat then
      local removed = 0
      local of_server = ',"served_by":' .. cjson.encode(sub(fields[i], 3))
      for _, member in ipairs(queue_length > 0 and call('ZRANGE', QUEUE, 0, -1) or {}) do
        if member:find(of_server, 1, true) then
          if removed == BATCH_SIZE then removed = removed + 1 break end
          remove_waiter(read_waiter(member), 'server_silent')
          removed = removed + 1
        end
      end
      if removed <= BATCH_SIZE then call('HDEL', FENCE, fields[i]) else next_server_timeout = now end
    end
  end
end
