//! The program `changefeed`: a thin layer over the library. This file is the table of contents.

mod args;
mod commands;
mod demo;
mod logging;
mod output;
mod signals;

use std::process::ExitCode;

use args::{Args, Command};
use changefeed::{Backend, Changefeed, Error, Kind, Result};
use clap::Parser;
use output::Out;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let _traces = logging::init(&args.command);
    let mut out = Out::new(args.json);
    match run(args, &mut out).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => output::report(&error),
    }
}

async fn run(args: Args, out: &mut Out) -> Result<()> {
    let database = args.database();
    let named = args.names_database();
    match args.command {
        Command::Serve(serve) => commands::serve::run(&database, named, serve, out).await,
        Command::Migrate(migrate) => commands::migrate::run(&database, migrate, out).await,
        Command::Uninstall(uninstall) => commands::uninstall::run(&database, uninstall, out).await,
        Command::Feed(feed) => commands::feed::run(&database, feed, out).await,
        Command::Consumer(consumer) => commands::consumer::run(&database, consumer, out).await,
        Command::Sweep(sweep) => commands::sweep::run(&database, sweep, out).await,
        Command::Watch(watch) => commands::watch::run(&database, watch, out).await,
        Command::Deliver(deliver) => commands::deliver::run(&database, deliver, out).await,
        Command::Trigger(trigger) => commands::trigger::run(&database, trigger, out).await,
        Command::Event(event) => commands::event::run(&database, event, out).await,
        Command::Token(token) => commands::token::run(&database, token, out).await,
        Command::Doctor => commands::doctor::run(&database, out).await,
        Command::Status => commands::status::run(&database, out).await,
        Command::Bench(bench) => commands::bench::run(&database, bench, out).await,
        Command::Completions { shell } => commands::completions::run(shell, out),
        Command::Man { directory } => commands::man::run(directory.as_deref(), out),
    }
}

/// Opens the database of a command that needs one to be there already.
async fn connect(database: &str) -> Result<Changefeed> {
    Backend::parse(database)?.require_existing()?;
    changefeed::connect(database).await
}

/// An error of usage, for what clap cannot see.
fn usage(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(Kind::Invalid, message)
}
