//! Request bodies: read within a time and size limit, then parsed as JSON. An error names the JSON pointer of the
//! invalid field.

use std::time::Duration;

use ade_client::wire::FieldError;
use axum::body::{BodyDataStream, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::StatusCode;
use futures_util::StreamExt;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::error::Category;

use super::connections::Connection;
use super::extract::NUL_NOT_ALLOWED;
use super::problem::{ApiResult, Problem, json_pointer};
use super::strict_json::StrictStructs;
use crate::api::AppState;
use crate::auth::{Authenticated, client_address};

/// Bytes of the body of an authenticated request.
pub(crate) const MAX_BODY_BYTES: usize = 1 << 20;
/// Bytes of the body of any other request.
const MAX_ANONYMOUS_BODY_BYTES: usize = 64 << 10;
/// Bytes of a refused body that are received from an authenticated client.
const MAX_DISCARDED_BYTES: usize = 4 << 20;
/// serde_json stops at a depth of 128. Bodies are stored inside other documents and must stay readable there.
const MAX_DEPTH: usize = 64;

pub(crate) async fn read_body(request: Request, app: &AppState) -> ApiResult<Bytes> {
    let too_slow = |_| {
        let detail = format!("the body did not arrive within {} s", app.read_timeout.as_secs());
        Problem::new(StatusCode::REQUEST_TIMEOUT, "BODY_TOO_SLOW", detail)
    };
    tokio::time::timeout(app.read_timeout, read(request, app)).await.map_err(too_slow)?
}

/// Reads a body that is not too large. Before authentication, all bodies together take a bounded amount of memory.
async fn read(request: Request, app: &AppState) -> ApiResult<Bytes> {
    let (parts, body) = request.into_parts();
    let is_authenticated = parts.extensions.get::<Authenticated>().is_some();
    let max_bytes = if is_authenticated { MAX_BODY_BYTES } else { MAX_ANONYMOUS_BODY_BYTES };
    if body.size_hint().lower() > max_bytes as u64 {
        if is_authenticated {
            discard(body.into_data_stream(), app.read_timeout);
        }
        return Err(too_large(max_bytes));
    }
    let client = client_address(&parts).filter(|_| !is_authenticated);
    let mut reserved = match client {
        None => None,
        Some(client) => Some(app.connections.reserve(client.ip, 0).ok_or_else(too_many_bodies)?),
    };
    let _phase = parts.extensions.get::<Connection>().map(Connection::start_body);
    let (mut chunks, mut bytes) = (body.into_data_stream(), Vec::new());
    while let Some(chunk) = chunks.next().await {
        let failed =
            |error: axum::Error| Problem::new(StatusCode::BAD_REQUEST, "BAD_BODY", error.to_string());
        let chunk = chunk.map_err(failed)?;
        if bytes.len() + chunk.len() > max_bytes {
            if is_authenticated {
                discard(chunks, app.read_timeout);
            }
            return Err(too_large(max_bytes));
        }
        if let Some(reserved) = &mut reserved
            && !reserved.grow(chunk.len())
        {
            return Err(too_many_bodies());
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes.into())
}

/// Receives the rest of a refused body while the answer is sent: if the connection closed meanwhile, a client that is still sending
/// would get a broken pipe instead.
fn discard(mut chunks: BodyDataStream, within: Duration) {
    let receive = async move {
        let mut received = 0;
        while let Some(Ok(chunk)) = chunks.next().await {
            received += chunk.len();
            if received > MAX_DISCARDED_BYTES {
                return;
            }
        }
    };
    tokio::spawn(tokio::time::timeout(within, receive));
}

fn too_large(max_bytes: usize) -> Problem {
    let detail = if max_bytes == MAX_BODY_BYTES {
        "the body is too large: at most 1 MiB is accepted"
    } else {
        "the body is too large: at most 64 KiB is accepted without authentication"
    };
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "BODY_TOO_LARGE", detail)
}

fn too_many_bodies() -> Problem {
    let detail = "too many requests without authentication at the same time; retry shortly";
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "RATE_LIMITED", detail).retry_after(1)
}

/// Parses a body whose texts are stored in the database, which cannot store NUL.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> ApiResult<T> {
    if scan(bytes).has_nul {
        return Err(Problem::invalid_at("", NUL_NOT_ALLOWED));
    }
    parse_any(bytes)
}

/// Like [`parse`], but a missing body counts as `{}`.
pub(super) fn parse_or_empty<T: DeserializeOwned>(bytes: &[u8]) -> ApiResult<T> {
    parse(if bytes.trim_ascii().is_empty() { b"{}" } else { bytes })
}

