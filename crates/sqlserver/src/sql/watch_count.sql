-- What a function still has to process. Counts what nobody has moved yet too, so that it also tells
-- when no worker is left to do that. Whoever asks waits for nobody, and may count what is just being moved
-- once or twice.
create function changefeed.count_{function_id} ()
returns @count table (unprocessed bigint not null, leased bigint not null, parked bigint not null,
                      last_error nvarchar(max) null) as
begin
    declare @since bigint = (select t.tracked_version from changefeed.watched_table t with (readuncommitted)
                             where t.table_id = {table_id});
    insert into @count (unprocessed, leased, parked, last_error)
    select count_big(case when q._changefeed_parked_time is null then 1 end)
           + (select count_big(*) from (select distinct {x_keys} from {changes}
                                        where not exists (select 1 from changefeed.{leases} q with (readuncommitted)
                                                          where {same_key} and q._changefeed_parked_time is null)) m),
           count_big(case when q._changefeed_lease_expiration_time > sysutcdatetime() then 1 end),
           count_big(case when q._changefeed_parked_time is not null then 1 end),
           (select top (1) e._changefeed_last_error from changefeed.{leases} e with (readuncommitted)
            where e._changefeed_last_error is not null order by e._changefeed_change_version desc)
    from changefeed.{leases} q with (readuncommitted);
    return;
end
