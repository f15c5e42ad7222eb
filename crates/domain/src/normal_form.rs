//! Normal forms of names: two spellings of the same name must never count as two names.
//!
//! Names of resources, targets, task types and patterns are compared without regard to case and to how accents are encoded. What
//! people wrote is stored and shown unchanged.

use std::borrow::Cow;

use icu_casemap::CaseMapper;
use icu_normalizer::ComposingNormalizer;

/// The form in which names are compared: composed (NFC) and case-folded.
pub fn fold(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
            Cow::Owned(text.to_ascii_lowercase())
        } else {
            Cow::Borrowed(text)
        };
    }
    let normalizer = const { ComposingNormalizer::new_nfc() };
    let composed = normalizer.normalize(text);
    let folded = const { CaseMapper::new() }.fold_string(&composed);
    // Folding can decompose a character.
    Cow::Owned(normalizer.normalize(&folded).into_owned())
}

/// Whether a text is composed (NFC), so that equal texts have equal bytes.
pub fn is_composed(text: &str) -> bool {
    text.is_ascii() || const { ComposingNormalizer::new_nfc() }.is_normalized(text)
}

#[cfg(test)]
mod tests {
    use ade_testkit::effort;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn folds_case_and_composition() {
        for (left, right) in [
            ("Database:PROD-x", "database:prod-x"),
            ("Caf\u{e9}", "CAFE\u{301}"),
            ("stra\u{df}e", "STRASSE"),
            ("\u{39f}\u{394}\u{39f}\u{3a3}", "\u{3bf}\u{3b4}\u{3bf}\u{3c2}"),
            ("\u{212a}elvin", "kelvin"),
        ] {
            assert_eq!(fold(left), fold(right), "{left} and {right}");
        }
        assert_ne!(fold("prod-x"), fold("prod-y"));
        assert!(matches!(fold("prod-x"), Cow::Borrowed(_)));
        assert!(is_composed("caf\u{e9}") && !is_composed("cafe\u{301}"));
    }

    proptest! {
        #![proptest_config(effort::property(256))]

        #[test]
        fn folding_is_idempotent(text in any::<String>()) {
            let folded = fold(&text).into_owned();
            prop_assert_eq!(fold(&folded), folded.as_str());
            prop_assert!(is_composed(&folded));
        }
    }
}
