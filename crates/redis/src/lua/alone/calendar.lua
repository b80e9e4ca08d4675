if alone == CALENDAR then
  local text, latest, count, ends = call('GET', KEYS[1]), 0, 0, 0
  if text then latest, count, ends = struct.unpack('<ddd', text) end
  if now > latest then latest = now end
  -- See calendar.lua: window is the begin of a period, denominator its end.
  local own = latest < window and window or denominator
  if ends <= latest or count == 0 and own > latest then count, ends = 0, own end
  local before, left = count, requests > count and requests - count or 0
  local over = wanted > left
  local charged = over and 0 or hits
  -- A reported cost that does not fit is charged in decide.lua.
  if not (over and reported) then
    if charged > 0 and own > ends then ends = own end
    if text or charged > 0 then
      call('SET', KEYS[1], struct.pack('<ddd', latest, count + charged, ends), 'KEEPTTL')
      call('PEXPIREAT', KEYS[1], ceil(ends / 1000) + shift)
    end
    return pack('<ddddddddd', now, over and 1 or 0, before, left - charged, charged, latest, wanted, count + charged, ends)
  end
end
