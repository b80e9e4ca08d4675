if (alone == TOKEN_BUCKET or alone == LEAKY_BUCKET) and requests > 0 and window * requests < MOST then
  local text, latest, level, rest, stored_requests, taken_back = call('GET', KEYS[1]), 0, 0, 0, requests, 0
  if text then latest, level, rest, stored_requests, taken_back = struct.unpack('<dddI4d', text) end
  -- A longer text has something above burst.
  if stored_requests == requests and not (text and #text > 36) and (level + hits) * window < MOST then
    local saved = text and now > latest
    if now > latest then
      local windows = floor((now - latest) / window)
      local drained = (now - latest - windows * window) * requests
      local whole = floor(drained / window)
      level, rest = level - windows * requests - whole, rest - drained + whole * window
      if rest < 0 then level, rest = level - 1, rest + window end
      if level < 0 then level, rest = 0, 0 end
      latest = now
    end
    local before = level + (rest > 0 and 1 or 0)
    local left, charged, kept = burst > before and burst - before or 0, 0
    local over = wanted > left
    if not (over and reported) then
      if hits > 0 and not over then
        level, left, charged, saved = level + hits, left - hits, hits, true
        local micros = floor(level * window / requests)
        kept = ceil((latest + micros + ceil((level * window - micros * requests + rest) / requests)) / 1000) + shift
      end
      if saved then
        call('SET', KEYS[1], struct.pack('<dddI4d', latest, level, rest, requests, taken_back), 'KEEPTTL')
      end
      if kept then call('PEXPIREAT', KEYS[1], kept) end
      over = over and 1 or 0
      return pack('<dddddddddd', now, over, before, left, charged, latest, wanted, level, rest, taken_back)
    end
  end
end
