"""Writes ULIDs by the documented T-SQL alone, with a driver that is not ours.

usage: sqlserver_ulids.py URL FEED ROUNDS NAME

Every round is one ULID transaction of three rows, by turns in one batch and statement by
statement. What fails with a number of ours is done again, as docs/ulids.md says. Prints the ULIDs
that were committed, one per line.
"""

import sys
from urllib.parse import unquote, urlsplit

import pymssql

INCIDENT, BUSY, BURNED = 55601, 55602, 55603

BATCH = """
set xact_abort on;
begin transaction;
exec changefeed.begin_ulid_transaction @feed_id = %(feed)s, @shard_id = 0;
declare @ulid binary(16);
exec changefeed.new_ulid @ulid = @ulid output;
insert into event (shard, ulid, note) values (0, @ulid, %(note)s);
insert into event (shard, ulid, note)
select 0, changefeed.ulid_sequence(next value for changefeed.sequence), %(note)s
from (values (1), (2)) two (n);
exec changefeed.commit_ulid_transaction;
commit transaction;
"""


def connect(url):
    parts = urlsplit(url)
    return pymssql.connect(
        server=parts.hostname,
        port=str(parts.port or 1433),
        user=unquote(parts.username),
        password=unquote(parts.password),
        database=parts.path.strip("/"),
        autocommit=True,
    )


def statement_by_statement(cursor, feed, note):
    cursor.execute("set xact_abort on")
    cursor.execute("begin transaction")
    cursor.execute("exec changefeed.begin_ulid_transaction %s, 0", (feed,))
    for _ in range(3):
        cursor.execute(
            "declare @ulid binary(16); exec changefeed.new_ulid @ulid = @ulid output; "
            "insert into event (shard, ulid, note) values (0, @ulid, %s)",
            (note,),
        )
    # In one batch: nothing may come between the two.
    cursor.execute("exec changefeed.commit_ulid_transaction; commit transaction")


def write(cursor, feed, note, in_one_batch):
    while True:
        try:
            if in_one_batch:
                cursor.execute(BATCH, {"feed": feed, "note": note})
            else:
                statement_by_statement(cursor, feed, note)
            return
        except pymssql.Error as error:
            number = error.args[0]
            cursor.execute("if @@trancount > 0 rollback transaction")
            cursor.execute("exec changefeed.rollback_ulid_transaction")
            if number == INCIDENT:
                cursor.execute("exec changefeed.report_incident %s, 0", (feed,))
            elif number not in (BUSY, BURNED):
                raise


def main():
    url, feed, rounds, name = sys.argv[1:]
    with connect(url) as connection, connection.cursor() as cursor:
        for turn in range(int(rounds)):
            write(cursor, feed, f"{name} {turn}", turn % 2 == 0)
        cursor.execute("select ulid from event where note like %s order by ulid", (f"{name} %",))
        for (ulid,) in cursor.fetchall():
            print(ulid.hex())


main()
