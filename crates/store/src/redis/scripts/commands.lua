-- The commands, each as `domain` has it, and the one way out: everything is written, told and answered at the end.

local function first_request(hold) return hold.requests:match('^%x+') end
local function has_request(hold, request) return hold and hold.requests:find(request, 1, true) ~= nil end

-- The hold, or the shared one under an upgrade that is not claimed yet, in which a request has a part.
local function hold_of_request(request)
  if has_request(hold_of(who), request) then return holds[who] end
  if has_request(befores[who], request) then return befores[who] end
end

local function standing(hold)
  if hold then return { 'held', write_hold(hold) } end
  return { 'over', 'expired' }
end

local function kept()
  local hold = hold_of(who)
  return hold and { 'kept', write_hold(hold) } or { 'lost' }
end

local function claim_lease(hold, expires)
  hold.claimed, hold.expires = true, expires
  befores[who] = false
  expires_by(expires)
  touch(who)
end

local function position(waiter) return call('ZRANK', QUEUE, waiter.member) + 1 end

local function read_wish()
  wish = {
    request = ARGV[8], mode = ARGV[9], ttl = tonumber(ARGV[10]), claimed = ARGV[11] == '1', remember = ARGV[12] == '1',
    priority = ARGV[13], purpose = ARGV[14], wait = tonumber(ARGV[15]), served_by = ARGV[16] ~= '' and ARGV[16] or nil,
    card = ARGV[17],
  }
end

local function hold_now(before)
  local lease = wish.ttl
  if not wish.claimed then lease = claim_ms(not wish.wait or wish.served_by) end
  befores[who] = not wish.claimed and before or false
  grant(who, {
    mode = wish.mode, acquired = now, expires = now + lease * 1000, claimed = wish.claimed, remember = wish.remember,
    priority = wish.priority, beats = 0, requests = wish.request, agent = agent, holder = holder_id, purpose = wish.purpose,
  })
  return standing(holds[who])
end

