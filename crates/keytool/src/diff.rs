//! What differs between two versions of a catalog, and what of that breaks programs or data that follow the older one.

use std::collections::BTreeMap;
use std::fmt::Display;

use ade_catalog::Catalog;
use ade_catalog::model::{Entry, EntryKind, Family, IdForm, IdKind, KeyShape};
use serde::Serialize;

/// The differences between two catalogs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CatalogDiff {
    /// In the order of the newer catalog; removed ones come last.
    pub differences: Vec<Difference>,
}

/// A difference of one object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    pub change: Change,
    /// `key`, `channel`, `group`, `identifier`, `family` or `catalog`.
    pub kind: &'static str,
    pub name: String,
    /// Whether present keys or programs no longer fit.
    pub breaking: bool,
    /// What changed, for changed objects.
    pub fields: Vec<FieldChange>,
}

/// How an object differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    Added,
    Changed,
    Removed,
}

/// A property of an object, before and after. Empty: it has none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FieldChange {
    pub field: String,
    pub before: String,
    pub after: String,
}

impl CatalogDiff {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.differences.is_empty()
    }

    /// How many differences break something.
    #[must_use]
    pub fn breaking(&self) -> usize {
        self.differences.iter().filter(|difference| difference.breaking).count()
    }
}

/// Properties that present keys or programs depend on.
const BREAKING: [&str; 9] = [
    "pattern",
    "cluster pattern",
    "type",
    "format",
    "encoding",
    "key limit",
    "must expire",
    "stream",
    "owner segment",
];

/// An object with its properties, in an order for people.
struct Object {
    kind: &'static str,
    name: String,
    properties: Vec<(String, String)>,
}

/// Compares two catalogs. Objects are the same if they have the same kind and name.
#[must_use]
pub fn diff(before: &Catalog, after: &Catalog) -> CatalogDiff {
    let (before, after) = (objects(before), objects(after));
    let old: BTreeMap<(&str, &str), &Object> = by_name(&before);
    let new: BTreeMap<(&str, &str), &Object> = by_name(&after);
    let mut differences = Vec::new();
    for object in &after {
        let difference = |change, fields: Vec<FieldChange>| Difference {
            change,
            kind: object.kind,
            name: object.name.clone(),
            breaking: fields.iter().any(is_breaking),
            fields,
        };
        match old.get(&(object.kind, &*object.name)) {
            None => differences.push(difference(Change::Added, Vec::new())),
            Some(earlier) => {
                let fields = changes(&earlier.properties, &object.properties);
                if !fields.is_empty() {
                    differences.push(difference(Change::Changed, fields));
                }
            }
        }
    }
    let removed = before.iter().filter(|object| !new.contains_key(&(object.kind, &*object.name)));
    differences.extend(removed.map(|object| Difference {
        change: Change::Removed,
        kind: object.kind,
        name: object.name.clone(),
        breaking: true,
        fields: Vec::new(),
    }));
    CatalogDiff { differences }
}

fn by_name(objects: &[Object]) -> BTreeMap<(&str, &str), &Object> {
    objects.iter().map(|object| ((object.kind, &*object.name), object)).collect()
}

fn changes(before: &[(String, String)], after: &[(String, String)]) -> Vec<FieldChange> {
    let value = |properties: &[(String, String)], name: &str| {
        properties.iter().find(|(field, _)| field == name).map(|(_, value)| value.clone()).unwrap_or_default()
    };
    let removed = before.iter().filter(|(name, _)| after.iter().all(|(other, _)| other != name));
    let names = after.iter().chain(removed).map(|(name, _)| name);
    let changes = names.map(|field| FieldChange {
        field: field.clone(),
        before: value(before, field),
        after: value(after, field),
    });
    changes.filter(|change| change.before != change.after).collect()
}

/// A set may grow and a field may be added: what exists still fits.
fn is_breaking(change: &FieldChange) -> bool {
    let FieldChange { field, before, after } = change;
    match field.as_str() {
        "ttl" => true,
        "members of the set" => {
            !before.split(", ").all(|member| after.split(", ").any(|other| other == member))
        }
        field if field.starts_with("field ") => !before.is_empty(),
        field => BREAKING.contains(&field),
    }
}

fn objects(catalog: &Catalog) -> Vec<Object> {
    let header = vec![
        property("title", &catalog.title),
        property("source", &catalog.source),
        property("key limit", &catalog.key_limit),
        property(
            "owner segment",
            &catalog.owner_segment.map_or_else(String::new, |segment| segment.to_string()),
        ),
    ];
    let catalog_object = Object { kind: "catalog", name: "catalog".to_owned(), properties: header };
    let objects = [catalog_object].into_iter().chain(catalog.ids.iter().map(identifier));
    objects.chain(catalog.entries.iter().map(entry)).chain(catalog.families.iter().map(family)).collect()
}

fn property(name: &str, value: &dyn Display) -> (String, String) {
    (name.to_owned(), value.to_string())
}

