-- Rights ---------------------------------------------------------------------------------------------

-- Nobody but the owner of the schema makes anything in it: whoever could, would decide what functions
-- of ours and their callers do. What workers need is granted by grant_worker(), which the owner calls,
-- for the watches that there are and for all that are made later. It grants no more than that: with
-- the tables of event triggers or tokens, for instance, a worker could do whatever the owner can.

-- Grants to a worker what was made for one table or function.
create function changefeed.grant_watch(ours text, worker regrole) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    execute format('grant %s on changefeed.%I to %s',
                   case when ours ~ '^backlog_' then 'select'
                        when ours ~ '^changes_' then 'select, delete'
                        when ours = 'global_state' then 'select, insert, update'
                        else 'select, insert, update, delete' end, ours, worker);
end $$;

create function changefeed.grant_worker(worker regrole) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    execute replace(
        'grant usage on schema changefeed to {worker};
         grant select on changefeed.schema_version, changefeed.watch, changefeed.watched_table,
             changefeed.watch_backlog to {worker};
         grant update (loading, loaded_to) on changefeed.watch to {worker};
         grant usage on sequence changefeed.change_version, changefeed.lease_generation to {worker};
         grant execute on function changefeed.watch_count, changefeed.table_signature,
             changefeed.readable, changefeed.page_columns, changefeed.safe_value,
             changefeed.base_type, changefeed.hold_table, changefeed.unreadable,
             changefeed.same_row, changefeed.noted_time, changefeed.keep_time, changefeed.few_images to {worker};
         grant execute on procedure changefeed.await_commit to {worker}',
        '{worker}', worker::text);
    perform changefeed.grant_watch(c.relname, worker)
    from pg_class c
    where c.relnamespace = 'changefeed'::regnamespace
      and (c.relkind = 'r' and c.relname ~ '^(global_state|changes_[0-9]+|leases_[0-9a-f]{16}_[0-9]+)$'
           or c.relkind = 'v' and c.relname ~ '^backlog_[0-9a-f]{16}$');
end $$;

-- Gives what was made for a watch to the owner of the schema, if a superuser or a member of the owner
-- has made it, and a table or view also to all workers: those who may write to global_state.
create function changefeed.hand_over(ours text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    owner regrole := (select n.nspowner from pg_namespace n where n.nspname = 'changefeed');
begin
    if exists (select from pg_proc p where p.pronamespace = 'changefeed'::regnamespace
                 and p.proname = ours and p.proowner <> owner) then
        execute format('alter function changefeed.%I() owner to %s', ours, owner);
    end if;
    if exists (select from pg_class c where c.relnamespace = 'changefeed'::regnamespace
                 and c.relname = ours and c.relowner <> owner) then
        execute format('alter table changefeed.%I owner to %s', ours, owner);
    end if;
    perform changefeed.grant_watch(ours, w.grantee)
    from (select distinct a.grantee
          from pg_class c, aclexplode(c.relacl) a
          where c.oid = to_regclass('changefeed.global_state') and a.privilege_type = 'INSERT'
            and a.grantee <> c.relowner and a.grantee <> 0) w
    where exists (select from pg_class c where c.relnamespace = 'changefeed'::regnamespace
                    and c.relname = ours);
end $$;

revoke all on all functions in schema changefeed from public;
revoke all on all procedures in schema changefeed from public;
grant execute on function changefeed.refuse_change() to public;
