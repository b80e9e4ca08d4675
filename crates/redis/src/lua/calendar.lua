-- calendar: the latest time, the count of the running period and the end of that period, 24 bytes. A count begins at
-- zero only when this clock has reached its end. A hit of another calendar moves the end, and only to a later time.
--
-- The caller sends the period that holds the deadline of its call, by its own zone data: its begin in place of the
-- window, its end in place of the denominator. This clock has not passed the deadline. So whatever the clock of the
-- caller shows, this clock is in that period or before it. Before it, the begin is taken as the end: if this clock was
-- set back by more than a period, that end is too late, and never too early.
kinds[CALENDAR] = function()
  local kind = packed('<ddd', { 'latest', 'count', 'ends' })

  local function own_end(s, c)
    return s.latest < c.window and c.window or c.denominator
  end

  function kind.advance(s, c)
    if now > s.latest then s.latest = now end
    local own = own_end(s, c)
    -- If this clock was set back, the counter's latest time may be later than both. Then its end stays.
    if s.ends <= s.latest or s.count == 0 and own > s.latest then s.count, s.ends = 0, own end
    s.kept, s.dirty = s.ends, true
  end

  function kind.look(s, c, hits)
    return look_at_count(c.requests, min(after_ahead(s, s.count), MOST), hits)
  end

  function kind.report_max()
    return MOST
  end

  function kind.charge(s, c, hits)
    s.count, s.ends, s.exists = min(s.count + hits, MOST), max(s.ends, own_end(s, c)), true
    s.kept = s.ends
  end

  -- Hits of an earlier period are over.
  function kind.charge_at(s, c, time, hits)
    if time >= c.window or s.latest < c.window then kind.charge(s, c, hits) end
  end

  function kind.refund(s, c, hits)
    s.count = max(s.count - hits, 0)
  end

  function kind.state(s)
    return s.count, s.ends
  end

  function kind.give_back(s, c, ends, hits)
    if s.ends == ends then s.count, s.dirty = max(s.count - hits, 0), true end
  end

  return kind
end
