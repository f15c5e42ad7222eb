//! Allow comments: `ade-lint: allow RULE until DATE: reason`.

use jiff::civil::Date;

use super::model::Comment;
use super::{Finding, Rule};

const MARKER: &str = "ade-lint:";

/// An exception that is valid today.
#[derive(Debug)]
pub(super) struct Allow {
    pub(super) rule: Rule,
    /// The line that it is about.
    pub(super) line: usize,
}

/// The valid exceptions of a file, and a finding for each other one.
pub(super) fn read(comments: &[Comment], path: &str, today: Date) -> (Vec<Allow>, Vec<Finding>) {
    let (mut allows, mut findings) = (Vec::new(), Vec::new());
    for comment in comments {
        let Some(statement) = comment.text.strip_prefix(MARKER) else { continue };
        let statement = statement.trim().trim_end_matches("*/").trim_end();
        let complain = |message: String| Finding {
            path: path.to_owned(),
            line: comment.line,
            rule: Rule::ExpiredAllow,
            key: statement.to_owned(),
            message,
        };
        match parse(statement) {
            Err(fault) => findings.push(complain(format!(
                "this comment allows nothing: {fault}; write `{MARKER} allow RULE until YYYY-MM-DD: reason`"
            ))),
            Ok((_, until)) if until < today => findings.push(complain(format!(
                "this exception ended on {until}: fix what it allows, or agree on a new date and reason"
            ))),
            Ok((rule, _)) => {
                let line = if comment.is_alone { following(comments, comment.line) } else { comment.line };
                allows.push(Allow { rule, line });
            }
        }
    }
    (allows, findings)
}

/// The line below a comment and the allow comments that follow it directly.
fn following(comments: &[Comment], line: usize) -> usize {
    let is_comment = |line: usize| comments.iter().any(|comment| comment.is_alone && comment.line == line);
    (line + 1..).find(|line| !is_comment(*line)).unwrap_or(line + 1)
}

fn parse(statement: &str) -> Result<(Rule, Date), String> {
    let rest = statement.strip_prefix("allow ").ok_or("the word allow is missing")?;
    let (rule, rest) = rest.trim_start().split_once(' ').ok_or("the date is missing")?;
    let rule =
        Rule::named(rule).ok_or_else(|| format!("there is no rule {rule:?}, only {}", Rule::names()))?;
    let rest = rest.trim_start().strip_prefix("until ").ok_or("the word until is missing")?;
    let (date, reason) = rest.split_once(':').ok_or("the reason is missing")?;
    let date = date.trim();
    let until = date.parse().map_err(|_| format!("{date:?} is not a date"))?;
    if reason.trim().is_empty() {
        return Err("the reason is missing".to_owned());
    }
    Ok((rule, until))
}
