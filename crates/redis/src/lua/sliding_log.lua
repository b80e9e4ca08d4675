-- sliding_log: hits in order. A list of latest, base, then time and sum of each entry. Sums run on, and only
-- differences mean something; base is the sum before the oldest entry. So a check is at most a binary search, and
-- dropping dead entries frees whole blocks.
kinds[SLIDING_LOG] = function()
  local kind = {}

  -- Number `field` (0: time, 1: sum) of entry `index`.
  local function at(s, index, field)
    return tonumber(redis.call('LINDEX', s.key, 2 + 2 * index + field))
  end

  -- The first entry after the oldest whose number is over `bound`, or else the newest. The first few are tried
  -- first.
  local function first_over(s, field, bound)
    local last = redis.call('LLEN', s.key) / 2 - 2
    local low, high = 0, 1
    while high < last and at(s, high, field) <= bound do low, high = high, high * 2 end
    high = min(high, last)
    while high - low > 1 do
      local middle = floor((low + high) / 2)
      if at(s, middle, field) <= bound then low = middle else high = middle end
    end
    return high
  end

  function kind.open(key)
    local head = redis.call('LRANGE', key, 0, 3)
    local s = { key = key, latest = 0, base = 0, sum = 0 }
    if not head[1] then return s end
    s.exists, s.latest, s.base = true, tonumber(head[1]), tonumber(head[2])
    s.sum = s.base
    if head[3] then
      local tail = redis.call('LRANGE', key, -2, -1)
      s.first, s.first_sum = tonumber(head[3]), tonumber(head[4])
      s.newest, s.sum = tonumber(tail[1]), tonumber(tail[2])
    end
    return s
  end

  local function forget_all(s, base)
    redis.call('LTRIM', s.key, 0, 1)
    redis.call('LSET', s.key, 1, base)
    s.first, s.newest, s.base, s.sum = nil, nil, base, base
  end

  -- Drops so many of the oldest entries, but not all.
  local function drop(s, dead)
    -- The newest of the dead becomes the head: its sum is the new base.
    redis.call('LTRIM', s.key, 2 * dead, -1)
    redis.call('LSET', s.key, 0, s.latest)
    local head = redis.call('LRANGE', s.key, 1, 3)
    s.base, s.first, s.first_sum = tonumber(head[1]), tonumber(head[2]), tonumber(head[3])
  end

  function kind.advance(s, c)
    if now <= s.latest then return end
    s.latest = now
    if not s.exists then return end
    local gone = now - c.window
    if s.first and s.newest > gone and s.first <= gone then return drop(s, first_over(s, 0, gone)) end
    if s.first and s.newest <= gone then forget_all(s, s.sum) end
    redis.call('LSET', s.key, 0, now)
  end

  function kind.look(s, c, hits)
    return look_at_count(c.requests, after_ahead(s, s.sum - s.base), hits)
  end

  -- Whether the counter has as many entries as it may have, `more` than N. Hits that fit find fewer.
  local function is_full(s, c, more)
    local most = max(c.requests, 1) + more
    return s.sum - s.base >= most and redis.call('LLEN', s.key) / 2 - 1 >= most
  end

  -- Hits go to the newest entry when it is not earlier: the order holds, and nothing counts too short. They also go
  -- there when there are as many entries as there may be; the entry takes their time then.
  local function put(s, c, time, hits, more)
    hits = min(hits, room_of_count(s.sum - s.base))
    if hits < 1 then return end
    local moves = s.first and time > s.newest and is_full(s, c, more or 0)
    s.sum = s.sum + hits
    if moves then
      if s.first == s.newest then s.first = time end
      redis.call('LSET', s.key, -2, time)
      s.newest = time
      expire(s.key, time + c.window)
    end
    if s.first and time <= s.newest then
      if s.first == s.newest then s.first_sum = s.sum end
      redis.call('LSET', s.key, -1, s.sum)
      return
    end
    if s.exists then
      redis.call('RPUSH', s.key, time, s.sum)
    else
      redis.call('RPUSH', s.key, s.latest, s.base, time, s.sum)
      s.exists = true
    end
    if not s.first then s.first, s.first_sum = time, s.sum end
    s.newest = time
    expire(s.key, time + c.window)
  end

  local function reaching(s, sum)
    return at(s, first_over(s, 1, sum - 1), 0)
  end

  local debts = { reaching = reaching }

  function debts.count(s, c, time)
    local gone = time - c.window
    if not s.first or s.newest <= gone then return 0 end
    return s.sum - (s.first > gone and s.base or at(s, first_over(s, 0, gone) - 1, 1))
  end

  function debts.after(c, time)
    return time + c.window
  end

  -- So many pieces has a cost at most.
  function debts.put(s, c, time, hits)
    put(s, c, time, hits, DEBT_WINDOWS + 3)
  end

  function kind.report_max(s, c)
    return report_room(s, c, s.latest, debts)
  end

  function kind.charge(s, c, hits)
    if c.pays and c.reported then
      return charge_debt(s, c, hits, s.latest, s.latest + (1 + DEBT_WINDOWS) * c.window, debts)
    end
    put(s, c, s.latest, hits)
  end

  function kind.charge_at(s, c, time, hits)
    if time > s.latest - c.window then put(s, c, time, hits) end
  end

  function kind.refund(s, c, hits)
    if not s.first or hits == 0 then return end
    local base = s.base + hits
    if base >= s.sum then return forget_all(s, s.sum) end
    if s.first_sum <= base then drop(s, first_over(s, 1, base)) end
    redis.call('LSET', s.key, 1, base)
    s.base = base
  end

  function kind.state(s, c, hits, over)
    return place_state(s, c, hits, over, reaching)
  end

  -- Takes back hits that were charged at this time. Nothing happens when too many entries came after it: correcting
  -- their sums would take too long.
  function kind.give_back(s, c, time, hits)
    if not s.first or time < s.first or time > s.newest then return end
    local last = redis.call('LLEN', s.key) / 2 - 2
    local index = time == s.first and 0 or time == s.newest and last or first_over(s, 0, time - 1)
    if last - index > 500 or at(s, index, 0) ~= time then return end
    local before = index == 0 and s.base or at(s, index - 1, 1)
    local back = min(hits, at(s, index, 1) - before)
    local tail = redis.call('LRANGE', s.key, 2 + 2 * index, -1)
    if tonumber(tail[2]) - back == before then tail = { unpack(tail, 3) } end
    for i = 2, #tail, 2 do tail[i] = tonumber(tail[i]) - back end
    redis.call('LTRIM', s.key, 0, 1 + 2 * index)
    if #tail > 0 then redis.call('RPUSH', s.key, unpack(tail)) end
  end

  return kind
end
