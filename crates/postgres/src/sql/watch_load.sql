-- The next existing rows, in order of their key, as inserts.
with state as materialized (
    select w.loaded_to from changefeed.watch w where w.name = {name} and w.loading
),
picked as materialized (
    select {t_as_k}, row_number() over (order by {t_keys}) as place
    from state cross join lateral (
        select * from {table} t where changefeed.same_row(t.*, $1) and ({resume})
        order by {t_keys} limit {chunk}
    ) t
),
added as (
    insert into changefeed.{leases} ({keys}, _changefeed_change_version, _changefeed_operation)
    select {p_k}, (select nextval('changefeed.change_version')) + p.place, 0
    from picked p
    where (select q.ctid from changefeed.{leases} q where {same_key}) is null
),
kept as (
    update changefeed.watch w
    set loaded_to = coalesce(
            (select jsonb_build_array({p_texts}) from picked p order by p.place desc limit 1),
            w.loaded_to),
        loading = (select count(*) from picked) = {chunk}
    where w.name = {name} and w.loading
    returning w.loading
)
select coalesce((select k.loading from kept k), false)
