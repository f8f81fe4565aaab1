-- The columns that an update has changed are a JSON array of names; null where that is not known. Before is
-- the row as it was, as JSON, null for one that was not there; null where that is not known.
create table if not exists {log} (
  seq integer primary key, op integer not null, {key_columns}, columns text, before text)
