-- Where the audit keeps what it has seen of the tests' databases, in the server's maintenance database.

create extension pg_stat_statements;
create schema audit;

create table audit.statement (
    digest text primary key,
    query  text not null
);

create table audit.function (
    name    text primary key,
    inlined boolean not null,
    called  boolean not null
);

-- A database that was dropped, and what its functions were.
create procedure audit.keep(dropped oid, functions jsonb) language plpgsql as $$
begin
    -- In one order, so that two of these never wait for each other.
    insert into audit.statement (digest, query)
    select distinct on (1) md5(s.query), s.query from pg_stat_statements s
    where s.dbid = dropped and s.query is not null
    order by 1
    on conflict do nothing;
    perform pg_stat_statements_reset(0, dropped, 0),
            -- Where databases are made and dropped, each by a statement of its own.
            pg_stat_statements_reset(0, (select d.oid from pg_database d where d.datname = current_database()), 0);
    insert into audit.function as f (name, inlined, called)
    select x.name, bool_and(x.inlined), bool_or(x.called)
    from jsonb_to_recordset(functions) x(name text, inlined boolean, called boolean)
    group by x.name
    order by x.name
    on conflict (name) do update set called = true where excluded.called and not f.called;
end $$;
