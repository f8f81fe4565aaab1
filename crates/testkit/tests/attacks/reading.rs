//! Table owners who would like readers to run their code.
