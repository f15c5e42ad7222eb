-- Waiters, grants, promotions and expiry. The work of one step is bounded by BATCH_SIZE.

-- Upgrading holders go ahead of all other waiters: 2^41, which a double represents exactly, is subtracted from their score.
local UPGRADE_OFFSET = 2199023255552

local function read_waiter(member, score)
  local waiter = cjson.decode(member)
  score = tonumber(score or call('ZSCORE', QUEUE, member))
  waiter.member, waiter.deadline, waiter.mode = member, tonumber(waiter.deadline), waiter.mode == 'exclusive' and 'x' or 's'
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
  call('HINCRBY', WAITING, 'a:' .. waiter.agent_id, '1')
  call('ZADD', DEADLINES, deadline, waiter.who)
  -- Without waiters the bound is unknown because there is none.
  if queue_length == 0 or next_deadline then next_deadline = min(next_deadline or waiter.deadline, waiter.deadline) end
  queue_length = queue_length + 1
  -- The queue must outlive the last deadline, so that the sweep can still time out the waiter and notify its server.
  local ms = floor((waiter.deadline - now) / 1000) + 5000
  if call('PTTL', QUEUE) < ms then
    local text = digits(max(MIN_QUEUE_TTL_MS, ms))
    call('PEXPIRE', QUEUE, text)
    call('PEXPIRE', WAITING, text)
    call('PEXPIRE', DEADLINES, text)
  end
end

-- Returns whether this was the last wait of its agent for this lock.
local function dequeue(waiter)
  -- A missing member was not counted either.
  if waiter.is_popped or call('ZREM', QUEUE, waiter.member) == 1 then queue_length = queue_length - 1 end
  call('ZREM', DEADLINES, waiter.who)
  local count = 'a:' .. waiter.agent_id
  if call('HINCRBY', WAITING, count, '-1') > 0 then
    call('HDEL', WAITING, waiter.who)
    return false
  end
  call('HDEL', WAITING, waiter.who, count)
  return true
end

-- Writes a waiter again whose deadline, server or kind changed.
local function requeue(waiter)
  dequeue(waiter)
  waiter.fixed_fields = match(waiter.member, '^{(.*),"requested_at":"')
  enqueue(waiter)
end

local function remove_waiter(waiter, reason)
  local code = reason_code(reason)
  if waiter.remember or code == 'cancelled' or code == 'deadlock' or code == 'superseded' then
    add_tombstone(waiter.request, reason)
  end
  record_change('wait_ended', waiter.who, waiter.agent_id, waiter.holder_id, dequeue(waiter), ' ' .. waiter.request .. ' ' .. code, waiter)
  publish('left:' .. waiter.agent_id)
end

-- Grants the lock and ends the holder's wait, if there is one. A hold that already has a token is restored unchanged.
local function grant(hold, promoted)
  local digest = hold.digest
  if not hold.token then hold.token = next_token() end
  local waiter = promoted or waiter_of(digest)
  local is_last_wait = waiter and dequeue(waiter)
  -- Who upgrades a hold knows of it.
  if hold.previous and hold.previous.claimed == '2' then hold.previous.claimed, hold.previous.numbers = '1', nil end
  local held = hold_of(digest)
  if not held then holder_count = holder_count + 1 elseif held.mode == 's' then removed_sharers = note_sharer(removed_sharers, held) end
  if hold.mode == 's' then added_sharers = note_sharer(added_sharers, hold) end
  holds[digest], mode, hold.is_new = hold, hold.mode, true
  lower_next_expiry(hold.expires)
  remove_tombstones(hold.requests)
  mark_dirty(hold)
  record_change(promoted and 'promoted' or 'granted', digest, hold.agent, hold.holder, is_last_wait, ' ' .. encode_numbers(hold) .. ' ' .. hold.requests, waiter)
  -- A promotion that needs no claim is not worth asking for.
  publish((promoted and hold.claimed == '0' and 'promoted:' or 'acquired:') .. hold.agent)
end

local RESTORES_SHARED = { unclaimed = true, cancelled = true, hung_up = true, refused = true, timed_out = true }

