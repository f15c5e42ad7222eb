//! The fields of a form, as a browser sends them. Cross-site forms are refused before they are read.

use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::api::AppState;
use crate::http::json;
use crate::http::problem::Problem;

use super::visit::PageError;

/// The fields of a form, in the order of the page.
#[derive(Debug, Clone, Default)]
pub(super) struct Form(Vec<(String, String)>);

impl Form {
    /// Nothing but the CSRF token.
    pub(super) fn with_csrf(token: &str) -> Self {
        Self(vec![("csrf".to_owned(), token.to_owned())])
    }

    /// The first field with this name, without surrounding white space.
    pub(super) fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(field, _)| field == name).map_or("", |(_, value)| value.trim())
    }

    /// The same as typed: for passwords.
    pub(super) fn verbatim(&self, name: &str) -> &str {
        self.0.iter().find(|(field, _)| field == name).map_or("", |(_, value)| value)
    }

    /// All values of a name that are not empty.
    pub(super) fn all(&self, name: &str) -> Vec<&str> {
        self.0
            .iter()
            .filter(|(field, value)| field == name && !value.is_empty())
            .map(|(_, value)| value.as_str())
            .collect()
    }

    /// The text of a field, unless it is empty.
    pub(super) fn optional(&self, name: &str) -> Option<String> {
        Some(self.get(name)).filter(|value| !value.is_empty()).map(str::to_owned)
    }

    pub(super) fn is_checked(&self, name: &str) -> bool {
        !self.get(name).is_empty()
    }

    /// The lines or comma-separated words of a field.
    pub(super) fn words(&self, name: &str) -> Vec<String> {
        let words = self.get(name).split(['\n', ',']).map(str::trim).filter(|word| !word.is_empty());
        words.map(str::to_owned).collect()
    }

    /// A JSON object of the named fields that are not empty.
    pub(super) fn object(&self, names: &[&str]) -> Map<String, Value> {
        let fields = names.iter().filter_map(|name| Some(((*name).to_owned(), self.optional(name)?.into())));
        fields.collect()
    }

    /// The idempotency key of the form: the same form with the same fields is the same request.
    pub(super) fn idempotency_key(&self) -> Option<String> {
        let key = self.get("key");
        if key.is_empty() {
            return None;
        }
        let mut hash = Sha256::new();
        for (name, value) in self.0.iter().filter(|(name, _)| !name.contains("password")) {
            hash.update((name.len() as u64).to_be_bytes());
            hash.update(name);
            hash.update((value.len() as u64).to_be_bytes());
            hash.update(value);
        }
        Some(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

impl FromRequest<AppState> for Form {
    type Rejection = PageError;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, PageError> {
        require_same_origin(request.headers())?;
        let bytes = json::read_body(request, app).await?;
        Ok(Self(url::form_urlencoded::parse(&bytes).into_owned().collect()))
    }
}

/// A browser says where a form comes from. Other clients send neither header, and have no cookie that a browser would add.
fn require_same_origin(headers: &HeaderMap) -> Result<(), PageError> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text(header::HOST.as_str()).unwrap_or_default();
    let is_foreign = |origin: &str| origin.split_once("://").is_none_or(|(_, of)| of != host);
    let is_cross_site = text("sec-fetch-site").is_some_and(|site| !matches!(site, "same-origin" | "none"));
    if is_cross_site || text(header::ORIGIN.as_str()).is_some_and(is_foreign) {
        let detail = "this form was sent from another site; open the page here and send it again";
        return Err(Problem::new(StatusCode::FORBIDDEN, "CROSS_SITE", detail).into());
    }
    Ok(())
}
