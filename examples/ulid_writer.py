"""Writes rows in the order of a shard with a ULID transaction on PostgreSQL, and goes on when another writer is lost.

usage: ulid_writer.py DATABASE_URL FEED_UUID SHARD CUSTOMER SIZE

`ulid_transaction` is the whole protocol of retries; docs/ulids.md tells what the errors mean.
"""

import sys

import psycopg

SILENT, BUSY, JUDGED_DEAD = "CF001", "CF002", "CF003"


def ulid_transaction(db, feed, shard, write, attempts=10):
    """Runs `write` in a ULID transaction. It may be called several times, and only its last call counts."""
    for attempt in range(1, attempts + 1):
        try:
            with db.transaction():
                db.execute("select changefeed.begin_ulid_transaction(%s, %s)", (feed, shard))
                result = write(db)
                # Nothing may come between this and the commit at the end of the block.
                db.execute("select changefeed.commit_ulid_transaction()")
            return result
        except psycopg.Error as error:
            # A connection that broke during the commit leaves open what became of it: the caller has to look.
            if error.sqlstate not in (SILENT, BUSY, JUDGED_DEAD) or attempt == attempts:
                raise
            if error.sqlstate == SILENT:
                # The holder of the shard is gone. Its transaction has ended here, so this is one of its own.
                print("a writer is lost, going on without it", flush=True)
                db.execute("select changefeed.report_incident(%s, %s, 1000)", (feed, shard))


def main():
    url, feed, shard, customer, size = sys.argv[1:]
    with psycopg.connect(url, autocommit=True) as db:

        def write(db):
            return db.execute(
                "insert into shoe_size_changed (shard, ulid, customer_id, size)"
                " values (%s, changefeed.new_ulid(), %s, %s) returning encode(ulid, 'hex')",
                (shard, customer, size),
            ).fetchone()[0]

        print("written as", ulid_transaction(db, feed, int(shard), write))


main()
