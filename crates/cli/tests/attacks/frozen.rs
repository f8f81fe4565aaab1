//! A database session that is frozen while everything else goes on.
