-- The clock of the contract suite: its last two arguments are the time in microseconds, and the milliseconds by which
-- expiry is moved, so that no key goes while the suite's own time stands still.
local shift = tonumber(table.remove(ARGV))
local now = tonumber(table.remove(ARGV))
