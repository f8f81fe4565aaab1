//! Table owners who change a table behind a writer's snapshot.
