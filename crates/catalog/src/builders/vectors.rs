//! Test vectors: identifiers with their encoding and keys with their text, for builders in any language.

use std::borrow::Cow;

use serde::Serialize;

use crate::key::Layout;
use crate::model::{Catalog, EntryKind, IdForm, IdKind};

/// Identifiers that are easily encoded wrongly.
const TEXTS: [&str; 30] = [
    "x",
    "a:b{c}%*",
    "index",
    "indexes",
    " ",
    "a b",
    "\n",
    "\u{0}",
    "\u{7f}",
    "~",
    "%69ndex",
    "é",
    "日本語",
    "🦀",
    "e\u{301}",
    "İstanbul",
    "\u{212a}elvin",
    "ΣΑΣ",
    "a.b/c|d",
    "\"quoted\\",
    "~0123456789abcdef0123456789abcdef01234567",
    "slug~0123456789abcdef0123456789abcdef01234567",
    "-slug~0123456789abcdef0123456789abcdef01234567",
    "SLUG~0123456789abcdef0123456789abcdef01234567",
    "--a--b--",
    "Long Name Long Name Long Name Long Name Long Name Long Name Long Name Long Name Long Name",
    "ééééééééééééééééééééééééééééééééééééééééééééé",
    "01234567890123456789012345678901234567890123456789012345678901234567890123456789",
    "012345678901234567890123456789012345678901234567890123456789012345678901234567890",
    "user@example.com",
];

/// What builders of a catalog must build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Vectors {
    /// The catalog.
    pub catalog: String,
    /// Identifiers of every kind.
    pub identifiers: Vec<IdentifierVector>,
    /// Keys and channels of every entry.
    pub keys: Vec<KeyVector>,
}

/// An identifier and its encoding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IdentifierVector {
    /// The kind of identifier.
    pub kind: String,
    /// The identifier.
    pub text: String,
    /// How it is written in keys.
    pub written: String,
}

/// A key or channel with its identifiers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyVector {
    /// The entry.
    pub entry: String,
    /// Identifiers by kind, in the order of the pattern.
    pub ids: Vec<(String, String)>,
    /// The key in the plain layout.
    pub plain: String,
    /// The key in the cluster layout.
    pub cluster: String,
}

/// The vectors of a catalog. `more` are further identifiers to use.
#[must_use]
pub fn vectors(catalog: &Catalog, more: &[String]) -> Vectors {
    let texts: Vec<&str> = TEXTS.iter().copied().chain(more.iter().map(String::as_str)).collect();
    let values = |kind: &IdKind| -> Vec<String> {
        match &kind.form {
            IdForm::OneOf(members) => members.iter().map(|member| member.value.clone()).collect(),
            IdForm::Text(_) => {
                [kind.example.as_str()].iter().chain(&texts).map(|text| (*text).to_owned()).collect()
            }
        }
    };
    let identifiers = catalog.ids.iter().flat_map(|kind| {
        values(kind).into_iter().filter_map(|text| {
            let written = kind.encode(&text).ok()?;
            Some(IdentifierVector { kind: kind.name.clone(), text, written })
        })
    });
    let built = catalog.entries.iter().filter(|entry| !matches!(entry.kind, EntryKind::Group { .. }));
    let keys = built.flat_map(|entry| {
        (0..=texts.len()).filter_map(|round| {
            let kinds: Vec<&IdKind> = entry.plain.ids().filter_map(|number| catalog.id(number)).collect();
            // Different texts for the identifiers of one key.
            let chosen = kinds.iter().enumerate().filter_map(|(position, kind)| {
                let values = values(kind);
                let value = values.get((round + 7 * position) % values.len().max(1))?.clone();
                Some((kind.name.clone(), value))
            });
            let ids: Vec<(String, String)> = chosen.collect();
            if ids.is_empty() && round > 0 {
                return None;
            }
            let raw = |name: &str| {
                let id = ids.iter().find(|(kind, _)| kind == name);
                Cow::Owned(id.map(|(_, text)| text.clone()).unwrap_or_default())
            };
            let [plain, cluster] =
                [Layout::Plain, Layout::Cluster].map(|layout| catalog.build(entry, layout, raw).ok());
            Some(KeyVector { entry: entry.name.clone(), ids: ids.clone(), plain: plain?, cluster: cluster? })
        })
    });
    Vectors { catalog: catalog.name.clone(), identifiers: identifiers.collect(), keys: keys.collect() }
}
