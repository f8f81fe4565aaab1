//! The demo's application: plain SQL through the plain driver, without a word of changefeed.

use std::time::Duration;

use changefeed::sqlite::rusqlite::{self, Connection, OptionalExtension, params};
use changefeed::{CancellationToken, Error, Kind, Result};

/// Stands in the definition of the table, which SQLite keeps as it was written.
const OURS: &str = "/* of the demo */";

/// Creates the shop's table. The shop updates and deletes what it finds there, so a table of somebody
/// else's is left alone.
pub(super) fn open(path: &str) -> Result<()> {
    let shop = connect(path)?;
    let there: Option<String> = shop
        .query_row(
            "select sql from sqlite_master where name = 'orders'",
            (),
            |row| row.get(0),
        )
        .optional()
        .map_err(failed)?;
    match there {
        Some(definition) if definition.contains(OURS) => Ok(()),
        Some(_) => Err(crate::usage(format!(
            "'{path}' has a table orders that the demo did not make"
        ))
        .advise("leave --db away, or name a file that is not there yet")),
        None => shop
            .execute_batch(&format!(
                "create table orders {OURS} (
                    id          integer primary key,
                    customer_id integer not null,
                    status      text not null,
                    cents       integer not null
                )"
            ))
            .map_err(failed),
    }
}

/// Takes orders, moves them along and sometimes cancels one, until told to stop.
pub(super) fn run(path: &str, stop: &CancellationToken) -> Result<()> {
    let shop = connect(path)?;
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    while !stop.is_cancelled() {
        match dice.roll(10) {
            0..4 => {
                let (customer, cents) = (1 + dice.roll(12), 100 + dice.roll(20_000));
                shop.execute(
                    "insert into orders (customer_id, status, cents) values (?1, 'placed', ?2)",
                    params![customer, cents],
                )
            }
            4..9 => shop.execute(
                "update orders set status = case status when 'placed' then 'paid' \
                 when 'paid' then 'shipped' else 'delivered' end \
                 where id = (select id from orders where status <> 'delivered' \
                             order by (id * ?1) % 7 limit 1)",
                params![1 + dice.roll(6)],
            ),
            _ => shop.execute(
                "delete from orders where id = (select max(id) from orders where status = 'placed')",
                [],
            ),
        }
        .map_err(failed)?;
        std::thread::sleep(Duration::from_millis(
            u64::try_from(150 + dice.roll(700)).unwrap_or(500),
        ));
    }
    Ok(())
}

fn connect(path: &str) -> Result<Connection> {
    let connection = Connection::open(path).map_err(failed)?;
    connection
        .busy_timeout(Duration::from_secs(10))
        .map_err(failed)?;
    Ok(connection)
}

fn failed(error: rusqlite::Error) -> Error {
    Error::new(Kind::Database, "the demo's shop cannot use its database").caused_by(error)
}

/// Enough chance for a demo, the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: i64) -> i64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        i64::try_from(self.0 >> 33).unwrap_or(0) % sides
    }
}
