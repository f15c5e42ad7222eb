//! Converts lifetime declarations to [`Ttl`] and resolves references to the rules of other entries.

use toml::{Spanned, Value};

use super::{LocatedEntry, did_you_mean};
use crate::error::{Result, SourceError, reject};
use crate::file::TtlTable;
use crate::model::EntryKind;
use crate::text::one_line;
use crate::ttl::{Ttl, TtlRule};

pub(super) fn ttl(decl: &Spanned<Value>) -> Result<Ttl> {
    let table: TtlTable = match decl.get_ref() {
        Value::String(none) if none == "none" => return Ok(Ttl { rule: TtlRule::None, maxlen: None }),
        Value::Table(table) => {
            let invalid = |error: toml::de::Error| SourceError::new(decl.span(), error.message());
            table.clone().try_into().map_err(invalid)?
        }
        other => {
            let message =
                format!("invalid value {other}, expected \"none\" or a rule such as {{ exact = \"90d\" }}");
            return reject(decl.span(), message);
        }
    };
    let TtlTable { exact, range, at_least, default, renewable, at_most, like, given, plus, maxlen } = table;
    let rules = [
        exact.map(TtlRule::Exact),
        range.map(|[min, max]| TtlRule::Range { min, max: Some(max) }),
        at_least.map(|min| TtlRule::Range { min, max: None }),
        default.map(|ttl| TtlRule::Default { ttl, at_most: at_most.clone() }),
        renewable.map(|ttl| TtlRule::Renewable { ttl, at_most: at_most.clone() }),
        like.map(|entry| TtlRule::Like { entry, rule: Box::new(TtlRule::None) }),
        given.map(|by| TtlRule::Given { by: one_line(&by), plus: plus.clone() }),
    ];
    let mut rules = rules.into_iter().flatten();
    let rule = match (rules.next(), rules.next()) {
        (Some(rule), None) => rule,
        (None, None) if maxlen.is_some() => TtlRule::None,
        _ => {
            let message = "a ttl needs exactly one rule: exact, range, at_least, default, renewable, like, given or (for streams) maxlen";
            return reject(decl.span(), message);
        }
    };
    let message = match &rule {
        _ if maxlen == Some(0) => "maxlen must be at least 1".to_owned(),
        TtlRule::Range { min, max: Some(max) } if min.duration > max.duration => {
            format!("the range is reversed: {min} is longer than {max}")
        }
        TtlRule::Default { ttl, at_most: Some(max) } | TtlRule::Renewable { ttl, at_most: Some(max) }
            if ttl.duration > max.duration =>
        {
            format!("{ttl} is longer than at_most ({max})")
        }
        TtlRule::Given { by, .. } if by.is_empty() => {
            "given is empty: describe what determines the ttl".to_owned()
        }
        other
            if at_most.is_some() && !matches!(other, TtlRule::Default { .. } | TtlRule::Renewable { .. }) =>
        {
            "at_most requires renewable or default".to_owned()
        }
        other if plus.is_some() && !matches!(other, TtlRule::Given { .. }) => {
            "plus requires given".to_owned()
        }
        _ => return Ok(Ttl { rule, maxlen }),
    };
    reject(decl.span(), message)
}

pub(super) fn resolve_likes(located: &mut [LocatedEntry<'_>]) -> Result<()> {
    let rules: Vec<(String, TtlRule)> = located
        .iter()
        .filter_map(|located| match &located.entry.kind {
            EntryKind::Key(shape) => Some((located.entry.name.clone(), shape.ttl.rule.clone())),
            _ => None,
        })
        .collect();
    for located in located {
        let EntryKind::Key(shape) = &mut located.entry.kind else { continue };
        let TtlRule::Like { entry, rule } = &mut shape.ttl.rule else { continue };
        let message = match rules.iter().find(|(name, _)| name == entry) {
            Some((_, TtlRule::Like { .. })) => {
                format!("{entry} uses like itself: name an entry with a rule of its own")
            }
            Some((_, found)) => {
                **rule = found.clone();
                continue;
            }
            None => {
                let hint = did_you_mean(entry, rules.iter().map(|(name, _)| name.as_str()));
                format!("like = {entry:?} is not a key of this catalog{hint}")
            }
        };
        return reject(located.ttl_span.clone(), message);
    }
    Ok(())
}
