if alone == SLIDING_WINDOW and numerator * denominator < MOST then
  local reply, granted =
    decide_window(KEYS[1], requests, window, numerator, denominator, hits, lease, lease_time, reported)
  if reply then return pack('<d', now) .. reply .. (granted or '') end
end
