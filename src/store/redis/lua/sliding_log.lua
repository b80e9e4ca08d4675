-- sliding_log: a place is the time of its hits.
kinds[0] = function()
  return log(
    function(c, time) return time end,
    function(c, time) return time - c.window end,
    function(c, place) return place + c.window end)
end
