//! Redis Cluster slots: CRC16 (XMODEM) of the hash tag, or of the whole key, modulo 16384.

/// Every Redis Cluster has this many slots.
const SLOTS: u16 = 16384;

/// The slot of a key, as the Redis Cluster specification defines it.
#[must_use]
pub fn slot_of(key: &[u8]) -> u16 {
    crc16(hash_tag(key).unwrap_or(key)) % SLOTS
}

/// The text between the first `{` and the next `}`; `None` if it is empty.
#[must_use]
pub fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|byte| *byte == b'{')?;
    let rest = key.get(open + 1..)?;
    let close = rest.iter().position(|byte| *byte == b'}')?;
    rest.get(..close).filter(|tag| !tag.is_empty())
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_crc_check_value() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
    }

    #[test]
    fn hash_tags_follow_the_cluster_specification() {
        assert_eq!(hash_tag(b"ade:{task:1}:state"), Some(&b"task:1"[..]));
        assert_eq!(hash_tag(b"a{}{b}"), None);
        assert_eq!(hash_tag(b"a{{b}}c"), Some(&b"{b"[..]));
        assert_eq!(hash_tag(b"a{b"), None);
        assert_eq!(slot_of(b"ade:{task:1}:state"), slot_of(b"task:1"));
    }
}
