//! What is typed, and what is said about it.

pub(super) struct Case {
    pub(super) args: &'static str,
    pub(super) code: i32,
    pub(super) says: &'static str,
}

/// `args` are split at blanks; `␣` stands for a blank inside an argument.
const fn case(args: &'static str, code: i32, says: &'static str) -> Case {
    Case { args, code, says }
}

/// On a database with the feed `orders` (id 37, shards 0 and 1, captured by `customer`), the
/// feed `plain`, a view `recent`, a table `loose` without a key, and one change in each shard.
pub(super) const CASES: &[Case] = &[
    // What does not exist.
    case(
        "feed read nosuch",
        1,
        "error: there is no feed 'nosuch'\n  hint: the feeds are orders, plain",
    ),
    case(
        "feed tail nosuch",
        1,
        "error: there is no feed 'nosuch'\n  hint: the feeds are orders, plain",
    ),
    case(
        "feed backfill nosuch",
        1,
        "error: there is no feed 'nosuch'\n  hint: the feeds are orders, plain",
    ),
    case(
        "feed trim nosuch --older-than 1s",
        1,
        "error: there is no feed 'nosuch'\n  hint: the feeds are orders, plain",
    ),
    case(
        "feed drop nosuch --yes",
        1,
        "error: there is no feed 'nosuch'\n  hint: the feeds are orders, plain",
    ),
    case(
        "feed read orders --shard 7",
        1,
        "error: feed 'orders' has no shard 7\n  hint: its shards are 0, 1",
    ),
    case(
        "consumer set c --feed orders --shard 9 --cursor 5",
        1,
        "error: feed 'orders' has no shard 9\n  hint: its shards are 0, 1",
    ),
    case(
        "consumer drop nosuch --feed orders",
        1,
        "error: feed 'orders' has no consumer 'nosuch'\n  \
         hint: `changefeed consumer list` shows the consumers",
    ),
    // What does not go together.
    case(
        "feed create x --from orders --shards 2",
        2,
        "error: a feed with 2 shards needs a column that decides the shard\n  \
         hint: add --shard-by COLUMN",
    ),
    case(
        "feed create x --shard-by customer",
        2,
        "error: --shard-by needs a table to look at\n  hint: add --from TABLE or --rows TABLE",
    ),
    // What is there already.
    case(
        "feed create orders",
        1,
        "error: there is already a feed 'orders'\n  hint: `changefeed feed list` shows the feeds",
    ),
    case(
        "feed create other --id 37",
        1,
        "error: there is already a feed with id 37\n  hint: `changefeed feed list` shows the feeds",
    ),
    // Cursors and pages.
    case(
        "feed read orders --after 9999999999999999",
        1,
        "error: cursor 9999999999999999 is ahead of feed 'orders' shard 0, whose last number is \
         2000000000000001\n  hint: it comes from another feed or database, or this database was \
         restored from a backup",
    ),
    case(
        "feed read orders --after -5",
        2,
        "error: invalid value '-5' for '--after <AFTER>': '-5' is not a cursor: use 'first', \
         'last', a number or ULID from an earlier page, or a time like 2026-01-31T12:00:00Z",
    ),
    case(
        "feed read orders --after yesterday",
        2,
        "error: invalid value 'yesterday' for '--after <AFTER>': 'yesterday' is not a cursor: use \
         'first', 'last', a number or ULID from an earlier page, or a time like \
         2026-01-31T12:00:00Z",
    ),
    case(
        "feed read orders --limit 0",
        2,
        "error: invalid value '0' for '--limit <LIMIT>': a page of 0 changes is not possible: ask \
         for 1 to 10000",
    ),
    case(
        "feed read orders --limit -1",
        2,
        "error: invalid value '-1' for '--limit <LIMIT>': a page of -1 changes is not possible: \
         ask for 1 to 10000",
    ),
    case(
        "feed read orders --limit 10001",
        2,
        "error: invalid value '10001' for '--limit <LIMIT>': a page of 10001 changes is not \
         possible: ask for 1 to 10000",
    ),
    case(
        "feed tail orders --after 2000000000000001",
        2,
        "error: a cursor belongs to one shard\n  hint: add --shard N",
    ),
    // Names and numbers.
    case(
        "feed create bad␣name",
        2,
        "error: invalid value 'bad name' for '<NAME>': 'bad name' is not a feed name: use 1 to \
         100 letters, digits, '_' and '-'",
    ),
    case(
        "feed create x --id 40000",
        2,
        "error: invalid value '40000' for '--id <ID>': '40000' is not a feed id: it must be a \
         whole number from -32768 to 32767",
    ),
    case(
        "feed create x --shards 0",
        2,
        "error: invalid value '0' for '--shards <SHARDS>': 0 is not in 1..=32767",
    ),
    case(
        "feed read orders --shard abc",
        2,
        "error: invalid value 'abc' for '--shard <SHARD>': 'abc' is not a shard: it must be a \
         whole number from -32768 to 32767",
    ),
    case(
        "sweep --group abc",
        2,
        "error: invalid value 'abc' for '--group <GROUP>': 'abc' is not a sweep group: it must be \
         a whole number from -32768 to 32767",
    ),
    case(
        "consumer set a␣b --feed orders --cursor 5",
        2,
        "error: invalid value 'a b' for '<NAME>': 'a b' is not a consumer name: use 1 to 100 \
         letters, digits, '_' and '-'",
    ),
    case(
        "feed create x --from a;drop␣table␣orders",
        2,
        "error: 'a;drop table orders' is not a table name\n  \
         hint: write it as in SQL: orders, sales.orders or sales.\"Order\"",
    ),
    case(
        "feed trim orders --older-than soon",
        2,
        "error: invalid value 'soon' for '--older-than <DURATION>': 'soon' is not a duration: use a \
         number with a unit, like 500ms, 2s or 7d; a number alone is seconds",
    ),
    case(
        "feed backfill plain",
        2,
        "error: feed 'plain' does not know where its rows are, so there is nothing to backfill\n  \
         hint: create feeds with --from TABLE or --rows TABLE",
    ),
    // Nobody at the terminal to say yes.
    case(
        "feed drop orders",
        2,
        "error: This removes feed 'orders' with all its changes and cursors. There is no terminal to \
         ask on\n  hint: add --yes to go ahead without asking",
    ),
    case(
        "uninstall",
        2,
        "error: This removes every feed, number and cursor of changefeed from the database, and \
         its triggers from your tables. There is no terminal to ask on\n  \
         hint: add --yes to go ahead without asking",
    ),
    // Words that are no words of ours.
    case(
        "feed create x --bogus",
        2,
        "error: unexpected argument '--bogus' found",
    ),
    case("bogus", 2, "error: unrecognized subcommand 'bogus'"),
    case(
        "feed create x --from orders --rows orders",
        2,
        "error: the argument '--from <TABLE>' cannot be used with '--rows <TABLE>'",
    ),
];

