-- sliding_window_weighted: the counts of two aligned windows and the latest time, 16 bytes.
kinds[SLIDING_WINDOW_WEIGHTED] = function()
  local kind = packed('<dI4I4', { 'latest', 'current', 'previous' })

  function kind.advance(s, c)
    if now <= s.latest then return end
    local into = now - s.latest + s.latest % c.window
    s.latest, s.dirty = now, true
    if into < c.window then return end
    s.previous = into < 2 * c.window and s.current or 0
    s.current = 0
  end

  local function without(s, hits)
    return max(s.current - hits, 0), max(s.previous - max(hits - s.current, 0), 0)
  end

  function kind.look(s, c, hits)
    local current, previous = without(s, s.given)
    local share, rest = muldiv(c.window - s.latest % c.window, previous, c.window)
    local count = current + share + (rest > 0 and 1 or 0)
    return look_at_count(c.requests, count + s.taken, hits)
  end

  function kind.report_max(s)
    return room_of_count((without(s, s.given)) + s.taken)
  end

  local function keep(s, c)
    s.kept, s.dirty = s.latest - s.latest % c.window + (s.current > 0 and 2 or 1) * c.window, true
  end

  function kind.charge(s, c, hits)
    local newly = s.current == 0
    s.current, s.exists, s.dirty = min(s.current + hits, 4294967295), true, true
    if newly then keep(s, c) end
  end

  function kind.charge_at(s, c, time, hits)
    local windows_ago = floor(s.latest / c.window) - floor(time / c.window)
    if windows_ago > 1 then return end
    local field = windows_ago < 1 and 'current' or 'previous'
    s[field], s.exists = min(s[field] + hits, 4294967295), true
    keep(s, c)
  end

  function kind.refund(s, c, hits)
    s.current, s.previous = without(s, hits)
    keep(s, c)
  end

  function kind.state(s)
    return s.current, s.previous
  end

  function kind.give_back(s, c, window, hits)
    local field = ({ [0] = 'current', 'previous' })[floor(s.latest / c.window) - window]
    if field then s[field], s.dirty = max(s[field] - hits, 0), true end
  end

  return kind
end
