//! The notice of what was just done. It travels in the URL of the next page with a tag that only this session could have made for this
//! page: a link of somebody else cannot claim that something happened.

use ade_dashboard::Notice;
use sha2::{Digest, Sha256};

/// Bytes of a tag in a URL.
const TAG_LEN: usize = 8;

/// The value of the query parameter for a page. `csrf` is the secret of the session's forms.
pub(super) fn signed(name: &str, csrf: &str, page: &str) -> String {
    format!("{name}-{}", tag(name, csrf, page))
}

/// The notice of a query parameter, if this session made it for this page.
pub(super) fn verified(value: &str, csrf: &str, page: &str) -> Option<Notice> {
    let (name, found) = value.rsplit_once('-')?;
    if csrf.is_empty() || found != tag(name, csrf, page) {
        return None;
    }
    Notice::named(name)
}

fn tag(name: &str, csrf: &str, page: &str) -> String {
    let mut hash = Sha256::new();
    for part in [csrf, name, page] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(TAG_LEN).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_session_makes_a_notice_and_for_one_page() {
        let value = signed("revoked", "secret", "/tasks/1");
        assert!(verified(&value, "secret", "/tasks/1").is_some());
        assert!(verified(&value, "secret", "/tasks/2").is_none());
        assert!(verified(&value, "other", "/tasks/1").is_none());
        assert!(verified(&value.replace("revoked", "approved"), "secret", "/tasks/1").is_none());
        for forged in ["revoked", "revoked-", "", "-"] {
            assert!(verified(forged, "secret", "/tasks/1").is_none(), "{forged}");
        }
        assert!(verified(&signed("revoked", "", "/"), "", "/").is_none(), "a token has no secret of forms");
    }
}
