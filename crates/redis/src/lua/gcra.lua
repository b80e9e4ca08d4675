-- token_bucket and leaky_bucket: the level at the latest time, in whole hits and a rest. A hit has W units of the
-- rest, and a microsecond drains N. Then the N that the level is computed for, and how many hits were taken back so
-- far. 36 bytes.
local function gcra()
  -- A reported cost lifts the level above burst by at most what drains in so many windows.
  local DEBT_WINDOWS = 16
  local kind = packed('<dddI4d', { 'latest', 'hits', 'rest', 'requests', 'taken_back' })

  -- Only differences of this number mean something, so it may begin again at 0.
  local ROUND = 4503599627370496
  local function count_taken_back(s, hits)
    s.taken_back = (s.taken_back + min(hits, ROUND / 2)) % ROUND
  end

  -- N has changed: the time until the bucket is empty stays the same, rounded up by less than a unit. None of the
  -- hits in it can go back any more, because they were charged in hits of another size.
  local function follow(s, c)
    if s.requests == c.requests or c.requests == 0 then return end
    if s.requests > 0 then
      local hits, hits_left = muldiv(s.hits, c.requests, s.requests)
      local units, units_left = muldiv(c.window, hits_left, s.requests)
      local more, more_left = muldiv(s.rest, c.requests, s.requests)
      units = units + more + math.ceil((units_left + more_left) / s.requests)
      s.hits, s.rest = min(hits + floor(units / c.window), MOST), units % c.window
      count_taken_back(s, s.hits + 1)
    end
    s.requests, s.dirty = c.requests, true
  end

  local function drain(s, c, micros)
    local windows = floor(micros / c.window)
    if windows * s.requests > s.hits then
      s.hits, s.rest = 0, 0
      return
    end
    local hits, rest = muldiv(micros - windows * c.window, s.requests, c.window)
    hits = s.hits - windows * s.requests - hits
    if rest > s.rest then hits, s.rest = hits - 1, s.rest + c.window end
    if hits < 0 then s.hits, s.rest = 0, 0 else s.hits, s.rest = hits, s.rest - rest end
  end

  local function without(s, hits)
    if hits > s.hits then return 0, 0 end
    return s.hits - hits, s.rest
  end

  function kind.advance(s, c)
    follow(s, c)
    if now <= s.latest then return end
    if s.hits > 0 or s.rest > 0 then drain(s, c, now - s.latest) end
    s.latest, s.dirty = now, true
  end

  function kind.look(s, c, hits)
    local whole, rest = without(s, s.given)
    local before = min(whole + s.taken, MOST) + (rest > 0 and 1 or 0)
    local left = c.requests == 0 and 0 or max(c.burst - before, 0)
    return max(hits, 1) > left, left, before
  end

  local function keep(s, c)
    if s.requests == 0 then return end
    local micros, rest = muldiv(s.hits, c.window, s.requests)
    s.kept, s.dirty = s.latest + micros + math.ceil((rest + s.rest) / s.requests), true
  end

  function kind.charge(s, c, hits)
    s.hits, s.exists = min(s.hits + hits, MOST), true
    keep(s, c)
  end

  function kind.report_max(s, c)
    -- A limit of 0 denies everything, and its counter would never expire.
    if c.requests == 0 then return 0 end
    local whole, rest = without(s, s.given)
    return max(c.burst + DEBT_WINDOWS * c.requests - whole - s.taken - (rest > 0 and 1 or 0), 0)
  end

  function kind.charge_at(s, c, time, hits)
    hits = min(hits, kind.report_max(s, c))
    if hits > 0 then kind.charge(s, c, hits) end
  end

  function kind.refund(s, c, hits)
    count_taken_back(s, min(hits, s.hits + 1))
    s.hits, s.rest = without(s, hits)
    keep(s, c)
  end

  function kind.state(s)
    return s.hits, s.rest, s.taken_back
  end

  -- Gives back hits that were charged at this time. The charge brought the level to `level` hits and `rest`, and
  -- `taken_back` hits had been taken back by then. A bucket drains the oldest hits first, so the rest of that
  -- level is these hits, and before them older ones. All of the hits go back, unless less than that is left: hits
  -- that have drained or were taken back since are gone, and later hits belong to other requests. (Hits taken back
  -- since may be younger than these. Then at most as many of these stay, and drain.)
  function kind.give_back(s, c, time, hits, level, rest, taken_back)
    if s.requests ~= c.requests then return end
    local left = { hits = level, rest = rest, requests = s.requests }
    drain(left, c, max(s.latest - time, 0))
    left.hits = left.hits - (s.taken_back - taken_back) % ROUND
    if left.hits < 0 then return end
    local units = 0
    if left.hits < hits then hits, units = left.hits, left.rest end
    count_taken_back(s, hits + (units > 0 and 1 or 0))
    s.hits, s.rest = s.hits - hits, s.rest - units
    if s.rest < 0 then s.hits, s.rest = s.hits - 1, s.rest + c.window end
    if s.hits < 0 then s.hits, s.rest = 0, 0 end
    keep(s, c)
  end

  return kind
end
