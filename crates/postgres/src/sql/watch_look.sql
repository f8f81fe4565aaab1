-- Whether there is anything to do: changes to be moved, or rows that nobody holds.
select pg_current_snapshot()::text,
       exists (select from changefeed.{log} l
               where l._changefeed_xid >= pg_snapshot_xmax('{snapshot}'::pg_snapshot)
                 and l._changefeed_xid < pg_snapshot_xmax(pg_current_snapshot()))
       or exists (select from changefeed.{log} l
                  where l._changefeed_xid = any(array(
                      select x from pg_snapshot_xip('{snapshot}'::pg_snapshot) x
                      where pg_visible_in_snapshot(x, pg_current_snapshot())))),
       exists (select from changefeed.{leases} q
               where q._changefeed_change_version > {floor} and q._changefeed_parked_time is null
                 and q._changefeed_lease_generation is null)
