-- What the server's change tracking knows since we last asked. Its versions are given to transactions
    -- when they commit. The current one and the changes up to it are read in one snapshot: without it, a
    -- transaction in the middle of its commit could have a version that we believe to have seen. Whether
    -- somebody else has moved the same meanwhile shows in the update that follows.
    --
    -- A snapshot is of when something is first read in it, so the current version is asked for before that:
    -- what is committed in between has a later one.
    set transaction isolation level snapshot;
    begin transaction;
    set @until = change_tracking_current_version();
    select @since = t.tracked_version, @known = t.tracked_in
    from changefeed.watched_table t where t.table_id = {table_id};
    set @floor = change_tracking_min_valid_version({table_id});
    if @until is null or @floor is null
        throw 55701, 'changefeed: change tracking of the table was switched off, or the user may not see it', 1;
    -- Behind what is retained, or of another life of the database: changes are lost.
    if @since < @floor or @since > change_tracking_current_version()
        set @missed = concat(N'changes after version ', @since, N' of change tracking, which retains those after ',
                             @floor, N' and is at ', @until);
    else
    begin
        -- Somebody else was faster, after we had asked.
        if @since > @until
            set @until = @since;
        insert into @scanned ({k}, place, operation, [columns])
        select top ({chunk}) with ties {c_keys}, c.SYS_CHANGE_VERSION,
               case c.SYS_CHANGE_OPERATION when N'I' then 0 when N'U' then 1 else 2 end, {tracked_columns}
        from changetable(changes {table}, @since) c
        where c.SYS_CHANGE_VERSION <= @until
        order by c.SYS_CHANGE_VERSION;
    end;
    -- Read after the changes: if these are of another life of change tracking, so is this. Null where
    -- the user may not see it.
    set @noted = {tracked_in};
    if @noted <> @known
        set @missed = N'change tracking of the table was switched off and on again, or the table was truncated';
    commit transaction;
    set transaction isolation level read committed;
    -- With ties: all keys of a transaction have its version.
    if (select count(*) from @scanned) >= {chunk}
        set @until = (select max(s.place) from @scanned s);
