//! The program `changefeed`: a thin layer over the library. This file is the table of contents.

mod args;
mod commands;
mod config;
mod demo;
mod logging;
mod output;
mod signals;

use std::process::ExitCode;

use args::{Args, Command};
use changefeed::{Backend, Changefeed, Error, Kind, Result};
use clap::{CommandFactory, FromArgMatches, Parser};
use config::Config;
use output::Out;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let _traces = logging::init(&args);
    let json = args.json;
    let mut out = Out::new(json);
    match run(args, &mut out).await {
        Ok(code) => code,
        Err(error) => output::report(&error, json),
    }
}

async fn run(args: Args, out: &mut Out) -> Result<ExitCode> {
    match args.command {
        // A file that cannot be read is no reason to refuse these.
        Command::Init(init) => {
            return done(commands::init::run(args.config.as_deref(), init, out));
        }
        Command::Completions { shell } => return done(commands::completions::run(shell, out)),
        Command::Secret(secret) => return done(commands::secret::run(&secret, out)),
        Command::Man { directory } => return done(commands::man::run(directory.as_deref(), out)),
        _ => {}
    }
    let config = Config::load(args.config_file())?;
    // What the file says goes below what was typed.
    let args = match &config {
        Some(config) => Args::from_arg_matches(&config.below(Args::command()).get_matches())
            .unwrap_or_else(|error| error.exit()),
        None => args,
    };
    let there = config.is_some();
    if let (Some(config), true) = (&config, args.command.takes_settings()) {
        tracing::info!("settings from {}", config.path);
    }
    let config = config.unwrap_or_default();
    let database = args.database(&config)?;
    let named = args.names_database();
    let variables = config.variables();
    done(match args.command {
        Command::Serve(mut serve) => {
            serve.deliver.variables = variables;
            commands::serve::run(&database, named, *serve, out).await
        }
        Command::Apply(apply) => {
            let file = there.then_some(config);
            return commands::apply::run(&database, file, apply, out).await;
        }
        Command::Migrate(migrate) => commands::migrate::run(&database, migrate, out).await,
        Command::Erase(erase) => commands::erase::run(&database, erase, out).await,
        Command::Recover(recover) => commands::recover::run(&database, recover, out).await,
        Command::Uninstall(uninstall) => commands::uninstall::run(&database, uninstall, out).await,
        Command::Feed(feed) => commands::feed::run(&database, feed, out).await,
        Command::Consumer(consumer) => commands::consumer::run(&database, consumer, out).await,
        Command::Sweep(sweep) => commands::sweep::run(&database, sweep, out).await,
        Command::Watch(mut watch) => {
            watch.run.variables = variables;
            commands::watch::run(&database, *watch, out).await
        }
        Command::Deliver(mut deliver) => {
            deliver.variables = variables;
            commands::deliver::run(&database, deliver, out).await
        }
        Command::Listen(listen) => commands::listen::run(&database, listen, out).await,
        Command::Trigger(trigger) => commands::trigger::run(&database, trigger, out).await,
        Command::Event(event) => commands::event::run(&database, event, out).await,
        Command::Subscription(subscription) => {
            commands::subscription::run(&database, subscription, out).await
        }
        Command::Token(token) => commands::token::run(&database, token, out).await,
        Command::Doctor(doctor) => commands::doctor::run(&database, &doctor, &variables, out).await,
        Command::Status => commands::status::run(&database, &variables, out).await,
        Command::Top(top) => commands::top::run(&database, top, out).await,
        Command::Bench(bench) => commands::bench::run(&database, bench, out).await,
        Command::Init(_)
        | Command::Completions { .. }
        | Command::Secret(_)
        | Command::Man { .. } => Ok(()),
    })
}

fn done(ended: Result<()>) -> Result<ExitCode> {
    ended.map(|()| ExitCode::SUCCESS)
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