/// What is said of tables, in each database's way of naming them.
pub(super) const SQLITE_TABLES: &[Case] = &[
    case(
        "feed create x --from odrers",
        1,
        "error: there is no table odrers\n  \
         hint: write its name as in SQL, with quotes if it has blanks or signs",
    ),
    case(
        "feed create x --from orders --shards 2 --shard-by custmer",
        1,
        "error: table orders has no column 'custmer'\n  hint: its columns are id, customer",
    ),
    case(
        "feed create x --rows orders",
        1,
        "error: table orders has no column 'change_id'\n  hint: its columns are id, customer",
    ),
    case(
        "feed create x --from loose",
        2,
        "error: table loose has no primary key, so its changes could not be told apart\n  \
         hint: add a primary key to it",
    ),
    case(
        "feed create x --from recent",
        2,
        "error: recent is a view; changes can only be captured from a table",
    ),
];

pub(super) const POSTGRES_TABLES: &[Case] = &[
    case(
        "feed create x --from odrers",
        1,
        "error: there is no table odrers\n  \
         hint: write it as in SQL, with its schema if it is not in the search path",
    ),
    case(
        "feed create x --from orders --shards 2 --shard-by custmer",
        1,
        "error: table public.orders has no column 'custmer'\n  hint: its columns are id, customer",
    ),
    case(
        "feed create x --rows orders",
        1,
        "error: table public.orders has no column 'change_id'\n  hint: its columns are id, customer",
    ),
    case(
        "feed create x --from loose",
        2,
        "error: table public.loose has no primary key, so its changes could not be told apart\n  \
         hint: add a primary key to it",
    ),
    case(
        "feed create x --from recent",
        2,
        "error: public.recent is a view; changes can only be captured from a table",
    ),
    case(
        "feed create x --from nowhere.orders",
        1,
        "error: there is no table nowhere.orders\n  \
         hint: write it as in SQL, with its schema if it is not in the search path",
    ),
    case(
        "feed create x --from changefeed.numbered",
        2,
        "error: changefeed.numbered is one of changefeed's own tables",
    ),
];
