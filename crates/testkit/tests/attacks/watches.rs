//! Table owners who change a watched table, and watches that cost too much.