/// Parses a body whose texts may contain any character.
pub(super) fn parse_any<T: DeserializeOwned>(bytes: &[u8]) -> ApiResult<T> {
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[') {
        return Err(Problem::invalid_at("", "the body must be a JSON object"));
    }
    if scan(bytes).depth > MAX_DEPTH {
        return Err(Problem::invalid_at(
            "",
            format!("the body may be nested at most {MAX_DEPTH} levels deep"),
        ));
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let body = serde_path_to_error::deserialize(StrictStructs(&mut reader));
    let body = body.map_err(|error| invalid(bytes, &error))?;
    reader.end().map_err(|error| malformed(&error))?;
    Ok(body)
}

struct Scan {
    /// Of nested objects and arrays, if the text is JSON.
    depth: usize,
    /// Whether a string contains an escaped NUL.
    has_nul: bool,
}

fn scan(bytes: &[u8]) -> Scan {
    let mut found = Scan { depth: 0, has_nul: false };
    let (mut depth, mut in_string, mut is_escaped) = (0_usize, false, false);
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'u' if is_escaped => {
                found.has_nul |= bytes.get(at + 1..at + 5) == Some(b"0000".as_slice());
                is_escaped = false;
            }
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = in_string,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                found.depth = found.depth.max(depth);
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    found
}

fn malformed(error: &serde_json::Error) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "MALFORMED_JSON", format!("the body is not valid JSON: {error}"))
}

fn invalid(bytes: &[u8], error: &serde_path_to_error::Error<serde_json::Error>) -> Problem {
    use serde_path_to_error::Segment;
    let inner = error.inner();
    if inner.classify() != Category::Data && !is_number_overflow(bytes, inner) {
        return malformed(inner);
    }
    let names = error.path().iter().filter_map(|segment| match segment {
        Segment::Seq { index } => Some(index.to_string()),
        Segment::Map { key } => Some(key.clone()),
        Segment::Enum { .. } | Segment::Unknown => None,
    });
    let pointer = json_pointer(names);
    let text = inner.to_string();
    let position = format!(" at line {} column {}", inner.line(), inner.column());
    let detail = text.strip_suffix(&position).unwrap_or(&text).to_owned();
    Problem::invalid(vec![FieldError { pointer, detail }])
}

/// Whether parsing stopped at a number beyond the range of `f64`. It is well-formed JSON, although serde_json reports a
/// syntax error.
fn is_number_overflow(bytes: &[u8], error: &serde_json::Error) -> bool {
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let line_start: usize = lines.take(error.line().saturating_sub(1)).map(<[u8]>::len).sum();
    let (before, after) = bytes.split_at((line_start + error.column()).min(bytes.len()));
    let is_other = |byte: &u8| !byte.is_ascii_digit() && !b"+-.eE".contains(byte);
    let head = before.rsplit(is_other).next().unwrap_or_default();
    let tail = after.split(is_other).next().unwrap_or_default();
    let number = [head, tail].concat();
    let is_well_formed = serde_json::from_slice::<IgnoredAny>(&number).is_ok();
    let value = str::from_utf8(&number).ok().and_then(|text| text.parse::<f64>().ok());
    is_well_formed && value.is_some_and(f64::is_infinite)
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Body {
        #[serde(rename = "value")]
        _value: Option<f64>,
    }

    fn status(body: &str) -> u16 {
        let parsed = parse_any::<Body>(body.as_bytes());
        parsed.map_or_else(|problem| problem.into_response().status().as_u16(), |_| 200)
    }

    #[test]
    fn numbers_out_of_range_are_invalid_but_well_formed() {
        let huge = "9".repeat(400);
        for number in ["1e999", "-1e999", "1.5E+400", "1e99999999999999999999", huge.as_str()] {
            for body in [format!("{{\"value\": {number}}}"), format!("{{\n\n  \"value\":{number}\n}}")] {
                assert_eq!(status(&body), 422, "{body}");
            }
        }
    }

    #[test]
    fn syntax_errors_are_malformed() {
        for number in ["+1e999", "01e999", "1.e999", "1e", "x", "--1", "1e999x", ""] {
            let body = format!("{{\"value\": {number}}}");
            let expected = if number == "1e999x" { 422 } else { 400 };
            assert_eq!(status(&body), expected, "{body}");
        }
        assert_eq!(status("{\"value\": 1}"), 200);
        assert_eq!(status("{\"value\": 1"), 400);
        assert_eq!(status("{\"value\": true}"), 422);
        assert_eq!(status("{\"other\": 1}"), 422);
    }

    #[test]
    fn measures_depth_and_finds_escaped_nul_outside_of_keys_and_strings() {
        let deep = format!("{}{}", "[".repeat(5), "]".repeat(5));
        assert_eq!(scan(deep.as_bytes()).depth, 5);
        assert_eq!(scan(br#"{"a": "[[[{{{"}"#).depth, 1);
        assert!(scan(br#"{"a": "\u0000"}"#).has_nul);
        assert!(!scan(br#"{"a": "\\u0000"}"#).has_nul);
    }
}
