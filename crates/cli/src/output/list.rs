//! Paginated lists: fetches page after page up to a limit and prints a table or JSON.

use ade_client::Error;
use ade_client::wire::Page;
use clap::Args as ClapArgs;
use serde::Serialize;

use crate::failure::Result;
use crate::output::{self, Table};

/// Largest page that a server returns.
const MAX_PAGE_SIZE: usize = 200;

#[derive(Debug, Clone, Copy, ClapArgs)]
pub(crate) struct ListArgs {
    /// Show at most this many
    #[arg(long, value_name = "NUMBER", default_value_t = 50)]
    pub(crate) limit: usize,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug)]
pub(crate) struct Listing<T> {
    pub(crate) items: Vec<T>,
    pub(crate) has_more: bool,
}

impl ListArgs {
    /// Fetches and prints a list.
    pub(crate) async fn show<T: Serialize>(
        &self,
        filters: &[(&str, &str)],
        fetch: impl AsyncFn(&[(&str, &str)]) -> Result<Page<T>, Error>,
        table: impl FnOnce(&[T]) -> Table<'_, T>,
    ) -> Result {
        let listing = fetch_up_to(self.limit, filters, fetch).await?;
        self.print(&listing, &table(&listing.items))
    }

    pub(crate) fn print<T: Serialize>(&self, listing: &Listing<T>, table: &Table<'_, T>) -> Result {
        if self.json {
            output::json(&listing.items)?;
        } else {
            output::line(table)?;
        }
        if listing.has_more {
            output::note(&format!("showing the first {}; use --limit to see more", listing.items.len()));
        }
        Ok(())
    }
}

pub(crate) async fn fetch_all<T>(
    fetch: impl AsyncFn(&[(&str, &str)]) -> Result<Page<T>, Error>,
) -> Result<Vec<T>> {
    Ok(fetch_up_to(usize::MAX, &[], fetch).await?.items)
}

pub(crate) async fn fetch_up_to<T>(
    limit: usize,
    filters: &[(&str, &str)],
    fetch: impl AsyncFn(&[(&str, &str)]) -> Result<Page<T>, Error>,
) -> Result<Listing<T>> {
    let (mut items, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let page_size = limit.saturating_sub(items.len()).clamp(1, MAX_PAGE_SIZE).to_string();
        let mut query = filters.to_vec();
        query.push(("limit", &page_size));
        query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
        let page = fetch(&query).await?;
        // An empty page that names a next one would loop forever.
        let is_empty = page.items.is_empty();
        items.extend(page.items);
        let has_more = page.next_cursor.is_some() && !is_empty;
        if !has_more || items.len() >= limit {
            let has_more = has_more || items.len() > limit;
            items.truncate(limit);
            return Ok(Listing { items, has_more });
        }
        cursor = page.next_cursor;
    }
}

/// The filters that have a value.
pub(crate) fn present<'a>(filters: &[(&'static str, &'a Option<String>)]) -> Vec<(&'static str, &'a str)> {
    filters.iter().filter_map(|(name, value)| value.as_deref().map(|value| (*name, value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves the numbers from 0 to `count`, at most three per page.
    fn number_page(count: usize, query: &[(&str, &str)]) -> Page<usize> {
        let get = |name: &str| {
            query.iter().find(|(of, _)| *of == name).map(|(_, value)| value.parse().expect("a number"))
        };
        let (from, limit): (usize, usize) = (get("cursor").unwrap_or(0), get("limit").unwrap_or(50));
        let to = (from + limit.min(3)).min(count);
        Page { items: (from..to).collect(), next_cursor: (to < count).then(|| to.to_string()) }
    }

    #[tokio::test]
    async fn follows_pages_up_to_the_limit() {
        for (count, limit, found, has_more) in
            [(7, 50, 7, false), (7, 7, 7, false), (7, 5, 5, true), (0, 5, 0, false), (7, 0, 0, true)]
        {
            let listing = fetch_up_to(limit, &[("state", "DRAFT")], async |query: &[(&str, &str)]| {
                assert_eq!(query.first(), Some(&("state", "DRAFT")));
                Ok(number_page(count, query))
            });
            let listing = listing.await.expect("numbers");
            assert_eq!(
                (listing.items, listing.has_more),
                ((0..found).collect(), has_more),
                "{limit} of {count}"
            );
        }
    }
}
