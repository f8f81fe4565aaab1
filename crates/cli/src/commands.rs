//! One file per command.

pub(crate) mod apply;
pub(crate) mod bench;
pub(crate) mod columns;
pub(crate) mod completions;
pub(crate) mod consumer;
pub(crate) mod deliver;
pub(crate) mod doctor;
pub(crate) mod erase;
pub(crate) mod event;
pub(crate) mod feed;
pub(crate) mod init;
pub(crate) mod listen;
pub(crate) mod man;
pub(crate) mod migrate;
pub(crate) mod recover;
pub(crate) mod secret;
pub(crate) mod serve;
pub(crate) mod status;
pub(crate) mod subscription;
pub(crate) mod sweep;
pub(crate) mod token;
pub(crate) mod top;
pub(crate) mod trigger;
pub(crate) mod uninstall;
pub(crate) mod watch;
