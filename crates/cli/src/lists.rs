//! Lists from a server, page after page, as a table or as JSON.

use ade_client::Error;
use ade_client::wire::Page;
use clap::Args as ClapArgs;
use comfy_table::Table;
use serde::Serialize;

use crate::failure::Failure;
use crate::output;

/// As many as a server gives at once.
const PAGE: usize = 200;

/// How much of a list, and how it is shown.
#[derive(Debug, Clone, Copy, ClapArgs)]
pub(crate) struct ListArgs {
    /// At most so many
    #[arg(long, value_name = "NUMBER", default_value_t = 50)]
    limit: usize,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// How something is shown.
#[derive(Debug, Clone, Copy, ClapArgs)]
pub(crate) struct Shape {
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What was found, as far as it was asked for.
#[derive(Debug)]
pub(crate) struct Listed<T> {
    pub(crate) items: Vec<T>,
    pub(crate) more: bool,
}

impl ListArgs {
    /// Asks for page after page until there are enough.
    pub(crate) async fn fetch<T>(
        &self,
        filters: &[(&str, &str)],
        ask: impl AsyncFn(&[(&str, &str)]) -> Result<Page<T>, Error>,
    ) -> Result<Listed<T>, Failure> {
        up_to(self.limit, filters, ask).await
    }

    /// As a table, or a sentence if there is nothing.
    pub(crate) fn print<T: Serialize>(
        &self,
        listed: &Listed<T>,
        nothing: &str,
        table: impl FnOnce(&[T]) -> Table,
    ) -> Result<(), Failure> {
        if self.json {
            output::json(&listed.items)?;
        } else if listed.items.is_empty() {
            output::line(nothing)?;
        } else {
            output::line(&table(&listed.items).to_string())?;
        }
        if listed.more {
            output::note(&format!("there are more than these {}; --limit asks for them", listed.items.len()));
        }
        Ok(())
    }
}

/// All there is.
pub(crate) async fn all<T>(
    ask: impl AsyncFn(&[(&str, &str)]) -> Result<Page<T>, Error>,
) -> Result<Vec<T>, Failure> {
    Ok(up_to(usize::MAX, &[], ask).await?.items)
}

async fn up_to<T>(
    limit: usize,
    filters: &[(&str, &str)],
    ask: impl AsyncFn(&[(&str, &str)]) -> Result<Page<T>, Error>,
) -> Result<Listed<T>, Failure> {
    let (mut items, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let most = limit.saturating_sub(items.len()).clamp(1, PAGE).to_string();
        let mut query = filters.to_vec();
        query.push(("limit", &most));
        query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
        let page = ask(&query).await?;
        // A page without anything that names another one would be asked for for ever.
        let is_empty = page.items.is_empty();
        items.extend(page.items);
        let more = page.next_cursor.is_some() && !is_empty;
        if !more || items.len() >= limit {
            let more = more || items.len() > limit;
            items.truncate(limit);
            return Ok(Listed { items, more });
        }
        cursor = page.next_cursor;
    }
}

/// Filters that were given.
pub(crate) fn given<'a>(filters: &[(&'static str, &'a Option<String>)]) -> Vec<(&'static str, &'a str)> {
    filters.iter().filter_map(|(name, value)| value.as_deref().map(|value| (*name, value))).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Numbers from 0 on, at most three at once.
    fn numbers(count: usize, query: &[(&str, &str)]) -> Page<usize> {
        let get = |name: &str| {
            query.iter().find(|(of, _)| *of == name).map(|(_, value)| value.parse().expect("a number"))
        };
        let (from, most): (usize, usize) = (get("cursor").unwrap_or(0), get("limit").unwrap_or(50));
        let to = (from + most.min(3)).min(count);
        Page { items: (from..to).collect(), next_cursor: (to < count).then(|| to.to_string()) }
    }

    #[tokio::test]
    async fn pages_are_followed_as_far_as_asked_for() {
        for (count, limit, found, more) in
            [(7, 50, 7, false), (7, 7, 7, false), (7, 5, 5, true), (0, 5, 0, false), (7, 0, 0, true)]
        {
            let asked = RefCell::new(0);
            let listed = up_to(limit, &[("state", "DRAFT")], async |query: &[(&str, &str)]| {
                *asked.borrow_mut() += 1;
                assert_eq!(query.first(), Some(&("state", "DRAFT")));
                Ok(numbers(count, query))
            });
            let listed = listed.await.expect("numbers");
            assert_eq!((listed.items, listed.more), ((0..found).collect(), more), "{limit} of {count}");
        }
    }
}
