//! The rules, the same for all languages.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;

use ade_catalog::model::{Entry, EntryKind};
use ade_catalog::slot::slot_of;

use super::commands;
use super::model::{Call, Piece, Source, TextExpr};
use super::overlap::{Token, overlaps, tokens};
use super::vocabulary::{Verdict, Vocabulary};
use super::{Finding, Rule};

/// The findings of a file, before exceptions.
pub(super) fn check(
    vocabulary: &Vocabulary<'_>,
    source: &Source,
    path: &str,
    is_test_file: bool,
) -> Vec<Finding> {
    let mut checker = Checker {
        vocabulary,
        path,
        is_test_file,
        tests: &source.tests,
        found: Vec::new(),
        judged: HashSet::new(),
    };
    for call in &source.calls {
        for key in commands::keys(call) {
            checker.key(key);
        }
        checker.lost_ttls(call);
    }
    for mention in &source.mentions {
        if vocabulary.governs(mention) {
            checker.key(&mention.text);
        }
    }
    checker.slots(&source.calls);
    checker.found
}

struct Checker<'a, 'c> {
    vocabulary: &'a Vocabulary<'c>,
    path: &'a str,
    is_test_file: bool,
    tests: &'a [Range<usize>],
    found: Vec<Finding>,
    /// Positions of texts that are judged. A constant can be the key of several calls.
    judged: HashSet<usize>,
}

impl Checker<'_, '_> {
    fn report(&mut self, rule: Rule, line: usize, key: &TextExpr, message: String) {
        self.found.push(Finding { path: self.path.to_owned(), line, rule, key: key.to_string(), message });
    }

    fn is_test(&self, position: usize) -> bool {
        self.is_test_file || self.tests.iter().any(|range| range.contains(&position))
    }

    fn key(&mut self, key: &TextExpr) {
        let verdict = self.vocabulary.classify(key);
        let is_first = self.judged.insert(key.position);
        match verdict {
            _ if !is_first => {}
            Some(Verdict::Unknown) => {
                let names = self.vocabulary.names();
                let hint = self.vocabulary.suggestion(key);
                let hint = hint.map_or_else(String::new, |near| format!("; the nearest entry is {near}"));
                self.report(
                    Rule::UnknownKey,
                    key.line,
                    key,
                    format!("no entry of {names} has this key{hint}"),
                );
            }
            Some(Verdict::Key(entry)) if !self.is_test(key.position) => {
                if let Some(builder) = builder(entry) {
                    let message = format!("{} is built by hand: use its builder, {builder}", entry.name);
                    self.report(Rule::InlineKey, key.line, key, message);
                }
            }
            Some(Verdict::FormerKey(entry)) if !self.is_test(key.position) => {
                let message = format!("a former spelling of {}: builders write {}", entry.name, entry.plain);
                self.report(Rule::InlineKey, key.line, key, message);
            }
            _ => {}
        }
    }

    fn lost_ttls(&mut self, call: &Call) {
        for key in commands::overwritten(call) {
            let Some(Verdict::Key(entry)) = self.vocabulary.classify(key) else { continue };
            let EntryKind::Key(shape) = &entry.kind else { continue };
            if shape.ttl.rule.expires() {
                let (command, name, ttl) = (&call.command, &entry.name, &shape.ttl.rule);
                let advice = match command.as_str() {
                    "SET" => "set EX, PX, EXAT, PXAT or KEEPTTL in the same call",
                    _ => "use SET with EX, PX, EXAT, PXAT or KEEPTTL",
                };
                let message = format!("{command} removes the TTL of {name} ({ttl}): {advice}");
                self.report(Rule::TtlLost, call.line, key, message);
            }
        }
    }

    /// Keys of one call, and of all calls of one pipeline, transaction or script.
    fn slots(&mut self, calls: &[Call]) {
        let mut groups: BTreeMap<usize, Vec<&Call>> = BTreeMap::new();
        for call in calls.iter().filter(|call| commands::is_bound_to_a_slot(&call.command)) {
            if let Some(group) = call.group {
                groups.entry(group).or_default().push(call);
            }
        }
        let mut reported = BTreeSet::new();
        for call in calls.iter().filter(|call| commands::is_bound_to_a_slot(&call.command)) {
            let keys: Vec<_> = commands::keys(call).into_iter().map(|key| (key, call.line)).collect();
            if self.slot(&call.command, &keys) {
                reported.extend(call.group);
            }
        }
        for (group, calls) in groups.iter().filter(|(_, calls)| calls.len() > 1) {
            let keys_of = |call: &&Call| -> Vec<_> {
                commands::keys(call).into_iter().cloned().map(|key| (key, call.line)).collect()
            };
            let keys: Vec<(TextExpr, usize)> = calls.iter().flat_map(keys_of).collect();
            let keys: Vec<(&TextExpr, usize)> = keys.iter().map(|(key, line)| (key, *line)).collect();
            if !reported.contains(group) {
                self.slot("one pipeline, transaction or script", &keys);
            }
        }
    }

    /// Reports the first key that is in another slot than one before it.
    fn slot(&mut self, what: &str, keys: &[(&TextExpr, usize)]) -> bool {
        let hashed: Vec<_> = keys
            .iter()
            .filter_map(|(key, line)| Some((*key, *line, self.vocabulary.hashed_part(key)?)))
            .collect();
        for (number, (key, line, part)) in hashed.iter().enumerate() {
            let before = hashed.iter().take(number).find(|(.., other)| differ(part, other));
            if let Some((other, _, other_part)) = before {
                let message = format!(
                    "{what} uses {other} too, which is in another slot of a cluster ({}, not {}): give both the same hash tag",
                    shown(other_part),
                    shown(part)
                );
                self.report(Rule::CrossSlot, *line, key, message);
                return true;
            }
        }
        false
    }
}

/// The path of the builder that is generated for an entry. Consumer groups are no keys.
fn builder(entry: &Entry) -> Option<String> {
    match entry.kind {
        EntryKind::Group { .. } => None,
        EntryKind::Key(_) | EntryKind::Channel { .. } => {
            let (group, name) = entry.group_and_name();
            Some(format!("{group}::{name}"))
        }
    }
}

/// Whether two texts cannot be in the same slot.
fn differ(one: &TextExpr, other: &TextExpr) -> bool {
    if let (Some(one), Some(other)) = (one.as_literal(), other.as_literal()) {
        return slot_of(one.as_bytes()) != slot_of(other.as_bytes());
    }
    if holes(one) == holes(other) {
        return one.to_string() != other.to_string();
    }
    !overlaps(&any_tokens(one), &any_tokens(other), b':')
}

fn holes(text: &TextExpr) -> BTreeSet<&str> {
    let holes = text.pieces.iter().filter_map(|piece| match piece {
        Piece::Hole(source) => Some(source.as_str()),
        Piece::Literal(_) => None,
    });
    holes.collect()
}

fn any_tokens(text: &TextExpr) -> Vec<Token> {
    let token = |piece: &Piece| match piece {
        Piece::Literal(text) => tokens(text).collect(),
        Piece::Hole(_) => vec![Token::Any],
    };
    text.pieces.iter().flat_map(token).collect()
}

fn shown(part: &TextExpr) -> String {
    part.as_literal()
        .map_or_else(|| format!("tag {part}"), |text| format!("slot {}", slot_of(text.as_bytes())))
}
