-- What all algorithms share. Times are whole microseconds of unix time. Numbers are doubles, exact to 2^53: larger
-- products are split, and only redis.call turns a number into text, because it keeps all digits.
--
-- kinds[algorithm] makes the functions of one algorithm when they are first needed. They are the twin of the
-- engine's trait Counter: open (read the counter), advance, look, charge, charge_at (another time), report_max (the
-- most hits that a reported cost adds), refund (the oldest hits first), give_back, state (the numbers that the
-- answer's times are computed from), save.
local floor, max, min = math.floor, math.max, math.min
local MOST = 9007199254740992
local kinds = {}

-- floor(a * b / n) and the rest, for b < 2^56 and n < 2^45: at once, or digit by digit in base 128.
local function muldiv(a, b, n)
  local whole = floor(a / n)
  local rest, quotient, left = a - whole * n, 0, 0
  if rest * b < MOST then
    quotient = floor(rest * b / n)
    return whole * b + quotient, rest * b - quotient * n
  end
  local digits, unit = b, 562949953421312
  while unit >= 1 do
    local digit = floor(digits / unit)
    digits = digits - digit * unit
    local part = left * 128 + rest * digit
    local times = floor(part / n)
    quotient, left = quotient * 128 + times, part - times * n
    unit = unit / 128
  end
  return whole * b + quotient, left
end

-- Expiry is never early: whole milliseconds, rounded up.
local function expire(key, micros)
  redis.call('PEXPIREAT', key, math.ceil(micros / 1000) + shift)
end

-- The count after what earlier descriptors of the request do to the counter.
local function after_ahead(s, count)
  return max(count - s.given, 0) + s.taken
end

-- over, left, before: for `hits` more on a counter of `count` hits. A check of 0 hits looks for room for one.
local function look_at_count(capacity, count, hits)
  local left = max(capacity - count, 0)
  return max(hits, 1) > left, left, count
end

-- The most hits that are added in any case to a count of 32 bits.
local function room_of_count(count)
  return max(4294967295 - count, 0)
end

-- A counter holds N, and debts of so many windows or periods: a bucket what drains in them. `pays` of a check: its limit carries debts, and each window
-- or period pays so many hits of them. See the engine's debt.rs.
local DEBT_WINDOWS = 16

local function room_of_debt(c, count)
  return max(min((1 + DEBT_WINDOWS) * c.pays, MOST) - count, 0)
end

-- The place of the first entry with at least this sum.
local function place_through(s, sum, reaching)
  return s.first_sum >= sum and s.first or reaching(s, sum)
end

-- The most hits that a reported cost adds to the counter of a strict algorithm. Where others take the room of debts,
-- as many as make N that count for a window from this place.
local function report_room(s, c, place, debts)
  local count = after_ahead(s, s.sum - s.base)
  local room = room_of_count(count)
  if not c.pays then return room end
  local carried = room_of_debt(c, count)
  if carried < c.pays then carried = max(carried, c.pays - debts.count(s, c, debts.after(c, place) - 1)) end
  return min(room, carried)
end

-- Charges a reported cost: what fits at the newest place goes there, and then pieces of at most N each to the first
-- place at which that many fit. What is not carried goes to the last of these places.
-- debts.count(s, c, place): the hits that still count there; debts.after(c, place): where those of a place do not count
-- any more; debts.put.
local function charge_debt(s, c, cost, place, last, debts)
  place = max(place, s.newest or 0)
  local carried = min(cost, room_of_debt(c, s.sum - s.base))
  local beyond = cost - carried
  local piece = min(carried, max(c.pays - debts.count(s, c, place), 0))
  while true do
    if piece > 0 then debts.put(s, c, place, piece) end
    carried = carried - piece
    if carried <= 0 then break end
    piece = min(carried, c.pays)
    local gone = place_through(s, s.sum + piece - c.pays, debts.reaching)
    place = max(place, min(debts.after(c, gone), last))
  end
  if beyond > 0 then debts.put(s, c, place, beyond) end
end

-- The state of both strict algorithms: the place whose end brings room for `hits` (-1: there is room already, -2:
-- never), and the newest place. reaching(s, sum) is the place of the first entry with at least this sum.
local function place_state(s, c, hits, over, reaching)
  local total = s.sum - s.base
  if total == 0 and not over then return -1, -1 end
  if hits > c.requests then return -2, s.newest or -1 end
  if total + hits <= c.requests then return -1, s.newest or -1 end
  local through = s.base + total + hits - c.requests
  return place_through(s, through, reaching), s.newest
end

-- A state in one short string: `format` packs these fields. `kept` is set when its expiry moves. `rare`, if there is
-- such a field, is a number behind them, packed by `rare_format`, which is left out when it is 0.
local function packed(format, fields, rare, rare_format)
  local kind, rare_bytes = {}, rare and #struct.pack(rare_format, 0)
  function kind.open(key)
    local s = { key = key, latest = 0 }
    for _, field in ipairs(fields) do s[field] = 0 end
    if rare then s[rare] = 0 end
    local text = redis.call('GET', key)
    if text then
      s.exists = true
      local values = { struct.unpack(format, text) }
      for i, field in ipairs(fields) do s[field] = values[i] end
      -- Behind the values, unpack returns where the next one would be.
      local at = values[#values]
      if rare and #text - at + 1 >= rare_bytes then s[rare] = struct.unpack(rare_format, text, at) end
    end
    return s
  end
  function kind.save(s)
    if not (s.exists and s.dirty) then return end
    local values = {}
    for i, field in ipairs(fields) do values[i] = s[field] end
    local text = struct.pack(format, unpack(values))
    if rare and s[rare] > 0 then text = text .. struct.pack(rare_format, s[rare]) end
    redis.call('SET', s.key, text, 'KEEPTTL')
    if s.kept then expire(s.key, s.kept) end
  end
  return kind
end