-- The holder holds it already, at least as strongly: the same grant, lasting at least as long as asked.
local function join(hold)
  local _, commas = hold.requests:gsub(',', '')
  if commas + 1 >= MAX_REQUESTS then
    local oldest = first_request(hold)
    hold.requests = sub(hold.requests, #oldest + 2)
    remember(oldest, 'superseded')
  end
  hold.requests = hold.requests .. ',' .. wish.request
  hold.is_new = true
  hold.remember = hold.remember or wish.remember
  touch(who)
  local expires = now + wish.ttl * 1000
  if wish.claimed and (not hold.claimed or expires > hold.expires) then
    claim_lease(hold, max(expires, hold.expires))
  end
  return standing(hold)
end

-- It asks again: perhaps through another server, perhaps ready to wait longer. Its place stays the same.
local function still_waiting(waiter)
  if wish.wait then
    local wished = now + wish.wait * 1000
    local longer = wished > waiter.deadline + LONGER_MS * 1000
    if longer or waiter.served_by ~= wish.served_by then
      pull(waiter)
      waiter.card, waiter.served_by = card_of(waiter.member), wish.served_by
      if longer then waiter.deadline = wished end
      push(waiter)
      if longer and WAITFOR then call('PEXPIRE', WAITFOR, max(QUEUE_MS, wish.wait + 5000)) end
      if wish.served_by then mark(wish.served_by) end
    end
  end
  return { 'waiting', position(waiter), digits(waiter.deadline) }
end

local function stand(score)
  if wish.served_by then mark(wish.served_by) end
  local waiter = {
    who = who, card = wish.card, requested_at = iso(now), deadline = now + wish.wait * 1000, served_by = wish.served_by,
    upgrade = hold_of(who) ~= nil or nil, score = score, agent_id = agent,
  }
  if any_ended() then call('HDEL', ENDED, wish.request) end
  push(waiter)
  happened('queued', agent, holder_id)
  tell('queued:' .. agent)
  return { 'waiting', position(waiter), digits(waiter.deadline) }
end

-- A holder waits once: its newer request takes the place of the older one, at the end if it wants another mode.
local function take_place_of(older)
  leave(older, 'superseded')
  local same = (older.mode == 'exclusive' and 'x' or 's') == wish.mode
  return stand(same and older.score or next_score())
end

local function crowd()
  local text = call('HGET', FENCE, 'crowd')
  if not text then return 0, 0, 0 end
  local since, many, expires = text:match('(%d+) (%d+) (%d+)')
  return tonumber(since), tonumber(many), tonumber(expires)
end

local function turn_away(since, many, expires)
  if many == 0 or since + CROWDED_WITHIN_MS * 1000 <= now then since, many = now, 1 else many = many + 1 end
  if many >= CROWDED_AFTER then many, expires = 0, now + CROWDED_FOR_MS * 1000 end
  call('HSET', FENCE, 'crowd', concat({ digits(since), many, digits(expires) }, ' '))
  fence_touched = true
  happened('full')
  return { 'full', queued }
end

local function refuse()
  local answer = { 'refused', queued }
  for _, other in ipairs(each_by_holder(function() return true end, SHOWN_HOLDERS + 1)) do
    if other ~= who and #answer < SHOWN_HOLDERS + 2 then answer[#answer + 1] = write_hold(holds[other]) end
  end
  return answer
end

local function acquire()
  read_wish()
  local ended = end_of(wish.request)
  if ended then return { 'over', ended } end
  local hold = hold_of(who)
  if hold then
    local own = hold_of_request(wish.request)
    if own then
      -- Its lease begins with the answer, if that is held open and nothing else is waited for.
      if wish.claimed and wish.served_by and own == hold and not hold.claimed then
        claim_lease(hold, now + wish.ttl * 1000)
        happened('claimed', agent, holder_id)
      end
      return standing(own)
    end
    if hold.mode == 'x' or wish.mode == 's' then return join(hold) end
    if admits(wish.mode, who) then return hold_now(hold) end
  end
  local waiter = wait_of(who)
  if waiter then
    if waiter.request == wish.request then return still_waiting(waiter) end
    if wish.wait then return take_place_of(waiter) end
  end
  if queued == 0 and admits(wish.mode, who) then return hold_now(nil) end
  local since, many, expires = crowd()
  if expires > now then return { 'contention', digits(expires) } end
  if not wish.wait then return refuse() end
  if queued >= MAX_QUEUE then return turn_away(since, many, expires) end
  return stand(next_score())
end

local function won_by(request)
  local hold = hold_of(who)
  return has_request(hold, request) and hold or nil
end

-- The hold by a token: until an upgrade is claimed, its holder only knows the token that it had before.
local function held_with(token)
  local hold = hold_of(who)
  if not hold then return nil end
  if hold.token == token then return hold end
  local before = befores[who]
  return before and before.expires > now and before.token == token and before or nil
end

local function claim()
  local request, hold = ARGV[8], won_by(ARGV[8])
  if not hold then return { 'lost' } end
  local expires = now + ARGV[9] * 1000
  -- A repeated claim finds its lease running; a request that joined an older grant may need it for longer.
  local runs = hold.claimed and (first_request(hold) == request or expires <= hold.expires)
  if not runs then
    claim_lease(hold, expires)
    happened('claimed', agent, holder_id)
  end
  return kept()
end

local function keep()
  local hold = won_by(ARGV[8])
  if not hold then return { 'lost' } end
  local expires = now + ARGV[9] * 1000
  if expires > hold.expires then
    hold.expires = expires
    touch(who)
  end
  return kept()
end

local function extend()
  local hold = held_with(ARGV[8])
  if not hold then return { 'lost' } end
  hold.expires = max(now + ARGV[9] * 1000, hold.expires)
  hold.beats = hold.beats + 1
  touch(who)
  return { 'kept', write_hold(hold) }
end

local function release()
  if not held_with(ARGV[8]) then return { 'lost' } end
  free(who, holds[who], 'released')
  return { 'done' }
end

local function downgrade()
  local hold = held_with(ARGV[8])
  if not hold then return { 'lost' } end
  local answer = hold
  if hold.mode == 'x' then
    hold.mode, mode, befores[who] = 's', 's', false
    listed[#listed + 1] = shown(hold)
    touch(who)
  end
  return { 'kept', write_hold(answer) }
end

local function verify()
  read_all()
  for _, all in ipairs({ holds, befores }) do
    for _, hold in pairs(all) do
      if hold and hold.token == ARGV[8] and hold.expires > now then return { 'valid', write_hold(hold) } end
    end
  end
  return { 'lost' }
end

local function inquire()
  local ended = end_of(ARGV[8])
  if ended then return { 'over', ended } end
  local hold = hold_of_request(ARGV[8])
  if hold then return standing(hold) end
  local waiter = wait_of(who)
  if waiter and waiter.request == ARGV[8] then return { 'waiting', position(waiter), digits(waiter.deadline) } end
  return { 'lost' }
end

local function cancel()
  local request, why, begun = ARGV[8], ARGV[9], ARGV[10] == '1'
  local waiter = wait_of(who)
  if waiter and waiter.request ~= request then waiter = nil end
  local hold = not waiter and won_by(request)
  if waiter then
    leave(waiter, why)
  elseif hold then
    if hold.requests:find(',', 1, true) then
      hold.requests = (',' .. hold.requests):gsub(',' .. request, '', 1):gsub('^,', '')
      hold.is_new = true
      touch(who)
    elseif not hold.claimed or begun or why == 'cancelled' then
      free(who, hold, why)
    end
  end
  if not end_of(request) then remember(request, why) end
  return { 'done' }
end

-- The caller hung up on one server, and may be served by another by now.
local function hang_up()
  local waiter = wait_of(who)
  if waiter and waiter.request == ARGV[8] and waiter.served_by ~= ARGV[11] then return { 'done' } end
  return cancel()
end

local function break_holds()
  local answer = { 'broken' }
  for _, other in ipairs(each_by_holder(function() return true end, count)) do
    answer[#answer + 1] = write_hold(holds[other])
    free(other, holds[other], 'broken')
  end
  return answer
end

local function abort()
  local request, why = ARGV[8], ARGV[9]
  local waiter = wait_of(who)
  if request ~= '' and (not waiter or waiter.request ~= request) then return { 'lost' } end
  if waiter then leave(waiter, why) end
  local hold = hold_of(who)
  if hold then
    free(who, hold, why)
    if not hold.remember then each_request(hold.requests, function(ended) remember(ended, why) end) end
  end
  return { 'done' }
end

local function nothing() return { 'done' } end

-- What the fence keeps it keeps for a day after its last change; its life is prolonged by the hour, not by the grant.
local function write_fence()
  if fence and fence.changed then
    if fence.kept + RENEW_FENCE_MS * 1000 > now then
      if fence.score == 0 then return call('HSET', FENCE, 'token', digits(fence.token)) end
      return call('HSET', FENCE, 'token', digits(fence.token), 'score', format('%.17g', fence.score))
    end
    fence_touched = true
    call('HSET', FENCE, 'token', digits(fence.token), 'score', format('%.17g', fence.score), 'name', name)
  end
  if fence_touched then
    call('HSET', FENCE, 'kept', digits(now))
    call('PEXPIRE', FENCE, FENCE_MS + RENEW_FENCE_MS)
  end
end

-- A lock that nobody held before is written in one go.
local function write_first(other, hold)
  next_expiry = hold.expires
  local is_exclusive, expires, before = hold.mode == 'x', iso(hold.expires), befores[other]
  call('HSET', LOCK, 'n', 1, 'mode', is_exclusive and 'exclusive' or 'shared', 'next', digits(hold.expires), 'queue_length', queued,
    'acquired_at', iso(hold.acquired), 'expires_at', expires, 'purpose', hold.purpose,
    is_task and 'holder_agent_id' or is_exclusive and 'exclusive_holder' or 'holders',
    (is_task or is_exclusive) and hold.agent or '[' .. shown(hold) .. ']',
    'h:' .. other, numbers(hold), 'r:' .. other, hold.requests, 'a:' .. other, names(hold))
  if is_task then call('HSET', LOCK, 'heartbeat_count', hold.beats) end
  if before then call('HSET', LOCK, 'b:' .. other, write_hold(before)) end
  call('PEXPIRE', LOCK, floor((max(hold.expires, before and before.expires or 0) - now) / 1000) + BACKSTOP_MS)
end

-- The list of those who share, for people, at most so many of them: the holds themselves are all there.
local function list_sharers(list)
  for _, entry in ipairs(unlisted) do
    local from, to = list:find(entry, 1, true)
    if from then
      if sub(list, to + 1, to + 1) == ',' then to = to + 1 elseif sub(list, from - 1, from - 1) == ',' then from = from - 1 end
      list = sub(list, 1, from - 1) .. sub(list, to + 1)
    end
  end
  for _, entry in ipairs(listed) do
    if count <= LISTED_HOLDERS then list = sub(list, 1, -2) .. (list == '[]' and '' or ',') .. entry .. ']' end
  end
  return list
end

-- Writes what changed of the lock's own fields.
local function write_lock()
  if count == 0 then
    if was_held then call('DEL', LOCK) end
    return
  end
  local set, gone, longest = { 'n', count, 'queue_length', queued }, {}, 0
  local function put(field, value)
    set[#set + 1] = field
    set[#set + 1] = value
  end
  for other in pairs(changed) do
    local hold, before = holds[other], befores[other]
    if hold then
      if not was_held and count == 1 then return write_first(other, hold) end
      put('h:' .. other, numbers(hold))
      if hold.is_new then
        put('r:' .. other, hold.requests)
        put('a:' .. other, names(hold))
      end
      longest = max(longest, hold.expires, before and before.expires or 0)
      if count == 1 then next_expiry = hold.expires end
    else
      gone[#gone + 1], gone[#gone + 2], gone[#gone + 3] = 'h:' .. other, 'r:' .. other, 'a:' .. other
    end
    if before then put('b:' .. other, write_hold(before)) elseif had_before[other] then gone[#gone + 1] = 'b:' .. other end
    if hold and (mode == 'x' or count == 1) then
      if is_task then put('heartbeat_count', hold.beats) end
      if hold.is_new then
        put('acquired_at', iso(hold.acquired))
        put('purpose', hold.purpose)
        if mode == 'x' then put(is_task and 'holder_agent_id' or 'exclusive_holder', hold.agent) end
      end
    end
  end
  put('next', digits(next_expiry))
  if longest > 0 then put('expires_at', iso(longest)) end
  if mode ~= was_mode then
    put('mode', mode == 'x' and 'exclusive' or 'shared')
    if was_held then gone[#gone + 1] = mode == 'x' and 'holders' or 'exclusive_holder' end
  end
  if mode == 's' and #listed + #unlisted > 0 then
    put('holders', list_sharers(was_mode == 's' and call('HGET', LOCK, 'holders') or '[]'))
  end
  call('HSET', LOCK, unpack(set))
  for from = 1, #gone, 1000 do call('HDEL', LOCK, unpack(gone, from, min(from + 999, #gone))) end
  if longest > 0 then
    local ms = floor((longest - now) / 1000) + BACKSTOP_MS
    -- Others who hold it may hold it for longer.
    if was_held and count > 1 then call('PEXPIRE', LOCK, ms, 'GT') else call('PEXPIRE', LOCK, ms) end
  end
end

-- When something will be due, as a lower bound, in seconds; nothing if the lock is idle.
local function due()
  if count == 0 and queued == 0 then return nil end
  local at = next_expiry or now + VISIT_MS * 1000
  if queued > 0 then
    at = min(at, earliest_deadline(), now + VISIT_MS * 1000, silent_by or at)
  end
  return format('%.3f', at / 1000000)
end

-- Indexes of the caller's own agent; those of others are left to whoever sent the command.
local function write_indexes()
  local is_free = count == 0
  for _, change in ipairs(changes) do
    local kind, of, last_one = change[1], change[2], change[4] == 1
    if kind == 'granted' then
      if of == agent then
        call('SADD', BY_AGENT, LOCK)
        call('PEXPIRE', BY_AGENT, INDEX_MS)
        if last_one then call('SREM', WAITFOR, LOCK) end
      end
    elseif of == agent then
      if kind == 'freed' then
        if last_one then call('SREM', BY_AGENT, LOCK) end
      elseif kind == 'left' then
        if last_one then call('SREM', WAITFOR, LOCK) end
      elseif kind == 'claimed' then
        -- Whoever was promoted by somebody else writes its index itself, before it asks for anything more.
        call('SADD', BY_AGENT, LOCK)
        call('PEXPIRE', BY_AGENT, INDEX_MS)
        if call('HEXISTS', WAITING, 'a:' .. agent) == 0 then call('SREM', WAITFOR, LOCK) end
      elseif kind == 'queued' then
        local ms = max(QUEUE_MS, wish.wait + 5000)
        call('SADD', WAITFOR, LOCK)
        if call('PTTL', WAITFOR) < ms then call('PEXPIRE', WAITFOR, ms) end
      end
    end
  end
  if command == 'extend' and hold_of(who) then
    call('SADD', BY_AGENT, LOCK)
    call('PEXPIRE', BY_AGENT, INDEX_MS)
  end
  if BY_TYPE and was_changed then
    if is_free then
      if was_held then call('SREM', BY_TYPE, LOCK) end
    elseif command ~= 'release' then
      -- A lock that goes from hand to hand stays listed; whoever claims it prolongs that.
      call('SADD', BY_TYPE, LOCK)
      call('PEXPIRE', BY_TYPE, INDEX_MS)
    end
  end
end

local COMMANDS = {
  acquire = acquire, claim = claim, keep = keep, extend = extend, release = release, downgrade = downgrade, verify = verify,
  inquire = inquire, cancel = cancel, hang_up = hang_up, ['break'] = break_holds, abort = abort, mark = nothing, tick = nothing, sweep = nothing,
}

local function step(keys, args)
  local said
  if args[2] == 'acquire' then said = quick_take(keys, args)
  elseif args[2] == 'extend' then said = quick_keep(keys, args)
  elseif args[2] == 'release' then said = quick_give(keys, args) end
  if said then return said end
  begin(keys, args)
  load()
  if command == 'mark' then mark(ARGV[8]) end
  reap()
  if command == 'sweep' then reap_silent() end
  promote()
  local own = hold_of(who)
  if own then end_if_over(who, own) end
  local outcome = COMMANDS[command]()
  promote()

  if was_changed then write_lock() elseif was_held and queued ~= was_queued then call('HSET', LOCK, 'queue_length', queued) end
  write_fence()
  local next_due = ''
  if command == 'sweep' or REGISTRY and (#changes > 0 or was_changed and command ~= 'extend') then
    next_due = due() or ''
  end
  if REGISTRY then
    -- Only the sweep puts its own visit off: a lock at which something always happens must be visited too.
    if next_due ~= '' then
      if command == 'sweep' then call('ZADD', REGISTRY, next_due, LOCK) else call('ZADD', REGISTRY, 'LT', next_due, LOCK) end
    elseif command == 'sweep' or #changes > 0 then
      if count == 0 and queued == 0 then call('ZREM', REGISTRY, LOCK) end
    end
    if #changes > 0 or was_changed and command == 'extend' then write_indexes() end
  end
  local publish = args[1] == '' and 'PUBLISH' or 'SPUBLISH'
  for _, message in ipairs(messages) do call(publish, CHANNEL, message) end
  return { digits(now), outcome, changes, next_due, queued }
end
