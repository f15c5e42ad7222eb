//! A guess at what somebody meant by a key that no catalog describes: a hint for people, never an answer.

use ade_catalog::Catalog;
use ade_catalog::model::IdForm;
use ade_catalog::pattern::Pattern;

/// The entry whose pattern comes closest to the key, once its identifiers are taken from the key itself.
pub(super) fn nearest<'a>(catalogs: &'a [Catalog], key: &str) -> Option<(&'a str, &'a str)> {
    let patterns = catalogs.iter().flat_map(|catalog| {
        let both = catalog.entries.iter().flat_map(|entry| [(entry, &entry.plain), (entry, &entry.cluster)]);
        both.flat_map(|(entry, pattern)| {
            spelled_out(catalog, pattern).into_iter().map(move |text| (entry, pattern, text))
        })
    });
    let candidates: Vec<(&str, &str, String)> = patterns
        .map(|(entry, pattern, text)| {
            let separator = pattern.separator();
            let theirs: Vec<&str> = key.split(separator).collect();
            let filled = text.split(separator).enumerate().map(|(position, segment)| {
                let is_id = segment.contains('{') && segment.contains('}');
                if is_id { theirs.get(position).copied().unwrap_or_default() } else { segment }
            });
            (entry.name.as_str(), pattern.text(), filled.collect::<Vec<_>>().join(&separator.to_string()))
        })
        .collect();
    let near = ade_catalog::closest(key, candidates.iter().map(|(.., filled)| filled.as_str()))?;
    candidates.iter().find(|(.., filled)| filled == near).map(|(name, pattern, _)| (*name, *pattern))
}

/// The pattern, once for every member of a closed set that has colons: such members take several segments.
fn spelled_out(catalog: &Catalog, pattern: &Pattern) -> Vec<String> {
    let members = pattern.ids().filter_map(|number| catalog.id(number)).find_map(|kind| match &kind.form {
        IdForm::OneOf(members) if members.iter().any(|member| member.value.contains(':')) => {
            Some((kind, members))
        }
        _ => None,
    });
    let Some((kind, members)) = members else { return vec![pattern.text().to_owned()] };
    let place = format!("{{{}}}", kind.name);
    members.iter().map(|member| pattern.text().replace(&place, &member.value)).collect()
}
