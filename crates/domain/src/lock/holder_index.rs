//! An ordered index of (holder, lock) pairs: the locks of one holder, or of all holders of one agent.

use std::collections::BTreeSet;

use super::{Holder, LockName, SharedStr};

#[derive(Debug, Clone, Default)]
pub(super) struct HolderIndex {
    pairs: BTreeSet<(Holder, LockName)>,
}

impl HolderIndex {
    pub(super) fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Returns whether the pair is new.
    pub(super) fn insert(&mut self, holder: &Holder, name: &LockName) -> bool {
        self.pairs.insert((holder.clone(), name.clone()))
    }

    /// Returns whether the pair was present.
    pub(super) fn remove(&mut self, holder: &Holder, name: &LockName) -> bool {
        self.pairs.remove(&(holder.clone(), name.clone()))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Holder, &LockName)> {
        self.pairs.iter().map(|(holder, name)| (holder, name))
    }

    pub(super) fn by_holder(&self, holder: &Holder) -> impl Iterator<Item = &LockName> {
        let holder = holder.clone();
        let start = (holder.clone(), LockName::lower_bound());
        self.pairs.range(start..).take_while(move |(other, _)| *other == holder).map(|(_, name)| name)
    }

    pub(super) fn by_agent(&self, agent: &str) -> impl Iterator<Item = (&Holder, &LockName)> {
        let agent: SharedStr = agent.into();
        let start = (Holder::lower_bound(&agent), LockName::lower_bound());
        let pairs = self.pairs.range(start..).take_while(move |(other, _)| other.agent_id() == &*agent);
        pairs.map(|(holder, name)| (holder, name))
    }
}
