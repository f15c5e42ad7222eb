//! Kinds of identifiers: from their declarations to their writing rules.

use super::{at_most, is_name};
use crate::builders::{camel, snake, variant};
use crate::error::Fault;
use crate::file::IdDecl;
use crate::ident::{DEFAULT_MAX_BYTES, LEAST_MAX_BYTES, Rules};
use crate::model::{IdForm, IdKind, Member};
use crate::text::one_line;

pub(super) fn ids(decls: &[IdDecl]) -> Result<Vec<IdKind>, Fault> {
    if let Some(last) = decls.last() {
        at_most(decls.len(), last.name.span())?;
    }
    let mut kinds: Vec<IdKind> = Vec::new();
    for decl in decls {
        let name = decl.name.get_ref();
        if !is_name(name) {
            return Err(Fault::new(
                decl.name.span(),
                format!(
                    "{name:?} is not a name: use letters, digits and underscores, beginning with a letter"
                ),
            ));
        }
        let same = |kind: &&IdKind| camel(&kind.name) == camel(name) || snake(&kind.name) == snake(name);
        if let Some(twin) = kinds.iter().find(same) {
            let message = format!("the identifier {name} is declared already (as {})", twin.name);
            return Err(Fault::new(decl.name.span(), message));
        }
        let form = id_form(decl)?;
        let example = match (&decl.example, &form) {
            (Some(example), _) => example.get_ref().clone(),
            (None, IdForm::OneOf(members)) => {
                members.first().map(|member| member.value.clone()).unwrap_or_default()
            }
            (None, IdForm::Text(_)) => {
                return Err(Fault::new(decl.name.span(), format!("the identifier {name} needs an example")));
            }
        };
        let kind = IdKind { name: name.clone(), about: one_line(&decl.about), example, form };
        if let (Some(example), Err(error)) = (&decl.example, kind.write(&kind.example)) {
            return Err(Fault::new(example.span(), format!("the example is no {name}: {error}")));
        }
        kinds.push(kind);
    }
    Ok(kinds)
}

fn id_form(decl: &IdDecl) -> Result<IdForm, Fault> {
    let Some(one_of) = &decl.one_of else {
        if let Some(added) = decl.added.first() {
            return Err(Fault::new(added.span(), "added belongs to a closed set: give one_of too"));
        }
        let max_bytes = decl.max_bytes.as_ref().map_or(DEFAULT_MAX_BYTES, |max| *max.get_ref());
        if let Some(max) = decl.max_bytes.as_ref().filter(|_| max_bytes < LEAST_MAX_BYTES) {
            return Err(Fault::new(
                max.span(),
                format!("max_bytes must leave room for a hash: at least {LEAST_MAX_BYTES}"),
            ));
        }
        let hashed = decl.hashed || decl.sensitive;
        return Ok(IdForm::Text(Rules { max_bytes, hashed, sensitive: decl.sensitive, ..Rules::default() }));
    };
    if decl.hashed || decl.sensitive || decl.max_bytes.is_some() {
        return Err(Fault::new(
            decl.name.span(),
            "a closed set (one_of) is written as it stands: hashed, sensitive and max_bytes do not apply",
        ));
    }
    at_most(one_of.get_ref().len() + decl.added.len(), one_of.span())?;
    let mut members: Vec<Member> = Vec::new();
    let given = one_of.get_ref().iter().map(|value| (value, false));
    for (place, addition) in given.chain(decl.added.iter().map(|value| (value, true))) {
        let value = place.get_ref();
        let legal = value.bytes().all(|byte| byte.is_ascii_graphic() && !b"{}%*?[]\\\"'".contains(&byte));
        if !legal || value.split(':').any(str::is_empty) || variant(value).is_empty() {
            return Err(Fault::new(
                place.span(),
                format!(
                    "{value:?} cannot be a member: use printable ASCII without {{}}%*?[], with a letter or digit"
                ),
            ));
        }
        if let Some(twin) = members.iter().find(|member| variant(&member.value) == variant(value)) {
            let message = format!("{value:?} is in the set already, or cannot be told from {:?}", twin.value);
            return Err(Fault::new(place.span(), message));
        }
        members.push(Member { value: value.clone(), addition });
    }
    if members.is_empty() {
        return Err(Fault::new(one_of.span(), "one_of is empty: a closed set needs a member"));
    }
    Ok(IdForm::OneOf(members))
}
