//! Lifetime rules: from their declarations to [`Ttl`], and from borrowed rules to the lender's.

use toml::Spanned;

use super::Placed;
use crate::error::Fault;
use crate::file::{TtlDecl, TtlTable};
use crate::model::EntryKind;
use crate::ttl::{Span, Ttl, TtlRule};

pub(super) fn ttl(decl: &Spanned<TtlDecl>) -> Result<Ttl, Fault> {
    let table = match decl.get_ref() {
        TtlDecl::None => return Ok(Ttl { rule: TtlRule::None, maxlen: None }),
        TtlDecl::Table(table) => table,
    };
    let fault = |message: String| Fault::new(decl.span(), message);
    let TtlTable { exact, range, at_least, renewable, at_most, like, given, plus, maxlen } = table.as_ref();
    let span = |text: &String| Span::parse(text).map_err(fault);
    let optional = |text: &Option<String>| text.as_ref().map(span).transpose();
    let rule = match (exact, range, at_least, renewable, like, given) {
        (Some(exact), None, None, None, None, None) => TtlRule::Exact(span(exact)?),
        (None, Some([min, max]), None, None, None, None) => {
            let (min, max) = (span(min)?, span(max)?);
            if min.duration > max.duration {
                return Err(fault(format!("the range ends ({max}) before it begins ({min})")));
            }
            TtlRule::Range { min, max: Some(max) }
        }
        (None, None, Some(min), None, None, None) => TtlRule::Range { min: span(min)?, max: None },
        (None, None, None, Some(ttl), None, None) => {
            TtlRule::Renewable { ttl: span(ttl)?, at_most: optional(at_most)? }
        }
        (None, None, None, None, Some(entry), None) => {
            TtlRule::Like { entry: entry.clone(), rule: Box::new(TtlRule::None) }
        }
        (None, None, None, None, None, Some(by)) => TtlRule::Given { by: by.clone(), plus: optional(plus)? },
        (None, None, None, None, None, None) if maxlen.is_some() => TtlRule::None,
        _ => {
            return Err(fault(
                "a ttl has one rule: exact, range, at_least, renewable, like, given or (for streams) maxlen"
                    .into(),
            ));
        }
    };
    if at_most.is_some() && renewable.is_none() {
        return Err(fault("at_most goes with renewable".into()));
    }
    if plus.is_some() && given.is_none() {
        return Err(fault("plus goes with given".into()));
    }
    if let TtlRule::Renewable { ttl, at_most: Some(max) } = &rule
        && ttl.duration > max.duration
    {
        return Err(fault(format!("{ttl} is beyond at_most ({max})")));
    }
    Ok(Ttl { rule, maxlen: *maxlen })
}

pub(super) fn resolve_likes(placed: &mut [Placed]) -> Result<(), Fault> {
    let rules: Vec<(String, TtlRule)> = placed
        .iter()
        .filter_map(|placed| match &placed.entry.kind {
            EntryKind::Key(shape) => Some((placed.entry.name.clone(), shape.ttl.rule.clone())),
            _ => None,
        })
        .collect();
    for placed in placed {
        let EntryKind::Key(shape) = &mut placed.entry.kind else { continue };
        let TtlRule::Like { entry, rule } = &mut shape.ttl.rule else { continue };
        match rules.iter().find(|(name, _)| name == entry) {
            Some((_, TtlRule::Like { .. })) => {
                let message =
                    format!("{entry} borrows its ttl itself: name the entry that has a rule of its own");
                return Err(Fault::new(placed.ttl_span.clone(), message));
            }
            Some((_, found)) => **rule = found.clone(),
            None => {
                let message = format!("like = {entry:?} names no key of this catalog");
                return Err(Fault::new(placed.ttl_span.clone(), message));
            }
        }
    }
    Ok(())
}
