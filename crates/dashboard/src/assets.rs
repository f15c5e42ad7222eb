//! Style sheet, scripts and icon, compiled into the binary. Their URLs contain a hash of them all, so that browsers keep them and
//! still never mix versions.

use std::sync::OnceLock;

use sha2::{Digest, Sha256};

/// A file that pages load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asset {
    /// Name in the URL.
    pub name: &'static str,
    pub content_type: &'static str,
    pub text: &'static str,
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! assets {
    ($($name:literal: $content_type:expr),+ $(,)?) => {
        const ASSETS: &[Asset] = &[
            $(Asset { name: $name, content_type: $content_type, text: include_str!(concat!("../assets/", $name)) }),+
        ];
    };
}

assets! {
    "ade.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "ade.js": SCRIPT,
    "connection.js": SCRIPT,
    "decide.js": SCRIPT,
    "forms.js": SCRIPT,
    "keys.js": SCRIPT,
    "lists.js": SCRIPT,
    "live.js": SCRIPT,
    "morph.js": SCRIPT,
    "times.js": SCRIPT,
}

/// The asset with this name.
#[must_use]
pub fn asset(name: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.name == name)
}

/// The hash in the URLs of assets.
#[must_use]
pub fn assets_version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| {
        let mut hash = Sha256::new();
        for asset in ASSETS {
            hash.update(asset.name);
            hash.update(asset.text);
        }
        hex::encode(hash.finalize().get(..8).unwrap_or_default())
    })
}
