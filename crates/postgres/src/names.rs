//! Names of tables as a person typed them: the only thing that is looked up in the search path of
//! the role. Everything else of ours is found in `pg_catalog`, or by its schema.

use changefeed_core::{Result, TableName};
use tokio_postgres::{GenericClient, SimpleQueryMessage};

use crate::error::db;
use crate::quote;
use crate::row::Cells;

/// The table that a name means, by its number; none if there is no such table.
pub(crate) async fn find(client: &impl GenericClient, name: &TableName) -> Result<Option<u32>> {
    // One message, and so one transaction if there is none yet: the path is the role's own for just
    // one statement, in which every other name has its schema.
    let sql = format!(
        "select set_config('search_path', s.reset_val, true) from pg_settings s \
         where s.name = 'search_path'; \
         select pg_catalog.to_regclass({})::pg_catalog.oid; \
         set local search_path = pg_catalog, pg_temp",
        quote::literal(&quote::table(name))
    );
    let mut found = None;
    for message in client.simple_query(&sql).await.map_err(db)? {
        if let SimpleQueryMessage::Row(row) = message {
            // The last row counts: the first is that of the path.
            found = row.get(0).and_then(|text| text.parse().ok());
        }
    }
    Ok(found)
}

/// Names with their schemas, quoted. A table that is not there keeps the name it was given.
pub(crate) async fn quoted(
    client: &impl GenericClient,
    names: &[&TableName],
) -> Result<Vec<String>> {
    let mut quoted = Vec::new();
    for name in names {
        let known = match find(client, name).await? {
            Some(oid) => client
                .query_opt(include_str!("sql/table.sql"), &[&oid])
                .await
                .map_err(db)?,
            None => None,
        };
        quoted.push(match known {
            Some(row) => quote::table(&TableName::qualified(
                row.take::<String>(0)?,
                row.take::<String>(1)?,
            )),
            None => quote::table(name),
        });
    }
    Ok(quoted)
}
