create table if not exists {log} (seq integer primary key, op integer not null, {key_columns})
