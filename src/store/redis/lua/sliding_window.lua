-- sliding_window: a place is the number of a bucket, floor(time * numerator / denominator).
kinds[1] = function()
  local function bucket_of(c, time)
    return (muldiv(time, c.numerator, c.denominator))
  end
  local function counts_until(c, bucket)
    local whole, rest = muldiv(bucket + 1, c.denominator, c.numerator)
    return whole + (rest > 0 and 1 or 0) + c.window
  end
  return log(bucket_of, function(c, time) return bucket_of(c, time - c.window) - 1 end, counts_until)
end
