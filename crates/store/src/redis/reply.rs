//! Reads values out of replies of Redis. A value of another shape is corrupt.

use ade_domain::Moment;
use redis::Value;

use super::encoding::{CorruptValue, parse_moment};

/// Converts a RESP3 reply to the shape in which scripts reply: arrays of strings and integers, with pairs flattened.
pub(super) fn flatten(value: Value) -> Value {
    match value {
        Value::Set(parts) => Value::Array(parts),
        Value::Map(pairs) => Value::Array(pairs.into_iter().flat_map(|(key, value)| [key, value]).collect()),
        Value::Double(number) => Value::BulkString(number.to_string().into_bytes()),
        Value::Array(parts) => Value::Array(
            parts
                .into_iter()
                .flat_map(|part| match flatten(part) {
                    Value::Array(pair) => pair,
                    other => vec![other],
                })
                .collect(),
        ),
        other => other,
    }
}

pub(super) fn array(value: &Value) -> Result<&[Value], CorruptValue> {
    match value {
        Value::Array(parts) => Ok(parts),
        other => Err(CorruptValue::new("an array", format!("{other:?}"))),
    }
}

pub(super) fn text(value: &Value) -> Result<&str, CorruptValue> {
    let bytes = match value {
        Value::BulkString(bytes) => bytes.as_slice(),
        Value::SimpleString(text) => text.as_bytes(),
        Value::VerbatimString { text, .. } => text.as_bytes(),
        other => return Err(CorruptValue::new("a string", format!("{other:?}"))),
    };
    std::str::from_utf8(bytes).map_err(|_| CorruptValue::new("a UTF-8 string", format!("{bytes:?}")))
}

pub(super) fn texts(value: &Value) -> Result<Vec<String>, CorruptValue> {
    array(value)?.iter().map(|part| Ok(text(part)?.to_owned())).collect()
}

pub(super) fn number(value: &Value) -> Result<usize, CorruptValue> {
    match value {
        Value::Int(number) => {
            usize::try_from(*number).map_err(|_| CorruptValue::new("a count", number.to_string()))
        }
        other => text(other)?.parse().map_err(|_| CorruptValue::new("a count", format!("{other:?}"))),
    }
}

/// Unix microseconds.
pub(super) fn moment(value: &Value) -> Result<Moment, CorruptValue> {
    parse_moment(text(value)?).ok_or_else(|| CorruptValue::new("a time", format!("{value:?}")))
}
