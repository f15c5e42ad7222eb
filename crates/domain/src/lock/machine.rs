//! The state of one lock and how changes make it. What changes, and when, is decided in `step` and `due`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::command::{Change, Grant, HeldBy};
use super::queue::{Queue, Score, Waiter};
use super::repeats::Tombstones;
use super::{Holder, LockLimits, Mode, RequestKey, Text, Token};
use crate::Moment;

/// Requests that may share one grant.
pub const MAX_REQUESTS: usize = 32;

/// One holder's hold of one lock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hold {
    /// Who holds.
    pub holder: Holder,
    /// The requests that share this grant; the first one won it.
    pub requests: Vec<RequestKey>,
    /// How.
    pub mode: Mode,
    /// The fencing token.
    pub token: Token,
    /// Since when.
    pub acquired_at: Moment,
    /// Until when.
    pub expires_at: Moment,
    /// Whether its lease has begun.
    pub claimed: bool,
    /// What for.
    pub purpose: Text,
    /// Carried and shown.
    pub priority: i32,
    /// Heartbeats so far.
    pub heartbeat_count: u64,
    /// Whether its requests must not come back once it is over.
    pub remember: bool,
    /// The shared hold it was upgraded from, until the upgrade is claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Box<Hold>>,
}

impl Hold {
    /// As its holder sees it.
    #[must_use]
    pub fn grant(&self) -> Grant {
        Grant {
            mode: self.mode,
            token: self.token,
            acquired_at: self.acquired_at,
            expires_at: self.expires_at,
            claimed: self.claimed,
        }
    }

    /// This hold, or the shared one under an upgrade that is not claimed yet, if the request has a part in it.
    pub(super) fn of_request(&self, request: RequestKey) -> Option<&Self> {
        let both = [Some(self), self.before.as_deref()].into_iter().flatten();
        both.into_iter().find(|hold| hold.requests.contains(&request))
    }

    /// As others see it.
    #[must_use]
    pub fn held_by(&self) -> HeldBy {
        HeldBy {
            holder: self.holder.clone(),
            grant: self.grant(),
            purpose: self.purpose.clone(),
            heartbeat_count: self.heartbeat_count,
        }
    }
}

/// One lock: its holders, its queue, and what it must remember.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Lock {
    pub(super) last_token: Token,
    pub(super) last_score: Score,
    /// By holder; all of them shared, or a single one.
    holds: Vec<Hold>,
    /// No lease ends before this.
    pub(super) next_expiry: Option<Moment>,
    pub(super) queue: Queue,
    pub(super) gone: Tombstones,
    pub(super) marks: BTreeMap<Text, Moment>,
    pub(super) crowd: Crowd,
}

/// Refusals for a full queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Crowd {
    pub(super) since: Moment,
    pub(super) count: u32,
    pub(super) until: Moment,
}

impl Lock {
    /// Who holds it, by name.
    #[must_use]
    pub fn holds(&self) -> &[Hold] {
        &self.holds
    }

    /// The hold of one holder.
    #[must_use]
    pub fn hold_of(&self, holder: &Holder) -> Option<&Hold> {
        self.index_of(holder).ok().and_then(|at| self.holds.get(at))
    }

    /// Who waits, in the order in which they will be granted.
    pub fn waiters(&self) -> impl Iterator<Item = &Waiter> {
        self.queue.iter()
    }

    /// The wait of one holder.
    #[must_use]
    pub fn wait_of(&self, holder: &Holder) -> Option<&Waiter> {
        self.queue.of(holder)
    }

    /// How many wait.
    #[must_use]
    pub fn queue_length(&self) -> usize {
        self.queue.len()
    }

    /// How it is held, if it is.
    #[must_use]
    pub fn mode(&self) -> Option<Mode> {
        self.holds.first().map(|hold| hold.mode)
    }

    /// The last token it gave.
    #[must_use]
    pub const fn last_token(&self) -> Token {
        self.last_token
    }

    /// Servers that hold answers to its waiters open.
    pub(super) fn servers(&self) -> impl Iterator<Item = Text> {
        self.marks.keys().cloned()
    }

