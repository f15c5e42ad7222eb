//! Pairs of holders and locks in order: what somebody holds or waits for, and the same for a whole agent.

use std::collections::BTreeSet;

use super::{Holder, LockName, Text};

/// An index of pairs.
#[derive(Debug, Clone, Default)]
pub(super) struct Pairs {
    pairs: BTreeSet<(Holder, LockName)>,
}

impl Pairs {
    pub(super) fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether it is new.
    pub(super) fn insert(&mut self, holder: &Holder, name: &LockName) -> bool {
        self.pairs.insert((holder.clone(), name.clone()))
    }

    /// Whether it was there.
    pub(super) fn remove(&mut self, holder: &Holder, name: &LockName) -> bool {
        self.pairs.remove(&(holder.clone(), name.clone()))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Holder, &LockName)> {
        self.pairs.iter().map(|(holder, name)| (holder, name))
    }

    /// The locks of one holder.
    pub(super) fn of(&self, holder: &Holder) -> impl Iterator<Item = &LockName> {
        let holder = holder.clone();
        let from = (holder.clone(), LockName::least());
        self.pairs.range(from..).take_while(move |(other, _)| *other == holder).map(|(_, name)| name)
    }

    /// The locks of all holders of one agent.
    pub(super) fn of_agent(&self, agent: &str) -> impl Iterator<Item = (&Holder, &LockName)> {
        let agent: Text = agent.into();
        let from = (Holder::first_of(&agent), LockName::least());
        let pairs = self.pairs.range(from..).take_while(move |(other, _)| other.agent_id() == &*agent);
        pairs.map(|(holder, name)| (holder, name))
    }
}
