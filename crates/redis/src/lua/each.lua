-- Calls that came together, each of one check: KEYS[i], and two arguments each as decide.lua has them. Each is decided as
-- if it came by itself, one after the other; one that fails does so alone. The reply: one a call.
local replies = {}
for i = 1, #KEYS do
  local fine, reply = pcall(decide, { KEYS[i] }, { ARGV[2 * i - 1], ARGV[2 * i] })
  -- An error is a text, or a table that holds one, as the server's version has it.
  replies[i] = (fine or type(reply) == 'table') and reply or { err = reply }
end
return replies
