-- holds: hits that reservations hold, a sorted set. Each hold has two members, whose score is the next time at which
-- something of it changes: 'i' and its id, by which it is found, and 'h', its id and its numbers (see `pack`). The member
-- 'sum' has the sum of what counts, as a negative number, 'worst' that of the worst cases, if it is another; 'latest' has the latest time, and 'last' the time at which all ids
-- are forgotten, both moved behind all others.
--
-- A check that makes or ends a hold has 40 bytes of detail: the id, the number of the attempt, begin and end of the period
-- of a calendar that holds the deadline of its call and one ttl (0: there is none), and what the call may cost at most (0: what
-- it holds). `requests` is the place of the limit's check, `burst` that of the one that bounds its worst cases. `window` is the ttl, `denominator` the
-- time in which an expired hold counts, and a reported check ends its hold.
kinds[HOLDS] = function()
  local kind = {}
  local BEHIND = 4503599627370496
  local HOLDS_MAX = 100000
  -- The most that all holds hold together, and that their calls may cost: up to here sums are exact.
  local SUM_MAX = 9007199254740991
  -- More changes at one time are left to later calls: until then these hits count.
  local CHANGES_MAX = 1000
  -- What was found under an id. The engine has the same numbers.
  local NOTHING, OPEN, OTHER, ENDED, FULL, EXPIRED = 0, 1, 2, 3, 4, 5

  function kind.open(key)
    local latest = redis.call('ZSCORE', key, 'latest')
    if not latest then return { key = key, latest = 0, last = 0, held = 0, worst = 0, count = 0 } end
    local held = 0 - tonumber(redis.call('ZSCORE', key, 'sum'))
    local last = tonumber(redis.call('ZSCORE', key, 'last')) - BEHIND
    local worst = redis.call('ZSCORE', key, 'worst')
    local count = (redis.call('ZCARD', key) - (worst and 4 or 3)) / 2
    return {
      key = key, latest = tonumber(latest) - BEHIND, last = last, held = held, worst = worst and 0 - tonumber(worst) or held,
      count = count, exists = true, names_worst = worst,
    }
  end

  -- A hold: its number, when it expires (0: it was ended), until when its hits count, when its id is forgotten, its hits, and
  -- what the call may cost at most, if that is something else.
  local function pack(h)
    local worst = h.worst == h.hits and '' or struct.pack('<d', h.worst)
    return 'h' .. h.id .. h.number .. struct.pack('<dddd', h.expires, h.till, h.forgotten, h.hits) .. worst
  end

  local function read(member)
    local h = { id = member:sub(2, 9), number = member:sub(10, 17), member = member }
    h.expires, h.till, h.forgotten, h.hits = struct.unpack('<dddd', member, 18)
    h.worst = #member > 49 and struct.unpack('<d', member, 50) or h.hits
    return h
  end

  local function counts(h, at)
    return h.till > at
  end

  local function changes(s, h)
    return counts(h, s.latest) and h.till or h.forgotten
  end

  local function add(s, h)
    local score = changes(s, h)
    redis.call('ZADD', s.key, score, 'i' .. h.id, score, pack(h))
    s.last, s.kept = max(s.last, h.forgotten), true
  end

  -- Makes the change of a hold whose time has come. Returns the hold, unless it is forgotten.
  local function change(s, h, score)
    if score == h.till then s.held, s.worst = s.held - h.hits, s.worst - h.worst end
    redis.call('ZREM', s.key, h.member, 'i' .. h.id)
    if h.forgotten <= s.latest then
      s.count = s.count - 1
      return
    end
    h.member = pack(h)
    add(s, h)
    return h
  end

  -- The hold of this id. Few have the same score.
  local function find(s, id)
    local score = s.exists and redis.call('ZSCORE', s.key, 'i' .. id)
    for _, member in ipairs(score and redis.call('ZRANGEBYSCORE', s.key, score, score) or {}) do
      if member:sub(1, 9) == 'h' .. id then
        local h = read(member)
        if tonumber(score) <= s.latest then return change(s, h, tonumber(score)) end
        return h
      end
    end
  end

  local function own(s, c)
    return c.detail and find(s, c.detail:sub(1, 8))
  end

  function kind.advance(s)
    if now <= s.latest then return end
    s.latest = now
    if not s.exists then return end
    local due = redis.call('ZRANGEBYSCORE', s.key, 0, now, 'WITHSCORES', 'LIMIT', 0, 2 * CHANGES_MAX)
    for i = 1, #due, 2 do
      if due[i]:sub(1, 1) == 'h' then change(s, read(due[i]), tonumber(due[i + 1])) end
    end
    s.dirty = true
  end

  local function worst_of(c, hits)
    local worst = struct.unpack('<d', c.detail, 33)
    return worst > 0 and worst or hits
  end

  -- Whether a hold of so many hits makes a sum too large.
  local function is_too_much(s, c, hits)
    return hits > 0 and not c.reported and max(s.held + hits, s.worst + worst_of(c, hits)) > SUM_MAX
  end

  local function found(s, c, hits)
    local h = own(s, c)
    if not h then return (s.count >= HOLDS_MAX or is_too_much(s, c, hits)) and FULL or NOTHING end
    if h.expires == 0 then return ENDED, h end
    if h.expires <= s.latest then return EXPIRED + (h.till > h.expires and h.worst or 0), h end
    return (c.reported or h.worst == worst_of(c, hits)) and OPEN or OTHER, h
  end

  -- What a hold counts, its worst case, and what still counts once it is ended with this cost. Of an expired hold the surplus goes
  -- back, from its own time: the cost counts as long as the hold would have.
  local function ending(s, h, cost)
    if not counts(h, s.latest) then return 0, 0, 0 end
    return h.hits, h.worst, h.expires <= s.latest and min(h.worst, cost) or 0
  end

  function kind.look(s, c, hits)
    local what, h = found(s, c, hits)
    local others, worst = s.held, s.worst
    if h and (h.expires > s.latest or c.reported and h.expires > 0) then
      local held, most, stays = ending(s, h, hits - 1)
      others, worst = others - held + stays, worst - most + stays
    end
    return hits > 0 and not c.reported and what > OPEN, what, others, worst
  end

  function kind.is_open(what)
    return what == OPEN
  end

  -- What of the cost of a reservation is still to be charged, given what was found.
  function kind.owes(what, cost)
    if what == ENDED then return 0 end
    return max(cost - max(what - EXPIRED, 0), 0)
  end

  function kind.report_max()
    return MOST
  end

  local function insert(s, h)
    s.exists, s.dirty, s.count = true, true, s.count + 1
    add(s, h)
  end

  local function hold(s, c, hits)
    local h = own(s, c)
    local number = c.detail:sub(9, 16)
    if h then
      c.renewed = true
      redis.call('ZREM', s.key, h.member)
      h.number = number
      return add(s, h)
    end
    local begins, ends = struct.unpack('<dd', c.detail, 17)
    local expires = s.latest + c.window
    local till = expires + c.denominator
    if ends > 0 then till = expires < begins and begins or ends end
    local worst = worst_of(c, hits)
    s.held, s.worst = s.held + hits, s.worst + worst
    insert(s, {
      id = c.detail:sub(1, 8), number = number, expires = expires, till = till,
      forgotten = max(till, expires + c.window), hits = hits, worst = worst,
    })
  end

  local function finish(s, c, cost)
    local h = own(s, c)
    local forgotten = s.latest + c.window
    local ended = {
      id = c.detail:sub(1, 8), number = c.detail:sub(9, 16), expires = 0, till = 0, forgotten = forgotten, hits = 0, worst = 0,
    }
    if not h then return s.count < HOLDS_MAX and insert(s, ended) end
    if h.expires == 0 then return end
    local held, worst, stays = ending(s, h, cost)
    s.held, s.worst, s.dirty = s.held - held + stays, s.worst - worst + stays, true
    if stays > 0 then
      ended.till, ended.hits, ended.worst, ended.forgotten = h.till, stays, stays, max(forgotten, h.till)
    end
    redis.call('ZREM', s.key, h.member)
    add(s, ended)
  end

  function kind.charge(s, c, hits)
    if not c.detail then return end
    if c.reported then finish(s, c, hits - 1) else hold(s, c, hits) end
  end

  function kind.charge_at() end

  function kind.refund() end

  -- What was held before stays when another slot of a Cluster denies the request.
  function kind.state(_, c)
    return c.renewed and 1 or 0, 0
  end

  function kind.give_back(s, c, renewed)
    local h = renewed == 0 and own(s, c)
    if not (h and h.expires > 0 and h.number == c.detail:sub(9, 16)) then return end
    if counts(h, s.latest) then s.held, s.worst = s.held - h.hits, s.worst - h.worst end
    redis.call('ZREM', s.key, h.member, 'i' .. h.id)
    s.count, s.dirty = s.count - 1, true
  end

  function kind.save(s)
    if not (s.exists and s.dirty) then return end
    redis.call('ZADD', s.key, 0 - s.held, 'sum', s.latest + BEHIND, 'latest', s.last + BEHIND, 'last')
    if s.worst ~= s.held then
      redis.call('ZADD', s.key, 0 - s.worst, 'worst')
    elseif s.names_worst then
      redis.call('ZREM', s.key, 'worst')
    end
    if s.kept then expire(s.key, s.last) end
  end
  return kind
end
