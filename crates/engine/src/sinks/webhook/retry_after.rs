//! `Retry-After`: how long a receiver asks to be left alone.

use std::time::{Duration, SystemTime};

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};

/// Reads the header. It counts only when the request was not accepted, and is seconds or a date;
/// a date that is over asks for nothing more than now, and anything else asks for nothing at all.
pub(super) fn retry_after(
    status: StatusCode,
    headers: &HeaderMap,
    now: SystemTime,
) -> Option<Duration> {
    if status.is_success() {
        return None;
    }
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        // More digits than fit are still a wish to wait for very long; the trigger has a maximum.
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or(Duration::ZERO))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(status: u16, value: &str) -> Option<Duration> {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, value.parse().unwrap());
        retry_after(StatusCode::from_u16(status).unwrap(), &headers, now)
    }

    #[test]
    fn seconds_and_dates_are_understood() {
        assert_eq!(asked(503, "120"), Some(Duration::from_secs(120)));
        assert_eq!(asked(429, " 0 "), Some(Duration::ZERO));
        assert_eq!(
            asked(302, "Sun, 06 Nov 1994 08:50:00 GMT"),
            Some(Duration::from_secs(23))
        );
        assert_eq!(
            asked(503, "Sunday, 06-Nov-94 08:50:00 GMT"),
            Some(Duration::from_secs(23))
        );
    }

    #[test]
    fn it_is_never_negative_and_never_overflows() {
        assert_eq!(
            asked(503, "Sun, 06 Nov 1994 08:00:00 GMT"),
            Some(Duration::ZERO)
        );
        assert_eq!(
            asked(503, "99999999999999999999999"),
            Some(Duration::from_secs(u64::MAX))
        );
    }

    #[test]
    fn nonsense_and_successes_ask_for_nothing() {
        for nonsense in ["", "-5", "1.5", "soon", "+3", "1e3"] {
            assert_eq!(asked(503, nonsense), None, "{nonsense:?}");
        }
        assert_eq!(asked(200, "120"), None);
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let none = retry_after(status, &HeaderMap::new(), SystemTime::now());
        assert_eq!(none, None);
    }
}
