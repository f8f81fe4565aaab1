//! The trace that a change belongs to, in the form of W3C Trace Context.

use serde::Deserialize;
use serde_json::value::RawValue;

/// A trace that can be passed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trace {
    /// Valid by the standard.
    pub(crate) traceparent: String,
    /// Printable ASCII.
    pub(crate) tracestate: Option<String>,
}

/// What a writer may have said.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    W3c {
        traceparent: String,
        tracestate: Option<String>,
    },
    /// As Hasura writes it.
    Hasura {
        trace_id: String,
        span_id: String,
        /// `1` or `0`; absent if that is still to be decided.
        sampling_state: Option<String>,
    },
    Parent(String),
}

impl Trace {
    /// Reads what the writer said: an object with `traceparent` and perhaps `tracestate`, the traceparent
    /// alone, or an object with `trace_id` and `span_id`, as Hasura has it. What is not valid is not passed
    /// on: a receiver would begin a new trace, which is what it does without one.
    pub(crate) fn read(context: Option<&RawValue>) -> Option<Self> {
        let (traceparent, tracestate) = match serde_json::from_str(context?.get()).ok()? {
            Written::W3c {
                traceparent,
                tracestate,
            } => (traceparent, tracestate),
            Written::Parent(traceparent) => (traceparent, None),
            Written::Hasura {
                trace_id,
                span_id,
                sampling_state,
            } => {
                let flags = match sampling_state.as_deref() {
                    Some("0") => "00",
                    _ => "01",
                };
                // Shorter ids come from B3, which had 64 bits.
                (format!("00-{trace_id:0>32}-{span_id}-{flags}"), None)
            }
        };
        is_traceparent(&traceparent).then(|| Trace {
            traceparent,
            tracestate: tracestate.filter(|state| is_tracestate(state)),
        })
    }
}

fn is_traceparent(text: &str) -> bool {
    let hex = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let zero = |part: &str| part.bytes().all(|b| b == b'0');
    let mut parts = text.splitn(5, '-');
    let (Some(version), Some(trace), Some(parent), Some(flags)) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    // Later versions may say more; this one does not.
    let rest_fits = match parts.next() {
        None => true,
        Some(rest) => version != "00" && is_tracestate(rest),
    };
    hex(version, 2)
        && version != "ff"
        && hex(trace, 32)
        && !zero(trace)
        && hex(parent, 16)
        && !zero(parent)
        && hex(flags, 2)
        && rest_fits
}

/// The standard asks for 512 characters to be passed on; more need not be.
fn is_tracestate(text: &str) -> bool {
    !text.is_empty() && text.len() <= 512 && text.bytes().all(|b| (0x20..=0x7e).contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn read(json: &str) -> Option<Trace> {
        let raw = RawValue::from_string(json.to_owned()).unwrap();
        Trace::read(Some(&raw))
    }

    #[test]
    fn an_object_or_the_parent_alone() {
        let trace = read(&format!(
            r#"{{"traceparent":"{PARENT}","tracestate":"a=1,b=2","other":[1]}}"#
        ));
        let trace = trace.unwrap();
        assert_eq!(trace.traceparent, PARENT);
        assert_eq!(trace.tracestate.as_deref(), Some("a=1,b=2"));
        let alone = read(&format!("\"{PARENT}\"")).unwrap();
        assert_eq!(
            (alone.traceparent.as_str(), alone.tracestate),
            (PARENT, None)
        );
    }

    #[test]
    fn the_form_of_hasura_is_understood() {
        let parent = |json: &str| read(json).map(|trace| trace.traceparent);
        assert_eq!(
            parent(
                r#"{"trace_id":"4bf92f3577b34da6a3ce929d0e0e4736","span_id":"00f067aa0ba902b7"}"#
            )
            .as_deref(),
            Some(PARENT)
        );
        assert_eq!(
            parent(
                r#"{"trace_id":"a3ce929d0e0e4736","span_id":"00f067aa0ba902b7","sampling_state":"0"}"#
            )
            .as_deref(),
            Some("00-0000000000000000a3ce929d0e0e4736-00f067aa0ba902b7-00")
        );
        for bad in [
            r#"{"trace_id":"x","span_id":"00f067aa0ba902b7"}"#,
            r#"{"trace_id":"4bf92f3577b34da6a3ce929d0e0e4736"}"#,
        ] {
            assert_eq!(parent(bad), None, "{bad}");
        }
    }

    #[test]
    fn later_versions_may_say_more() {
        let later = PARENT.replacen("00", "01", 1);
        assert!(is_traceparent(&later) && is_traceparent(&format!("{later}-more")));
        assert!(!is_traceparent(&format!("{PARENT}-more")));
    }

    #[test]
    fn what_is_not_valid_is_not_passed_on() {
        for bad in [
            "",
            "00-0-0-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0\\u000a",
        ] {
            assert_eq!(read(&format!("\"{bad}\"")), None, "{bad}");
        }
        for bad in ["null", "7", "[]", "{}", r#"{"traceparent":7}"#] {
            assert_eq!(read(bad), None, "{bad}");
        }
        let state = read(&format!(
            r#"{{"traceparent":"{PARENT}","tracestate":"a\n"}}"#
        ));
        assert_eq!(state.unwrap().tracestate, None);
        assert_eq!(Trace::read(None), None);
    }
}
