-- Asks Tidegate whether a request may pass. Used by haproxy.cfg beside it:
--
--   http-request lua.tidegate <address> <domain>
--
-- Sets txn.tidegate to the status of the answer (200, 429 and so on; 0: there was none) and txn.tidegate_limit,
-- _remaining, _reset and _retry_after to its headers. Only the headers below reach Tidegate, so that a client can describe
-- nothing else.

-- Headers of the client that the rules name in `request_headers` or `header_value_match`.
local CLIENT_HEADERS = { "x-api-key" }

-- How long an answer may take at most, in milliseconds. `timeout server` in `listen tidegate` is shorter and ends it first.
local TIMEOUT = 1000

local ANSWER = {
    ["ratelimit-limit"] = "txn.tidegate_limit",
    ["ratelimit-remaining"] = "txn.tidegate_remaining",
    ["ratelimit-reset"] = "txn.tidegate_reset",
    ["retry-after"] = "txn.tidegate_retry_after",
}

-- A host has one name in lower case, whatever the client writes, and no port.
local function host(txn)
    local name = (txn.f:req_hdr("host") or ""):lower():gsub(":%d*$", "")
    return name
end

local function ask(txn, address, domain)
    local description = {
        ["host"] = { host(txn) },
        ["x-original-uri"] = { txn.f:pathq() },
        ["x-original-method"] = { txn.f:method() },
        ["x-forwarded-for"] = { txn.f:src() },
    }
    local headers = txn.http:req_get_headers()
    for _, name in ipairs(CLIENT_HEADERS) do
        if headers[name] then
            description[name] = { headers[name][0] }
        end
    end
    local answer = core.httpclient():get({
        url = "http://" .. address .. "/check/" .. domain,
        headers = description,
        timeout = TIMEOUT,
    })
    txn:set_var("txn.tidegate", answer and answer.status or 0)
    for name, variable in pairs(ANSWER) do
        local values = answer and answer.headers and answer.headers[name]
        if values then
            txn:set_var(variable, values[0])
        end
    end
end

core.register_action("tidegate", { "http-req" }, ask, 2)
