//! Special keys for [`Page::type_keys`](super::Page::type_keys) and [`Page::chord`](super::Page::chord): the code points by
//! which the WebDriver standard names them.

pub const ARROW_DOWN: char = '\u{E015}';
pub const ARROW_LEFT: char = '\u{E012}';
pub const ARROW_RIGHT: char = '\u{E014}';
pub const ARROW_UP: char = '\u{E013}';
pub const BACKSPACE: char = '\u{E003}';
pub const CONTROL: char = '\u{E009}';
pub const DELETE: char = '\u{E017}';
pub const END: char = '\u{E010}';
pub const ENTER: char = '\u{E007}';
pub const ESCAPE: char = '\u{E00C}';
pub const HOME: char = '\u{E011}';
pub const PAGE_DOWN: char = '\u{E00F}';
pub const PAGE_UP: char = '\u{E00E}';
pub const SHIFT: char = '\u{E008}';
pub const SPACE: char = ' ';
pub const TAB: char = '\u{E004}';
