//! A hash map of locks in parts that grow one by one: a single map would stop everything while it moves a million entries.

use std::collections::HashMap;

use super::LockName;
use super::name::NameHashBuilder;

const PARTS: usize = 256;

type Part<V> = HashMap<LockName, V, NameHashBuilder>;

#[derive(Debug, Clone)]
pub(super) struct PartedMap<V> {
    parts: Vec<Part<V>>,
}

impl<V> Default for PartedMap<V> {
    fn default() -> Self {
        Self { parts: std::iter::repeat_with(Part::default).take(PARTS).collect() }
    }
}

#[expect(clippy::indexing_slicing, reason = "there are always as many parts")]
impl<V> PartedMap<V> {
    fn part(&self, name: &LockName) -> &Part<V> {
        &self.parts[part_of(name)]
    }

    fn part_mut(&mut self, name: &LockName) -> &mut Part<V> {
        &mut self.parts[part_of(name)]
    }

    pub(super) fn get(&self, name: &LockName) -> Option<&V> {
        self.part(name).get(name)
    }

    pub(super) fn get_key_value(&self, name: &LockName) -> Option<(&LockName, &V)> {
        self.part(name).get_key_value(name)
    }

    pub(super) fn get_mut(&mut self, name: &LockName) -> Option<&mut V> {
        self.part_mut(name).get_mut(name)
    }

    pub(super) fn get_or_default(&mut self, name: &LockName) -> &mut V
    where
        V: Default,
    {
        self.part_mut(name).entry(name.clone()).or_default()
    }

    pub(super) fn remove(&mut self, name: &LockName) -> Option<V> {
        self.part_mut(name).remove(name)
    }
}

/// Chosen by bits that the maps themselves hardly use: they take the lowest for the place and the highest for a tag.
fn part_of(name: &LockName) -> usize {
    usize::from(name.digest().to_le_bytes()[4])
}
