-- sliding_window, all that may be asked of it: a place is the number of a bucket, floor(time * numerator / denominator).
-- The text is the one of window.lua. Here `older` holds the entries before the newest.
kinds[1] = function()
  local kind = {}

  local function bucket_of(c, time)
    return (muldiv(time, c.numerator, c.denominator))
  end

  local function gone_at(c, time)
    return bucket_of(c, time - c.window) - 1
  end

  local function counts_until(c, bucket)
    local whole, rest = muldiv(bucket + 1, c.denominator, c.numerator)
    return whole + (rest > 0 and 1 or 0) + c.window
  end

  -- The index of the newest; the oldest is 0.
  local function last_of(s)
    return #s.older / 16
  end

  -- Place and sum of the entry.
  local function entry(s, index)
    if index == last_of(s) then return s.newest, s.sum end
    local place, sum = struct.unpack('<dd', s.older, 16 * index + 1)
    return place, sum
  end

  -- The first entry whose number (1: place, 2: sum) is over `bound`; the newest one's is.
  local function first_over(s, field, bound)
    local low, high = -1, last_of(s)
    while high - low > 1 do
      local middle = floor((low + high) / 2)
      local number = select(field, entry(s, middle))
      if number <= bound then low = middle else high = middle end
    end
    return high
  end

  function kind.open(key)
    local text = redis.call('GET', key)
    local s = { key = key, latest = 0, base = 0, sum = 0, older = '' }
    if not text then return s end
    s.exists, s.latest, s.base = true, struct.unpack('<dd', text)
    s.sum = s.base
    if #text > 16 then
      s.newest, s.sum = struct.unpack('<dd', text, 17)
      s.older = text:sub(33)
    end
    return s
  end

  function kind.save(s)
    if not (s.exists and s.dirty) then return end
    local text = struct.pack('<dd', s.latest, s.base)
    if s.newest then text = text .. struct.pack('<dd', s.newest, s.sum) .. s.older end
    redis.call('SET', s.key, text, 'KEEPTTL')
    if s.kept then expire(s.key, s.kept) end
  end

  -- Its newest entry is this one from now on; the older ones end here.
  local function cut(s, index)
    s.newest, s.sum = entry(s, index)
    s.older = s.older:sub(1, 16 * index)
  end

  local function forget_all(s, base)
    s.newest, s.older, s.base, s.sum = nil, '', base, base
  end

  function kind.advance(s, c)
    if now <= s.latest then return end
    s.latest, s.dirty = now, true
    local gone = gone_at(c, now)
    if not s.newest or entry(s, 0) > gone then return end
    if s.newest <= gone then return forget_all(s, s.sum) end
    local dead = first_over(s, 1, gone)
    s.base = select(2, entry(s, dead - 1))
    s.older = s.older:sub(16 * dead + 1)
  end

  function kind.look(s, c, hits)
    return look_at_count(c.requests, after_ahead(s, s.sum - s.base), hits)
  end

  -- Hits go to the newest entry when that is not earlier: the order holds, and nothing counts too short.
  local function put(s, c, place, hits)
    if not s.newest or place > s.newest then
      if s.newest then s.older = s.older .. struct.pack('<dd', s.newest, s.sum) end
      s.newest, s.kept = place, counts_until(c, place)
    end
    s.sum, s.exists, s.dirty = s.sum + hits, true, true
  end

  function kind.charge(s, c, hits)
    put(s, c, bucket_of(c, s.latest), hits)
  end

  function kind.carry(s, c, time, hits)
    local place = bucket_of(c, time)
    if place > gone_at(c, s.latest) then put(s, c, place, hits) end
  end

  function kind.refund(s, c, hits)
    if not s.newest or hits == 0 then return end
    s.dirty = true
    local sum = s.sum - hits
    if sum <= s.base then return forget_all(s, s.base) end
    cut(s, first_over(s, 2, sum - 1))
    s.sum, s.kept = sum, counts_until(c, s.newest)
  end

  -- The place whose end brings room for `hits` (-1: there is room already, -2: never), and the newest.
  function kind.tell(s, c, hits, over)
    local total = s.sum - s.base
    if total == 0 and not over then return -1, -1 end
    if hits > c.requests then return -2, s.newest or -1 end
    if total + hits <= c.requests then return -1, s.newest or -1 end
    local through = s.base + total + hits - c.requests
    return (entry(s, first_over(s, 2, through - 1))), s.newest
  end

  -- Takes hits back that were charged under this place, unless so many entries came after it that their sums would take
  -- too long to correct.
  function kind.give_back(s, c, place, hits)
    if not s.newest or place > s.newest then return end
    local index, last = first_over(s, 1, place - 1), last_of(s)
    local found, sum = entry(s, index)
    if found ~= place or last - index > 500 then return end
    local before = s.base
    if index > 0 then before = select(2, entry(s, index - 1)) end
    local back = min(hits, sum - before)
    local entries = { s.older:sub(1, 16 * index) }
    for later = index, last do
      local its_place, its_sum = entry(s, later)
      if later > index or sum - back > before then
        entries[#entries + 1] = struct.pack('<dd', its_place, its_sum - back)
      end
    end
    s.dirty = true
    local all = table.concat(entries)
    if #all == 0 then return forget_all(s, s.base) end
    s.newest, s.sum = struct.unpack('<dd', all, #all - 15)
    s.older = all:sub(1, -17)
  end

  return kind
end
