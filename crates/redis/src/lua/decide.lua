-- One request, or the part of it whose counters live in one slot: look at all counters, settle, charge. The twin of
-- the engine's settle.rs and of the memory store.
--
-- A candidate is a limit on trial: it has a counter of its own, and is settled as if it stood in for another check.
--
-- KEYS: the counters. ARGV: see alone.lua. The reply is doubles: now; then for each check over, before, left,
-- charged, latest, wanted, and the two numbers of its algorithm's state, three for a bucket; then for each lease
-- that was asked for its hits and its stamp. over: 1, and 2 more if the counter is cold. When the call came too late:
-- now alone.
local GIVES, REPORTED, SHADOW, QUOTA, LEASE, CANDIDATE, DETAIL, RESERVES = 1, 2, 4, 8, 16, 32, 64, 128
-- A lease is at most this part of the rest: near the limit hits are asked for one at a time.
local LEASE_PART = 8
local function has(flags, flag) return bit.band(flags, flag) ~= 0 end

local checks, counters, made = {}, {}, {}
-- By rule: by the place of a check, the candidate that stands in for it.
local trials
any_over, denied = any_over == 1, denied == 1

local function kind_of(algorithm)
  local kind = made[algorithm]
  if not kind then
    kind = kinds[algorithm]()
    made[algorithm] = kind
  end
  return kind
end

local function open(c)
  if counters[c.place] then return end
  local kind = kind_of(c.algorithm)
  local s = kind.open(KEYS[c.place])
  s.kind, s.taken, s.given, s.charged, s.reserved = kind, 0, 0, 0, 0
  counters[c.place] = s
end

local function charged(c, s, passes, stopping, banned)
  if c.gives or c.reserves or c.bounds then return 0 end
  if c.algorithm == FIXED_WINDOW then
    local stops = stopping and not c.over or banned
    return stops and not c.reported and 0 or c.hits
  end
  if c.reported then return min(c.hits, s.kind.report_max(s, c)) end
  return passes and not c.over and c.hits or 0
end

-- Charges unsynced hits: pairs of microseconds since they were admitted, and hits.
local function charge_unsynced(c, s, packed, at)
  while at < #packed do
    local age, hits
    age, hits, at = struct.unpack('<dd', packed, at)
    s.kind.charge_at(s, c, now - age, hits)
  end
end

-- A counter that may have lost hits counts as full, whatever it holds.
local function fill_if_cold(c)
  if not (is_cold and is_cold(c.algorithm, c.requests, c.denominator, c.window)) then return end
  c.cold, c.left, c.before = true, 0, c.burst
  c.over = not c.gives and (c.hits > 0 or c.algorithm ~= FIXED_WINDOW)
end

local function look(c, s)
  s.kind.advance(s, c)
  charge_unsynced(c, s, c.packed, c.unsynced_at)
  c.ahead = s.taken - s.reserved
  if c.gives then
    local newest = min(c.hits, c.ahead)
    s.taken, s.given = s.taken - newest, min(s.given + c.hits - newest, MOST)
    c.over, c.left, c.before = s.kind.look(s, c, 0)
    fill_if_cold(c)
  else
    local taken, given = s.taken, s.given
    -- A bound is asked after what was pending for its limit, with the worst cases in place of the holds.
    if c.bounds then c.ahead, s.taken, s.given = c.bounds.ahead, c.bounds.ahead + c.reserved, c.bounds.given end
    c.given = s.given
    c.over, c.left, c.before = s.kind.look(s, c, c.hits)
    if c.bounds then s.taken, s.given = taken, given end
    fill_if_cold(c)
    if c.repeats then c.over = false end
    local held = c.reserves and not c.bounds and not c.over and c.hits
    s.taken = min(s.taken + (held or charged(c, s, true, false)), MOST)
  end
end

-- What is held of a limit counts as if an earlier descriptor took it. What is not charged any more of the cost of a
-- reservation is left out. `requests` is the place of the limit's check, `burst` that of the bound on its worst cases.
local function look_at_holds(c)
  local s, limited, bound = counters[c.place], checks[c.requests], checks[c.burst]
  c.ahead = 0
  s.kind.advance(s, c)
  local worst
  c.over, c.left, c.before, worst = s.kind.look(s, c, c.hits)
  if limited then
    local of = counters[limited.place]
    of.reserved, of.taken = c.before, c.before
    if c.reported then limited.hits = s.kind.owes(c.left, limited.hits) end
  end
  if not c.reported then fill_if_cold(c) end
  -- A reservation that is made again is answered as the first time, also if costs have gone beyond the limit since.
  if limited then limited.repeats = limited.reserves and s.kind.is_open(c.left) end
  if bound then bound.bounds, bound.reserved, bound.reserves, bound.repeats = limited, worst, limited.reserves, limited.repeats end
end