-- Whether the agent has no other hold of this lock. Above MAX_SCANNED_SHARERS it says no: a stale index entry is harmless.
local function is_last_hold_of(agent_id)
  if holder_count == 0 or holder_count > MAX_SCANNED_SHARERS then return holder_count == 0 end
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
  local waiter = hold.mode == 's' and waiter_of(digest)
  -- A pending upgrade without its shared hold becomes an ordinary wait, at its original time of arrival.
  if waiter and waiter.upgrade then
    waiter.upgrade = nil
    requeue(waiter)
    record_change('upgrade_lost', digest, waiter.agent_id, waiter.holder_id)
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
  if hold.expires <= now then end_hold(hold, hold.claimed == '0' and 'unclaimed' or 'expired') end
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
  next_deadline = next_deadline or tonumber(call('ZRANGE', DEADLINES, '0', '0', 'WITHSCORES')[2] or now)
  return next_deadline
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
    next_deadline = nil
  end
end

local function can_hold(requested, digest)
  if requested == 'x' then return holder_count == 0 or (holder_count == 1 and hold_of(digest) ~= nil) end
  return (holder_count == 0 or mode == 's' or hold_of(digest) ~= nil) and holder_count < MAX_HOLDERS
end

local function is_silent(last_seen) return tonumber(last_seen) + SERVER_TIMEOUT_MS * 1000 <= now end

local function is_abandoned(waiter)
  local server = waiter.served_by
  if not server or server == answering or server == alive_server then return false end
  local last_seen = call('HGET', FENCE, 'm:' .. server)
  return not last_seen or is_silent(last_seen)
end

local function record_server_heartbeat(server)
  alive_server = server
  set_fence('m:' .. server, now_text)
end

local function claim_timeout_ms(is_served) return is_served and LONG_POLL_CLAIM_TIMEOUT_MS or TICKET_CLAIM_TIMEOUT_MS end

-- Grants the lock to the first waiters while they can hold it, and drops waiters whose server timed out.
local function promote()
  for _ = 1, BATCH_SIZE do
    -- While the lock is held exclusively nobody can be promoted: an exclusive holder never waits for the same lock.
    if queue_length == 0 or mode == 'x' then return end
    -- Everybody can hold a free lock, so that its first waiter leaves the queue in any case.
    local is_free = holder_count == 0
    local head = is_free and call('ZPOPMIN', QUEUE) or call('ZRANGE', QUEUE, '0', '0', 'WITHSCORES')
    if not head[1] then return end
    local waiter = read_waiter(head[1], head[2])
    if not is_free and not can_hold(waiter.mode, waiter.who) then return end
    waiter.is_popped = is_free
    if waiter.deadline <= now then
      remove_waiter(waiter, 'timed_out')
    elseif is_abandoned(waiter) then
      remove_waiter(waiter, 'server_silent')
    else
      local previous = hold_of(waiter.who)
      -- The server that sent the command answers this waiter from the reply, so that its lease starts now. The caller of an
      -- upgrade knows the token of its shared hold, which stays until the claim.
      local lease = answering and waiter.served_by == answering and not previous and waiter.lease_ms
      grant({
        digest = waiter.who, mode = waiter.mode, acquired = now_text, expires = now + (lease or claim_timeout_ms(waiter.served_by)) * 1000,
        claimed = lease and '2' or '0', leave_tombstone = waiter.remember and '1' or '0', priority = waiter.priority, heartbeats = 0,
        requests = waiter.request, agent = waiter.agent_id, holder = waiter.holder_id == waiter.agent_id and '' or waiter.holder_id,
        purpose = waiter.purpose, previous = previous,
      }, waiter)
    end
  end
end

-- Removes the waiters of servers that timed out, at any position, and forgets servers without waiters.
local function expire_silent_servers()
  local fields = call('HGETALL', FENCE)
  for i = 1, #fields, 2 do
    local server, removed = match(fields[i], '^m:(.*)$'), 0
    if server and not is_silent(fields[i + 1]) then
      local timeout = fields[i + 1] + SERVER_TIMEOUT_MS * 1000
      next_server_timeout = min(next_server_timeout or timeout, timeout)
    elseif server then
      local of_server = ',"served_by":' .. cjson.encode(server)
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
