//! Responses with a page: headers, and the ETag by which a browser keeps what it has.

use ade_dashboard::{Shell, Template};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use sha2::{Digest, Sha256};

use super::visit::PageError;

/// No script but ours, no style attribute, nothing from elsewhere, and no text that becomes markup in a script.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types ade";

/// The text of a page. A large preview takes long enough to keep other requests of this thread waiting, so those are taken over by others.
pub(super) fn text(page: &impl Template) -> Result<String, PageError> {
    tokio::task::block_in_place(|| page.render()).map_err(|error| {
        tracing::error!(%error, "a page could not be rendered");
        PageError::from(StatusCode::INTERNAL_SERVER_ERROR.into_response())
    })
}

/// A page that is always sent.
pub(super) fn html(page: &impl Template) -> Response {
    text(page).map_or_else(IntoResponse::into_response, |body| with_policies(Html(body).into_response()))
}

/// A page with a secret: no cache keeps it.
pub(super) fn secret(page: &impl Template) -> Response {
    let mut response = html(page);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

pub(super) fn with_policies(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY_POLICY));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    response
}

/// Equal for pages that say the same: relative times, which a script keeps current, and the keys of forms are left out.
pub(super) fn etag(body: &str, shell: &Shell) -> String {
    let mut hash = Sha256::new();
    let mut parts = body.split("<time ");
    // The time of the response is in its head.
    let head = without(parts.next().unwrap_or_default(), &shell.form_key);
    hash.update(head.replace(&format!(" data-now=\"{}\"", shell.now), ""));
    for part in parts {
        let (time, rest) = part.split_once("</time>").unwrap_or((part, ""));
        hash.update(time.split_once('>').map_or(time, |(attributes, _)| attributes));
        hash.update(without(rest, &shell.form_key));
    }
    let hash = hash.finalize();
    let hex: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("\"{hex}\"")
}

fn without(text: &str, key: &str) -> String {
    if key.is_empty() { text.to_owned() } else { text.replace(key, "") }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn etag_ignores_relative_times_and_form_keys() {
        let mut shell = Shell::anonymous("Page", Timestamp::UNIX_EPOCH);
        shell.form_key = "first".to_owned();
        let first = etag("<p>first <time datetime=\"1\">now</time> x</p>", &shell);
        shell.form_key = "second".to_owned();
        assert_eq!(etag("<p>second <time datetime=\"1\">1 min ago</time> x</p>", &shell), first);
        assert_ne!(etag("<p>second <time datetime=\"2\">1 min ago</time> x</p>", &shell), first);
        assert_ne!(etag("<p>second <time datetime=\"1\">1 min ago</time> y</p>", &shell), first);
    }
}