    /// The wait of a holder, and the nearest earlier waiters that it waits for; farther ones are reached through these.
    #[must_use]
    pub fn wait_and_ahead(&self, holder: &Holder) -> Option<(&Waiter, Vec<&Waiter>)> {
        self.queue.wait_and_ahead(holder)
    }

    /// Whether nobody waits behind this holder.
    pub(super) fn is_last(&self, holder: &Holder) -> bool {
        self.queue.last().is_none_or(|waiter| waiter.holder == *holder)
    }

    /// When there will be something to do without anybody asking.
    #[must_use]
    pub fn next_due(&self, rules: &LockLimits) -> Option<Moment> {
        let promotable = self.queue.first().filter(|head| self.admits(head.mode, &head.holder, rules));
        if promotable.is_some() {
            return Some(Moment::default());
        }
        let silence = self.marks.values().min().map(|mark| mark.plus_ms(rules.server_silence_ms));
        [self.next_expiry, self.queue.next_deadline(), silence].into_iter().flatten().min()
    }

    /// Whether nobody holds it or waits for it.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.holds.is_empty() && self.queue.is_empty() && self.marks.is_empty()
    }

    /// Until when it remembers requests, if it is idle and nothing else would be lost by forgetting it.
    pub(super) fn droppable(&self, now: Moment) -> Option<Moment> {
        let safe = self.is_idle() && self.crowd.until <= now && self.last_token.number() < now.micros();
        if safe { self.gone.last_until() } else { None }
    }

    /// Whether nothing would be lost by forgetting it: no holder, no waiter, no request to remember, and every later
    /// token will be larger by the clock alone.
    #[must_use]
    pub fn is_forgettable(&self, now: Moment) -> bool {
        self.is_idle()
            && self.gone.is_empty()
            && self.crowd.until <= now
            && self.last_token.number() < now.micros()
    }

    /// Forgets requests whose time is over.
    pub(super) fn forget(&mut self, now: Moment) {
        self.gone.expire(now, usize::MAX);
    }

    /// Whether this holder could hold in this mode beside the present holders.
    pub(super) fn admits(&self, mode: Mode, holder: &Holder, rules: &LockLimits) -> bool {
        match mode {
            Mode::Exclusive => self.holds.iter().all(|hold| hold.holder == *holder),
            Mode::Shared => {
                let fits = |hold: &Hold| hold.mode.goes_with(mode) || hold.holder == *holder;
                self.holds.first().is_none_or(fits) && self.holds.len() < rules.max_holders
            }
        }
    }

    /// The state as the changes that make it.
    pub fn changes(&self) -> impl Iterator<Item = Change> {
        let fenced = Change::Fenced(self.last_token, self.last_score);
        let marks = self.marks.iter().map(|(server, at)| Change::Marked { server: server.clone(), at: *at });
        let Crowd { since, count, until } = self.crowd;
        // An open circuit counts nobody, and must stay open all the same.
        let crowd = (self.crowd != Crowd::default()).then_some(Change::Crowded { since, count, until });
        let gone =
            self.gone.iter().map(|(request, why, until)| Change::Gone { request, why: why.clone(), until });
        [fenced]
            .into_iter()
            .chain(self.holds.iter().cloned().map(Change::Granted))
            .chain(self.queue.iter().cloned().map(Change::Queued))
            .chain(marks)
            .chain(crowd)
            .chain(gone)
    }

    /// Makes one change. Changes come from a step of this lock, or from the journal that kept them.
    pub fn apply(&mut self, change: &Change, rules: &LockLimits) {
        match change {
            Change::Fenced(token, score) => {
                self.last_token = self.last_token.max(*token);
                self.last_score = self.last_score.max(*score);
            }
            Change::Queued(waiter) => {
                self.last_score = self.last_score.max(waiter.score);
                self.gone.remove(waiter.request);
                self.queue.push(waiter.clone());
            }
            Change::Served { holder, by, deadline } => {
                if let Some(mut waiter) = self.queue.remove(holder) {
                    waiter.served_by.clone_from(by);
                    waiter.deadline = *deadline;
                    self.queue.push(waiter);
                }
            }
            Change::Left { holder, .. } => {
                self.queue.remove(holder);
            }
            Change::Granted(hold) => {
                self.last_token = self.last_token.max(hold.token);
                // What an end was forgotten of early may live again; a journal that still knows it must agree.
                hold.requests.iter().for_each(|request| self.gone.remove(*request));
                self.queue.remove(&hold.holder);
                self.expires(hold.expires_at);
                match self.index_of(&hold.holder) {
                    Ok(at) => {
                        if let Some(old) = self.holds.get_mut(at) {
                            *old = hold.clone();
                        }
                    }
                    Err(at) => {
                        if self.holds.is_empty() {
                            // Nearly every lock has one holder at a time; room for four would be most of its memory.
                            self.holds.reserve_exact(1);
                        }
                        self.holds.insert(at, hold.clone());
                    }
                }
            }
            Change::Joined { holder, request, remember } => self.change_hold(holder, |hold| {
                hold.remember |= remember;
                hold.requests.push(*request);
            }),
            Change::Parted { holder, request } => {
                self.change_hold(holder, |hold| hold.requests.retain(|other| other != request));
            }
            Change::Claimed { holder, expires_at } => {
                self.expires(*expires_at);
                self.change_hold(holder, |hold| {
                    hold.claimed = true;
                    hold.expires_at = *expires_at;
                    hold.before = None;
                });
            }
            Change::Extended { holder, token, expires_at, heartbeat_count } => {
                self.expires(*expires_at);
                self.change_hold(holder, |hold| {
                    let of_upgrade = hold.token != *token;
                    let hold = match hold.before.as_deref_mut() {
                        Some(before) if of_upgrade => before,
                        _ => hold,
                    };
                    hold.expires_at = *expires_at;
                    hold.heartbeat_count = *heartbeat_count;
                });
            }
            Change::Downgraded { holder } => self.change_hold(holder, |hold| {
                // Whoever gives an upgrade up by itself has nothing to fall back to.
                hold.mode = Mode::Shared;
                hold.before = None;
            }),
            Change::Freed { holder, .. } => {
                if let Ok(at) = self.index_of(holder) {
                    self.holds.remove(at);
                }
                if self.holds.is_empty() {
                    self.next_expiry = None;
                }
                self.back_in_line(holder);
            }
            Change::Gone { request, why, until } => {
                self.gone.put(*request, why.clone(), *until, rules.max_repeats);
            }
            Change::Marked { server, at } => {
                self.marks.insert(server.clone(), *at);
            }
            Change::Silenced { server } => {
                self.marks.remove(server);
            }
            Change::Crowded { since, count, until } => {
                self.crowd = Crowd { since: *since, count: *count, until: *until };
            }
        }
    }

    /// A holder that waits to upgrade and loses its shared hold is a waiter like others, from when it asked.
    fn back_in_line(&mut self, holder: &Holder) {
        if self.queue.of(holder).is_some_and(|waiter| waiter.upgrade)
            && let Some(waiter) = self.queue.remove(holder)
        {
            self.queue.push(Waiter { upgrade: false, ..waiter });
        }
    }

    /// Looks for the first lease to end among all holds: once per lease, not per step.
    pub(super) fn find_next_expiry(&mut self) {
        self.next_expiry = self.holds.iter().map(|hold| hold.expires_at).min();
    }

    fn expires(&mut self, at: Moment) {
        self.next_expiry = Some(self.next_expiry.map_or(at, |next| next.min(at)));
    }

    fn change_hold(&mut self, holder: &Holder, change: impl FnOnce(&mut Hold)) {
        if let Ok(at) = self.index_of(holder)
            && let Some(hold) = self.holds.get_mut(at)
        {
            change(hold);
        }
    }

    fn index_of(&self, holder: &Holder) -> Result<usize, usize> {
        self.holds.binary_search_by(|hold| hold.holder.cmp(holder))
    }
}
