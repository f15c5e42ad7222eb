//! An ordered index of (holder, lock) pairs: the locks of one holder, or of all holders of one agent.

use std::collections::BTreeSet;
use std::ops::Bound;

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

    /// The first `limit` locks of an agent, whichever of its holders has them: from `start` on, while they are wanted.
    pub(super) fn first_of_agent(
        &self,
        agent: &str,
        start: Bound<&LockName>,
        is_wanted: impl Fn(&LockName) -> bool,
        limit: usize,
    ) -> BTreeSet<&LockName> {
        let mut found = BTreeSet::new();
        let mut next = self.next_holder(&Holder::lower_bound(&agent.into()));
        while let Some(holder) = next.filter(|holder| holder.agent_id() == agent) {
            let from = start.map(|name| (holder.clone(), name.clone()));
            let pairs = self.pairs.range((from, Bound::Unbounded));
            let wanted = pairs.take_while(|(other, name)| other == holder && is_wanted(name));
            found.extend(wanted.take(limit).map(|(_, name)| name));
            while found.len() > limit {
                found.pop_last();
            }
            next = self.next_holder(&holder.upper_bound());
        }
        found
    }

    /// The first holder from this one on.
    pub(super) fn next_holder(&self, from: &Holder) -> Option<&Holder> {
        self.pairs.range((from.clone(), LockName::lower_bound())..).next().map(|(holder, _)| holder)
    }
}
