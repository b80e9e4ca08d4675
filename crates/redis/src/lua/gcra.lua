-- token_bucket and leaky_bucket: the level at the latest time, in whole hits and a rest. A hit has W units of the
-- rest, and a microsecond drains N. Then the N that was in force last, and how many hits were taken back so far: 36
-- bytes. And, while it is larger than N, the N by which what is above burst drains.
--
-- The capacity is in the denominator of a check; its burst is the share of it that the check's class may use.
local function gcra()
  local kind = packed('<dddI4d', { 'latest', 'hits', 'rest', 'requests', 'taken_back' }, 'requests_above', '<I4')

  -- Only differences of this number mean something, so it may begin again at 0.
  local ROUND = 4503599627370496
  local function count_taken_back(s, hits)
    s.taken_back = (s.taken_back + min(hits, ROUND / 2)) % ROUND
  end

  local function drain(s, c, requests, micros)
    local windows = floor(micros / c.window)
    if windows * requests > s.hits then
      s.hits, s.rest = 0, 0
      return
    end
    local hits, rest = muldiv(micros - windows * c.window, requests, c.window)
    hits = s.hits - windows * requests - hits
    if rest > s.rest then hits, s.rest = hits - 1, s.rest + c.window end
    if hits < 0 then s.hits, s.rest = 0, 0 else s.hits, s.rest = hits, s.rest - rest end
  end

  local function without(s, hits)
    if hits > s.hits then return 0, 0 end
    return s.hits - hits, s.rest
  end

  -- How long these hits and this rest take to drain, rounded up.
  local function micros_of(hits, rest, c, requests)
    local micros, left = muldiv(hits, c.window, requests)
    return micros + math.ceil((left + rest) / requests)
  end

  local function keep(s, c)
    if s.requests == 0 then return end
    -- At most 2,283 years: Redis takes no later time, and a limit that was lowered much may need longer.
    s.kept, s.dirty = s.latest + min(micros_of(s.hits, s.rest, c, s.requests), 8 * MOST), true
  end

  local function is_above(s, c)
    return s.hits > c.denominator or s.hits == c.denominator and s.rest > 0
  end

  -- The N by which what is above burst drains, and how long that takes.
  local function above(s, c)
    local requests = max(s.requests, s.requests_above)
    if not is_above(s, c) or requests == 0 then return requests, 0 end
    return requests, micros_of(s.hits - c.denominator, s.rest, c, requests)
  end

  -- N has changed, or something may be above burst: see gcra.rs in the engine.
  local function drain_changed(s, c, micros)
    if c.requests == 0 or s.requests == 0 then return drain(s, c, s.requests, micros) end
    local requests, above_micros = above(s, c)
    if micros < above_micros then return drain(s, c, requests, micros) end
    if above_micros > 0 then s.hits, s.rest = c.denominator, 0 end
    drain(s, c, min(c.requests, s.requests), micros - above_micros)
  end

  -- Adopts N. No stamp knows how much has drained meanwhile, so none of the hits in it can go back any more.
  local function adopt(s, c)
    if c.requests == 0 then return end
    local largest = max(s.requests, s.requests_above, c.requests)
    s.requests_above = is_above(s, c) and largest > c.requests and largest or 0
    if s.requests ~= c.requests and s.requests > 0 then count_taken_back(s, s.hits + 1) end
    s.requests, s.dirty = c.requests, true
    if s.hits > 0 or s.rest > 0 then keep(s, c) end
  end

  function kind.advance(s, c)
    local micros, is_changed = max(now - s.latest, 0), s.requests ~= c.requests or s.requests_above > 0
    if micros > 0 then
      if is_changed then
        drain_changed(s, c, micros)
      elseif s.hits > 0 or s.rest > 0 then
        drain(s, c, s.requests, micros)
      end
      s.latest, s.dirty = now, true
    end
    if is_changed then adopt(s, c) end
  end

  function kind.look(s, c, hits)
    local whole, rest = without(s, s.given)
    local before = min(whole + s.taken, MOST) + (rest > 0 and 1 or 0)
    local left = c.requests == 0 and 0 or max(c.burst - before, 0)
    return max(hits, 1) > left, left, before
  end

  function kind.charge(s, c, hits)
    s.hits, s.exists = min(s.hits + hits, MOST), true
    keep(s, c)
  end

  function kind.report_max(s, c)
    -- A limit of 0 denies everything, and its counter would never expire.
    if c.requests == 0 then return 0 end
    local whole, rest = without(s, s.given)
    return max(c.denominator + DEBT_WINDOWS * c.requests - whole - s.taken - (rest > 0 and 1 or 0), 0)
  end

  function kind.charge_at(s, c, time, hits)
    hits = min(hits, kind.report_max(s, c))
    if hits > 0 then kind.charge(s, c, hits) end
  end

  function kind.refund(s, c, hits)
    count_taken_back(s, min(hits, s.hits + 1))
    s.hits, s.rest = without(s, hits)
    if not is_above(s, c) then s.requests_above = 0 end
    keep(s, c)
  end

  -- What is above burst, as the hits and the rest that drain by N in the same time.
  function kind.state(s, c)
    if s.requests_above == 0 or c.requests == 0 then return s.hits, s.rest, s.taken_back end
    local _, micros = above(s, c)
    if micros == 0 then return s.hits, s.rest, s.taken_back end
    local hits, rest = muldiv(micros, c.requests, c.window)
    return min(c.denominator + hits, MOST), rest, s.taken_back
  end

  -- Gives back hits that were charged at this time. The charge brought the level to `level` hits and `rest`, and
  -- `taken_back` hits had been taken back by then. A bucket drains the oldest hits first, so the rest of that
  -- level is these hits, and before them older ones. All of the hits go back, unless less than that is left: hits
  -- that have drained or were taken back since are gone, and later hits belong to other requests. (Hits taken back
  -- since may be younger than these. Then at most as many of these stay, and drain.)
  function kind.give_back(s, c, time, hits, level, rest, taken_back)
    if s.requests ~= c.requests or s.requests_above > 0 then return end
    local left = { hits = level, rest = rest }
    drain(left, c, s.requests, max(s.latest - time, 0))
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
