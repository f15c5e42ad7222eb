//! The latest events, in memory. Their numbers are without gaps, apart from events that have been deleted.

use std::collections::VecDeque;
use std::sync::Arc;

use super::FeedEvent;

const MAX_EVENTS: usize = 10_000;
const MAX_BYTES: usize = 32 << 20;

#[derive(Debug)]
pub(super) struct Ring {
    events: VecDeque<Arc<FeedEvent>>,
    bytes: usize,
    /// Events after this number, up to `end`, are here.
    start: u64,
    end: u64,
}

impl Ring {
    pub(super) const fn starting_at(end: u64) -> Self {
        Self { events: VecDeque::new(), bytes: 0, start: end, end }
    }

    /// Appends events; `end` is the number up to which there are no others.
    pub(super) fn push(&mut self, events: Vec<Arc<FeedEvent>>, end: u64) {
        for event in events {
            self.bytes += event.size();
            self.events.push_back(event);
        }
        self.end = end;
        while (self.events.len() > MAX_EVENTS || self.bytes > MAX_BYTES)
            && let Some(oldest) = self.events.pop_front()
        {
            self.bytes -= oldest.size();
            self.start = oldest.number.unwrap_or(self.start);
        }
    }

    /// At most `limit` events after a number, and the number up to which these are all; `None` if older ones are needed.
    pub(super) fn after(&self, number: u64, limit: usize) -> Option<(Vec<Arc<FeedEvent>>, u64)> {
        if number < self.start {
            return None;
        }
        let first = self.events.partition_point(|event| event.number.is_none_or(|own| own <= number));
        let events: Vec<_> = self.events.range(first..).take(limit).cloned().collect();
        let is_full = events.len() == limit;
        let last = events.last().filter(|_| is_full).and_then(|event| event.number);
        Some((events, last.unwrap_or_else(|| self.end.max(number))))
    }
}

#[cfg(test)]
mod tests {
    use ade_domain::Moment;
    use ade_domain::audience::Audience;
    use ade_domain::event::Event;
    use serde_json::Map;

    use super::*;

    fn event(number: u64) -> Arc<FeedEvent> {
        let event = Event {
            event_id: number.to_string(),
            event: "task:created".to_owned(),
            at: Moment::from_micros(number),
            task_id: None,
            notify: Vec::new(),
            payload: Map::new(),
            source: "test".to_owned(),
        };
        Arc::new(FeedEvent::new(number, event, Audience::default()))
    }

    fn numbers(found: Option<(Vec<Arc<FeedEvent>>, u64)>) -> Option<(Vec<u64>, u64)> {
        found.map(|(events, end)| (events.iter().filter_map(|event| event.number).collect(), end))
    }

    #[test]
    fn serves_what_it_has_and_nothing_older() {
        let mut ring = Ring::starting_at(5);
        assert_eq!(numbers(ring.after(5, 10)), Some((vec![], 5)));
        assert_eq!(numbers(ring.after(4, 10)), None);
        // Number 8 has been deleted.
        ring.push(vec![event(6), event(7), event(9)], 9);
        assert_eq!(numbers(ring.after(5, 2)), Some((vec![6, 7], 7)));
        assert_eq!(numbers(ring.after(7, 2)), Some((vec![9], 9)));
        assert_eq!(numbers(ring.after(8, 2)), Some((vec![9], 9)));
        ring.push(Vec::new(), 12);
        assert_eq!(numbers(ring.after(9, 2)), Some((vec![], 12)));
        assert_eq!(numbers(ring.after(20, 2)), Some((vec![], 20)), "of another server that is ahead");
    }

    #[test]
    fn forgets_the_oldest() {
        let mut ring = Ring::starting_at(0);
        let count = MAX_EVENTS as u64 + 3;
        ring.push((1..=count).map(event).collect(), count);
        assert_eq!(numbers(ring.after(2, 1)), None);
        assert_eq!(numbers(ring.after(3, 1)), Some((vec![4], 4)));
        assert_eq!(ring.events.len(), MAX_EVENTS);
        assert_eq!(ring.bytes, ring.events.iter().map(|event| event.size()).sum::<usize>());
    }
}
