//! Temporary.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]
#[tokio::main]
async fn main() {
    let url = std::env::args().nth(1).unwrap();
    let quick = std::env::args().nth(2).is_some();
    let t = std::time::Instant::now();
    match changefeed_bench::feeds(&url, changefeed_bench::FeedsOptions { quick }, |s| {
        eprintln!("{:.1} {s}", t.elapsed().as_secs_f64())
    })
    .await
    {
        Ok(report) => {
            println!("{}", serde_json::to_string(&report).unwrap());
            for r in report.rows() {
                println!(
                    "{:60} {:>10} {:>10} {:>18} {:>7} {}",
                    r.measure, r.ours, r.bare, r.ratio, r.budget, r.verdict
                );
            }
            println!("{:?} {:.1}s", report.notes, report.seconds);
        }
        Err(e) => println!("{e:?}"),
    }
}
