//! Texts for people: keys with any bytes, sizes and durations.

/// Longer keys are truncated in messages.
const MAX_SHOWN_BYTES: usize = 240;

/// A key for messages: bytes outside printable ASCII are escaped, a long key is truncated.
#[must_use]
pub fn shown_key(key: &[u8]) -> String {
    let mut text = String::new();
    for byte in key.iter().take(MAX_SHOWN_BYTES) {
        match byte {
            b'\\' => text.push_str("\\\\"),
            b' ' | 0x21..=0x7e => text.push(char::from(*byte)),
            other => text.push_str(&format!("\\x{other:02x}")),
        }
    }
    if key.len() > MAX_SHOWN_BYTES { format!("{text}… ({} bytes)", key.len()) } else { text }
}

/// `1.5 KiB`, with a precision for people.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    for (unit, factor) in UNITS {
        if bytes >= factor {
            let tenths = bytes.saturating_mul(10) / factor;
            return format!("{}.{} {unit}", tenths / 10, tenths % 10);
        }
    }
    format!("{bytes} B")
}

/// A duration in the notation of catalogs, in the largest unit that leaves at least two: `90s`, `36h`.
#[must_use]
pub fn duration(ms: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
    let unit =
        UNITS.iter().find(|(_, factor)| ms >= 2 * factor || (ms >= *factor && ms.is_multiple_of(*factor)));
    unit.map_or_else(|| format!("{ms}ms"), |(unit, factor)| format!("{}{unit}", ms / factor))
}

/// `1,234,567`
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_escaped_and_truncated() {
        assert_eq!(shown_key(b"a:\x1b[31m\\\xff b"), "a:\\x1b[31m\\\\\\xff b");
        assert!(shown_key(&[b'x'; 500]).ends_with("… (500 bytes)"));
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!((count(7).as_str(), count(1_234_567).as_str()), ("7", "1,234,567"));
        assert_eq!(
            (size(1000).as_str(), size(1536).as_str(), size(3 << 30).as_str()),
            ("1000 B", "1.5 KiB", "3.0 GiB")
        );
        assert_eq!(duration(90_000), "90s");
        assert_eq!(duration(86_400_000), "1d");
        assert_eq!(duration(5), "5ms");
    }
}
