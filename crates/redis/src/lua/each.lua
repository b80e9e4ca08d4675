-- Calls that came together, each of one check: KEYS[i], and two arguments as for decide.lua. Each is decided as if
-- it came alone, one after the other; one that fails does so alone. The reply has one element for each call.
local replies = {}
for i = 1, #KEYS do
  local fine, reply = pcall(decide, { KEYS[i] }, { ARGV[2 * i - 1], ARGV[2 * i] })
  if fine and with_since then reply = with_since(reply) end
  -- An error is a text, or a table that holds one, depending on the server's version.
  replies[i] = (fine or type(reply) == 'table') and reply or { err = reply }
end
return replies
