//! The state of one lock, and how each change updates it. It decides nothing: `execute` and `expiry` decide which changes
//! are made.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::command::{Grant, HoldView, LockChange};
use super::queue::{QueueScore, WaitQueue, Waiter};
use super::request_key::Tombstones;
use super::{FencingToken, Holder, LockLimits, LockMode, RequestKey, SharedStr};
use crate::Moment;

pub const MAX_REQUESTS_PER_HOLD: usize = 32;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hold {
    pub holder: Holder,
    /// The requests that share this hold; the first one acquired it.
    pub requests: Vec<RequestKey>,
    pub mode: LockMode,
    pub token: FencingToken,
    pub acquired_at: Moment,
    pub expires_at: Moment,
    /// Whether the lease has started. Until then `expires_at` is the end of the claim window.
    pub claimed: bool,
    /// The server whose release started the lease with a promotion, until a command of its request is answered: only this server
    /// can have reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreported_by: Option<SharedStr>,
    pub purpose: SharedStr,
    /// Informational.
    pub priority: i32,
    pub heartbeat_count: u64,
    /// Whether its requests leave tombstones when it ends.
    pub leave_tombstone: bool,
    /// The shared hold that this upgrade replaced; kept until the upgrade is claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgraded_from: Option<Box<Hold>>,
}

impl Hold {
    pub fn grant(&self) -> Grant {
        Grant {
            mode: self.mode,
            token: self.token,
            acquired_at: self.acquired_at,
            expires_at: self.expires_at,
            claimed: self.claimed,
        }
    }

    /// This hold, or the shared hold below an unclaimed upgrade, if the request shares it.
    pub(super) fn for_request(&self, request: RequestKey) -> Option<&Self> {
        let both = [Some(self), self.upgraded_from.as_deref()].into_iter().flatten();
        both.into_iter().find(|hold| hold.requests.contains(&request))
    }

