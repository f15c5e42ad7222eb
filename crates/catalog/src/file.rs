//! The TOML structure of a catalog file, with spans for later error messages. Nothing is validated here.

use serde::Deserialize;
use toml::{Spanned, Value};

use crate::model::{Field, Format, MessageDoc, Sensitivity, ValueType};
use crate::ttl::TtlDuration;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    pub(crate) catalog: Spanned<Header>,
    #[serde(default)]
    pub(crate) id: Vec<IdDecl>,
    #[serde(default)]
    pub(crate) key: Vec<KeyDecl>,
    #[serde(default)]
    pub(crate) channel: Vec<ChannelDecl>,
    #[serde(default)]
    pub(crate) group: Vec<GroupDecl>,
    #[serde(default)]
    pub(crate) family: Vec<FamilyDecl>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Header {
    pub(crate) name: Spanned<String>,
    pub(crate) title: String,
    pub(crate) source: String,
    pub(crate) key_limit: Option<Spanned<usize>>,
    pub(crate) owner_segment: Option<Spanned<usize>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct IdDecl {
    pub(crate) name: Spanned<String>,
    pub(crate) about: String,
    pub(crate) example: Option<Spanned<String>>,
    pub(crate) one_of: Option<Spanned<Vec<Spanned<String>>>>,
    #[serde(default)]
    pub(crate) added: Vec<Spanned<String>>,
    #[serde(default)]
    pub(crate) hashed: bool,
    #[serde(default)]
    pub(crate) sensitive: bool,
    pub(crate) max_bytes: Option<Spanned<usize>>,
}

/// The fields of every kind of entry.
#[derive(Clone, Copy)]
pub(crate) struct CommonFields<'a> {
    pub(crate) name: &'a Spanned<String>,
    pub(crate) pattern: &'a Spanned<String>,
    pub(crate) cluster: Option<&'a Spanned<String>>,
    pub(crate) separator: Option<&'a Spanned<char>>,
    pub(crate) owner: &'a Spanned<String>,
    pub(crate) purpose: &'a Spanned<String>,
    pub(crate) addition: bool,
}

/// Declares a kind of entry with the common fields and its own. Flattened structs would lose the spans.
macro_rules! entry_decl {
    ($decl:ident { $($(#[$attribute:meta])* $field:ident: $type:ty,)* }) => {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $decl {
            pub(crate) name: Spanned<String>,
            pattern: Spanned<String>,
            cluster: Option<Spanned<String>>,
            separator: Option<Spanned<char>>,
            owner: Spanned<String>,
            purpose: Spanned<String>,
            #[serde(default)]
            addition: bool,
            $($(#[$attribute])* pub(crate) $field: $type,)*
        }

        impl $decl {
            pub(crate) fn common(&self) -> CommonFields<'_> {
                let Self { name, pattern, cluster, separator, owner, purpose, addition, .. } = self;
                let (cluster, separator) = (cluster.as_ref(), separator.as_ref());
                CommonFields { name, pattern, cluster, separator, owner, purpose, addition: *addition }
            }
        }
    };
}

entry_decl!(KeyDecl {
    #[serde(default)]
    formerly: Vec<Spanned<String>>,
    #[serde(rename = "type")]
    value_type: Spanned<ValueType>,
    ttl: Spanned<Value>,
    cleanup: Option<String>,
    format: Option<Spanned<Format>>,
    #[serde(default)]
    sensitivity: Sensitivity,
    #[serde(default)]
    fields: Vec<Spanned<Field>>,
    score: Option<String>,
    members: Option<String>,
    value: Option<String>,
});

entry_decl!(ChannelDecl {
    #[serde(default)]
    messages: Vec<MessageDoc>,
});

entry_decl!(GroupDecl {
    stream: Spanned<String>,
    names: Spanned<Vec<Spanned<String>>>,
});

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FamilyDecl {
    pub(crate) name: Spanned<String>,
    pub(crate) pattern: Spanned<String>,
    pub(crate) purpose: Spanned<String>,
    #[serde(default)]
    pub(crate) must_expire: bool,
    pub(crate) format: Option<Format>,
    #[serde(default)]
    pub(crate) addition: bool,
}

/// A lifetime, unless it is `"none"`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TtlTable {
    pub(crate) exact: Option<TtlDuration>,
    pub(crate) range: Option<[TtlDuration; 2]>,
    pub(crate) at_least: Option<TtlDuration>,
    pub(crate) default: Option<TtlDuration>,
    pub(crate) renewable: Option<TtlDuration>,
    pub(crate) at_most: Option<TtlDuration>,
    pub(crate) like: Option<String>,
    pub(crate) given: Option<String>,
    pub(crate) plus: Option<TtlDuration>,
    pub(crate) maxlen: Option<u64>,
}
