-- ban: strikes, and the ban that they begin. A string: the latest time, when the ban ends, when bans in a row are
-- forgotten, when the last strike was counted, until when strikes count, how many bans in a row there were; then the time
-- of each strike. A check has the lengths of the first and of the longest ban behind its numbers. `denominator` is the
-- time after a strike in which another one does not count.
kinds[BAN] = function()
  local kind = {}
  local FIELDS = { 'latest', 'ends', 'level_ends', 'struck', 'counts_until', 'level' }

  function kind.open(key)
    local s = { key = key, strikes = {} }
    local text, at = redis.call('GET', key), 1
    s.exists = text and true
    for _, field in ipairs(FIELDS) do
      s[field] = 0
      if text then s[field], at = struct.unpack('<d', text, at) end
    end
    while text and at <= #text do s.strikes[#s.strikes + 1], at = struct.unpack('<d', text, at) end
    return s
  end

  function kind.advance(s, c)
    if now > s.latest then s.latest, s.dirty = now, s.exists end
    local strikes = s.strikes
    s.strikes = {}
    for _, strike in ipairs(strikes) do
      if s.counts_until > s.latest and strike + c.window > s.latest then s.strikes[#s.strikes + 1] = strike end
    end
    if s.level_ends <= s.latest then s.level = 0 end
  end

  function kind.look(s, c)
    local banned = s.ends > s.latest
    return banned, banned and 0 or max(c.requests - #s.strikes, 1), #s.strikes
  end

  local function changed(s)
    s.dirty, s.exists, s.kept = true, true, max(s.ends, s.level_ends, s.counts_until)
  end

  local function begin(s, c)
    local first, longest = struct.unpack('<dd', c.detail)
    s.ends = s.latest + min(first * 2 ^ min(s.level, 40), longest)
    s.level = s.level + 1
    if longest > first then s.level_ends = max(s.level_ends, s.ends + longest) end
    s.struck, s.counts_until, s.strikes = 0, 0, {}
    changed(s)
  end

  -- Counts a strike at this time, unless it is too close to another.
  local function strike(s, c, time)
    if s.ends > s.latest or s.struck > 0 and time < s.struck + c.denominator then return end
    if #s.strikes + 1 >= c.requests then return begin(s, c) end
    s.strikes[#s.strikes + 1] = time
    table.sort(s.strikes)
    s.struck, s.counts_until = max(s.struck, time), max(s.counts_until, time + c.window)
    changed(s)
  end

  -- One hit is a strike. As many as begin a ban begin it at once.
  function kind.charge(s, c, hits)
    if hits > 1 and hits >= c.requests and s.ends <= s.latest then return begin(s, c) end
    strike(s, c, s.latest)
  end

  function kind.charge_at(s, c, time, hits)
    if time <= s.latest - c.window then return end
    for _ = 1, min(hits, c.requests) do strike(s, c, time) end
  end

  -- Lifts the ban.
  function kind.refund(s)
    for _, field in ipairs(FIELDS) do if field ~= 'latest' then s[field] = 0 end end
    s.strikes, s.dirty = {}, true
  end

  function kind.state(s)
    return s.ends, 0
  end

  -- No request charges a ban.
  function kind.give_back() end

  function kind.save(s)
    if not s.dirty then return end
    local parts = {}
    for i, field in ipairs(FIELDS) do parts[i] = struct.pack('<d', s[field]) end
    for _, strike in ipairs(s.strikes) do parts[#parts + 1] = struct.pack('<d', strike) end
    redis.call('SET', s.key, table.concat(parts), 'KEEPTTL')
    if s.kept then expire(s.key, s.kept) end
  end
  return kind
end