-- Another program may have written a value under a key. All are read before anything is written, so that a call
-- that fails has done nothing.
for i = 2, #ARGV do
  local c, at = { packed = ARGV[i] }
  c.place, c.algorithm, c.flags, c.requests, c.burst, c.window, c.numerator, c.denominator, c.hits, at =
    struct.unpack('<I4BBdddBdd', c.packed)
  if c.algorithm >= CARRIES then
    c.algorithm, c.pays, c.burst = c.algorithm - CARRIES, max(c.burst, 1), c.requests
  end
  c.gives, c.reported = has(c.flags, GIVES), has(c.flags, REPORTED)
  c.reserves = has(c.flags, RESERVES)
  if has(c.flags, DETAIL) then
    local bytes = c.algorithm == HOLDS and 40 or 16
    c.detail, at = c.packed:sub(at, at + bytes - 1), at + bytes
  end
  if has(c.flags, LEASE) then c.lease, c.lease_time, at = struct.unpack('<dd', c.packed, at) end
  if has(c.flags, CANDIDATE) then
    c.of, c.trial, at = struct.unpack('<dd', c.packed, at)
    trials = trials or {}
    trials[c.trial] = trials[c.trial] or {}
    trials[c.trial][c.of] = c
  end
  c.unsynced_at = at
  open(c)
  checks[#checks + 1] = c
end

for _, c in ipairs(checks) do
  if c.algorithm == HOLDS then look_at_holds(c) end
end
for _, c in ipairs(checks) do
  if c.algorithm ~= HOLDS then look(c, counters[c.place]) end
end
for _, s in pairs(counters) do s.taken, s.given = 0, 0 end

-- Whether the request passes, whether fixed windows that are not over are not charged, and whether it is banned: with the checks as they
-- are, or with candidates that stand in for some.
local function settled(instead)
  local any_over, denied, quotas, quotas_over = any_over, denied, quotas, quotas_over
  local banned = stop == 2
  for i, c in ipairs(checks) do
    if not c.of then
      local asked = instead and instead[i] or c
      local over = asked.over and not has(c.flags, SHADOW)
      -- A ban that denies nobody is no limit that is over.
      any_over = any_over or asked.over and (over or c.algorithm ~= BAN)
      banned = banned or over and c.algorithm == BAN
      if has(c.flags, QUOTA) then
        quotas = quotas + 1
        if over then quotas_over = quotas_over + 1 end
      else
        denied = denied or over
      end
    end
  end
  return not denied and (quotas == 0 or quotas_over < quotas), stop == 1 and any_over, banned
end

local passes, stopping, banned = settled()
for trial, instead in pairs(trials or {}) do trials[trial] = { settled(instead) } end
local reply = { now }
for _, c in ipairs(checks) do
  local s = counters[c.place]
  local charge
  if c.of then
    charge = charged(c, s, unpack(trials[c.trial]))
  else
    charge = charged(c, s, passes, stopping, banned)
  end
  local wanted = max(c.gives and 0 or c.hits, 1) + max(c.ahead - s.charged, 0)
  -- A client that reports a cost does not ask for it again.
  if c.reported and c.over then wanted = 1 end
  if charge > 0 then
    s.kind.charge(s, c, charge)
    s.charged = s.charged + charge
  end
  -- What a cold counter holds came later than the hits that a client gives back.
  if c.gives and s.exists and not c.cold then s.kind.refund(s, c, c.hits) end
  local left = c.left
  if c.algorithm ~= HOLDS then left = select(2, s.kind.look(s, c, 0)) end
  if c.cold then left = 0 end
  -- What only holds make over waits for nothing that is known.
  local held = c.reserved or s.reserved
  local only_held = c.over and held > 0 and not c.cold and not s.kind.look(s, c, wanted)
  local one, other, third = s.kind.state(s, c, c.over and not only_held and wanted or left + 1, c.over and not only_held)
  local reserved = held + (c.reserves and passes and not c.over and c.hits or 0)
  if reserved > 0 then left = max(left - reserved, 0) end
  local over = (c.over and 1 or 0) + (c.cold and 2 or 0) + (only_held and 4 or 0)
  for _, number in ipairs({ over, c.before, left, charge, s.latest, wanted, one, other, third }) do
    reply[#reply + 1] = number
  end
end
-- The hits of a lease count as if they all happened when it ends. They are charged last, so that they take no room
-- from the request itself.
for _, c in ipairs(checks) do
  if c.lease then
    local s = counters[c.place]
    local _, left = s.kind.look(s, c, 0)
    local hits = (c.over or c.cold) and 0 or min(c.lease, floor(left / LEASE_PART))
    if hits < 2 then hits = 0 end
    if hits > 0 then s.kind.charge_at(s, c, s.latest + c.lease_time, hits) end
    reply[#reply + 1] = hits
    reply[#reply + 1] = hits > 0 and s.newest or 0
  end
end
for _, s in pairs(counters) do
  if s.kind.save then s.kind.save(s) end
end
-- So many numbers at a time fit on Lua's stack.
local packed = {}
for first = 1, #reply, 500 do
  local last = min(first + 499, #reply)
  packed[#packed + 1] = struct.pack('<' .. ('d'):rep(last - first + 1), unpack(reply, first, last))
end
return table.concat(packed)
