-- fixed_window: the count of the aligned window and the latest time, 16 bytes.
kinds[FIXED_WINDOW] = function()
  local kind = packed('<dd', { 'latest', 'count' })

  local function window_end(s, c)
    return s.latest - s.latest % c.window + c.window
  end

  function kind.advance(s, c)
    if now <= s.latest then return end
    if window_end(s, c) <= now then s.count = 0 end
    s.latest, s.dirty = now, true
  end

  function kind.look(s, c, hits)
    local before = min(after_ahead(s, s.count), MOST)
    return hits > c.requests - before, max(c.requests - before, 0), before
  end

  function kind.charge(s, c, hits)
    if s.count == 0 then s.kept = window_end(s, c) end
    s.count, s.exists, s.dirty = min(s.count + hits, MOST), true, true
  end

  function kind.charge_at(s, c, time, hits)
    if floor(time / c.window) >= floor(s.latest / c.window) then kind.charge(s, c, hits) end
  end

  function kind.refund(s, c, hits)
    s.count, s.dirty = max(s.count - hits, 0), true
  end

  function kind.state(s)
    return s.count, 0
  end

  function kind.give_back(s, c, window, hits)
    if floor(s.latest / c.window) == window then kind.refund(s, c, hits) end
  end

  return kind
end
