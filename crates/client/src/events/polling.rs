//! Events by long polling: works wherever requests do.

use std::time::Duration;

use super::{Filter, Interruption, Received};
use crate::Client;

const WAIT: Duration = Duration::from_secs(25);
const LIMIT: &str = "200";

#[derive(Debug)]
pub(super) struct Polling {
    client: Client,
    filter: Vec<(&'static str, String)>,
    after: u64,
}

impl Polling {
    pub(super) async fn open(
        client: &Client,
        filter: &Filter,
        after: Option<u64>,
    ) -> Result<(Self, u64), Interruption> {
        let after = match after {
            Some(after) => after,
            None => client
                .events(&[], Duration::ZERO)
                .await?
                .next_cursor
                .parse()
                .map_err(|_| Interruption::Cut)?,
        };
        Ok((Self { client: client.clone(), filter: filter.query(), after }, after))
    }

    pub(super) async fn receive(&mut self) -> Result<Vec<Received>, Interruption> {
        let after = self.after.to_string();
        let mut query = vec![("after", after.as_str()), ("limit", LIMIT)];
        query.extend(self.filter.iter().map(|(name, value)| (*name, value.as_str())));
        let page = self.client.events(&query, WAIT).await?;
        self.after = page.next_cursor.parse().map_err(|_| Interruption::Cut)?;
        let position = Received::Position(self.after);
        Ok(page.items.into_iter().map(Received::Event).chain([position]).collect())
    }
}
