//! What a process that delivers takes: when there is nothing to do, and with a long backlog.

use std::path::Path;
use std::time::{Duration, Instant};

use changefeed::Result;

use super::Server;
use super::process::Process;
use crate::machine;
use crate::report::{Budget, Findings, Measure};
use crate::scale::Scale;

/// Until it has connected and slowed down.
const SETTLE: Duration = Duration::from_millis(2500);
/// Events that wait.
const BACKLOG: u64 = 200_000;

/// Processor time of one with nothing to do.
pub(crate) async fn idle(
    server: &impl Server,
    program: &Path,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    findings.doing("idle: a process that delivers, with nothing to do");
    let receiver = super::receiver().await?;
    server.send_to(&receiver.url("/orders")).await?;
    let others = server.backends().await?.unwrap_or_default();
    let mut process = Process::deliver(program, server.url())?;
    tokio::time::sleep(SETTLE).await;
    let mut processes = vec![process.id().to_string()];
    match server.backends().await? {
        Some(sessions) => processes.extend(sessions.into_iter().filter(|s| !others.contains(s))),
        None => findings.note(
            "idle: the server's processes are not visible here, so only our own processor time \
             is counted",
        ),
    }
    let used = |processes: &[String]| -> Duration {
        processes.iter().filter_map(|p| machine::cpu_time(p)).sum()
    };
    let (before, began) = (used(&processes), Instant::now());
    tokio::time::sleep(scale.idle).await;
    let took = used(&processes).saturating_sub(before);
    process.check()?;
    if machine::peak_mebibytes(process.id()).is_none() {
        findings.note("idle: this system does not tell what processes use (no /proc)");
        return Ok(());
    }
    let share = 100.0 * took.as_secs_f64() / began.elapsed().as_secs_f64();
    findings.add(Measure::alone(
        "idle deliver with its server processes",
        "% of a core",
        share,
        None,
    ));
    Ok(())
}

/// Memory of one that works off a long backlog.
pub(crate) async fn memory(
    server: &impl Server,
    program: &Path,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    findings.doing("memory: 200,000 events wait");
    let receiver = super::receiver().await?;
    server.send_to(&receiver.url("/orders")).await?;
    server.order(BACKLOG).await?;
    server.tidy().await?;
    let mut process = Process::deliver(program, server.url())?;
    let began = Instant::now();
    while began.elapsed() < scale.work && receiver.seen().requests < BACKLOG {
        tokio::time::sleep(Duration::from_millis(100)).await;
        process.check()?;
    }
    let delivered = receiver.seen().requests;
    match machine::peak_mebibytes(process.id()) {
        Some(peak) => findings.add(Measure::alone(
            "memory of deliver, 200,000 events pending, at its peak",
            "MiB",
            peak,
            Some(Budget::at_most(100.0)),
        )),
        None => findings.note("memory: this system does not tell what processes use (no /proc)"),
    }
    findings.note(format!(
        "memory: {delivered} of the events were delivered in {:.0} s, in a process of its own",
        began.elapsed().as_secs_f64()
    ));
    Ok(())
}
