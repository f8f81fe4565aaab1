//! What a plan of SQL Server's says. The whole language of these documents is not needed: which operator reads which
//! table of ours, and what the server warns of.

use crate::plans::{Access, Plan};

/// Indexes that hold only what is to be done: whoever has to do it walks through them.
const OF_WORK: [&str; 4] = [
    "ix_needs_seqnum",
    "ix_event_due",
    "ix_event_order",
    "ix_event_dead",
];

/// The plan of a statement, as XML.
pub(crate) fn plan(statement: &str, xml: &str, growing: &[&str]) -> Plan {
    let mut operators: Vec<String> = Vec::new();
    let mut access = Vec::new();
    let mut warned = Vec::new();
    for tag in tags(xml) {
        if tag.starts_with("RelOp ") {
            operators.push(attribute(tag, "PhysicalOp").unwrap_or_default());
        } else if tag == "/RelOp" {
            operators.pop();
        } else if tag.starts_with("Object ")
            && attribute(tag, "Schema").as_deref() == Some("[changefeed]")
        {
            let how = operators.last().cloned().unwrap_or_default();
            let index = bare(attribute(tag, "Index"));
            access.push(Access {
                whole: how.ends_with("Scan") && !OF_WORK.contains(&index.as_str()),
                table: bare(attribute(tag, "Table")),
                how,
            });
        } else if tag.starts_with("PlanAffectingConvert ")
            && attribute(tag, "ConvertIssue").as_deref() == Some("Seek Plan")
        {
            warned.push(format!(
                "a value is converted, so that an index cannot be used: {}",
                attribute(tag, "Expression").unwrap_or_default()
            ));
        }
    }
    // What an operator writes is an object, too, but it is not read through.
    access.dedup();
    let mut plan = Plan::judged(statement, access, growing, xml.to_owned());
    plan.complaints.extend(warned);
    plan
}

/// What stands between `<` and `>`, without the `/` at an end.
fn tags(xml: &str) -> impl Iterator<Item = &str> {
    xml.split('<').skip(1).filter_map(|part| {
        let (tag, _) = part.split_once('>')?;
        Some(tag.trim_end_matches('/').trim_end())
    })
}

fn attribute(tag: &str, name: &str) -> Option<String> {
    let at = tag.find(&format!(" {name}=\""))? + name.len() + 3;
    let value = tag[at..].split('"').next()?;
    Some(
        value
            .replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&amp;", "&"),
    )
}

/// A name without its brackets.
fn bare(name: Option<String>) -> String {
    name.unwrap_or_default().trim_matches(['[', ']']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(operator: &str, table: &str, index: &str) -> String {
        format!(
            "<ShowPlanXML xmlns=\"http://schemas.microsoft.com/sqlserver/2004/07/showplan\"><BatchSequence><Batch>\
             <Statements><StmtSimple StatementText=\"select 1\"><QueryPlan><RelOp NodeId=\"0\" PhysicalOp=\"Top\" \
             LogicalOp=\"Top\"><Top><RelOp NodeId=\"1\" PhysicalOp=\"{operator}\" LogicalOp=\"x\"><IndexScan>\
             <Object Database=\"[d]\" Schema=\"[changefeed]\" Table=\"[{table}]\" Index=\"[{index}]\" Alias=\"[c]\" />\
             </IndexScan></RelOp></Top></RelOp><RelOp NodeId=\"2\" PhysicalOp=\"Table Scan\" LogicalOp=\"x\"><TableScan>\
             <Object Table=\"[@page]\" /></TableScan></RelOp></QueryPlan></StmtSimple></Statements></Batch></BatchSequence>\
             </ShowPlanXML>"
        )
    }

    #[test]
    fn scans_of_what_grows_are_found() {
        let growing = &["change", "event"];
        let complaints = |xml: &str| plan("select 1", xml, growing).complaints;
        assert_eq!(
            complaints(&document("Clustered Index Scan", "change", "pk_change")),
            ["Clustered Index Scan of change"]
        );
        for (operator, table, index) in [
            ("Clustered Index Seek", "change", "pk_change"),
            ("Index Scan", "change", "ix_needs_seqnum"),
            ("Table Scan", "feed", "pk_feed"),
        ] {
            assert!(
                complaints(&document(operator, table, index)).is_empty(),
                "{operator}"
            );
        }
    }

    #[test]
    fn conversions_that_cost_an_index_are_found() {
        let xml = "<QueryPlan><Warnings><PlanAffectingConvert ConvertIssue=\"Seek Plan\" \
                   Expression=\"CONVERT_IMPLICIT(nvarchar(16),[w].[function_id],0)=[@P1]\" /></Warnings></QueryPlan>";
        let found = plan("select 1", xml, &[]).complaints;
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("function_id"), "{found:?}");
    }
}
