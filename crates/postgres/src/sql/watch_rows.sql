-- The rows of a batch, as they are now. One that is gone by now is a delete already.
select q._changefeed_change_version,
       case when {gone} then 2 else q._changefeed_operation end,
       case when {gone} then (select row_to_json(changefeed_key)::text
                              from (select {key_item}) changefeed_key)
            else row_to_json(changefeed_row)::text end
from changefeed.{leases} q
left join {table} changefeed_row on {row_key}
where q._changefeed_change_version between {from} and {to}
  and q._changefeed_lease_generation = {generation} and q._changefeed_parked_time is null
order by q._changefeed_change_version
