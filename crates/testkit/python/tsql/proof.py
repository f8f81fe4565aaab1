"""Batches with a mistake each. A judge that lets one of them pass is not believed."""

TABLES = """
create schema app;
GO
create table app.item (id int not null primary key, name nvarchar(10) null);
GO
create sequence app.numbers as bigint;
GO
create procedure app.take @id int, @note nvarchar(10) = null as select @id, @note;
GO
create function app.twice (@id int) returns int as begin return 2 * @id end;
"""

# Nothing is wrong with these.
SOUND = {
    "parameters": "declare @id int = @P1; select i.name from app.item i where i.id = @id",
    "named arguments": "exec app.take @id = @P1; exec app.take 1, N'x'",
    "table variable": """declare @new table (id int);
        insert into app.item (id) output inserted.id into @new (id) values (1);
        with n as (select id from @new) select n.id from n""",
    "changes": "select c.SYS_CHANGE_VERSION, c.id from changetable(changes app.item, @P1) c",
    "later changes": "declare @v bigint = 1; select c.id from changetable(changes app.item, @v) c",
    "dynamic": "exec sys.sp_executesql N'select @a', N'@a int', @a = 1",
    "astral": "/* \U0001f600 */ declare @\U00020000 table (a int); select a from @\U00020000 -- \U0001f600",
    "trigger": "create trigger app.t on app.item after insert as select i.id from inserted i",
    "trigger again": "create or alter trigger app.t on app.item after delete as select d.id from deleted d",
}

# A part of what must be said about each.
BROKEN = {
    "syntax": ("create table (id int)", "Incorrect syntax"),
    "keyword": ("selct 1 from app.item", "Incorrect syntax"),
    "unclosed": ("if 1 = 1 begin select 1", "Unexpected end"),
    "later syntax": ("select 1 where 1 is distinct from 2", "Incorrect syntax"),
    "later function": ("select greatest(1, 2)", "greatest is not in the list"),
    "later table function": ("select s.value from generate_series(1, 2) s", "generate_series"),
    "global variable": ("select @@rowcounts", "@@rowcounts"),
    "column": ("select i.nam from app.item i", "[nam]"),
    "column of insert": ("insert into app.item (id, nam) values (1, N'')", "[nam]"),
    "column of update": ("update i set nam = N'' from app.item i", "[nam]"),
    "column of output": ("delete from app.item output deleted.nam", "[nam]"),
    "column of merge": (
        "merge app.item as i using (select 1 as id) s on s.id = i.id when matched then update set nam = N'';",
        "[nam]",
    ),
    "column of query": ("with c as (select id from app.item) select c.nam from c", "c.nam"),
    "column of table variable": ("declare @t table (id int); select t.nam from @t t", "[nam]"),
    "column of temporary table": ("create table #t (id int); select t.nam from #t t", "[nam]"),
    "column of the system": ("select o.nam from sys.objects o", "[nam]"),
    "column of trigger": (
        "create trigger app.u on app.item after insert as select i.nam from inserted i",
        "[nam]",
    ),
    "table": ("select 1 from app.itm", "[itm]"),
    "table of the system": ("select 1 from sys.objcts", "[objcts]"),
    "sequence": ("select next value for app.number", "[number]"),
    "procedure": ("exec app.tak", "[tak]"),
    "function": ("select app.twce(1)", "[twce]"),
    "type": ("declare @x app.thing; select @x", "[thing]"),
    "variable": ("declare @id int; select @ids", "@ids"),
    "variable twice": ("declare @id int; declare @id int", "@id"),
    "argument": ("exec app.take @id = 1, @nte = N''", "@nte"),
    "argument of the system": ("exec sp_getapplock @Resource = N'', @Mode = 'Shared'", "@Mode"),
    "argument missing": ("exec app.take @note = N''", "must be given @id"),
    "arguments": ("exec app.take 1, N'', 3", "takes 2 arguments, not 3"),
    "arguments of function": ("select app.twice(1, 2)", "takes 1 arguments, not 2"),
    "values": ("insert into app.item (id, name) values (1)", "2 columns, but 1 values"),
    "selected": ("insert into app.item (id, name) select 1", "2 columns, but 1 are selected"),
    "union": ("select 1 union all select 1, 2", "one side has 1 columns, the other 2"),
}
