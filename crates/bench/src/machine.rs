//! What the machine does besides, and what processes cost, where the system tells (Linux).

use std::fs;
use std::time::Duration;

/// Clock ticks per second in `/proc/PID/stat`: the same on every Linux that we know of.
const TICKS: f64 = 100.0;

/// The machine that measures.
pub(crate) struct Machine {
    pub(crate) cores: usize,
    load: Option<f64>,
}

impl Machine {
    pub(crate) fn look() -> Self {
        Machine {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            load: fs::read_to_string("/proc/loadavg")
                .ok()
                .and_then(|text| text.split(' ').next()?.parse().ok()),
        }
    }

    /// A sentence if somebody else was at work when we began.
    pub(crate) fn complaint(&self) -> Option<String> {
        let load = self.load.filter(|load| *load > 0.5 * self.cores as f64)?;
        Some(format!(
            "the machine was busy before we began (load {load:.1} on {} cores): rely on the \
             ratios, not on the figures",
            self.cores
        ))
    }
}

/// Processor time that a process has used so far.
pub(crate) fn cpu_time(pid: &str) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let ticks = parse_ticks(&stat)?;
    Some(Duration::from_secs_f64(ticks as f64 / TICKS))
}

/// Whether this process id of a server is a process here.
pub(crate) fn is_server_process(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|command| command.starts_with("postgres"))
}

/// Resident memory of this process in MiB.
pub(crate) fn resident_mebibytes() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    parse_mebibytes(&status, "VmRSS:")
}

/// The most resident memory that a process ever had, in MiB.
pub(crate) fn peak_mebibytes(pid: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    parse_mebibytes(&status, "VmHWM:")
}

fn parse_ticks(stat: &str) -> Option<u64> {
    // The second field is the program's name in brackets, which may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

fn parse_mebibytes(status: &str, field: &str) -> Option<f64> {
    let line = status.lines().find(|line| line.starts_with(field))?;
    let kibibytes: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_found_behind_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194304 5 0 0 0 120 30 0 0 20 0 9 0 1 2 3";
        assert_eq!(parse_ticks(stat), Some(150));
        assert_eq!(parse_ticks("nonsense"), None);
    }

    #[test]
    fn memory_is_read_in_mebibytes() {
        let status = "VmHWM:\t  40960 kB\nVmRSS:\t   20480 kB\n";
        assert_eq!(parse_mebibytes(status, "VmRSS:"), Some(20.0));
        assert_eq!(parse_mebibytes(status, "VmHWM:"), Some(40.0));
        assert_eq!(parse_mebibytes("", "VmRSS:"), None);
    }
}
