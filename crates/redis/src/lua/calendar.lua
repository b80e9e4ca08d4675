-- calendar: the latest time, the count of the running period and the end of that period, 24 bytes; and if debts are
-- carried what that end pays at least, 8 bytes (see the engine's calendar.rs). A count begins at zero only when this clock has reached its end. A hit of another calendar moves the end, and only to a later time.
--
-- The caller sends the period that holds the deadline of its call, by its own zone data: its begin in place of the
-- window, its end in place of the denominator. This clock has not passed the deadline. So whatever the clock of the
-- caller shows, this clock is in that period or before it. Before it, the begin is taken as the end: if this clock was
-- set back by more than a period, that end is too late, and never too early.
kinds[CALENDAR] = function()
  local kind = packed('<ddd', { 'latest', 'count', 'ends' }, 'paid', '<d')

  local function own_end(s, c)
    return s.latest < c.window and c.window or c.denominator
  end

  -- The mean length of a period, in microseconds: of a day, week, month, quarter or year. Others are aligned windows.
  local MEANS = { 86400000000, 604800000000, 2629746000000, 7889238000000, 31556952000000 }

  local function mean(c)
    return MEANS[c.numerator] or c.denominator - c.window
  end

  -- What the end of the running period takes from the count.
  local function paid_at_end(s, c)
    return max(s.paid, c.pays)
  end

  -- The count after the ends that have passed. Before the begin of the caller's period, the running one ends there.
  local function owed(s, c)
    local since, period = max(c.window - s.ends, 0), mean(c)
    local further = floor((2 * since + period) / (2 * period)) - (s.latest < c.window and 1 or 0)
    return max(s.count - paid_at_end(s, c) - c.pays * max(further, 0), 0)
  end

  -- Until the debts are paid, or a period longer.
  local function keep(s, c)
    local periods = c.pays and min(math.ceil(max(s.count - paid_at_end(s, c), 0) / c.pays), DEBT_WINDOWS) or 0
    s.kept = s.ends + (periods > 0 and (periods + 1) * mean(c) or 0)
  end

  function kind.advance(s, c)
    if now > s.latest then s.latest = now end
    local own = own_end(s, c)
    if s.count == 0 then s.paid = 0 end
    -- If this clock was set back, the counter's latest time may be later than both. Then its end stays.
    if s.ends <= s.latest or s.count == 0 and own > s.latest then
      s.count = c.pays and s.count > 0 and owed(s, c) or 0
      s.ends, s.paid = own, 0
    end
    s.dirty = true
    keep(s, c)
  end

  function kind.look(s, c, hits)
    return look_at_count(c.requests, min(after_ahead(s, s.count), MOST), hits)
  end

  function kind.report_max(s, c)
    return c.pays and room_of_debt(c, min(after_ahead(s, s.count), MOST)) or MOST
  end

  function kind.charge(s, c, hits)
    s.count, s.ends, s.exists = min(s.count + hits, MOST), max(s.ends, own_end(s, c)), true
    if c.pays then s.paid = paid_at_end(s, c) end
    keep(s, c)
  end

  -- Hits of an earlier period are over. Hits that were admitted meanwhile are no debt.
  function kind.charge_at(s, c, time, hits)
    if time < c.window and s.latest >= c.window then return end
    kind.charge(s, c, hits)
    if c.pays then s.paid = min(s.paid + min(max(s.count - s.paid, 0), hits), MOST) end
    keep(s, c)
  end

  function kind.refund(s, c, hits)
    s.count = max(s.count - hits, 0)
  end

  -- With debts: the count as if N had been the same all the time.
  function kind.state(s, c)
    return c.pays and max(s.count - paid_at_end(s, c) + c.pays, 0) or s.count, s.ends
  end

  function kind.give_back(s, c, ends, hits)
    if s.ends == ends then s.count, s.dirty = max(s.count - hits, 0), true end
  end

  return kind
end
