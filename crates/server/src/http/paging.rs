//! List pages: `limit` and `cursor` of a request, and the page of a response with the cursor of the next one.

use ade_client::wire;
use ade_store::database::Versioned;
use axum::Json;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;
use uuid::Uuid;

use super::problem::{ApiResult, Problem};

const DEFAULT_LIMIT: usize = 50;
const MAX_LIMIT: usize = 200;

pub(crate) type PageResult<T> = ApiResult<Json<wire::Page<T>>>;

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageParams {
    /// Page size; 50 by default, at most 200.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

impl PageParams {
    pub(crate) const fn new(limit: Option<usize>, cursor: Option<String>) -> Self {
        Self { limit, cursor }
    }

    fn limit(&self) -> ApiResult<usize> {
        match self.limit.unwrap_or(DEFAULT_LIMIT) {
            limit @ 1..=MAX_LIMIT => Ok(limit),
            limit => {
                Err(Problem::invalid_at("?limit", format!("must be between 1 and {MAX_LIMIT}, not {limit}")))
            }
        }
    }

    /// How many items to read: one more than fit on the page, to know whether there is a next page.
    pub(crate) fn fetch_limit(&self) -> ApiResult<usize> {
        Ok(self.limit()? + 1)
    }

    pub(crate) fn fetch_limit_u32(&self) -> ApiResult<u32> {
        Ok(u32::try_from(self.fetch_limit()?).unwrap_or(u32::MAX))
    }

    /// The last item of the previous page; an empty cursor is the start of the list.
    pub(crate) fn cursor(&self) -> Option<&str> {
        self.cursor.as_deref().filter(|cursor| !cursor.is_empty())
    }

    pub(crate) fn parse_cursor<'a, T>(
        &'a self,
        parse: impl FnOnce(&'a str) -> Option<T>,
    ) -> ApiResult<Option<T>> {
        let invalid = |cursor| {
            let detail = format!("{cursor:?} is not a cursor of this list; use next_cursor of a page");
            Problem::invalid_at("?cursor", detail)
        };
        self.cursor().map(|cursor| parse(cursor).ok_or_else(|| invalid(cursor))).transpose()
    }

    pub(crate) fn uuid_cursor(&self) -> ApiResult<Option<&str>> {
        self.parse_cursor(|cursor| Uuid::parse_str(cursor).is_ok().then_some(cursor))
    }

    /// The page of items that were read with [`fetch_limit`](Self::fetch_limit).
    pub(crate) fn page<V, T>(
        &self,
        items: Vec<V>,
        cursor: impl Fn(&V) -> String,
        convert: impl Fn(&V) -> T,
    ) -> PageResult<T> {
        self.try_page(items, cursor, |item| Ok::<_, Problem>(convert(item)))
    }

    /// Like [`page`](Self::page), for items that may be unreadable.
    pub(crate) fn try_page<V, T, E: Into<Problem>>(
        &self,
        mut items: Vec<V>,
        cursor: impl Fn(&V) -> String,
        convert: impl Fn(&V) -> Result<T, E>,
    ) -> PageResult<T> {
        let limit = self.limit()?;
        let has_more = items.len() > limit;
        items.truncate(limit);
        let next_cursor = items.last().filter(|_| has_more).map(cursor);
        let items = items.iter().map(convert).collect::<Result<_, E>>().map_err(Into::into)?;
        Ok(Json(wire::Page { items, next_cursor }))
    }
}

impl PageParams {
    /// The page of a list that is read completely because it is short, ordered by id.
    pub(crate) fn page_of_documents<V, T>(
        &self,
        documents: Vec<Versioned<V>>,
        convert: impl Fn(&Versioned<V>) -> T,
    ) -> PageResult<T> {
        let after = self.cursor().unwrap_or_default();
        let rest = documents.into_iter().filter(|document| document.id.as_str() > after);
        let items = rest.take(self.fetch_limit()?).collect();
        self.page(items, |document| document.id.clone(), convert)
    }
}

/// An enum in a query parameter, by its name in JSON.
pub(crate) fn parse_word<T: DeserializeOwned>(
    pointer: &str,
    word: Option<String>,
    expected: &str,
) -> ApiResult<Option<T>> {
    let parse = |word: String| {
        let detail = format!("must be {expected}, not {word:?}");
        serde_json::from_value(word.into()).map_err(|_| Problem::invalid_at(pointer, detail))
    };
    word.map(parse).transpose()
}

/// A list that is short enough to be sent whole.
pub(crate) fn single_page<T>(items: Vec<T>) -> Json<wire::Page<T>> {
    Json(wire::Page { items, next_cursor: None })
}
