//! Announcements of numbered events between processes, on one channel.

use tokio::sync::watch;

use super::RedisCoordination;
use super::connection::{ChannelEvent, RedisClient};
use super::keys;
use crate::coordination::{AsyncResult, EventAnnouncements};

impl EventAnnouncements for RedisCoordination {
    fn announce_events(&self) -> AsyncResult<'_, ()> {
        let channel = keys::announcements(self.inner.layout());
        Box::pin(async move { self.inner.client.publish(&channel, "numbered").await })
    }

    fn event_announcements(&self) -> watch::Receiver<()> {
        self.inner.announcements.subscribe()
    }
}

/// Subscribes to the channel. It is restored when it is interrupted; meanwhile readers poll.
pub(super) async fn subscribe(client: &RedisClient) {
    let channel = keys::announcements(client.layout());
    client.subscribe(&channel);
    if let Err(error) = client.confirm_subscription(&channel).await {
        tracing::debug!(%error, "cannot subscribe to announcements of events yet");
    }
}

/// Listens to the channel until it is aborted.
pub(super) async fn listen(client: RedisClient, announcements: watch::Sender<()>) {
    let channel = keys::announcements(client.layout());
    let mut events = client.channel_events();
    while let Some(event) = events.next().await {
        match event {
            ChannelEvent::Message { channel: name, .. } if *name != *channel.as_str() => {}
            ChannelEvent::Message { .. } | ChannelEvent::Gap => {
                announcements.send_replace(());
            }
        }
    }
}
