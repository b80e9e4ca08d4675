-- sliding_window, the long way, for all checks. A place is the number of a bucket: floor(time * numerator /
-- denominator). The text is that of window.lua.
kinds[SLIDING_WINDOW] = function()
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

  -- The entries that count, before the newest. They are read when they are needed. Entries that are appended
  -- meanwhile are in `pushed`.
  local function older(s)
    if not s.older then
      s.older = s.written and redis.call('GETRANGE', s.key, 56 + 16 * s.dead, '-1') or ''
      s.older = s.older .. s.pushed
    end
    return s.older
  end

  -- The index of the newest entry. The oldest has 0.
  local function last_of(s)
    return #older(s) / 16
  end

  -- Place and sum of the entry.
  local function entry(s, index)
    if index == last_of(s) then return s.newest, s.sum end
    local place, sum = struct.unpack('<dd', older(s), 16 * index + 1)
    return place, sum
  end

  -- The first entry whose number (1: place, 2: sum) is over `bound`, or else the newest.
  local function first_over(s, field, bound)
    local low, high = -1, last_of(s)
    while high - low > 1 do
      local middle = floor((low + high) / 2)
      local number = select(field, entry(s, middle))
      if number <= bound then low = middle else high = middle end
    end
    return high
  end

  -- `cut`: the text has to be rewritten.
  function kind.open(key)
    local text = redis.call('GETRANGE', key, '0', '55')
    local s = { key = key, latest = 0, base = 0, sum = 0, dead = 0, pushed = '', older = '' }
    if #text == 0 then return s end
    s.exists, s.latest, s.base = true, struct.unpack('<dd', text)
    s.sum, s.cut = s.base, #text == 16
    if #text > 16 then
      s.newest, s.sum, s.first, s.first_sum, s.dead = struct.unpack('<ddddd', text, 17)
      s.written, s.older = true, nil
    end
    return s
  end

  function kind.save(s)
    if not (s.exists and s.dirty) then return end
    local rewrites = s.cut or s.dead >= DEAD_MAX or not s.written
    local all = rewrites and older(s)
    local text = struct.pack('<dd', s.latest, s.base)
    if s.newest then
      text = text .. struct.pack('<ddddd', s.newest, s.sum, s.first, s.first_sum, rewrites and 0 or s.dead)
    end
    if rewrites then
      redis.call('SET', s.key, text .. all, 'KEEPTTL')
    else
      redis.call('SETRANGE', s.key, '0', text)
      if #s.pushed > 0 then redis.call('APPEND', s.key, s.pushed) end
    end
    if s.kept then expire(s.key, s.kept) end
  end

  -- Replaces the entries by these. The newest comes last.
  local function become(s, all)
    s.cut, s.newest, s.first, s.older = true, nil, nil, ''
    if #all == 0 then
      s.sum = s.base
    else
      s.first, s.first_sum = struct.unpack('<dd', all)
      s.newest, s.sum = struct.unpack('<dd', all, #all - 15)
      s.older = all:sub(1, -17)
    end
  end

  -- Marks so many of the oldest entries, but not all, as dead.
  local function drop(s, dead)
    s.first, s.first_sum = entry(s, dead)
    s.dead, s.older = s.dead + dead, older(s):sub(16 * dead + 1)
  end

  function kind.advance(s, c)
    if now <= s.latest then return end
    s.latest, s.dirty = now, true
    local gone = gone_at(c, now)
    if not s.newest or s.first > gone then return end
    if s.newest <= gone then
      s.base = s.sum
      return become(s, '')
    end
    local dead = first_over(s, 1, gone)
    s.base = select(2, entry(s, dead - 1))
    drop(s, dead)
  end

  function kind.look(s, c, hits)
    return look_at_count(c.requests, after_ahead(s, s.sum - s.base), hits)
  end

  -- Hits go to the newest entry when it is not earlier: the order holds, and nothing counts too short.
  local function put(s, c, place, hits)
    hits = min(hits, room_of_count(s.sum - s.base))
    if hits < 1 then return end
    if not s.newest then
      s.first, s.newest, s.kept = place, place, counts_until(c, place)
    elseif place > s.newest then
      local pushed = struct.pack('<dd', s.newest, s.sum)
      s.pushed = s.pushed .. pushed
      if s.older then s.older = s.older .. pushed end
      s.newest, s.kept = place, counts_until(c, place)
    end
    s.sum, s.exists, s.dirty = s.sum + hits, true, true
    if s.first == s.newest then s.first_sum = s.sum end
  end

  local function reaching(s, sum)
    return (entry(s, first_over(s, 2, sum - 1)))
  end

  local debts = { reaching = reaching, put = put }

  -- A bucket stops to count within the one that is so many later.
  local function buckets_counted(c)
    return bucket_of(c, c.window) + 1
  end

  function debts.count(s, c, bucket)
    local gone = bucket - buckets_counted(c)
    if not s.newest or s.newest <= gone then return 0 end
    return s.sum - (s.first > gone and s.base or select(2, entry(s, first_over(s, 1, gone) - 1)))
  end

  function debts.after(c, bucket)
    return bucket + buckets_counted(c)
  end

  function kind.report_max(s, c)
    return report_room(s, c, bucket_of(c, s.latest), debts)
  end

  function kind.charge(s, c, hits)
    local bucket = bucket_of(c, s.latest)
    if c.pays and c.reported then
      local last = bucket + (1 + DEBT_WINDOWS) * buckets_counted(c)
      return charge_debt(s, c, hits, bucket, last, debts)
    end
    put(s, c, bucket, hits)
  end

  function kind.charge_at(s, c, time, hits)
    local place = bucket_of(c, time)
    if place > gone_at(c, s.latest) then put(s, c, place, hits) end
  end

  function kind.refund(s, c, hits)
    if not s.newest or hits == 0 then return end
    s.dirty = true
    local base = s.base + hits
    if base >= s.sum then
      s.base = s.sum
      return become(s, '')
    end
    drop(s, first_over(s, 2, base))
    s.base = base
  end

  function kind.state(s, c, hits, over)
    return place_state(s, c, hits, over, reaching)
  end

  -- Takes back hits that were charged under this place. Nothing happens when too many entries came after it:
  -- correcting their sums would take too long.
  function kind.give_back(s, c, place, hits)
    if not s.newest or place < s.first or place > s.newest then return end
    local index, last = first_over(s, 1, place - 1), last_of(s)
    local found, sum = entry(s, index)
    if found ~= place or last - index > 500 then return end
    local before = s.base
    if index > 0 then before = select(2, entry(s, index - 1)) end
    local back = min(hits, sum - before)
    local entries = { older(s):sub(1, 16 * index) }
    for later = index, last do
      local its_place, its_sum = entry(s, later)
      if later > index or sum - back > before then
        entries[#entries + 1] = struct.pack('<dd', its_place, its_sum - back)
      end
    end
    s.dirty = true
    become(s, table.concat(entries))
  end

  return kind
end
