//! Sends commands on a subscriber connection.
//!
//! Commands go out in the order of the calls: an UNSUBSCRIBE must not overtake a later SUBSCRIBE.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, Value};
use tokio::task::coop::unconstrained;

use crate::redis::connection::connector::one_line;

/// One command per channel: one command must not name shard channels of several slots, and each is confirmed once.
pub(super) fn pipeline(prefix: &str, command: &str, channels: &[Arc<str>]) -> redis::Pipeline {
    let mut pipeline = redis::Pipeline::with_capacity(channels.len());
    for channel in channels {
        pipeline.cmd(&format!("{prefix}{command}")).arg(&**channel);
    }
    pipeline
}

/// Returns whether everything was confirmed.
pub(super) async fn send(mut connection: MultiplexedConnection, pipeline: redis::Pipeline) -> bool {
    match connection.send_packed_commands(&pipeline, 0, pipeline.len()).await {
        Ok(replies) => !replies.iter().any(|reply| matches!(reply, Value::ServerError(_))),
        Err(error) => {
            tracing::debug!(reason = one_line(&error), "subscriptions not confirmed");
            false
        }
    }
}

/// Polls a future once: a connection takes a command at the first poll, unless its buffer is full. Unconstrained,
/// because without budget the poll would do nothing.
pub(super) fn poll_once<T>(future: &mut Pin<Box<impl Future<Output = T>>>) -> Option<T> {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(unconstrained(future.as_mut())).poll(&mut context) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

pub(super) fn text(value: Value) -> Option<Arc<str>> {
    String::from_redis_value(value).ok().map(Arc::from)
}