fn identifier(kind: &IdKind) -> Object {
    let mut properties = vec![property("about", &kind.about), property("example", &kind.example)];
    match &kind.form {
        IdForm::OneOf(members) => {
            let members: Vec<&str> = members.iter().map(|member| member.value.as_str()).collect();
            properties.push(property("encoding", &"closed set"));
            properties.push(property("members of the set", &members.join(", ")));
        }
        IdForm::Text(rules) => {
            let form = match (rules.sensitive, rules.hashed) {
                (true, _) => "hashed without a slug",
                (false, true) => "hashed",
                (false, false) => "encoded",
            };
            let reserved = rules.reserved.join(" ");
            let encoding = format!(
                "{form}, at most {} bytes, reserved: {reserved}, separators: :{}",
                rules.max_bytes, rules.separators
            );
            properties.push(property("encoding", &encoding));
        }
    }
    Object { kind: "identifier", name: kind.name.clone(), properties }
}

fn entry(entry: &Entry) -> Object {
    let formerly: Vec<&str> = entry.formerly.iter().map(|pattern| pattern.text()).collect();
    let mut properties = vec![
        property("pattern", &entry.plain),
        property("cluster pattern", &entry.cluster),
        property("formerly", &formerly.join(", ")),
        property("owner", &entry.owner),
        property("purpose", &entry.purpose),
    ];
    let kind = match &entry.kind {
        EntryKind::Key(shape) => {
            properties.extend(shape_properties(shape));
            "key"
        }
        EntryKind::Channel { messages } => {
            properties.extend(messages.iter().map(|it| property(&format!("field {}", it.name), &it.about)));
            "channel"
        }
        EntryKind::Group { names, stream } => {
            properties
                .extend([property("stream", &stream), property("members of the set", &names.join(", "))]);
            "group"
        }
    };
    Object { kind, name: entry.name.clone(), properties }
}

fn shape_properties(shape: &KeyShape) -> Vec<(String, String)> {
    let optional = |text: &Option<String>| text.clone().unwrap_or_default();
    let mut properties = vec![
        property("type", &shape.value_type),
        property("ttl", &shape.ttl),
        property("format", &shape.format),
        property("sensitivity", &shape.sensitivity),
        property("cleanup", &optional(&shape.cleanup)),
        property("score", &optional(&shape.score)),
        property("members", &optional(&shape.members)),
        property("value", &optional(&shape.value)),
    ];
    properties.extend(
        shape.fields.iter().map(|field| property(&format!("field {}", field.name), &field.field_type)),
    );
    properties
}

fn family(family: &Family) -> Object {
    let properties = vec![
        property("pattern", &family.pattern),
        property("must expire", &if family.must_expire { "yes" } else { "" }),
        property("format", &family.format.map_or_else(String::new, |format| format.to_string())),
        property("purpose", &family.purpose),
    ];
    Object { kind: "family", name: family.name.clone(), properties }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOP: &str = include_str!("../../catalog/tests/fixtures/shop.toml");

    fn shop(replace: &[(&str, &str)]) -> Catalog {
        let source = replace.iter().fold(SHOP.to_owned(), |source, (from, to)| {
            assert!(source.contains(from), "{from}");
            source.replace(from, to)
        });
        Catalog::parse("shop.toml", &source).expect("valid")
    }

    fn described(diff: &CatalogDiff) -> Vec<String> {
        let describe = |it: &Difference| {
            let fields = it.fields.iter().map(|it| format!(" {}: {} -> {}", it.field, it.before, it.after));
            let breaking = if it.breaking { "!" } else { "" };
            format!("{:?}{breaking} {} {}{}", it.change, it.kind, it.name, fields.collect::<String>())
        };
        diff.differences.iter().map(describe).collect()
    }

    #[test]
    fn equal_catalogs_have_no_difference() {
        assert!(diff(&shop(&[]), &shop(&[])).is_empty());
    }

    #[test]
    fn each_change_is_named_and_judged() {
        let after = shop(&[
            ("ttl = { exact = \"15s\" }", "ttl = { exact = \"20s\" }"),
            ("results of searches", "results"),
            ("added = [\"QUIET\"]", "added = [\"QUIET\", \"new\"]"),
            (
                "name = \"mail.bounced\"\npattern = \"shop:bounced:{eMail}\"",
                "name = \"mail.returned\"\npattern = \"shop:returned:{eMail}\"",
            ),
            ("{ name = \"sku\", type = \"string\", about = \"article\" },", ""),
            ("must_expire = true\n", ""),
            ("key_limit = 180", "key_limit = 190"),
        ]);
        assert_eq!(
            described(&diff(&shop(&[]), &after)),
            [
                "Changed! catalog catalog key limit: 180 -> 190",
                "Changed identifier level members of the set: info, very:loud, 24h, QUIET -> info, very:loud, 24h, QUIET, new",
                "Changed! key cart.items field sku: string -> ",
                "Changed! key cache.search purpose: results of searches -> results ttl: 15s -> 20s",
                "Added key mail.returned",
                "Changed! family carts must expire: yes -> ",
                "Removed! key mail.bounced",
            ]
        );
    }
}
