-- concurrency: the slots that are held, a sorted set by their ends. Each slot has two members: 'i' and its id, by which
-- a call that is repeated finds it, and 'n', its id and its number, by which it is released. A check that takes or
-- releases a slot has both names behind its numbers. The member 'latest' has the latest time, moved behind all ends.
kinds[CONCURRENCY] = function()
  local kind = {}
  local BEHIND = 4503599627370496

  function kind.open(key)
    local latest = redis.call('ZSCORE', key, 'latest')
    if not latest then return { key = key, latest = 0, held = 0 } end
    local held = (redis.call('ZCARD', key) - 1) / 2
    return { key = key, latest = tonumber(latest) - BEHIND, held = held, exists = true }
  end

  local function note_latest(s)
    redis.call('ZADD', s.key, s.latest + BEHIND, 'latest')
  end

  function kind.advance(s)
    if now <= s.latest then return end
    s.latest = now
    if not s.exists then return end
    s.held = s.held - redis.call('ZREMRANGEBYSCORE', s.key, '-inf', now) / 2
    note_latest(s)
  end

  local function holds(s, c)
    return s.exists and c.detail and redis.call('ZSCORE', s.key, 'i' .. c.detail:sub(1, 8))
  end

  local function holds_exactly(s, c)
    return s.exists and c.detail and redis.call('ZSCORE', s.key, 'n' .. c.detail)
  end

  function kind.look(s, c, hits)
    local over, left, before = look_at_count(c.requests, s.held + s.taken, hits)
    -- A release needs no room, nor does the call that holds this very slot.
    if c.detail then over = hits > 0 and not holds_exactly(s, c) and (over or holds(s, c) and true or false) end
    return over, left, before
  end

  function kind.charge(s, c)
    if not c.detail then return end
    local ends = s.latest + c.window
    local held = holds(s, c)
    if held and not holds_exactly(s, c) then return end
    if held then
      ends = max(ends, tonumber(held))
      s.held, c.renewed = s.held - 1, true
    end
    redis.call('ZADD', s.key, ends, 'i' .. c.detail:sub(1, 8), ends, 'n' .. c.detail)
    if not s.exists then note_latest(s) end
    s.held, s.exists = s.held + 1, true
    expire(s.key, tonumber(redis.call('ZRANGE', s.key, -2, -2, 'WITHSCORES')[2]))
  end

  function kind.charge_at() end

  function kind.refund(s, c)
    if not c.detail or redis.call('ZREM', s.key, 'n' .. c.detail) == 0 then return end
    redis.call('ZREM', s.key, 'i' .. c.detail:sub(1, 8))
    s.held = s.held - 1
  end

  -- What was renewed stays when another slot of a Cluster denies the request.
  function kind.state(_, c)
    return c.renewed and 1 or 0, 0
  end

  function kind.give_back(s, c, renewed)
    if renewed == 0 then kind.refund(s, c) end
  end
  return kind
end
