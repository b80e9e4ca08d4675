-- ban: strikes, and the ban that they begin. A string: the latest time, when the ban ends, when bans in a row are
-- forgotten, until when strikes count, how many bans in a row there were; then the time of each strike, in order. Nodes
-- report strikes late, so a strike may be older than one that is there. In a check, the lengths of the first and of the
-- longest ban follow its numbers, and `denominator` is the time around a strike in which another one does not count.
kinds[BAN] = function()
  local kind = {}
  local FIELDS = { 'latest', 'ends', 'level_ends', 'counts_until', 'level' }

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

  local function begins_at_once(c, hits) return hits > 1 and hits >= c.requests end

  -- An operator's ban replaces any other.
  function kind.look(s, c, hits)
    local banned = s.ends > s.latest
    return banned and not begins_at_once(c, hits), banned and 0 or max(c.requests - #s.strikes, 1), #s.strikes
  end

  -- After a ban's end the key stays as long as strikes from before may be reported.
  local function changed(s, c)
    s.dirty, s.exists, s.kept = true, true, max(s.ends + c.window, s.level_ends, s.counts_until)
  end

  local function begin(s, c)
    local first, longest = struct.unpack('<dd', c.detail)
    s.ends = s.latest + min(first * 2 ^ min(s.level, 40), longest)
    if longest > first then s.level, s.level_ends = s.level + 1, max(s.level_ends, s.ends + longest) end
    s.counts_until, s.strikes = 0, {}
    changed(s, c)
  end

  local function forget(s)
    for _, field in ipairs(FIELDS) do if field ~= 'latest' then s[field] = 0 end end
    s.strikes, s.dirty = {}, true
  end

  -- Counts a strike at this time, unless it is too close to another. Returns whether it did. A strike from before a
  -- ban's end does not count after it: it may have begun that ban, if its node had no answer and reports it again.
  local function strike(s, c, time)
    if s.ends > time then return false end
    local place = #s.strikes + 1
    while place > 1 and s.strikes[place - 1] > time do place = place - 1 end
    local before, after = s.strikes[place - 1], s.strikes[place]
    if before and time - before < c.denominator or after and after - time < c.denominator then return false end
    if #s.strikes + 1 >= c.requests then
      begin(s, c)
    else
      table.insert(s.strikes, place, time)
      s.counts_until = max(s.counts_until, time + c.window)
      changed(s, c)
    end
    return true
  end

  -- One hit is a strike. As many hits as a ban takes begin it at once, whatever was there before.
  function kind.charge(s, c, hits)
    if not begins_at_once(c, hits) then return strike(s, c, s.latest) end
    forget(s)
    begin(s, c)
  end

  function kind.charge_at(s, c, time, hits)
    if time <= s.latest - c.window then return end
    for _ = 1, min(hits, c.requests) do
      if not strike(s, c, time) then return end
    end
  end

  -- Lifts the ban, and forgets all strikes and earlier bans, also strikes that are reported later.
  function kind.refund(s, c)
    forget(s)
    s.ends = s.latest
    changed(s, c)
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
