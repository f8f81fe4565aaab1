//! What event triggers promise on PostgreSQL in particular: every type, every kind of table and
//! writer, rights, and locks.

mod altered;
mod attacks;
mod encodings;
mod frozen;
mod invoke;
mod load;
mod partitions;
mod rights;
mod scene;
mod tables;
mod types;
mod writers;
