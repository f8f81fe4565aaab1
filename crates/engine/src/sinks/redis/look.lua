-- The newest id of the stream KEYS[1], and the first field of the entry that has it, if it is still there.
if redis.call('EXISTS', KEYS[1]) == 0 then return {'0-0', ''} end
local info = redis.call('XINFO', 'STREAM', KEYS[1])
local last, field = '0-0', ''
for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then last = info[i + 1] end
end
for i = 1, #info, 2 do
    if info[i] == 'last-entry' and info[i + 1] and info[i + 1][1] == last then field = info[i + 1][2][1] end
end
return {last, field}
