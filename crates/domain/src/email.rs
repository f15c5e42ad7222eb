//! Addresses for e-mail: what is accepted is a part of what standards permit, so that an address can stand in a header and in a command of
//! SMTP as it is.

/// Of a whole address, in bytes.
pub const MAX_EMAIL_LEN: usize = 254;
const MAX_LOCAL_LEN: usize = 64;
const MAX_LABEL_LEN: usize = 63;
const LOCAL_SYMBOLS: &[u8] = b"!#$%&'*+/=?^_`{|}~-";

/// Whether a text is an address such as `ann@example.com`: ASCII, without quotes, comments and address literals.
pub fn is_email_address(text: &str) -> bool {
    let Some((local, domain)) = text.split_once('@') else { return false };
    let is_atom = |atom: &str| {
        !atom.is_empty()
            && atom.bytes().all(|byte| byte.is_ascii_alphanumeric() || LOCAL_SYMBOLS.contains(&byte))
    };
    let is_label = |label: &str| {
        (1..=MAX_LABEL_LEN).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= MAX_EMAIL_LEN
        && local.len() <= MAX_LOCAL_LEN
        && local.split('.').all(is_atom)
        && domain.split('.').all(is_label)
}

/// The part of an address after the `@`.
pub fn domain_of(address: &str) -> &str {
    address.split_once('@').map_or("", |(_, domain)| domain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_plain_addresses_only() {
        for address in ["ann@example.com", "a.b+c_d@sub.example.com", "root@localhost", "o'neil@a-b.test"] {
            assert!(is_email_address(address), "{address}");
        }
        let long = format!("{}@{}.test", "a".repeat(64), "b.".repeat(95));
        let refused = [
            "",
            "ann",
            "@example.com",
            "ann@",
            "a@b@c",
            ".a@b.test",
            "a..b@c.test",
            "a.@b.test",
            "a@b..c",
            "a@-b.test",
            "a@b-.test",
            "a b@c.test",
            "a@b.test\r\nBcc: x@y.test",
            "a@b.test\n",
            "\"a b\"@c.test",
            "a@[127.0.0.1]",
            "<a@b.test>",
            "a@b.test,c@d.test",
            "ä@b.test",
            "a@ä.test",
            "a\u{202e}@b.test",
            "a@b.test>",
            &long,
        ];
        for address in refused {
            assert!(!is_email_address(address), "{address:?}");
        }
    }
}
