//! The TOML structure of a catalog file, with spans for later error messages. Nothing is validated here.

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};
use toml::Spanned;

use crate::model::{Field, Format, MessageDoc, Sensitivity, ValueType};

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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyDecl {
    pub(crate) name: Spanned<String>,
    pub(crate) pattern: Spanned<String>,
    pub(crate) cluster: Option<Spanned<String>>,
    pub(crate) separator: Option<Spanned<char>>,
    #[serde(default)]
    pub(crate) formerly: Vec<Spanned<String>>,
    #[serde(rename = "type")]
    pub(crate) value_type: Spanned<ValueType>,
    pub(crate) ttl: Spanned<TtlDecl>,
    pub(crate) cleanup: Option<String>,
    pub(crate) format: Option<Spanned<Format>>,
    #[serde(default)]
    pub(crate) sensitivity: Sensitivity,
    pub(crate) owner: Spanned<String>,
    pub(crate) purpose: Spanned<String>,
    #[serde(default)]
    pub(crate) addition: bool,
    #[serde(default)]
    pub(crate) fields: Vec<Spanned<Field>>,
    pub(crate) score: Option<String>,
    pub(crate) members: Option<String>,
    pub(crate) value: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChannelDecl {
    pub(crate) name: Spanned<String>,
    pub(crate) pattern: Spanned<String>,
    pub(crate) cluster: Option<Spanned<String>>,
    pub(crate) separator: Option<Spanned<char>>,
    pub(crate) owner: Spanned<String>,
    pub(crate) purpose: Spanned<String>,
    #[serde(default)]
    pub(crate) addition: bool,
    #[serde(default)]
    pub(crate) messages: Vec<MessageDoc>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GroupDecl {
    pub(crate) name: Spanned<String>,
    pub(crate) pattern: Spanned<String>,
    pub(crate) cluster: Option<Spanned<String>>,
    pub(crate) separator: Option<Spanned<char>>,
    pub(crate) stream: Spanned<String>,
    pub(crate) names: Spanned<Vec<Spanned<String>>>,
    pub(crate) owner: Spanned<String>,
    pub(crate) purpose: Spanned<String>,
    #[serde(default)]
    pub(crate) addition: bool,
}

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

/// `"none"`, or a table with one rule.
pub(crate) enum TtlDecl {
    None,
    Table(Box<TtlTable>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TtlTable {
    pub(crate) exact: Option<String>,
    pub(crate) range: Option<[String; 2]>,
    pub(crate) at_least: Option<String>,
    pub(crate) default: Option<String>,
    pub(crate) renewable: Option<String>,
    pub(crate) at_most: Option<String>,
    pub(crate) like: Option<String>,
    pub(crate) given: Option<String>,
    pub(crate) plus: Option<String>,
    pub(crate) maxlen: Option<u64>,
}

impl<'de> Deserialize<'de> for TtlDecl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TtlVisitor;
        impl<'de> Visitor<'de> for TtlVisitor {
            type Value = TtlDecl;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("\"none\" or a rule such as { exact = \"90d\" }")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<TtlDecl, E> {
                match text {
                    "none" => Ok(TtlDecl::None),
                    other => Err(E::invalid_value(serde::de::Unexpected::Str(other), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<TtlDecl, A::Error> {
                let table = TtlTable::deserialize(MapAccessDeserializer::new(map))?;
                Ok(TtlDecl::Table(Box::new(table)))
            }
        }
        deserializer.deserialize_any(TtlVisitor)
    }
}
