//! Makes names that pods can choose safe to show: the one function for terminals, messages, alerts, metrics and logs. The status page
//! has the same function in `http/page/dom.js`.

use std::borrow::Cow;

use unicode_width::UnicodeWidthChar as _;

/// Stands for a character that is not shown.
const REPLACEMENT: &str = "\u{fffd}";

/// `text` without characters that control a terminal, change the direction of text or are invisible: they would let one name, or
/// one line, look like another.
#[must_use]
pub fn clean(text: &str) -> Cow<'_, str> {
    replace(text, |c| c.is_control() || is_invisible(c))
}

/// As [`clean`], of a text of one's own.
#[must_use]
pub(crate) fn cleaned(text: String) -> String {
    let replaced = match clean(&text) {
        Cow::Owned(replaced) => Some(replaced),
        Cow::Borrowed(_) => None,
    };
    replaced.unwrap_or(text)
}

/// A line of the log, which has escaped control characters and colours.
#[must_use]
pub fn clean_log_line(line: &str) -> Cow<'_, str> {
    replace(line, |c| !c.is_control() && is_invisible(c))
}

fn replace(text: &str, is_hidden: impl Fn(char) -> bool) -> Cow<'_, str> {
    // Nearly all text is; without an exit, the compiler takes many bytes at a time.
    let is_printable_ascii = text
        .bytes()
        .fold(true, |is, byte| is & matches!(byte, b' '..=b'~'));
    if !is_printable_ascii && text.contains(&is_hidden) {
        Cow::Owned(text.replace(is_hidden, REPLACEMENT))
    } else {
        Cow::Borrowed(text)
    }
}

/// Whether the character is invisible (zero-width or bidirectional), or separates lines or paragraphs.
fn is_invisible(c: char) -> bool {
    !c.is_ascii()
        && (c.width().unwrap_or(0) == 0 || matches!(c, '\u{ad}' | '\u{2028}' | '\u{2029}'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_replaced() {
        for hidden in [
            '\u{1b}',
            '\n',
            '\u{7f}',
            '\u{9b}',
            '\u{ad}',
            '\u{61c}',
            '\u{180e}',
            '\u{200b}',
            '\u{200d}',
            '\u{200e}',
            '\u{200f}',
            '\u{2028}',
            '\u{2029}',
            '\u{202a}',
            '\u{202e}',
            '\u{2060}',
            '\u{2066}',
            '\u{2069}',
            '\u{fe0f}',
            '\u{feff}',
            '\u{e0041}',
        ] {
            let name = format!("veth{hidden}0");
            assert_eq!(clean(&name), "veth\u{fffd}0", "{hidden:?}");
        }
        for visible in ["veth0", "→ 10.0.0.1 … µs", "ветх", "接口", "é"] {
            assert_eq!(clean(visible), visible);
        }
    }

    #[test]
    fn log_line_keeps_its_colours_and_its_end() {
        assert_eq!(
            clean_log_line("\u{1b}[32mveth\u{202e}0\u{1b}[0m\n"),
            "\u{1b}[32mveth\u{fffd}0\u{1b}[0m\n"
        );
    }
}
