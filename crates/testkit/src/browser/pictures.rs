//! Pictures of pages: for people who look at a test run (`ADE_SCREENSHOTS`) and for the README (docs/screenshots).

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::page::Page;

impl Page {
    /// Writes a picture of the whole page for each width in both themes, as `NAME-WIDTH-THEME.png`, into the folder that
    /// `ADE_SCREENSHOTS` names, by an absolute path. Without it, does nothing.
    pub async fn pictures(&self, name: &str, widths: &[u32]) {
        if let Some(folder) = variable("ADE_SCREENSHOTS").map(PathBuf::from) {
            self.pictures_into(&folder, name, widths).await;
        }
    }

    /// [`Self::pictures`] in any folder.
    pub async fn pictures_into(&self, folder: &Path, name: &str, widths: &[u32]) {
        fs::create_dir_all(folder).expect("a folder for pictures");
        let before = self.options();
        for width in widths {
            self.set_size(*width, before.height).await;
            for (theme, is_dark) in [("light", false), ("dark", true)] {
                self.set_dark(is_dark).await;
                self.screenshot_full(&folder.join(format!("{name}-{width}-{theme}.png"))).await;
            }
        }
        self.set_size(before.width, before.height).await;
        self.set_dark(before.is_dark).await;
    }

    /// A picture of the README, of the viewport: written to docs/screenshots with `ADE_UPDATE_DOCS`. Otherwise the committed one
    /// must exist in the same size; its pixels depend on the fonts of a machine.
    pub async fn readme_picture(&self, name: &str) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/screenshots");
        if let Err(message) = self.check_or_write(&folder, name, variable("ADE_UPDATE_DOCS").is_some()).await
        {
            panic!("{message}");
        }
    }

    /// [`Self::readme_picture`] in any folder.
    pub async fn check_or_write(&self, folder: &Path, name: &str, is_update: bool) -> Result<(), String> {
        let file = folder.join(format!("{name}.png"));
        let picture = self.picture(false).await;
        if is_update {
            fs::create_dir_all(folder).expect("a folder for pictures");
            fs::write(&file, picture).expect("a picture is written");
            return Ok(());
        }
        let made = dimensions(&picture);
        let committed = fs::read(&file).ok().and_then(|committed| dimensions(&committed));
        if committed.is_some() && committed == made {
            return Ok(());
        }
        let show = |size: Option<(u32, u32)>| size.map_or("missing".into(), |(x, y)| format!("{x} × {y}"));
        Err(format!(
            "{} is stale: committed {}, made {}; repeat this test with ADE_UPDATE_DOCS=1",
            file.display(),
            show(committed),
            show(made)
        ))
    }

    /// A PNG of the viewport or the whole page, with fonts loaded and animations ended.
    pub(super) async fn picture(&self, is_full: bool) -> Vec<u8> {
        if self.options().has_javascript {
            let settle =
                "document.getAnimations().filter(a => a.effect.getComputedTiming().endTime < Infinity)
                              .forEach(animation => animation.finish());
                          return document.fonts.ready.then(() => true)";
            self.eval(settle, &[]).await;
        }
        let parameters = json!({ "format": "png", "captureBeyondViewport": is_full });
        let parameters = if is_full { self.with_clip(parameters).await } else { parameters };
        let made = self.cdp("Page.captureScreenshot", &parameters).await;
        let data = made.get("data").and_then(Value::as_str).expect("a picture");
        STANDARD.decode(data).expect("base64")
    }

    async fn with_clip(&self, mut parameters: Value) -> Value {
        let layout = self.cdp("Page.getLayoutMetrics", &json!({})).await;
        let size =
            |name: &str| layout.pointer(&format!("/cssContentSize/{name}")).cloned().unwrap_or_default();
        let clip = json!({ "x": 0, "y": 0, "width": size("width"), "height": size("height"), "scale": 1 });
        if let Some(parameters) = parameters.as_object_mut() {
            parameters.insert("clip".to_owned(), clip);
        }
        parameters
    }
}

fn variable(name: &str) -> Option<std::ffi::OsString> {
    #[expect(clippy::disallowed_methods, reason = "people who run tests ask for pictures with variables")]
    std::env::var_os(name)
}

/// Width and height of a PNG.
#[must_use]
pub(super) fn dimensions(png: &[u8]) -> Option<(u32, u32)> {
    let header = png.strip_prefix(b"\x89PNG\r\n\x1a\n")?;
    let number = |start: usize| Some(u32::from_be_bytes(header.get(start..start + 4)?.try_into().ok()?));
    Some((number(8)?, number(12)?))
}
