//! The two forms in which Prometheus reads metrics: OpenMetrics, which our library writes, and the classic
//! text format for everybody else.

use std::fmt::Write;

use axum::http::{HeaderMap, header};

/// Whether the caller prefers OpenMetrics to plain text.
pub(crate) fn wants_openmetrics(headers: &HeaderMap) -> bool {
    let (mut open, mut plain) = (0.0, 0.0);
    let accepted = headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','));
    for kind in accepted {
        let mut parts = kind.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let quality = parts
            .find_map(|p| p.strip_prefix("q=").or(p.strip_prefix("Q=")))
            .map_or(1.0, |q| q.parse::<f32>().unwrap_or(0.0));
        match name.as_str() {
            "application/openmetrics-text" => open = quality.max(open),
            "text/plain" | "text/*" | "*/*" => plain = quality.max(plain),
            _ => {}
        }
    }
    open > 0.0 && open >= plain
}

/// The classic text format of what is written as OpenMetrics. The classic one names counters and infos
/// by the names of their samples, knows no infos, and has no end.
pub(crate) fn classic(openmetrics: &str) -> String {
    let kinds: Vec<(&str, &str)> = openmetrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .collect();
    let suffix = |name: &str| {
        let kind = kinds.iter().find(|(known, _)| *known == name);
        match kind.map(|(_, kind)| *kind) {
            Some("counter") => "_total",
            Some("info") => "_info",
            _ => "",
        }
    };
    let mut text = String::with_capacity(openmetrics.len() + 512);
    for line in openmetrics.lines() {
        let words = line.strip_prefix("# ").and_then(|rest| {
            let (word, rest) = rest.split_once(' ')?;
            let (name, rest) = rest.split_once(' ')?;
            Some((word, name, rest))
        });
        let _ = match words {
            Some(("HELP", name, help)) => {
                writeln!(text, "# HELP {name}{} {help}", suffix(name))
            }
            Some(("TYPE", name, "info")) => writeln!(text, "# TYPE {name}_info gauge"),
            Some(("TYPE", name, kind)) => {
                let kind = if kind == "unknown" { "untyped" } else { kind };
                writeln!(text, "# TYPE {name}{} {kind}", suffix(name))
            }
            _ if line.starts_with('#') => Ok(()),
            _ => writeln!(text, "{line}"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_is_the_one_that_is_liked_best() {
        for (accept, open) in [
            ("", false),
            ("*/*", false),
            ("text/plain", false),
            ("application/openmetrics-text", true),
            // What Prometheus sends.
            (
                "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4,*/*;q=0.1",
                true,
            ),
            (
                "text/plain;version=0.0.4;q=0.6, application/openmetrics-text;version=1.0.0;q=0.5",
                false,
            ),
            ("application/openmetrics-text;q=0", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().unwrap());
            assert_eq!(wants_openmetrics(&headers), open, "{accept}");
        }
    }

    #[test]
    fn the_classic_form_names_counters_by_their_samples() {
        let text = "# HELP a_b Some.\n# TYPE a_b counter\na_b_total{x=\"1\"} 3\n\
                    # HELP v Version.\n# TYPE v info\nv_info{v=\"1\"} 1\n\
                    # HELP s_seconds Time.\n# TYPE s_seconds gauge\n# UNIT s_seconds seconds\ns_seconds 0.5\n# EOF\n";
        assert_eq!(
            classic(text),
            "# HELP a_b_total Some.\n# TYPE a_b_total counter\na_b_total{x=\"1\"} 3\n\
             # HELP v_info Version.\n# TYPE v_info gauge\nv_info{v=\"1\"} 1\n\
             # HELP s_seconds Time.\n# TYPE s_seconds gauge\ns_seconds 0.5\n"
        );
    }
}
