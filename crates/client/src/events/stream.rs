//! Events by an event stream (server-sent events): one request without end.

use reqwest::Response;

use super::{Filter, Interruption, Received};
use crate::Client;

/// Bytes of one event.
const MAX_EVENT_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct EventStream {
    response: Response,
    /// What has arrived of the next frame.
    buffer: Vec<u8>,
}

/// A frame: what precedes an empty line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Frame<'a> {
    id: Option<u64>,
    name: &'a str,
    data: &'a str,
}

impl<'a> Frame<'a> {
    fn parse(text: &'a str) -> Self {
        let mut frame = Self::default();
        for line in text.lines() {
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "id" => frame.id = value.parse().ok(),
                "event" => frame.name = value,
                // The server sends one line of data.
                "data" => frame.data = value,
                _ => {}
            }
        }
        frame
    }

    fn received(&self) -> Result<Option<Received>, Interruption> {
        match (self.name, self.data) {
            ("dropped", _) => Err(Interruption::Cut),
            ("", data) if !data.is_empty() => serde_json::from_str(data)
                .map(|event| Some(Received::Event(event)))
                .map_err(|_| Interruption::Cut),
            _ => Ok(self.id.map(Received::Position)),
        }
    }
}

impl EventStream {
    pub(super) async fn open(
        client: &Client,
        filter: &Filter,
        after: Option<u64>,
    ) -> Result<(Self, u64), Interruption> {
        let mut query = filter.query();
        query.extend(after.map(|after| ("last_event_id", after.to_string())));
        let query: Vec<(&str, &str)> = query.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let response = client.event_stream(&query).await?;
        let is_stream =
            response.headers().get("content-type").is_some_and(|kind| kind == "text/event-stream");
        if !is_stream {
            return Err(Interruption::Cut);
        }
        let mut stream = Self { response, buffer: Vec::new() };
        // The first frame says where it begins. Others may have arrived with it.
        loop {
            if let Some(frame) = stream.next_frame() {
                return match Frame::parse(&frame) {
                    Frame { name: "subscribed", id: Some(position), .. } => Ok((stream, position)),
                    _ => Err(Interruption::Cut),
                };
            }
            stream.read().await?;
        }
    }

    pub(super) async fn receive(&mut self) -> Result<Vec<Received>, Interruption> {
        let mut received = Vec::new();
        loop {
            while let Some(frame) = self.next_frame() {
                match Frame::parse(&frame).received() {
                    Ok(found) => received.extend(found),
                    // What came before it counts; the end is noticed next time.
                    Err(_) if !received.is_empty() => return Ok(received),
                    Err(interruption) => return Err(interruption),
                }
            }
            if !received.is_empty() {
                return Ok(received);
            }
            self.read().await?;
        }
    }

    async fn read(&mut self) -> Result<(), Interruption> {
        let chunk = self.response.chunk().await.ok().flatten().ok_or(Interruption::Cut)?;
        self.buffer.extend_from_slice(&chunk);
        if self.buffer.len() > MAX_EVENT_BYTES && !self.buffer.windows(2).any(|pair| pair == b"\n\n") {
            return Err(Interruption::Cut);
        }
        Ok(())
    }

    /// Takes a whole frame from the buffer.
    fn next_frame(&mut self) -> Option<String> {
        let end = self.buffer.windows(2).position(|pair| pair == b"\n\n")? + 2;
        let frame: Vec<u8> = self.buffer.drain(..end).collect();
        String::from_utf8(frame).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_ids_names_and_data() {
        let frame = Frame::parse("id: 7\ndata: {\"a\": 1}\n\n");
        assert_eq!(frame, Frame { id: Some(7), name: "", data: "{\"a\": 1}" });
        let heartbeat = Frame::parse(": heartbeat\nid: 8\n\n");
        assert!(matches!(heartbeat.received(), Ok(Some(Received::Position(8)))));
        assert!(matches!(Frame::parse("event: dropped\ndata: {}\n\n").received(), Err(Interruption::Cut)));
        assert!(matches!(Frame::parse(": comment\n\n").received(), Ok(None)));
        assert!(matches!(Frame::parse("data: nonsense\n\n").received(), Err(Interruption::Cut)));
    }
}
