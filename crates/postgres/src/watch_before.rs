//! Rows as they were before they were changed, where some function wants to know: noted by the trigger, kept in the
//! order of the changes when these are moved, and told with the row. What is made here is empty where nobody wants
//! to know.

/// Whether rows are noted as they were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    Noted,
    Ignored,
}

impl Before {
    pub(crate) fn new(noted: bool) -> Self {
        match noted {
            true => Before::Noted,
            false => Before::Ignored,
        }
    }

    fn either(self, noted: &'static str, ignored: &'static str) -> &'static str {
        match self {
            Before::Noted => noted,
            Before::Ignored => ignored,
        }
    }

    /// What the trigger does about an update or a delete.
    pub(crate) fn note(self) -> &'static str {
        self.either("before := changefeed.row_before(tg_relid, old);", "")
    }

    /// What the trigger notes of a row that was not there.
    pub(crate) fn no_row(self) -> &'static str {
        self.either("'null'", "null")
    }

    /// In `watch_move.sql`: of a noted change, and of all changes of a key (or null).
    pub(crate) fn moved(self) -> [(&'static str, &'static str); 2] {
        [
            (
                "log_before",
                self.either("l._changefeed_before", "null::text"),
            ),
            (
                "net_before",
                self.either(
                    "case when count(s.before) = count(*) \
                     then changefeed.few_images(array_agg(s.before order by s.version)) end",
                    "null::text[]",
                ),
            ),
        ]
    }

    /// In `watch_move_function.sql`. What is moved late was there before what is known.
    pub(crate) fn folded(self) -> (&'static str, &'static str) {
        (
            "fold_before",
            self.either(
                "_changefeed_newer_before = case \
                     when q._changefeed_lease_generation is null then null \
                     when q._changefeed_newer_operation is null then n.before \
                     when q._changefeed_newer_before is not null and n.before is not null \
                     then changefeed.few_images(q._changefeed_newer_before || n.before) end, \
                 _changefeed_before = case \
                     when q._changefeed_lease_generation is not null then q._changefeed_before \
                     when q._changefeed_before is null or n.before is null \
                          or q._changefeed_newer_operation is not null \
                             and q._changefeed_newer_before is null then null \
                     when n.newest < q._changefeed_order \
                     then changefeed.few_images(n.before || q._changefeed_before \
                              || coalesce(q._changefeed_newer_before, '{}')) \
                     else changefeed.few_images(q._changefeed_before \
                              || coalesce(q._changefeed_newer_before, '{}') || n.before) end",
                "_changefeed_before = null, _changefeed_newer_before = null",
            ),
        )
    }
}