    pub fn view(&self) -> HoldView {
        HoldView {
            holder: self.holder.clone(),
            grant: self.grant(),
            purpose: self.purpose.clone(),
            heartbeat_count: self.heartbeat_count,
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Lock {
    pub(super) last_token: FencingToken,
    pub(super) last_score: QueueScore,
    /// Sorted by holder; either any number of shared holds, or a single exclusive one.
    holds: Vec<Hold>,
    /// A lower bound: no lease expires earlier.
    pub(super) next_expiry: Option<Moment>,
    pub(super) queue: WaitQueue,
    pub(super) tombstones: Tombstones,
    /// The last heartbeat of each server that serves waiters of this lock.
    pub(super) server_heartbeats: BTreeMap<SharedStr, Moment>,
    pub(super) circuit: CircuitBreaker,
}

/// Counts the refusals for a full queue within a window. Enough of them open the circuit, which then refuses new waiters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CircuitBreaker {
    pub window_start: Moment,
    pub refusals: u32,
    pub open_until: Moment,
}

impl Lock {
    /// Sorted by holder.
    pub fn holds(&self) -> &[Hold] {
        &self.holds
    }

    pub fn hold_of(&self, holder: &Holder) -> Option<&Hold> {
        self.index_of(holder).ok().and_then(|index| self.holds.get(index))
    }

    /// In the order in which they are granted.
    pub fn waiters(&self) -> impl Iterator<Item = &Waiter> {
        self.queue.iter()
    }

    pub fn waiter_of(&self, holder: &Holder) -> Option<&Waiter> {
        self.queue.get(holder)
    }

    pub fn queue_length(&self) -> usize {
        self.queue.len()
    }

    /// `None` if nobody holds the lock.
    pub fn mode(&self) -> Option<LockMode> {
        self.holds.first().map(|hold| hold.mode)
    }

    pub const fn last_token(&self) -> FencingToken {
        self.last_token
    }

    /// The servers that serve waiters of this lock.
    pub(super) fn servers(&self) -> impl Iterator<Item = SharedStr> {
        self.server_heartbeats.keys().cloned()
    }

    /// A holder's wait, and the nearest earlier waiters that block it; farther ones are reached through these.
    pub fn waiter_and_blockers(&self, holder: &Holder) -> Option<(&Waiter, Vec<&Waiter>)> {
        self.queue.waiter_and_blockers(holder)
    }

    /// Whether nobody waits behind this holder.
    pub(super) fn is_last_waiter(&self, holder: &Holder) -> bool {
        self.queue.tail().is_none_or(|waiter| waiter.holder == *holder)
    }

    /// When the lock needs a [`LockCommand::Sweep`](super::LockCommand::Sweep) next.
    pub fn next_due(&self, limits: &LockLimits) -> Option<Moment> {
        let promotable = self.queue.head().filter(|head| self.can_grant(head.mode, &head.holder, limits));
        if promotable.is_some() {
            return Some(Moment::default());
        }
        let oldest_heartbeat = self.server_heartbeats.values().min();
        let server_timeout = oldest_heartbeat.map(|at| at.plus_ms(limits.server_timeout_ms));
        [self.next_expiry, self.queue.next_deadline(), server_timeout].into_iter().flatten().min()
    }

    fn is_idle(&self) -> bool {
        self.holds.is_empty() && self.queue.is_empty() && self.server_heartbeats.is_empty()
    }

    /// Whether only tombstones would be lost by dropping the lock: it is idle, its circuit is closed, and the clock alone
    /// makes every later token larger.
    pub(super) fn has_only_tombstones(&self, now: Moment) -> bool {
        self.is_idle() && self.circuit.open_until <= now && self.last_token.number() < now.micros()
    }

    /// When nothing is worth keeping any more; none while somebody uses the lock.
    pub(super) fn idle_until(&self) -> Option<Moment> {
        let above_token = Moment::from_micros(self.last_token.number() + 1);
        let last_tombstone = self.tombstones.last_expiry().unwrap_or_default();
        self.is_idle().then(|| last_tombstone.max(self.circuit.open_until).max(above_token))
    }

    /// Whether nothing is lost by dropping the lock.
    pub fn can_be_dropped(&self, now: Moment) -> bool {
        self.has_only_tombstones(now) && self.tombstones.is_empty()
    }

    /// Whether the holder can hold the lock in this mode together with the present holders.
    pub(super) fn can_grant(&self, mode: LockMode, holder: &Holder, limits: &LockLimits) -> bool {
        match mode {
            LockMode::Exclusive => self.holds.iter().all(|hold| hold.holder == *holder),
            LockMode::Shared => {
                let is_compatible =
                    |hold: &Hold| hold.mode.is_compatible_with(mode) || hold.holder == *holder;
                self.holds.first().is_none_or(is_compatible) && self.holds.len() < limits.max_holders
            }
        }
    }

    /// The changes that reproduce this state when applied to an empty lock.
    pub fn snapshot(&self) -> impl Iterator<Item = LockChange> {
        let counters = LockChange::CountersAdvanced(self.last_token, self.last_score);
        let heartbeats = self.server_heartbeats.iter();
        let heartbeats =
            heartbeats.map(|(server, at)| LockChange::ServerHeartbeat { server: server.clone(), at: *at });
        // An open circuit has a count of zero, but must stay open.
        let is_used = self.circuit != CircuitBreaker::default();
        let circuit = is_used.then_some(LockChange::RefusalCounted(self.circuit));
        let tombstones = self.tombstones.iter().map(|(request, reason, expires_at)| {
            LockChange::TombstoneAdded { request, reason: reason.clone(), expires_at }
        });
        [counters]
            .into_iter()
            .chain(self.holds.iter().cloned().map(LockChange::Granted))
            .chain(self.queue.iter().cloned().map(LockChange::Queued))
            .chain(heartbeats)
            .chain(circuit)
            .chain(tombstones)
    }

    /// Applies one change, which comes from a command to this lock or from its journal.
    pub fn apply(&mut self, change: &LockChange, limits: &LockLimits) {
        match change {
            LockChange::CountersAdvanced(token, score) => {
                self.last_token = self.last_token.max(*token);
                self.last_score = self.last_score.max(*score);
            }
            LockChange::Queued(waiter) => {
                self.last_score = self.last_score.max(waiter.score);
                self.tombstones.remove(waiter.request);
                self.queue.insert(waiter.clone());
            }
            LockChange::WaitRenewed { holder, served_by, deadline } => {
                if let Some(mut waiter) = self.queue.remove(holder) {
                    waiter.served_by.clone_from(served_by);
                    waiter.deadline = *deadline;
                    self.queue.insert(waiter);
                }
            }
            LockChange::WaitEnded { holder, .. } => {
                self.queue.remove(holder);
            }
            LockChange::Granted(hold) | LockChange::Promoted(hold) => {
                self.last_token = self.last_token.max(hold.token);
                // A request whose tombstone was evicted early can be granted again. A replayed journal may still have the
                // tombstone and must reach the same state.
                hold.requests.iter().for_each(|request| self.tombstones.remove(*request));
                self.queue.remove(&hold.holder);
                self.lower_next_expiry(hold.expires_at);
                match self.index_of(&hold.holder) {
                    Ok(_) => self.update_hold(&hold.holder, |existing| existing.clone_from(hold)),
                    Err(index) => {
                        if self.holds.is_empty() {
                            // Nearly every lock has one holder at a time; the default capacity of four would be most of its
                            // memory.
                            self.holds.reserve_exact(1);
                        }
                        self.holds.insert(index, hold.clone());
                    }
                }
            }
            LockChange::RequestJoined { holder, request, leave_tombstone } => {
                self.update_hold(holder, |hold| {
                    hold.leave_tombstone |= leave_tombstone;
                    hold.unreported_by = None;
                    hold.requests.push(*request);
                });
            }
            LockChange::RequestDetached { holder, request } => {
                self.update_hold(holder, |hold| hold.requests.retain(|other| other != request));
            }
            LockChange::Claimed { holder, expires_at } => {
                self.lower_next_expiry(*expires_at);
                self.update_hold(holder, |hold| {
                    hold.claimed = true;
                    hold.unreported_by = None;
                    hold.expires_at = *expires_at;
                    hold.upgraded_from = None;
                });
            }
            LockChange::Extended { holder, token, expires_at, heartbeat_count } => {
                self.lower_next_expiry(*expires_at);
                self.update_hold(holder, |hold| {
                    let is_other_token = hold.token != *token;
                    let hold = match hold.upgraded_from.as_deref_mut() {
                        Some(previous) if is_other_token => previous,
                        _ => hold,
                    };
                    hold.expires_at = *expires_at;
                    hold.heartbeat_count = *heartbeat_count;
                    // Its holder knows its token.
                    hold.unreported_by = None;
                });
            }
            LockChange::Downgraded { holder } => self.update_hold(holder, |hold| {
                // A holder that downgrades its own upgrade has nothing left to fall back to.
                hold.mode = LockMode::Shared;
                hold.unreported_by = None;
                hold.upgraded_from = None;
            }),
            LockChange::HoldEnded { holder, .. } => {
                if let Ok(index) = self.index_of(holder) {
                    self.holds.remove(index);
                }
                if self.holds.is_empty() {
                    self.next_expiry = None;
                }
                self.demote_upgrade(holder);
            }
            LockChange::TombstoneAdded { request, reason, expires_at } => {
                self.tombstones.insert(*request, reason.clone(), *expires_at, limits.max_tombstones);
            }
            LockChange::ServerHeartbeat { server, at } => {
                self.server_heartbeats.insert(server.clone(), *at);
            }
            LockChange::ServerRemoved { server } => {
                self.server_heartbeats.remove(server);
            }
            LockChange::RefusalCounted(circuit) => self.circuit = *circuit,
        }
    }

    /// A waiting upgrade whose shared hold ends becomes a regular waiter with its original arrival time.
    fn demote_upgrade(&mut self, holder: &Holder) {
        if self.queue.get(holder).is_some_and(|waiter| waiter.is_upgrade)
            && let Some(waiter) = self.queue.remove(holder)
        {
            self.queue.insert(Waiter { is_upgrade: false, ..waiter });
        }
    }

    /// Makes `next_expiry` exact. It scans all holds, so it runs once per expired lease and not once per command.
    pub(super) fn refresh_next_expiry(&mut self) {
        self.next_expiry = self.holds.iter().map(|hold| hold.expires_at).min();
    }

    fn lower_next_expiry(&mut self, expires_at: Moment) {
        self.next_expiry = Some(self.next_expiry.map_or(expires_at, |next| next.min(expires_at)));
    }

    fn update_hold(&mut self, holder: &Holder, update: impl FnOnce(&mut Hold)) {
        if let Ok(index) = self.index_of(holder)
            && let Some(hold) = self.holds.get_mut(index)
        {
            update(hold);
        }
    }

    fn index_of(&self, holder: &Holder) -> Result<usize, usize> {
        self.holds.binary_search_by(|hold| hold.holder.cmp(holder))
    }
}
