//! Converts lifetime declarations to [`Ttl`] and resolves references to the rules of other entries.

use toml::Spanned;

use super::{LocatedEntry, did_you_mean};
use crate::error::SourceError;
use crate::file::{TtlDecl, TtlTable};
use crate::model::EntryKind;
use crate::text::one_line;
use crate::ttl::{Ttl, TtlDuration, TtlRule};

pub(super) fn ttl(decl: &Spanned<TtlDecl>) -> Result<Ttl, SourceError> {
    let table = match decl.get_ref() {
        TtlDecl::None => return Ok(Ttl { rule: TtlRule::None, maxlen: None }),
        TtlDecl::Table(table) => table,
    };
    let fault = |message: String| SourceError::new(decl.span(), message);
    let TtlTable { exact, range, at_least, default, renewable, at_most, like, given, plus, maxlen } =
        table.as_ref();
    let duration = |text: &String| TtlDuration::parse(text).map_err(fault);
    let optional = |text: &Option<String>| text.as_ref().map(duration).transpose();
    let mut rules: Vec<TtlRule> = Vec::new();
    if let Some(ttl) = exact {
        rules.push(TtlRule::Exact(duration(ttl)?));
    }
    if let Some([min, max]) = range {
        let (min, max) = (duration(min)?, duration(max)?);
        if min.duration > max.duration {
            return Err(fault(format!("the range is reversed: {min} is longer than {max}")));
        }
        rules.push(TtlRule::Range { min, max: Some(max) });
    }
    if let Some(min) = at_least {
        rules.push(TtlRule::Range { min: duration(min)?, max: None });
    }
    if let Some(ttl) = default {
        rules.push(TtlRule::Default { ttl: duration(ttl)?, at_most: optional(at_most)? });
    }
    if let Some(ttl) = renewable {
        rules.push(TtlRule::Renewable { ttl: duration(ttl)?, at_most: optional(at_most)? });
    }
    if let Some(entry) = like {
        rules.push(TtlRule::Like { entry: entry.clone(), rule: Box::new(TtlRule::None) });
    }
    if let Some(by) = given {
        if by.trim().is_empty() {
            return Err(fault("given is empty: describe what determines the ttl".into()));
        }
        rules.push(TtlRule::Given { by: one_line(by), plus: optional(plus)? });
    }
    if rules.is_empty() && maxlen.is_some() {
        rules.push(TtlRule::None);
    }
    let (Some(rule), true) = (rules.pop(), rules.is_empty()) else {
        return Err(fault(
            "a ttl needs exactly one rule: exact, range, at_least, default, renewable, like, given or (for streams) maxlen".into(),
        ));
    };
    if *maxlen == Some(0) {
        return Err(fault("maxlen must be at least 1".into()));
    }
    if at_most.is_some() && renewable.is_none() && default.is_none() {
        return Err(fault("at_most requires renewable or default".into()));
    }
    if plus.is_some() && given.is_none() {
        return Err(fault("plus requires given".into()));
    }
    if let TtlRule::Renewable { ttl, at_most: Some(max) } | TtlRule::Default { ttl, at_most: Some(max) } =
        &rule
        && ttl.duration > max.duration
    {
        return Err(fault(format!("{ttl} is longer than at_most ({max})")));
    }
    Ok(Ttl { rule, maxlen: *maxlen })
}

pub(super) fn resolve_likes(located: &mut [LocatedEntry]) -> Result<(), SourceError> {
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
        match rules.iter().find(|(name, _)| name == entry) {
            Some((_, TtlRule::Like { .. })) => {
                let message = format!("{entry} uses like itself: name an entry with a rule of its own");
                return Err(SourceError::new(located.ttl_span.clone(), message));
            }
            Some((_, found)) => **rule = found.clone(),
            None => {
                let hint = did_you_mean(entry, rules.iter().map(|(name, _)| name.as_str()));
                let message = format!("like = {entry:?} is not a key of this catalog{hint}");
                return Err(SourceError::new(located.ttl_span.clone(), message));
            }
        }
    }
    Ok(())
}
