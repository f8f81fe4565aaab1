//! What a process that delivers takes: when there is nothing to do, and with a long backlog.

use std::path::Path;
use std::time::{Duration, Instant};

use changefeed::Result;

use crate::events::process::Process;
use crate::events::{self, Orders};
use crate::machine;
use crate::postgres::scratch::Scratch;
use crate::postgres::session::with_parameter;
use crate::report::{Budget, Findings, Measure};
use crate::scale::Scale;

/// Until it has connected and slowed down.
const SETTLE: Duration = Duration::from_millis(2500);
/// Events that wait.
const BACKLOG: u64 = 200_000;

/// Processor time of one with nothing to do.
pub(super) async fn idle(
    scratch: &Scratch,
    program: &Path,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    findings.doing("idle: a process that delivers, with nothing to do");
    let receiver = events::receiver().await?;
    scratch.send_to(&receiver.url("/orders")).await?;
    let (mut process, name) = start(scratch, program)?;
    tokio::time::sleep(SETTLE).await;
    let mut processes = vec![process.id().to_string()];
    match scratch.server_processes(&name).await? {
        Some(backends) => processes.extend(backends),
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
pub(super) async fn memory(
    scratch: &Scratch,
    program: &Path,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    findings.doing("memory: 200,000 events wait");
    let receiver = events::receiver().await?;
    scratch.send_to(&receiver.url("/orders")).await?;
    scratch.order(BACKLOG).await?;
    scratch.tidy().await?;
    let (mut process, _) = start(scratch, program)?;
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

/// Starts a process, and says by what name the server knows it.
fn start(scratch: &Scratch, program: &Path) -> Result<(Process, String)> {
    let name = format!("{}-deliver", scratch.target.application_name);
    let url = with_parameter(&scratch.target.url, "application_name", &name);
    Ok((Process::deliver(program, &url)?, name))
}
