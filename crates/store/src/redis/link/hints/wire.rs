//! What goes over a connection that listens.
//!
//! What is sent first is on the wire first: leaving a channel must not overtake asking for it again.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, Value};
use tokio::task::coop::unconstrained;

use crate::redis::link::connect::plain;

/// Whether everything was confirmed.
pub(super) async fn send(mut connection: MultiplexedConnection, pipeline: redis::Pipeline) -> bool {
    match connection.send_packed_commands(&pipeline, 0, pipeline.len()).await {
        Ok(answers) => !answers.iter().any(|answer| matches!(answer, Value::ServerError(_))),
        Err(error) => {
            tracing::debug!(reason = plain(&error), "subscriptions were not confirmed");
            false
        }
    }
}

/// Polls a future once: a connection takes what is sent at the first poll, unless its queue is full. Not counted against
/// what a task may do at a time, or the poll might do nothing.
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
