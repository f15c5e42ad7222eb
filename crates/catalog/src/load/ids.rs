//! Converts declarations of identifiers to their encoding rules.

use std::borrow::Cow;

use super::{check_count, is_name};
use crate::builders::{camel, snake, variant};
use crate::error::{Result, reject};
use crate::file::IdDecl;
use crate::ident::{DEFAULT_MAX_BYTES, EncodingRules, MIN_MAX_BYTES};
use crate::model::{IdForm, IdKind, Member};
use crate::text::one_line;

pub(super) fn ids(decls: &[IdDecl]) -> Result<Vec<IdKind>> {
    if let Some(last) = decls.last() {
        check_count(decls.len(), last.name.span())?;
    }
    let mut kinds: Vec<IdKind> = Vec::new();
    for decl in decls {
        let (name, span) = (decl.name.get_ref(), decl.name.span());
        if !is_name(name) {
            let rule = "use letters, digits and underscores, starting with a letter";
            return reject(span, format!("{name:?} is not a valid name: {rule}"));
        }
        let has_same_name =
            |kind: &&IdKind| camel(&kind.name) == camel(name) || snake(&kind.name) == snake(name);
        if let Some(other) = kinds.iter().find(has_same_name) {
            return reject(span, format!("the identifier {name} is already declared (as {})", other.name));
        }
        let form = id_form(decl)?;
        let example = match (&decl.example, &form) {
            (Some(example), _) => example.get_ref().clone(),
            (None, IdForm::OneOf(members)) => {
                members.first().map(|member| member.value.clone()).unwrap_or_default()
            }
            (None, IdForm::Text(_)) => {
                return reject(span, format!("the identifier {name} needs an example"));
            }
        };
        let kind = IdKind { name: name.clone(), about: one_line(&decl.about), example, form };
        if let (Some(example), Err(error)) = (&decl.example, kind.encode(&kind.example)) {
            return reject(example.span(), format!("the example is not a valid {name}: {error}"));
        }
        kinds.push(kind);
    }
    Ok(kinds)
}

fn id_form(decl: &IdDecl) -> Result<IdForm> {
    let &IdDecl { hashed, sensitive, .. } = decl;
    let Some(one_of) = &decl.one_of else {
        if let Some(added) = decl.added.first() {
            return reject(added.span(), "added requires one_of: it extends a closed set");
        }
        let max_bytes = decl.max_bytes.as_ref().map_or(DEFAULT_MAX_BYTES, |max| *max.get_ref());
        if let Some(max) = decl.max_bytes.as_ref().filter(|_| max_bytes < MIN_MAX_BYTES) {
            let message = format!("max_bytes must be at least {MIN_MAX_BYTES}, the length of a hash");
            return reject(max.span(), message);
        }
        // The checks across entries find the reserved words and the separators.
        let (hashed, reserved, separators) = (hashed || sensitive, Cow::default(), Cow::default());
        return Ok(IdForm::Text(EncodingRules { max_bytes, hashed, sensitive, reserved, separators }));
    };
    if hashed || sensitive || decl.max_bytes.is_some() {
        let message = "a closed set (one_of) is not encoded: remove hashed, sensitive and max_bytes";
        return reject(decl.name.span(), message);
    }
    check_count(one_of.get_ref().len() + decl.added.len(), one_of.span())?;
    let mut members: Vec<Member> = Vec::new();
    let declared = one_of.get_ref().iter().map(|value| (value, false));
    for (item, addition) in declared.chain(decl.added.iter().map(|value| (value, true))) {
        let value = item.get_ref();
        let is_valid = value.bytes().all(|byte| byte.is_ascii_graphic() && !b"{}%*?[]\\\"'".contains(&byte));
        if !is_valid || value.split(':').any(str::is_empty) || variant(value).is_empty() {
            let rule = "use printable ASCII without {}%*?[], with at least one letter or digit";
            return reject(item.span(), format!("{value:?} is not a valid member: {rule}"));
        }
        if let Some(other) = members.iter().find(|member| variant(&member.value) == variant(value)) {
            let message =
                format!("{value:?} has the same Rust name as {:?}: choose another member", other.value);
            return reject(item.span(), message);
        }
        members.push(Member { value: value.clone(), addition });
    }
    if members.is_empty() {
        return reject(one_of.span(), "one_of is empty: a closed set needs at least one member");
    }
    Ok(IdForm::OneOf(members))
}
